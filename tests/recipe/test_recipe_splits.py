"""What is wrong with the splits of a recipe is found before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from recipe_examples import COMMON, SYSTEMS, make_experiment, write_conf, write_tones_recipe

from asr.data import Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.recipe import run_recipe
from asr.recipe.splits import find_shared

TONES = SYSTEMS["ctc_lstm"]


@pytest.fixture
def recipes_dir(tmp_path: Path, tones: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe of tones with one system, for which all but its training is done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asr.recipe.stages.train_model", lambda config: pytest.fail("trained"))
    folder = write_tones_recipe(tmp_path, tones)
    (tmp_path / "conf" / "tones" / "transformer.yaml").unlink()
    return folder


def change_test(change: Callable[[Utterance], Utterance]) -> None:
    utterances = [change(utterance) for utterance in read_manifest("data/tones/test.jsonl")]
    write_manifest("data/tones/test.jsonl", utterances)


@pytest.mark.parametrize("problem", ["id", "path", "train_all"])
def test_what_is_tested_is_not_learned(recipes_dir: Path, tones: Path, tmp_path: Path, problem: str) -> None:
    run_recipe(make_experiment(recipes_dir), "prepare")
    changes = {"id": {"id": "train-7"}, "path": {"id": "new", "audio": str(tones / "train-7.wav")}}
    name, shared = "train.jsonl", "1 utterances"
    if problem in changes:
        change_test(lambda one: one.model_copy(update=changes[problem]) if one.id == "dev-2" else one)
    else:  # a system that reads another manifest
        name, shared = "train_all.jsonl", "5 utterances"
        change_test(lambda one: one.model_copy(update={"id": f"test-{one.id}"}))
        both = [*read_manifest(tones / "train.jsonl"), *read_manifest(tones / "dev.jsonl")]
        write_manifest(f"data/tones/{name}", both)
        text = COMMON.format(name="ctc_lstm").replace("train.jsonl", name) + TONES
        write_conf(tmp_path, "ctc_lstm", text)
    for _ in range(2):
        message = f"{shared} of data/tones/{name} are also in data/tones/test.jsonl"
        with pytest.raises(UserError, match=message):
            run_recipe(make_experiment(recipes_dir), "train")


@pytest.mark.parametrize("text", [None, " "])
def test_a_test_split_that_gives_no_error_rate(recipes_dir: Path, text: str | None) -> None:
    run_recipe(make_experiment(recipes_dir), "prepare")
    change_test(lambda one: one.model_copy(update={"text": text}))
    message = r"test\.jsonl: every utterance needs a text, and at least one a word"
    with pytest.raises(UserError, match=message):
        run_recipe(make_experiment(recipes_dir), "train")


def test_dev_that_is_test_is_said_to_be(
    recipes_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is in this recipe."""
    monkeypatch.setattr("asr.recipe.stages.train_model", lambda config: None)
    run_recipe(make_experiment(recipes_dir), "prepare")
    run_recipe(make_experiment(recipes_dir), "train")
    assert "5 utterances of data/tones/dev.jsonl are also in data/tones/test.jsonl" in caplog.text


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
