"""Trackers that show a training beside log.jsonl: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from asr.config import describe_config
from asr.errors import UserError
from asr.files import replace_file
from asr.system.run_config import RunConfig

logger = logging.getLogger(__name__)


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
