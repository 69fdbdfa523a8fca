"""A pool of Ray workers that each hold a model. An item that kills its worker twice is isolated and skipped.

Ray only runs the processes, on this machine or a cluster. This module assigns units to workers and handles
their deaths. A unit whose worker died twice is processed item by item to find the item that causes it, and
then once more without that item, so that batches and results of the others are as in any other run.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asr.audio.segmentation import Recording
from asr.errors import UserError, import_extra, plural
from asr.transcripts.transcript import Segment

if TYPE_CHECKING:
    from asr.transcription.transcribe import Recognizer, Request

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Work = Callable[[Sequence[Any]], list[Row]]
"""Returns one row for each item. Any exception except UserError counts as a death of the worker."""

MAX_DEATHS = 2
MAX_DEATHS_WHILE_LOADING = 3
MAX_SECONDS = 4 * 3600.0  # a unit has half an hour of audio, so a worker that takes longer hangs
TOO_SLOW = f"took longer than {MAX_SECONDS / 3600:g} hours"
OBJECT_STORE_BYTES = 200_000_000  # small, because only paths and texts pass through Ray


@dataclass(frozen=True)
class PoolOptions:
    """Number of the workers, and where they run."""

    address: str | None = None
    """Address of a Ray cluster; None starts a pool on this machine, which ends with the call."""
    workers: int | None = None  # None: one for each GPU, or without GPUs one for each core
    threads: int | None = None  # threads of each worker; None: the cores divided by the workers


Task = tuple[int, list[int]]
"""The number of a unit, and the indexes of the items to process now."""
_Busy = tuple[Any, Task | None, float]
"""A worker, its task (None while it loads the model), and its deadline."""


class RayPool:
    """Workers for the units of one job, as a context manager that shuts Ray down at its end."""

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
        except Exception as error:  # Ray raises plain exceptions too
            place = "start here" if options.address is None else f"connect to --ray {options.address}"
            raise UserError(f"Ray does not {place} ({error}); is the machine overloaded or down?") from None
        resources = ray.cluster_resources()
        num_cpus, num_gpus = resources.get("CPU", 1.0), resources.get("GPU", 0.0)
        if uses_gpus and not num_gpus:
            ray.shutdown()
            raise UserError("Ray found no GPU; leave --device out, or use --device cpu")
        self.num_workers = options.workers or max(1, int(num_gpus if uses_gpus else num_cpus))
        self.threads = options.threads or max(1, int(num_cpus // self.num_workers))
        # With Ray's default of one whole CPU each, two workers and Ray's own processes would not fit on two
        # cores and would wait forever.
        share = min(1.0, math.floor(90 * num_cpus / self.num_workers) / 100)
        gpu_share = min(1.0, math.floor(100 * num_gpus / self.num_workers) / 100) if uses_gpus else 0
        self._actor_options = {
            "num_cpus": share,
            "num_gpus": gpu_share,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def run(
        self, units: Sequence[Sequence[Any]], make_work: Callable[[int], Work]
    ) -> Iterator[tuple[int, list[Row]]]:
        """Yield the number of each finished unit and its rows. `make_work` is called with the thread count.

        An item gets a row with `error` if, on its own, it killed its worker twice or exceeded MAX_SECONDS.
        """
        ray = self._ray
        plans = {number: _plan(len(items)) for number, items in enumerate(units)}
        queue: deque[Task] = deque((number, next(plan)) for number, plan in plans.items())
        idle = list[Any]()
        busy: dict[Any, _Busy] = {}  # keyed by future
        deaths_while_loading = 0
        for _ in range(min(self.num_workers, len(units))):
            self._start_worker(busy, make_work)
        while plans:
            while idle and queue:
                worker, (number, indexes) = idle.pop(), queue.popleft()
                future = worker.work.remote([units[number][index] for index in indexes])
                busy[future] = worker, (number, indexes), _now() + MAX_SECONDS
            first = min(busy, key=lambda future: busy[future][2])
            left = max(0.0, busy[first][2] - _now())
            done, _ = ray.wait(list(busy), num_returns=1, timeout=left)
            future = done[0] if done else first
            worker, task, _ = busy.pop(future)
            outcome: list[Row] | str
            try:
                if not done:
                    ray.kill(worker)
                    raise TimeoutError(TOO_SLOW)
                outcome = ray.get(future)
                idle.append(worker)
                deaths_while_loading = 0 if task is None else deaths_while_loading
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise error.cause from None
                if task is None:
                    raise
                idle.append(worker)
                outcome = f"failed ({type(error.cause).__name__}: {error.cause})"
            except (ray.exceptions.RayError, TimeoutError) as error:
                outcome = "ended its worker" if done else TOO_SLOW
                deaths_while_loading += task is None
                if deaths_while_loading == MAX_DEATHS_WHILE_LOADING:
                    raise UserError(
                        f"workers died {MAX_DEATHS_WHILE_LOADING} times in a row while loading the model, "
                        f"probably for lack of memory; use fewer --workers ({str(error).splitlines()[0]})"
                    ) from None
                self._start_worker(busy, make_work)
            if task is None:
                continue
            try:
                queue.append((task[0], plans[task[0]].send(outcome)))
            except StopIteration as end:
                del plans[task[0]]
                yield task[0], end.value

    def _start_worker(self, busy: dict[Any, _Busy], make_work: Any) -> None:
        worker = self._ray.remote(_Worker).options(**self._actor_options).remote()
        future = worker.load.remote(make_work, self.threads, os.getcwd())
        busy[future] = worker, None, _now() + MAX_SECONDS


def _plan(size: int) -> Generator[list[int], list[Row] | str, list[Row]]:
    """Process a unit as a whole; if that fails, each item alone, and then all that succeeded as a whole.

    Yields the indexes of the items to process now, and receives their rows or the reason why there are none.
    """
    rows, reason = yield from _try(list(range(size)))
    bad: dict[int, Row] = {}
    if not rows and size == 1:
        bad[0] = {"error": f"{reason}; it is left out"}
    elif not rows:
        alone: dict[int, Row] = {}
        for index in range(size):
            found, reason = yield from _try([index])
            alone |= found
            bad |= {} if found else {index: {"error": f"{reason}; it is left out"}}
        if alone:
            rows, _ = yield from _try(list(alone))
        rows = rows or alone  # together they fail although each succeeds alone
    rows |= bad
    return [rows[index] for index in range(size)]


def _try(indexes: list[int]) -> Generator[list[int], list[Row] | str, tuple[dict[int, Row], str]]:
    """Return rows by index, or none and the reason if all attempts fail. A timeout is not tried again."""
    for _ in range(MAX_DEATHS):
        outcome = yield indexes
        if not isinstance(outcome, str):
            return dict(zip(indexes, outcome, strict=True)), ""
        if len(indexes) > 1:
            logger.warning("a unit of %d files %s; trying it again", len(indexes), outcome)
        if outcome == TOO_SLOW:
            return {}, outcome
    return {}, f"{outcome}, {MAX_DEATHS} times"


class _Worker:
    """Worker in a process of Ray."""

    def load(self, make_work: Callable[[int], Work], threads: int, folder: str) -> None:
        try:
            os.chdir(folder)  # paths may be relative to the user's working directory
        except OSError as error:
            raise UserError(
                f"{folder}: cannot open it on {socket.gethostname()} ({error.strerror}); every machine of "
                "a cluster needs the files at the same paths"
            ) from None
        self._work = make_work(threads)

    def work(self, items: Sequence[Any]) -> list[Row]:
        return self._work(items)


_now = time.monotonic


def _reach(address: str) -> None:
    """Fail at once if nothing listens, where Ray would wait for minutes and then end this process."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _import_ray(is_cluster: bool) -> Any:
    # Ray reads these when it is imported. Without them it sends usage statistics, and a pool on one machine
    # listens on the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not is_cluster:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    return import_extra("ray", "a pool of workers", "ray")


def transcribe_on_ray(
    load: Callable[[int], tuple[Recognizer, Request]],
    device: str,
    recordings: Sequence[Recording],
    todo: Sequence[Recording],
    pool: PoolOptions,
) -> Generator[tuple[Recording, Any], None, None]:
    """Transcribe `todo`, but plan units from all `recordings`, so that resuming does not change texts."""
    from asr.transcription.arguments import measure_recording, plan_units

    def make_work(threads: int) -> Work:
        transcriber, request = load(threads)

        def work(unit: Sequence[Recording]) -> list[Row]:
            results = [result for _, result in transcriber.transcribe_events(unit, request)]
            return [{"result": result} for result in results if not isinstance(result, Segment)]

        return work

    names = {recording.name for recording in todo}
    units = [
        [recordings[index] for index in unit] for unit in plan_units([*map(measure_recording, recordings)])
    ]
    left = [unit for unit in units if any(recording.name in names for recording in unit)]
    if not left:
        return
    logger.info("%s of %s to do", plural(len(left), "unit"), f"{len(units):,}")
    with RayPool(pool, device.startswith("cuda")) as workers:
        logger.info("%s, %s each", plural(workers.num_workers, "worker"), plural(workers.threads, "thread"))
        for number, rows in workers.run(left, make_work):
            for recording, row in zip(left[number], rows, strict=True):
                if recording.name in names:
                    yield recording, UserError(row["error"]) if "error" in row else row["result"]
