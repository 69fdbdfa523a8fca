"""What is wrong with the splits of a recipe is found before training."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from recipe_examples import COMMON, SYSTEMS, make_experiment, write_conf, write_tones_recipe

from asr.data import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.recipe import find_shared, run_recipe

TONES = SYSTEMS["ctc_lstm"]


@pytest.fixture
def recipes_dir(tmp_path: Path, tones: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe of tones with one system, for which all but its training is done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asr.recipe.stages.train_and_draw", lambda config: pytest.fail("trained"))
    folder = write_tones_recipe(tmp_path, tones)
    (tmp_path / "conf" / "tones" / "transformer.yaml").unlink()
    return folder


def change_test(change: Callable[[Utterance], Utterance]) -> None:
    utterances = [change(utterance) for utterance in read_manifest("data/tones/test.jsonl")]
    write_manifest("data/tones/test.jsonl", utterances)


def test_a_conf_of_another_corpus(recipes_dir: Path, tmp_path: Path) -> None:
    conf = write_conf(
        tmp_path, "copied", COMMON.format(name="copied").replace("data/tones", "data/an4") + TONES
    )
    message = (
        "data.train = data/an4/train.jsonl is data of an4, but this is a system of tones; set data.train: "
    )
    with pytest.raises(UserError, match=f"{conf}: {message}data/tones/train.jsonl"):
        run_recipe(make_experiment(recipes_dir))
    write_conf(
        tmp_path, "copied", COMMON.format(name="copied").replace("data/tones/dev", "data/an4/dev") + TONES
    )
    with pytest.raises(UserError, match=r"data\.dev = data/an4/dev\.jsonl is data of an4"):
        run_recipe(make_experiment(recipes_dir))


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_conf_that_names_shards(recipes_dir: Path, tmp_path: Path, split: str) -> None:
    (tmp_path / "shards").mkdir()
    conf = f"{COMMON.format(name='packed')}{TONES}".replace(f"data/tones/{split}.jsonl", "shards")
    path = write_conf(tmp_path, "packed", conf)
    with pytest.raises(
        UserError, match=f"{path}: data.{split} = shards is a folder of shards. .* `asr train`"
    ):
        run_recipe(make_experiment(recipes_dir))


@pytest.mark.parametrize("fault", ["id", "path", "copy", "train_all"])
def test_what_is_tested_is_not_learnt(recipes_dir: Path, tones: Path, tmp_path: Path, fault: str) -> None:
    run_recipe(make_experiment(recipes_dir), "prepare")
    shutil.copy(tones / "train-7.wav", tmp_path / "other.wav")
    changes = {
        "id": {"id": "train-7"},
        "path": {"id": "new", "audio": str(tones / "train-7.wav")},
        "copy": {"id": "new", "audio": str(tmp_path / "other.wav")},
    }
    name = "train.jsonl"
    if fault in changes:
        change_test(lambda one: one.model_copy(update=changes[fault]) if one.id == "dev-2" else one)
    else:  # a system that reads another manifest
        name = "train_all.jsonl"
        change_test(lambda one: one.model_copy(update={"id": f"test-{one.id}"}))
        write_manifest(
            f"data/tones/{name}", [*read_manifest(tones / "train.jsonl"), *read_manifest(tones / "dev.jsonl")]
        )
        text = COMMON.format(name="ctc_lstm").replace("train.jsonl", name) + TONES
        write_conf(tmp_path, "ctc_lstm", text)
    count, found = (6, "dev-0") if fault == "train_all" else (1, "train-7")
    with pytest.raises(UserError) as error:
        run_recipe(make_experiment(recipes_dir), "train")
    assert (
        f"{count} utterances of data/tones/{name} are also in data/tones/test.jsonl, by id or audio"
        in str(error.value)
    )
    assert found in str(error.value) and "let prepare keep them apart" in str(error.value)
    with pytest.raises(UserError, match="are also in"):
        run_recipe(make_experiment(recipes_dir), "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "6 of 6 utterances have no text to compare with, such as dev-0"),
        (" ", "no utterance has a word"),
    ],
)
def test_a_test_split_that_gives_no_error_rate(recipes_dir: Path, text: str | None, message: str) -> None:
    run_recipe(make_experiment(recipes_dir), "prepare")
    change_test(lambda one: one.model_copy(update={"text": text}))
    with pytest.raises(UserError, match=message):
        run_recipe(make_experiment(recipes_dir), "train")


def test_dev_that_is_test_is_said_to_be(
    recipes_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is in this recipe."""
    monkeypatch.setattr("asr.recipe.stages.train_and_draw", lambda config: None)
    with caplog.at_level(logging.WARNING):
        run_recipe(make_experiment(recipes_dir), "prepare")
        run_recipe(make_experiment(recipes_dir), "train")
    assert "6 utterances of data/tones/dev.jsonl are also in data/tones/test.jsonl" in caplog.text
    assert "Dev chooses by them, so WER on test comes out too low" in caplog.text


def at(seconds: Sequence[float], id: str = "x", audio: str = "a.wav") -> Utterance:
    return Utterance(id=id, audio=audio, start=seconds[0], duration=seconds[1] - seconds[0])


def test_parts_of_one_recording_are_apart_unless_they_overlap_by_half() -> None:
    tested = [at((10, 20)), at((40, 44), "y")]
    for span, is_shared in (
        ((0, 10), False),
        ((0, 10.5), False),
        ((14, 24), True),
        ((41, 60), True),
        ((44, 50), False),
    ):
        assert bool(find_shared(tested, [at(span, "z")])) == is_shared, span
    assert find_shared(tested, [at((14, 24), "z", "b.wav"), at((0, 1), "y", "c.wav")]) == ["y"]
