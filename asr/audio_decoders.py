"""Opens any audio file as frames of float32: by libsndfile if it knows the format, else by FFmpeg, fenced in.

The content decides, never the suffix. Whatever goes wrong with a file becomes an `AudioError`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import stat
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from asr.audio_headers import count_packets, has_length_tag, measure_promise, name_other_kind
from asr.errors import UserError

MIN_SAMPLE_RATE = 1_000
MAX_SAMPLE_RATE = 768_000  # the highest of any converter; more would only make resampling explode
PIECE_SAMPLES = 1 << 16  # decoded at once, over all channels: what a break in a file may cost, at most
# Lossy decoders need up to 0.3 s of sound before they give the same samples as when they began at the start.
_PREROLL_SECONDS = 1

# Manifests round to milliseconds or hundredths, and some headers count their own bytes as sound.
TOLERANCE_SECONDS = 0.01
# Where the header may include the delay and the padding of a lossy codec, up to two packets each.
CODEC_TOLERANCE_SECONDS = 0.25


class AudioError(UserError):
    """A fault of an audio file, or of what is asked of it; the message starts with the file's path."""


class Decoder(Protocol):
    """One open file. A frame is one sample of every channel."""

    container: str
    sample_rate: int
    num_channels: int
    num_frames: int | None  # as the header has it; None where it does not say, or only guesses
    tolerance_seconds: float  # by how much such headers are wrong

    def frames(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        """Pieces (frames, channels) from frame `first`: `count` frames, or all that follow. Call it once."""
        ...


@contextlib.contextmanager
def open_audio(path: Path) -> Iterator[Decoder]:
    """A decoder for the file. What its libraries raise, in here and inside the `with`, is an AudioError."""
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(_open_file(path))
            _require_regular(path, os.fstat(file.fileno()))  # it may have been exchanged since the first look
            decoder = _choose_decoder(path, file, stack)
            _check_header(path, decoder)
            yield decoder
    except UserError:
        raise
    except Exception as error:
        if not isinstance(error, _library_errors()):
            raise
        reason = getattr(error, "error_string", None) or getattr(error, "strerror", None) or str(error)
        reason = reason.removeprefix("Error : ").rstrip(".") or type(error).__name__
        raise AudioError(
            f"{path}: cannot be decoded ({reason}); "
            "is it a whole audio file? Copy it again, or convert it to FLAC"
        ) from error


def _library_errors() -> tuple[type[Exception], ...]:
    """Evaluated only once there is an error, so that good files do not pay for the import."""
    from av.error import FFmpegError

    return FFmpegError, OSError, RuntimeError, ValueError, ArithmeticError, MemoryError, EOFError


def _open_file(path: Path) -> BinaryIO:
    """Opening a pipe would block and opening a device may act, so look first."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        _require_regular(path, os.stat(path))
        return os.fdopen(os.open(path, flags), "rb", buffering=0)
    except OSError as error:
        raise AudioError(f"{path}: cannot read the file ({error.strerror})") from None
    except UserError:
        raise
    except ValueError as error:  # a null byte, or characters that no file name can have
        raise AudioError(f"{path}: is no file name ({error})") from None


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise AudioError(f"{path}: is a folder; give the path of one audio file")
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(f"{path}: is a pipe, socket or device; give the path of a regular file")
    if status.st_size == 0:
        raise AudioError(f"{path}: the file is empty (0 bytes); copy or download it again")


def _check_header(path: Path, decoder: Decoder) -> None:
    if not MIN_SAMPLE_RATE <= decoder.sample_rate <= MAX_SAMPLE_RATE:
        raise AudioError(
            f"{path}: its header says {decoder.sample_rate} Hz, but audio has "
            f"{MIN_SAMPLE_RATE:,} to {MAX_SAMPLE_RATE:,} Hz; the header is wrong or damaged"
        )
    if decoder.num_channels < 1:
        raise AudioError(f"{path}: its header says {decoder.num_channels} channels; it is wrong or damaged")
    if decoder.num_frames is not None and decoder.num_frames < 1:
        raise AudioError(f"{path}: contains a header but no samples; record or copy it again")


# --- which library ------------------------------------------------------------------------------

# MP3 is left to FFmpeg: libsndfile's decoder of it prints its complaints on standard error.
_LIBSNDFILE_KINDS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b"fLaC", b"OggS", b"NIST")


def _choose_decoder(path: Path, file: BinaryIO, stack: contextlib.ExitStack) -> Decoder:
    head = file.read(4096)
    if head.startswith(_LIBSNDFILE_KINDS):
        excess = measure_promise(file, head)
        if excess == math.inf:
            raise AudioError(f"{path}: is cut short, or damaged at its end; copy or download it again")
        if excess is not None and (sound := _open_libsndfile(file, stack)) is not None:
            return _LibsndfileDecoder(path, sound, excess)
    elif kind := name_other_kind(head):
        raise AudioError(f"{path}: is {kind}, not audio; was the right file downloaded?")
    elif (num_packets := count_packets(file)) > os.fstat(file.fileno()).st_size:
        raise AudioError(
            f"{path}: is damaged: its tables list {num_packets:,} packets, more than it has bytes"
        )
    return _FFmpegDecoder(path, file, stack)


# --- libsndfile ---------------------------------------------------------------------------------

_MALFORMED = 3  # SF_ERR_MALFORMED_FILE: a format that it knows, but broken, which FFmpeg might overlook
_UNKNOWN_LENGTH = (1 << 63) - 1  # SF_COUNT_MAX


def _open_libsndfile(file: BinaryIO, stack: contextlib.ExitStack) -> Any:
    """The open file; None where FFmpeg knows better."""
    import soundfile

    file.seek(0)  # libsndfile begins where the descriptor stands
    try:
        sound = stack.enter_context(soundfile.SoundFile(file.fileno(), closefd=False))
    except soundfile.LibsndfileError as error:
        if error.code == _MALFORMED:
            raise
        return None
    is_mpeg = sound.subtype.startswith("MPEG")
    return None if is_mpeg or sound.frames == _UNKNOWN_LENGTH else sound


class _LibsndfileDecoder:
    tolerance_seconds = TOLERANCE_SECONDS

    def __init__(self, path: Path, sound: Any, excess: float) -> None:
        self._sound = sound
        self.container: str = sound.format.lower()
        self.sample_rate: int = sound.samplerate
        self.num_channels: int = sound.channels
        self.num_frames: int | None = sound.frames
        if sound.frames * (excess - 1) > TOLERANCE_SECONDS * sound.samplerate:
            present = sound.frames / sound.samplerate
            raise AudioError(describe_cut(path, present * excess, present))

    def frames(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        remaining = self._sound.frames - first if count is None else count
        step = max(1, PIECE_SAMPLES // self.num_channels)
        early = 0
        if self._sound.seekable():
            early = first
            if self.container == "ogg":  # it may hold Opus, and libsndfile gives that 0.08 s of preroll only
                early = max(0, first - _PREROLL_SECONDS * self.sample_rate)
            self._sound.seek(early)
        for position in range(early, first, step):
            self._sound.read(min(step, first - position), dtype="float32")
        while remaining > 0:
            piece = self._sound.read(min(step, remaining), dtype="float32", always_2d=True)
            if not len(piece):
                return
            remaining -= len(piece)
            yield piece


# --- FFmpeg -------------------------------------------------------------------------------------

# Plain containers, which name no other files: no playlists, image sequences, devices or scripts (hls, dash,
# concat, image2, lavfi, sdp ...). The headers of the first tell the length, for the others FFmpeg may guess.
_EXACT_CONTAINERS = "aiff,au,caf,flac,matroska,mov,nistsphere,w64,wv"
_OTHER_CONTAINERS = "aac,ac3,amr,amrnb,amrwb,asf,avi,eac3,flv,mp3,mpeg,mpegts,ogg,wav"
_SEEKABLE_CONTAINERS = ("matroska", "mov")  # by an index; in the others packets are skipped without decoding
_PADDED_CONTAINERS = ("matroska", "mov", "mp3")
_MAX_BAD_PACKETS = 10


class _FFmpegDecoder:
    def __init__(self, path: Path, file: BinaryIO, stack: contextlib.ExitStack) -> None:
        self._path = path
        has_tag = has_length_tag(file)
        self._file = stack.enter_context(_open_ffmpeg(file))
        streams = self._file.streams
        if not streams.audio:
            kind = "a video without" if streams.video else "a file without"
            raise AudioError(f"{path}: is {kind} a sound track; give one with sound")
        self._stream = streams.audio[0]
        codec = self._stream.codec_context
        if codec is None:
            raise AudioError(f"{path}: its sound has a codec without a decoder here; convert it to FLAC")
        self.container = self._file.format.name.split(",")[0]
        self.sample_rate: int = codec.sample_rate
        self.num_channels: int = codec.layout.nb_channels
        is_exact = self.container in _EXACT_CONTAINERS.split(",") or (self.container == "mp3" and has_tag)
        self.num_frames = self._count_frames() if is_exact else None
        is_padded = self.container in _PADDED_CONTAINERS
        self.tolerance_seconds = CODEC_TOLERANCE_SECONDS if is_padded else TOLERANCE_SECONDS

    def _count_frames(self) -> int | None:
        stream = self._stream
        if stream.duration:
            seconds = stream.duration * stream.time_base
        elif self._file.duration and len(self._file.streams) == 1:  # or it may be that of the pictures
            seconds = Fraction(self._file.duration, 1_000_000)
        else:
            return None
        return round(seconds * self.sample_rate) if seconds > 0 else None

    def frames(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        return regroup(self._cut(first, count), max(1, PIECE_SAMPLES // self.num_channels))

    def _cut(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        """From frame `first`, `count` frames. What pads the last packet beyond the known end is dropped."""
        padding = None
        for position, piece in self._decode(first):
            if padding is not None:
                yield padding  # more sound follows, so the header was wrong
                padding = None
            begin = max(first - position, 0)
            end = len(piece) if count is None else min(first + count - position, len(piece))
            known_end = len(piece) if self.num_frames is None else self.num_frames - position
            if begin < known_end < end:
                padding = piece[known_end:end]
                end = known_end
            if begin < end:
                yield piece[begin:end]
            if count is not None and position + len(piece) >= first + count:
                return

    def _decode(self, first: int) -> Iterator[tuple[int, np.ndarray]]:
        """Pieces and their positions; starts somewhat before frame `first`."""
        early = first - _PREROLL_SECONDS * self.sample_rate
        if early <= 0:
            frames, position = self._decode_packets(self._file.demux(self._stream)), 0
        else:
            frames, position = self._decode_from(early)
        if position > first:
            raise AudioError(
                f"{self._path}: its time stamps do not lead to {first / self.sample_rate:.3f} s; "
                "convert it to FLAC first"
            )
        for frame in frames:
            piece = self._convert(frame)
            yield position, piece
            position += len(piece)

    def _decode_from(self, early: int) -> tuple[Iterator[Any], int]:
        """Decoded frames, and the position of the first by the container's clock. Matroska's counts ms."""
        stream = self._stream
        ticks_per_frame = 1 / (stream.time_base * self.sample_rate)
        origin = stream.start_time or 0
        if self.container in _SEEKABLE_CONTAINERS:
            # start_time may leave out the delay of the codec.
            first_frame = next(self._decode_packets(self._file.demux(stream)), None)
            origin = getattr(first_frame, "pts", None) or 0
            self._file.seek(origin + int(early * ticks_per_frame), stream=stream)
        frames = self._decode_packets(self._skip_packets(origin + early * ticks_per_frame))
        for frame in frames:
            if frame.pts is not None:
                return itertools.chain([frame], frames), round((frame.pts - origin) / ticks_per_frame)
        return iter([]), 0

    def _skip_packets(self, tick: Fraction) -> Iterator[Any]:
        """Packets from the last one on that begins before `tick`; those before cost no decoding."""
        last_before = None
        for packet in self._file.demux(self._stream):
            if packet.pts is not None and packet.pts < tick:
                last_before = packet
                continue
            if last_before is not None:
                yield last_before
                last_before = None
            yield packet

    def _decode_packets(self, packets: Iterable[Any]) -> Iterator[Any]:
        from av.error import InvalidDataError

        num_bad = 0
        for packet in packets:
            try:
                yield from packet.decode()
            except InvalidDataError:
                num_bad += 1
                if self.container != "mp3" or num_bad > _MAX_BAD_PACKETS:  # MP3 has tags among its packets
                    raise

    def _convert(self, frame: Any) -> np.ndarray:
        """(frames, channels), full scale at 1."""
        num_channels = frame.layout.nb_channels
        if (frame.sample_rate, num_channels) != (self.sample_rate, self.num_channels):
            raise AudioError(
                f"{self._path}: changes from {self.num_channels} channels at {self.sample_rate} Hz to "
                f"{num_channels} at {frame.sample_rate} Hz on the way; convert it to FLAC first"
            )
        samples = frame.to_ndarray()  # (channels, frames) or (1, frames * channels)
        samples = samples.T if frame.format.is_planar else samples.reshape(-1, num_channels)
        if samples.dtype.kind == "f":
            return samples.astype(np.float32, copy=False)
        full_scale = 1 << (8 * samples.dtype.itemsize - 1)
        zero = full_scale if samples.dtype.kind == "u" else 0
        return (samples.astype(np.float32) - np.float32(zero)) / np.float32(full_scale)


def _open_ffmpeg(file: BinaryIO) -> Any:
    """FFmpeg on our own file object: it opens nothing itself, and takes no format that would ask it to."""
    import av

    options = {
        "format_whitelist": f"{_EXACT_CONTAINERS},{_OTHER_CONTAINERS}",
        "protocol_whitelist": "none",
        "codec_whitelist": _list_audio_codecs(),
    }
    # Not `options=`: PyAV before 18 frees memory that it does not own when it hands those on to the streams.
    return av.open(
        _NamelessFile(file), container_options=options, metadata_errors="replace", io_open=_refuse_to_open
    )


class _NamelessFile:
    """A file without a name, whose suffix FFmpeg would believe."""

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self._file = file
        self.read, self.tell = file.read, file.tell

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return self._file.seek(offset, whence)
        except (OSError, OverflowError):  # damaged files lead to places before their start
            return -1


def _refuse_to_open(url: str, *_: Any) -> Any:
    raise PermissionError(f"an audio file may not open {url}")


@functools.cache
def _list_audio_codecs() -> str:
    """All decoders of sound: so that no picture of a video is decoded, whatever its size."""
    import av

    names = []
    for name in av.codecs_available:
        with contextlib.suppress(ValueError):  # encoders only
            if av.Codec(name, "r").type == "audio":
                names.append(name)
    return ",".join(sorted(names))


# --- shared -------------------------------------------------------------------------------------


def regroup(pieces: Iterable[np.ndarray], length: int) -> Iterator[np.ndarray]:
    """The same samples in pieces of exactly `length`; the last one may be shorter."""
    held: list[np.ndarray] = []
    num_held = 0
    for piece in pieces:
        while num_held + len(piece) >= length:
            split = length - num_held
            yield np.concatenate([*held, piece[:split]])
            piece, held, num_held = piece[split:], [], 0
        if len(piece):
            held.append(piece)
            num_held += len(piece)
    if held:
        yield np.concatenate(held)


def describe_cut(path: Path, promised_seconds: float, seconds: float) -> str:
    return (
        f"{path}: is cut short: its header promises {promised_seconds:.3f} s, but the sound ends at "
        f"{seconds:.3f} s; copy or download it again"
    )
