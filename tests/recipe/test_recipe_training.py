"""Trainings of a recipe: once, resumed, and again when what they read has changed."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from recipe_examples import COMMON, SYSTEMS, make_experiment, write_conf, write_tones_recipe
from training_examples import assert_equal_bits, run_until_killed

from asr.recipe import Experiment, run_recipe
from asr.recipe.steps import read_record

START = "start_from: runs/tones/transformer\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tones: Path) -> Path:
    """A folder in which both systems have been trained: ctc_lstm starts from transformer, which so comes first."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    recipes_dir = write_tones_recipe(folder, tones)
    write_conf(folder, "transformer", COMMON.format(name="transformer") + SYSTEMS["ctc_lstm"])
    write_conf(folder, "ctc_lstm", START + COMMON.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("asr.train.monitor.draw_learning_curve", lambda path, panels: path.touch())
        run_recipe(make_experiment(recipes_dir), "prepare")
        train_all(make_experiment(recipes_dir))
    return folder


@pytest.fixture
def recipes_dir(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything is as it was trained."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asr.train.monitor.draw_learning_curve", lambda path, panels: path.touch())
    return tmp_path / "recipes"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def train_all(experiment: Experiment) -> None:
    run_recipe(experiment, "train")


def change_conf(recipes_dir: Path, old: str, new: str) -> None:
    assert old in COMMON
    text = START + COMMON.replace(old, new).format(name="ctc_lstm")
    write_conf(recipes_dir.parent, "ctc_lstm", text + SYSTEMS["ctc_lstm"])


def messages(said: pytest.LogCaptureFixture, *words: str) -> list[str]:
    found = [record.getMessage() for record in said.records if record.name.startswith("asr.recipe")]
    said.clear()
    return [message for message in found if all(word in message for word in words)]


def test_each_system_is_trained_once(recipes_dir: Path, said: pytest.LogCaptureFixture) -> None:
    shutil.rmtree("runs")
    train_all(make_experiment(recipes_dir))
    assert Path("runs/tones/ctc_lstm/model/model.safetensors").is_file()
    assert Path("runs/tones/transformer/model/model.safetensors").is_file()
    assert Path("runs/tones/transformer/learning_curve.png").is_file()
    assert len(messages(said, "train ", "not done yet")) == 2
    before = Path("runs/tones/transformer/log.jsonl").read_bytes()
    train_all(make_experiment(recipes_dir))
    assert len(messages(said, "skipped, already done and its inputs have not changed")) == 2
    assert Path("runs/tones/transformer/log.jsonl").read_bytes() == before
    origin = read_record(Path("runs/tones/transformer/.train.json"))["origin"]
    assert origin["command"] == "asr recipe run tones" and origin["machine"] and origin["commit"]


@pytest.mark.parametrize("change", ["settings", "data", "start"])
def test_another_training_keeps_the_old(
    recipes_dir: Path, said: pytest.LogCaptureFixture, change: str
) -> None:
    old = Path("runs/tones/ctc_lstm/model/model.safetensors").read_bytes()
    if change == "settings":
        change_conf(recipes_dir, "3e-3", "2e-3")
    elif change == "data":
        lines = Path("data/tones/train.jsonl").read_text().splitlines(keepends=True)
        Path("data/tones/train.jsonl").write_text("".join(lines[:40]))
    else:
        text = COMMON.replace("3e-3", "2e-3").format(name="transformer") + SYSTEMS["ctc_lstm"]
        write_conf(recipes_dir.parent, "transformer", text)
    train_all(make_experiment(recipes_dir))
    expected = {
        "settings": "optim.learning_rate",
        "data": "data.train",
        "start": "it starts from another model",
    }
    shown = messages(said)
    assert any(line.startswith("train ctc_lstm: ") and expected[change] in line for line in shown)
    assert Path("runs/tones/ctc_lstm.old-1/model/model.safetensors").read_bytes() == old
    assert Path("runs/tones/ctc_lstm/model/model.safetensors").read_bytes() != old
    assert any("train transformer: skipped" in line for line in shown) == (change == "settings")
    train_all(make_experiment(recipes_dir))
    assert len(messages(said, "skipped")) == 2


def test_force_trains_again_and_keeps_the_old(recipes_dir: Path) -> None:
    experiment = make_experiment(recipes_dir, only=("ctc_lstm",))
    old = Path("runs/tones/ctc_lstm/model/model.safetensors").read_bytes()
    run_recipe(experiment, "train", force=True)
    for name in ("ctc_lstm.old-1", "ctc_lstm"):  # the same settings give the same bits
        assert Path(f"runs/tones/{name}/model/model.safetensors").read_bytes() == old


def test_more_updates_go_on(recipes_dir: Path, said: pytest.LogCaptureFixture) -> None:
    experiment = make_experiment(recipes_dir, only=("ctc_lstm",))
    change_conf(recipes_dir, "steps: 4", "steps: 6")
    train_all(experiment)
    assert messages(said, "more updates are requested") and not Path("runs/tones/ctc_lstm.old-1").exists()
    assert json.loads(Path("runs/tones/ctc_lstm/model/state.json").read_text())["step"] == 6


def test_an_interrupted_training_goes_on(
    recipes_dir: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = make_experiment(recipes_dir, only=("ctc_lstm",))
    Path("runs/tones/ctc_lstm").rename("whole")
    run_until_killed(monkeypatch, 3, lambda: train_all(experiment))
    train_all(experiment)
    assert json.loads(Path("runs/tones/ctc_lstm/log.jsonl").read_text().splitlines()[-1])["step"] == 4
    assert_equal_bits(Path("whole/model"), Path("runs/tones/ctc_lstm/model"))
