"""A conf with its seed and its folders is a run; in smoke mode a small one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from recipe_examples import COMMON, SYSTEMS, make_experiment, write_conf, write_tones_recipe

from asr.data import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.recipe import Experiment, find_recipes, load_recipe, run_recipe
from asr.recipe.experiment import build_runs, find_runs
from asr.recipe.splits import cut_manifests
from asr.system.run_config import RunConfig


@pytest.fixture
def recipes_dir(tmp_path: Path, tones: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_tones_recipe(tmp_path, tones)


def test_the_systems_are_the_confs(recipes_dir: Path) -> None:
    runs = build_runs(make_experiment(recipes_dir))
    assert [(run.name, run.seed) for run in runs] == [("ctc_lstm", 0), ("transformer", 0)]
    config = runs[1].config
    # In the usual folders, `asr train CONF` makes the same run.
    assert config == RunConfig.load(runs[1].conf.path)


def test_only_and_seeds(recipes_dir: Path) -> None:
    runs = build_runs(make_experiment(recipes_dir, only=("transformer",), seeds=(0, 7)))
    assert [(run.name, run.config.seed) for run in runs] == [("transformer", 0), ("transformer-seed-7", 7)]
    assert runs[1].config.output_dir == "runs/tones/transformer-seed-7"


def test_settings_of_the_call_are_for_the_systems_that_it_trains(recipes_dir: Path) -> None:
    experiment = make_experiment(
        recipes_dir, only=("transformer",), overrides=("model.decoder.num_layers=2", "seed=3")
    )
    (run,) = build_runs(experiment)
    assert run.config.model.decoder.num_layers == 2 and (run.name, run.seed) == ("transformer", 3)  # type: ignore[union-attr]
    (small,) = build_runs(replace(experiment, smoke=True, overrides=("train.steps=7",)))
    assert small.config.train.steps == 7 and small.config.model.encoder.dim == 16  # type: ignore[union-attr]
    assert experiment.command.endswith("--only transformer --set model.decoder.num_layers=2 --set seed=3")


def test_the_output_folder_moves_data_and_runs(recipes_dir: Path) -> None:
    text = COMMON.replace("dev: data/tones/dev.jsonl", "dev: elsewhere/dev.jsonl")
    write_conf(recipes_dir.parent, "transformer", text.format(name="transformer") + SYSTEMS["transformer"])
    config = build_runs(make_experiment(recipes_dir, output_dir=Path("/x y"), only=("transformer",)))[
        0
    ].config
    assert config.output_dir == "/x y/runs/transformer"
    assert (config.data.train, config.data.dev) == ("/x y/train.jsonl", "elsewhere/dev.jsonl")


def test_a_conf_of_another_corpus_is_refused(recipes_dir: Path) -> None:
    text = COMMON.format(name="copied").replace("data/tones/dev", "data/other/dev") + SYSTEMS["ctc_lstm"]
    write_conf(recipes_dir.parent, "copied", text)
    message = r"copied\.yaml: data\.dev = data/other/dev\.jsonl is not data of tones"
    with pytest.raises(UserError, match=message):
        build_runs(make_experiment(recipes_dir))


@pytest.mark.parametrize("name", list(find_recipes()))
def test_every_system_has_a_smoke_size(name: str) -> None:
    for run in build_runs(Experiment(load_recipe(name), smoke=True)):
        config = run.config
        assert config.train.steps <= 4
        assert config.batches.num_workers == 0 or not config.model.reads_audio  # which has none
        assert config.output_dir.startswith(f"runs/{name}-smoke/")
        assert config.data.train.startswith(f"data/{name}-smoke/")
        assert type(config.model) is type(RunConfig.load(run.conf.path).model)


def test_smoke_mode_cuts_the_manifests_evenly(tmp_path: Path) -> None:
    for split in ("train", "test"):
        utterances = [Utterance(id=f"{split}-{n}", audio="a.wav", duration=1.0) for n in range(100)]
        write_manifest(tmp_path / f"{split}.jsonl", utterances)
    cut_manifests(tmp_path)
    names = [utterance.id for utterance in read_manifest(tmp_path / "train.jsonl")]
    assert len(names) == 32 and names[0] == "train-0" and names[-1] == "train-96"
    assert len(list(read_manifest(tmp_path / "test.jsonl"))) == 8
    cut_manifests(tmp_path)
    assert len(list(read_manifest(tmp_path / "train.jsonl"))) == 32


def test_a_system_that_starts_from_a_model_of_elsewhere_waits_for_it(
    recipes_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "start_from: runs/other/model\n" + COMMON.format(name="tuned") + SYSTEMS["transformer"]
    write_conf(recipes_dir.parent, "tuned", text)
    reason = "it starts from runs/other/model, which has not been trained"
    with caplog.at_level(logging.INFO):
        run_recipe(make_experiment(recipes_dir), "prepare")
    assert caplog.text.count(f"tuned: left out, because {reason}") == 1
    assert [run.system for run in build_runs(make_experiment(recipes_dir))] == ["ctc_lstm", "transformer"]
    with pytest.raises(UserError, match=f"--only tuned: {reason}"):
        build_runs(make_experiment(recipes_dir, only=("tuned",)))
    folder = Path("runs/other/model/model")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    assert [run.system for run in build_runs(make_experiment(recipes_dir))] == [
        "ctc_lstm",
        "transformer",
        "tuned",
    ]
    assert "tuned" not in [run.system for run in build_runs(make_experiment(recipes_dir, smoke=True))]


def test_a_system_that_starts_from_whisper_is_asked_for_by_name(recipes_dir: Path) -> None:
    text = "start_from: openai/whisper-tiny\n" + COMMON.format(name="tuned") + SYSTEMS["transformer"]
    write_conf(recipes_dir.parent, "tuned", text)
    runs, left_out = find_runs(make_experiment(recipes_dir))
    assert [run.system for run in runs] == ["ctc_lstm", "transformer"]
    assert len(left_out) == 1 and "openai/whisper-tiny: ask for it by --only" in left_out[0]
    assert [run.system for run in build_runs(make_experiment(recipes_dir, only=("tuned",)))] == ["tuned"]
