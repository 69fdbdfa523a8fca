"""A conf with its seed and its folders is a run; in smoke mode a small one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pydantic
import pytest
from recipe_examples import COMMON, SYSTEMS, make_experiment, write_conf, write_tones_recipe

from asr.config import Config, build_config
from asr.data import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.recipe import (
    Experiment,
    build_plan,
    build_runs,
    cut_manifests,
    find_all_runs,
    find_recipes,
    find_runs,
    hash_settings,
    load_recipe,
    run_recipe,
)
from asr.system import RunConfig


@pytest.fixture
def recipes_dir(tmp_path: Path, tones: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_tones_recipe(tmp_path, tones)


def test_the_systems_are_the_confs(recipes_dir: Path) -> None:
    runs = build_runs(make_experiment(recipes_dir))
    assert [(run.name, run.seed) for run in runs] == [("ctc_lstm", 0), ("transformer", 0)]
    config = runs[1].config
    assert config == RunConfig.load(runs[1].conf.path), (
        "in the usual folders, `asr train CONF` makes the same run"
    )


def test_confs_beside_the_recipe_come_first(recipes_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "conf" / "tones").rename(recipes_dir / "tones" / "conf")
    write_conf(tmp_path, "other", "")
    assert [run.system for run in build_runs(make_experiment(recipes_dir))] == ["ctc_lstm", "transformer"]


def test_only_and_seeds(recipes_dir: Path) -> None:
    runs = build_runs(make_experiment(recipes_dir, only=("transformer",), seeds=(0, 7)))
    assert [(run.name, run.config.seed) for run in runs] == [
        ("transformer", 0),
        ("transformer-seed-7", 7),
    ]
    assert runs[1].config.output_dir == "runs/tones/transformer-seed-7"


def test_settings_of_the_call_are_for_the_systems_that_it_trains(recipes_dir: Path) -> None:
    experiment = make_experiment(
        recipes_dir, only=("transformer",), overrides=("model.decoder.num_layers=2", "seed=3")
    )
    (run,) = build_runs(experiment)
    assert run.config.model.decoder.num_layers == 2 and (run.name, run.seed) == ("transformer", 3)  # type: ignore[union-attr]
    others = [run.seed for run in find_all_runs(experiment) if run.system == "ctc_lstm"]
    assert others == [0], "which has no decoder"
    (small,) = build_runs(replace(experiment, smoke=True, overrides=("train.steps=7",)))
    assert small.config.train.steps == 7 and small.config.model.encoder.dim == 16  # type: ignore[union-attr]
    assert experiment.command.endswith("--only transformer --set model.decoder.num_layers=2 --set seed=3")


def test_an_unknown_system(recipes_dir: Path) -> None:
    with pytest.raises(
        UserError, match=r"--only transfomer: no transfomer.yaml in .*; did you mean transformer\?"
    ):
        run_recipe(make_experiment(recipes_dir, only=("transfomer",)))
    assert not Path("data").exists(), "said before anything is done"


def test_the_output_folder_moves_data_and_runs(recipes_dir: Path) -> None:
    text = COMMON.replace("dev: data/tones/dev.jsonl", "dev: elsewhere/dev.jsonl")
    write_conf(recipes_dir.parent, "transformer", text.format(name="transformer") + SYSTEMS["transformer"])
    config = build_runs(make_experiment(recipes_dir, output_dir=Path("/x y"), only=("transformer",)))[
        0
    ].config
    assert config.output_dir == "/x y/runs/transformer"
    assert (config.data.train, config.data.dev) == ("/x y/train.jsonl", "elsewhere/dev.jsonl")


def test_runs_of_other_seeds_are_found_again(recipes_dir: Path) -> None:
    for name in ("transformer-seed-3", "transformer-seed-x", "transformer-seed-3.old-1", "ctc_lstm"):
        Path("runs/tones", name).mkdir(parents=True)
    names = [run.name for run in find_all_runs(make_experiment(recipes_dir, seeds=(1,)))]
    assert names == ["ctc_lstm", "ctc_lstm-seed-1", "transformer", "transformer-seed-1", "transformer-seed-3"]


def test_what_another_run_reads_comes_first(recipes_dir: Path) -> None:
    text = COMMON.replace("batches: {{", "start_from: runs/tones/transformer\nbatches: {{")
    write_conf(recipes_dir.parent, "ctc_lstm", text.format(name="ctc_lstm") + SYSTEMS["ctc_lstm"])
    assert [run.name for run in build_runs(make_experiment(recipes_dir))] == ["transformer", "ctc_lstm"]


@pytest.mark.parametrize(
    ("override", "is_other"),
    [
        ("seed=1", True),
        ("optim.learning_rate=1e-4", True),
        ("model.encoder.dropout=0.2", True),
        ("text.scoring=[uppercase]", True),
        ("output_dir=elsewhere", False),
        ("data.train=elsewhere.jsonl", False),  # its content is hashed, not its place
        ("train.log_every=3", False),
        ("batches.num_workers=1", False),
    ],
)
def test_what_makes_another_training(recipes_dir: Path, override: str, is_other: bool) -> None:
    path = make_experiment(recipes_dir).recipe.find_systems()["transformer"].path
    one, two = hash_settings(RunConfig.load(path)), hash_settings(RunConfig.load(path, [override]))
    assert (one != two) == is_other


class Small(Config):
    type: Literal["small"] = "small"
    dim: int = 8


class Large(Config):
    type: Literal["large"] = "large"
    dim: int = 8


class Before(Config):
    """What a hash is made of, but for RunConfig's own keys."""

    seed: int = 0
    part: Small | Large
    more: Small | Large | None = None
    usual: Small = Small(dim=5)


class LaterSmall(Small):
    depth: int = 2


class LaterLarge(Large):
    width: float | None = None


class Later(Config):
    """The same with new keys, all of which have a default, in it and in its sections."""

    added: tuple[str, ...] = ("x",)
    seed: int = 0
    part: LaterSmall | LaterLarge
    section: Small = Small()
    more: LaterSmall | LaterLarge | None = None
    usual: LaterSmall = LaterSmall(dim=5)
    chance: float = pydantic.Field(default=0.5, gt=0)


SETTINGS = [
    [],
    ["seed=1"],
    ["part.dim=9"],
    ["part.type=large"],
    ["more.type=small"],
    ["more.type=large"],
    ["more.type=large", "more.dim=9"],
    ["usual.dim=8"],
    ["usual.dim=7"],
]


def test_a_new_key_with_a_default_changes_no_hash() -> None:
    def build(kind: type[Config], overrides: list[str]) -> str:
        given = [pair for pair in overrides if pair.startswith("part.type")] or ["part.type=small"]
        return hash_settings(build_config(kind, [*given, *overrides]))  # type: ignore[arg-type]

    before = [build(Before, overrides) for overrides in SETTINGS]
    assert len(set(before)) == len(SETTINGS), "each is another training"
    assert [build(Later, overrides) for overrides in SETTINGS] == before
    for new in ("added=[y]", "part.depth=3", "section.dim=9", "usual.depth=3", "chance=0.25"):
        assert build(Later, [new]) not in before


def test_a_default_that_is_written_out_is_none_the_less_default(recipes_dir: Path) -> None:
    path = make_experiment(recipes_dir).recipe.find_systems()["transformer"].path
    config = RunConfig.load(path)
    whole = build_config(
        RunConfig,
        [f"{name}={json.dumps(value)}" for name, value in json.loads(config.model_dump_json()).items()],
    )
    assert hash_settings(whole) == hash_settings(config)


# --- smoke mode ---------------------------------------------------------------------------------


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
        build_plan(make_experiment(recipes_dir), None)
    assert caplog.text.count(f"tuned: left out, since {reason}") == 1
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


def test_a_system_starts_from_another_of_its_recipe(recipes_dir: Path) -> None:
    text = "start_from: runs/tones/transformer\n" + COMMON.format(name="a") + SYSTEMS["transformer"]
    write_conf(recipes_dir.parent, "a", text)
    runs = build_runs(make_experiment(recipes_dir, output_dir=Path("x")))
    assert [run.system for run in runs] == ["transformer", "ctc_lstm", "a"]
    assert runs[2].config.start_from == "x/runs/transformer"
