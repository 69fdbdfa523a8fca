"""The training loop, from the first batch to the averaged model, read from top to bottom."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from asr.batches.loader import translate_worker_errors
from asr.config import find_differences
from asr.errors import UserError, shorten
from asr.families import find_checkpoints
from asr.files import claim_folder, replace_file
from asr.models.layers import Net
from asr.system.checkpoint import (
    BackgroundWriter,
    average_weights,
    copy_tensors,
    dump_state,
    find_commit,
    remove_unfinished,
    save_checkpoint,
    write_checkpoint,
)
from asr.system.run_config import HIGHER_IS_BETTER, RunConfig
from asr.system.system import MODEL_PREFIX, System, load_state, read_tensors
from asr.threads import LoadWatch
from asr.train.dev_scores import compute_dev_scores
from asr.train.distributed import (
    Process,
    gather_over_processes,
    is_main_process,
    report_error_once,
    start_process,
    stop_process,
    sum_over_processes,
    wait_for_all,
)
from asr.train.learner import Learner, Outcome, Precision, choose_precision, keep_freed_memory
from asr.train.monitor import Callback, Monitor, compute_means, read_log, show_progress
from asr.train.preparation import find_last_checkpoint, prepare_system
from asr.train.training_data import TrainingData, hash_data, require_data

logger = logging.getLogger(__name__)

HOPELESS_WER = 0.9
FEW_UPDATES = 50  # a smoke test has fewer and is not expected to learn
MAX_BAD_UPDATES = 20  # updates skipped in a row, because loss or gradient was not finite, before giving up


class Ranked(NamedTuple):
    """A checkpoint and its score on dev, where lower is better; ties go to the lower dev loss."""

    score: float
    step: int
    loss: float
    scores: dict[str, float] | None = None  # all scores; None in checkpoints of older versions

    @property
    def rank(self) -> tuple[float, float, int]:
        return self.score, self.loss, self.step


@dataclass
class TrainingState:
    """Progress of training: everything that a resume needs, except tensors."""

    precision: Precision
    step: int = 0  # updates so far
    epoch: int = 0
    batches_done: int = 0  # batches of this epoch that all processes together have used
    window: tuple[int, int] = (0, 0)
    """The window of shards with the next batch of the epoch, and the number of batches before it."""
    first_world_size: int = 1
    """Processes at the first start, which is the default for train.batches_per_update."""
    data_hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files with utterances and texts that each setting names."""
    needs_validation: bool = False  # validation failed at this update, so the next start repeats it
    bad_updates: int = 0  # updates in a row that were skipped because loss or gradient was not finite
    best: list[Ranked] = field(default_factory=list)  # the best checkpoints, best first
    seconds: float = 0.0  # time spent on updates so far
    audio_seconds: float = 0.0  # audio trained on so far, in all processes
    longest_seconds: float | None = None
    """Duration of the longest training utterance. Transcription splits recordings into no longer segments."""
    threads: int | None = None
    """Threads at the first start, so that a resume adds in the same order; None in older checkpoints."""


@dataclass(frozen=True)
class Run:
    """A completed training."""

    model_dir: Path  # the final model, for `load_model`; its parent is the run directory

    @property
    def metrics(self) -> dict[str, float]:
        """Scores of the final model on the dev set, such as wer, which is a fraction."""
        return dict(load_state(self.model_dir)["dev_scores"])

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of log.jsonl."""
        return read_log(self.model_dir.parent)


def train_model(
    config: RunConfig | str | Path, overrides: Sequence[str] = (), *, callback: Callback | None = None
) -> Run:
    """Train the model that a YAML file describes, or resume its training.

    `overrides` are settings such as `train.steps=100`. `callback` is called in the main process with the
    update and values of each line of log.jsonl. After Ctrl-C or SIGTERM, a checkpoint is written and then
    `KeyboardInterrupt` or `SystemExit(143)` is raised.
    """
    config = config if isinstance(config, RunConfig) else RunConfig.load(config, overrides)
    folder = train(config, callback, draws=True)
    curve = folder.parent / "learning_curve.png"
    if is_main_process() and curve.is_file():
        logger.info("learning curve: %s", curve)
    return Run(folder)


def train(config: RunConfig, callback: Callback | None = None, *, draws: bool = False) -> Path:
    """Train and return the model folder. With `draws`, each validation also draws a learning curve."""
    find_commit()  # now, because the checkout may change during training
    process = start_process(config.train.device)
    try:
        if config.train.threads is not None:
            torch.set_num_threads(config.train.threads)
        if process.device.type == "cpu":
            keep_freed_memory()
        with report_error_once(process), contextlib.ExitStack() as stack:
            if process.is_main:
                require_data(config)
                is_new = not Path(config.output_dir).exists()
                stack.enter_context(claim_folder(config.output_dir))
                if is_new:
                    stack.enter_context(remove_failed_start(Path(config.output_dir)))
                remove_unfinished(Path(config.output_dir))
            stack.enter_context(translate_worker_errors())
            stack.enter_context(show_progress())
            return _train(config, process, callback, draws)
    finally:
        stop_process()


def _train(config: RunConfig, process: Process, callback: Callback | None, draws: bool) -> Path:
    output_dir, settings = Path(config.output_dir), config.train
    torch.manual_seed(config.seed)  # so that all processes start with the same weights
    system = prepare_system(config, process)
    learner, state = start_or_resume(system, process)
    data = TrainingData(system, process, state.first_world_size)
    state.longest_seconds = data.train.longest_seconds
    learner.try_batch(data.train.largest_batch())
    logger.info("%s", describe(system, process))
    monitor = Monitor(system.config, state.step, is_main=process.is_main, callback=callback, draws=draws)
    load = LoadWatch()
    since_log: list[Outcome] = []
    seconds_logged = state.seconds

    def validate() -> None:
        state.needs_validation = True
        try:
            with learner.using_weights():
                scores = compute_dev_scores(system, data.dev.evaluation_batches(), process)
        except UserError:  # keep the updates so far
            save(output_dir, system, learner, state, writer)
            raise
        state.needs_validation = False
        spent = {"audio_hours": state.audio_seconds / 3600, "training_seconds": state.seconds}
        monitor.record(state.step, "dev", scores | spent)
        rank_checkpoint(state, scores, settings.select_by, settings.keep_best)

    with StopSignal(process.is_main) as stop, BackgroundWriter() as writer:
        if state.needs_validation:
            validate()
            save(output_dir, system, learner, state, writer)
        while state.step < settings.steps:
            for batches in data.epoch(state.epoch, state.batches_done, state.window):
                started = time.monotonic()
                outcome = learner.update(batches, state.step)
                state.step += 1
                state.batches_done += data.batches_per_update
                state.window = data.train.find_window(state.batches_done)
                state.seconds += time.monotonic() - started
                state.audio_seconds += outcome.audio_seconds
                state.bad_updates = 0 if outcome.is_finite else state.bad_updates + 1
                if not outcome.is_finite:
                    names = [name for batch in batches for name in batch.ids]
                    names = list(itertools.chain(*gather_over_processes(names, process)))
                    report_bad_update(names, outcome, state)
                since_log.append(outcome)

                is_last = state.step == settings.steps
                if state.step % settings.log_every == 0 or is_last:
                    means = compute_means(since_log, state.seconds - seconds_logged)
                    monitor.record(state.step, "train", {"epoch": state.epoch} | means)
                    since_log, seconds_logged = [], state.seconds
                    if process.device.type == "cpu":
                        load.warn_of_waiting()
                validates = state.step % settings.validate_every == 0 or is_last
                if validates:
                    validate()
                is_stopped, num_skipped = sum_over_processes([stop.number, data.train.num_skipped], process)
                data.train.require_few_skipped(num_skipped)
                if validates or state.step % settings.save_every == 0 or is_stopped:
                    save(output_dir, system, learner, state, writer)
                if is_stopped:
                    wait_for_checkpoint(writer, process)
                    logger.info("stopped and saved at update %d; the same command resumes", state.step)
                    raise KeyboardInterrupt if stop.number == signal.SIGINT else SystemExit(143)
                if is_last:
                    break
            else:
                state.epoch, state.batches_done, state.window = state.epoch + 1, 0, (0, 0)
        wait_for_checkpoint(writer, process)
        stop.restore_interrupt()  # everything is saved, so Ctrl-C may stop at once
        return finish(output_dir, system, learner, data, state, monitor)


@contextlib.contextmanager
def remove_failed_start(folder: Path) -> Iterator[None]:
    """Remove the folder of a new run if it fails before anything is logged or saved."""
    try:
        yield
    except BaseException:
        if not (folder / "log.jsonl").exists() and not find_checkpoints(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise


# --- start and end ------------------------------------------------------------------------------


def start_or_resume(system: System[Net], process: Process) -> tuple[Learner, TrainingState]:
    """Start a new training, or load the last checkpoint after checking that its config is the same."""
    settings = system.config.train
    last = find_last_checkpoint(system.config, process)
    if last is None:
        precision = choose_precision(settings.precision, process)
        learner = Learner(system.model, system.config, process, precision)
        return learner, TrainingState(
            precision,
            first_world_size=process.world_size,
            data_hashes=hash_data(system.config),
            threads=torch.get_num_threads(),
        )
    saved = RunConfig.load(last / "config.yaml")
    stored = load_state(last)
    names = {field.name for field in dataclasses.fields(TrainingState)}
    state = TrainingState(**{name: value for name, value in stored.items() if name in names})
    state.best = [Ranked(*ranked) for ranked in state.best[: settings.keep_best]]
    require_same_training(system.config, saved, state.data_hashes, last)
    if state.threads is not None and settings.threads is None and process.device.type == "cpu":
        torch.set_num_threads(state.threads)
    learner = Learner(system.model, system.config, process, state.precision)
    weights = read_tensors(last / "model.safetensors")
    weights = ((k.removeprefix(MODEL_PREFIX), v) for k, v in weights if k.startswith(MODEL_PREFIX))
    learner.load(weights, read_tensors(last / "training.safetensors"))
    logger.info("resuming from %s", last)
    if settings.steps > saved.train.steps:
        logger.info("train.steps: %d then, %d now", saved.train.steps, settings.steps)
        if saved.optim.schedule == "cosine":
            logger.warning("optim.schedule = cosine is stretched, so the learning rate rises again")
    return learner, state


# Settings that may change when training resumes, because no update depends on them.
FREE_SETTINGS = {
    "output_dir", "data.max_unknown", "batches.num_workers", "train.device", "train.threads",
    "train.log_every", "train.validate_every", "train.save_every",
    "train.keep_best", "train.tensorboard",
}  # fmt: skip


def require_same_training(
    config: RunConfig, saved: RunConfig, data_hashes: dict[str, str], checkpoint: Path
) -> None:
    """Reject data and settings that differ from the first start, if updates depend on them.

    Files may have moved. With other utterances or another order, an epoch could repeat or miss some.
    """
    hashes = hash_data(config)
    if changed := [key for key in hashes | data_hashes if hashes.get(key) != data_hashes.get(key)]:
        raise UserError(
            f"{', '.join(changed)}: the utterances have changed since the training of {checkpoint} started. "
            "Restore them, or start a new training in another output_dir (start_from keeps the weights)"
        )
    free = FREE_SETTINGS | hashes.keys()
    free |= {"train.steps"} if config.train.steps > saved.train.steps else set()
    changed = [
        f"{key}: {shorten(then)} then, {shorten(now)} now"
        for key, (then, now) in find_differences(saved, config).items()
        if key not in free
    ]
    if changed:
        raise UserError(
            f"{checkpoint}: this training was started with other settings ({'; '.join(changed[:5])}). "
            "Resume with the same settings, or start a new training in another output_dir"
        )


def save(
    output_dir: Path, system: System[Net], learner: Learner, state: TrainingState, writer: BackgroundWriter
) -> None:
    """Write a checkpoint in the background, then remove those that are neither the latest nor among the
    best."""
    weights, tensors = learner.state()
    if not learner.process.is_main:
        return
    folder = output_dir / "checkpoints" / step_name(state.step)
    kept = {folder.name} | {step_name(ranked.step) for ranked in state.best}
    writer.wait()  # so that memory holds one copy of the weights at a time
    files, stored = copy_tensors(system, weights, tensors), dataclasses.asdict(state)

    def write() -> None:
        if folder.exists():  # its validation had failed and has now been repeated
            with replace_file(folder / "state.json") as file:
                file.write(dump_state(stored).encode())
        else:
            write_checkpoint(folder, system, stored, files)
        for old in find_checkpoints(output_dir):
            if old.name not in kept:
                shutil.rmtree(old)

    writer.begin(write)


def wait_for_checkpoint(writer: BackgroundWriter, process: Process) -> None:
    """Wait in all processes until the last checkpoint is complete, because one that ends stops the others."""
    writer.wait()
    wait_for_all(process)


def warn_of_nothing_learned(scores: dict[str, float], output_dir: Path) -> None:
    """Warn if the model gets hardly any word right, and suggest what to check."""
    if scores.get("wer", 0.0) < HOPELESS_WER:
        return
    logger.warning(
        "the model has hardly learned anything: WER on dev is %.1f %%. See %s: if the loss is still falling, "
        "train longer; if it never fell, try another optim.learning_rate; if it falls on train only, use "
        "more data. Also check that the texts match the audio (asr align)",
        100 * scores["wer"], output_dir / "learning_curve.png",
    )  # fmt: skip


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def finish(
    output_dir: Path,
    system: System[Net],
    learner: Learner,
    data: TrainingData,
    state: TrainingState,
    monitor: Monitor,
) -> Path:
    """Save the best checkpoint or the average of the best ones, whichever scores better on the dev set.

    With select_by=updates, which does not use the dev set, it is always the average.
    """
    folder, process = output_dir / "model", learner.process
    select_by = system.config.train.select_by
    steps = [ranked.step for ranked in state.best]
    candidates = [steps] if len(steps) == 1 or select_by == "updates" else [steps[:1], steps]
    results = []
    for candidate in candidates:
        weights = average_weights([output_dir / "checkpoints" / step_name(step) for step in candidate])
        scores = state.best[0].scores if len(candidate) == 1 else None
        if scores is None:
            with learner.using_weights(weights):
                scores = compute_dev_scores(system, data.dev.evaluation_batches(), process)
        results.append((rank(scores, select_by, candidate[0]), candidate, scores, weights))
    _, chosen, scores, weights = min(results, key=lambda result: result[0].rank)
    monitor.record(state.step, "model", {"steps": sorted(chosen)} | scores)
    latest = state.best[0]
    if select_by == "updates" and scores["loss"] > latest.loss:
        logger.warning(
            "on dev, the average of the last checkpoints has a loss of %.4g, but update %d has %.4g. Use %s, "
            "and next time a lower train.keep_best or train.validate_every",
            scores["loss"], latest.step, latest.loss, output_dir / "checkpoints" / step_name(latest.step),
        )  # fmt: skip
    if state.step >= FEW_UPDATES:
        warn_of_nothing_learned(scores, output_dir)
    if process.is_main:
        record = dataclasses.asdict(state) | {"averaged_steps": sorted(chosen), "dev_scores": scores}
        save_checkpoint(folder, system, record, weights)
    wait_for_all(process)
    return folder


# --- small parts of the loop --------------------------------------------------------------------


class StopSignal:
    """Catches Ctrl-C and SIGTERM, so that the current update is finished and saved before the process ends.

    A second Ctrl-C stops at once.
    """

    def __init__(self, is_main: bool) -> None:
        self.number = 0
        self._is_main = is_main
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        # Python allows signal handlers only in the main thread, so training in another thread has none.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # ignored if another process handles Ctrl-C
                    self._before[number] = signal.signal(number, self._note)
        return self

    def restore_interrupt(self) -> None:
        if signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.restore_interrupt()
        if number == signal.SIGINT and self._is_main:
            os.write(2, b"\nsaving after this update; Ctrl-C again stops at once\n")


def report_bad_update(names: list[str], outcome: Outcome, state: TrainingState) -> None:
    is_overflow = state.precision == "fp16" and math.isfinite(outcome.sums.get("total", 0.0))
    logger.log(
        logging.INFO if is_overflow else logging.WARNING,  # in fp16, overflows are part of finding the scale
        "update %d skipped: loss %s, gradient norm %s; utterances: %s",
        state.step, outcome.sums.get("total"), outcome.gradient_norm, " ".join(names),
    )  # fmt: skip
    if state.bad_updates >= MAX_BAD_UPDATES:
        raise UserError(
            f"loss or gradient was not finite in {MAX_BAD_UPDATES} updates in a row; the log lists their "
            "utterances. Lower optim.learning_rate, or set train.precision=float32"
        )


def rank_checkpoint(state: TrainingState, scores: dict[str, float], select_by: str, keep_best: int) -> None:
    """Insert the checkpoint of this update into the list of the best ones."""
    ranked = sorted([*state.best, rank(scores, select_by, state.step)], key=lambda one: one.rank)
    state.best = ranked[:keep_best]


def rank(scores: dict[str, float], select_by: str, step: int) -> Ranked:
    """Build the rank of a checkpoint, negating a score where higher is better so that the lowest is best."""
    value = (scores | {"updates": step})[select_by]
    score = -value if select_by in HIGHER_IS_BETTER else value
    # NaN counts as the worst score. It has no order, so sorting would not move it.
    score, loss = (math.inf if math.isnan(number) else number for number in (score, scores["loss"]))
    return Ranked(score, step, loss, scores)


def describe(system: System[Net], process: Process) -> str:
    count = sum(parameter.numel() for parameter in system.model.parameters())
    name = torch.cuda.get_device_name(process.device) if process.device.type == "cuda" else "CPU"
    size = f"{count / 1e6:.1f}M" if count >= 100_000 else f"{count:,}"
    return f"{size} parameters, {len(system.tokenizer)} tokens, on {process.world_size} x {name}"
