"""Free cores are counted, and independent work runs in parallel."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import pytest
import torch

from asr import threads
from asr.threads import LoadWatch, side_by_side, use_threads, watch_load

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_threads(monkeypatch: pytest.MonkeyPatch, restored_threads: None) -> None:
    monkeypatch.setattr(threads, "_load", None)
    torch.set_num_threads(2)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Clock, and CPU seconds of other processes, which a test moves."""
    now = [0.0, 0.0]
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads, "_read_seconds_of_others", lambda: now[1])
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1})
    return now


def test_a_process_that_computes_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        watch = LoadWatch()
        time.sleep(0.7)
        count = watch.count_busy_cores()
        process.kill()
    assert count >= 1


@pytest.mark.parametrize(
    "seconds, used, expected", [(1.0, 0.4, 0), (1.0, 0.6, 1), (2.0, 3.9, 2), (0.1, 0.1, 0), (1.0, -0.1, 0)]
)
def test_busy_cores(others: list[float], seconds: float, used: float, expected: int) -> None:
    watch = LoadWatch()
    others[:] = seconds, used
    assert watch.count_busy_cores() == expected


@pytest.mark.parametrize(
    "used, asked, expected", [(0, None, 2), (1, None, 1), (5, None, 1), (1, 2, 2), (1, 0, 1)]
)
def test_threads_are_the_free_cores(
    others: list[float], used: float, asked: int | None, expected: int
) -> None:
    watch_load()
    others[:] = 1.0, used
    use_threads(asked)
    assert torch.get_num_threads() == expected
    with side_by_side(CPU) as run:  # all cores, as nothing waits; each piece has one thread
        assert list(run(lambda _: torch.get_num_threads(), range(3))) == [1, 1, 1]
    seen: list[int] = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert [torch.get_num_threads()] == seen == [expected]


def test_results_come_in_order_of_items_that_run_at_once() -> None:
    both = threading.Barrier(2, timeout=20)

    def work(item: int) -> int:
        both.wait()
        time.sleep(0.01 * item)
        return item

    with side_by_side(CPU) as run:
        assert list(run(work, [3, 0, 1, 2])) == [3, 0, 1, 2]


def test_a_single_item_gets_all_threads() -> None:
    with side_by_side(CPU) as run:
        assert list(run(lambda _: (threading.current_thread(), torch.get_num_threads()), [0])) == [
            (threading.current_thread(), 2)
        ]


def test_an_error_ends_the_work() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 0:
            raise ValueError("zero")
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(ValueError, match="zero"), side_by_side(CPU) as run:
        list(run(work, range(100)))
    time.sleep(0.2)
    assert len(done) < 10


def test_a_training_warns_once_when_others_come(
    others: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    watch = LoadWatch()
    with caplog.at_level(logging.WARNING):
        for second, used in [(11, 0.1), (15, 4.0), (22, 11.0), (33, 22.0)]:  # at 15 it is too early to look
            others[:] = second, used
            watch.warn_of_waiting()
    (message,) = caplog.messages
    assert message.startswith("other processes use 1 of 2 cores, so the 2 threads of this training")
    assert "train.threads=1" in message
