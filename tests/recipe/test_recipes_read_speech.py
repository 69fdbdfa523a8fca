"""Recipes of read speech and of talks, each on a small corpus in its publisher's layout: whole and damaged."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from corpus_examples import (
    Corpus,
    damage_test,
    edit,
    load,
    prepare,
    remove,
    rename,
    texts,
    write_audio,
    write_text,
)

from asr.errors import UserError
from asr.recipe import Experiment, describe_experiment, list_warnings, run_recipe

# --- LibriSpeech --------------------------------------------------------------------------------

LIBRISPEECH = {  # part -> readers
    "train-clean-100": ["19", "26"],
    "train-clean-360": ["14"],
    "train-other-500": ["20"],
    "dev-clean": ["84"],
    "dev-other": ["116"],
    "test-clean": ["61"],
    "test-other": ["367"],
}


@pytest.fixture
def librispeech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "corpus" / "LibriSpeech"
    for part, readers in LIBRISPEECH.items():
        for reader in readers:
            folder = root / part / reader / "123456"
            ids = [f"{reader}-123456-{number:04}" for number in range(2)]
            write_text(
                folder / f"{reader}-123456.trans.txt", *(f"{id} DON'T SAY {part[:3].upper()}" for id in ids)
            )
            for id in ids:
                write_audio(folder / f"{id}.flac")
    write_text(root / "SPEAKERS.TXT", "60   | M | train-clean-100  | 20.18 | |CBW|Simon")
    counts = {part: 2 * len(readers) for part, readers in LIBRISPEECH.items()}
    return load("librispeech", monkeypatch, COUNTS=counts), tmp_path / "corpus"


@pytest.mark.parametrize("given", [".", "LibriSpeech"])
def test_librispeech(librispeech: Corpus, tmp_path: Path, given: str) -> None:
    sets = prepare(librispeech, tmp_path / "out", given)
    sizes = {name: len(found) for name, found in sets.items()}
    parts = dict.fromkeys(("dev_clean", "dev_other", "test_clean", "test_other"), 2)
    assert sizes == {"train": 8, "dev": 4, "test": 4} | parts
    first = sets["test"]["61-123456-0000"]
    assert (first.text, first.speaker, first.duration) == ("DON'T SAY TES", "61", 0.1)
    assert (first.language, first.extras) == ("en", {"part": "test-clean"})
    assert Path(first.audio) == librispeech[1] / "LibriSpeech/test-clean/61/123456/61-123456-0000.flac"


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
    assert set(sets["dev_clean"]) == {id for split in speakers for id in sets[split]}
    assert "dev: dev-clean (22 utterances)" in caplog.messages
    assert "without test-clean: results do not compare" in caplog.text
    assert "no part for train and test" in caplog.text


def test_a_librispeech_without_some_training_data(
    librispeech: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove("LibriSpeech/train-other-500/20/123456/20-123456.trans.txt")(librispeech[1])
    edit("LibriSpeech/train-clean-100/19/123456/19-123456.trans.txt", "19-123456-0001 DON'T SAY TRA\n", "")(
        librispeech[1]
    )
    sets = prepare(librispeech, tmp_path / "out")
    assert {u.extras["part"] for u in sets["train"].values()} == {"train-clean-100", "train-clean-360"}
    assert "without train-other-500" in caplog.text
    assert "3 of 4 utterances of train-clean-100" in caplog.text


def test_a_part_of_a_subset_is_prepared_when_asked_for(librispeech: Corpus, tmp_path: Path) -> None:
    """100 of the 2,939 utterances of test-other, say: every result and page has to say so."""
    recipe, root = librispeech
    edit("LibriSpeech/test-other/367/123456/367-123456.trans.txt", "367-123456-0001 DON'T SAY TES\n", "")(
        root
    )
    experiment = Experiment(recipe, tmp_path / "out", root)
    with pytest.raises(UserError, match=r"found 1 utterances of test-other, expected 2; .*pass --partial"):
        run_recipe(experiment, "prepare")
    experiment = replace(experiment, partial=True)
    run_recipe(experiment, "prepare")
    lacking = "1 of 2 utterances of test-other"
    about = describe_experiment(experiment)
    assert about["partial"] == [lacking] and "--partial" in about["command"]
    assert list_warnings(about) == [f"A PART OF THE CORPUS: {lacking}."]


# --- TED-LIUM -------------------------------------------------------------------------------------


def write_talks(folder: Path) -> None:
    stm = {
        "train/AimeeMullins_2009P": [
            "AimeeMullins_2009P 1 inter_segment_gap 0 0.3 <o,,unknown> ignore_time_segment_in_scoring",
            "AimeeMullins_2009P 1 AimeeMullins_2009P 0.30 1.00 <o,f0,female>  and it 's frame(2) <sil> first (AimeeMullins_2009P-030)",
            "AimeeMullins_2009P 1 AimeeMullins_2009P 1.10 1.95 <o,f0,female>  {NOISE} <unk> hello (AimeeMullins_2009P-110)",
        ],
        "dev/BlaiseAguera_2007": ["BlaiseAguera_2007 1 Blaise_Aguera 0.12 1.34 <F0_M> i 'd say so"],
        "test/AlGore_2009": ["AlGore_2009 1 Al_Gore 0.12 1.34 <o,f0,male> last year"],
    }
    for name, lines in stm.items():
        split, talk = name.split("/")
        write_text(folder / split / "stm" / f"{talk}.stm", *lines)
        write_audio(folder / split / "sph" / f"{talk}.sph", 2.0)


TALKS, SEGMENTS = dict.fromkeys(("train", "dev", "test"), 1), {"dev": 1, "test": 1}


@pytest.fixture
def tedlium2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    write_talks(tmp_path / "corpus" / "TEDLIUM_release2")
    recipe = load("tedlium2", monkeypatch)
    small = partial(recipe.prepare, num_talks=TALKS, num_utterances=SEGMENTS)
    return recipe.model_copy(update={"prepare": small}), tmp_path / "corpus"


def test_tedlium2(tedlium2: Corpus, tmp_path: Path) -> None:
    sets = prepare(tedlium2, tmp_path / "out")
    first, second = sets["train"].values()
    assert (first.id, first.text) == ("AimeeMullins_2009P-0000030-0000100", "and it's frame first")
    # Widened by 0.15 s before and 0.1 s after; the gap of 0.1 s is shared, 1.0 + 0.1 against 1.1 - 0.15.
    assert (first.start, first.duration) == (0.15, 0.875)
    assert (second.text, second.start, second.duration) == ("[NOISE] <unk> hello", 1.025, 0.975)
    (dev,) = sets["dev"].values()
    assert (dev.text, dev.start, dev.duration, dev.speaker) == ("i'd say so", 0.12, 1.22, "BlaiseAguera_2007")
    assert dev.audio.endswith("TEDLIUM_release2/dev/sph/BlaiseAguera_2007.sph")


def test_tedlium3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training talks of `legacy` are links into `data`."""
    root = tmp_path / "TEDLIUM_release-3"
    write_talks(root / "legacy")
    for kind in ("sph", "stm"):
        (root / "data").mkdir(exist_ok=True)
        rename(f"legacy/train/{kind}", f"data/{kind}")(root)
        (root / "legacy/train" / kind).mkdir()
        for path in (root / "data" / kind).iterdir():
            (root / "legacy/train" / kind / path.name).symlink_to(Path("../../../data") / kind / path.name)
    recipe = load("tedlium3", monkeypatch, NUM_TALKS=TALKS, NUM_UTTERANCES=SEGMENTS)
    sets = prepare((recipe, tmp_path), tmp_path / "out")
    assert [len(found) for found in sets.values()] == [1, 1, 2]
    assert texts(sets["train"])["AimeeMullins_2009P-0000030-0000100"] == "and it's frame first"


# --- VoxForge ------------------------------------------------------------------------------------


@pytest.fixture
def voxforge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "it"
    for number in range(60):
        folder = (
            root
            / "extracted"
            / (
                f"anonymous-200807{number % 28 + 1:02}-a{number:02}"
                if number % 2
                else f"ana-20990101-a{number:02}"
            )
        )
        write_text(
            folder / "etc" / "PROMPTS",
            f"{folder.name}/mfc/it-0001 Parla-più piano {chr(97 + number % 26)}",
            encoding="cp1252" if number % 3 else "utf-8",
        )
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
    (root / "tgz").mkdir()
    (root / "tgz/ana-20990101-zzz.tgz").touch()
    with pytest.raises(UserError, match=r"still packed, such as tgz/ana-20990101-zzz\.tgz"):
        recipe.prepare(root, tmp_path / "out")


# --- LJ Speech ----------------------------------------------------------------------------------


@pytest.fixture
def ljspeech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "corpus" / "LJSpeech-1.1"
    ids = [f"LJ{chapter:03}-{number:04}" for chapter in (1, 2) for number in (1, 2, 3)]
    write_text(root / "metadata.csv", *(f'{id}|"No. 7," he said|"Number seven," he said' for id in ids))
    for id in ids:
        write_audio(root / "wavs" / f"{id}.wav", rate=22_050)
    return load("ljspeech", monkeypatch, COUNTS={"train": 3, "dev": 2, "test": 1}), tmp_path / "corpus"


@pytest.mark.parametrize("given", [".", "LJSpeech-1.1", "LJSpeech-1.1/wavs"])
def test_ljspeech(ljspeech: Corpus, tmp_path: Path, given: str) -> None:
    sets = prepare(ljspeech, tmp_path / "out", given)
    assert {split: list(found) for split, found in sets.items()} == {
        "train": ["LJ001-0001", "LJ001-0002", "LJ001-0003"],
        "dev": ["LJ002-0001", "LJ002-0002"],
        "test": ["LJ002-0003"],
    }
    utterance = sets["test"]["LJ002-0003"]
    assert utterance.text == '"Number seven," he said'  # quotes are letters here
    assert (utterance.speaker, utterance.language, utterance.duration) == ("LJ", "en", pytest.approx(0.1))


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


def test_download_of_librispeech(
    librispeech: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is an archive, and unpacks to a folder LibriSpeech of its own."""
    recipe, corpus = librispeech
    fetched = []

    def unpack(archive: Path, target: Path, **limits: object) -> None:
        (target / "LibriSpeech").mkdir(parents=True)
        (corpus / "LibriSpeech" / target.name).rename(target / "LibriSpeech" / target.name)

    monkeypatch.setitem(recipe.prepare.__globals__, "extract", unpack)
    monkeypatch.setitem(
        recipe.prepare.__globals__,
        "download_archive",
        lambda urls, path, *_, **__: fetched.append((*urls, path.name)),
    )
    assert recipe.download is not None
    folder = recipe.download(tmp_path / "new")
    assert fetched[3] == ("https://www.openslr.org/resources/12/dev-clean.tar.gz", "dev-clean.tar.gz")
    assert len(fetched) == 7 and len(prepare((recipe, folder), tmp_path / "out")["train"]) == 8


test_no_damage_goes_unnoticed = damage_test("librispeech", "tedlium2", "voxforge", "ljspeech")


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
