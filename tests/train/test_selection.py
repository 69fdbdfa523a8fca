"""train.select_by: the direction of each measure, and measures that a model does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from training_examples import TinyRun, read_log

from asr.errors import UserError
from asr.system.system import load_state, load_system
from asr.train.loop import Ranked, TrainingState, rank_checkpoint, train

CTC_ALONE = ("model.decoder=null", "model.ctc_weight=1.0", "model.guided_attention=null")


@pytest.mark.parametrize(
    ("measure", "values", "best"),
    [
        *((name, (0.5, 0.2, 0.9), [2, 1]) for name in ("wer", "cer", "loss")),
        *((name, (0.5, 0.2, 0.9), [3, 1]) for name in ("token_accuracy", "accuracy")),
        ("accuracy", (math.nan, 0.7, math.nan, 0.6), [2, 4]),
    ],
)
def test_direction_of_measures(measure: str, values: Sequence[float], best: list[int]) -> None:
    """Errors and losses are better when lower, the others when higher; NaN is the worst."""
    state = TrainingState(precision="float32")
    for step, value in enumerate(values, start=1):
        state.step = step
        rank_checkpoint(state, {"loss": 1.0, measure: value}, measure, keep_best=3)
    assert [one.step for one in state.best[:2]] == best


def test_the_dev_loss_breaks_ties() -> None:
    """On a small dev set many checkpoints have the same WER; with NaN losses the earliest comes first."""
    state = TrainingState(precision="float32", best=[Ranked(0.25, 1, math.nan)])
    for step, wer, loss in (
        (2, 0.25, 3.0),
        (3, 0.25, math.nan),
        (4, 0.25, 2.0),
        (5, 0.5, 1.0),
        (6, 0.25, 2.0),
    ):
        state.step = step
        rank_checkpoint(state, {"wer": wer, "loss": loss}, "wer", keep_best=4)
    assert [one.step for one in state.best] == [1, 4, 6, 2]
    better = TrainingState(precision="float32", best=[Ranked(0.25, 1, 3.0)], step=2)
    rank_checkpoint(better, {"wer": 0.25, "loss": 2.0}, "wer", keep_best=1)
    assert [one.step for one in better.best] == [2]


def test_updates_selects_the_latest_checkpoints(
    tiny_run: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The result is their average regardless of dev, with a warning if the last one alone is better."""
    folder = train(
        tiny_run("train.select_by=updates", "train.steps=6", "train.validate_every=2", "train.keep_best=2")
    )
    assert load_state(folder)["averaged_steps"] == [4, 6]
    mean, last = (read_log(tmp_path / "run", kind)[-1]["loss"] for kind in ("model", "dev"))
    assert mean > last and f"loss of {mean:.4g}, but update 6 has {last:.4g}. Use" in caplog.text
    first, second = (load_system(tmp_path / "run" / "checkpoints" / f"step-{n:08d}").model for n in (4, 6))
    for mean, one, other in zip(
        load_system(folder).model.parameters(), first.parameters(), second.parameters(), strict=True
    ):
        torch.testing.assert_close(mean, (one + other) / 2)
    caplog.clear()
    train(tiny_run(f"output_dir={tmp_path}/one", "train.select_by=updates", "train.steps=1"))
    assert "the average of the last checkpoints" not in caplog.text, "the last one is no worse than itself"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.select_by=accuracy",), "a model of type speech has wer, cer, token_accuracy, loss"),
        (("train.select_by=token_accuracy", *CTC_ALONE), "token_accuracy needs a decoder"),
    ],
)
def test_measures_that_a_model_lacks_are_refused(
    tiny_run: TinyRun, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        tiny_run(*overrides)
