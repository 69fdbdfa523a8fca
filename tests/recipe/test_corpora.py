"""The folder of a corpus is found from near it; what is missing or altered is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data import Utterance
from asr.errors import UserError
from asr.recipe import find_corpus, find_files, find_folder, limit_repeats, require_fingerprint, widen
from asr.recipe.corpora import compute_fingerprint

LANDMARK = "etc/list.txt"


def make_corpus(folder: Path) -> Path:
    (folder / "etc").mkdir(parents=True)
    (folder / LANDMARK).touch()
    (folder / "wav").mkdir()
    return folder


@pytest.mark.parametrize("given", ["data/corpus", "data", "data/corpus/etc", "data/corpus/wav"])
def test_the_folder_is_found_from_near_it(tmp_path: Path, given: str) -> None:
    corpus = make_corpus(tmp_path / "data" / "corpus")
    (tmp_path / "data" / "other").mkdir()
    assert find_corpus(tmp_path / given, LANDMARK) == corpus


def test_a_wrong_folder(tmp_path: Path) -> None:
    (tmp_path / "corpus.tar.gz").touch()
    for given in (tmp_path, tmp_path / "corpus.tar.gz", tmp_path / "none", None):
        with pytest.raises(UserError, match=r"--corpus-dir|cannot read this folder"):
            find_corpus(given, LANDMARK)
    for name in "ab":
        make_corpus(tmp_path / name)
    with pytest.raises(UserError, match=r"a, b do"):
        find_corpus(tmp_path, LANDMARK)


@pytest.fixture
def recordings(tmp_path: Path) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    samples = {
        name: random.integers(-32768, 32768, 800, dtype=np.int16) for name in ("b.wav", "a.wav", "c.wav")
    }
    samples["c.wav"][:] = 0
    for name, values in samples.items():
        soundfile.write(tmp_path / name, values, 8_000)
    return samples


def test_the_fingerprint_is_of_names_and_samples(tmp_path: Path, recordings: dict[str, np.ndarray]) -> None:
    """Another container with the same samples is the same corpus."""
    expected = compute_fingerprint(tmp_path, recordings, 8_000)
    assert expected.startswith("e12380c9072df0fe")
    soundfile.write(tmp_path / "a.wav", recordings["a.wav"], 8_000, format="FLAC", subtype="PCM_16")
    require_fingerprint(tmp_path, recordings, 8_000, expected)


@pytest.mark.parametrize("change", ["sample", "length", "name"])
def test_one_difference_is_noticed(tmp_path: Path, recordings: dict[str, np.ndarray], change: str) -> None:
    expected = compute_fingerprint(tmp_path, recordings, 8_000)
    if change == "sample":
        recordings["b.wav"][400] ^= 1
    if change == "length":
        recordings["b.wav"] = recordings["b.wav"][:-1]
    soundfile.write(tmp_path / "b.wav", recordings["b.wav"], 8_000)
    names = set(recordings)
    if change == "name":
        (tmp_path / "b.wav").rename(tmp_path / "d.wav")
        names = names - {"b.wav"} | {"d.wav"}
    with pytest.raises(UserError, match=r"3 audio files differs from the published corpus"):
        require_fingerprint(tmp_path, names, 8_000, expected)


def test_repeated_texts_are_thinned_out_as_by_kaldi() -> None:
    """The line is kept if it is rarer than the limit, or if limit / count is above the next random number."""
    utterances = [
        Utterance(
            id=f"u{number:03}", audio="a.wav", duration=1, text="yeah" if number % 3 else f"text {number}"
        )
        for number in range(60)
    ]
    drawn, state = [], 0
    for _ in range(40):
        state = (state + 103349) % 71147
        drawn.append(state / 71147 < 10 / 40)
    kept = limit_repeats(reversed(utterances), 10)
    yeahs = [utterance for utterance in utterances if utterance.text == "yeah"]
    expected = {u.id for u in utterances if u.text != "yeah"} | {
        u.id for u, is_kept in zip(yeahs, drawn, strict=True) if is_kept
    }
    assert [u.id for u in kept] == sorted(expected)
    assert 5 <= sum(drawn) <= 15


@pytest.mark.parametrize(
    ("spans", "widened"),
    [
        ([(1.0, 2.0)], [(0.8, 2.1)]),
        ([(0.1, 2.0), (5.0, 6.0)], [(0.0, 2.1), (4.8, 6.05)]),
        ([(3.0, 4.0), (1.0, 2.8)], [(2.85, 4.1), (0.8, 2.85)]),  # 2.9 and 2.8 meet in the middle
        ([(1.0, 2.0), (2.0, 3.0)], [(0.8, 1.95), (1.95, 3.1)]),
    ],
)
def test_spans_are_widened_but_not_into_each_other(spans: list, widened: list) -> None:
    assert widen(spans, 0.2, 0.1, 6.05) == widened


def test_files_are_found_in_any_case_through_links_and_without_circles(tmp_path: Path) -> None:
    for name in ("b/X.WAV", "a/y.wav", "a/._y.wav", "a/z.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in find_files(tmp_path, ".wav")]
    assert found == ["a/y.wav", "b/X.WAV"]
    assert find_folder(tmp_path, "nothing", "A") == tmp_path / "a"
    assert find_folder(tmp_path, "b/X.wav") is None  # a file
