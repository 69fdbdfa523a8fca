"""Live audio from a pipe: a thread takes it out as it comes, so that whoever records never waits.

It is raw PCM, or a format that FFmpeg can decode as it comes; the first bytes tell which.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from asr.audio.ffmpeg import open_ffmpeg
from asr.audio.reading import mix, read_blocks, resample_pieces
from asr.errors import AudioError, UserError

logger = logging.getLogger(__name__)

NAME = Path("standard input")
PCM_RATE = 16_000  # Hz
PIECE_BYTES = PCM_RATE // 10 * 2  # of PCM that is handed on at once
HEAD_BYTES = 4096
# A day of PCM is three gigabytes. Only after two hours behind, whoever records has to wait.
MAX_WAITING_BYTES = 1 << 28
# FFmpeg looks at so much before it decodes, for what the header does not tell.
PROBE = {"probesize": "32768", "analyzeduration": "100000"}


class PipeReader:
    """Reader of a pipe; keeps what comes until it is read, with the time when it came."""

    def __init__(self, source: BinaryIO) -> None:
        # Not the buffer of standard input, which would be locked when the program ends.
        self._source = getattr(source, "raw", source)
        self._waiting: deque[tuple[bytes, float]] = deque()
        self._num_waiting = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._error: OSError | None = None
        self.arrived = time.monotonic()
        """When that came which was read last."""
        threading.Thread(target=self._drain, name="live-input", daemon=True).start()

    @property
    def waiting_bytes(self) -> int:
        return self._num_waiting

    def read(self, size: int) -> bytes:
        """Read what came next, at most so much, as soon as there is any; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            if not self._waiting:
                if self._error is not None:
                    raise UserError(f"{NAME}: cannot be read ({self._error.strerror})")
                return b""
            content, self.arrived = self._waiting.popleft()
            if len(content) > size:
                self._waiting.appendleft((content[size:], self.arrived))
                content = content[:size]
            self._num_waiting -= len(content)
            self._changed.notify_all()
            return content

    def peek(self, size: int) -> bytes:
        """The first bytes, or all there are until the end, without taking them."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_waiting >= size or self._is_over)
            return b"".join(content for content, _ in self._waiting)[:size]

    def _drain(self) -> None:
        try:
            while (content := self._source.read(1 << 16)) != b"":
                if content is None:  # a pipe that does not block
                    time.sleep(0.01)
                    continue
                with self._changed:
                    if self._num_waiting > MAX_WAITING_BYTES:
                        logger.warning("%s: too much waits to be decoded; the pipe has to wait", NAME)
                        self._changed.wait_for(lambda: self._num_waiting <= MAX_WAITING_BYTES)
                    self._waiting.append((content, time.monotonic()))
                    self._num_waiting += len(content)
                    self._changed.notify_all()
        except OSError as error:
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()


def read_live(
    pipe: PipeReader, sample_rate: int, channel: int | None = None
) -> tuple[Iterator[np.ndarray], int]:
    """Mono pieces as they come, and their rate: that of raw PCM, else the one that is wanted."""
    head = pipe.peek(HEAD_BYTES)
    if is_container(head):
        return _read_stream(pipe.read, head, sample_rate, channel), sample_rate
    if channel is not None:
        raise UserError(
            "--channels: raw PCM on standard input has one; leave it out, or give it a WAV header"
        )
    return decode_pcm(iter(lambda: pipe.read(PIECE_BYTES), b"")), PCM_RATE


def decode_pcm(chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
    """float32 samples of raw mono PCM: 16-bit little-endian, in chunks that may end within a sample."""
    rest = b""
    for chunk in chunks:
        content = rest + chunk
        whole = len(content) - len(content) % 2
        rest = content[whole:]
        if whole:
            yield np.frombuffer(content[:whole], "<i2").astype(np.float32) / 32768


# --- raw, or a format ---------------------------------------------------------------------------

# First bytes of what FFmpeg reads. MP3 and AAC without a tag have none, but each frame tells its length.
_CONTAINERS = (
    *(b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b"fLaC", b"OggS", b"NIST", b"ID3", b".snd"),
    *(b"wvpk", b"#!AMR", b"MAC ", b"TTA1", b"FLV\x01", b"Creative Voice"),
    *(b"\x1a\x45\xdf\xa3", b"\x30\x26\xb2\x75"),  # Matroska and WebM; ASF, which is WMA
)
# FFmpeg makes noise of the first, and ends in the others where it would have to go back.
_NOT_STREAMED = (b"RIFX", b"wvpk", b"caff")
_MP3_KILOBITS = (
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)


def is_container(head: bytes) -> bool:
    """Tell a stream that names its format from raw PCM. `head`: the first 4 kB."""
    if head.startswith(_CONTAINERS) or head[4:8] == b"ftyp" or head[::188][:3] == b"GGG":  # MP4, MPEG-TS
        return True
    place = num_frames = 0
    while (length := _measure_frame(head[place : place + 6])) > 0 and num_frames < 3:
        num_frames, place = num_frames + 1, place + length
    return num_frames == 3


def _measure_frame(header: bytes) -> int:
    """Bytes of a frame of MP3 or of AAC (ADTS) that begins so; 0 where none does."""
    if len(header) < 6 or header[0] != 0xFF or header[1] < 0xE0:
        return 0
    if header[1] & 0xF6 == 0xF0:  # ADTS
        return (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    version, layer, padding = header[1] >> 3 & 3, header[1] >> 1 & 3, header[2] >> 1 & 1
    bitrate, rate = header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
        return 0
    is_first = version == 3  # MPEG-1; the others have half the samples a frame
    kilobits = _MP3_KILOBITS[0 if is_first else 1][bitrate - 1]
    hertz = (44_100, 48_000, 32_000)[rate] // {3: 1, 2: 2, 0: 4}[version]
    return (144_000 if is_first else 72_000) * kilobits // hertz + padding


# --- formats ------------------------------------------------------------------------------------


class _Stream:
    """A stream that FFmpeg reads without going back. Until decoding begins, it is kept in a file as well."""

    def __init__(self, read: Callable[[int], bytes], copy: BinaryIO) -> None:
        self._read = read
        self.copy: BinaryIO | None = copy

    def read(self, size: int) -> bytes:
        content = self._read(size)
        if self.copy is not None:
            self.copy.write(content)
        return content


def _read_stream(
    read: Callable[[int], bytes], head: bytes, sample_rate: int, channel: int | None
) -> Iterator[np.ndarray]:
    """float32 (samples,) as soon as they can be decoded. `read` gives the next bytes, b"" at the end.

    Where FFmpeg has to go back, as in an MP4 with its index at the end, it is read to its end first.
    """
    from av.error import FFmpegError

    faults = (FFmpegError, ValueError, OSError)
    with contextlib.ExitStack() as stack:
        copy = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile(buffering=0)))
        stream = _Stream(read, copy)
        try:
            if head.startswith(_NOT_STREAMED):
                raise ValueError
            media = stack.enter_context(open_ffmpeg(stream, **PROBE))
            pieces = _decode(media, channel)
            first = next(pieces, np.zeros(0, np.float32))
        except AudioError:
            raise
        except faults:
            logger.info("%s: cannot be decoded as it comes; it is read to its end first", NAME)
            while stream.read(1 << 16):
                pass
            yield from read_blocks(NAME, sample_rate, block_seconds=1.0, channel=channel, content=copy)
            return
        stream.copy = None
        try:
            rate = media.streams.audio[0].codec_context.sample_rate
            yield from resample_pieces(itertools.chain([first], pieces), rate, sample_rate)
        except faults as error:
            raise AudioError(f"{NAME}: cannot be decoded any further ({error})") from None


def _decode(media: Any, channel: int | None) -> Iterator[np.ndarray]:
    import av

    if not media.streams.audio:
        raise AudioError(f"{NAME}: has no sound track; give audio, or a video with sound")
    to_float: Any = av.AudioResampler(format="fltp")  # keeps rate and channels
    for frame in media.decode(audio=0):
        for one in to_float.resample(frame):
            frames_TC = one.to_ndarray().T
            if channel is not None and channel >= frames_TC.shape[1]:
                raise AudioError(
                    f"{NAME}: has {frames_TC.shape[1]} channels; --channels {channel + 1} is none of them"
                )
            yield mix(frames_TC, channel, NAME)
