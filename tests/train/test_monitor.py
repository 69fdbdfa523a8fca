"""asr/train/monitor.py: log, learning curve, TensorBoard and callback."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from training_examples import TinyRun, read_log, run_until_killed

from asr.cli import main
from asr.errors import UserError
from asr.system.run_config import RunConfig, TrainConfig
from asr.train import loop, monitor
from asr.train.learner import Outcome
from asr.train.loop import train, train_model

SHORT = ("train.steps=4", "train.log_every=1", "train.validate_every=4", "train.save_every=2")
DRAW = monitor.draw_learning_curve


@pytest.fixture(autouse=True)
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "draw_learning_curve", lambda path, panels: None)


def test_lines_have_the_time(tiny_run: TinyRun, tmp_path: Path) -> None:
    tiny_run()
    logging.getLogger().handlers, before = (
        [logging.StreamHandler(stream := io.StringIO())],
        (logging.getLogger().handlers),
    )
    try:
        main(["train", str(tmp_path / "run.yaml"), "train.steps=1"])
    finally:
        logging.getLogger().handlers = before
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d optim.warmup_steps", stream.getvalue(), re.MULTILINE)
    assert all("T" in line["time"] for line in read_log(tmp_path / "run", "dev"))


@pytest.mark.parametrize(
    ("scores", "shown"),
    [
        ({"wer": 0.2, "cer": 0.1, "wer_decoder": 0.2, "cer_decoder": 0.1, "wer_ctc": 0.3}, "wer wer_ctc cer"),
        ({"wer": 0.2, "cer": 0.1, "wer_ctc": 0.2, "cer_ctc": 0.1, "loss": 1.5}, "loss wer cer"),
        ({"accuracy": 0.5}, "accuracy"),
    ],
)
def test_no_rate_is_logged_twice(
    scores: dict[str, float], shown: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """log.jsonl still has all of them."""
    config = RunConfig.model_construct(
        output_dir=str(tmp_path), train=TrainConfig.model_construct(steps=2, tensorboard=False)
    )
    caplog.set_level(logging.INFO)
    monitor.Monitor(config, 0, is_main=True).record(2, "dev", scores)
    (message,) = caplog.messages
    assert {part.split()[0] for part in message.removeprefix("dev 2/2: ").split(", ")} == {*shown.split()}
    assert read_log(tmp_path, "dev")[0].items() >= scores.items()


@pytest.mark.parametrize(
    ("minutes", "shown"), [(10, "30 min"), (19.8, "59 min"), (20, "1 h 0 min"), (45, "2 h 15 min")]
)
def test_the_time_left_is_logged(
    minutes: float,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It assumes the mean time of updates since the start or resume, here of one, for the four that are left."""
    config = RunConfig.model_construct(
        output_dir=str(tmp_path), train=TrainConfig.model_construct(steps=9, tensorboard=False)
    )
    caplog.set_level(logging.INFO)
    started = monitor.Monitor(config, 5, is_main=True)
    now = time.monotonic() + 60 * minutes
    monkeypatch.setattr(time, "monotonic", lambda: now)
    started.record(6, "train", {"loss": 1.0})
    started.record(9, "train", {"loss": 1.0})
    assert caplog.messages == [f"train 6/9, {shown} left: loss 1", "train 9/9: loss 1"]


def test_log_describes_the_progress(tiny_run: TinyRun, tmp_path: Path) -> None:
    started = time.monotonic()
    train(tiny_run("train.steps=6", "train.validate_every=2"))
    lines = read_log(tmp_path / "run", "train")
    assert [line["step"] for line in lines] == [2, 4, 6]
    for name in ("loss", "ctc", "cross_entropy", "guided_attention", "token_accuracy",
                 "learning_rate", "gradient_norm", "audio_seconds_per_second"):  # fmt: skip
        assert math.isfinite(lines[0][name]), name
    first, second, third = read_log(tmp_path / "run", "dev")
    assert {"loss", "wer", "cer", "wer_ctc", "wer_decoder"} <= first.keys()
    assert 0 < first["audio_hours"] < second["audio_hours"] < 0.1
    assert 0 < first["training_seconds"] < second["training_seconds"] < time.monotonic() - started
    for before, after, line in ((first, second, lines[1]), (second, third, lines[2])):
        hours = after["audio_hours"] - before["audio_hours"]
        seconds = after["training_seconds"] - before["training_seconds"]
        assert line["audio_seconds_per_second"] == pytest.approx(3600 * hours / seconds, rel=1e-3)


def test_from_python_progress_is_shown(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the program has set up no logging, unlike pytest."""
    monkeypatch.setattr(logging.getLogger("asr"), "propagate", False)
    tiny_run()
    done = train_model(tmp_path / "run.yaml", ["train.steps=2"])
    shown = capsys.readouterr().err
    assert done.model_dir == tmp_path / "run" / "model"
    assert "train 2/2: epoch 0, loss" in shown and "dev 2/2: " in shown
    assert done.log[-1]["kind"] == "model" and done.log[-1]["wer"] == done.metrics["wer"]
    assert {line["kind"] for line in done.log} == {"train", "dev", "model"}
    assert not logging.getLogger("asr").handlers and logging.getLogger("asr").level == logging.NOTSET


def test_the_learning_curve_shows_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [("train", 1, {"loss": 3.0}), ("train", 2, {"loss": 2.0}), ("dev", 2, {"loss": 2.5, "wer": 0.5})]
    text = "".join(json.dumps({"step": step, "kind": kind} | values) + "\n" for kind, step, values in lines)
    (tmp_path / "log.jsonl").write_text(text)
    drawn: list[Any] = []
    monkeypatch.setattr(monitor, "draw_learning_curve", lambda path, panels: drawn.append(panels))
    monitor.draw_log(tmp_path, "updates")
    assert drawn[0] == {
        "loss": {"train": [(1, 3.0), (2, 2.0)], "dev": [(2, 2.5)]}, "wer": {"dev": [(2, 0.5)]}
    }  # fmt: skip
    monkeypatch.setattr(monitor, "draw_learning_curve", DRAW)
    (tmp_path / "learning_curve.png").mkdir()
    monitor.draw_log(tmp_path, "wer")
    assert "not a regular file" in caplog.text, "a picture that fails stops nothing"


def test_the_learning_curve_is_drawn_at_each_validation(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        monitor, "draw_learning_curve", lambda path, panels: drawn.append(panels["wer"]["dev"])
    )
    settings = ("train.steps=3", "train.validate_every=1")
    train_model(tiny_run(*settings))
    assert [[step for step, _ in points] for points in drawn] == [[1], [1, 2], [1, 2, 3]]
    train(tiny_run(*settings, "train.steps=4"))
    assert len(drawn) == 3, "train draws only if asked to"


def test_means_and_speeds_since_the_last_line() -> None:
    outcomes = [
        Outcome(is_finite, {"total": 2 * tokens}, tokens, tokens, gradient_norm=3.0, learning_rate=0.1)
        for tokens, is_finite in ((4.0, True), (6.0, True), (9.0, False))
    ]
    found = monitor.compute_means(outcomes, 4.0)
    assert found["skipped_updates"] == 1 and found["gradient_norm"] == 3.0
    assert found["tokens_per_second"] == pytest.approx(10 / 4)
    assert found["audio_seconds_per_second"] == pytest.approx(19 / 4)


def test_a_model_that_has_learned_nothing_causes_a_warning(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    panels: dict[str, Any] = {}
    monkeypatch.setattr(monitor, "draw_learning_curve", lambda path, curves: panels.update(curves))
    loop.train_model(tiny_run("train.steps=1", "train.select_by=loss"))
    assert "WER on dev" not in caplog.text, "it had few updates, as in a smoke test"
    monkeypatch.setattr(loop, "FEW_UPDATES", 1)
    loop.train_model(tiny_run("train.steps=1", "train.select_by=loss", f"output_dir={tmp_path}/more"))
    assert "WER on dev is 100.0 %" in caplog.text and "learning_curve.png" in caplog.text
    assert panels.keys() == {"loss", "wer"} and len(panels["wer"]["dev"]) == 1
    caplog.clear()
    loop.warn_of_nothing_learned({"loss": 1.0, "wer": 0.3}, tmp_path)
    loop.warn_of_nothing_learned({"loss": 1.0}, tmp_path)
    assert not caplog.text


def test_a_callback_gets_what_the_log_has(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a resume."""
    shown: dict[str, dict[int, float]] = {}

    def note(step: int, values: Mapping[str, float]) -> None:
        assert all(type(value) is float for value in values.values())
        for name, value in values.items():
            shown.setdefault(name, {})[step] = value

    config = tiny_run(*SHORT)
    run_until_killed(monkeypatch, 3, lambda: train(config, callback=note))
    train(config, callback=note)
    log = {line["step"]: line["loss"] for line in read_log(tmp_path / "run", "train")}
    assert shown["train/loss"] == log and {"dev/wer", "model/wer"} <= shown.keys()


def test_a_failing_callback_warns_once_and_training_continues(
    tiny_run: TinyRun, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("no route to host")

    train(tiny_run(*SHORT), callback=fail)
    (message,) = (text for text in caplog.messages if "ConnectionError" in text)
    assert "the callback failed (ConnectionError: no route to host); training continues" in message


def test_a_missing_package_is_named_before_the_first_update(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"tensorboard.* pip install"):
        train(tiny_run("train.tensorboard=true"))


@pytest.mark.slow
def test_tensorboard(tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="in the extra tracking")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny_run(*SHORT, "train.tensorboard=true")
    run_until_killed(monkeypatch, 3, lambda: train(config))
    train(config)
    shown = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    shown.Reload()
    logged = [(line["step"], line["loss"]) for line in read_log(tmp_path / "run", "train")]
    assert [(event.step, pytest.approx(event.value)) for event in shown.Scalars("train/loss")] == logged
