"""Live transcription: chunks of samples in, text out while someone speaks.

The segment that is being spoken is decoded again, from its start, each time that STEP_SECONDS more of it
have come. Words on which two decodings in a row agree are stable (local agreement); the last of them
is still held back, as it may continue. A pause, or the longest segment, ends a segment: it is decoded as a
whole, and that text is final, as good as that of a file. In a pause this is done as soon as the segment is
the one that a longer pause would end, so that its text is there by then. When decoding falls behind the
audio, only whole segments are decoded.

Why decoding again, and not an encoder that works by chunks: any model can do it, also one trained on whole
utterances with full attention and statistics over the utterance. It costs more: a segment of S seconds is
decoded S / STEP_SECONDS times, so the real-time factor is about S / (2 * STEP_SECONDS) times that of a file.
"""

from __future__ import annotations

import json
import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, TextIO

import numpy as np

from asr.audio.ffmpeg import open_ffmpeg
from asr.audio.reading import mix, resample_pieces
from asr.audio.segmentation import AudioSegment, Segmenter
from asr.errors import AudioError, UserError
from asr.transcription.transcribe import Recognizer, Request
from asr.transcripts.transcript import Segment, Word, keep_words

logger = logging.getLogger(__name__)

STEP_SECONDS = 0.5  # of new audio between two decodings of a segment: less is sooner, and costs more
MAX_PAUSE_SECONDS = 1.0  # a longer one ends a segment, also where that of a file may have longer ones
OPENING_SECONDS = 30.0  # of speech, by which the language is detected
BEHIND_SECONDS = 3.0  # a delay that is worth a warning, and another one after a third of it
CLEAR_LINE = "\r\x1b[K"


@dataclass(frozen=True)
class LiveText:
    """Text known after some audio."""

    stable: tuple[Word, ...]
    """Words of the segment that is being spoken, on which two decodings agree: these stay until it ends."""
    partial: tuple[Word, ...]  # partial words after the stable ones; the next decoding may change them
    seconds: float  # seconds of audio that had come
    segment: Segment | None = None
    """The segment that ended here: its text is final. Times count from the first sample."""
    separator: str = " "  # between two words, in the detected language

    def join(self, words: Iterable[Word]) -> str:
        return self.separator.join(word.text for word in words)


class LiveTranscriber:
    """Recognizer of live audio: mono samples in chunks of any length; keeps no more audio than a segment.

    `push` returns what became known by this chunk, `finish` what is left. Not for several threads at once.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        request: Request | None = None,
        max_pause_seconds: float = MAX_PAUSE_SECONDS,
    ) -> None:
        self.recognizer = recognizer
        self.request = request or Request()
        self.sample_rate = recognizer.sample_rate
        rules = recognizer.segmentation.with_rules()
        pause = min(max_pause_seconds, rules.max_pause_seconds)
        rules = rules.with_rules(
            max_pause_seconds=pause, padding_seconds=min(rules.padding_seconds, pause / 2)
        )
        self._segmenter = Segmenter(self.sample_rate, rules, is_live=True)
        self._last: list[Word] = []  # the newest decoding of the segment that is being spoken
        self._stable: list[Word] = []
        self._final_until = 0.0  # end of the last word of the segment before
        self._decoded_until = 0.0
        self._paused_at = 0.0  # end of the newest segment that was decoded in a pause
        self._prepared: tuple[AudioSegment, Segment] | None = None
        self._seconds_in: dict[str, float] = {}  # by language, of finished segments

    def push(self, samples_S: np.ndarray, is_late: bool = False) -> list[LiveText]:
        """`is_late`: more audio waits already, so that only segments that end here are decoded."""
        texts = [self._end(segment) for segment in self._segmenter.push(samples_S)]
        seconds = self._segmenter.seconds
        if is_late:
            return texts
        if (ending := self._segmenter.ending()) is not None:
            if self._paused_at != ending.end:
                self._paused_at = self._decoded_until = ending.end
                texts.append(self._prepare(ending))
        elif seconds - self._decoded_until >= STEP_SECONDS:
            self._decoded_until = seconds
            if (current := self._segmenter.current()) is not None:
                texts.append(self._update(self._recognize(current, self._main_language, is_partial=True)))
        return texts

    def finish(self) -> list[LiveText]:
        """Return what was not final yet, after the last chunk."""
        return [self._end(segment) for segment in self._segmenter.finish()]

    def _prepare(self, ending: AudioSegment) -> LiveText:
        """Decode a segment that will end unless someone continues to speak."""
        decoded = self._recognize(ending, self._segment_language, is_partial=True)
        # Without warnings there would have been no second attempts either.
        self._prepared = None if decoded.warnings else (ending, decoded)
        return self._update(decoded)

    def _update(self, decoded: Segment) -> LiveText:
        """Text to show after a segment has been decoded before its end."""
        words = self._new_words(decoded.words)
        num_stable = _count_common(self._last, words)
        self._last = words
        if _count_common(self._stable, words) == len(self._stable):
            num_stable = max(len(self._stable), min(num_stable, len(words) - 1))
            self._stable, partial = words[:num_stable], words[num_stable:]
        else:  # what was stable stays, until the complete segment is decoded
            partial = [word for word in words if word.middle > self._stable[-1].end]
        separator = self.recognizer.decoder.separator_in(decoded.language)
        return LiveText(tuple(self._stable), tuple(partial), self._segmenter.seconds, separator=separator)

    def _end(self, segment: AudioSegment) -> LiveText:
        """Decode a complete segment, if that is not done yet."""
        decoded = self._take_prepared(segment)
        if decoded is None:
            decoded = self._recognize(segment, self._segment_language)
        if decoded.language is not None:
            seconds = segment.end - segment.start
            self._seconds_in[decoded.language] = self._seconds_in.get(decoded.language, 0.0) + seconds
        cut = segment.cut_after
        # What begins at a cut is whole in the next segment, which overlaps this one.
        words = [w for w in self._new_words(decoded.words) if cut is None or w.middle < cut]
        if words:
            self._final_until = words[-1].end
        self._last, self._stable = [], []
        separator = self.recognizer.decoder.separator_in(decoded.language)
        ended = keep_words(decoded, words, separator)
        return LiveText((), (), self._segmenter.seconds, ended, separator)

    def _take_prepared(self, segment: AudioSegment) -> Segment | None:
        prepared, self._prepared = self._prepared, None
        if prepared is None or segment.cut_after is not None:
            return None
        ending, decoded = prepared
        is_same = ending.start == segment.start and len(ending.audio_S) == len(segment.audio_S)
        return decoded if is_same else None

    def _recognize(self, segment: AudioSegment, language: str | None, is_partial: bool = False) -> Segment:
        """Recognize a segment; without a language, it is detected in the segment."""
        request = self.recognizer.change_request(self.request, language, is_partial)
        (recognized,) = self.recognizer.recognize([segment], request)
        return recognized

    @property
    def _segment_language(self) -> str | None:
        is_known = sum(self._seconds_in.values()) >= OPENING_SECONDS
        return self._main_language if is_known else None

    @property
    def _main_language(self) -> str | None:
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

    `is_late` returns True if more audio waits. What came before an error is decoded to its end.
    """
    try:
        for piece in resample_pieces(chunks, sample_rate, transcriber.sample_rate):
            yield from transcriber.push(piece, is_late())
    except UserError:
        yield from transcriber.finish()
        raise
    yield from transcriber.finish()


# --- writing --------------------------------------------------------------------------------------


def write_live(
    texts: Iterable[LiveText], out: TextIO, as_json: bool, delay: Callable[[], float] = lambda: 0.0
) -> None:
    """Write each text: a line for each segment that is final.

    A terminal shows below it what may still change. As JSON there is a line for each text in which anything
    is new or has changed. `delay` returns how long the newest audio had to wait.
    """
    is_terminal = out.isatty()
    shown = ["", ""]
    for text in texts:
        ended = text.segment
        line = text.join((*text.stable, *text.partial)) if ended is None else ended.text
        newest = [text.join(text.stable), text.join(text.partial)]
        if as_json and (ended is not None or newest != shown):
            record = {
                "seconds": round(text.seconds, 3),
                "text": line,
                "final": [] if ended is None else [word.to_dict() for word in ended.words],
                "stable": [word.to_dict() for word in text.stable],
                "partial": [word.to_dict() for word in text.partial],
                "segment_ends": ended is not None,
                "warnings": [] if ended is None else list(ended.warnings),
                "delay": round(delay(), 2),
            }
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
        elif ended is not None and not as_json:
            out.write((CLEAR_LINE if is_terminal else "") + (line + "\n" if line else ""))
        elif is_terminal and not as_json:
            out.write(CLEAR_LINE + line[-(shutil.get_terminal_size().columns - 1) :])
        shown = newest
        out.flush()


# --- from a pipe: a thread takes out what comes, so that whoever records never waits --------------

NAME = Path("standard input")
# Hours of PCM, 256 MB: only then whoever records has to wait.
MAX_CHUNKS, CHUNK_BYTES = 1 << 16, 1 << 12
# FFmpeg looks at so much before it decodes, for what the header does not tell.
PROBE = {"probesize": "32768", "analyzeduration": "100000"}
# FFmpeg makes noise of the first, and would have to go back in the others.
_NOT_STREAMED = (b"RIFX", b"wvpk", b"caff")


class PipeReader:
    """Reader of a pipe; keeps what comes until it is read, with the time when it came."""

    def __init__(self, source: BinaryIO) -> None:
        # Not the buffer of standard input, which would be locked when the program ends.
        self._source = getattr(source, "raw", source)
        self._waiting: queue.Queue[tuple[bytes, float]] = queue.Queue(MAX_CHUNKS)
        self._content = b""
        self._is_over = self._is_behind = False
        self._error: OSError | None = None
        self.arrived = time.monotonic()
        """Arrival time of the chunk that was read last."""
        threading.Thread(target=self._drain, name="live-input", daemon=True).start()

    @property
    def is_late(self) -> bool:
        """State in which more waits to be read."""
        return not self._waiting.empty()

    def delay(self) -> float:
        """Seconds that the newest audio had to wait; warns once when they are many."""
        seconds = time.monotonic() - self.arrived
        if seconds > BEHIND_SECONDS and not self._is_behind:
            logger.warning(
                "decoding is %.1f s behind the audio: whole segments only until it has caught up; "
                "nothing is lost, and a smaller model is faster",
                seconds,
            )
        self._is_behind = seconds > (BEHIND_SECONDS / 3 if self._is_behind else BEHIND_SECONDS)
        return seconds

    def read(self, size: int) -> bytes:
        """Read what came next, at most so much, as soon as there is any; nothing at the end."""
        if not self._content and not self._is_over:
            self._content, self.arrived = self._waiting.get()
            self._is_over = not self._content
            if self._error is not None and self._is_over:
                raise UserError(f"{NAME}: cannot be read ({self._error.strerror})")
        content, self._content = self._content[:size], self._content[size:]
        return content

    def _drain(self) -> None:
        content: bytes | None = None
        while content != b"":
            try:
                content = self._source.read(CHUNK_BYTES)
            except OSError as error:
                content, self._error = b"", error
            if content is None:  # a pipe that does not block
                time.sleep(0.01)
            else:
                self._waiting.put((content, time.monotonic()))


def read_live(pipe: PipeReader, channel: int | None = None) -> tuple[Iterator[np.ndarray], int]:
    """Mono pieces (samples,) in float32, as soon as they can be decoded, and their rate."""
    import av
    from av.error import FFmpegError

    def decode() -> Iterator[np.ndarray]:
        try:
            for frame in media.decode(audio=0):
                for one in to_float.resample(frame):
                    frames_TC = one.to_ndarray().T
                    if channel is not None and channel >= frames_TC.shape[1]:
                        raise AudioError(f"{NAME}: has {frames_TC.shape[1]} channels, and not {channel + 1}")
                    if not np.isfinite(frames_TC).all():
                        raise AudioError(f"{NAME}: has samples that are no numbers")
                    pipe.delay()
                    yield mix(frames_TC, channel, NAME)
        except (FFmpegError, ValueError, OSError) as error:
            raise AudioError(
                f"{NAME}: cannot be decoded any further ({error}); give a file by its path"
            ) from None

    head = b""
    while len(head) < 4 and (content := pipe.read(4 - len(head))):
        head += content
    heads = iter([head])
    source = SimpleNamespace(read=lambda size: next(heads, None) or pipe.read(size))
    try:
        if head.startswith(_NOT_STREAMED):
            raise ValueError("this format")
        media = open_ffmpeg(source, **PROBE)
        rate = media.streams.audio[0].codec_context.sample_rate
        to_float: Any = av.AudioResampler(format="fltp")  # keeps rate and channels
    except (FFmpegError, ValueError, OSError, IndexError) as error:
        raise AudioError(
            f"{NAME}: cannot be decoded as it comes ({error}); raw samples need the header of a WAV, and "
            "a file that does not stream, such as an MP4 with its index at the end, is given by its path"
        ) from None
    return decode(), rate


def transcribe_pipe(
    source: BinaryIO, target: TextIO, load: Callable[[], tuple[Recognizer, Request]], as_json: bool
) -> None:
    """Transcribe a stream while it comes, by the model that `load` loads."""
    pipe = PipeReader(source)  # before the model is loaded, for which no recorder should wait
    recognizer, request = load()
    recognizer.check(request)
    channel = request.channels - 1 if isinstance(request.channels, int) else None
    pieces, rate = read_live(pipe, channel)
    transcriber = LiveTranscriber(recognizer, request)
    texts = transcribe_live(pieces, transcriber, rate, is_late=lambda: pipe.is_late)
    write_live(texts, target, as_json, pipe.delay)
