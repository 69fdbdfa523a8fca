"""train.select_by: each measure in its direction, BLEU as sacrebleu has it, and what a model does not offer."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from decoding_examples import decode_by_decoder

from asr.errors import UserError
from asr.system import RunConfig, load_state, load_system
from asr.train import Process, Ranked, TrainingData, TrainingState, note_score, train

TinyRun = Callable[..., RunConfig]

CTC_ALONE = ("model.decoder=null", "model.ctc_weight=1.0", "model.guided_attention=null")


@pytest.mark.parametrize(
    ("measure", "best"),
    [("wer", 2), ("cer", 2), ("loss", 2), ("token_accuracy", 3), ("bleu", 3), ("accuracy", 3)],
)
def test_direction(measure: str, best: int) -> None:
    """The lowest of errors and losses, the highest of the rest."""
    state = TrainingState(precision="float32")
    for step, value in ((1, 0.5), (2, 0.2), (3, 0.9)):
        state.step = step
        note_score(state, {"loss": 1.0, measure: value}, measure, keep_best=2)
    assert state.best[0][1] == best and state.best[1][1] == 1


def test_a_score_that_is_no_number_is_the_worst() -> None:
    state = TrainingState(precision="float32")
    for step, value in ((1, math.nan), (2, 0.7), (3, math.nan), (4, 0.6)):
        state.step = step
        note_score(state, {"loss": 1.0, "accuracy": value}, "accuracy", keep_best=3)
    assert [one.step for one in state.best[:2]] == [2, 4] and state.validations_without_gain == 2


def test_the_dev_loss_decides_among_equals() -> None:
    """A small dev set gives many checkpoints the same WER; without a loss the earliest of them comes first."""
    state = TrainingState(precision="float32", best=[Ranked(0.25, 1, math.nan)])
    for step, wer, loss in (
        (2, 0.25, 3.0),
        (3, 0.25, math.nan),
        (4, 0.25, 2.0),
        (5, 0.5, 1.0),
        (6, 0.25, 2.0),
    ):
        state.step = step
        note_score(state, {"wer": wer, "loss": loss}, "wer", keep_best=4)
    assert [one.step for one in state.best] == [1, 4, 6, 2]
    better = TrainingState(precision="float32", best=[Ranked(0.25, 1, 3.0)], step=2)
    note_score(better, {"wer": 0.25, "loss": 2.0}, "wer", keep_best=1)
    assert [one.step for one in better.best] == [2] and better.validations_without_gain == 0


@pytest.mark.parametrize(("mean", "is_worse"), [(2.5, True), (1.0, False)])
def test_a_mean_of_the_latest_that_is_worse_than_the_last_is_said(
    mean: float,
    is_worse: bool,
    tiny_run: TinyRun,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = iter([3.0, 2.0, 1.0, mean])
    monkeypatch.setattr(
        "asr.train.loop.compute_dev_scores", lambda *_: {"loss": next(losses), "wer": 0.5, "cer": 0.5}
    )
    train(tiny_run("train.select_by=updates", "train.steps=6", "train.validate_every=2", "train.keep_best=3"))
    said = "mean of updates 2, 4, 6 has a loss of 2.5 on dev, update 6 alone 1: they may be too far apart"
    assert (said in caplog.text) == is_worse and ("too far apart" in caplog.text) == is_worse


def test_the_latest(tiny_run: TinyRun, tmp_path: Path) -> None:
    """Whatever dev says: the mean of the last checkpoints."""
    folder = train(
        tiny_run("train.select_by=updates", "train.steps=6", "train.validate_every=2", "train.keep_best=2")
    )
    assert load_state(folder)["averaged_steps"] == [4, 6]
    first, second = (load_system(tmp_path / "run" / "checkpoints" / f"step-{n:08d}").model for n in (4, 6))
    for mean, one, other in zip(
        load_system(folder).model.parameters(), first.parameters(), second.parameters(), strict=True
    ):
        torch.testing.assert_close(mean, (one + other) / 2)


def test_bleu(tiny_run: TinyRun, tmp_path: Path) -> None:
    """Of the decoder's greedy output, and beside it that of each head."""
    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is missing; pip install sacrebleu")
    folder = train(tiny_run("train.select_by=bleu", "train.steps=6"))
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    (scores,) = (line for line in log if line["kind"] == "model")
    system = load_system(folder)
    references, hypotheses = [], []
    with torch.inference_mode():
        for batch in TrainingData(system, Process(0, 1, torch.device("cpu"))).dev.evaluation_batches():
            encoded_BTD, lengths_B = system.model.encode(batch.features_BTF, batch.feature_lengths_B)
            tokens = decode_by_decoder(system.model, encoded_BTD, lengths_B)
            hypotheses += [system.tokenizer.decode(ids).upper() for ids in tokens]
            references += batch.texts
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert scores["bleu"] == scores["bleu_decoder"] and "bleu_ctc" in scores


def test_bleu_is_left_out_where_nothing_selects_by_it(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the package is needed by none but those who ask."""
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    train(tiny_run("train.steps=1"))
    assert "bleu" not in (tmp_path / "run" / "log.jsonl").read_text()


def test_missing_sacrebleu_is_said_before_training(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match="pip install sacrebleu"):
        train(tiny_run("train.select_by=bleu"))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"], "nothing has begun"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.select_by=accuracy",), "a model of type speech has wer, cer, token_accuracy, bleu, loss"),
        (("train.select_by=token_accuracy", *CTC_ALONE), "token_accuracy is about a decoder"),
    ],
)
def test_what_a_model_does_not_offer(tiny_run: TinyRun, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_run(*overrides)
