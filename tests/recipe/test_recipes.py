"""Each recipe on a small corpus in its publisher's layout: whole, halved, altered; and on the real ones, if given."""

from __future__ import annotations

import hashlib
import json
import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpus_examples import RECIPES_DIR, Corpus, damage_test, load, make_corpus, write_audio

from asr.audio import read
from asr.data import Utterance, read_manifest
from asr.errors import UserError
from asr.recipe import Experiment, Recipe, find_recipes, load_recipe, run_recipe
from asr.recipe.corpora import compute_fingerprint
from asr.recipe.experiment import build_runs, load_conf
from asr.speakers.turns import read_rttm, read_seglst

SPLITS = ("train", "dev", "test")


def read_all(output_dir: Path, suffix: str = "") -> dict[str, list[Utterance]]:
    return {split: list(read_manifest(output_dir / f"{split}{suffix}.jsonl")) for split in SPLITS}


def alter_audio(path: Path) -> None:
    samples, sample_rate = soundfile.read(path, dtype="int16")
    samples[len(samples) // 2] += 1
    container = soundfile.info(path).format
    soundfile.write(path, samples, sample_rate, format=container, subtype="PCM_16")


@pytest.mark.parametrize("name", sorted(set(find_recipes(RECIPES_DIR)) - {"an4_synthetic"}))
def test_a_recipe_is_short_and_has_a_page(name: str) -> None:
    recipe = load_recipe(name, RECIPES_DIR)
    assert recipe.synthetic or recipe.source or all(re.match(r"https?://", url) for url in recipe.urls)
    readme = (RECIPES_DIR / name / "README.md").read_text(encoding="utf-8")
    assert f"asr recipe run {name}" in readme
    assert len((RECIPES_DIR / name / "recipe.py").read_text(encoding="utf-8").splitlines()) <= 215


@pytest.mark.parametrize("name", sorted(find_recipes(RECIPES_DIR)))
def test_the_confs_of_a_recipe_load_and_name_its_own_data(name: str) -> None:
    for system, conf in load_recipe(name, RECIPES_DIR).find_systems().items():
        config = load_conf(conf)
        assert Path(config.output_dir) == Path("runs") / name / system
        paths = [path for _, path in config.data.named_paths]
        assert paths and all(path.startswith(f"data/{name}/") for path in paths), system


def test_meetings_are_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of utterances of noise between silence: the reference has the noise; overlaps are about as asked for."""
    speech = np.random.default_rng(0).normal(scale=0.1, size=32_000)
    soundfile.write(tmp_path / "a.wav", np.concatenate([np.zeros(8_000), speech, np.zeros(8_000)]), 16_000)
    items = [
        Utterance(id=f"{n}", audio=f"{tmp_path}/a.wav", duration=3, text="A B", speaker=f"{corpus}-{n % 5}")
        for corpus in ("an4", "fsdd", "speechocean762")
        for n in range(40)
    ]
    small = {
        "read_corpora": lambda *_: dict.fromkeys(("train", "test"), items),
        "find_corpus": lambda *_: None,
    }
    recipe = load("conversations", monkeypatch, **small, MEETING_SECONDS=(25.0, 35.0))
    recipe.prepare(None, tmp_path, steps={"test": 11})
    turns, segments = read_rttm(tmp_path / "test.rttm"), read_seglst(tmp_path / "test.json")
    manifest = list(read_manifest(tmp_path / "test.jsonl"))
    assert [u.extras["overlap"] for u in manifest] == [0, 0, 0.1, 0.2]
    for meeting in manifest:
        audio = read(meeting.audio, 16_000)
        active = np.zeros((5, len(audio)), int)
        speakers = str(meeting.speaker).split("+")
        assert len(speakers) == meeting.extras["speakers"]
        for turn in (turn for turn in turns if turn.recording == meeting.id):
            active[speakers.index(turn.speaker), round(16_000 * turn.start) : round(16_000 * turn.end)] += 1
        num_active = active.sum(axis=0)
        assert active.max() == 1 and num_active.max() <= 2
        share = np.sum(num_active > 1) / np.sum(num_active > 0)
        assert share == pytest.approx(meeting.extras["overlap"], abs=0.06)
        assert audio[num_active == 0].std() < 0.1 * audio[num_active > 0].std()
        said = [segment.text for segment in segments if segment.recording == meeting.id]
        assert " ".join(said) == meeting.text
        far = read(tmp_path / "audio" / "test_far" / f"{meeting.id}.wav", 16_000)
        alone = [(row > 0) & (num_active == 1) for row in active]
        loud, *quiet = (far[own].std() for own in alone[: len(speakers)])
        assert max(quiet) < 0.8 * loud, "all but the first are far from the microphone"


@pytest.fixture
def an4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return make_corpus("an4", tmp_path / "an4", monkeypatch)


@pytest.fixture
def yesno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return make_corpus("yesno", tmp_path / "yesno", monkeypatch)


@pytest.mark.parametrize(
    ("seconds", "texts", "speakers"), [(2, ["YES O H"], ["fcaw+miry"]), (1, ["YES", "O H"], ["fcaw", "miry"])]
)
def test_an4_joined(
    an4: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    texts: list[str],
    speakers: list[str],
) -> None:
    """Utterances of 0.7 s each: all samples and words are there, in recordings of at most so many seconds."""
    recipe, root = an4
    monkeypatch.setitem(recipe.prepare.__globals__, "JOINED_SECONDS", (seconds,))
    recipe.prepare(root, tmp_path / "out")
    joined = list(read_manifest(tmp_path / "out" / f"test_{seconds}s.jsonl"))
    assert [u.text for u in joined] == texts and [u.speaker for u in joined] == speakers
    assert all(u.duration <= seconds for u in joined)
    parts = [read(u.audio, 16_000) for u in read_manifest(tmp_path / "out/test.jsonl")]
    np.testing.assert_array_equal(
        np.concatenate([read(u.audio, 16_000) for u in joined]), np.concatenate(parts)
    )


FSDD_SPEAKERS = ("jackson", "theo")
STRINGS_PER_SPEAKER = {"train": 10, "dev": 5, "test": 5}
LONG_STRINGS = {"dev_15": (15, 1), "test_10": (10, 4), "test_15": (15, 2)}


@pytest.fixture
def fsdd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recipe, Path]:
    root = tmp_path / "free-spoken-digit-dataset-1.0.10"
    names = [
        f"recordings/{digit}_{speaker}_{number}.wav"
        for digit in range(10)
        for speaker in FSDD_SPEAKERS
        for number in (0, 4, 5, 9, 10, 49)
    ]
    for index, name in enumerate(names):
        write_audio(root / name, 0.2 + 0.001 * index, 8_000)
    (root / "README.md").touch()
    fingerprint = compute_fingerprint(root, names, 8_000)
    recipe = load("fsdd", monkeypatch, NUM_RECORDINGS=len(names), FINGERPRINT=fingerprint)
    prepare = partial(recipe.prepare, strings_per_speaker=STRINGS_PER_SPEAKER, long_strings=LONG_STRINGS)
    return recipe.model_copy(update={"prepare": prepare}), root


def test_fsdd_recordings(fsdd: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, root = fsdd
    recipe.prepare(root.parent, tmp_path / "out")
    singles = read_all(tmp_path / "out", "_single")
    numbers = {split: {int(u.id.split("_")[2]) for u in us} for split, us in singles.items()}
    assert numbers == {"train": {10, 49}, "dev": {5, 9}, "test": {0, 4}}
    seven = next(u for u in singles["test"] if u.id == "7_theo_4")
    assert (seven.text, seven.speaker, seven.language) == ("SEVEN", "theo", "en")
    assert Path(seven.audio) == root / "recordings/7_theo_4.wav"
    assert seven.duration == pytest.approx(soundfile.info(seven.audio).duration)


def test_fsdd_strings(fsdd: tuple[Recipe, Path], tmp_path: Path) -> None:
    """Every word stands where its times say, and is a recording of that speaker, digit and split."""
    recipe, root = fsdd
    recipe.prepare(root, tmp_path / "out")
    singles = read_all(tmp_path / "out", "_single")
    for split, strings in read_all(tmp_path / "out").items():
        known = {
            soundfile.read(u.audio, dtype="int16")[0].tobytes(): (u.text, u.speaker) for u in singles[split]
        }
        used = []
        for string in strings:
            samples, sample_rate = soundfile.read(string.audio, dtype="int16")
            assert sample_rate == 8_000 and string.duration == len(samples) / 8_000
            assert Path(string.audio).is_relative_to(tmp_path / "out")
            words = re.findall(r"([A-Z]+):([\d.]+)-([\d.]+)", str(string.extras["word_times"]))
            assert " ".join(word for word, _, _ in words) == string.text
            for word, start, end in words:
                piece = samples[round(float(start) * 8_000) : round(float(end) * 8_000)]
                assert known[piece.tobytes()] == (word, string.speaker)
                used.append(piece.tobytes())
        lengths = [len(str(string.text).split()) for string in strings]
        assert sorted(set(lengths)) == [3, 4, 5, 6, 7]
        assert len(strings) == len(FSDD_SPEAKERS) * STRINGS_PER_SPEAKER[split]
        counts = [used.count(piece) for piece in known]
        assert max(counts) - min(counts) <= 1


def test_fsdd_is_the_same_each_time(fsdd: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, root = fsdd
    for name in ("one", "two"):
        recipe.prepare(root, tmp_path / name)
    assert digest_folder(tmp_path / "one") == digest_folder(tmp_path / "two")


def digest_folder(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


test_no_damage_goes_unnoticed = damage_test("fsdd")


@pytest.mark.parametrize("name", ["an4", "fsdd", "yesno"])
def test_another_sample_is_another_corpus(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    recipe, root = request.getfixturevalue(name)
    alter_audio(max(path for path in root.rglob("*") if path.suffix in (".wav", ".sph")))
    with pytest.raises(UserError, match="differs from the published corpus"):
        recipe.prepare(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def prepare_digits(output_dir: Path, counts: dict[str, int]) -> None:
    load_recipe("digits", RECIPES_DIR).prepare(None, output_dir, num_utterances=counts)


def test_digits(tmp_path: Path) -> None:
    counts = {"train": 20, "dev": 5, "test": 5}
    prepare_digits(tmp_path, counts)
    known = set(load_recipe("digits", RECIPES_DIR).prepare.__globals__["WORDS"])
    splits = read_all(tmp_path)
    assert {split: len(utterances) for split, utterances in splits.items()} == counts
    timbres = {split: {str(u.speaker).split("+")[1] for u in us} for split, us in splits.items()}
    assert not timbres["train"] & (timbres["dev"] | timbres["test"]) and timbres["train"]
    for utterance in splits["train"] + splits["dev"] + splits["test"]:
        words = str(utterance.text).split()
        assert 1 <= len(words) <= 7 and set(words) <= known
        audio, sample_rate = soundfile.read(utterance.audio, dtype="float32")
        assert sample_rate == 16_000 and utterance.duration == len(audio) / sample_rate
        assert 0.2 + 0.1 * len(words) < utterance.duration < 1.0 + 0.9 * len(words)
        assert 0.06 < np.abs(audio).max() < 0.9
        levels = np.sqrt(np.mean(audio[: len(audio) // 400 * 400].reshape(-1, 400) ** 2, axis=1))
        assert np.percentile(levels, 95) > 3 * np.percentile(levels, 5) > 0  # speech above noise


def test_digits_do_not_depend_on_what_is_spoken_before(tmp_path: Path) -> None:
    prepare_digits(tmp_path / "one", {"train": 4, "test": 2})
    prepare_digits(tmp_path / "two", {"test": 2, "train": 2})
    one, two = digest_folder(tmp_path / "one" / "audio"), digest_folder(tmp_path / "two" / "audio")
    assert len(two) == 4 and two.items() <= one.items()


def run_smoke(recipe: Recipe, corpus_dir: Path | None, output_dir: Path) -> None:
    """All stages with all systems of the checkout, as `asr recipe run NAME --smoke` does it."""
    experiment = Experiment(recipe, output_dir, corpus_dir, smoke=True)
    run_recipe(experiment)
    runs = build_runs(experiment)  # without those that start from a model of elsewhere
    for run in runs:
        assert run.model_path.exists(), run.name
    compared = [run.system for run in runs if run.makes_text]
    if compared:
        results = json.loads((output_dir / "runs" / "report" / "results.json").read_text())
        assert results["smoke"] is True and [run["name"] for run in results["runs"]] == compared


@pytest.mark.slow
@pytest.mark.parametrize("name", ["an4", "fsdd", "yesno", "digits"])
def test_smoke(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    corpus = (load_recipe(name, RECIPES_DIR), None) if name == "digits" else request.getfixturevalue(name)
    run_smoke(*corpus, tmp_path / "out")


EXPECTED_COUNTS = {
    "an4": {"train": 859, "dev": 89, "dev_30s": 9, "dev_60s": 5, "train_all": 948, "test": 130}
    | {"test_30s": 13, "test_60s": 7},
    "fsdd": {"train": 2_400, "train_4th": 600, "train_16th": 150, "dev": 150, "dev_15": 48, "test": 300}
    | {"test_10": 150, "test_15": 120, "test_30": 60}
    | {"train_single": 2_400, "dev_single": 300, "test_single": 300},
    "speechocean762": {"train": 2_000, "dev": 500, "train_all": 2_500, "test": 2_500},
    "yesno": {"train": 24, "dev": 6, "test": 30},
    "digits": {"train": 1_500, "dev": 200, "test": 200},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(EXPECTED_COUNTS))
def test_real_corpora(name: str, tmp_path: Path) -> None:
    folder = os.environ.get("ASR_CORPORA")
    recipe = load_recipe(name, RECIPES_DIR)
    if recipe.urls and folder is None:
        pytest.skip("set ASR_CORPORA to a folder that holds the corpora as published, each under its name")
    recipe.prepare(Path(str(folder)) / name if recipe.urls else None, tmp_path)
    splits = {path.stem: list(read_manifest(path)) for path in tmp_path.glob("*.jsonl")}
    assert {split: len(utterances) for split, utterances in splits.items()} == EXPECTED_COUNTS[name]
    hours = sum(u.duration for split in SPLITS for u in splits[split]) / 3600
    assert hours == pytest.approx(recipe.hours, abs=0.005)
    if name == "digits":
        voices = {split: {u.speaker for u in utterances} for split, utterances in splits.items()}
        assert {split: len(names) for split, names in voices.items()} == {"train": 48, "dev": 8, "test": 12}
