"""The order in which segments are recognized: fairness, batches, errors and cancellation, with a fake model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from serve_examples import wait_until

from asr.audio import AudioSegment
from asr.serve import scheduler as scheduler_module
from asr.serve.scheduler import Client, GoneError, Scheduler, WithdrawnError
from asr.transcription.transcribe import Request
from asr.transcripts.transcript import Segment, make_segment

RATE = 100


class Fake:
    """A fake transcriber that names each segment by its start, and waits for a signal before each batch."""

    separator = " "

    def __init__(self, seconds_each: float = 0.0) -> None:
        self.batches: list[list[float]] = []
        self.gate = threading.Semaphore(0)
        self.time = [0.0]  # in a list, because the scheduler works with a copy
        self.seconds_each = seconds_each
        self.decoder = self
        self.problem: Callable[[Sequence[AudioSegment]], None] = lambda segments: None

    def padded_length(self, num_samples: int) -> int:
        return num_samples

    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        self.batches.append([segment.start for segment in segments])
        self.gate.acquire()
        self.time[0] += self.seconds_each * len(segments)
        self.problem(segments)
        return [make_segment(one, f"{one.start:g}", (), "fake", ()) for one in segments]


class Asking(threading.Thread):
    """A client in its own thread, like files and live sessions."""

    def __init__(
        self, scheduler: Scheduler, client: Client, starts: Sequence[float], seconds: float = 1.0
    ) -> None:
        super().__init__(daemon=True)
        self.scheduler, self.client = scheduler, client
        samples = np.zeros(round(seconds * RATE), np.float32)
        self.segments = [AudioSegment(start, samples, RATE) for start in starts]
        self.texts: list[str] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            found = self.scheduler.recognize(self.client, self.segments, Request())
            self.texts = [one.text for one in found]
        except Exception as error:
            self.error = error


def make(fake: Fake, batch_size: int = 2, **options: Any) -> Scheduler:
    options = {"max_batch_seconds": 1000.0, "clock": lambda: fake.time[0]} | options
    return Scheduler(fake, batch_size, **options)  # type: ignore[arg-type]


def start(batch_size: int = 2, problem: Any = lambda _: None) -> tuple[Fake, Scheduler, Asking]:
    """A scheduler whose first segment, 0, is in the middle of its batch."""
    fake = Fake()
    fake.problem = problem
    scheduler = make(fake, batch_size)
    first = Asking(scheduler, Client(), [0.0])
    wait_until(lambda: fake.batches)
    return fake, scheduler, first


def wait_for(scheduler: Scheduler, num_waiting: int) -> None:
    wait_until(lambda: len(scheduler._waiting) == num_waiting)


def test_segments_of_several_clients_share_a_batch_and_each_gets_its_own() -> None:
    fake, scheduler, first = start(batch_size=4)
    others = [Asking(scheduler, Client(), [10.0 * number]) for number in (1, 2, 3)]
    wait_for(scheduler, 3)
    fake.gate.release(2)
    for one in (first, *others):
        one.join(5)
        assert one.texts == [f"{one.segments[0].start:g}"]
    assert sorted(fake.batches[1]) == [10.0, 20.0, 30.0]


def test_segments_of_different_lengths_never_share_a_batch() -> None:
    fake, scheduler, _ = start(batch_size=8)
    Asking(scheduler, Client(), [1.0, 2.0])
    Asking(scheduler, Client(), [3.0], seconds=2.0)
    wait_for(scheduler, 3)
    fake.gate.release(3)
    wait_until(lambda: len(fake.batches) == 3)
    assert sorted(map(sorted, fake.batches[1:])) == [[1.0, 2.0], [3.0]]


def test_a_short_clip_overtakes_a_long_file_after_one_batch() -> None:
    fake = Fake()
    scheduler = make(fake)
    Asking(scheduler, Client(), [float(number) for number in range(20)])
    wait_until(lambda: fake.batches)
    clip = Asking(scheduler, Client(), [100.0])
    wait_for(scheduler, 19)
    fake.gate.release(2)
    clip.join(5)
    assert clip.texts == ["100"] and len(fake.batches) <= 3


def test_live_sessions_come_before_files() -> None:
    fake, scheduler, _ = start(batch_size=1)
    Asking(scheduler, Client(), [1.0])
    wait_for(scheduler, 1)
    Asking(scheduler, Client(is_live=True, served_seconds=1e6), [2.0])
    wait_for(scheduler, 2)
    fake.gate.release(3)
    wait_until(lambda: len(fake.batches) == 3)
    assert fake.batches == [[0.0], [2.0], [1.0]]


def test_a_client_that_was_served_much_does_not_wait_forever() -> None:
    fake, scheduler, _ = start(batch_size=1)
    Asking(scheduler, Client(served_seconds=600.0), [1.0])
    wait_for(scheduler, 1)
    fake.time[0] = 61.0
    Asking(scheduler, Client(), [2.0])
    wait_for(scheduler, 2)
    fake.gate.release(2)
    wait_until(lambda: len(fake.batches) == 3)
    assert fake.batches[1] == [1.0]


def test_batches_are_as_large_as_the_time_allows() -> None:
    fake = Fake(seconds_each=0.4)
    fake.gate.release(100)
    scheduler = make(fake, 8, max_batch_seconds=1.0)
    Asking(scheduler, Client(), [0.0]).join(5)
    wait_until(lambda: scheduler.busy_seconds)
    Asking(scheduler, Client(), [float(number) for number in range(10)]).join(5)
    assert {len(batch) for batch in fake.batches[1:]} == {2}
    assert scheduler.audio_seconds == pytest.approx(2.5 * scheduler.busy_seconds)


@pytest.mark.parametrize(("is_live", "sizes"), [(False, {4}), (True, {2})])
def test_clients_share_a_large_batch_unless_there_is_live_speech(is_live: bool, sizes: set[int]) -> None:
    fake = Fake(seconds_each=0.4)
    scheduler = make(fake, 8, max_batch_seconds=1.0)
    fake.gate.release()
    Asking(scheduler, Client(is_live=is_live), [0.0]).join(5)
    Asking(scheduler, Client(), [1.0])
    wait_until(lambda: len(fake.batches) == 2)
    for number in (2.0, 4.0):
        Asking(scheduler, Client(), [number, number + 1.0, number + 2.0, number + 3.0])
    wait_for(scheduler, 8)
    fake.gate.release(20)
    wait_for(scheduler, 0)
    assert {len(batch) for batch in fake.batches[2:]} == sizes


def test_only_the_bad_segment_fails() -> None:
    def refuse(segments: Sequence[AudioSegment]) -> None:
        if any(segment.start == 2.0 for segment in segments):
            raise RuntimeError("too loud")

    fake, scheduler, _ = start(batch_size=4, problem=refuse)
    asking = [Asking(scheduler, Client(), [float(number)]) for number in (1, 2, 3, 4)]
    wait_for(scheduler, 4)
    fake.gate.release(20)
    for one in asking:
        one.join(5)
    assert [bool(one.texts) for one in asking] == [True, False, True, True]
    assert str(asking[1].error) == "too loud"


def test_cancelled_segments_are_not_recognized() -> None:
    _, scheduler, _ = start()
    leaving = Asking(scheduler, Client(), [5.0, 6.0])
    wait_for(scheduler, 2)
    scheduler.cancel(leaving.client)
    for one in (leaving, Asking(scheduler, leaving.client, [7.0])):
        one.join(5)
        assert isinstance(one.error, WithdrawnError) and not scheduler._waiting


def test_freed_memory_is_returned_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, trims = Fake(), list[float]()
    monkeypatch.setattr(scheduler_module, "trim_memory", lambda _: trims.append(fake.time[0]))
    fake.gate.release(3)
    scheduler = make(fake)
    fake.time[0] = 61.0
    for _ in range(3):
        Asking(scheduler, Client(), [0.0]).join()
    wait_until(lambda: scheduler.audio_seconds == 3)
    assert trims == [61.0]


def test_a_client_knows_how_much_audio_is_left() -> None:
    fake = Fake()
    fake.gate.release()
    client = Client(expected_seconds=10.0)
    Asking(make(fake), client, [3.0]).join(5)
    assert client.position == 4.0 and client.waiting_seconds == 6.0 and client.served_seconds == 1.0


def test_all_clients_get_an_error_when_the_thread_ends() -> None:
    class Panic(BaseException):
        """Not an Exception, like the panics of Rust libraries."""

    def panic(segments: Sequence[AudioSegment]) -> None:
        raise Panic

    fake, scheduler, first = start(problem=panic)
    waiting = Asking(scheduler, Client(), [1.0], seconds=2.0)
    wait_for(scheduler, 1)
    assert scheduler.is_working
    fake.gate.release()
    for one in (first, waiting, Asking(scheduler, Client(), [2.0])):
        one.join(5)
        assert isinstance(one.error, GoneError)
    assert not scheduler.is_working


def test_a_hanging_batch_is_detected() -> None:
    fake, scheduler, _ = start()
    fake.time[0] = 599.0
    assert scheduler.is_working
    fake.time[0] = 601.0
    assert not scheduler.is_working
    fake.gate.release()
    wait_until(lambda: scheduler.is_working)
