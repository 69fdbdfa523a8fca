"""A pool of workers on Ray that each hold a model; what kills its worker twice is found and left out.

Ray keeps the processes, on this machine or on a cluster. All else is here: which unit is whose turn, and what
follows from a death. A unit whose worker died twice is done item by item, to find the item that is to blame,
and then once more without it: so the results of the others are what they are elsewhere.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from asr.errors import UserError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Row = dict[str, Any]
Work = Callable[[Sequence[Item]], list[Row]]
"""Turns items into a row for each. An exception but UserError counts as the death of the worker."""

MAX_DEATHS = 2
MAX_DEATHS_WHILE_LOADING = 3
MAX_SECONDS = 4 * 3600.0  # for a unit of half an hour of audio: beyond, it hangs
OBJECT_STORE_BYTES = 200_000_000  # what goes through Ray is paths and texts


@dataclass(frozen=True)
class PoolOptions:
    """Number and place of the workers."""

    address: str | None = None
    """Of a Ray cluster; None: a pool on this machine, which ends with the call."""
    workers: int | None = None
    """None: one for each GPU; without GPUs one for each core."""
    threads: int | None = None
    """Of each worker; None: the cores divided by the workers."""


@dataclass
class _Unit(Generic[Item]):
    """A unit that is not done."""

    items: Sequence[Item]
    deaths: int = 0
    deaths_alone: Counter[int] = field(default_factory=Counter)
    alone: dict[int, Row] = field(default_factory=dict)
    """Rows of the items, once they are done one by one."""
    bad: dict[int, Row] = field(default_factory=dict)

    @property
    def good(self) -> list[int]:
        return [index for index in range(len(self.items)) if index not in self.bad]


Task = tuple[int, int | None]
"""A unit, and the item of it that is done alone; None: all that are not known to be bad."""


class _Busy(NamedTuple):
    worker: Any
    task: Task | None
    """None: it loads."""
    deadline: float


class RayPool(Generic[Item]):
    """Workers for the units of one job. Use it as a context: Ray ends with it."""

    def __init__(self, options: PoolOptions, uses_gpus: bool) -> None:
        self._ray = ray = _import_ray(is_cluster=options.address is not None)
        local: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        try:
            if options.address is not None:
                _reach(options.address)
            ray.init(
                options.address or "local",
                logging_level=logging.ERROR,
                log_to_driver=False,
                **({} if options.address else local),
            )
        except Exception as error:  # Ray has bare ones
            if options.address is None:
                raise UserError(
                    f"Ray does not start here ({error}); is the machine overloaded? Try again later"
                ) from None
            raise UserError(f"--ray {options.address}: cannot use this cluster ({error})") from None
        resources = ray.cluster_resources()
        num_cpus, num_gpus = resources.get("CPU", 1.0), resources.get("GPU", 0.0)
        if uses_gpus and not num_gpus:
            self.close()
            raise UserError("Ray has no GPU here; leave --device out, or give --device cpu")
        self.num_workers = options.workers or max(1, int(num_gpus if uses_gpus else num_cpus))
        self.threads = options.threads or max(1, int(num_cpus // self.num_workers))
        # With whole CPUs, as is the default, two workers and what else Ray starts would not fit on two cores,
        # and wait for ever.
        share = min(1.0, math.floor(90 * num_cpus / self.num_workers) / 100)
        gpu_share = min(1.0, math.floor(100 * num_gpus / self.num_workers) / 100) if uses_gpus else 0
        self._actor_options = {
            "num_cpus": share,
            "num_gpus": gpu_share,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }

    def __enter__(self) -> RayPool[Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._ray.shutdown()

    def run(
        self, units: Sequence[Sequence[Item]], make_work: Callable[[int], Work[Item]]
    ) -> Iterator[tuple[int, list[Row]]]:
        """The rows of each unit with its number, as they are done. `make_work` gets the number of threads.

        An item that killed its worker twice, alone, or takes longer than a unit may, has a row with `error`.
        """
        self._units = {number: _Unit(items) for number, items in enumerate(units)}
        self._queue: deque[Task] = deque((number, None) for number in self._units)
        self._deaths_while_loading = 0
        idle: list[Any] = []
        busy: dict[Any, _Busy] = {}  # by future
        for _ in range(min(self.num_workers, len(units))):
            self._start_worker(busy, make_work)
        while self._units:
            while idle and self._queue:
                worker, task = idle.pop(), self._queue.popleft()
                busy[worker.work.remote(self._items(task))] = _Busy(worker, task, _now() + MAX_SECONDS)
            first = min(busy, key=lambda future: busy[future].deadline)
            left = max(0.0, busy[first].deadline - _now())
            (future,) = self._ray.wait(list(busy), num_returns=1, timeout=left)[0] or (first,)
            is_overdue = future is first and _now() >= busy[first].deadline
            worker, done = busy[future].worker, busy.pop(future).task
            try:
                if is_overdue:
                    self._ray.kill(worker)
                    raise TimeoutError
                rows = self._ray.get(future)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise error.cause from None
                if done is None:
                    raise
                idle.append(worker)
                yield from self._retry(done, f"failed ({type(error.cause).__name__}: {error.cause})")
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                self._start_worker(busy, make_work)
                if done is None:
                    self._note_death_while_loading(error)
                else:
                    yield from self._retry(done, "" if is_overdue else "ended its worker")
            else:
                idle.append(worker)
                if done is None:
                    self._deaths_while_loading = 0
                else:
                    yield from self._take(done, rows)

    def _start_worker(self, busy: dict[Any, _Busy], make_work: Any) -> None:
        worker = self._ray.remote(_Worker).options(**self._actor_options).remote()
        loaded = worker.load.remote(make_work, self.threads, os.getcwd())
        busy[loaded] = _Busy(worker, None, _now() + MAX_SECONDS)

    def _note_death_while_loading(self, error: Exception) -> None:
        self._deaths_while_loading += 1
        if self._deaths_while_loading == MAX_DEATHS_WHILE_LOADING:
            raise UserError(
                f"workers die while they load the model, {MAX_DEATHS_WHILE_LOADING} times in a row; probably "
                f"memory is short: give fewer --workers ({(str(error) or 'too slow').splitlines()[0]})"
            )

    def _items(self, task: Task) -> list[Item]:
        unit, index = self._units[task[0]], task[1]
        return [unit.items[index] for index in (unit.good if index is None else [index])]

    def _take(self, task: Task, rows: list[Row]) -> Iterator[tuple[int, list[Row]]]:
        (number, index), unit = task, self._units[task[0]]
        if index is None:
            yield self._finish(number, dict(zip(unit.good, rows, strict=True)))
        else:
            (unit.alone[index],) = rows
            yield from self._end_alone(number)

    def _retry(self, task: Task, reason: str) -> Iterator[tuple[int, list[Row]]]:
        """Do again what has ended its worker, or failed by an error of the program, up to a limit.

        Without a reason it took too long, which is not tried twice.
        """
        (number, index), unit = task, self._units[task[0]]
        times = 1 if reason else MAX_DEATHS
        reason = reason or f"took longer than {MAX_SECONDS / 3600:g} hours"
        if index is None and len(unit.good) == 1:
            (index,) = unit.good
        if index is not None:
            unit.deaths_alone[index] += times
            if unit.deaths_alone[index] < MAX_DEATHS:
                self._queue.append(task)
                return
            count = f", {MAX_DEATHS} times" if times == 1 else ""
            unit.bad[index] = {"error": f"{reason}{count}; it is left out"}
            yield from self._end_alone(number)
            return
        was_alone = unit.deaths >= MAX_DEATHS
        unit.deaths += times
        logger.warning("a unit of %d files %s; it is done again", len(unit.items), reason)
        if unit.deaths < (2 * MAX_DEATHS if was_alone else MAX_DEATHS):
            self._queue.append(task)
        elif not was_alone:
            unit.deaths = MAX_DEATHS
            self._queue.extend((number, index) for index in range(len(unit.items)))
        else:  # together they are too much, though each alone is not
            yield self._finish(number, unit.alone)

    def _end_alone(self, number: int) -> Iterator[tuple[int, list[Row]]]:
        unit = self._units[number]
        if len(unit.alone) + len(unit.bad) < len(unit.items):
            return
        if unit.good and len(unit.items) > 1:
            self._queue.append((number, None))
        else:
            yield self._finish(number, unit.alone)

    def _finish(self, number: int, rows: dict[int, Row]) -> tuple[int, list[Row]]:
        unit = self._units.pop(number)
        found = rows | unit.bad
        return number, [found[index] for index in range(len(unit.items))]


class _Worker:
    """Worker in a process of Ray."""

    def load(self, make_work: Callable[[int], Work[Any]], threads: int, folder: str) -> None:
        try:
            os.chdir(folder)  # paths are as the user has written them
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be entered on {socket.gethostname()} ({error.strerror}); all machines of "
                "a cluster need the files under the same paths"
            ) from None
        self._work = make_work(threads)

    def work(self, items: Sequence[Any]) -> list[Row]:
        return self._work(items)


_now = time.monotonic


def _reach(address: str) -> None:
    """Fail at once where nothing listens: Ray would wait for minutes, and then end this process."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _import_ray(is_cluster: bool) -> Any:
    # Read when Ray is imported. It reports its use to its makers otherwise, and opens the ports of a pool on
    # one machine to the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not is_cluster:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed; install it with: pip install 'asr-toolkit[ray]'") from None
    return ray
