"""asr/train/monitor.py: what is logged reaches each tracker, a resumed run goes on there, a failure stops nothing."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import pytest
from training_examples import read_log, run_until_killed

from asr.errors import UserError
from asr.system import RunConfig, TrainConfig
from asr.train import TRACKERS, Trackers, train

TinyRun = Callable[..., RunConfig]
SHORT = ("train.steps=4", "train.log_every=1", "train.validate_every=4", "train.save_every=2")


class Notebook:
    """A tracker that keeps what it is told, and names its runs."""

    runs: dict[str, list[tuple[int, Mapping[str, float]]]]
    closed: int

    def __init__(self, config: RunConfig, start_step: int, run_id: str | None) -> None:
        self.run_id = run_id or f"run-{len(self.runs)}"
        self.runs.setdefault(self.run_id, [])

    def record(self, step: int, values: Mapping[str, float]) -> None:
        self.runs[self.run_id].append((step, values))

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> type[Notebook]:
    Notebook.runs, Notebook.closed = {}, 0
    monkeypatch.setitem(TRACKERS, "wandb", Notebook)
    return Notebook


def test_a_resumed_training_goes_on_in_the_same_run(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notebook: type[Notebook]
) -> None:
    config = tiny_run(*SHORT, "train.loggers=[wandb]")
    run_until_killed(monkeypatch, 3, lambda: train(config))
    train(config)
    assert list(notebook.runs) == ["run-0"] and notebook.closed == 2
    shown = {step: values["train/loss"] for step, values in notebook.runs["run-0"] if "train/loss" in values}
    assert shown == {line["step"]: line["loss"] for line in read_log(tmp_path / "run", "train")}
    assert {"dev/wer", "model/wer"} <= {name for _, values in notebook.runs["run-0"] for name in values}
    assert all(type(value) is float for _, values in notebook.runs["run-0"] for value in values.values())


@pytest.mark.parametrize("where", ["__init__", "record", "close"])
def test_one_that_fails_warns_once_and_stops_nothing(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    notebook: type[Notebook], where: str,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setitem(TRACKERS, "mlflow", type("Failing", (Notebook,), {where: fail}))
    shown = Trackers(tiny_run("train.loggers=[mlflow, wandb]"), 0)
    for step in (1, 2, 3):
        shown.record(step, {"train/loss": 1.0, "train/steps": [1, 2]})
    shown.close()
    (message,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "train.loggers: mlflow failed (ConnectionError: no route to host); training goes on" in message
    assert [(step, dict(values)) for step, values in notebook.runs.popitem()[1]][-1] == (
        3,
        {"train/loss": 1.0},
    )


def test_a_missing_package_is_said_before_the_first_update(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, name in (
        ("torch.utils.tensorboard", "tensorboard"),
        ("wandb", "wandb"),
        ("mlflow", "mlflow"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(
            UserError, match=rf"train\.loggers has {name}, .* pip install 'asr-toolkit\[tracking\]'"
        ):
            train(tiny_run(f"train.loggers=[{name}]"))


def test_every_name_has_its_tracker(tiny_run: TinyRun) -> None:
    (names, _) = get_args(TrainConfig.model_fields["loggers"].annotation)
    assert set(TRACKERS) == set(get_args(names))
    with pytest.raises(UserError, match=r"train\.loggers\.0 = 'comet': expected 'tensorboard'"):
        tiny_run("train.loggers=[comet]")


# --- the packages themselves --------------------------------------------------------------------


def run_twice(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = tiny_run(*SHORT, f"train.loggers=[{name}]")
    run_until_killed(monkeypatch, 3, lambda: train(config))
    train(config)


@pytest.mark.slow
def test_tensorboard(tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="in the extra tracking")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_twice(tiny_run, monkeypatch, "tensorboard")
    shown = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    shown.Reload()
    logged = [(line["step"], line["loss"]) for line in read_log(tmp_path / "run", "train")]
    assert [(event.step, pytest.approx(event.value)) for event in shown.Scalars("train/loss")] == logged


@pytest.mark.slow
def test_wandb(tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="in the extra tracking")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_twice(tiny_run, monkeypatch, "wandb")
    run_id = json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"]
    folders = list((tmp_path / "run" / "wandb").glob(f"offline-run-*-{run_id}"))
    assert folders and len(folders) == len(list((tmp_path / "run" / "wandb").glob("offline-run-*")))


@pytest.mark.slow
def test_mlflow(tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="in the extra tracking")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which the tracker sets by itself
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    run_twice(tiny_run, monkeypatch, "mlflow")
    client = MlflowClient((tmp_path / "run" / "mlruns").as_uri())
    (experiment,) = client.search_experiments(filter_string="name = 'asr'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["train.steps"] == "4"
    shown = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "train/loss")}
    assert shown == {
        line["step"]: pytest.approx(line["loss"]) for line in read_log(tmp_path / "run", "train")
    }
    assert math.isfinite(run.data.metrics["dev/loss"])
