"""Live: chunks of samples in, text out while someone speaks; final once a segment is decoded as a whole.

The segment that is being spoken is decoded anew, from its start, each time that `step_seconds` more of it
have come. Words on which two decodings in a row agree are shown as such (local agreement); the last of them
is still held back, as it may go on. A pause, or the longest segment, ends a segment: it is decoded as a
whole, and that text is final, as good as that of a file. In a pause this is done as soon as the segment is
the one that a longer pause would end, so that its text is there by then. When decoding falls behind the
audio, only whole segments are decoded.

Why decoding again, and not an encoder that works by chunks: any model can do it, also one trained on whole
utterances with full attention and statistics over the utterance. It costs more: a segment of S seconds is
decoded S / step_seconds times, so the real-time factor is about S / (2 * step_seconds) times that of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pydantic

from asr.audio.segmentation import AudioSegment, Segmenter
from asr.config import Config
from asr.errors import UserError
from asr.transcription.joining import Recognized, keep_words
from asr.transcription.transcriber import Request, Transcriber
from asr.transcripts.transcript import Segment, Word

OPENING_SECONDS = 30.0  # of speech, by which the language is told


class StreamingConfig(Config):
    """Settings of live transcription: how quickly text comes, and how surely."""

    step_seconds: float = pydantic.Field(default=0.5, gt=0)
    """Of new audio between two decodings of the segment that is being spoken; less: sooner, dearer."""
    max_seconds: float = pydantic.Field(default=28.0, ge=2)
    """Of a segment, and never more than in a file. Shorter ones are final sooner and cost less, but have more
    errors: they have less context."""
    pause_seconds: float = pydantic.Field(default=1.0, gt=0)
    """A pause that ends a segment."""


@dataclass(frozen=True)
class LiveText:
    """Text known after some audio."""

    agreed: tuple[Word, ...]
    """Of the segment that is being spoken, on which two decodings agree: these stay until it ends."""
    tentative: tuple[Word, ...]
    """What follows them; the next decoding may change it."""
    seconds: float
    """Of audio that had come."""
    segment: Segment | None = None
    """The segment that ended here: its text is final. Times count from the first sample."""
    separator: str = " "
    """Between two words, in the detected language."""


class LiveTranscriber:
    """Recognizer of live audio: mono samples in chunks of any length; keeps no more audio than a segment.

    `push` returns what became known by this chunk, `finish` what is left. Not for several threads at once.
    """

    def __init__(
        self, recognizer: Transcriber, request: Request | None = None, config: StreamingConfig | None = None
    ) -> None:
        self.recognizer = recognizer
        self.request = request or Request()
        recognizer.check_live(self.request)
        self.config = config or StreamingConfig()
        self.sample_rate = recognizer.sample_rate
        segmentation = recognizer.segmentation.limited(self.config.max_seconds)
        pause = min(self.config.pause_seconds, segmentation.max_pause_seconds)
        changed = {
            "max_pause_seconds": pause,
            "padding_seconds": min(segmentation.padding_seconds, pause / 2),
            "min_pause_seconds": min(segmentation.min_pause_seconds, pause),
            "unjudged_seconds": 0.0,
        }
        # Nothing can be looked at ahead: the noise is what it was until now.
        self._segmenter = Segmenter(
            self.sample_rate, segmentation.model_copy(update=changed), ahead_seconds=0.0
        )
        self._last: list[Word] = []  # the newest decoding of the segment that is being spoken
        self._agreed: list[Word] = []
        self._final_until = 0.0  # end of the last word of the segment before
        self._decoded_until = 0.0
        self._paused_at = 0.0  # end of the newest segment that was decoded in a pause
        self._prepared: tuple[AudioSegment, Recognized] | None = None
        self._seconds_in: dict[str, float] = {}  # by language, of finished segments

    def push(self, samples_S: np.ndarray, is_late: bool = False) -> list[LiveText]:
        """`is_late`: more audio waits already, so that only segments that end here are decoded."""
        if samples_S.ndim != 1 or samples_S.dtype.kind != "f" or not np.isfinite(samples_S).all():
            raise UserError(
                f"a chunk of shape {samples_S.shape} and type {samples_S.dtype}: expected finite mono "
                "samples, (samples,), of floats in [-1, 1]"
            )
        texts = [self._end(segment) for segment in self._segmenter.push(samples_S.astype(np.float32))]
        seconds = self._segmenter.seconds
        if is_late:
            return texts
        if (ending := self._segmenter.ending()) is not None:
            if self._paused_at != ending.end:
                self._paused_at = self._decoded_until = ending.end
                texts.append(self._prepare(ending))
        elif seconds - self._decoded_until >= self.config.step_seconds:
            self._decoded_until = seconds
            if (current := self._segmenter.current()) is not None:
                found = self._recognize_tentatively(current, self._usual_language)
                texts.append(self._update(found))
        return texts

    def finish(self) -> list[LiveText]:
        """Return what was not final yet, after the last chunk."""
        return [self._end(segment) for segment in self._segmenter.finish()]

    def _prepare(self, ending: AudioSegment) -> LiveText:
        """Decode a segment that will end unless someone goes on to speak."""
        found = self._recognize_tentatively(ending, self._language_of_whole)
        # Without warnings there would have been no second attempts either.
        self._prepared = None if found.segment.warnings else (ending, found)
        return self._update(found)

    def _update(self, found: Recognized) -> LiveText:
        """Text to show after a segment has been decoded before its end."""
        words = self._new_words(found.segment.words)
        num_agreed = _count_common(self._last, words)
        self._last = words
        if _count_common(self._agreed, words) == len(self._agreed):
            num_agreed = max(len(self._agreed), min(num_agreed, len(words) - 1))
            self._agreed, tentative = words[:num_agreed], words[num_agreed:]
        else:  # what was shown as agreed stays, until the whole segment is decoded
            tentative = [word for word in words if word.middle > self._agreed[-1].end]
        separator = self.recognizer.separator_in(found.language)
        return LiveText(tuple(self._agreed), tuple(tentative), self._segmenter.seconds, separator=separator)

    def _end(self, segment: AudioSegment) -> LiveText:
        """Decode a whole segment, if that is not done yet."""
        whole = self._take_prepared(segment)
        if whole is None:
            whole = self._recognize(segment, self._language_of_whole)
        if whole.language is not None:
            seconds = segment.end - segment.start
            self._seconds_in[whole.language] = self._seconds_in.get(whole.language, 0.0) + seconds
        cut = segment.cut_after
        # What begins at a cut is whole in the next segment, which overlaps this one.
        words = [w for w in self._new_words(whole.segment.words) if cut is None or w.middle < cut]
        if words:
            self._final_until = words[-1].end
        self._last, self._agreed = [], []
        separator = self.recognizer.separator_in(whole.language)
        ended = keep_words(whole.segment, words, separator)
        return LiveText((), (), self._segmenter.seconds, ended, separator)

    def _take_prepared(self, segment: AudioSegment) -> Recognized | None:
        prepared, self._prepared = self._prepared, None
        if prepared is None or segment.cut_after is not None:
            return None
        ending, found = prepared
        is_same = ending.start == segment.start and len(ending.audio_S) == len(segment.audio_S)
        return found if is_same else None

    def _recognize_tentatively(self, segment: AudioSegment, language: str | None) -> Recognized:
        return self._recognize(segment, language, self.recognizer.tentatively(self.request))

    def _recognize(
        self, segment: AudioSegment, language: str | None, request: Request | None = None
    ) -> Recognized:
        """Recognize a segment; a language that is not given is told by the segment itself."""
        request = request or self.request
        if language is not None:
            request = self.recognizer.in_language(request, language)
        (found,) = self.recognizer.recognize([segment], request)
        return found

    @property
    def _language_of_whole(self) -> str | None:
        is_known = sum(self._seconds_in.values()) >= OPENING_SECONDS
        return self._usual_language if is_known else None

    @property
    def _usual_language(self) -> str | None:
        """Language of most of the speech so far, as a short segment may sound like any."""
        return max(self._seconds_in, key=self._seconds_in.__getitem__, default=None)

    def _new_words(self, words: Iterable[Word]) -> list[Word]:
        """Words after the previous segment. Between decodings times move a little, less than half a word."""
        return [word for word in words if word.middle > self._final_until]


def _count_common(before: list[Word], after: list[Word]) -> int:
    """Count the words that both begin with."""
    pairs = zip(before, after, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a.text != b.text), min(len(before), len(after)))


def transcribe_live(
    chunks: Iterable[np.ndarray],
    transcriber: LiveTranscriber,
    sample_rate: int,
    is_late: Callable[[], bool] = lambda: False,
) -> Iterator[LiveText]:
    """Transcribe chunks that come at `sample_rate`, resampled on the way where the model has another.

    `is_late` tells whether more audio waits. What came before an error is decoded to its end.
    """
    import soxr

    resampler = None
    if sample_rate != transcriber.sample_rate:
        resampler = soxr.ResampleStream(
            sample_rate, transcriber.sample_rate, 1, dtype="float32", quality="HQ"
        )
    try:
        for chunk in chunks:
            samples = chunk if resampler is None else resampler.resample_chunk(chunk)
            yield from transcriber.push(samples, is_late())
    except UserError as error:
        yield from transcriber.finish()
        raise error
    if resampler is not None:
        yield from transcriber.push(resampler.resample_chunk(np.empty(0, np.float32), last=True))
    yield from transcriber.finish()
