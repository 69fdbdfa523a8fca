"""Decode any audio file to float32 frames with FFmpeg, and read header fields that FFmpeg does not report.

FFmpeg may open only an allow-list of formats, with limited allocations; it is not sandboxed. Damaged audio is
replaced with silence, and decoding continues after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import os
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from asr.errors import AudioError

_PIECE_SAMPLES = 1 << 16  # samples of silence yielded at once, summed over all channels
_ALAC_PACKET = 4096  # frames per packet; some headers round the length up to whole packets
# The header may include the delay and the padding of a lossy codec, up to two packets each.
_CODEC_TOLERANCE_SECONDS = 0.25
# After a seek, lossy decoders need up to 0.3 s of audio before their samples match a full decode.
_PREROLL_SECONDS = 1
_LONGEST_OGG_PAGE = 65_307  # bytes


# Plain containers, which cannot refer to other files: no playlists, image sequences, devices or scripts (hls,
# concat, image2, lavfi, sdp ...). Headers of the first group state the length; FFmpeg may guess the others.
_EXACT_CONTAINERS = "aiff,ape,au,caf,dsf,flac,matroska,mov,mpc,mpc8,nistsphere,ogg,tta,w64,wv"
_OTHER_CONTAINERS = (
    "aa,aac,aax,ac3,ac4,act,adx,aea,amr,amrnb,amrwb,apm,asf,ast,avi,avr,bonk,codec2,dss,dts,dtshd,dv,eac3,epaf,flv,gsm,"
    "gxf,hcom,iff,ilbc,ircam,iss,laf,lc3,loas,mlp,mmf,mp3,mpeg,mpegts,mxf,nut,oma,osq,pvf,qcp,qoa,rka,rm,rso,"
    "sds,shn,smjpeg,sox,swf,tak,truehd,voc,vqf,wav,wavarc,wsd,wtv,wve,xwma"
)
_SEEKABLE_CONTAINERS = ("matroska", "mov")  # have an index; in others, packets are skipped without decoding
_PADDED_CONTAINERS = ("caf", "dsf", "matroska", "mov", "mp3", "ogg")
# Seconds by which time stamps may be off in intact files: Vorbis near its end, and clock-based containers.
_MAX_JITTER = {"ogg": 0.05} | dict.fromkeys(("asf", "avi", "flv", "matroska", "mpeg", "mpegts", "rm"), 0.25)
_USUAL_MAX_JITTER = 0.005
_MAX_SILENCE_SECONDS = 3600  # inserted per file at most, because damaged time stamps may be arbitrarily large
_MAX_BAD_PACKETS = 10  # if bad packets outnumber good ones by more than this, the file is not audio
# Limits on the samples that a header may claim: one per byte of the file, but at most 100 hours of AAC.
_USUAL_SAMPLES, _MAX_SAMPLES = 1 << 20, 1 << 24
_MAX_ALLOCATION = 1 << 27  # bytes per allocation by FFmpeg: enough for the index of 36 hours of AAC


class FFmpegDecoder:
    """Decoder for one open file. A frame is one sample of every channel.

    `num_frames` is the length in the header, None if it is missing or an estimate; `tolerance_seconds` is
    how far such headers may be off. `damaged` lists the first and past-the-end frame of each span replaced
    with silence. `is_truncated` means that audio of unknown length is missing at the end.
    """

    def __init__(self, path: Path, file: BinaryIO, stack: contextlib.ExitStack) -> None:
        self._path = path
        size = os.fstat(file.fileno()).st_size
        if (claimed := count_claimed_samples(file)) > min(max(size, _USUAL_SAMPLES), _MAX_SAMPLES):
            raise AudioError(
                f"{path}: the header claims {claimed:,.0f} samples, more than {size:,} bytes can hold; "
                "copy the file again, or convert it to FLAC"
            )
        has_tag = has_length_tag(file)
        self.is_truncated, is_chained = inspect_ogg_end(file)
        self._file = stack.enter_context(open_ffmpeg(_NamelessFile(file)))
        streams = self._file.streams
        if not streams.audio:
            kind = "this video" if streams.video else "this file"
            raise AudioError(f"{path}: {kind} has no audio track; give a file with audio")
        self._stream = streams.audio[0]
        codec = self._stream.codec_context
        if codec is None:
            raise AudioError(f"{path}: there is no decoder for its audio codec; convert it to FLAC")
        self.container = self._file.format.name.split(",")[0]
        if (self.container, codec.name) == ("caf", "alac"):
            from av.codec.context import Flags2

            codec.flags2 |= Flags2.skip_manual  # else FFmpeg trims a last packet that has no padding
        if codec.name == "flac":
            codec.options = {"err_detect": "crccheck+explode"}  # else damage is decoded as noise
        self.sample_rate: int = codec.sample_rate
        self.num_channels: int = codec.layout.nb_channels
        is_exact = self.container in _EXACT_CONTAINERS.split(",") or (self.container == "mp3" and has_tag)
        self.num_frames = self._count_frames() if is_exact and not is_chained else None
        self.tolerance_seconds = _CODEC_TOLERANCE_SECONDS if self.container in _PADDED_CONTAINERS else 0.0
        if codec.name == "alac":
            self.tolerance_seconds = _ALAC_PACKET / self.sample_rate
        self._max_jitter = _MAX_JITTER.get(self.container, _USUAL_MAX_JITTER) * self.sample_rate
        self.damaged: list[tuple[int, int]] = []
        self._silence_left = _MAX_SILENCE_SECONDS * self.sample_rate
        self._num_good = self._num_bad = 0

    def _count_frames(self) -> int | None:
        stream = self._stream
        if stream.frames and stream.codec_context.name.startswith("pcm_"):
            return int(stream.frames)  # the duration of a truncated CAF file covers only what is left
        if stream.duration:
            seconds = stream.duration * stream.time_base
        elif self._file.duration and len(self._file.streams) == 1:  # else it may be the video's duration
            seconds = Fraction(self._file.duration, 1_000_000)
        else:
            return None
        delay = stream.codec_context.delay if self.container == "ogg" else 0  # Opus counts its pre-skip
        return round(seconds * self.sample_rate) - delay if seconds > 0 else None

    def frames(self, first: int, count: int | None) -> Iterator[np.ndarray]:
        """Decode `count` frames from `first` on, without the last packet's padding past the known end."""
        padding = None
        for position, piece in self._decode(first):
            if padding is not None:
                yield padding  # more audio follows, so the length in the header was wrong
                padding = None
            start = max(first - position, 0)
            end = len(piece) if count is None else min(first + count - position, len(piece))
            known_end = len(piece) if self.num_frames is None else self.num_frames - position
            if start < known_end < end:
                padding = piece[known_end:end]
                end = known_end
            if start < end:
                yield piece[start:end]
            if count is not None and position + len(piece) >= first + count:
                return

    def _decode(self, first: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield pieces with their positions, starting slightly before frame `first`."""
        early = first - _PREROLL_SECONDS * self.sample_rate
        if early <= 0:
            frames, position = self._decode_packets(self._file.demux(self._stream)), 0
        else:
            frames, position = self._decode_from(early)
        if position > first:
            raise AudioError(
                f"{self._path}: cannot seek to {first / self.sample_rate:.3f} s with its time stamps; "
                "convert it to FLAC first"
            )
        origin = None
        for frame in frames:
            if frame.pts is not None:
                stamp = round(frame.pts * frame.time_base * self.sample_rate)
                origin = stamp - position if origin is None else origin
                num_missing = stamp - origin - position
                room = self._silence_left
                if self.num_frames is not None:
                    room = min(room, self.num_frames - position)
                if self._max_jitter < num_missing <= room:  # else the time stamp is wrong
                    self.damaged.append((position, position + num_missing))
                    self._silence_left -= num_missing
                    end, step = position + num_missing, max(1, _PIECE_SAMPLES // self.num_channels)
                    while position < end:
                        piece = np.zeros((min(step, end - position), self.num_channels), np.float32)
                        yield position, piece
                        position += len(piece)
                elif abs(num_missing) > self._max_jitter:  # for example, a chained stream restarts at 0
                    origin += num_missing
            piece = self._convert(frame)
            yield position, piece
            position += len(piece)

    def _decode_from(self, early: int) -> tuple[Iterator[Any], int]:
        """Return decoded frames, and the first one's position by the container's clock (ms in Matroska)."""
        stream = self._stream
        ticks_per_frame = 1 / (stream.time_base * self.sample_rate)
        origin = stream.start_time or 0
        if self.container in _SEEKABLE_CONTAINERS:
            # start_time may exclude the codec delay.
            first_frame = next(self._decode_packets(self._file.demux(stream)), None)
            origin = getattr(first_frame, "pts", None) or 0
            self._file.seek(origin + int(early * ticks_per_frame), stream=stream)
        frames = self._decode_packets(self._skip_packets(origin + early * ticks_per_frame))
        for frame in frames:
            if frame.pts is not None:
                return itertools.chain([frame], frames), round((frame.pts - origin) / ticks_per_frame)
        return iter([]), 0

    def _skip_packets(self, tick: Fraction) -> Iterator[Any]:
        """Yield packets from the last one that begins before `tick`; those before it are not decoded."""
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
                is_last_bad = self.container != "mp3"  # MP3 files may end with tags
                continue
            if frames:
                self._num_good += 1
                is_last_bad = False
            yield from frames
        self.is_truncated = self.is_truncated or is_last_bad

    def _convert(self, frame: Any) -> np.ndarray:
        """Convert to float32 of shape (frames, channels), with full scale at 1."""
        num_channels = frame.layout.nb_channels
        if (frame.sample_rate, num_channels) != (self.sample_rate, self.num_channels):
            raise AudioError(
                f"{self._path}: changes from {self.num_channels} channels at {self.sample_rate} Hz to "
                f"{num_channels} at {frame.sample_rate} Hz partway through; convert it to FLAC first"
            )
        samples = frame.to_ndarray()  # (channels, frames) or (1, frames * channels)
        samples = samples.T if frame.format.is_planar else samples.reshape(-1, num_channels)
        if samples.dtype.kind == "f":
            return samples.astype(np.float32, copy=False)
        full_scale = 1 << (8 * samples.dtype.itemsize - 1)
        zero = full_scale if samples.dtype.kind == "u" else 0
        return (samples.astype(np.float32) - np.float32(zero)) / np.float32(full_scale)


def open_ffmpeg(source: Any, **more: str) -> Any:
    """Open a file object with FFmpeg, which may open nothing else and accepts no format that would."""
    import av

    _limit_allocations()
    options = more | {
        "format_whitelist": f"{_EXACT_CONTAINERS},{_OTHER_CONTAINERS}",
        "protocol_whitelist": "none",
        "codec_whitelist": _list_audio_codecs(),
    }
    # Not `options=`, because PyAV before 18 frees memory that it does not own when it passes them to streams.
    return av.open(source, container_options=options, metadata_errors="replace", io_open=_refuse_to_open)


@functools.cache
def _limit_allocations() -> None:
    """Limit each allocation by PyAV's bundled FFmpeg, in case a header lies in a way that is not checked."""
    import av

    folder = Path(av.__file__).parent
    for library in (*folder.parent.glob("av.libs/libavutil*"), *folder.glob(".dylibs/libavutil*")):
        ctypes.CDLL(str(library)).av_max_alloc(ctypes.c_size_t(_MAX_ALLOCATION))


class _NamelessFile:
    """A file object without a name, because FFmpeg would trust the suffix."""

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self._file = file
        self.read, self.tell = file.read, file.tell

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return self._file.seek(offset, whence)
        except (OSError, OverflowError):  # damaged files ask for negative offsets
            return -1


def _refuse_to_open(url: str, *_: Any) -> Any:
    raise PermissionError(f"an audio file may not open {url}")


@functools.cache
def _list_audio_codecs() -> str:
    """Return all audio decoders; with these alone, no video frame is decoded, whatever its size."""
    import av

    names = []
    for name in av.codecs_available:
        with contextlib.suppress(ValueError):  # raised for codecs that can only encode
            if av.Codec(name, "r").type == "audio":
                names.append(name)
    return ",".join(sorted(names))


# --- headers ------------------------------------------------------------------------------------


def inspect_ogg_end(file: BinaryIO) -> tuple[bool, bool]:
    """Return whether an Ogg file's last page is cut off, and whether it belongs to another stream."""
    file.seek(0)
    head = file.read(18)
    if not head.startswith(b"OggS"):
        return False, False
    file.seek(max(0, os.fstat(file.fileno()).st_size - _LONGEST_OGG_PAGE))
    tail = file.read()
    page = tail[tail.rfind(b"OggS\0") :]
    is_cut = len(page) < 27 or len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]])
    return is_cut, page[14:18] != head[14:18]


def has_length_tag(file: BinaryIO) -> bool:
    """Check that the first MP3 frame states the number of frames, and that these make up the whole file.

    If much more follows, such as pictures or a second recording, FFmpeg estimates the length from all of it.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    head = file.read(10).ljust(10, b"\0")
    start = 0
    if head.startswith(b"ID3"):
        start = 10 + sum(byte << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))
    file.seek(start)
    tag = re.search(rb"(?:Xing|Info)\0\0\0[\3\7\x0b\x0f].{4}(.{4})", file.read(256), re.DOTALL)
    return tag is not None and size - start < 1.05 * int.from_bytes(tag[1], "big")


# --- MP4 and MOV --------------------------------------------------------------------------------

_MP4_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
# Boxes to read, and the number of bytes: for stsc up to a million runs, for the others the first fields.
_MP4_TABLES = {b"stsc": 12 << 20} | dict.fromkeys((b"hdlr", b"stsz", b"stts", b"stco", b"co64", b"trun"), 16)
_MAX_MP4_BOXES = 1 << 20


def count_claimed_samples(file: BinaryIO) -> float:
    """Count the samples for which an MP4 header alone makes FFmpeg allocate 24 to 40 bytes each.

    A table of sizes takes bytes of the file for each sample; equal sizes, or a fragment, take none. Returns
    infinity if the header is compressed or has too many boxes, and 0 for other kinds of files.
    """
    end = os.fstat(file.fileno()).st_size
    track: dict[bytes, list[bytes]] = defaultdict(list)
    tracks, waiting, num_boxes = [track], [(0, end, track)], 0
    while waiting:
        position, end, track = waiting.pop()
        while position + 8 <= end:
            file.seek(position)
            length, kind, long_length = struct.unpack(">I4sQ", file.read(16).ljust(16, b"\0"))
            start = position + (16 if length == 1 else 8)
            position = min(position + {0: end - position, 1: long_length}.get(length, length), end)
            num_boxes += 1
            if kind == b"cmov" or num_boxes > _MAX_MP4_BOXES:
                return math.inf
            if position < start:
                break
            if kind in _MP4_TABLES:
                file.seek(start)
                track[kind].append(file.read(min(position - start, _MP4_TABLES[kind])))
            elif kind in _MP4_PARENTS:
                if kind == b"trak":
                    tracks.append(defaultdict(list))
                waiting.append((start, position, tracks[-1] if kind == b"trak" else track))
    return sum(map(_count_track_samples, tracks))


def _count_track_samples(track: dict[bytes, list[bytes]]) -> float:
    def number(content: bytes, index: int) -> int:
        return int.from_bytes(content[4 * index : 4 * index + 4], "big")

    num_samples: float = sum(number(table, 2) for table in track[b"stsz"] if number(table, 1))
    handlers, times = {handler[8:12] for handler in track[b"hdlr"]}, track[b"stts"]
    is_sound = b"soun" in handlers <= {b"soun", b"url ", b"alis"}
    if is_sound and times and all(number(table, 1) == number(table, 3) == 1 for table in times):
        # PCM, whose samples are single frames: FFmpeg reads chunks in pieces of 1,024 samples.
        num_chunks, num_samples = sum(number(table, 1) for table in track[b"stco"] + track[b"co64"]), 0.0
        for table in track[b"stsc"]:
            runs = np.frombuffer(table[8 : len(table) - (len(table) - 8) % 12], ">u4").reshape(-1, 3)
            firsts = np.append(runs[:, 0].astype(np.float64), num_chunks + 1)
            pieces = np.ceil(runs[:, 1] / 1024)
            num_samples += float((np.maximum(np.diff(firsts), 0) * pieces).sum())
    return num_samples + sum(number(table, 1) for table in track[b"trun"])
