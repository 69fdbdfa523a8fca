"""Live audio from a pipe: a thread takes it out as it comes, so that whoever records never waits.

It is raw PCM, or a format that FFmpeg can decode as it comes; the first bytes tell which.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from asr.audio.headers import is_container
from asr.audio.streams import read_stream
from asr.errors import UserError

logger = logging.getLogger(__name__)

PCM_RATE = 16_000  # Hz
PIECE_BYTES = PCM_RATE // 10 * 2  # of PCM that is handed on at once
HEAD_BYTES = 4096
# A day of PCM is three gigabytes. Only after two hours behind, whoever records has to wait.
MAX_WAITING_BYTES = 1 << 28


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
                self._require_no_error()
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
                        logger.warning("standard input: too much waits to be decoded; the pipe has to wait")
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

    def _require_no_error(self) -> None:
        if self._error is not None:
            raise UserError(f"standard input: cannot be read ({self._error.strerror})")


def read_live(
    pipe: PipeReader, sample_rate: int, channel: int | None = None
) -> tuple[Iterator[np.ndarray], int]:
    """Mono pieces as they come, and their rate: that of raw PCM, else the one that is wanted."""
    head = pipe.peek(HEAD_BYTES)
    if is_container(head):
        return read_stream(pipe.read, head, sample_rate, channel), sample_rate
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
