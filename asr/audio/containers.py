"""Open any audio file as frames of float32: by libsndfile if it knows the format, else by FFmpeg, fenced in.

The content decides, never the suffix. Where sound is damaged, decoding goes on behind it, with silence in its
place. Whatever else goes wrong with a file becomes an `AudioError`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np

from asr.audio.headers import count_claimed_samples, has_length_tag, inspect_ogg_end, name_other_kind
from asr.errors import UserError

MIN_SAMPLE_RATE = 1_000
MAX_SAMPLE_RATE = 768_000  # the highest of any converter; more would only make resampling explode
PIECE_SAMPLES = 1 << 16  # decoded at once, over all channels
# Lossy decoders need up to 0.3 s of sound before they give the same samples as when they began at the start.
_PREROLL_SECONDS = 1

# Manifests round to milliseconds or hundredths, and some headers count their own bytes as sound.
TOLERANCE_SECONDS = 0.01
# Where the header may include the delay and the padding of a lossy codec, up to two packets each.
CODEC_TOLERANCE_SECONDS = 0.25

AudioContent = bytes | BinaryIO
"""A file in memory, or one of the system that is open for reading."""


class AudioError(UserError):
    """A fault of an audio file, or of what is asked of it; the message starts with the file's path."""


class AudioDecoder(Protocol):
    """One open file. A frame is one sample of every channel."""

    container: str
    sample_rate: int
    num_channels: int
    num_frames: int | None  # as the header has it; None where it does not say, or only guesses
    tolerance_seconds: float  # by how much such headers are wrong
    damaged: list[tuple[int, int]]  # first and past-the-end frame of each span decoded as silence, so far
    is_torn: bool  # more sound followed, though no header says how much

    def frames(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        """Pieces (frames, channels) from frame `first`: `count` frames, or all that follow. Call it once."""
        ...


@contextlib.contextmanager
def open_audio(path: Path, content: AudioContent | None = None) -> Iterator[AudioDecoder]:
    """A decoder for the file, or for its content, of which `path` is then only the name in messages.

    What the libraries raise, in here and inside the `with`, is an AudioError.
    """
    with contextlib.ExitStack() as stack, as_audio_errors(path):
        if content is None:
            file = stack.enter_context(_open_file(path))
        elif isinstance(content, bytes):
            file = stack.enter_context(_hold_in_file(content))
        else:
            file = content
        _require_regular(path, os.fstat(file.fileno()))  # it may have been exchanged since the first look
        file.seek(0)
        decoder = _choose_decoder(path, file, stack)
        _check_header(path, decoder)
        yield decoder


@contextlib.contextmanager
def as_audio_errors(path: Path) -> Iterator[None]:
    """Turn what the libraries raise into AudioError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not isinstance(error, _library_errors()):
            raise
        reason = getattr(error, "error_string", None) or getattr(error, "strerror", None) or str(error)
        reason = reason.removeprefix("Error : ").rstrip(".") or type(error).__name__
        raise AudioError(
            f"{path}: cannot be decoded ({reason}); is it a whole audio file? Copy it again, or convert it "
            "to FLAC; raw samples need a header first: ffmpeg -f s16le -ar 16000 -ac 1 -i RAW OUT.wav"
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


def _hold_in_file(content: bytes) -> BinaryIO:
    """A file without a name, in memory where the system has such: the libraries want a descriptor."""
    if hasattr(os, "memfd_create"):
        file = cast(BinaryIO, os.fdopen(os.memfd_create("audio"), "w+b", buffering=0))
    else:
        file = cast(BinaryIO, tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
    file.write(content)
    return file


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise AudioError(
            f"{path}: is a folder; give the path of one audio file, or of all in it with --recursive"
        )
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(f"{path}: is a pipe, socket or device; give the path of a regular file")
    if status.st_size == 0:
        raise AudioError(f"{path}: the file is empty (0 bytes); copy or download it again")


def _check_header(path: Path, decoder: AudioDecoder) -> None:
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

# Not MP3, of which libsndfile complains on standard error; nor Ogg, in which it passes over damage without a
# word, and over a second stream; nor SPHERE, of which it does not tell that the end is missing.
_LIBSNDFILE_KINDS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b"fLaC", b".snd")


def _choose_decoder(path: Path, file: BinaryIO, stack: contextlib.ExitStack) -> AudioDecoder:
    head = file.read(4096)
    if head.startswith(_LIBSNDFILE_KINDS):
        if (sound := _open_libsndfile(file, stack)) is not None:
            return _LibsndfileDecoder(path, file, sound, stack)
    elif kind := name_other_kind(head):
        raise AudioError(f"{path}: is {kind}, not audio; was the right file downloaded?")
    return _FFmpegDecoder(path, file, stack)


# --- libsndfile ---------------------------------------------------------------------------------

_UNKNOWN_LENGTH = (1 << 63) - 1  # SF_COUNT_MAX
# Programs that cannot know the length, as FFmpeg and SoX writing into a pipe, put 2 GiB less a bit, or more.
_STREAMED_BYTES = 0x7FFF_0000
# In its log: the bytes of a chunk of sound (or of all) that the header promises, and those that are there.
_SHORT_CHUNK = re.compile(
    r"^ *(?:data|SSND|Data Size|riff|Riff size) *: (\d+) \(should be (\d+)\)", re.MULTILINE
)
_ALAC_PACKET = 4096  # frames, to which some headers round up


def _open_libsndfile(file: BinaryIO, stack: contextlib.ExitStack) -> Any:
    """The open file; None where FFmpeg knows better."""
    import soundfile

    file.seek(0)  # libsndfile begins where the descriptor stands
    try:
        sound = stack.enter_context(soundfile.SoundFile(file.fileno(), closefd=False))
    except soundfile.LibsndfileError:
        return None
    is_other = sound.subtype.startswith("MPEG") or sound.frames in (0, _UNKNOWN_LENGTH)
    return None if is_other else sound


def _count_promised_frames(sound: Any) -> int:
    """Count the frames that the header promises; `sound.frames` has those present of a file cut short."""
    lengths = _SHORT_CHUNK.findall(sound.extra_info)
    if not lengths:
        return int(sound.frames)
    promised, present = map(int, lengths[-1])
    is_known = present and promised < _STREAMED_BYTES
    return round(sound.frames * promised / present) if is_known else int(sound.frames)


class _LibsndfileDecoder:
    """Frames by libsndfile, up to the first damage: FFmpeg goes on behind it."""

    is_torn = False

    def __init__(self, path: Path, file: BinaryIO, sound: Any, stack: contextlib.ExitStack) -> None:
        self._path, self._file, self._sound, self._stack = path, file, sound, stack
        self.container: str = sound.format.lower()
        self.sample_rate: int = sound.samplerate
        self.num_channels: int = sound.channels
        self.num_frames: int | None = _count_promised_frames(sound)
        is_alac = sound.subtype.startswith("ALAC")
        self.tolerance_seconds = _ALAC_PACKET / sound.samplerate if is_alac else TOLERANCE_SECONDS
        self.damaged: list[tuple[int, int]] = []

    def frames(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        import soundfile

        num_present = self._sound.frames
        position, end = first, num_present if count is None else min(first + count, num_present)
        step = max(1, PIECE_SAMPLES // self.num_channels)
        try:
            self._seek(first, step)
            while position < end:
                piece = self._sound.read(min(step, end - position), dtype="float32", always_2d=True)
                if not len(piece):
                    return
                position += len(piece)
                yield piece
        except soundfile.LibsndfileError:
            rest = _FFmpegDecoder(self._path, self._file, self._stack)
            yield from rest.frames(position, end - position)
            self.damaged = rest.damaged

    def _seek(self, first: int, step: int) -> None:
        if self._sound.seekable():
            self._sound.seek(first)
            return
        for position in range(0, first, step):
            self._sound.read(min(step, first - position), dtype="float32")


# --- FFmpeg -------------------------------------------------------------------------------------

# Plain containers, which name no other files: no playlists, image sequences, devices or scripts (hls, dash,
# concat, image2, lavfi, sdp ...). The headers of the first tell the length, for the others FFmpeg may guess.
_EXACT_CONTAINERS = "aiff,ape,au,caf,dsf,flac,matroska,mov,mpc,mpc8,nistsphere,ogg,tta,w64,wv"
_OTHER_CONTAINERS = (
    "aa,aac,aax,ac3,ac4,act,adx,aea,amr,amrnb,amrwb,apm,asf,ast,avi,avr,bonk,codec2,dss,dts,dtshd,dv,eac3,epaf,flv,gsm,"
    "gxf,hcom,iff,ilbc,ircam,iss,laf,lc3,loas,mlp,mmf,mp3,mpeg,mpegts,mxf,nut,oma,osq,pvf,qcp,qoa,rka,rm,rso,"
    "sds,shn,smjpeg,sox,swf,tak,truehd,voc,vqf,wav,wavarc,wsd,wtv,wve,xwma"
)
_SEEKABLE_CONTAINERS = ("matroska", "mov")  # by an index; in the others packets are skipped without decoding
_PADDED_CONTAINERS = ("caf", "dsf", "matroska", "mov", "mp3", "ogg")
# Seconds by which time stamps are off without damage: Vorbis near its end, and what is stamped by a clock.
_MAX_JITTER = {"ogg": 0.05} | dict.fromkeys(("asf", "avi", "flv", "matroska", "mpeg", "mpegts", "rm"), 0.25)
_USUAL_MAX_JITTER = 0.005
_MAX_SILENCE_SECONDS = 3600  # in place of what is missing in a file: damaged time stamps may lead anywhere
_MAX_BAD_PACKETS = 10  # more than there are good ones: then it is no sound at all
# That a header may claim: as many as the file has bytes, but never more than a hundred hours of AAC have.
_USUAL_SAMPLES, _MAX_SAMPLES = 1 << 20, 1 << 24
_MAX_ALLOCATION = 1 << 27  # bytes of one allocation of FFmpeg, such as the index of 36 hours of AAC


class _FFmpegDecoder:
    def __init__(self, path: Path, file: BinaryIO, stack: contextlib.ExitStack) -> None:
        self._path = path
        size = os.fstat(file.fileno()).st_size
        if (claimed := count_claimed_samples(file)) > min(max(size, _USUAL_SAMPLES), _MAX_SAMPLES):
            raise AudioError(
                f"{path}: its header claims {claimed:,.0f} samples, more than {size:,} bytes hold; "
                "copy it again, or convert it to FLAC"
            )
        has_tag = has_length_tag(file)
        self.is_torn, is_chained = inspect_ogg_end(file)
        self._file = stack.enter_context(open_ffmpeg(_NamelessFile(file)))
        streams = self._file.streams
        if not streams.audio:
            kind = "a video without" if streams.video else "a file without"
            raise AudioError(f"{path}: is {kind} a sound track; give one with sound")
        self._stream = streams.audio[0]
        codec = self._stream.codec_context
        if codec is None:
            raise AudioError(f"{path}: its sound has a codec without a decoder here; convert it to FLAC")
        self.container = self._file.format.name.split(",")[0]
        if (self.container, codec.name) == ("caf", "alac"):
            from av.codec.context import Flags2

            codec.flags2 |= Flags2.skip_manual  # else FFmpeg drops the padding of a last packet that has none
        if codec.name == "flac":
            codec.options = {"err_detect": "crccheck+explode"}  # else damage becomes noise
        self.sample_rate: int = codec.sample_rate
        self.num_channels: int = codec.layout.nb_channels
        is_exact = self.container in _EXACT_CONTAINERS.split(",") or (self.container == "mp3" and has_tag)
        self.num_frames = self._count_frames() if is_exact and not is_chained else None
        is_padded = self.container in _PADDED_CONTAINERS
        self.tolerance_seconds = CODEC_TOLERANCE_SECONDS if is_padded else TOLERANCE_SECONDS
        if codec.name == "alac":
            self.tolerance_seconds = _ALAC_PACKET / self.sample_rate
        self._max_jitter = _MAX_JITTER.get(self.container, _USUAL_MAX_JITTER) * self.sample_rate
        self.damaged: list[tuple[int, int]] = []
        self._silence_left = _MAX_SILENCE_SECONDS * self.sample_rate
        self._num_good = self._num_bad = 0

    def _count_frames(self) -> int | None:
        stream = self._stream
        if stream.frames and stream.codec_context.name.startswith("pcm_"):
            return int(stream.frames)  # of a CAF file cut short, the duration is that of what is there
        if stream.duration:
            seconds = stream.duration * stream.time_base
        elif self._file.duration and len(self._file.streams) == 1:  # or it may be that of the pictures
            seconds = Fraction(self._file.duration, 1_000_000)
        else:
            return None
        delay = stream.codec_context.delay if self.container == "ogg" else 0  # Opus counts what comes before
        return round(seconds * self.sample_rate) - delay if seconds > 0 else None

    def frames(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        return regroup(self._cut(first, count), max(1, PIECE_SAMPLES // self.num_channels))

    def _cut(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        """Decode `count` frames from `first` on, without what pads the last packet beyond the known end."""
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
        origin = None
        for frame in frames:
            if frame.pts is not None:
                stamp = round(frame.pts * frame.time_base * self.sample_rate)
                origin = stamp - position if origin is None else origin
                num_lacking = stamp - origin - position
                if self._is_gap(position, num_lacking):
                    self.damaged.append((position, position + num_lacking))
                    self._silence_left -= num_lacking
                    for piece in make_silence(num_lacking, self.num_channels):
                        yield position, piece
                        position += len(piece)
                elif abs(num_lacking) > self._max_jitter:  # as where another stream begins at 0 again
                    origin += num_lacking
            piece = self._convert(frame)
            yield position, piece
            position += len(piece)

    def _is_gap(self, position: int, num_lacking: int) -> bool:
        """Tell missing frames from a wrong time stamp."""
        room = self._silence_left
        if self.num_frames is not None:
            room = min(room, self.num_frames - position)
        return self._max_jitter < num_lacking <= room

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
        from av.error import FFmpegError

        is_last_bad = False
        for packet in packets:
            try:
                frames = packet.decode()
            except FFmpegError:
                self._num_bad += 1
                if self._num_bad > self._num_good + _MAX_BAD_PACKETS:
                    raise
                is_last_bad = self.container != "mp3"  # which may have tags at its end
                continue
            if frames:
                self._num_good += 1
                is_last_bad = False
            yield from frames
        self.is_torn = self.is_torn or is_last_bad

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


def open_ffmpeg(source: Any, **more: str) -> Any:
    """FFmpeg on our own file object: it opens nothing itself, and takes no format that would ask it to."""
    import av

    _limit_allocations()
    options = more | {
        "format_whitelist": f"{_EXACT_CONTAINERS},{_OTHER_CONTAINERS}",
        "protocol_whitelist": "none",
        "codec_whitelist": _list_audio_codecs(),
    }
    # Not `options=`: PyAV before 18 frees memory that it does not own when it hands those on to the streams.
    return av.open(source, container_options=options, metadata_errors="replace", io_open=_refuse_to_open)


@functools.cache
def _limit_allocations() -> None:
    """Limit each allocation of the FFmpeg that comes with PyAV, where headers lie in a way not known here."""
    import av

    folder = Path(av.__file__).parent
    for library in (*folder.parent.glob("av.libs/libavutil*"), *folder.glob(".dylibs/libavutil*")):
        ctypes.CDLL(str(library)).av_max_alloc(ctypes.c_size_t(_MAX_ALLOCATION))


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
    try:
        for piece in pieces:
            while num_held + len(piece) >= length:
                split = length - num_held
                yield np.concatenate([*held, piece[:split]])
                piece, held, num_held = piece[split:], [], 0
            if len(piece):
                held.append(piece)
                num_held += len(piece)
    except Exception:
        if held:
            yield np.concatenate(held)  # before the error, nothing is lost
        raise
    if held:
        yield np.concatenate(held)


def make_silence(num_frames: int, num_channels: int) -> Iterator[np.ndarray]:
    """Pieces of zeros (frames, channels)."""
    step = max(1, PIECE_SAMPLES // num_channels)
    for first in range(0, num_frames, step):
        yield np.zeros((min(step, num_frames - first), num_channels), np.float32)
