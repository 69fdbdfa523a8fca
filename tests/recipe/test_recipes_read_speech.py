"""Recipes of read speech and of talks, each on a small corpus in its publisher's layout: whole and damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from corpus_examples import (
    Corpus,
    damage_test,
    edit,
    load,
    make_corpus,
    prepare,
    rename,
    texts,
    write_audio,
    write_text,
)

from asr.errors import UserError
from asr.recipe import Experiment, run_recipe
from asr.recipe.report import describe_experiment, list_warnings

# --- LibriSpeech --------------------------------------------------------------------------------


@pytest.fixture
def librispeech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return make_corpus("librispeech", tmp_path / "corpus", monkeypatch)


def test_a_part_of_librispeech(
    librispeech: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder alone: its readers are shared out, and the log says so."""
    recipe, root = librispeech
    folder = root / "LibriSpeech" / "dev-clean"
    for reader in range(500, 520):
        name = f"{reader}-1-0000"
        write_text(folder / f"{reader}" / "1" / f"{reader}-1.trans.txt", f"{name} HELLO")
        write_audio(folder / f"{reader}" / "1" / f"{name}.flac")
    monkeypatch.setitem(recipe.prepare.__globals__, "COUNTS", {"dev-clean": 22, "test-clean": 2})
    caplog.set_level(logging.INFO)
    sets = prepare((recipe, root), tmp_path / "out", "LibriSpeech/dev-clean")
    speakers = {split: {u.speaker for u in sets[split].values()} for split in ("train", "dev", "test")}
    assert len(set.union(*speakers.values())) == sum(map(len, speakers.values())) == 21
    assert all(len(speakers[split]) in (2, 3) for split in ("dev", "test"))
    assert sets["dev_clean"] == sets["dev"], "no utterance of train or test"
    assert "dev: dev-clean (22 utterances)" in caplog.messages
    assert "without test-clean: results do not compare" in caplog.text
    assert "no part for train and test" in caplog.text


def test_a_part_of_test_is_refused_and_one_of_train_marked(librispeech: Corpus, tmp_path: Path) -> None:
    """Results depend on the first; of the second, each result and page says so."""
    recipe, root = librispeech
    line = "14-123456-0001 DON'T SAY TRA\n"
    edit("LibriSpeech/train-clean-360/14/123456/14-123456.trans.txt", line, "")(root)
    experiment = Experiment(recipe, tmp_path / "out", root)
    run_recipe(experiment, "prepare")
    lacking = "1 of 2 utterances of train-clean-360"
    about = describe_experiment(experiment)
    assert about["partial"] == [lacking]
    assert list_warnings(about) == [f"A PART OF THE CORPUS: {lacking}."]
    line = "367-123456-0001 DON'T SAY TES\n"
    edit("LibriSpeech/test-other/367/123456/367-123456.trans.txt", line, "")(root)
    with pytest.raises(UserError, match=r"found 1 utterances of test-other, expected 2; get a complete copy"):
        run_recipe(experiment, "prepare", force=True)


# --- VoxForge ------------------------------------------------------------------------------------


@pytest.fixture
def voxforge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "it"
    for number in range(60):
        visit = f"anonymous-200807{number % 28 + 1:02}" if number % 2 else "ana-20990101"
        folder = root / "extracted" / f"{visit}-a{number:02}"
        line = f"{folder.name}/mfc/it-0001 Parla-più piano {chr(97 + number % 26)}"
        write_text(folder / "etc/PROMPTS", line, encoding="cp1252" if number % 3 else "utf-8")
        write_text(folder / "etc" / "README", "User Name:anonymous")
        write_audio(folder / ("wav/it-0001.wav" if number % 5 else "flac/it-0001.flac"), 0.05)
    return load("voxforge", monkeypatch), root


def test_voxforge(voxforge: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = voxforge[1]
    for name, line in {
        "no_readme-20990101": "x/mfc/it-0001 UNO",
        "ana-20990101-zzz": "x/mfc/it-0001 UNO 2_3",
    }.items():
        write_text(root / "extracted" / name / "etc" / "PROMPTS", line, "x/mfc/it-0002 DUE")
    write_text(root / "extracted/ana-20990101-zzz/etc/README", "")
    write_text(root / "extracted/ana/etc/PROMPTS", "x/mfc/it-0001 UNO")  # no date in its name: not counted
    sets = prepare(voxforge, tmp_path / "out")
    found = {split: set(texts(sets[split]).values()) for split in sets}
    assert sum(map(len, sets.values())) == 60 and set(sets) == {"train", "dev", "test"}
    assert len(set.union(*found.values())) == sum(map(len, found.values())) == 26
    assert "PARLA PIÙ PIANO A" in set.union(*found.values())
    speakers = {u.speaker for split in sets.values() for u in split.values()}
    assert len(speakers) == 31 and "ana" in speakers  # each anonymous visit is someone else
    assert "left out 1 folders without etc/README" in caplog.text
    assert "left out 1 lines whose audio is missing or empty" in caplog.text
    assert "left out 1 texts with other than letters, digits and apostrophes" in caplog.text


def test_voxforge_without_folders(voxforge: Corpus, tmp_path: Path) -> None:
    recipe, root = voxforge
    rename("extracted", "../elsewhere")(root)
    with pytest.raises(UserError, match=r"expected folders such as ana-20080725-dey"):
        recipe.prepare(root, tmp_path / "out")


# --- downloads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "archive", "inner"),
    [
        ("an4", "an4_sphere.tar.gz", "an4_sphere"),
        ("fsdd", "free-spoken-digit-dataset-1.0.10.tar.gz", "fsdd"),
        ("yesno", "waves_yesno.tar.gz", "yesno"),
        ("aidatatang", "aidatatang_200zh.tgz", "aidatatang"),
        ("aishell", "data_aishell.tgz", "aishell"),
        ("jsut", "jsut_ver1.1.zip", "jsut"),
        ("tedlium2", "TEDLIUM_release2.tar.gz", "tedlium2"),
    ],
)
def test_download(
    name: str, archive: str, inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []

    def note(*arguments: object, **limits: object) -> None:
        calls.append(arguments)

    recipe = load(name, monkeypatch, download_archive=note, extract=note)
    is_packed_twice = "unpack_inner" in recipe.prepare.__globals__
    if is_packed_twice:
        monkeypatch.setitem(recipe.prepare.__globals__, "unpack_inner", note)
    assert recipe.download is not None
    folder = recipe.download(tmp_path)
    assert folder == tmp_path / inner
    checksum = recipe.prepare.__globals__.get("SHA256")
    assert calls[:2] == [(recipe.urls, tmp_path / archive, checksum), (tmp_path / archive, folder)]
    assert [call[0] for call in calls[2:]] == [folder] * is_packed_twice


def test_download_of_voxforge(voxforge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of the day names the archives; nothing else in it is fetched."""
    recipe, root = voxforge
    (folder,) = (path for path in (root / "extracted").iterdir() if path.name.endswith("-a00"))
    page = (
        f'<a href="../"><a href="{folder.name}.tgz">x</a><a href="http://elsewhere/b.tgz"><a href="x.html">'
    )
    fetched = []

    def fetch(urls: tuple[str, ...], path: Path, *_: object, **limits: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page)
        fetched.append((*urls, path.name))

    monkeypatch.setitem(recipe.prepare.__globals__, "download_archive", fetch)
    monkeypatch.setitem(
        recipe.prepare.__globals__, "extract", lambda archive, target, **_: fetched.append((target.name,))
    )
    assert recipe.download is not None and recipe.download(tmp_path / "new") == tmp_path / "new"
    assert fetched == [
        (recipe.urls[0], "index.html"),
        (f"{recipe.urls[0]}{folder.name}.tgz", f"{folder.name}.tgz"),
        (folder.name,),
    ]


test_no_damage_goes_unnoticed = damage_test("voxforge")
