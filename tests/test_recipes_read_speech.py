"""Recipes of read speech and of talks, each on a small corpus in its publisher's layout: whole and damaged."""

from __future__ import annotations

import logging
import re
import tarfile
from pathlib import Path

import pytest
from corpus_examples import (
    Corpus,
    Damage,
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


def check_damage(corpus: Corpus, tmp_path: Path, damage: Damage, message: str) -> None:
    recipe, root = corpus
    damage(root)
    with pytest.raises(UserError, match=message):
        recipe.prepare(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def pack(folder: Path) -> None:
    """Put the folder into an archive beside it, as publishers do with each speaker."""
    with tarfile.open(folder.with_name(f"{folder.name}.tar.gz"), "w:gz") as archive:
        archive.add(folder, folder.name)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


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
    assert "without test-clean; results do not compare" in caplog.text
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
    assert "train-clean-100 has 3 utterances, 4 were published" in caplog.text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("LibriSpeech/dev-clean/84/123456/84-123456-0001.flac"), r"84-123456-0001\.flac"),
        (
            edit(
                "LibriSpeech/test-other/367/123456/367-123456.trans.txt",
                "367-123456-0001 DON'T SAY TES\n",
                "",
            ),
            "found 1 utterances of test-other, expected 2",
        ),
        (
            edit("LibriSpeech/test-other/367/123456/367-123456.trans.txt", "0001 DON'T SAY TES", "0001"),
            r"367-123456\.trans\.txt:2: expected a new id and its text, found '367-123456-0001'",
        ),
    ],
)
def test_librispeech_damaged(librispeech: Corpus, tmp_path: Path, damage: Damage, message: str) -> None:
    recipe, root = librispeech
    damage(root)
    with pytest.raises(UserError, match=message):
        recipe.prepare(root, tmp_path / "out")


def test_what_is_no_librispeech(librispeech: Corpus, tmp_path: Path) -> None:
    recipe, root = librispeech
    with pytest.raises(UserError, match=r"holds none of train-clean-100, .*pass the folder above"):
        recipe.prepare(root / "LibriSpeech" / "dev-clean" / "84", tmp_path)
    (root / "copy").mkdir()
    (root / "copy" / "dev-clean").symlink_to(root / "LibriSpeech" / "dev-clean")
    with pytest.raises(UserError, match="dev-clean is there twice"):
        recipe.prepare(root, tmp_path)


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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("data_aishell/transcript/aishell_transcript_v0.8.txt"), "transcript_v0.8.txt is neither here nor"),
        (remove("data_aishell/wav/dev/S0724/BAC009S0724W0121.wav"), "found 0 utterances of dev, expected 1"),
        (lambda root: (root / "data_aishell/wav/S0724").with_suffix(".tar.gz").touch() or pack(root / "data_aishell/wav/dev/S0724"),
         r"holds 2 archives that are still packed, such as S0724\.tar\.gz; unpack each"),
        (
            lambda root: write_text(root / "data_aishell/transcript/aishell_transcript_v0.8.txt", "BAC 今", encoding="gbk"),
            "transcript_v0.8.txt:1: not UTF-8 text",
        ),
        (
            lambda root: (root / "data_aishell/wav/test/S0764/BAC009S0764W0121.wav").write_bytes(b"RIFF"),
            r"BAC009S0764W0121\.wav",
        ),
    ],
)  # fmt: skip
def test_aishell_damaged(aishell: Corpus, tmp_path: Path, damage: Damage, message: str) -> None:
    recipe, root = aishell
    damage(root)
    with pytest.raises(UserError, match=message):
        recipe.prepare(root, tmp_path / "out")


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


TEDLIUM_COUNTS = {
    "NUM_TALKS": dict.fromkeys(("train", "dev", "test"), 1),
    "NUM_UTTERANCES": {"dev": 1, "test": 1},
}


@pytest.fixture
def tedlium2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    write_talks(tmp_path / "corpus" / "TEDLIUM_release2")
    return load("tedlium2", monkeypatch, **TEDLIUM_COUNTS), tmp_path / "corpus"


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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename("TEDLIUM_release2/test/stm", "TEDLIUM_release2/test/STM2"), "test/stm is neither here"),
        (remove("TEDLIUM_release2/test/stm/AlGore_2009.stm"), "found 0 talks of test, expected 1"),
        (remove("TEDLIUM_release2/dev/sph/BlaiseAguera_2007.sph"), r"BlaiseAguera_2007\.sph"),
        (
            edit("TEDLIUM_release2/dev/stm/BlaiseAguera_2007.stm", "1.34", "x"),
            r"2007\.stm:1: .* expected recording",
        ),
        (
            edit("TEDLIUM_release2/dev/stm/BlaiseAguera_2007.stm", "0.12 1.34", "5.12 6.34"),
            r"a segment at 5\.12 s, but BlaiseAguera_2007\.sph ends at 2\.00 s",
        ),
        (
            edit(
                "TEDLIUM_release2/dev/stm/BlaiseAguera_2007.stm",
                "<F0_M> i 'd say so",
                "<F0_M> ignore_time_segment_in_scoring",
            ),
            "found 0 utterances of dev, expected 1",
        ),
    ],
)
def test_tedlium2_damaged(tedlium2: Corpus, tmp_path: Path, damage: Damage, message: str) -> None:
    check_damage(tedlium2, tmp_path, damage, message)


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
    sets = prepare((load("tedlium3", monkeypatch, **TEDLIUM_COUNTS), tmp_path), tmp_path / "out")
    assert [len(found) for found in sets.values()] == [1, 1, 2]
    assert texts(sets["train"])["AimeeMullins_2009P-0000030-0000100"] == "and it's frame first"


# --- VoxForge and JSUT ------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            rename("jsut_ver1.1/basic5000", "jsut_ver1.1/basic"),
            r"basic5000/transcript_utf8\.txt is neither here",
        ),
        (
            edit("jsut_ver1.1/basic5000/transcript_utf8.txt", "BASIC5000_0002:", ""),
            r"もう少し、静かに\.wav",
        ),
        (remove("jsut_ver1.1/basic5000/wav/BASIC5000_0003.wav"), r"BASIC5000_0003\.wav"),
    ],
)
def test_jsut_damaged(jsut: Corpus, tmp_path: Path, damage: Damage, message: str) -> None:
    recipe, root = jsut
    damage(root)
    with pytest.raises(UserError, match=message):
        recipe.prepare(root, tmp_path / "out")


def test_half_a_jsut_is_told(jsut: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rename("jsut_ver1.1/repeat500", "elsewhere")(jsut[1])
    prepare(jsut, tmp_path / "out")
    assert re.search("train has 2 utterances, 3 were published", caplog.text)


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
    assert "no AISHELL-DEV-TEST-SET/android/test; test is without it" in caplog.text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename("AISHELL-2", "../AISHELL"), "none of AISHELL-2/iOS/data, iOS/data"),
        (rename("AISHELL-DEV-TEST-SET/iOS/test/wav", "AISHELL-DEV-TEST-SET/iOS/wav"), r"IT0011W0001\.wav"),
        (edit("AISHELL-2/iOS/data/wav.scp", "wav/C0803/IC0803W0002", "../../../../x"), "leads out of its folder"),
        (edit("AISHELL-DEV-TEST-SET/Mic/test/trans.txt", "\t", " "), r"trans\.txt:1: expected a new id and its text"),
        (edit("AISHELL-DEV-TEST-SET/Mic/test/trans.txt", "MT0011W0001", "MT0011W0002"), "found 0 utterances of test_mic"),
    ],
)  # fmt: skip
def test_aishell2_damaged(aishell2: Corpus, tmp_path: Path, damage: Damage, message: str) -> None:
    recipe, root = aishell2
    damage(root)
    with pytest.raises(UserError, match=message):
        recipe.prepare(root, tmp_path / "out")


def test_aishell2_with_packed_speakers(aishell2: Corpus, tmp_path: Path) -> None:
    recipe, root = aishell2
    folder = root / "AISHELL-DEV-TEST-SET/iOS/test"
    rename("wav", "../wav")(folder)
    (folder / "wav.tar.gz").touch()
    rename("../wav", "../speakers")(folder)
    with pytest.raises(UserError, match=r"still packed, such as wav\.tar\.gz"):
        recipe.prepare(root, tmp_path / "out")


# --- downloads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "archive", "inner"),
    [
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
    assert calls[:2] == [(recipe.urls, tmp_path / archive, None), (tmp_path / archive, folder)]
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
