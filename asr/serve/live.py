"""Live transcription: from chunks of samples to text while someone is speaking.

Every STEP_SECONDS of new audio the current segment is decoded again from its start. Words on which two
consecutive decodings agree are stable (local agreement), except for the last one, which may still grow.
A segment ends at a pause or at the maximum length. It is then decoded as a whole, and that text is final
and as good as the text of a file. The final decoding starts early in a pause, as soon as the pause can only
end the segment that has been heard so far, so that its text is ready when the pause is long enough. When
decoding falls behind the audio, only whole segments are decoded.

Decoding again works with any model, including models trained on whole utterances with full attention and
statistics over the utterance, which a chunked encoder would not. It costs more: a segment of S seconds is
decoded S / STEP_SECONDS times, so the real-time factor is about S / (2 * STEP_SECONDS) times that of a file.
A model that was trained to work by chunks does without: see asr/streaming.
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
from importlib import import_module
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

STEP_SECONDS = 0.5  # new audio between two decodings of a segment; less shows words sooner but costs more
MAX_PAUSE_SECONDS = 1.0  # a longer pause ends a segment, even if the settings for files allow more
OPENING_SECONDS = 30.0  # after this much speech the language is fixed
BEHIND_SECONDS = 3.0  # a longer delay causes a warning; the next one only after it fell below a third
CLEAR_LINE = "\r\x1b[K"


@dataclass(frozen=True)
class LiveText:
    """The text that is known at some point of the audio."""

    stable: tuple[Word, ...]
    """Words of the current segment on which two decodings agree; they stay until it ends."""
    partial: tuple[Word, ...]  # words after the stable ones, which the next decoding may change
    seconds: float  # seconds of audio received so far
    segment: Segment | None = None
    """The segment that ended here, with final text and times from the first sample."""
    separator: str = " "  # between two words, in the detected language

    def join(self, words: Iterable[Word]) -> str:
        return self.separator.join(word.text for word in words)


class LiveTranscriber:
    """Recognizes mono samples that arrive in chunks of any length, and keeps at most one segment of audio.

    `push` returns the texts that a chunk makes known, `finish` those that are left. Not thread-safe.
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
        self.rules = rules.with_rules(
            max_pause_seconds=pause, padding_seconds=min(rules.padding_seconds, pause / 2)
        )
        self._segmenter = Segmenter(self.sample_rate, self.rules, is_live=True)
        self._last: list[Word] = []  # newest decoding of the current segment
        self._stable: list[Word] = []
        self._final_until = 0.0  # end of the last word of the previous segment
        self._decoded_until = 0.0
        self._paused_at = 0.0  # end of the newest segment that was decoded in a pause
        self._prepared: tuple[AudioSegment, Segment] | None = None
        self._seconds_in: dict[str, float] = {}  # seconds of finished segments by language

    def push(self, samples_S: np.ndarray, is_late: bool = False) -> list[LiveText]:
        """Add samples. With `is_late`, more audio is waiting, so only complete segments are decoded."""
        texts = [self._end(segment) for segment in self._segmenter.push(samples_S)]
        seconds = self._segmenter.seconds
        if is_late:
            return texts
        if (ending := self._segmenter.ending()) is not None:
            if self._paused_at != ending.end:
                self._paused_at = self._decoded_until = ending.end
                texts.append(self._prepare(ending))
        elif seconds >= self._find_due():
            self._decoded_until = seconds
            if (current := self._segmenter.current()) is not None:
                texts.append(self._update(self._read_part(current)))
        return texts

    def _find_due(self) -> float:
        """The second at which the segment that is being spoken is decoded again."""
        return self._decoded_until + STEP_SECONDS

    def finish(self) -> list[LiveText]:
        """Return the texts that were not final after the last chunk."""
        return [self._end(segment) for segment in self._segmenter.finish()]

    def _read_part(self, current: AudioSegment) -> Segment:
        """Read what there is so far of the segment that is being spoken."""
        return self._recognize(current, self._main_language, is_partial=True)

    def _prepare(self, ending: AudioSegment) -> LiveText:
        """Decode a segment that ends here unless speech continues."""
        decoded = self._recognize(ending, self._segment_language, is_partial=True)
        # A complete segment with warnings would have been decoded a second time, so this one cannot serve.
        self._prepared = None if decoded.warnings else (ending, decoded)
        return self._update(decoded)

    def _update(self, decoded: Segment) -> LiveText:
        """Return the text to show after decoding a segment that has not ended."""
        words = self._new_words(decoded.words)
        num_stable = _count_common(self._last, words)
        self._last = words
        if _count_common(self._stable, words) == len(self._stable):
            num_stable = max(len(self._stable), min(num_stable, len(words) - 1))
            self._stable, partial = words[:num_stable], words[num_stable:]
        else:  # the stable words stay until the complete segment is decoded
            partial = [word for word in words if word.middle > self._stable[-1].end]
        separator = self.recognizer.decoder.separator_in(decoded.language)
        return LiveText(tuple(self._stable), tuple(partial), self._segmenter.seconds, separator=separator)

    def _end(self, segment: AudioSegment) -> LiveText:
        """Return the final text of a complete segment, decoding it unless that is already done."""
        decoded = self._take_prepared(segment)
        if decoded is None:
            decoded = self._recognize(segment, self._segment_language)
        if decoded.language is not None:
            seconds = segment.end - segment.start
            self._seconds_in[decoded.language] = self._seconds_in.get(decoded.language, 0.0) + seconds
        cut = segment.cut_after
        # A word at the cut is complete in the next segment, which overlaps this one.
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
        """Recognize a segment. If `language` is None, the model detects it in the segment."""
        request = self.recognizer.change_request(self.request, language, is_partial)
        (recognized,) = self.recognizer.recognize([segment], request)
        return recognized

    @property
    def _segment_language(self) -> str | None:
        is_known = sum(self._seconds_in.values()) >= OPENING_SECONDS
        return self._main_language if is_known else None

    @property
    def _main_language(self) -> str | None:
        """The language of most of the speech so far, because detection in a short segment is unreliable."""
        return max(self._seconds_in, key=self._seconds_in.__getitem__, default=None)

    def _new_words(self, words: Iterable[Word]) -> list[Word]:
        """Drop the words of the previous segment. Times move by less than half a word between decodings."""
        return [word for word in words if word.middle > self._final_until]


def listen(
    recognizer: Recognizer, request: Request | None = None, max_pause_seconds: float = MAX_PAUSE_SECONDS
) -> LiveTranscriber:
    """A transcriber that encodes each chunk once if the model can, and else decodes segments repeatedly."""
    kind, model = LiveTranscriber, recognizer.model
    if getattr(model.encoder, "chunk", None) is not None and model.ctc_head is not None:
        kind = import_module("asr.streaming.live_session").ChunkedTranscriber
    return kind(recognizer, request, max_pause_seconds)


def _count_common(before: list[Word], after: list[Word]) -> int:
    """Count the words at the start that both have in common."""
    pairs = zip(before, after, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a.text != b.text), min(len(before), len(after)))


def transcribe_live(
    chunks: Iterable[np.ndarray],
    transcriber: LiveTranscriber,
    sample_rate: int,
    is_late: Callable[[], bool] = lambda: False,
) -> Iterator[LiveText]:
    """Transcribe chunks at `sample_rate`, resampling them if the model needs another rate.

    `is_late` returns True if more audio is waiting. Audio received before an error is still decoded.
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
    """Write one line for each final segment.

    A terminal also shows, below them, the text that may still change. As JSON, every text that differs from
    the one before is a line. `delay` returns how many seconds the newest audio had to wait.
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


# --- from a pipe: a thread empties it, so that the recording program never has to wait ------------

NAME = Path("standard input")
# 256 MB, hours of PCM; the recording program has to wait only when this buffer is full.
MAX_CHUNKS, CHUNK_BYTES = 1 << 16, 1 << 12
# Bytes and microseconds that FFmpeg reads ahead to find what the header does not say.
PROBE = {"probesize": "32768", "analyzeduration": "100000"}
# FFmpeg decodes RIFX to noise, and has to seek in the other two.
_NOT_STREAMED = (b"RIFX", b"wvpk", b"caff")


class PipeReader:
    """Reads a pipe in a thread, and keeps each chunk with its arrival time until it is needed."""

    def __init__(self, source: BinaryIO) -> None:
        # The raw file, because the buffer of standard input would be locked when the program ends.
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
        """True if more audio is waiting to be read."""
        return not self._waiting.empty()

    def delay(self) -> float:
        """Return how many seconds the newest audio had to wait, and warn once when these become many."""
        seconds = time.monotonic() - self.arrived
        if seconds > BEHIND_SECONDS and not self._is_behind:
            logger.warning(
                "decoding is %.1f s behind the audio; until it catches up, only whole segments are shown. "
                "Nothing is lost; use a smaller model if this persists",
                seconds,
            )
        self._is_behind = seconds > (BEHIND_SECONDS / 3 if self._is_behind else BEHIND_SECONDS)
        return seconds

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`, as soon as there are any; b"" at the end."""
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
            if content is None:  # a non-blocking pipe without data
                time.sleep(0.01)
            else:
                self._waiting.put((content, time.monotonic()))


def read_live(pipe: PipeReader, channel: int | None = None) -> tuple[Iterator[np.ndarray], int]:
    """Return an iterator over mono float32 pieces as soon as they are decoded, and their sampling rate."""
    import av
    from av.error import FFmpegError

    def decode() -> Iterator[np.ndarray]:
        try:
            for frame in media.decode(audio=0):
                for one in to_float.resample(frame):
                    frames_TC = one.to_ndarray().T
                    if channel is not None and channel >= frames_TC.shape[1]:
                        problem = f"has {frames_TC.shape[1]} channels, so there is no channel {channel + 1}"
                        raise AudioError(f"{NAME}: {problem}")
                    if not np.isfinite(frames_TC).all():
                        raise AudioError(f"{NAME}: has samples that are NaN or infinite")
                    pipe.delay()
                    yield mix(frames_TC, channel, NAME)
        except (FFmpegError, ValueError, OSError) as error:
            raise AudioError(
                f"{NAME}: decoding failed ({error}); if this is a file, pass its path instead"
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
            f"{NAME}: cannot be decoded as a stream ({error}); raw samples need a WAV header, and a file "
            "that cannot be streamed, such as an MP4 with its index at the end, has to be passed by its path"
        ) from None
    return decode(), rate


def transcribe_pipe(
    source: BinaryIO, target: TextIO, load: Callable[[], tuple[Recognizer, Request]], as_json: bool
) -> None:
    """Transcribe a stream while it arrives, with the model that `load` returns."""
    pipe = PipeReader(source)  # before loading the model, so that the recording program does not wait
    recognizer, request = load()
    recognizer.check(request)
    channel = request.channels - 1 if isinstance(request.channels, int) else None
    pieces, rate = read_live(pipe, channel)
    transcriber = listen(recognizer, request)
    texts = transcribe_live(pieces, transcriber, rate, is_late=lambda: pipe.is_late)
    write_live(texts, target, as_json, pipe.delay)
