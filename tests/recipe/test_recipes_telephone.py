"""Recipes of telephone calls and spontaneous speech, each on a small corpus in its publisher's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpus_examples import (
    Corpus,
    damage_test,
    load,
    prepare,
    rename,
    texts,
    write_audio,
    write_text,
)

from asr.audio import read

# --- Switchboard ----------------------------------------------------------------------------------


@pytest.fixture
def switchboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "ldc"
    write_audio(root / "LDC97S62/swb1_d1/data/sw02999.sph", 8.0, 8_000, 2, "ULAW")
    texts = root / "swb_ms98_transcriptions"
    write_text(
        texts / "29/2999/sw2999A-ms98-a-trans.text",
        "sw2999A-ms98-a-0001 0.000000 1.250000 [silence]",
        "sw2999A-ms98-a-0002 1.250000 4.870000 well [laughter-that's] -[an]y {yuppiedom} ab[solute]- [it'n/isn't] "
        "them_1 <b_aside> IBM ammu[n]it- [noise]",
    )
    write_text(
        texts / "29/2999/sw2999B-ms98-a-trans.text",
        "sw2999B-ms98-a-0001 0.000000 1.000000 yeah",
        "sw2999B-ms98-a-0002 1.000000 2.000000 i watch tv's and cds",
    )
    write_text(
        texts / "sw-ms98-dict.text",
        "# a comment",
        "ibm ay b iy eh m",
        "tv's t iy v iy z",
        "cds s iy d iy z",
        "us ah s",
        "it ih t",
        "",
    )
    english = root / "LDC2002S09/hub5e_00/english"
    for call in ("sw_4999", "en_4998"):
        write_audio(english / f"{call}.sph", 16.0, 8_000, 2, "ULAW")
    write_text(
        english / "hub5e_00.pem",
        ";; a comment",
        "sw_4999 A unknown_speaker 12.30 15.05",
        "sw_4999 A unknown_speaker 15.15 15.50",
        "sw_4999 B unknown_speaker 1.00 2.00",
        "en_4998 A unknown_speaker 0.05 1.00",
    )
    write_text(
        root / "LDC2002T43/2000_hub5_eng_eval_tr/reference/hub5e00.english.000405.stm",
        ';; LABEL "O" "Overall"',
        "sw_4999 A sw_4999_A 12.30 15.05 <O,sw,M,sw-M> (%HESITATION) YEAH I (WE-) LIKE <B_ASIDE> IT",
        "sw_4999 A sw_4999_A 15.15 15.50 <O,sw,M,sw-M> OKAY",
        "sw_4999 B sw_4999_B 1.00 2.00 <O,sw,M,sw-M> IGNORE_TIME_SEGMENT_IN_SCORING",
        "en_4998 A en_4998_A 0.05 1.00 <O,en,F,en-F> HELLO",
    )
    counts = {"dev": 1, "test": 3, "test_swbd": 2, "test_callhm": 1}
    return load("switchboard", monkeypatch, NUM_CALLS={"train": 1}, NUM_DEV=1, COUNTS=counts), root


def test_switchboard(switchboard: Corpus, tmp_path: Path) -> None:
    sets = prepare(switchboard, tmp_path / "out")
    assert texts(sets["dev"]) == {
        "sw02999-A_000125-000487": "well that's -y yuppiedom ab- it'n them i b m ammu-it- [noise]"
    }
    assert texts(sets["train"]) == {
        "sw02999-B_000000-000100": "yeah",
        "sw02999-B_000100-000200": "i watch t v's and c ds",
    }
    second = sets["train"]["sw02999-B_000100-000200"]
    assert (second.start, second.duration, second.channel, second.speaker) == (1.0, 1.0, 2, "sw02999-B")
    both, _ = soundfile.read(second.audio)
    np.testing.assert_allclose(
        read(second.audio, 8_000, channel=second.channel_index), both[:, 1].astype(np.float32)
    )
    assert texts(sets["test"]) == {
        "en_4998-A_000005-000100": "hello",
        "sw_4999-A_001230-001505": "yeah i we- like it",
        "sw_4999-A_001515-001550": "okay",
    }
    first, okay = sets["test_swbd"].values()
    # Widened by 0.1 s at each side; the gap of 0.1 s is shared.
    assert (first.start, first.duration, first.channel) == (12.2, 2.9, 1)
    assert (okay.start, okay.duration) == (15.1, 0.5)
    assert sets["test_callhm"]["en_4998-A_000005-000100"].start == 0.0


# --- HKUST ------------------------------------------------------------------------------------------

HKUST_CALLS = {"train": "20040527_210939_A901153_B901154", "dev": "20040503_221123_A901001_B901002"}


@pytest.fixture
def hkust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "ldc"
    for split, call in HKUST_CALLS.items():
        write_audio(root / f"LDC2005S15/disc1/AUDIO/{split.upper()}/{call}.sph", 7.0, 8_000, 2, "ALAW")
        path = root / f"LDC2005T32/hkust_mcts_p1tr/data/trans/{split}/{call}.txt"
        write_text(
            path,
            f"# {call}",
            "",
            "0.240 1.905 A: {breath} 喂， 你 好.",
            '2.110 5.480 B: %呃 ((听 得 到)) <foreign language="English"> ok </foreign> ~A 座 <noise>好 的</noise>',
            "5.5 5.6 A: ",
            "5.7 5.9 B: 好 A: 好",
            "6.0 6.0 A: 好",
            "6.1 6.5 A: {laugh} <noise>",
            encoding="gbk",
        )
        with open(path, "ab") as file:
            file.write(b"6.6 6.9 B: \xff \xba\xc3\n")  # a stray byte, and one word
    (root / "LDC2005T32/hkust_mcts_p1tr/readme.txt").write_bytes(b"1 2 3")
    return load("hkust", monkeypatch, NUM_CALLS={"train": 1, "dev": 1}, NUM_DEV=2, COUNTS={"test": 4}), root


def test_hkust(hkust: Corpus, tmp_path: Path) -> None:
    sets = prepare(hkust, tmp_path / "out")
    call = HKUST_CALLS["dev"]
    found = texts(sets["test"])
    assert found[f"{call}-A-000024-000191"] == "[VOCALIZED-NOISE]喂，你好"
    assert found[f"{call}-B-000212-000548"] == "呃听得到OKA座好的"
    assert found[f"{call}-A-000610-000650"] == "[LAUGHTER][NOISE]"
    assert found[f"{call}-B-000660-000690"] == "�好"
    second = sets["test"][f"{call}-B-000212-000548"]
    assert (second.start, second.duration, second.channel) == (2.11, 3.37, 2)
    assert second.speaker == f"{call}-B" and len(second.speaker) == 33
    assert [id[-15] for id in sets["dev"]] == ["A", "A"] and [id[-15] for id in sets["train"]] == ["B", "B"]


# --- CSJ ----------------------------------------------------------------------------------------------


def sdb_line(
    talk: str, segment: str, surface: str, plain: str, sound: str, part_of_speech: str = "名詞"
) -> str:
    columns = ("x", "x", talk, segment, surface, surface, sound, plain, sound, plain, sound, part_of_speech)
    return "\t".join(columns) + "\r"


def write_talk(root: Path, folder: str, talk: str) -> None:
    first, second = "0001 00000.105-00001.220 L:-00{}-001", "0002 00001.610-00003.000 L:-00{}-001"
    lines = [
        sdb_line(talk, first.format(1), "(F えー)", "えー", "エー", "感動詞"),
        sdb_line(talk, first.format(2), "音声", "音声", "オンセイ"),
        sdb_line(talk, second.format(1), "(A シーディー;ＣＤ)", "ＣＤ", "シーディー"),
        sdb_line(talk, second.format(2), "", "", "", ""),
        sdb_line(talk, "0003 00003.600-00004.000 L:-001-001", "(A ニセン;", "二", "ニ"),
        sdb_line(talk, "0003 00003.600-00004.000 L:-002-001", "二千)", "千", "セン"),
        sdb_line(talk, "0004 00004.600-00005.000 L:-001-001", "(D だ)", "だ", "ダ"),
        sdb_line(talk, "0005 00005.600-00005.900 L:-001-001", "(R ×××)", "×××", ""),
    ]
    write_text(root / "MORPH/SDB" / folder / f"{talk}.sdb", *lines, encoding="cp932")
    write_audio(root / "WAV" / folder / f"{talk}.wav", 6.0)


@pytest.fixture
def csj(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "CSJ"
    for talk in ("A01M0110", "A01F0055", "S00M0112", "A01M0056", "M01F0001"):
        write_talk(root, "core" if talk[0] == "A" else "noncore", talk)
    write_talk(root, "core", "S05M0613")  # by the speaker of A01M0056
    write_talk(root, "core", "D03M0038")
    rename("WAV/core/D03M0038.wav", "WAV/core/D03M0038-L.wav")(root)
    (root / "WAV/core/00README.txt").touch()
    evaluation = {"eval1": "A01M0110", "eval2": "A01M0056", "eval3": "S00M0112"}
    recipe = load(
        "csj",
        monkeypatch,
        EVALUATION=evaluation,
        NUM_TALKS=dict.fromkeys(evaluation, 1),
        NUM_DEV=2,
        COUNTS={"dev": 2, **dict.fromkeys(evaluation, 3)},
    )
    return recipe, root


def test_csj(csj: Corpus, tmp_path: Path) -> None:
    sets = prepare(csj, tmp_path / "out")
    assert texts(sets["eval1"]) == {
        "A01M0110_0000105_0003000": "えー音声ＣＤ",
        "A01M0110_0003600_0004000": "二千",
        "A01M0110_0004600_0005000": "だ",
    }
    first = sets["eval1"]["A01M0110_0000105_0003000"]
    assert (first.start, first.duration, first.speaker) == (0.105, 2.895, "A01M0110")
    assert list(sets["test"]) == [id for name in ("eval1", "eval2", "eval3") for id in sets[name]]
    assert list(sets["dev"]) == ["A01F0055_0000105_0003000", "A01F0055_0003600_0004000"]
    assert [id[:8] for id in sets["train"]] == ["A01F0055", "M01F0001", "M01F0001", "M01F0001"]


def test_csj_of_dvds(csj: Corpus, tmp_path: Path) -> None:
    """Each talk is a folder."""
    recipe, root = csj
    for path in [*root.rglob("*.wav"), *root.rglob("*.sdb")]:
        target = tmp_path / "dvd" / "dvd3" / path.stem / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    assert len(prepare((recipe, tmp_path / "dvd"), tmp_path / "out")["test"]) == 9


def test_words_of_csj(csj: Corpus) -> None:
    clean = csj[0].prepare.__globals__["clean_word"]
    words = {
        **{"うんーんー": "うんん", "ンーンーンー": "ンンン", "データ・": "データ", "(F あのー)": "あのー"},
        **{"んーー": "ん", "シヮ": "シワ", "くゎ": "くわ", "ゼロ": "０", "零": "０", "ゼロワン": "ゼロワン"},
    }
    assert [clean(word) for word in words] == list(words.values())


# --- Fisher and CallHome ------------------------------------------------------------------------------

FISHER_CALLS = {
    "train": "20050908_182943_1_fsp",
    "dev": "20051009_182032_217_fsp",
    "test": "20051028_180633_356_fsp",
}
FISHER_HEAD = (
    "file;unicode\tchannel;int\tstart;float\tend;float\tspeaker;unicode",
    ";;MM sectionTypes",
    ";;MM",
)


@pytest.fixture
def fisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "ldc"
    for split, call in FISHER_CALLS.items():
        write_audio(root / f"LDC2010S01/data/speech/{call}.sph", 6.0, 8_000, 2, "ULAW")
        spoken = [
            ("0", "0.5", "1.0", ""),  # counts, although nothing is said
            (
                "1",
                "1.0",
                "1.91",
                'Hola, <laugh>¿cómo</laugh> estás? <foreign lang="English"> okay </foreign>',
            ),
            ("1", "2.0", "2.5", "((Sí)) -- ¡no! <cough>"),
            ("0", "3.0", "3.0", "nada"),
        ]
        lines = (
            f"{call}.sph\t{c}\t{s}\t{e}\tAna\tfemale\tnative\t{text}\t0\t0\t-1" for c, s, e, text in spoken
        )
        write_text(root / f"LDC2010T04/fisher_spa_tr/data/transcripts/{call}.tdf", *FISHER_HEAD, *lines)
        write_text(root / f"mapping/fisher_{split}", f"{call} 2_3", f"{call} 4", f"{call} 1")
    write_text(root / "mapping/fisher_dev2", f"{FISHER_CALLS['dev']} 3")
    counts = {"train": 3, "dev": 3, "test": 3, "dev2": 1, "callhome_devtest": 1, "callhome_evltest": 1}
    return load("fisher_callhome", monkeypatch, COUNTS=counts), root


def add_callhome(root: Path) -> None:
    for part, name in {"devtest": "sp_0053", "evltest": "sp_0101"}.items():
        write_audio(
            root / f"LDC96S35/CALLHOME/SPANISH/SPEECH/{part.upper()}/{name.upper()}.wav", 16.0, 8_000, 2
        )
        write_text(
            root / f"LDC96T17/callhome_spanish_trans_970711/transcrp/{part}/{name}.txt",
            *("# a comment", "12.05 14.70 A: Sí, {laugh} pues (( ya )) te", "digo, ¿no? [[aside]]"),
            *("", "14.80 15.00 B1: {cough} <English bye>"),
            encoding="latin-1",
        )
        write_text(root / f"mapping/callhome_{part}", f"{name} 1_2")


def test_fisher(fisher: Corpus, tmp_path: Path) -> None:
    sets = prepare(fisher, tmp_path / "out")
    assert sorted(sets) == ["dev", "dev2", "test", "train"]
    assert texts(sets["dev"]) == {"20051009_182032_217_fsp-B-000100-000250": "hola cómo estás okay sí no"}
    first = sets["dev"]["20051009_182032_217_fsp-B-000100-000250"]
    assert (first.start, first.duration, first.channel) == (1.0, 1.5, 2)
    assert first.speaker == "20051009_182032_217_fsp-B"


def test_callhome(fisher: Corpus, tmp_path: Path) -> None:
    add_callhome(fisher[1])
    sets = prepare(fisher, tmp_path / "out")
    assert texts(sets["callhome_devtest"]) == {
        "sp_0053-A-001205-001500": "sí [laughter] pues ya te digo no [noise] bye"
    }


def add_translations(root: Path) -> None:
    """As the mapping's repository has them: a line for each of the mapping, four files of Fisher's test sets."""
    write_text(root / "corpus/ldc/fisher_train.en", "Hi, how are you?", "", "Nothing.")
    for number, first in enumerate(('Hi, "how" are you? Okay.', "Hello!", "] ", "So -- hi, Ana's here")):
        write_text(root / f"corpus/ldc/fisher_dev.en.{number}", first, "Nothing", "")
    write_text(root / "corpus/asr/fisher_dev.en.0", "not this one")
    write_text(root / "corpus/ldc/fisher_dev2.en.0", "")


def test_translations_of_fisher(fisher: Corpus, tmp_path: Path) -> None:
    add_translations(fisher[1])
    sets = prepare(fisher, tmp_path / "out")
    assert sorted(sets) == ["dev", "dev2", "dev2_en", "dev_en", "test", "train", "train_en"]
    spoken, translated = (sets[name]["20051009_182032_217_fsp-B-000100-000250"] for name in ("dev", "dev_en"))
    assert translated.text == "hi how are you okay" and spoken.text == "hola cómo estás okay sí no"
    assert translated.extras == {"reference_2": "hello", "reference_3": "so hi ana's here"}
    assert translated.more_references == ["hello", "so hi ana's here"]
    assert translated.model_copy(update={"text": spoken.text, "extras": {}}) == spoken
    assert list(texts(sets["train_en"]).values()) == ["hi how are you"] and sets["dev2_en"] == {}


test_no_damage_goes_unnoticed = damage_test("switchboard", "hkust", "csj", "fisher")
