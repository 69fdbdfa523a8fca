"""Live: chunks of samples in, words out as soon as they are final.

The segment that is being spoken is decoded anew, from its start, each time that `step_seconds` more of it
have come. Words on which two decodings in a row agree are final (local agreement); the last of them is still
held back, as it may go on. A pause, or the longest segment, ends a segment and makes all its words final.

Why decoding again, and not an encoder that works by chunks: any model can do it, also one trained on whole
utterances with full attention and statistics over the utterance, and a segment's last decoding is the same as
that of a file. It costs more: a segment of S seconds is decoded S / step_seconds times, so the real-time
factor is about S / (2 * step_seconds) times that of a file. Segments are kept short for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pydantic

from asr.config import Config
from asr.errors import UserError
from asr.transcription.joining import make_segment
from asr.transcription.segmentation import AudioSegment, Segmenter
from asr.transcription.transcriber import Request, Transcriber
from asr.transcripts.transcript import Segment, Word


class StreamingConfig(Config):
    """How quickly live text comes, and how surely."""

    step_seconds: float = pydantic.Field(default=0.5, gt=0)
    """Of new audio between two decodings of the segment that is being spoken; less: sooner, dearer."""
    max_seconds: float = pydantic.Field(default=10.0, ge=2)
    """Of a segment. Shorter ones cost less and know less of what was said before."""
    pause_seconds: float = pydantic.Field(default=0.5, gt=0)
    """A pause that ends a segment."""


@dataclass(frozen=True)
class LiveText:
    """What is new after some audio."""

    words: tuple[Word, ...]
    """Final: these will not change. Times count from the first sample."""
    tentative: tuple[Word, ...]
    """What follows them as far as heard; the next decoding may change it."""
    seconds: float
    """Of audio that had come."""
    segment: Segment | None = None
    """The segment that ended here, with all its words and warnings."""
    separator: str = " "
    """Between two words, in the language that was heard."""


class LiveTranscriber:
    """Takes mono samples at the model's rate in chunks of any length; keeps no more audio than a segment.

    `push` returns what became known by this chunk, `finish` what is left. Not for several threads at once.
    """

    def __init__(
        self, recognizer: Transcriber, request: Request | None = None, config: StreamingConfig | None = None
    ) -> None:
        self.recognizer = recognizer
        self.request = request or Request()
        if self.request.whisper.windows != "pauses":
            raise UserError("live speech is cut in pauses; leave whisper.windows out")
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
        self._last: list[Word] = []  # what the last decoding added to the final words
        self._final: list[Word] = []  # of the segment that is being spoken
        self._final_until = 0.0  # end of the last final word
        self._decoded_until = 0.0

    def push(self, samples_S: np.ndarray) -> list[LiveText]:
        if samples_S.ndim != 1 or samples_S.dtype.kind != "f" or not np.isfinite(samples_S).all():
            raise UserError(
                f"a chunk of shape {samples_S.shape} and type {samples_S.dtype}: expected finite mono "
                "samples, (samples,), of floats in [-1, 1]"
            )
        texts = [self._end(segment) for segment in self._segmenter.push(samples_S.astype(np.float32))]
        seconds = self._segmenter.seconds
        if seconds - self._decoded_until >= self.config.step_seconds:
            self._decoded_until = seconds
            if (current := self._segmenter.current()) is not None:
                texts.append(self._update(current))
        return texts

    def finish(self) -> list[LiveText]:
        """After the last chunk: the words that were not final yet."""
        return [self._end(segment) for segment in self._segmenter.finish()]

    def _update(self, segment: AudioSegment) -> LiveText:
        """Decode what there is of a segment."""
        heard, separator = self._recognize(segment)
        words = self._new_words(heard.words)
        num_agreed = 0
        for before, now in zip(self._last, words, strict=False):
            if before.text != now.text:
                break
            num_agreed += 1
        num_final = min(num_agreed, max(len(words) - 1, 0))
        self._accept(words[:num_final])
        self._last = words[num_final:]
        return LiveText(
            tuple(words[:num_final]), tuple(self._last), self._segmenter.seconds, separator=separator
        )

    def _end(self, segment: AudioSegment) -> LiveText:
        """Decode a whole segment."""
        whole, separator = self._recognize(segment)
        cut = segment.cut_after
        # What begins at a cut is heard whole in the next segment, which overlaps this one.
        words = [word for word in self._new_words(whole.words) if cut is None or _middle(word) < cut]
        self._accept(words)
        text = separator.join(word.text for word in self._final)
        ended = make_segment(whole, text, self._final, whole.decoding, whole.warnings)
        self._last, self._final = [], []
        return LiveText(tuple(words), (), self._segmenter.seconds, ended, separator)

    def _recognize(self, segment: AudioSegment) -> tuple[Segment, str]:
        """What is said, and what separates its words."""
        (found,) = self.recognizer.recognize([segment], self.request)
        return found.segment, self.recognizer.separator_in(found.language)

    def _new_words(self, words: Iterable[Word]) -> list[Word]:
        """Those after the final ones. Between decodings times move a little, less than half a word."""
        return [word for word in words if _middle(word) > self._final_until]

    def _accept(self, words: list[Word]) -> None:
        self._final += words
        if words:
            self._final_until = words[-1].end


def _middle(word: Word) -> float:
    return (word.start + word.end) / 2


def decode_pcm(chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
    """float32 samples of raw mono PCM: 16-bit little-endian, in chunks that may end within a sample."""
    rest = b""
    for chunk in chunks:
        content = rest + chunk
        whole = len(content) - len(content) % 2
        rest = content[whole:]
        if whole:
            yield np.frombuffer(content[:whole], "<i2").astype(np.float32) / 32768


def transcribe_live(
    chunks: Iterable[np.ndarray], transcriber: LiveTranscriber, sample_rate: int
) -> Iterator[LiveText]:
    """All texts of chunks that come at `sample_rate`, resampled on the way where the model has another."""
    import soxr

    resampler = None
    if sample_rate != transcriber.sample_rate:
        resampler = soxr.ResampleStream(
            sample_rate, transcriber.sample_rate, 1, dtype="float32", quality="HQ"
        )
    for chunk in chunks:
        yield from transcriber.push(chunk if resampler is None else resampler.resample_chunk(chunk))
    if resampler is not None:
        yield from transcriber.push(resampler.resample_chunk(np.empty(0, np.float32), last=True))
    yield from transcriber.finish()
