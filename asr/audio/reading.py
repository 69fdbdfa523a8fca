"""Any audio file to float32 mono at a wanted rate, whole or in blocks, and back to WAV and FLAC.

Full scale is 1. Several channels are averaged, unless one is picked. Times count from the first sample of the
(first) sound track. Every fault of a file is an `AudioError`: not audio, silent throughout ... So is damage,
but for callers of `read_blocks` who ask to be told of it: they get all that can be decoded.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr.audio.containers import (
    MAX_SAMPLE_RATE,
    MIN_SAMPLE_RATE,
    TOLERANCE_SECONDS,
    AudioContent,
    AudioDecoder,
    AudioError,
    as_audio_errors,
    open_audio,
    regroup,
)
from asr.errors import UserError, plural
from asr.files import replace_file

__all__ = ["AudioError", "AudioInfo", "Damage", "read", "read_blocks", "read_info", "resample", "write"]

logger = logging.getLogger(__name__)

MAX_READ_SECONDS = 2 * 3600.0  # 460 MB at 16 kHz
MAX_MIXED_CHANNELS = 8  # 7.1; more is a recording of a microphone array, whose mean nobody wants
# Float files may go over full scale, and lossy codecs do. 40 dB over it, they hold integers stored as floats.
MAX_LEVEL = 100.0
# Of the mean over the channels: those of independent sounds leave half of the power, or an eighth of eight. A
# channel with the sign reversed leaves what a codec adds, or what differs in gain: -17 dB at 2.5 dB.
CANCELLED_SHARE = 0.02
MIN_POWER = 1e-7  # -70 dB of full scale; below there is nothing to lose
MAX_SPANS_SHOWN = 5  # of damage


@dataclass(frozen=True)
class AudioInfo:
    """The header of an audio file."""

    path: Path
    sample_rate: int
    num_channels: int
    seconds: float | None
    """None where the header does not tell: streams without a container, such as MP3 without a length tag."""
    container: str


@dataclass(frozen=True)
class Damage:
    """The parts missing in a file, or in the part of it that was read."""

    promised: float | None
    """Seconds by the header; None where it does not tell."""
    found: float
    """Seconds that could be decoded."""
    missing: tuple[tuple[float, float | None], ...]
    """Begin and end of each span that cannot be decoded, in seconds of the file. Silence stands in its place,
    but for the last one of a file that is cut short, of which the end may be unknown."""
    message: str


OnDamage = Callable[[Damage], None]


@dataclass(frozen=True)
class _Request:
    """The wanted part of a file, checked before the file is opened."""

    path: Path
    sample_rate: int
    start: float
    duration: float | None
    channel: int | None
    allow_silence: bool
    max_seconds: float = math.inf
    on_damage: OnDamage | None = None
    content: AudioContent | None = None

    def __post_init__(self) -> None:
        _require_rate(f"{self.path}: sample_rate", self.sample_rate)
        if not (math.isfinite(self.start) and self.start >= 0):
            raise AudioError(f"{self.path}: start is {self.start} s, expected 0 or more")
        if self.duration is not None and not (math.isfinite(self.duration) and self.duration > 0):
            raise AudioError(f"{self.path}: duration is {self.duration} s, expected more than 0")


def read_info(path: str | Path, content: AudioContent | None = None) -> AudioInfo:
    """Read the header only. `content`: of the file, in memory or opened."""
    path = Path(path)
    with open_audio(path, content) as decoder:
        seconds = None if decoder.num_frames is None else decoder.num_frames / decoder.sample_rate
        return AudioInfo(path, decoder.sample_rate, decoder.num_channels, seconds, decoder.container)


def measure_seconds(path: str | Path, content: AudioContent | None = None) -> float:
    """Seconds of a whole audio file: from its header, or by decoding it where the header does not tell."""
    info = read_info(path, content)
    if info.seconds is not None:
        return info.seconds
    blocks = read_blocks(path, info.sample_rate, allow_silence=True, content=content)
    return sum(len(block) for block in blocks) / info.sample_rate


def read(
    path: str | Path,
    sample_rate: int = 16_000,
    *,
    start: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    allow_silence: bool = False,
    content: AudioContent | None = None,
) -> np.ndarray:
    """The file, or the part of `duration` seconds from `start`, as float32 (samples,).

    A part may reach past the end by `TOLERANCE_SECONDS`, and is shorter then. `channel` counts from 0.
    `content`: of the file, in memory or opened; `path` is then only its name in messages.
    """
    request = _Request(
        Path(path), sample_rate, start, duration, channel, allow_silence, MAX_READ_SECONDS, content=content
    )
    pieces = list(_read_pieces(request))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def read_blocks(
    path: str | Path,
    sample_rate: int = 16_000,
    *,
    block_seconds: float = 30.0,
    start: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    allow_silence: bool = False,
    on_damage: OnDamage | None = None,
    content: AudioContent | None = None,
) -> Iterator[np.ndarray]:
    """Read the same in blocks of `block_seconds`, of which the last may be shorter.

    Memory does not grow with the file, but for the index of MP4, 5 MB for an hour. Some faults show at
    the end only, after the blocks before: that all samples are zero, or that some are missing. The latter is
    told to `on_damage`, where given, and is an error otherwise.
    """
    request = _Request(
        Path(path),
        sample_rate,
        start,
        duration,
        channel,
        allow_silence,
        on_damage=on_damage,
        content=content,
    )
    if not 1 / sample_rate <= block_seconds <= MAX_READ_SECONDS:
        raise AudioError(
            f"{path}: block_seconds is {block_seconds}, expected one sample to {MAX_READ_SECONDS:,.0f} s"
        )
    return regroup(_read_pieces(request), round(block_seconds * sample_rate))


def write(path: str | Path, audio: np.ndarray, sample_rate: int) -> None:
    """Write mono 16-bit `.wav` or `.flac`, then put the file in place of `path`.

    Values outside [-1, 1], which resampling makes of loud audio, are clipped. What was read from a 16-bit
    file is written back unchanged.
    """
    import soundfile

    path = Path(path)
    _require_rate(f"{path}: sample_rate", sample_rate)
    container = {".wav": "WAV", ".flac": "FLAC"}.get(path.suffix.lower())
    if container is None:
        raise AudioError(f"{path}: the suffix is {path.suffix!r}, expected .wav or .flac")
    if audio.ndim != 1 or not audio.size or audio.dtype.kind != "f" or not np.isfinite(audio).all():
        raise AudioError(
            f"{path}: expected finite float samples of shape (samples,), got {audio.dtype} {audio.shape}"
        )
    samples = np.clip(np.rint(audio * 32768), -32768, 32767).astype(np.int16)
    try:
        with replace_file(path, flush=False) as file:
            soundfile.write(file.fileno(), samples, sample_rate, "PCM_16", format=container, closefd=False)
    except RuntimeError as error:
        raise AudioError(f"{path}: cannot write the file ({error})") from None


def resample(audio: np.ndarray, from_rate: int, to_rate: int) -> np.ndarray:
    """float32 (samples,) at another rate, by the high-quality filter that `read` uses too."""
    import soxr

    _require_rate("resample: from_rate", from_rate)
    _require_rate("resample: to_rate", to_rate)
    audio = np.asarray(audio, np.float32)
    if audio.ndim != 1:
        raise UserError(f"expected audio of shape (samples,), got {audio.shape}; mix or pick a channel first")
    return audio if from_rate == to_rate else soxr.resample(audio, from_rate, to_rate, quality="HQ")


def change_speed(audio: np.ndarray, speed: float, sample_rate: int) -> np.ndarray:
    """Tempo and pitch together: played faster, samples belong to a higher rate, then come back to ours."""
    return resample(audio, round(sample_rate * speed), sample_rate)


def _require_rate(name: str, sample_rate: int) -> None:
    if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
        raise AudioError(
            f"{name} is {sample_rate} Hz, expected {MIN_SAMPLE_RATE:,} to {MAX_SAMPLE_RATE:,} Hz"
        )


# --- the one way from a file to samples ---------------------------------------------------------


def _read_pieces(request: _Request) -> Iterator[np.ndarray]:
    """Mono at the wanted rate, in pieces of any length."""
    with open_audio(request.path, request.content) as decoder:
        _check_channel(request, decoder)
        first, count = _locate(request, decoder)
        reading = _Reading(request, decoder, first, count)
        num_samples = 0
        for piece in resample_pieces(reading.frames(), decoder.sample_rate, request.sample_rate):
            num_samples += len(piece)
            _check_limit(request, num_samples / request.sample_rate)
            yield piece
        if not num_samples and request.on_damage is None:
            raise AudioError(f"{request.path}: too short for a sample at {request.sample_rate} Hz")
        if request.on_damage is not None and (damage := reading.find_damage()) is not None:
            request.on_damage(damage)


def _check_channel(request: _Request, decoder: AudioDecoder) -> None:
    if request.channel is None:
        if decoder.num_channels > MAX_MIXED_CHANNELS:
            raise AudioError(
                f"{request.path}: has {decoder.num_channels} channels, of which at most {MAX_MIXED_CHANNELS} "
                "are averaged; pick one with channel="
            )
    elif not 0 <= request.channel < decoder.num_channels:
        raise AudioError(
            f"{request.path}: has {plural(decoder.num_channels, 'channel')}, counted from 1; "
            f"channel {request.channel + 1} is wanted"
        )


def _check_limit(request: _Request, seconds: float) -> None:
    if seconds > request.max_seconds:
        raise AudioError(
            f"{request.path}: {seconds:,.0f} s are too long to be read at once "
            f"(at most {request.max_seconds:,.0f} s); read a part, or use read_blocks"
        )


def _locate(request: _Request, decoder: AudioDecoder) -> tuple[int, int | None]:
    """The first frame of the part and the number of frames; None: up to the end."""
    rate, known = decoder.sample_rate, decoder.num_frames
    first = round(request.start * rate)
    count = None if request.duration is None else round(request.duration * rate)
    if count == 0:
        raise AudioError(f"{request.path}: duration is {request.duration} s, less than a sample at {rate} Hz")
    if known is not None:
        end = first + 1 if count is None else first + count
        if first >= known or end > known + TOLERANCE_SECONDS * rate:
            raise AudioError(_describe_excess(request, known / rate))
        _check_limit(request, (end - first if count else known - first) / rate)
    return first, count


def _describe_excess(request: _Request, seconds: float) -> str:
    start, duration = request.start, request.duration
    part = f"from {start:.3f} s on" if duration is None else f"from {start:.3f} to {start + duration:.3f} s"
    return f"{request.path}: the part {part} is wanted, but the audio ends at {seconds:.3f} s"


def mix(piece: np.ndarray, channel: int | None, path: Path) -> np.ndarray:
    """(frames, channels) -> (frames,): the mean; where that cancels the sound out, the first channel."""
    if piece.shape[1] == 1:
        return piece.reshape(-1)
    if channel is not None:
        return np.ascontiguousarray(piece[:, channel])
    with np.errstate(all="ignore"):  # what is not finite will be found
        mean = sum(piece.T) / np.float32(piece.shape[1])  # ten times as fast as mean(axis=1)
        power, mean_power = np.square(piece).mean(), np.square(mean).mean()
    if power > MIN_POWER and mean_power < CANCELLED_SHARE * power:
        _say_cancelled(path)
        return np.ascontiguousarray(piece[:, 0])
    return mean


@functools.lru_cache
def _say_cancelled(path: Path) -> None:
    """Warn of cancelled channels, once for each file."""
    logger.warning(
        "%s: its channels cancel each other out, as when one is wired the wrong way round; the first one is "
        "taken where they do",
        path,
    )


class _Reading:
    """The frames of one request as mono, and what was wrong with them."""

    def __init__(self, request: _Request, decoder: AudioDecoder, first: int, count: int | None) -> None:
        self._request, self._decoder, self._first, self._count = request, decoder, first, count
        self._num_frames = 0
        self._invalid: list[tuple[int, int]] = []  # spans of samples that are no numbers
        self._error: AudioError | None = None  # after which nothing could be decoded

    def frames(self) -> Iterator[np.ndarray]:
        """Pieces (frames,), silent where sound is damaged, which is an error at the end unless asked for."""
        request, is_silent = self._request, True
        for piece in self._decode():
            is_silent = is_silent and not piece.any()
            self._num_frames += len(piece)
            yield piece
        damage = self.find_damage()
        if not self._num_frames and damage is None:
            if self._first:
                raise AudioError(_describe_excess(request, 0.0))
            raise AudioError(f"{request.path}: contains no samples; record or copy it again")
        if damage is not None and (request.on_damage is None or not self._num_frames):
            raise AudioError(damage.message)
        if is_silent and not request.allow_silence:
            raise AudioError(
                f"{request.path}: all samples {_describe_mix(request, self._decoder)}are zero; "
                "is it the right file?"
            )

    def _decode(self) -> Iterator[np.ndarray]:
        """All pieces, or those before an error where it can be told later."""
        try:
            with as_audio_errors(self._request.path):
                for piece in self._decoder.frames(self._first, self._count):
                    yield self._check_level(mix(piece, self._request.channel, self._request.path))
        except AudioError as error:
            if self._request.on_damage is None or not self._num_frames:
                raise
            self._error = error

    def _check_level(self, piece: np.ndarray) -> np.ndarray:
        if piece.min() >= -MAX_LEVEL and piece.max() <= MAX_LEVEL:  # NaN is neither
            return piece
        is_number = np.isfinite(piece)
        position, rate = self._first + self._num_frames, self._decoder.sample_rate
        if self._request.on_damage is None or (np.abs(piece[is_number]) > MAX_LEVEL).any():
            raise AudioError(_describe_level(self._request, piece, position / rate, rate))
        edges = np.flatnonzero(np.diff(is_number, prepend=True, append=True)) + position
        self._invalid += zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        return np.where(is_number, piece, np.float32(0))

    def find_damage(self) -> Damage | None:
        """The missing part, once the last piece was read."""
        path, decoder, rate = self._request.path, self._decoder, self._decoder.sample_rate
        past = self._first + self._num_frames
        wanted = math.inf if self._count is None else self._first + self._count
        known = math.inf if decoder.num_frames is None else decoder.num_frames
        end = min(wanted, known)
        fault = None
        if self._error is not None:
            fault = (
                f"{str(self._error).removeprefix(f'{path}: ')}: nothing is decoded after {past / rate:.3f} s"
            )
        elif math.isfinite(end) and past < end - decoder.tolerance_seconds * rate:
            if math.isinf(known):
                raise AudioError(_describe_excess(self._request, past / rate))
            fault = (
                f"is cut short: its header promises {known / rate:.3f} s, but the sound ends at "
                f"{past / rate:.3f} s; copy or download it again"
            )
        elif decoder.is_torn and past < wanted:
            end = math.inf  # what the header says is then that of the last whole page
            fault = (
                f"is cut short, or damaged at its end: the sound ends at {past / rate:.3f} s; "
                "copy or download it again"
            )
        spans = [
            (max(begin, self._first) / rate, min(behind, past) / rate)
            for begin, behind in sorted([*decoder.damaged, *self._invalid])
            if begin < past and behind > self._first
        ]
        if not spans and fault is None:
            return None
        faults = [f"is damaged: {_describe_spans(spans)} cannot be decoded"] if spans else []
        faults += [fault] if fault is not None else []
        found = (self._num_frames / rate) - sum(behind - begin for begin, behind in spans)
        promised = (end - self._first) / rate if math.isfinite(end) else None
        missing: list[tuple[float, float | None]] = [*spans]
        if fault is not None:
            missing.append((past / rate, None if promised is None else max(past, end) / rate))
        return Damage(promised, found, tuple(missing), f"{path}: {'; '.join(faults)}")


def _describe_spans(spans: Sequence[tuple[float, float]]) -> str:
    shown = ", ".join(f"{begin:.3f} to {end:.3f} s" for begin, end in spans[:MAX_SPANS_SHOWN])
    return shown + (
        f" and {len(spans) - MAX_SPANS_SHOWN:,} more spans" if len(spans) > MAX_SPANS_SHOWN else ""
    )


def _describe_mix(request: _Request, decoder: AudioDecoder) -> str:
    if request.channel is not None:
        return f"of channel {request.channel + 1} "
    return f"of the mean of its {decoder.num_channels} channels " if decoder.num_channels > 1 else ""


def _describe_level(request: _Request, piece: np.ndarray, seconds: float, rate: int) -> str:
    index = int(np.argmin(np.abs(piece) <= MAX_LEVEL))
    value = f"{request.path}: a sample at {seconds + index / rate:.3f} s is {piece[index]:.6g}"
    if np.isfinite(piece[index]):
        return (
            f"{value}, expected about -1 to 1; if integers were stored as floats, divide by their full scale"
        )
    return f"{value}, not a number that can be played; write the file again"


def resample_pieces(pieces: Iterable[np.ndarray], from_rate: int, to_rate: int) -> Iterator[np.ndarray]:
    if from_rate == to_rate:
        yield from pieces
        return
    import soxr

    stream = soxr.ResampleStream(from_rate, to_rate, num_channels=1, dtype="float32", quality="HQ")
    for piece in pieces:
        yield stream.resample_chunk(piece)
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)
