"""Tokenizers and trainings of a recipe: once, resumed, and anew when what they read has changed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from recipe_examples import COMMON, SYSTEMS, make_experiment, write_conf, write_tones_recipe
from safetensors.torch import load_file

from asr.cli import main
from asr.recipe import (
    Experiment,
    Processes,
    Task,
    build_tasks,
    find_reason_to_run,
    processes,
    read_record,
    run_recipe,
    run_task,
    stages,
)
from asr.train import Learner


@pytest.fixture
def recipes_dir(tmp_path: Path, tones: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    recipes_dir = write_tones_recipe(tmp_path, tones)
    run_recipe(make_experiment(recipes_dir), "prepare")
    return recipes_dir


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def train_all(experiment: Experiment) -> None:
    for stage in ("tokenizer", "train"):
        run_recipe(experiment, stage)


def change_learning_rate(recipes_dir: Path) -> None:
    text = COMMON.replace("3e-3", "2e-3").format(name="ctc_lstm")
    write_conf(recipes_dir.parent, "ctc_lstm", text + SYSTEMS["ctc_lstm"])


def messages(said: pytest.LogCaptureFixture, *words: str) -> list[str]:
    found = [record.getMessage() for record in said.records if record.name.startswith("asr.recipe")]
    said.clear()
    return [message for message in found if all(word in message for word in words)]


def test_each_system_is_trained_once(recipes_dir: Path, said: pytest.LogCaptureFixture) -> None:
    train_all(make_experiment(recipes_dir))
    assert Path("runs/tones/ctc_lstm/model/model.safetensors").is_file()
    assert Path("runs/tones/transformer/model/model.safetensors").is_file()
    assert Path("runs/tones/transformer/learning_curve.png").is_file()
    assert len(messages(said, "train ", "it has not been done")) == 2
    before = Path("runs/tones/transformer/log.jsonl").read_bytes()
    train_all(make_experiment(recipes_dir))
    assert len(messages(said, "skipped, it has been done, and nothing that it reads has changed")) == 4
    assert Path("runs/tones/transformer/log.jsonl").read_bytes() == before
    origin = read_record(Path("runs/tones/transformer/.train.done"))["origin"]
    assert origin["command"] == "asr recipe run tones" and origin["machine"] and origin["commit"]


@pytest.mark.slow
def test_a_changed_conf_trains_anew_and_keeps_the_old(
    recipes_dir: Path, said: pytest.LogCaptureFixture
) -> None:
    train_all(make_experiment(recipes_dir))
    old = Path("runs/tones/ctc_lstm/model/model.safetensors").read_bytes()
    change_learning_rate(recipes_dir)
    messages(said)
    train_all(make_experiment(recipes_dir))
    shown = messages(said)
    assert any(
        "train ctc_lstm: " in line and "changed since it was done: ctc_lstm.yaml" in line for line in shown
    ) or any("ctc_lstm: made of other data or settings" in line for line in shown)
    assert Path("runs/tones/ctc_lstm.old-1/model/model.safetensors").read_bytes() == old
    assert Path("runs/tones/ctc_lstm/model/model.safetensors").read_bytes() != old
    assert any("train transformer: skipped" in line for line in shown)


def test_a_changed_manifest_trains_anew(recipes_dir: Path, said: pytest.LogCaptureFixture) -> None:
    experiment = make_experiment(recipes_dir, only=("ctc_lstm",))
    train_all(experiment)
    lines = Path("data/tones/train.jsonl").read_text().splitlines(keepends=True)
    Path("data/tones/train.jsonl").write_text("".join(lines[:40]))
    messages(said)
    train_all(experiment)
    assert messages(said, "tokenizer ctc_lstm", "changed since it was done: train.jsonl")
    assert Path("runs/tones/ctc_lstm.old-1").is_dir()
    train_all(experiment)
    assert len(messages(said, "skipped")) == 2


def test_an_interrupted_training_goes_on(
    recipes_dir: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = make_experiment(recipes_dir, only=("ctc_lstm",))
    train_all(make_experiment(recipes_dir, only=("ctc_lstm",), output_dir=None))
    whole = load_file("runs/tones/ctc_lstm/model/model.safetensors")
    Path("runs/tones/ctc_lstm").rename("whole")
    original = Learner.update

    def update(self: Learner, batches: object, step: int) -> object:
        if step == 3:
            raise KeyboardInterrupt
        return original(self, batches, step)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Learner, "update", update)
        train_all(experiment)
    messages(said)
    train_all(experiment)
    assert messages(said, "train ctc_lstm: ", "going on from step-00000002")
    resumed = load_file("runs/tones/ctc_lstm/model/model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole | resumed)


def test_a_training_by_hand_is_taken_over(recipes_dir: Path) -> None:
    assert main(["train", "conf/tones/ctc_lstm.yaml"]) == 0
    before = [
        path.read_bytes() for path in sorted(Path("runs/tones/ctc_lstm/checkpoints").rglob("*.safetensors"))
    ]
    train_all(make_experiment(recipes_dir, only=("ctc_lstm",)))
    after = [
        path.read_bytes() for path in sorted(Path("runs/tones/ctc_lstm/checkpoints").rglob("*.safetensors"))
    ]
    assert before == after and not Path("runs/tones/ctc_lstm.old-1").exists()


def test_a_dry_run_says_what_and_why_and_does_nothing(
    recipes_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train_all(make_experiment(recipes_dir, only=("ctc_lstm",)))
    change_learning_rate(recipes_dir)
    before = sorted(tmp_path.rglob("*"))
    arguments = ["recipe", "run", "tones", "--recipes-dir", str(recipes_dir), "--dry-run"]
    assert main(arguments) == 0
    assert sorted(tmp_path.rglob("*")) == before
    shown = capsys.readouterr().out
    for line in (
        "prepare: would be skipped, it has been done",
        "train ctc_lstm: would train it for 4 updates (changed since it was done: ctc_lstm.yaml)",
        "train transformer: would train it for 4 updates (it has not been done)",
    ):
        assert line in shown
    Path("data/tones/.prepare.done").unlink()
    assert main([*arguments, "--seeds", "0,5"]) == 0
    shown = capsys.readouterr().out
    assert "prepare: would check the corpus" in shown
    assert "train transformer-seed-5: would train it for 4 updates (it has not been done)" in shown


def test_what_depends_on_a_stage_that_would_run(
    recipes_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_all(make_experiment(recipes_dir, only=("ctc_lstm",)))
    Path("data/tones/.prepare.done").unlink()
    assert main(["recipe", "run", "tones", "--recipes-dir", str(recipes_dir), "--dry-run"]) == 0
    assert "train ctc_lstm: would be skipped, unless prepare makes something new" in capsys.readouterr().out
    run_recipe(make_experiment(recipes_dir), "prepare")
    assert main(["recipe", "run", "tones", "--recipes-dir", str(recipes_dir), "--dry-run"]) == 0
    assert "train ctc_lstm: would be skipped, it has been done" in capsys.readouterr().out


def test_seeds_make_different_models(recipes_dir: Path) -> None:
    train_all(make_experiment(recipes_dir, only=("ctc_lstm",), seeds=(0, 1)))
    zero = Path("runs/tones/ctc_lstm/model/model.safetensors").read_bytes()
    one = Path("runs/tones/ctc_lstm-seed-1/model/model.safetensors").read_bytes()
    assert zero != one
    assert json.loads(Path("runs/tones/ctc_lstm-seed-1/model/state.json").read_text())["step"] == 4


def test_the_number_of_threads_is_as_before(recipes_dir: Path) -> None:
    text = COMMON.replace("train: {{", "train: {{threads: 1, ").format(name="ctc_lstm")
    write_conf(recipes_dir.parent, "ctc_lstm", text + SYSTEMS["ctc_lstm"])
    torch.set_num_threads(3)
    train_all(make_experiment(recipes_dir, only=("ctc_lstm",)))
    assert torch.get_num_threads() == 3


def test_tasks_name_what_they_read(recipes_dir: Path) -> None:
    task = build_tasks(make_experiment(recipes_dir), "train")[1]
    assert list(task.inputs()) == ["transformer.yaml", "train.jsonl", "dev.jsonl"]


# --- side by side -------------------------------------------------------------------------------


def plan_side_by_side(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> dict[str, Task]:
    """What is to be done, in its order."""
    found: dict[str, Task] = {}
    with monkeypatch.context() as patch:
        patch.setattr(
            stages,
            "run_side_by_side",
            lambda tasks, limit, processes: found.update({task.name: task for task in tasks}),
        )
        run_recipe(experiment, "train")
    return {name: task for name, task in found.items() if find_reason_to_run(task)}


def run_in_order(tasks: Sequence[Task], limit: int, processes: Processes) -> dict[str, str]:
    for task in tasks:
        run_task(task)
    return {}


def note_program(task: Task, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the program that a task starts; its model is only pretended."""
    programs = []
    with monkeypatch.context() as patch:
        patch.setattr(Processes, "run", lambda self, name, *program: programs.append(program))
        patch.setattr(stages, "write_record", lambda path, record: None)
        task.run()
    ((arguments, environment),) = programs
    return list(arguments), dict(environment)


def test_processes_share_the_cores_and_wait_for_what_they_start_from(
    recipes_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "start_from: runs/tones/ctc_lstm\n" + COMMON.format(name="a") + SYSTEMS["ctc_lstm"]
    write_conf(recipes_dir.parent, "a", text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    for jobs, threads in ((2, 4), (3, 2), (16, 2)):
        tasks = plan_side_by_side(make_experiment(recipes_dir, jobs=jobs), monkeypatch)
        assert list(tasks) == ["train ctc_lstm", "train transformer", "train a"]
        assert "train ctc_lstm" in tasks["train a"].after
        for task in tasks.values():
            arguments, environment = note_program(task, monkeypatch)
            assert environment == {"OMP_NUM_THREADS": str(threads)}
            name = task.name.removeprefix("train ")
            assert arguments[1:] == ["-m", "asr.recipe.processes", f"runs/tones/{name}/conf.yaml"]
    train_all(make_experiment(recipes_dir, only=("transformer",)))
    tasks = plan_side_by_side(make_experiment(recipes_dir, jobs=16), monkeypatch)
    assert list(tasks) == ["train ctc_lstm", "train a"]
    assert note_program(tasks["train a"], monkeypatch)[1] == {"OMP_NUM_THREADS": "4"}


def test_a_process_does_what_one_after_another_does(
    recipes_dir: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    train_all(make_experiment(recipes_dir, only=("ctc_lstm",)))
    record = read_record(Path("runs/tones/ctc_lstm/.train.done"))
    weights = Path("runs/tones/ctc_lstm/model/model.safetensors").read_bytes()
    Path("runs/tones/ctc_lstm").rename("before")
    experiment = make_experiment(recipes_dir, only=("ctc_lstm",), jobs=2)
    run_recipe(experiment, "tokenizer")
    monkeypatch.setattr(processes, "end_with_standard_input", lambda: None)
    monkeypatch.setattr(Processes, "run", lambda self, name, arguments, _: processes.main(arguments[-1]))
    with monkeypatch.context() as patch:  # a training handles signals, so it runs in the main thread
        patch.setattr(stages, "run_side_by_side", run_in_order)
        run_recipe(experiment, "train")
    record["origin"]["command"] = "asr recipe run tones --only ctc_lstm --jobs 2"
    assert read_record(Path("runs/tones/ctc_lstm/.train.done")) == record
    assert Path("runs/tones/ctc_lstm/model/model.safetensors").read_bytes() == weights
    assert not plan_side_by_side(experiment, monkeypatch)


@pytest.mark.slow
def test_one_that_fails_stops_none(recipes_dir: Path, said: pytest.LogCaptureFixture) -> None:
    Path("runs/tones/ctc_lstm/checkpoints/step-00000002").mkdir(parents=True)  # an empty one
    arguments = ["recipe", "run", "tones", "--recipes-dir", str(recipes_dir), "--jobs", "2"]
    assert main([*arguments, "--stage", "tokenizer"]) == 0
    assert main([*arguments, "--stage", "train"]) == 1
    shown = said.messages
    assert any(line.startswith("transformer | train 4: epoch ") for line in shown)
    assert any(line.startswith("ctc_lstm | ") and "config.yaml: cannot read" in line for line in shown)
    assert any("1 of 2 trainings failed: ctc_lstm (exit status 2)" in line for line in shown)
    assert not Path("runs/tones/ctc_lstm/.train.done").exists()
    shutil.rmtree("runs/tones/ctc_lstm/checkpoints")
    messages(said)
    assert main([*arguments, "--stage", "train"]) == 0
    assert messages(said, "train transformer: skipped")
    assert Path("runs/tones/ctc_lstm/.train.done").exists()


@pytest.mark.slow
def test_all_save_what_they_have_when_they_are_stopped(
    recipes_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, model in SYSTEMS.items():
        settings = COMMON.replace("steps: 4", "steps: 100000").replace("_every: 2", "_every: 100000")
        write_conf(recipes_dir.parent, name, settings.format(name=name) + model)
    arguments = ["recipe", "run", "tones", "--recipes-dir", str(recipes_dir), "--jobs", "2"]
    assert main([*arguments, "--stage", "tokenizer"]) == 0
    command = [sys.executable, "-m", "asr", *arguments, "--stage", "train"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        begun: set[str] = set()
        while begun != set(SYSTEMS):
            line = process.stderr.readline()
            assert line, "it ended"
            begun |= {name for name in SYSTEMS if line.startswith(f"{name} | train 1: ")}
        process.terminate()
        said = process.stderr.read()
        assert process.wait() == 143
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for name in SYSTEMS:
        assert f"{name} | stopped and saved at update " in said
        assert f"train {name}: would train it for 100,000 updates, going on from step-0" in shown
