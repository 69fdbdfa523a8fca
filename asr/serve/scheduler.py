"""One thread that owns a model and decides whose segments it recognizes next. It knows nothing about HTTP.

Segments of different clients share batches if their padded lengths are equal, as in `asr transcribe`, so
the text of a segment does not depend on what else is in its batch.
"""

from __future__ import annotations

import concurrent.futures
import copy
import ctypes
import functools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from asr.audio.segmentation import AudioSegment
from asr.transcription.transcribe import Recognizer, Request
from asr.transcripts.transcript import Segment

logger = logging.getLogger(__name__)

# The client that has been served least goes first, and each second of waiting counts like this many seconds
# of audio less, so that a stream of short clips cannot hold up a long file forever.
PATIENCE = 10.0
LIVE_SECONDS = 5.0  # how long after its last segment a live session still limits the batches of files
# Time that the segments of one client in a batch should take, and while there are live sessions, the whole
# batch. With less, short clips and live words wait less; with more, long files are finished sooner.
MAX_BATCH_SECONDS = 1.0
TRIM_SECONDS = 60.0  # interval at which freed memory is returned to the system
NEWEST_SHARE = 0.3  # weight of the newest batch in the running mean of the time that a segment takes
STUCK_SECONDS = 600.0  # a batch that runs longer will probably never end


class WithdrawnError(Exception):
    """The client has left or cancelled, so nobody waits for the result."""


class GoneError(Exception):
    """The inference thread has ended, so nothing will be recognized any more."""


# Without it glibc keeps freed but fragmented memory: 0.6 GB after half an hour of load.
trim_memory = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)


@dataclass(eq=False)
class Client:
    """A client of the scheduler: one file or one live session."""

    key: str = ""  # name of its API key
    is_live: bool = False  # live sessions are served before files
    expected_seconds: float = 0.0  # total seconds of audio, as far as they are known
    position: float = 0.0  # end of its last recognized segment, in seconds
    served_seconds: float = 0.0
    is_cancelled: bool = False

    @property
    def waiting_seconds(self) -> float:
        return max(0.0, self.expected_seconds - self.position)


@dataclass(eq=False)
class _Waiting:
    """A segment in the queue."""

    client: Client
    segment: AudioSegment
    request: Request
    group: Hashable  # segments of one group may share a batch
    since: float  # time at which it was queued
    result: concurrent.futures.Future[Segment]


class Scheduler:
    """Recognizes segments in its own thread."""

    def __init__(
        self,
        transcriber: Recognizer,
        batch_size: int,
        clock: Callable[[], float] = time.monotonic,
        max_batch_seconds: float = MAX_BATCH_SECONDS,
    ) -> None:
        self.transcriber = copy.copy(transcriber)
        self.audio_seconds = self.busy_seconds = 0.0
        """Seconds of audio recognized since the start, and seconds spent on them."""
        self.batch_size = batch_size
        self._max_batch_seconds = max_batch_seconds
        self._clock = clock
        self._segment_seconds = 0.0  # running mean of the time that a segment takes; 0.0 before the first
        self._waiting: list[_Waiting] = []
        self._batch: list[_Waiting] = []  # the segments being recognized
        self._changed = threading.Condition()
        self._last_live = -math.inf
        self._last_trim = clock()
        self._busy_since = math.inf  # time at which the current batch began
        self._is_gone = False
        threading.Thread(target=self._run, name="inference", daemon=True).start()

    @property
    def is_working(self) -> bool:
        """False if the inference thread has ended or hangs."""
        return not self._is_gone and self._clock() - self._busy_since < STUCK_SECONDS

    def transcriber_for(self, client: Client) -> Recognizer:
        """Return a copy of the transcriber that queues its segments here, where all clients wait in turn."""
        front = copy.copy(self.transcriber)
        front.recognize = functools.partial(self.recognize, client)  # type: ignore[method-assign]
        return front

    def recognize(self, client: Client, segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        """Queue segments and wait for their texts.

        Raises WithdrawnError, GoneError, or whatever the model raises for one of them.
        """
        now, waiting = self._clock(), []
        for segment in segments:
            group = (request, self.transcriber.decoder.padded_length(len(segment.audio_S)))
            future: concurrent.futures.Future[Segment] = concurrent.futures.Future()
            waiting.append(_Waiting(client, segment, request, group, now, future))
        with self._changed:
            if client.is_cancelled:
                raise WithdrawnError
            if self._is_gone:
                raise GoneError
            if client.is_live:
                self._last_live = now
            self._waiting += waiting
            self._changed.notify_all()
        return [one.result.result() for one in waiting]

    def cancel(self, client: Client) -> None:
        """Drop its queued segments. Any in the current batch are still finished, but nobody gets them."""
        with self._changed:
            client.is_cancelled = True
            for one in self._waiting:
                if one.client is client:
                    one.result.set_exception(WithdrawnError())
            self._waiting = [one for one in self._waiting if one.client is not client]

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        """Work until the process ends. If an error ends the loop first, everyone who waits gets GoneError."""
        try:
            self._work()
        except BaseException:
            logger.exception("the inference thread has ended; restart the server")
            with self._changed:
                self._is_gone = True
                for one in (*self._batch, *self._waiting):
                    if not one.result.done():
                        one.result.set_exception(GoneError())

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._batch = self._take_batch()
            self._recognize_timed(self._batch)
            if self._clock() - self._last_trim > TRIM_SECONDS:
                trim_memory(0)
                self._last_trim = self._clock()

    def _recognize_timed(self, batch: list[_Waiting]) -> None:
        started = self._busy_since = self._clock()
        self._recognize(batch)
        self._busy_since = math.inf
        took = self._clock() - started
        seconds = sum(len(one.segment.audio_S) / one.segment.sample_rate for one in batch)
        share = NEWEST_SHARE if self._segment_seconds else 1.0
        self._segment_seconds += share * (took / len(batch) - self._segment_seconds)
        self.audio_seconds += seconds
        self.busy_seconds += took

    def _take_batch(self) -> list[_Waiting]:
        """Take the first segment of the queue and, in their order, others that may share its batch."""
        now = self._clock()

        def rank(one: _Waiting) -> tuple[bool, float]:
            waited = now - one.since
            if one.client.is_live:
                return False, -waited
            return True, one.client.served_seconds - PATIENCE * waited

        self._waiting.sort(key=rank)
        share = self.batch_size
        if self._segment_seconds:
            share = min(share, max(1, round(self._max_batch_seconds / self._segment_seconds)))
        limit = share if now - self._last_live < LIVE_SECONDS else self.batch_size
        group, counts = self._waiting[0].group, Counter[Client]()
        batch: list[_Waiting] = []
        for one in self._waiting:
            if one.group == group and counts[one.client] < share and len(batch) < limit:
                batch.append(one)
                counts[one.client] += 1
        self._waiting = [one for one in self._waiting if one not in batch]
        return batch

    def _recognize(self, batch: list[_Waiting]) -> None:
        """Recognize a batch. If it fails, try its segments one by one, so that only the bad one fails."""
        problem: Exception | None = None
        try:
            results = self.transcriber.recognize([one.segment for one in batch], batch[0].request)
            for one, result in list(zip(batch, results, strict=True)):
                one.client.served_seconds += len(one.segment.audio_S) / one.segment.sample_rate
                one.client.position = max(one.client.position, one.segment.end)
                one.result.set_result(result)
        except Exception as error:
            problem = error
        if problem is None:
            return
        if len(batch) == 1:
            batch[0].result.set_exception(problem)
            return
        logger.warning(
            "a batch of %d segments failed (%s); trying one by one", len(batch), type(problem).__name__
        )
        del problem  # its traceback would keep device memory allocated
        for one in batch:
            self._recognize([one])
