"""Recordings as input: files, parts of files, and arrays, read ahead in blocks and cut at pauses.

Memory holds one segment and the lookahead for the next cut, however long the recording is.
"""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import (
    IO,
    TYPE_CHECKING,
    Annotated,
    Any,
    BinaryIO,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
)

import numpy as np
import pydantic

from asr.audio import reading as audio
from asr.audio.reading import AudioContent
from asr.config import Config
from asr.errors import UserError

if TYPE_CHECKING:
    import torch

    from asr.audio.speech_detection import DetectorModel, SileroDetector

# S samples, T frames of 10 ms

FRAMES_PER_SECOND = 100

BLOCK_SECONDS = 4.0  # seconds per block: a whole number of the detector's chunks
STANDARD_INPUT = "-"
Item = TypeVar("Item")


class Fetch(Protocol):
    """A function that fetches the content of a file, such as a ByteRange."""

    def __call__(self) -> bytes: ...


@dataclass(frozen=True)
class Recording:
    """A recording to read, or a part of one: a file, samples, or a function that fetches a file."""

    path: str | Path = ""  # as entered or found; "-" for standard input, "" for samples
    id: str = ""
    """ID of its transcript, and path of its outputs within a folder; by default, the stem of the path."""
    start: float = 0.0  # seconds
    duration: float | None = None  # seconds; None: up to the end
    channel: int | None = None  # counted from 0; None: the mean of all channels
    content: np.ndarray | IO[bytes] | Fetch | None = None
    """Mono samples, an opened file, or a function that fetches a file; `path` is then only its name. None:
    the file at `path`."""
    sample_rate: int | None = None  # sample rate in Hz if `content` is samples
    is_utterance: bool = False  # True for an utterance from a manifest, which is cut only if very long
    on_read: Callable[[float], None] | None = None
    """Called after each block with the seconds read so far; an exception from it ends the reading."""

    @property
    def name(self) -> str:
        """ID of its transcript."""
        return self.id or Path(self.path).stem


AudioFile = str | Path | Recording
AudioInput: TypeAlias = "str | Path | Recording | bytes | IO[bytes] | np.ndarray | torch.Tensor"
"""A path or Recording; an array or tensor with its sample rate; or a file's bytes, or an opened file."""
Channels = Literal["mix", "separate"] | Annotated[int, pydantic.Field(ge=1)]


def make_recording(source: Any, sample_rate: int | None = None) -> Recording:
    """Turn anything that holds audio into a recording."""
    if callable(getattr(source, "numpy", None)):  # a tensor, on any device
        source = source.detach().cpu().float().numpy() if source.is_floating_point() else source.cpu().numpy()
    if isinstance(source, np.ndarray):
        return make_samples(source, sample_rate)
    if sample_rate is not None:
        raise UserError("sample_rate is for an array of samples only, because a file has its own; remove it")
    if isinstance(source, Recording):
        return source
    if isinstance(source, str | Path):
        return Recording(source)
    if isinstance(source, bytes):
        return Recording(content=io.BytesIO(source))
    if callable(getattr(source, "read", None)) and not isinstance(source, io.TextIOBase):
        return Recording(str(getattr(source, "name", "")), content=source)
    raise UserError(
        f"audio of type {type(source).__name__}: expected a path, an array or tensor with its sample_rate, "
        "or a file as bytes or opened in binary mode"
    )


def make_samples(audio_S: np.ndarray, sample_rate: int | None) -> Recording:
    """Check samples and wrap them in a Recording. Integers are refused, because they would be pure noise."""
    rates = range(audio.MIN_SAMPLE_RATE, audio.MAX_SAMPLE_RATE + 1)
    if not isinstance(sample_rate, int | np.integer) or int(sample_rate) not in rates:
        raise UserError(f"sample_rate {sample_rate!r} of an array: expected Hz, such as sample_rate=16000")
    if audio_S.ndim == 2 and 1 in audio_S.shape:  # how torchaudio and soundfile return one channel
        audio_S = audio_S.reshape(-1)
    if audio_S.ndim != 1 or audio_S.dtype.kind != "f":
        raise UserError(
            f"an array of shape {audio_S.shape} and type {audio_S.dtype}: expected one channel, (samples,), "
            "of floats in [-1, 1]; average the channels, and divide 16-bit integers by 32768"
        )
    if len(audio_S) and not np.abs(audio_S).max() <= audio.MAX_LEVEL:
        raise UserError("the array has samples that are NaN or far outside [-1, 1]; check how it was made")
    return Recording(content=audio_S.astype(np.float32, copy=False), sample_rate=int(sample_rate))


def split_channels(recording: Recording, channels: Channels) -> list[Recording]:
    """Split into recordings that are transcribed separately: the mean of all channels, each one, or one."""
    if channels == "mix" or isinstance(recording.content, np.ndarray) or recording.channel is not None:
        return [recording]
    if recording.content is not None and not callable(recording.content):
        raise UserError("cannot select channels of a file in memory; write it to disk first")
    if channels != "separate":
        return [replace(recording, channel=channels - 1)]
    try:
        num_channels = audio.read_info(recording.path, _load(recording)).num_channels
    except UserError:
        return [recording]  # the error is reported when the recording is read
    if not 1 < num_channels <= audio.MAX_MIXED_CHANNELS:
        return [recording]
    return [replace(recording, channel=channel) for channel in range(num_channels)]


def read_recording(
    recording: Recording, sample_rate: int, on_damage: audio.OnDamage | None = None
) -> Iterator[np.ndarray]:
    """Yield float32 blocks of shape (samples,). Silence is not an error here."""
    if isinstance(recording.content, np.ndarray):
        assert recording.sample_rate is not None
        samples = audio.resample(recording.content, recording.sample_rate, sample_rate)
        size = round(BLOCK_SECONDS * sample_rate)
        yield from (samples[first : first + size] for first in range(0, len(samples), size))
        return
    with _open(recording) as (name, content):
        seconds = 0.0
        for block in audio.read_blocks(
            name,
            sample_rate,
            block_seconds=BLOCK_SECONDS,
            start=recording.start,
            duration=recording.duration,
            channel=recording.channel,
            allow_silence=True,
            on_damage=on_damage,
            content=content,
        ):
            seconds += len(block) / sample_rate
            if recording.on_read is not None:
                recording.on_read(seconds)
            yield block


def _load(recording: Recording) -> bytes | None:
    return recording.content() if callable(recording.content) else None


@contextlib.contextmanager
def _open(recording: Recording) -> Iterator[tuple[str | Path, AudioContent | None]]:
    """Yield a file's name and content; a stream is copied to disk first, because decoders need to seek."""
    opened = recording.content
    if opened is None or callable(opened):
        yield recording.path, _load(recording)
        return
    if isinstance(opened, io.FileIO) and opened.seekable():  # on disk and unbuffered
        yield recording.path, cast(BinaryIO, opened)
        return
    assert not isinstance(opened, np.ndarray)
    name = "standard input" if recording.path == STANDARD_INPUT else recording.path or "the audio in memory"
    with tempfile.TemporaryFile(buffering=0) as copy:
        try:
            shutil.copyfileobj(opened, copy)
        except OSError as error:
            raise UserError(f"{name}: cannot be read ({error.strerror})") from None
        yield name, copy


def read_ahead(items: Iterable[Item], max_waiting: int) -> Generator[Item]:
    """Yield the same items, produced in a thread while the caller works; at most `max_waiting` are queued.

    Close the iterator (contextlib.closing) to end the thread before the items run out.
    """
    iterator, over = iter(items), object()
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        waiting = deque(pool.submit(next, iterator, over) for _ in range(max_waiting))
        try:
            while (item := waiting.popleft().result()) is not over:
                waiting.append(pool.submit(next, iterator, over))
                yield cast(Item, item)
        finally:
            for future in waiting:
                future.cancel()


# --- segmentation ------------------------------------------------------------------------------

SHORTEST_LIMIT = 4.0  # seconds; shorter segments would cut phrases, even if training had them
SHORTEST_SECONDS = 0.05  # a shorter recording cannot contain a word
INNER_PAUSE_SECONDS = 0.5  # shortest pause between two spans of speech in one segment
MIN_PAUSE_SECONDS = 0.2  # a shorter pause is part of speech, such as the closure of a t
MIN_VAD_SECONDS = 3.0  # a shorter recording is one segment, because the detector needs more audio
OVERLAP_RATIO = 0.05  # overlap at a cut within speech, as a share of max_seconds; at most 1 s

SILENCE_DB = -80.0  # dB re full scale: 20 dB above 16-bit rounding noise, below the quietest speech
_PRE_EMPHASIS = 0.97  # filter coefficient; without it, hum and rumble would mask the speech


class EndpointConfig(Config):
    """Rules that end a live segment by the model's text, as pauses and `max_seconds` do by the audio.

    They are for encoders with `model.encoder.chunk`, which read each chunk as soon as it is spoken.
    """

    silence_seconds: float = pydantic.Field(default=1.2, gt=0)
    """Seconds without a new token after which a segment with text ends, even if the detector finds speech."""
    empty_seconds: float = pydantic.Field(default=2.4, gt=0)
    """Seconds without any token after which a segment is dropped, because it is noise or music."""


class SegmentationConfig(Config):
    """Settings for cutting recordings by voice activity."""

    method: Literal["silero", "none"] = "silero"
    """silero: cut at pauses in speech, which the silero-vad model distinguishes from music and noise.
    none: do not cut; the whole recording is one segment. Live audio then ends segments by the other rules."""
    max_seconds: float = pydantic.Field(default=20.0, ge=1)
    """Longest segment in seconds, never longer than the longest training utterance. For a model that always
    processes 30 s at once, the default is 28."""
    endpoint: EndpointConfig = EndpointConfig()
    """Rules that end a live segment by its text."""

    @property
    def overlap_seconds(self) -> float:
        """Seconds of audio shared by both sides of a cut within speech; their common words are merged."""
        return min(1.0, OVERLAP_RATIO * self.max_seconds)

    def limited(self, max_seconds: float) -> SegmentationConfig:
        """Return the same settings with segments of at most `max_seconds`."""
        return self.model_copy(update={"max_seconds": min(max_seconds, self.max_seconds)})

    def with_rules(self, **changed: float) -> CuttingRules:
        return CuttingRules(**{**self.model_dump(), **changed})


class CuttingRules(SegmentationConfig):
    """All cutting rules: the settings, and what a model family or a server client may change."""

    min_share: float = 0.4
    """If speech continues past max_seconds, it is not cut before this share of max_seconds."""
    max_pause_seconds: float = 0.5
    """A longer pause always ends a segment; shorter pauses are cut only if max_seconds requires it."""
    padding_seconds: float = 0.3
    """Seconds kept before and after speech, for weak sounds at its edges."""
    speech_threshold: float = 0.5
    """silero: speech begins when its probability exceeds this."""


class SegmentPlan(NamedTuple):
    """Rules for cutting recordings for a model."""

    segmentation: SegmentationConfig
    uncut_seconds: float = 0.0
    """Utterances up to this length are one segment; longer ones are cut like recordings."""
    trained_seconds: float = 0.0
    """Recordings up to this length, as in training, are one segment with all their silence."""


def plan_segments(segmentation: SegmentationConfig, limit: float, longest: float | None) -> SegmentPlan:
    """Plan segments of at most `limit` seconds; `longest` is the longest training utterance, if known."""
    uncut_seconds = math.inf if segmentation.method == "none" else limit
    if longest is None:
        return SegmentPlan(segmentation.limited(limit), uncut_seconds)
    trained_seconds = min(limit, longest, segmentation.max_seconds)
    limit = min(limit, max(longest, SHORTEST_LIMIT))
    return SegmentPlan(segmentation.limited(limit), uncut_seconds, trained_seconds)


@dataclass(frozen=True)
class AudioSegment:
    """A segment of a recording."""

    start: float  # seconds from the start of the recording
    audio_S: np.ndarray
    sample_rate: int
    cut_before: float | None = None
    """Time in seconds at which speech was cut without a pause; this segment begins earlier, and the previous
    one ends later."""
    cut_after: float | None = None  # the same for the end of the segment
    speech: tuple[tuple[float, float], ...] = ()
    """Start and end of each span of speech, in seconds of the recording, separated by pauses of at least
    INNER_PAUSE_SECONDS; empty if unknown."""
    recording: Recording = field(default_factory=Recording)  # the recording it was cut from

    @property
    def end(self) -> float:
        return self.start + len(self.audio_S) / self.sample_rate

    @property
    def overlaps(self) -> bool:
        """True if it shares audio with the previous or next segment."""
        return self.cut_before is not None or self.cut_after is not None


class Segmenter:
    """Cuts a stream of samples into segments, each returned as soon as its end is certain."""

    def __init__(
        self,
        sample_rate: int,
        config: SegmentationConfig,
        offset: float = 0.0,
        uncut_seconds: float = 0.0,
        is_live: bool = False,
        load_detector: Callable[[], DetectorModel] | None = None,
    ) -> None:
        """A recording of at most `uncut_seconds` is one segment if it contains speech."""
        self.sample_rate, self.offset, self.uncut_seconds = sample_rate, offset, uncut_seconds
        self.rules = config if isinstance(config, CuttingRules) else config.with_rules()
        self.frame_samples = sample_rate / FRAMES_PER_SECOND  # frames may begin between two samples
        self._detector: SileroDetector | _NoDetector | None = None
        if self.rules.method == "none" and is_live:
            self._detector = _NoDetector(self.frame_samples)
        elif self.rules.method != "none":
            from asr.audio.speech_detection import SileroDetector

            self._detector = SileroDetector(sample_rate, self.rules.speech_threshold, load_detector)
        self._min_vad_seconds = 0.0 if is_live else MIN_VAD_SECONDS
        self._padding = _count_frames(self.rules.padding_seconds)
        self._blocks = [np.zeros(0, np.float32)]  # from sample _audio_first on
        self._audio_first = self._num_samples = 0
        self._is_speech_T = np.zeros(0, bool)  # from frame _first on
        self._first = 0
        self._next = 0  # the first frame that belongs to no segment yet
        self._cut_before: float | None = None
        self._has_output = False

    @property
    def seconds(self) -> float:
        """Seconds received so far."""
        return self._num_samples / self.sample_rate

    def push(self, block_S: np.ndarray) -> list[AudioSegment]:
        self._blocks.append(block_S)
        self._num_samples += len(block_S)
        if self._detector is None:
            return []
        self._is_speech_T = np.concatenate([self._is_speech_T, self._detector.push(block_S)])
        return [] if self.seconds <= self.uncut_seconds else self._pop_segments(is_last=False)

    def finish(self) -> list[AudioSegment]:
        """Return the remaining segments; nothing can be pushed afterward."""
        whole = [AudioSegment(self.offset, self._audio, self.sample_rate)]
        if self._detector is None:
            return whole if self._num_samples else []
        self._is_speech_T = np.concatenate([self._is_speech_T, self._detector.finish()])
        if self.seconds <= self.uncut_seconds and self._is_speech_T.any():
            return [self._cut_out(0, self._num_samples / self.frame_samples, None)]
        segments = self._pop_segments(is_last=True)
        is_short = SHORTEST_SECONDS <= self.seconds <= self._min_vad_seconds
        is_silent = self._measure(self._first, self._known).max(initial=SILENCE_DB) <= SILENCE_DB
        return whole if is_short and not is_silent and not self._has_output else segments

    def current(self) -> AudioSegment | None:
        """Return the unfinished segment up to the newest sample; None in a pause."""
        speech_T = self._find_speech()
        if not speech_T:
            return None
        return self._cut_out(self._segment_start(speech_T[0]), self._num_samples / self.frame_samples, None)

    def ending(self) -> AudioSegment | None:
        """Return the segment that ends here if the current pause lasts long enough; None if in speech."""
        speech_T = self._find_speech()
        if not speech_T or self._known - 1 - speech_T[-1] < self._padding:
            return None
        return self._cut_out(self._segment_start(speech_T[0]), speech_T[-1] + 1 + self._padding, None)

    def end_at(self, second: float) -> AudioSegment:
        """End the unfinished segment, which there must be, at this second; the next one begins there."""
        end = min(math.floor((second - self.offset) * FRAMES_PER_SECOND), self._known)
        segment = self._emit(self._segment_start(self._find_speech()[0]), end, end)
        self._has_output = True
        self._trim()
        return segment

    # --- frames ---------------------------------------------------------------------------------

    def _find_speech(self) -> list[int]:
        """Return the speech frames that do not belong to a segment yet."""
        return (self._next + np.flatnonzero(self._is_speech_T[self._next - self._first :])).tolist()

    @property
    def _known(self) -> int:
        return self._first + len(self._is_speech_T)

    @property
    def _audio(self) -> np.ndarray:
        """All blocks as one array, joined on demand, because with method none there may be hours of them."""
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def _measure(self, first: int, past: int) -> np.ndarray:
        """Return frame energies, computed from one frame earlier, whose last sample pre-emphasis needs."""
        before = max(first - 1, self._first)
        begin, end = (
            math.floor(frame * self.frame_samples) - self._audio_first for frame in (before, past + 1)
        )
        energies_T = _Energies(self.sample_rate, before).push(self._audio[begin:end])
        return energies_T[first - before : past - before]

    def _pop_segments(self, is_last: bool) -> list[AudioSegment]:
        segments = []
        while (segment := self._next_segment(is_last)) is not None:
            segments.append(segment)
        self._has_output = self._has_output or bool(segments)
        self._trim()
        return segments

    def _next_segment(self, is_last: bool) -> AudioSegment | None:
        """Return the first segment whose end is certain; None if there is none yet."""
        known, padding = self._known, self._padding
        speech_T = self._find_speech()
        if not speech_T:
            self._next, self._cut_before = max(self._next, known - padding), None
            return None
        begin, start = speech_T[0], self._segment_start(speech_T[0])
        limit = start + _count_frames(self.rules.max_seconds)
        longest_pause = _count_frames(self.rules.max_pause_seconds)
        certain = max(longest_pause, 2 * padding)  # a pause of this length always ends a segment
        shortest_pause = min(_count_frames(MIN_PAUSE_SECONDS), longest_pause)
        silent = find_runs(~self._is_speech_T[begin - self._first :])
        pauses = [(begin + a, begin + b) for a, b in silent if b - a >= shortest_pause]
        for first, past in pauses:
            # A pause that is still going on must be long enough for the padding on both sides.
            enough = certain if past == known else longest_pause
            if past - first >= enough and first <= limit - padding:
                end = first + min(padding, (past - first) // 2)
                return self._emit(start, end, max(past - padding, end))
        horizon = limit + certain  # how much is known beyond this depends on the block sizes
        if known >= horizon or (is_last and known >= limit):
            return self._cut(start, limit, [(first, min(past, horizon)) for first, past in pauses])
        if is_last:
            end = min(speech_T[-1] + 1 + padding, known)
            rest = self._num_samples / self.frame_samples  # includes a partial frame at the end
            return self._emit(start, rest if end == known else end, known)
        return None

    def _segment_start(self, speech: int) -> int:
        """Return the first frame of a segment whose speech begins at frame `speech`."""
        if self._cut_before is not None:
            return self._next
        return max(self._next, speech - self._padding)

    def _cut(self, start: int, limit: int, pauses: list[tuple[int, int]]) -> AudioSegment:
        """Cut speech that continues past the limit: in its longest late pause, else at its quietest frame."""
        earliest = start + _count_frames(self.rules.min_share * self.rules.max_seconds)
        inside = [(a, b) for a, b in pauses if earliest <= (a + b) // 2 <= limit and a < limit]
        if inside:
            first, past = max(inside, key=lambda pause: pause[1] - pause[0])
            middle = min((first + past) // 2, limit)
            return self._emit(start, middle, middle)
        overlap = _count_frames(self.rules.overlap_seconds)
        latest = limit - overlap
        quiet_T = smooth(self._measure(earliest, latest), 9)
        cut = earliest + int(np.argmin(quiet_T))
        return self._emit(start, cut + overlap, cut - overlap, cut)

    def _emit(self, start: int, end: float, next_frame: int, cut: int | None = None) -> AudioSegment:
        cut_after = None if cut is None else self.offset + cut / FRAMES_PER_SECOND
        segment = self._cut_out(start, end, cut_after)
        self._next, self._cut_before = next_frame, cut_after
        return segment

    def _cut_out(self, start: int, end: float, cut_after: float | None) -> AudioSegment:
        first, past = round(start * self.frame_samples), round(end * self.frame_samples)
        audio_S = self._audio[first - self._audio_first : past - self._audio_first].copy()
        time = self.offset + first / self.sample_rate
        is_speech_T = self._is_speech_T[start - self._first : math.floor(end) - self._first]
        spans: list[tuple[int, int]] = []
        for span in find_runs(is_speech_T):
            is_near = spans and span[0] - spans[-1][1] < _count_frames(INNER_PAUSE_SECONDS)
            spans.append((spans.pop()[0], span[1]) if is_near else span)
        second = [self.offset + (start + frame) / FRAMES_PER_SECOND for span in spans for frame in span]
        speech = tuple(zip(second[::2], second[1::2], strict=True))
        return AudioSegment(time, audio_S, self.sample_rate, self._cut_before, cut_after, speech)

    def _trim(self) -> None:
        """Drop audio that no later segment can contain."""
        if self.seconds <= self._min_vad_seconds:
            return
        keep = max(self._next - 1, self._first)
        self._is_speech_T = self._is_speech_T[keep - self._first :]
        self._first = keep
        first_sample = math.floor(keep * self.frame_samples)
        self._blocks = [self._audio[first_sample - self._audio_first :]]
        self._audio_first = first_sample


class _NoDetector:
    """Takes all audio for speech, where live segments end by other rules."""

    def __init__(self, frame_samples: float) -> None:
        self._frame_samples = frame_samples
        self._num_samples = self._num_frames = 0

    def push(self, block_S: np.ndarray) -> np.ndarray:
        self._num_samples += len(block_S)
        before, self._num_frames = self._num_frames, int(self._num_samples / self._frame_samples)
        return np.ones(self._num_frames - before, bool)

    def finish(self) -> np.ndarray:
        return np.zeros(0, bool)


def _count_frames(seconds: float) -> int:
    return round(seconds * FRAMES_PER_SECOND)


def find_runs(is_on_T: np.ndarray) -> list[tuple[int, int]]:
    """Return the first and past-the-end frame of each run of True."""
    edges_T = np.flatnonzero(np.diff(is_on_T.astype(np.int8), prepend=0, append=0))
    return list(zip(edges_T[::2].tolist(), edges_T[1::2].tolist(), strict=True))


# --- energies ---------------------------------------------------------------------------------


def measure_energies(audio_S: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the energy of each whole 10 ms frame in dB relative to full scale, after pre-emphasis."""
    return _Energies(sample_rate).push(audio_S)


class _Energies:
    """Streaming version of `measure_energies`."""

    def __init__(self, sample_rate: int, first_frame: int = 0) -> None:
        self._frame_samples = sample_rate / FRAMES_PER_SECOND
        self._rest = np.zeros(0)
        self._last = 0.0
        self._num_frames = first_frame
        self._position = math.floor(first_frame * self._frame_samples)  # of the first sample in _rest

    def push(self, block_S: np.ndarray) -> np.ndarray:
        block = block_S.astype(np.float64)
        emphasized = block - _PRE_EMPHASIS * np.concatenate([[self._last], block[:-1]])
        self._last = float(block[-1]) if len(block) else self._last
        self._rest = np.concatenate([self._rest, emphasized**2])
        count = int((self._position + len(self._rest)) / self._frame_samples) - self._num_frames
        frames = np.arange(self._num_frames, self._num_frames + count + 1)
        edges = np.floor(frames * self._frame_samples).astype(int) - self._position
        sums = np.concatenate([[0.0], np.cumsum(self._rest)])
        powers_T = np.diff(sums[edges]) / np.diff(edges)
        self._rest = self._rest[edges[-1] :]
        self._position += int(edges[-1])
        self._num_frames += count
        return np.maximum(10 * np.log10(np.maximum(powers_T, 1e-12)), SILENCE_DB)


def smooth(values_T: np.ndarray, width: int) -> np.ndarray:
    """Return the moving average over `width` frames."""
    padded = np.pad(values_T, width // 2, mode="edge")
    return np.convolve(padded, np.full(width, 1 / width), mode="valid")
