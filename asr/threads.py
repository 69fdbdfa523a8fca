"""Threads: how many cores are free, and work that runs side by side, each piece in a thread of its own.

Threads that share one matrix product wait for each other thousands of times a second. That is quick on idle
cores, but where another process takes one of them, a wait may last until the scheduler's next turn. So long
work is split into pieces that do not wait for each other, and what cannot be split takes free cores only.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

MAX_SIDE_BY_SIDE = 4  # pieces; of more, Python itself would be the bottleneck
SHORTEST_SECONDS = 0.2  # of watching: the system counts in hundredths of a second
LOOK_EVERY_SECONDS = 10.0  # while a training runs


class LoadWatch:
    """Counts the cores that other processes use, from when it is made."""

    def __init__(self) -> None:
        self._began, self._others = time.monotonic(), _read_seconds_of_others()
        self._has_warned = False

    def count_busy_cores(self) -> int:
        """The average number; 0 after too short a time to tell, and on systems that do not count."""
        seconds = time.monotonic() - self._began
        others = _read_seconds_of_others()
        if seconds < SHORTEST_SECONDS or others is None or self._others is None:
            return 0
        return max(0, round((others - self._others) / seconds))

    def warn_of_waiting(self) -> None:
        """Warn, once, of threads that wait for each other since other processes came; look now and then."""
        import torch

        if self._has_warned or time.monotonic() - self._began < LOOK_EVERY_SECONDS:
            return
        threads, cores, busy = torch.get_num_threads(), len(os.sched_getaffinity(0)), self.count_busy_cores()
        if threads > 1 and busy > cores - threads:
            self._has_warned = True
            logger.warning(
                "other processes use %d of %d cores, so the %d threads of this training often wait for each "
                "other; if it is slow, stop it and repeat the command with train.threads=%d: it resumes",
                busy, cores, threads, max(1, cores - busy),
            )  # fmt: skip
        self._began, self._others = time.monotonic(), _read_seconds_of_others()


def _read_seconds_of_others() -> float | None:
    """CPU seconds of all processes but this one and its children; None where the system does not say."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = sum(map(int, file.readline().split()[1:4]))  # user, nice, system
        for child in multiprocessing.active_children():
            with contextlib.suppress(OSError), open(f"/proc/{child.pid}/stat", encoding="utf-8") as file:
                ticks -= sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    except (OSError, ValueError):
        return None
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") - own.user - own.system - own.children_user - own.children_system


_load: LoadWatch | None = None  # since the command started
_side_by_side: int | None = None  # None: as many as PyTorch has threads


def watch_load() -> None:
    """Begin to watch the load, for `use_threads` a moment later: importing PyTorch takes a second."""
    global _load
    _load = LoadWatch()


def use_threads(threads: int | None) -> None:
    """Use so many threads. None or 0: the cores that other processes leave free.

    Work that runs side by side has no waits, so it takes all cores unless a number is given.
    """
    import torch

    global _side_by_side
    most = torch.get_num_threads()
    _side_by_side = threads or most
    busy = 0 if threads or _load is None else _load.count_busy_cores()
    if busy:
        logger.info("other processes use %d of %d cores", busy, len(os.sched_getaffinity(0)))
    torch.set_num_threads(threads or max(1, most - busy))


SideBySide = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""A `map` that works on several items at once; results come in their order."""


@contextlib.contextmanager
def side_by_side(device: torch.device) -> Iterator[SideBySide]:
    """Threads that each work on an item of their own. A single item, and a GPU, get the usual threads."""
    import torch

    threads = torch.get_num_threads()
    available = threads if _side_by_side is None else _side_by_side
    workers = min(available, MAX_SIDE_BY_SIDE) if device.type == "cpu" else 1
    pool = ThreadPoolExecutor(workers, "side-by-side", torch.set_num_threads, (available // workers,))

    def run(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        return map(work, items) if workers == 1 or len(items) == 1 else pool.map(work, items)

    try:
        yield run
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        torch.set_num_threads(threads)  # threads that start later take the number that was set last
