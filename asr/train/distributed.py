"""Distributed training under torchrun: start, stop, sum and gather. With one process all are no-ops."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from asr.errors import UserError

Result = TypeVar("Result")

BUCKET_BYTES = 25_000_000  # gradients that are sent together
SILENCE_SECONDS = 10  # how far one process may lag behind another on a busy machine
PREPARATION_LIMIT = timedelta(days=1)  # timeout for work that one process does while the others wait


@dataclass(frozen=True)
class Process:
    """The rank of this process, the number of processes, and the device to compute on."""

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup | None = None  # group for exchanging Python objects; None if there is no other

    @property
    def is_main(self) -> bool:
        """True for the process that writes and logs."""
        return self.rank == 0


def start_process(device: str) -> Process:
    """Join the process group that `torchrun` describes, if any. `device` is auto, cpu or cuda."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    use_gpu = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if use_gpu and not torch.cuda.is_available():
        raise UserError(
            "train.device = cuda: PyTorch finds no GPU; set train.device=auto or cpu, or install a driver "
            "and a PyTorch build that match"
        )
    chosen = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    if use_gpu:
        torch.cuda.set_device(chosen)
    if world_size > 1:
        store, rank, _ = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(rendezvous_key(store, rank, world_size), store)
        backend = "nccl" if use_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
        if dist.get_rank():
            logging.getLogger("asr").setLevel(logging.ERROR)
        # A separate group, because another thread may use it while gradients are sent.
        group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PREPARATION_LIMIT))
        return Process(dist.get_rank(), world_size, chosen, group)
    return Process(0, 1, chosen)


def rendezvous_key(store: dist.Store, rank: int, world_size: int) -> str:
    """Return a key that only the processes that are starting now share.

    After a restart, torchrun's store (PyTorch 2.11) still has the addresses of the previous processes, and
    some of the new ones would wait for them.
    """
    key = secrets.token_hex(8)
    if rank > 0:
        store.set(f"asr/start/{rank}", key)
        name = store.get(f"asr/answer/{key}").decode()
        store.set(f"asr/joined/{name}/{rank}", "")
        return name
    waiting = set(range(1, world_size))
    while waiting:
        for other in list(waiting):
            if store.check([f"asr/joined/{key}/{other}"]):
                waiting.remove(other)
            elif store.check([f"asr/start/{other}"]):  # may come from a dead process, which never joins
                store.set(f"asr/answer/{store.get(f'asr/start/{other}').decode()}", key)
        time.sleep(0.02)
    return key


def is_main_process() -> bool:
    """Return True if this process writes and logs. Works before `start_process` too."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def report_error_once(process: Process) -> Iterator[None]:
    """Let a single process report a UserError: the main one, if it raises it.

    torchrun stops all processes when one ends, so the others wait after the same error or a lost connection.
    """
    try:
        yield
    except (UserError, RuntimeError) as error:
        if process.world_size > 1 and not (process.is_main and isinstance(error, UserError)):
            time.sleep(SILENCE_SECONDS if isinstance(error, UserError) else 2 * SILENCE_SECONDS)
        raise


def stop_process() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_processes(values: Iterable[float], process: Process) -> list[float]:
    """Sum each value over all processes, in float64."""
    values = list(values)
    if process.world_size == 1 or not values:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=process.device)
    dist.all_reduce(tensor)
    return list(tensor.tolist())


def gather_over_processes(
    value: Result, process: Process, group: dist.ProcessGroup | None = None
) -> list[Result]:
    """Gather the values of all processes, ordered by rank."""
    if process.world_size == 1:
        return [value]
    gathered = [value] * process.world_size
    dist.all_gather_object(gathered, value, group=group)
    return gathered


class GradientSum:
    """Sums gradients over all processes, sending each bucket while the next ones are computed.

    DistributedDataParallel cannot do this, because it counts backward passes, whose number differs between
    processes when one of them runs out of memory and halves a batch.
    """

    def __init__(self, parameters: Iterable[Tensor], process: Process) -> None:
        self._buckets: list[list[Tensor]] = []
        self._sent: list[tuple[Tensor, dist.Work]] = []
        """Gradients of the buckets sent so far. All processes send buckets in the same order."""
        self._missing: list[set[Tensor]] | None = None
        """Parameters of each bucket that the last backward pass has not reached yet; None in other passes."""
        if process.world_size == 1:
            return
        size = BUCKET_BYTES
        for parameter in reversed(list(parameters)):  # roughly the order in which gradients become ready
            if size + parameter.nbytes > BUCKET_BYTES:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append(parameter)
            size += parameter.nbytes
        self._bucket_of = {p: index for index, bucket in enumerate(self._buckets) for p in bucket}
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._note)

    def begin_pass(self, *, is_last: bool) -> None:
        """Announce a backward pass. In the last one, each bucket is sent as soon as its gradients are ready.

        A pass may be aborted and repeated. Buckets sent before that are complete and are not sent again.
        """
        self._missing = [set(bucket) for bucket in self._buckets] if is_last else None

    def finish(self) -> None:
        """Send the remaining buckets, wait for all, and set the gradient of each parameter to the sum."""
        self._missing = None
        while len(self._sent) < len(self._buckets):
            self._send_next()
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            work.wait()
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.copy_(part.view_as(parameter))
        self._sent = []

    def _note(self, parameter: Tensor) -> None:
        if self._missing is None:
            return
        self._missing[self._bucket_of[parameter]].discard(parameter)
        while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[len(self._sent)]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        work = dist.all_reduce(flat, async_op=True)
        assert work is not None
        self._sent.append((flat, work))


def wait_for_all(process: Process) -> None:
    if process.world_size > 1:
        dist.barrier()


def broadcast_from_main(function: Callable[[], Result], process: Process) -> Result:
    """Call a function in the main process, and return its result, or raise its error, in all processes."""
    if process.group is None:
        return function()
    outcome: list[Any] = [None, None]
    if process.is_main:
        try:
            outcome[0] = function()
        except BaseException as error:  # the others wait for a result, so pass the error on
            dist.broadcast_object_list([None, str(error)], src=0, group=process.group)
            raise
    dist.broadcast_object_list(outcome, src=0, group=process.group)
    if outcome[1] is not None:
        raise UserError(outcome[1])
    return cast(Result, outcome[0])
