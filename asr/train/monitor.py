"""Progress of a training: bar with ETA, log.jsonl, trackers, the learning curve."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

from asr.config import describe_config
from asr.errors import UserError
from asr.evaluation.plots import draw_learning_curve
from asr.files import replace_file
from asr.models.losses import name_means
from asr.system.run_config import RunConfig
from asr.train.learner import Outcome

logger = logging.getLogger(__name__)

LINES = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")


@contextlib.contextmanager
def show_progress() -> Iterator[None]:
    """Send log lines to standard error within the block, also where a program has set up no logging."""
    logger = logging.getLogger("asr")
    if logger.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(LINES)
    logger.addHandler(handler)
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class Monitor:
    """Writes numbers to log.jsonl, to the terminal and to the trackers.

    Silent in all processes but the main one.
    """

    def __init__(self, config: RunConfig, start_step: int, *, is_main: bool) -> None:
        self.is_main = is_main
        self._path = Path(config.output_dir) / "log.jsonl"
        self._bar: tqdm[Any] | None = None
        self._trackers: Trackers | None = None
        if not is_main:
            return
        _forget_after(self._path, start_step)
        # None: a bar on a terminal only. Elsewhere the log lines show progress.
        self._bar = tqdm(
            total=config.train.steps, initial=start_step, unit=" updates", dynamic_ncols=True, disable=None
        )
        self._trackers = Trackers(config, start_step)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._trackers is not None:
            self._trackers.close()

    def advance(self) -> None:
        """Count one update."""
        if self._bar is not None:
            self._bar.update()

    def record(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """Write one line of log.jsonl; `kind` is train, dev, or the name of an event."""
        if not self.is_main:
            return
        line = {"step": step, "kind": kind, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")} | dict(values)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        shown = ", ".join(f"{name} {_format(name, value)}" for name, value in values.items())
        self.say(f"{kind} {step}: {shown}")
        if self._trackers is not None:
            self._trackers.record(step, {f"{kind}/{name}": value for name, value in values.items()})

    def say(self, message: str) -> None:
        """Write a line to standard error without breaking the bar."""
        if self._bar is not None and not self._bar.disable:
            record = logging.LogRecord(__name__, logging.INFO, "", 0, message, None, None)
            self._bar.write(LINES.format(record), file=self._bar.fp)
        elif self.is_main:
            logger.info("%s", message)


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


def draw_log(output_dir: Path, select_by: str) -> None:
    """Draw learning_curve.png from log.jsonl: loss, WER, and the score that chooses checkpoints."""
    path = output_dir / "learning_curve.png"
    text = (output_dir / "log.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    train, dev = ([line for line in lines if line["kind"] == kind] for kind in ("train", "dev"))
    panels = {"loss": {"train": train, "dev": dev}}
    for score in dict.fromkeys(("wer", select_by)):
        if score != "loss" and any(score in line for line in dev):
            panels[score] = {"dev": dev}
    curves = {
        name: {
            split: [(line["step"], line[name]) for line in found if name in line]
            for split, found in parts.items()
        }
        for name, parts in panels.items()
    }
    try:
        draw_learning_curve(path, curves)
    except UserError as error:
        logger.warning("%s", error)  # the training is done nonetheless
    else:
        logger.info("learning curve: %s", path)


def _format(name: str, value: Any) -> str:
    if name.startswith(("wer", "cer")):
        return f"{100 * value:.4g} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _forget_after(path: Path, step: int) -> None:
    """Drop the lines that are made again: of updates after the last checkpoint, and of the end."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the last line of a killed process may be cut
        if record["step"] <= step and record["kind"] != "model":
            kept.append(line + "\n")
    with replace_file(path) as file:
        file.write("".join(kept).encode())


# --- trackers -----------------------------------------------------------------------------------


class Tracker(Protocol):
    """One that shows a run. Built with (config, updates so far, run_id of before or None)."""

    run_id: str | None
    """Its own name of the run, by which a resumed training goes on with it; None: it needs none."""

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Show values, whose names begin with train/, dev/ or model/."""

    def close(self) -> None: ...


class TensorBoard:
    """Files in the folder `tensorboard` of the run."""

    run_id: str | None = None

    def __init__(self, config: RunConfig, start_step: int, run_id: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(config.output_dir) / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=start_step + 1)

    def record(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Weights & Biases, set up by its own variables: WANDB_PROJECT, WANDB_MODE and others."""

    def __init__(self, config: RunConfig, start_step: int, run_id: str | None) -> None:
        import wandb

        folder = Path(config.output_dir)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "asr"),
            name=folder.name,
            dir=folder,
            id=run_id,
            resume="allow",
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(console="off"),
        )
        self.run_id = self._run.id
        self._run.define_metric(
            "*", step_metric="update"
        )  # its own steps never go back, as a resumed run does

    def record(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"update": step, **values})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """The server of MLFLOW_TRACKING_URI, else the folder `mlruns` of the run."""

    def __init__(self, config: RunConfig, start_step: int, run_id: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        folder = Path(config.output_dir)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "asr")
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            address = (folder / "mlruns").absolute().as_uri()
            os.environ.setdefault(
                "MLFLOW_ALLOW_FILE_STORE", "true"
            )  # it advises databases, which need more packages
        self._client = MlflowClient(address)
        if run_id is None:
            found = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if found is None else found.experiment_id
            run_id = self._client.create_run(experiment, run_name=folder.name).info.run_id
            settings = [Param(key, str(value)) for key, value, _ in describe_config(config)]
            for start in range(0, len(settings), 100):  # as many as a message may have
                self._client.log_batch(run_id, params=settings[start : start + 100])
        self._client.update_run(run_id, status="RUNNING")
        self.run_id = run_id

    def record(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(
            self.run_id, [Metric(name, value, now, step) for name, value in values.items()]
        )

    def close(self) -> None:
        self._client.set_terminated(self.run_id)


TRACKERS: dict[str, Callable[[RunConfig, int, str | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
}


class Trackers:
    """Trackers of a run. One that fails is left out from then on, with a warning: training goes on."""

    def __init__(self, config: RunConfig, start_step: int) -> None:
        self._trackers: dict[str, Tracker] = {}
        path = Path(config.output_dir) / "trackers.json"
        run_ids: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

        for name in config.train.loggers:
            with self._going_on_without(name):
                tracker = self._trackers[name] = TRACKERS[name](config, start_step, run_ids.get(name))
                if tracker.run_id is not None:
                    run_ids[name] = tracker.run_id
        if run_ids:
            with replace_file(path) as file:
                file.write(json.dumps(run_ids).encode())

    def record(self, step: int, values: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, (int, float))}
        for name, tracker in list(self._trackers.items()):
            with self._going_on_without(name):
                tracker.record(step, numbers)

    def close(self) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._going_on_without(name):
                tracker.close()

    @contextlib.contextmanager
    def _going_on_without(self, name: str) -> Iterator[None]:
        try:
            yield
        except ModuleNotFoundError as error:
            raise UserError(
                f"train.loggers has {name}, whose package is not installed ({error}): "
                "pip install 'asr-toolkit[tracking]', or remove it"
            ) from None
        except Exception as error:
            self._trackers.pop(name, None)
            logger.warning(
                "train.loggers: %s failed (%s: %s); training goes on without it, log.jsonl has everything",
                name, type(error).__name__, error,
            )  # fmt: skip
