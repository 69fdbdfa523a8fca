"""Read any audio file as float32 mono at a requested rate, whole or in blocks; write WAV and FLAC.

libsndfile reads what it supports, FFmpeg the rest, chosen by content and never by suffix. Full scale is 1.
Channels are averaged unless one is selected. Every problem with a file, such as silence throughout, raises an
`AudioError`. So does damage, but `read_blocks` can report it and return the rest.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from asr.errors import AudioError, UserError, plural, shorten
from asr.files import replace_file

logger = logging.getLogger(__name__)

MIN_SAMPLE_RATE = 1_000
MAX_SAMPLE_RATE = 768_000  # Hz; no converter has more, and resampling would need huge buffers
MAX_READ_SECONDS = 2 * 3600.0  # seconds that `read` holds in memory: 460 MB at 16 kHz
PIECE_SAMPLES = 1 << 16  # samples decoded at once, summed over all channels
# Manifests round to milliseconds or hundredths, and some headers count their own bytes as audio.
TOLERANCE_SECONDS = 0.01
MAX_MIXED_CHANNELS = 8  # 7.1 surround; more channels are a microphone array, whose mean is useless
# Float files and lossy codecs may exceed full scale. At 40 dB above it, they are integers stored as floats.
MAX_LEVEL = 100.0
# Power of the channel mean relative to the channels: 1/2 for two independent channels, 1/8 for eight. If one
# channel is inverted, only coding noise or a gain difference remains (-17 dB if the gains differ by 2.5 dB).
CANCELLED_SHARE = 0.02
MIN_POWER = 1e-7  # -70 dB relative to full scale; below it, there is nothing to lose
MAX_SPANS_SHOWN = 5  # damaged spans listed in a message


# Suffixes that a folder is searched for. A file that is named explicitly is judged by its content instead.
# fmt: off
AUDIO_SUFFIXES = frozenset((
    ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".au", ".avi", ".caf", ".dts", ".flac", ".flv",
    ".gsm", ".m4a", ".m4b", ".m4v", ".mka", ".mkv", ".mov", ".mp1", ".mp2", ".mp3", ".mp4", ".mpeg", ".mpg",
    ".mts", ".oga", ".ogg", ".ogv", ".opus", ".ra", ".rf64", ".rm", ".snd", ".sph", ".spx", ".tta", ".vob",
    ".voc", ".w64", ".wav", ".wave", ".weba", ".webm", ".wma", ".wmv", ".wv",
))
# fmt: on

AudioContent = bytes | BinaryIO
"""The bytes of an audio file, or a file on disk that is open for reading."""


@dataclass(frozen=True)
class AudioInfo:
    """Properties from the header of an audio file."""

    path: Path
    sample_rate: int
    num_channels: int
    seconds: float | None
    """Duration stated in the header; None for raw streams, such as MP3 without a length tag."""
    container: str


OnDamage = Callable[[str], None]  # called with a message that names the missing spans


def read_info(path: str | Path, content: AudioContent | None = None) -> AudioInfo:
    """Read the header only. `content`: the file's bytes, or the opened file."""
    path = Path(path)
    with _open_audio(path, content) as decoder:
        seconds = None if decoder.num_frames is None else decoder.num_frames / decoder.sample_rate
        return AudioInfo(path, decoder.sample_rate, decoder.num_channels, seconds, decoder.container)


def measure_seconds(path: str | Path, content: AudioContent | None = None) -> float:
    """Return the duration of an audio file, which is decoded if its header does not state it."""
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
    """Read the file, or `duration` seconds from `start`, as float32 of shape (samples,).

    A part may extend past the end by `TOLERANCE_SECONDS`, and is then shorter. `channel` counts from 0.
    `content`: the file's bytes, or the opened file; `path` is then only used in messages.
    """
    blocks = read_blocks(
        path,
        sample_rate,
        block_seconds=MAX_READ_SECONDS,
        start=start,
        duration=duration,
        channel=channel,
        allow_silence=allow_silence,
        content=content,
    )
    audio = next(blocks)
    if next(blocks, None) is not None:
        raise AudioError(
            f"{path}: too long to read at once (at most {MAX_READ_SECONDS:,.0f} s); read a part, or use "
            "read_blocks"
        )
    return audio


def read_blocks(
    path: str | Path,
    sample_rate: int = 16_000,
    *,
    block_seconds: float = 30.0,
    start: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    allow_silence: bool = False,
    content: AudioContent | None = None,
    on_damage: OnDamage | None = None,
) -> Iterator[np.ndarray]:
    """Like `read`, but in blocks of `block_seconds`; the last block may be shorter.

    Memory does not grow with the file, except for the index of MP4 (5 MB per hour). Some problems are
    detected only after the last block: that all samples are zero, or that some are missing. Missing samples
    are reported to `on_damage`, if given, and raise an error otherwise.
    """
    reading = _Reading(Path(path), sample_rate, start, duration, channel, allow_silence, content, on_damage)
    return _regroup(reading.pieces(), max(1, round(block_seconds * sample_rate)))


def write(path: str | Path, audio: np.ndarray, sample_rate: int) -> None:
    """Write a mono 16-bit `.wav` or `.flac` file, which replaces `path` once it is complete.

    Values outside [-1, 1], which resampling of loud audio produces, are clipped. Samples that were read from
    a 16-bit file are written back unchanged.
    """
    import soundfile

    path = Path(path)
    container = {".wav": "WAV", ".flac": "FLAC"}.get(path.suffix.lower())
    is_audio = audio.ndim == 1 and audio.size and audio.dtype.kind == "f" and np.isfinite(audio).all()
    if container is None or not is_audio:
        raise AudioError(
            f"{path}: expected .wav or .flac, and finite float samples of shape (samples,), got "
            f"{audio.dtype} {audio.shape}"
        )
    samples = np.clip(np.rint(audio * 32768), -32768, 32767).astype(np.int16)
    content = io.BytesIO()  # because soundfile would sync a file to disk
    try:
        soundfile.write(content, samples, sample_rate, "PCM_16", format=container)
    except RuntimeError as error:
        raise AudioError(f"{path}: cannot write the file ({error})") from None
    with replace_file(path, flush=False) as file:
        file.write(content.getbuffer())


def resample(audio: np.ndarray, from_rate: int, to_rate: int) -> np.ndarray:
    """Resample to another rate with the high-quality filter that `read` also uses."""
    import soxr

    audio = np.asarray(audio, np.float32)
    return audio if from_rate == to_rate else soxr.resample(audio, from_rate, to_rate, quality="HQ")


def resample_pieces(pieces: Iterable[np.ndarray], from_rate: int, to_rate: int) -> Iterator[np.ndarray]:
    if from_rate == to_rate:
        yield from pieces
        return
    import soxr

    stream = soxr.ResampleStream(from_rate, to_rate, num_channels=1, dtype="float32", quality="HQ")
    for piece in pieces:
        yield stream.resample_chunk(piece)
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)


def change_speed(audio: np.ndarray, speed: float, sample_rate: int) -> np.ndarray:
    """Change tempo and pitch together, by treating the samples as if recorded at another rate."""
    return resample(audio, round(sample_rate * speed), sample_rate)


def mix(piece: np.ndarray, channel: int | None, path: Path) -> np.ndarray:
    """Reduce (frames, channels) to (frames,): one channel, or the mean, unless that cancels the sound out."""
    if piece.shape[1] == 1:
        return piece.reshape(-1)
    if channel is not None:
        return np.ascontiguousarray(piece[:, channel])
    with np.errstate(all="ignore"):  # values that are not finite are detected later
        mean = sum(piece.T) / np.float32(piece.shape[1])  # ten times as fast as mean(axis=1)
        power, mean_power = np.square(piece).mean(), np.square(mean).mean()
    if power > MIN_POWER and mean_power < CANCELLED_SHARE * power:
        _warn_cancelled(path)
        return np.ascontiguousarray(piece[:, 0])
    return mean


@functools.lru_cache  # once for each file
def _warn_cancelled(path: Path) -> None:
    problem = "its channels cancel each other out, as if one had reversed polarity"
    logger.warning("%s: %s; there, only the first channel is used", path, problem)


def _regroup(pieces: Iterable[np.ndarray], length: int) -> Iterator[np.ndarray]:
    """Yield the same samples in pieces of exactly `length`; the last piece may be shorter."""
    held: list[np.ndarray] = []
    num_held = 0
    try:
        for piece in pieces:
            while num_held + len(piece) >= length:
                split = length - num_held
                yield np.concatenate([*held, piece[:split]]) if held else piece[:split]
                piece, held, num_held = piece[split:], [], 0
            if len(piece):
                held.append(piece)
                num_held += len(piece)
    except Exception:
        if held:
            yield np.concatenate(held)  # so that no samples before the error are lost
        raise
    if held:
        yield np.concatenate(held) if len(held) > 1 else held[0]


# --- from a file to samples ---------------------------------------------------------------------


@dataclass
class _Reading:
    """One pass over a file or a part of it: converts the frames to mono, and collects problems."""

    path: Path
    sample_rate: int
    start: float
    duration: float | None
    channel: int | None
    allow_silence: bool
    content: AudioContent | None
    on_damage: OnDamage | None = None
    num_frames: int = 0
    invalid: list[tuple[int, int]] = field(default_factory=list)  # spans of samples that are not finite
    error: AudioError | None = None  # the error that ended decoding early

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield mono audio at the requested rate, in pieces of any length."""
        with _open_audio(self.path, self.content) as self.decoder:
            self._locate()
            num_samples = 0
            for piece in resample_pieces(self._frames(), self.decoder.sample_rate, self.sample_rate):
                num_samples += len(piece)
                yield piece
            if self.on_damage is None and not num_samples:
                raise AudioError(f"{self.path}: too short for even one sample at {self.sample_rate} Hz")
            if self.on_damage is not None and (damage := self._find_damage()):
                self.on_damage(damage)

    def _locate(self) -> None:
        """Compute the first frame of the part, and its number of frames (None: up to the end)."""
        rate, known = self.decoder.sample_rate, self.decoder.num_frames
        num_channels = self.decoder.num_channels
        if self.channel is None and num_channels > MAX_MIXED_CHANNELS:
            raise AudioError(
                f"{self.path}: has {num_channels} channels, but at most {MAX_MIXED_CHANNELS} can be "
                "averaged; select one with channel="
            )
        if self.channel is not None and not 0 <= self.channel < num_channels:
            has = plural(num_channels, "channel")
            raise AudioError(f"{self.path}: has {has}, counted from 1, so no channel {self.channel + 1}")
        self.first = round(self.start * rate)
        self.count = None if self.duration is None else round(self.duration * rate)
        if self.first < 0 or (self.count is not None and self.count < 1):
            until = "" if self.duration is None else f" and lasts {self.duration} s"
            raise AudioError(
                f"{self.path}: a part that starts at {self.start} s{until} begins before 0, or is less than "
                "one sample"
            )
        if known is not None:
            end = self.first + (self.count or 1)
            if self.first >= known or end > known + TOLERANCE_SECONDS * rate:
                raise self._past_the_end(known / rate)

    def _past_the_end(self, seconds: float) -> AudioError:
        part = f"from {self.start:.3f} s on"
        if self.duration is not None:
            part = f"from {self.start:.3f} to {self.start + self.duration:.3f} s"
        return AudioError(f"{self.path}: requested {part}, but the audio ends at {seconds:.3f} s")

    def _frames(self) -> Iterator[np.ndarray]:
        """Yield mono pieces; damage becomes silence, and an error at the end unless on_damage is given."""
        is_silent = True
        for piece in self._decode():
            is_silent = is_silent and not piece.any()
            self.num_frames += len(piece)
            yield piece
        damage = self._find_damage()
        if not self.num_frames and not damage:
            if self.first:
                raise self._past_the_end(0.0)
            raise AudioError(f"{self.path}: contains no samples; record or copy it again")
        if damage and (self.on_damage is None or not self.num_frames):
            raise AudioError(damage)
        if is_silent and not self.allow_silence:
            which = "" if self.channel is None else f"of channel {self.channel + 1} "
            raise AudioError(f"{self.path}: all samples {which}are zero; is it the right file?")

    def _decode(self) -> Iterator[np.ndarray]:
        """Yield all pieces, or those before an error if the error can be reported later."""
        try:
            with _as_audio_errors(self.path):
                size = max(1, PIECE_SAMPLES // self.decoder.num_channels)
                for piece in _regroup(self.decoder.frames(self.first, self.count), size):
                    yield self._check_level(mix(piece, self.channel, self.path))
        except AudioError as error:
            if self.on_damage is None or not self.num_frames:
                raise
            self.error = error

    def _check_level(self, piece: np.ndarray) -> np.ndarray:
        if piece.min() >= -MAX_LEVEL and piece.max() <= MAX_LEVEL:  # false if any sample is NaN
            return piece
        is_number = np.isfinite(piece)
        position = self.first + self.num_frames
        if self.on_damage is None or (np.abs(piece[is_number]) > MAX_LEVEL).any():
            index = int(np.argmin(np.abs(piece) <= MAX_LEVEL))
            seconds = (position + index) / self.decoder.sample_rate
            raise AudioError(
                f"{self.path}: the sample at {seconds:.3f} s is {piece[index]:.6g}, expected -1 to 1; if "
                "integers were stored as floats, divide by their full scale"
            )
        edges = np.flatnonzero(np.diff(is_number, prepend=True, append=True)) + position
        self.invalid += zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        return np.where(is_number, piece, np.float32(0))

    def _find_damage(self) -> str:
        """Describe the missing parts after the last piece was read; "" if nothing is missing."""
        decoder, rate = self.decoder, self.decoder.sample_rate
        decoded = self.first + self.num_frames
        requested = math.inf if self.count is None else self.first + self.count
        known = math.inf if decoder.num_frames is None else decoder.num_frames
        end = min(requested, known)
        spans = [
            (max(first, self.first) / rate, min(last, decoded) / rate)
            for first, last in sorted([*decoder.damaged, *self.invalid])
            if first < decoded and last > self.first
        ]
        problems = [f"is damaged: {_describe_spans(spans)} cannot be decoded"] if spans else []
        ends = f"the audio ends at {decoded / rate:.3f} s; copy or download it again"
        if self.error is not None:
            problem = str(self.error).removeprefix(f"{self.path}: ")
            problems.append(f"{problem}: nothing is decoded after {decoded / rate:.3f} s")
        elif math.isfinite(end) and decoded < end - max(TOLERANCE_SECONDS, decoder.tolerance_seconds) * rate:
            if math.isinf(known):
                raise self._past_the_end(decoded / rate)
            problems.append(f"is cut short: its header promises {known / rate:.3f} s, but {ends}")
        elif decoder.is_truncated and decoded < requested:
            problems.append(f"is cut short, or damaged at its end: {ends}")
        return f"{self.path}: {'; '.join(problems)}" if problems else ""


def _describe_spans(spans: list[tuple[float, float]]) -> str:
    shown = ", ".join(f"{start:.3f} to {end:.3f} s" for start, end in spans[:MAX_SPANS_SHOWN])
    num_more = len(spans) - MAX_SPANS_SHOWN
    return f"{shown} and {num_more:,} more spans" if num_more > 0 else shown


# --- opening ------------------------------------------------------------------------------------


# Kinds that libsndfile decodes. Not MP3, because it prints complaints to standard error; nor Ogg, because it
# silently skips damage and a second stream; nor SPHERE, because it does not report a missing end.
_LIBSNDFILE_KINDS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b"fLaC", b".snd")
# Archives, documents and pictures given by mistake. FFmpeg might find an MP3 frame in them.
_OTHER_KINDS = (
    *(b"PK\x03\x04", b"\x1f\x8b", b"%PDF", b"\x89PNG", b"\xff\xd8\xff", b"GIF8"),
    *(b"<!", b"<h", b"<H", b"<?"),
)
_TEXT_BYTES = bytes(range(0x20, 0x7F)) + b"\t\n\f\r"


@contextlib.contextmanager
def _open_audio(path: Path, content: AudioContent | None = None) -> Iterator[Any]:
    """Open a decoder for the file, or for its content; `path` is then only used in messages.

    Errors that the libraries raise, here and inside the `with`, become AudioErrors.
    """
    with contextlib.ExitStack() as stack, _as_audio_errors(path):
        if content is None:
            file = stack.enter_context(_open_file(path))
        else:
            file = stack.enter_context(_hold_in_file(content)) if isinstance(content, bytes) else content
        _require_regular(path, os.fstat(file.fileno()))  # it may have been replaced since the first check
        file.seek(0)
        head = file.read(4096)
        if head.lstrip().startswith(_OTHER_KINDS) or not head.translate(None, _TEXT_BYTES):
            raise AudioError(f"{path}: is text, a picture or an archive, not audio: {shorten(head[:20])}")
        decoder = _choose_decoder(path, file, head, stack)
        if not MIN_SAMPLE_RATE <= decoder.sample_rate <= MAX_SAMPLE_RATE:
            expected = f"{MIN_SAMPLE_RATE:,} to {MAX_SAMPLE_RATE:,} Hz"
            raise AudioError(f"{path}: has a sample rate of {decoder.sample_rate} Hz, expected {expected}")
        if decoder.num_channels < 1:
            raise AudioError(f"{path}: is damaged: its header says {decoder.num_channels} channels")
        if decoder.num_frames is not None and decoder.num_frames < 1:
            raise AudioError(f"{path}: contains a header but no samples; record or copy it again")
        yield decoder


def _choose_decoder(path: Path, file: BinaryIO, head: bytes, stack: contextlib.ExitStack) -> Any:
    import soundfile

    is_mpeg = head.partition(b"fmt ")[2][4:6] in (b"P\0", b"U\0")  # for it, libsndfile prints complaints
    if head.startswith(_LIBSNDFILE_KINDS) and not is_mpeg:
        file.seek(0)  # libsndfile starts at the descriptor's current position
        with contextlib.suppress(soundfile.LibsndfileError):
            sound = stack.enter_context(soundfile.SoundFile(file.fileno(), closefd=False))
            if not sound.subtype.startswith("MPEG") and sound.frames not in (0, _UNKNOWN_LENGTH):
                return _LibsndfileDecoder(path, file, sound, stack)
    from asr.audio.ffmpeg import FFmpegDecoder

    try:
        return FFmpegDecoder(path, file, stack)
    except ModuleNotFoundError as error:  # an installation without PyTorch may be without it
        raise AudioError(
            f"{path}: a format that FFmpeg reads, but the package {error.name} is not installed; run: pip "
            f"install {error.name}, or convert the file to WAV or FLAC"
        ) from None


@contextlib.contextmanager
def _as_audio_errors(path: Path) -> Iterator[None]:
    """Turn what the libraries raise into AudioError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        ffmpeg = sys.modules.get("av.error")  # imported only by files that FFmpeg reads
        problems = (
            getattr(ffmpeg, "FFmpegError", OSError),
            OSError,
            RuntimeError,
            ValueError,
            ArithmeticError,
            MemoryError,
            EOFError,
        )
        if not isinstance(error, problems):
            raise
        reason = getattr(error, "error_string", None) or getattr(error, "strerror", None) or str(error)
        reason = reason.removeprefix("Error : ").rstrip(".") or type(error).__name__
        raise AudioError(
            f"{path}: cannot be decoded ({reason}); is it a whole audio file? Copy it again, or convert it "
            "to FLAC; raw samples need a header first: ffmpeg -f s16le -ar 16000 -ac 1 -i RAW OUT.wav"
        ) from error


def _open_file(path: Path) -> BinaryIO:
    """Open a regular file. This is checked first, because opening a pipe blocks, and a device may react."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        _require_regular(path, os.stat(path))
        return os.fdopen(os.open(path, flags), "rb", buffering=0)
    except OSError as error:
        raise AudioError(f"{path}: cannot read the file ({error.strerror})") from None
    except UserError:
        raise
    except ValueError as error:  # a null byte, or characters that no file name can have
        raise AudioError(f"{path}: is not a valid file name ({error})") from None


def _hold_in_file(content: bytes) -> BinaryIO:
    """Return an anonymous file, in memory if possible, because the libraries need a descriptor."""
    if hasattr(os, "memfd_create"):
        file = cast(BinaryIO, os.fdopen(os.memfd_create("audio"), "w+b", buffering=0))
    else:
        file = cast(BinaryIO, tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
    file.write(content)
    return file


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise AudioError(f"{path}: is a folder; give an audio file, or --recursive for all files in it")
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(f"{path}: is a pipe, socket or device; give the path of a regular file")
    if status.st_size == 0:
        raise AudioError(f"{path}: the file is empty (0 bytes); copy or download it again")


# --- libsndfile ---------------------------------------------------------------------------------

_UNKNOWN_LENGTH = (1 << 63) - 1  # SF_COUNT_MAX
# Programs that cannot know the length (FFmpeg and SoX writing to a pipe) state slightly under 2 GiB, or more.
_STREAMED_BYTES = 0x7FFF_0000
# Matches a line in libsndfile's log: the bytes that a chunk's header promises, and those that are present.
_SHORT_CHUNK = re.compile(r"^ *(?:data|SSND|Data Size|riff|Riff size) *: (\d+) \(should be (\d+)\)", re.M)
_ALAC_PACKET = 4096  # frames per packet; some headers round the length up to whole packets


class _LibsndfileDecoder:
    """Decoder that uses libsndfile up to the first error, and FFmpeg after it."""

    is_truncated = False

    def __init__(self, path: Path, file: BinaryIO, sound: Any, stack: contextlib.ExitStack) -> None:
        self._path, self._file, self._sound, self._stack = path, file, sound, stack
        self.container: str = sound.format.lower()
        self.sample_rate: int = sound.samplerate
        self.num_channels: int = sound.channels
        # The length in the header; `sound.frames` counts only the frames present in a truncated file.
        self.num_frames: int | None = sound.frames
        for promised, present in (
            map(int, lengths) for lengths in _SHORT_CHUNK.findall(sound.extra_info)[-1:]
        ):
            if present and promised < _STREAMED_BYTES:
                self.num_frames = round(sound.frames * promised / present)
        self.tolerance_seconds = _ALAC_PACKET / sound.samplerate if sound.subtype.startswith("ALAC") else 0.0
        self.damaged: list[tuple[int, int]] = []

    def frames(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        import soundfile

        num_present = self._sound.frames
        position, end = first, num_present if count is None else min(first + count, num_present)
        step = max(1, PIECE_SAMPLES // self.num_channels)
        try:
            if self._sound.seekable():
                self._sound.seek(first)
            else:
                for skipped in range(0, first, step):
                    self._sound.read(min(step, first - skipped), dtype="float32")
            while position < end:
                piece = self._sound.read(min(step, end - position), dtype="float32", always_2d=True)
                if not len(piece):
                    return
                position += len(piece)
                yield piece
        except soundfile.LibsndfileError:
            from asr.audio.ffmpeg import FFmpegDecoder

            rest = FFmpegDecoder(self._path, self._file, self._stack)
            yield from rest.frames(position, end - position)
            self.damaged = rest.damaged
