"""Compressed audio from a pipe as mono pieces, decoded by FFmpeg as it comes."""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from asr.audio.containers import AudioError, open_ffmpeg
from asr.audio.reading import mix, read_blocks, resample_pieces

logger = logging.getLogger(__name__)

NAME = Path("standard input")
# FFmpeg looks at so much before it decodes, for what the header does not tell.
PROBE = {"probesize": "32768", "analyzeduration": "100000"}

# FFmpeg makes noise of the first, and ends in the others where it would have to go back.
NOT_STREAMED = (b"RIFX", b"wvpk", b"caff")


class _Pipe:
    """A stream that FFmpeg reads without going back. Until decoding begins, it is kept in a file as well."""

    def __init__(self, read: Callable[[int], bytes], copy: BinaryIO) -> None:
        self._read = read
        self._copy: BinaryIO | None = copy

    def read(self, size: int) -> bytes:
        content = self._read(size)
        if self._copy is not None:
            self._copy.write(content)
        return content

    def forget(self) -> None:
        self._copy = None


def read_stream(
    read: Callable[[int], bytes], head: bytes, sample_rate: int, channel: int | None = None
) -> Iterator[np.ndarray]:
    """float32 (samples,) as soon as they can be decoded. `read` gives the next bytes, b"" at the end.

    Where FFmpeg has to go back, as in an MP4 with its index at the end, it is read to its end first.
    `head`: a copy of the first bytes.
    """
    from av.error import FFmpegError

    faults = (FFmpegError, ValueError, OSError)
    with contextlib.ExitStack() as stack:
        copy = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile(buffering=0)))
        pipe = _Pipe(read, copy)
        try:
            if head.startswith(NOT_STREAMED):
                raise ValueError
            media = stack.enter_context(open_ffmpeg(pipe, **PROBE))
            pieces = _decode(media, channel)
            first = next(pieces, np.zeros(0, np.float32))
        except AudioError:
            raise
        except faults:
            yield from _read_whole(pipe, copy, sample_rate, channel)
            return
        pipe.forget()
        try:
            rate = media.streams.audio[0].codec_context.sample_rate
            yield from resample_pieces(itertools.chain([first], pieces), rate, sample_rate)
        except faults as error:
            raise AudioError(f"{NAME}: cannot be decoded any further ({error})") from None


def _read_whole(pipe: _Pipe, copy: BinaryIO, sample_rate: int, channel: int | None) -> Iterator[np.ndarray]:
    """Write all into a file first, then read that."""
    logger.info("%s: cannot be decoded as it comes; it is read to its end first", NAME)
    while pipe.read(1 << 16):
        pass
    yield from read_blocks(NAME, sample_rate, block_seconds=1.0, channel=channel, content=copy)


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
