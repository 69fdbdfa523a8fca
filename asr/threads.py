"""Threads: count the free cores, and run independent pieces of work in parallel, one thread each.

Threads that share a matrix product wait for each other thousands of times a second. On idle cores this is
fast, but if another process uses one of the cores, a wait may last a scheduler time slice. So long jobs are
split into independent pieces, and work that cannot be split uses free cores only.
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

MAX_SIDE_BY_SIDE = 4  # threads; with more, Python itself would be the bottleneck
SHORTEST_SECONDS = 0.2  # shortest time to measure load over: the system counts in hundredths of a second
LOOK_EVERY_SECONDS = 10.0  # interval between load checks during a training


class LoadWatch:
    """Counts the cores that other processes have used since it was created."""

    def __init__(self) -> None:
        self._began, self._others = time.monotonic(), _read_seconds_of_others()
        self._has_warned = False

    def count_busy_cores(self) -> int:
        """Return the average number; 0 if too little time has passed or the system does not report it."""
        seconds = time.monotonic() - self._began
        others = _read_seconds_of_others()
        if seconds < SHORTEST_SECONDS or others is None or self._others is None:
            return 0
        return max(0, round((others - self._others) / seconds))

    def warn_of_waiting(self) -> None:
        """Warn once if other processes now make this training's threads wait; check every 10 seconds."""
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
    """Return the CPU seconds of all processes but this one and its children; None if not reported."""
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
_side_by_side: int | None = None  # None: as many as PyTorch's threads


def watch_load() -> None:
    """Start to measure the load while PyTorch is imported, which takes a second; `use_threads` reads it."""
    global _load
    _load = LoadWatch()


def use_threads(threads: int | None, with_torch: bool = True) -> None:
    """Set the number of threads. None or 0: as many as the cores that other processes leave free.

    Work that is split by `side_by_side` has no such waits, so it uses all cores unless a number is given.
    """
    global _side_by_side
    if not with_torch:
        _side_by_side = threads or None
        return
    import torch

    most = torch.get_num_threads()
    _side_by_side = threads or most
    busy = 0 if threads or _load is None else _load.count_busy_cores()
    if busy:
        logger.info("other processes use %d of %d cores", busy, len(os.sched_getaffinity(0)))
    torch.set_num_threads(threads or max(1, most - busy))


def count_threads() -> int:
    """Return the number of threads for graphs that are computed without PyTorch."""
    busy = 0 if _load is None else _load.count_busy_cores()
    return _side_by_side or max(1, len(os.sched_getaffinity(0)) - busy)


SideBySide = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""A `map` that processes several items in parallel and returns the results in order."""


@contextlib.contextmanager
def side_by_side(device: torch.device | None) -> Iterator[SideBySide]:
    """Yield a `map` that processes one item per thread. A single item, or a GPU, uses the usual threads.

    Without a device, the items use the threads of another library one after the other.
    """
    if device is None:
        yield map
        return
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
        torch.set_num_threads(threads)  # threads that start later use the last value set
