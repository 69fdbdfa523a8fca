"""The training loop, from the first batch to the averaged model, read from top to bottom."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from asr.batches import explain_dead_workers
from asr.checkout import find_commit
from asr.checkpoint import (
    MODEL_PREFIX,
    System,
    average_weights,
    find_checkpoints,
    load_state,
    load_tensors,
    save_checkpoint,
)
from asr.config import describe_config
from asr.errors import UserError
from asr.files import claim_folder
from asr.models import Model
from asr.models.model import name_means
from asr.run import HIGHER_IS_BETTER, RunConfig
from asr.train.distributed import Process, start_process, stop_process, sum_over_processes, wait_for_all
from asr.train.evaluation import compute_dev_scores, plot_dev_attention
from asr.train.learner import Learner, Outcome, Precision, choose_precision
from asr.train.monitor import Monitor
from asr.train.preparation import TrainingData, prepare_system

logger = logging.getLogger(__name__)


@dataclass
class TrainingState:
    """How far training has come. All that a resume needs, beside the tensors."""

    precision: Precision
    step: int = 0
    """Updates so far."""
    epoch: int = 0
    batches_done: int = 0
    """Of this epoch, by each process."""
    bad_updates: int = 0
    """In a row, skipped because loss or gradient was not finite."""
    validations_without_gain: int = 0
    best: list[tuple[float, int]] = field(default_factory=list)
    """(score, step) of the best checkpoints, the best first; the lower the better."""
    seconds: float = 0.0
    """Spent on updates so far."""
    audio_seconds: float = 0.0
    """Heard so far, by all processes."""
    longest_seconds: float | None = None
    """Of the utterances to learn from: recordings are cut to such lengths when they are transcribed."""
    scaler: dict[str, float] = field(default_factory=dict)
    """Of the gradients, with fp16."""


def train(config: RunConfig) -> Path:
    """Train what the config describes, or go on where it was cut off; returns the folder of the result.

    Raises `SystemExit(143)` after SIGTERM, once a checkpoint is written.
    """
    find_commit()  # of now, whatever becomes of the checkout
    process = start_process(config.train.device)
    try:
        if config.train.threads is not None:
            torch.set_num_threads(config.train.threads)
        with contextlib.ExitStack() as stack:
            if process.is_main:
                stack.enter_context(claim_folder(config.output_dir))
            stack.enter_context(explain_dead_workers())
            return _train(config, process)
    finally:
        stop_process()


def _train(config: RunConfig, process: Process) -> Path:
    output_dir, settings = Path(config.output_dir), config.train
    torch.manual_seed(config.seed)  # the same first weights in all processes
    system = prepare_system(config, process)
    data = TrainingData(system, process)
    learner, state = start_or_resume(system, process, output_dir)
    state.longest_seconds = data.longest_seconds
    seconds = learner.try_batch(data.largest_batch())
    logger.info("%s; the largest batch takes %.2f s", describe(system, process), seconds)
    log = Averages()

    with (
        Monitor(output_dir, state.step, settings, is_main=process.is_main) as monitor,
        TerminationSignal() as termination,
    ):
        while state.step < settings.steps and not has_stalled(state, settings.patience):
            for batches in data.epoch(state.epoch, state.batches_done):
                started = time.monotonic()
                outcome = learner.update(batches, state.step)
                state.step += 1
                state.batches_done += len(batches)
                state.seconds += time.monotonic() - started
                state.audio_seconds += outcome.audio_seconds
                state.bad_updates = 0 if outcome.is_finite else state.bad_updates + 1
                if not outcome.is_finite:
                    report_bad_update(batches, outcome, state, settings.max_bad_updates)
                log.add(outcome, time.monotonic() - started)
                monitor.advance()

                is_last = state.step == settings.steps
                if state.step % settings.log_every == 0 or is_last:
                    monitor.record(state.step, "train", {"epoch": state.epoch} | log.take())
                if (
                    settings.plot_every is not None
                    and state.step % settings.plot_every == 0
                    and process.is_main
                ):
                    with learner.weights_to_use():
                        folder = output_dir / "attention" / f"step-{state.step:08d}"
                        plot_dev_attention(system, data.batch_to_plot(), folder, process)
                validates = state.step % settings.validate_every == 0 or is_last
                if validates:
                    with learner.weights_to_use():
                        scores = compute_dev_scores(system, data.dev_batches(), process)
                    heard = {"audio_hours": state.audio_seconds / 3600, "training_seconds": state.seconds}
                    monitor.record(state.step, "dev", scores | heard)
                    note_score(state, scores, settings.select_by, settings.keep_best)
                is_asked = sum_over_processes([termination.is_asked], process)[0] > 0
                if validates or state.step % settings.save_every == 0 or is_asked:
                    save(output_dir, system, learner, state)
                if is_asked:
                    monitor.say(f"stopped at update {state.step}; the same command goes on from there")
                    raise SystemExit(143)
                if is_last or (validates and has_stalled(state, settings.patience)):
                    break
            else:
                state.epoch, state.batches_done = state.epoch + 1, 0
        return finish(output_dir, system, data, state, monitor, process)


# --- start and end ------------------------------------------------------------------------------


def start_or_resume(
    system: System[Model], process: Process, output_dir: Path
) -> tuple[Learner, TrainingState]:
    """A fresh start, or the last checkpoint of the same config."""
    settings = system.config.train
    system.model.to(process.device)
    checkpoints = find_checkpoints(output_dir)
    if not checkpoints:
        precision = choose_precision(settings.precision, process)
        learner = Learner(system.model, system.config, process, precision)
        return learner, TrainingState(precision=precision)
    last = checkpoints[-1]
    require_same_config(system.config, last)
    stored = load_state(last)
    names = {field.name for field in dataclasses.fields(TrainingState)}
    fields = {name: value for name, value in stored.items() if name in names}
    state = TrainingState(**fields | {"best": [(score, step) for score, step in fields["best"]]})
    learner = Learner(system.model, system.config, process, state.precision)
    weights = load_tensors(last / "model.safetensors")
    weights = {k.removeprefix(MODEL_PREFIX): v for k, v in weights.items() if k.startswith(MODEL_PREFIX)}
    learner.load(weights, load_tensors(last / "training.safetensors"), state.scaler)
    logger.info("going on from %s", last)
    return learner, state


def require_same_config(config: RunConfig, checkpoint: Path) -> None:
    """Only what does not change the numbers may differ from what a training was started with."""
    free = ("train.device", "train.threads", "train.tensorboard", "train.log_every", "batches.num_workers")
    stored = {key: value for key, value, _ in describe_config(RunConfig.load(checkpoint / "config.yaml"))}
    current = {key: value for key, value, _ in describe_config(config)}
    changed = [
        f"{key}: {stored.get(key)!r} then, {current.get(key)!r} now"
        for key in current | stored
        if key not in free and stored.get(key) != current.get(key)
    ]
    if changed:
        raise UserError(
            f"{checkpoint}: this training was started with other settings ({'; '.join(changed[:5])}). "
            "Go on with those, or start afresh in another output_dir"
        )


def save(output_dir: Path, system: System[Model], learner: Learner, state: TrainingState) -> None:
    """Write the checkpoint of this update, then drop those that are neither the last nor among the best."""
    tensors, state.scaler = learner.state()
    if learner.process.is_main:
        folder = output_dir / "checkpoints" / step_name(state.step)
        if not folder.exists():
            weights = None if learner.average is None else learner.average.weights
            save_checkpoint(folder, system, dataclasses.asdict(state), weights, tensors)
        kept = {folder.name} | {step_name(step) for _, step in state.best}
        for old in find_checkpoints(output_dir):
            if old.name not in kept:
                shutil.rmtree(old)
    wait_for_all(learner.process)


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def finish(
    output_dir: Path,
    system: System[Model],
    data: TrainingData,
    state: TrainingState,
    monitor: Monitor,
    process: Process,
) -> Path:
    """The best checkpoint or the average of the best, whichever does better on the dev set.

    Where the dev set has no say, it is the average.
    """
    folder = output_dir / "model"
    select_by = system.config.train.select_by
    steps = [step for _, step in state.best]
    candidates = [steps] if len(steps) == 1 or select_by == "updates" else [steps[:1], steps]
    results = []
    for candidate in candidates:
        weights = average_weights([output_dir / "checkpoints" / step_name(step) for step in candidate])
        system.model.load_state_dict(weights)
        scores = compute_dev_scores(system, data.dev_batches(), process)
        results.append((loss_of(scores, select_by, candidate[0]), candidate, scores, weights))
    _, chosen, scores, weights = min(results, key=lambda result: result[0])
    monitor.record(state.step, "model", {"steps": sorted(chosen)} | scores)
    if process.is_main:
        record = dataclasses.asdict(state) | {"averaged_steps": sorted(chosen), "dev_scores": scores}
        save_checkpoint(folder, system, record, weights)
    wait_for_all(process)
    return folder


# --- small parts of the loop --------------------------------------------------------------------


class TerminationSignal:
    """Notes SIGTERM, so that the update in progress is finished and saved before the process ends."""

    def __init__(self) -> None:
        self.is_asked = False

    def __enter__(self) -> TerminationSignal:
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True


class Averages:
    """Means over the updates since the last line of the log."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []
        self._seconds = 0.0

    def add(self, outcome: Outcome, seconds: float) -> None:
        self._outcomes.append(outcome)
        self._seconds += seconds

    def take(self) -> dict[str, float]:
        outcomes, seconds = self._outcomes, self._seconds
        self._outcomes, self._seconds = [], 0.0
        finite = [outcome for outcome in outcomes if outcome.is_finite]
        tokens = max(sum(outcome.num_tokens for outcome in finite), 1.0)
        sums: Counter[str] = Counter()
        for outcome in finite:
            sums.update(outcome.sums)
        values = name_means({name: total / tokens for name, total in sums.items()})
        audio_seconds = sum(outcome.audio_seconds for outcome in outcomes)
        speed = {
            "tokens_per_second": tokens / max(seconds, 1e-9),
            "audio_seconds_per_second": audio_seconds / max(seconds, 1e-9),
        }
        return values | {
            "learning_rate": outcomes[-1].learning_rate,
            "gradient_norm": sum(outcome.gradient_norm for outcome in finite) / max(len(finite), 1),
            "skipped_updates": len(outcomes) - len(finite),
            **{name: value for name, value in speed.items() if audio_seconds or name == "tokens_per_second"},
        }


def report_bad_update(batches: list[Any], outcome: Outcome, state: TrainingState, limit: int) -> None:
    names = [name for batch in batches for name in batch.ids]
    logger.warning(
        "update %d skipped: loss %s, gradient norm %s; utterances: %s",
        state.step, outcome.sums.get("total"), outcome.gradient_norm, " ".join(names),
    )  # fmt: skip
    if state.bad_updates >= limit:
        raise UserError(
            f"{limit} updates in a row had no finite loss or gradient (train.max_bad_updates); "
            "the log names their utterances. Lower optim.learning_rate, or set train.precision=float32"
        )


def note_score(state: TrainingState, scores: dict[str, float], select_by: str, keep_best: int) -> None:
    ranked = sorted([*state.best, (loss_of(scores, select_by, state.step), state.step)])
    is_gain = ranked[0][1] == state.step
    state.validations_without_gain = 0 if is_gain else state.validations_without_gain + 1
    state.best = ranked[:keep_best]


def loss_of(scores: dict[str, float], select_by: str, step: int) -> float:
    """The lower the better, whatever the measure."""
    value = (scores | {"updates": step})[select_by]
    return -value if select_by in HIGHER_IS_BETTER else value


def has_stalled(state: TrainingState, patience: int | None) -> bool:
    return patience is not None and state.validations_without_gain >= patience


def describe(system: System[Model], process: Process) -> str:
    count = sum(parameter.numel() for parameter in system.model.parameters())
    name = (
        torch.cuda.get_device_name(process.device)
        if process.device.type == "cuda"
        else (f"CPU with {torch.get_num_threads()} threads")
    )
    return f"{count / 1e6:.1f}M parameters, {len(system.tokenizer)} tokens, on {process.world_size} x {name}"
