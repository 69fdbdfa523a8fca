"""Recipes of texts without blanks between words, each on a small corpus in its publisher's layout."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from corpus_examples import (
    Corpus,
    damage_test,
    edit,
    load,
    prepare,
    rename,
    texts,
    write_audio,
    write_text,
)

from asr.errors import UserError


def pack(folder: Path) -> None:
    """Put the folder into an archive beside it, as publishers do with each speaker."""
    with tarfile.open(folder.with_name(f"{folder.name}.tar.gz"), "w:gz") as archive:
        archive.add(folder, folder.name)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


# --- AISHELL-1 and Aidatatang ---------------------------------------------------------------------


@pytest.fixture
def aishell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "corpus" / "data_aishell"
    ids = {"train": "BAC009S0002W0122", "dev": "BAC009S0724W0121", "test": "BAC009S0764W0121"}
    write_text(
        root / "transcript/aishell_transcript_v0.8.txt",
        *(f"{id} 今天 的 会议 改 到 下午" for id in ids.values()),
    )
    for split, id in ids.items():
        for name in (id, id[:-4] + "9999"):  # the second one has no transcript
            write_audio(root / "wav" / split / id[6:11] / f"{name}.wav")
    (root / "wav/S0002.tar.gz").touch()  # unpacked, and kept
    return load("aishell", monkeypatch, COUNTS=dict.fromkeys(ids, 1)), tmp_path / "corpus"


@pytest.mark.parametrize("given", [".", "data_aishell", "data_aishell/wav"])
def test_aishell(aishell: Corpus, tmp_path: Path, given: str) -> None:
    sets = prepare(aishell, tmp_path / "out", given)
    assert {split: list(found) for split, found in sets.items()} == {
        "train": ["BAC009S0002W0122"],
        "dev": ["BAC009S0724W0121"],
        "test": ["BAC009S0764W0121"],
    }
    first = sets["test"]["BAC009S0764W0121"]
    assert (first.text, first.speaker, first.language) == ("今天的会议改到下午", "S0764", "zh")


def test_aishell_unpacked_by_our_download(aishell: Corpus, tmp_path: Path) -> None:
    """Each archive into a folder of its own name: wav/S0764/test/S0764."""
    root = aishell[1]
    (root / "data_aishell/wav/S0764").mkdir()
    rename("data_aishell/wav/test", "data_aishell/wav/S0764/test")(root)
    assert list(prepare(aishell, tmp_path / "out")["test"]) == ["BAC009S0764W0121"]


@pytest.fixture
def aidatatang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "aidatatang_200zh"
    ids = {"train": "T0055G0013S0001", "dev": "T0055G0002S0001", "test": "T0055G0021S0001"}
    write_text(
        root / "transcript/aidatatang_200_zh_transcript.txt",
        *(f"{id} 播放 一首 Ａ ok" for id in ids.values()),
    )
    for split, id in ids.items():
        folder = root / "corpus" / split / id[5:10]
        write_audio(folder / f"{id}.wav")
        write_audio(folder / f"{id[:-4]}0002.wav")
        write_text(folder / f"{id}.trn", "播放 一首")
    return load("aidatatang", monkeypatch, COUNTS=dict.fromkeys(ids, 1)), tmp_path


def test_aidatatang(aidatatang: Corpus, tmp_path: Path) -> None:
    sets = prepare(aidatatang, tmp_path / "out")
    assert {split: list(found) for split, found in sets.items()} == {
        "train": ["T0055G0013S0001"],
        "dev": ["T0055G0002S0001"],
        "test": ["T0055G0021S0001"],
    }
    first = sets["train"]["T0055G0013S0001"]
    assert (first.text, first.speaker) == ("播放一首Ａok", "G0013")


def test_aidatatang_with_packed_speakers(aidatatang: Corpus, tmp_path: Path) -> None:
    recipe, root = aidatatang
    pack(root / "aidatatang_200zh/corpus/test/G0021")
    with pytest.raises(
        UserError, match=r"holds 1 archives that are still packed, such as test/G0021\.tar\.gz"
    ):
        recipe.prepare(root, tmp_path / "out")
    unpack = recipe.prepare.__globals__["unpack_inner"]
    unpack(root / "aidatatang_200zh", 1_000_000)
    assert prepare(aidatatang, tmp_path / "out")["test"]["T0055G0021S0001"].speaker == "G0021"


# --- AISHELL-2 --------------------------------------------------------------------------------------


def write_aishell2(folder: Path, prefix: str, speaker: str, **spoken: str) -> None:
    ids = {f"{prefix}{speaker[1:]}W{number[1:]}": text for number, text in spoken.items()}
    write_text(folder / "wav.scp", *(f"{id}\twav/{speaker}/{id}.wav" for id in ids))
    write_text(folder / "trans.txt", *(f"{id}\t{text}" for id, text in ids.items() if text))
    for id in ids:
        write_audio(folder / "wav" / speaker / f"{id}.wav")


@pytest.fixture
def aishell2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "corpus"
    write_aishell2(
        root / "AISHELL-2/iOS/data",
        "IC",
        "C0803",
        n0001="听Example Song这首歌",
        n0002="好",
        n0003="",
        n0380="坏",
    )
    for channel, prefix in {"iOS": "IT", "Android": "AT", "Mic": "MT"}.items():
        for split, speaker in {"dev": "D0001", "test": "T0011"}.items():
            write_aishell2(root / "AISHELL-DEV-TEST-SET" / channel / split, prefix, speaker, n0001="一二")
    counts = {"train_all": 2, "dev": 1, "test_ios": 1, "test_android": 1, "test_mic": 1}
    return load("aishell2", monkeypatch, COUNTS=counts), root


def test_aishell2(aishell2: Corpus, tmp_path: Path) -> None:
    sets = prepare(aishell2, tmp_path / "out")
    assert texts(sets["train_all"]) == {"IC0803W0001": "听EXAMPLE SONG这首歌", "IC0803W0002": "好"}
    assert list(sets["train"]) == ["IC0803W0002"] and sets["train"]["IC0803W0002"].speaker == "C0803"
    assert list(sets["dev"]) == ["IT0001W0001"]
    assert list(sets["test"]) == ["IT0011W0001", "AT0011W0001", "MT0011W0001"]
    assert list(sets["test_mic"]) == ["MT0011W0001"]


def test_aishell2_in_another_layout(
    aishell2: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All below iOS, no other channel."""
    recipe, root = aishell2
    for split in ("dev", "test"):
        rename(f"AISHELL-DEV-TEST-SET/iOS/{split}", f"AISHELL-2/iOS/{split}")(root)
    rename("AISHELL-DEV-TEST-SET", "../elsewhere")(root)
    assert list(prepare((recipe, root), tmp_path / "out")["test"]) == ["IT0011W0001"]
    assert "test without AISHELL-DEV-TEST-SET/android/test" in caplog.text


def test_a_path_of_aishell2_stays_in_its_folder(aishell2: Corpus, tmp_path: Path) -> None:
    recipe, root = aishell2
    edit("AISHELL-2/iOS/data/wav.scp", "wav/C0803/IC0803W0002", "../../../../x")(root)
    with pytest.raises(UserError, match="leads out of its folder"):
        recipe.prepare(root, tmp_path / "out")


# --- JSUT ----------------------------------------------------------------------------------------


@pytest.fixture
def jsut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "corpus" / "jsut_ver1.1"
    for folder, ids in {
        "basic5000": [f"BASIC5000_{number:04}" for number in range(1, 5)],
        "utparaphrase512": ["UT-PARAPHRASE-sent001-phrase1"],
        "repeat500": ["REPEAT500_set1_001"],
    }.items():
        write_text(root / folder / "transcript_utf8.txt", *(f"{id}:もう少し、静かに:して。" for id in ids))
        for id in ids:
            write_audio(root / folder / "wav" / f"{id}.wav", rate=48_000)
    return load("jsut", monkeypatch, COUNTS={"train": 3, "dev": 2, "test": 1}), tmp_path / "corpus"


def test_jsut(jsut: Corpus, tmp_path: Path) -> None:
    sets = prepare(jsut, tmp_path / "out")
    assert list(sets["test"]) == ["BASIC5000_0001"]
    assert list(sets["dev"]) == ["BASIC5000_0002", "BASIC5000_0003"]
    assert list(sets["train"]) == ["BASIC5000_0004", "REPEAT500_set1_001", "UT-PARAPHRASE-sent001-phrase1"]
    assert sets["test"]["BASIC5000_0001"].text == "もう少し、静かに:して。"


test_no_damage_goes_unnoticed = damage_test("aishell", "aidatatang", "aishell2", "jsut")
