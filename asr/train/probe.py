"""The largest batches that memory holds, found by trying: `asr train CONF --probe`."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from asr.batches.builder import Batch
from asr.batches.order import WHOLE
from asr.errors import UserError
from asr.files import claim_folder
from asr.models import Model, build_model
from asr.system.checkpoint import System
from asr.system.run_config import RunConfig
from asr.train.distributed import Process, start_process
from asr.train.learner import Learner, Precision, choose_precision, is_out_of_memory, set_up
from asr.train.preparation import TrainingData, build_audio_loaders, prepare_system

NUM_BUCKETS = 4  # each up to half the length of the one before
NUM_REAL = 8  # the longest utterances of a bucket are repeated to fill a batch
MAX_UTTERANCES = 4096  # no batch gains by more
SHARE = 0.8  # of the free memory: other batches have longer texts, and memory goes to pieces in time


@dataclass(frozen=True)
class Fit:
    """Number of utterances of a length that make a batch which fits."""

    length: float
    """In seconds; in tokens where there is no audio."""
    count: int

    @property
    def size(self) -> int:
        """As batches.max_seconds and batches.max_tokens limit it."""
        return math.floor(self.length * self.count)


def probe(config: RunConfig, gigabytes: float | None = None) -> str:
    """Try batches of several lengths forwards and backwards; returns lines for the YAML file of the run.

    `gigabytes`: memory for all that training needs; None: most of what is free.
    """
    process = start_process(config.train.device)
    if process.world_size > 1:
        raise UserError("--probe finds the batches of one process; run it without torchrun")
    if gigabytes is None:
        gigabytes = SHARE * count_free_bytes(process.device) / 1e9
    with claim_folder(config.output_dir):
        system = prepare_system(config, process)
        memory = MemoryLimit(process.device, gigabytes * 1e9)
        trainee = Trainee(
            system.config, len(system.tokenizer), choose_precision(config.train.precision, process), memory
        )
        data = TrainingData(system, process)
        fits, most = [], min(MAX_UTTERANCES, data.num_utterances)
        for batch in longest_batches(system, data):
            length = batch.padded_size / len(batch)
            if config.model.reads_audio:
                length *= config.features.shift_ms / 1000
            fits.append(Fit(length, find_largest(partial(fits_in_process, trainee, batch), most)))
    return describe(fits, most, config, f"{gigabytes:.1f} GB of {process.device.type}")


def longest_batches(system: System[Model], data: TrainingData) -> Iterator[Batch]:
    """Batches of the longest utterances of each bucket, the longest bucket first."""
    config, longest = system.config, data.longest_seconds
    if longest is None:
        yield data.largest_batch()
        return
    for length in (longest / 2**index for index in range(NUM_BUCKETS)):
        if length <= config.batches.min_seconds:
            return
        own = {"max_utterance_seconds": length, "max_seconds": 100 * NUM_REAL * length, "max_padding": 1.0}
        batches = config.batches.model_copy(update=own | {"max_utterances": NUM_REAL, "num_workers": 0})
        part = replace(system, config=config.model_copy(update={"batches": batches}))
        try:
            yield build_audio_loaders(part, WHOLE)[0].largest_batch()
        except UserError:  # none is so short
            return


@dataclass(frozen=True)
class MemoryLimit:
    """Memory that training may take on a device."""

    device: torch.device
    num_bytes: float

    def impose(self) -> None:
        """Let this process take so much more memory, and not more."""
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(self.num_bytes / total, 1.0), self.device)
            return
        taken = _read_bytes("/proc/self/status", "VmData") or 0
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (int(taken + self.num_bytes), most))


@dataclass(frozen=True)
class Trainee:
    """All that the learner of a run is built from; its weights may be any."""

    config: RunConfig
    num_tokens: int
    precision: Precision
    memory: MemoryLimit

    def fits(self, batch: Batch, count: int) -> bool:
        """Try an update of a batch of so many utterances, those of `batch` again and again."""
        lengths = list(zip(batch.feature_lengths_B.tolist(), batch.token_lengths_B.tolist(), strict=True))
        rows = sorted(range(len(batch)), key=lengths.__getitem__, reverse=True)
        process = Process(0, 1, self.memory.device)
        set_up(self.config, process)
        self.memory.impose()
        try:
            model = build_model(self.config.model, self.config.features.num_features, self.num_tokens)
            learner = Learner(model, self.config, process, self.precision)
            one = batch.take(rows[:1])
            learner.try_whole(one)
            learner.update([one], 0)  # moments take memory too
            learner.try_whole(batch.take([rows[index % len(rows)] for index in range(count)]))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True


def fits_in_process(trainee: Trainee, batch: Batch, count: int) -> bool:
    """Try a batch in a process of its own: what an attempt leaves behind would be in the way of the next."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # which the first optimizer would load
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report_fit, args=(sender, trainee, batch, count), daemon=True)
    process.start()
    sender.close()
    try:
        return bool(receiver.recv())
    except EOFError:
        process.join()
        if process.exitcode is not None and process.exitcode < 0:  # ended by the system for want of memory
            return False
        raise UserError("--probe: the attempt above failed for another reason than memory") from None
    except BaseException:  # Ctrl-C: an attempt may take minutes
        process.kill()
        raise
    finally:
        process.join()


def _report_fit(sender: Connection, trainee: Trainee, batch: Batch, count: int) -> None:
    sender.send(trainee.fits(batch, count))


def find_largest(fits: Callable[[int], bool], most: int = MAX_UTTERANCES) -> int:
    """Find the largest count that fits, to a sixteenth: doubled until it does not, then halved between."""
    good, bad = 0, 1
    while good < most and fits(bad):
        good, bad = bad, min(2 * bad, most)
    while bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def describe(fits: list[Fit], most: int, config: RunConfig, memory: str) -> str:
    """The lines: what was found as comments, then settings with which every batch fits."""
    unit, key = ("s", "max_seconds") if config.model.reads_audio else ("tokens", "max_tokens")
    if not fits[0].count:
        raise UserError(
            f"an utterance of {fits[0].length:.1f} {unit} alone does not fit in {memory}: lower "
            "batches.max_utterance_seconds (max_tokens for text), or take a smaller model"
        )
    found = [f"#   {fit.length:.1f} {unit} each: {fit.count} utterances, {fit.size} {unit}" for fit in fits]
    limited = [fit.size for fit in fits if fit.count < most] or [max(fit.size for fit in fits)]
    settings: dict[str, float] = {key: min(limited), "max_utterances": max(fit.count for fit in fits)}
    if settings[key] < config.batches.max_utterance_seconds and unit == "s":
        settings["max_utterance_seconds"] = math.ceil(10 * fits[0].length) / 10
    lines = [f"# the largest batches in {memory}:", *found, "batches:"]
    return "\n".join([*lines, *(f"  {name}: {value}" for name, value in settings.items())])


def count_free_bytes(device: torch.device) -> int:
    """Memory that a device has left."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if (free := _read_bytes("/proc/meminfo", "MemAvailable")) is None:
        raise UserError("this system does not tell how much memory is free; say how much to use: --memory GB")
    return free


def _read_bytes(path: str, name: str) -> int | None:
    with contextlib.suppress(OSError):
        if found := re.search(rf"{name}:\s+(\d+) kB", Path(path).read_text()):
            return 1024 * int(found[1])
    return None
