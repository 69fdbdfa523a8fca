"""Recipes on the small corpora of corpora.yaml, in their publishers' layouts: whole, damaged, in other layouts."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpus_examples import (
    LAYOUTS,
    Corpus,
    check_damages,
    edit,
    load,
    make_corpus,
    prepare,
    rename,
    texts,
    write_text,
)

from asr.audio import read
from asr.errors import UserError
from asr.recipe import load_recipe

Make = Callable[[str], Corpus]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda name: make_corpus(name, tmp_path / "corpus", monkeypatch)


@pytest.mark.parametrize("name", LAYOUTS)
def test_whole(name: str, make: Make, tmp_path: Path) -> None:
    corpus = make(name)
    sets = prepare(corpus, tmp_path / "out")
    assert {split: texts(sets[split]) for split in LAYOUTS[name]["sets"]} == LAYOUTS[name]["sets"]
    for place, wanted in LAYOUTS[name]["fields"].items():
        split, _, id = place.partition("/")
        found = sets[split][id].model_dump()
        found["audio"] = os.path.relpath(found["audio"], corpus[1])
        assert {field: found[field] for field in wanted} == wanted, place


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_damage_goes_unnoticed(
    name: str, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_damages(make(name), tmp_path, caplog)


def test_a_channel_of_switchboard_is_read(make: Make, tmp_path: Path) -> None:
    second = prepare(make("switchboard"), tmp_path / "out")["train"]["sw02999-B_000100-000200"]
    both, _ = soundfile.read(second.audio)
    heard = read(second.audio, 8_000, channel=second.channel_index)
    np.testing.assert_allclose(heard, both[:, 1].astype(np.float32))


def test_a_stray_byte_of_hkust(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, root = make("hkust")
    monkeypatch.setitem(recipe.prepare.__globals__, "COUNTS", {"test": 4})
    (path,) = root.rglob("20040503*.txt")
    path.write_bytes(path.read_bytes() + b"6.6 6.9 B: \xff \xba\xc3\n")
    found = texts(prepare((recipe, root), tmp_path / "out")["test"])
    assert found[f"{path.stem}-B-000660-000690"] == "\ufffd好"


def test_words_of_csj() -> None:
    clean = load_recipe("csj").prepare.__globals__["clean_word"]
    words = {
        **{"うんーんー": "うんん", "ンーンーンー": "ンンン", "データ・": "データ", "(F あのー)": "あのー"},
        **{"んーー": "ん", "シヮ": "シワ", "くゎ": "くわ", "ゼロ": "０", "零": "０", "ゼロワン": "ゼロワン"},
    }
    assert [clean(word) for word in words] == list(words.values())


def test_fisher_without_callhome_and_with_translations(make: Make, tmp_path: Path) -> None:
    """As the mapping's repository has them: a line for each of the mapping, four files of Fisher's test sets."""
    recipe, root = make("fisher_callhome")
    shutil.rmtree(root / "LDC96T17")
    write_text(root / "corpus/ldc/fisher_train.en", "Hi, how are you?", "", "Nothing.")
    for number, first in enumerate(('Hi, "how" are you? Okay.', "Hello!", "] ", "So -- hi, Ana's here")):
        write_text(root / f"corpus/ldc/fisher_dev.en.{number}", first, "Nothing", "")
    write_text(root / "corpus/asr/fisher_dev.en.0", "not this one")
    write_text(root / "corpus/ldc/fisher_dev2.en.0", "")
    sets = prepare((recipe, root), tmp_path / "out")
    assert sorted(sets) == ["dev", "dev2", "dev2_en", "dev_en", "test", "train", "train_en"]
    spoken, translated = (sets[name]["20051009_182032_217_fsp-B-000100-000250"] for name in ("dev", "dev_en"))
    assert translated.text == "hi how are you okay"
    assert translated.more_references == ["hello", "so hi ana's here"]
    assert translated.model_copy(update={"text": spoken.text, "extras": {}}) == spoken
    assert list(texts(sets["train_en"]).values()) == ["hi how are you"] and sets["dev2_en"] == {}


def test_aishell_unpacked_by_our_download(make: Make, tmp_path: Path) -> None:
    """Each archive into a folder of its own name: wav/S0764/test/S0764."""
    recipe, root = make("aishell")
    (root / "data_aishell/wav/S0764").mkdir()
    rename("data_aishell/wav/test", "data_aishell/wav/S0764/test")(root)
    assert list(prepare((recipe, root), tmp_path / "out", "data_aishell/wav")["test"]) == ["BAC009S0764W0121"]


def test_aidatatang_with_packed_speakers(make: Make, tmp_path: Path) -> None:
    recipe, root = make("aidatatang")
    folder = root / "aidatatang_200zh/corpus/test/G0021"
    with tarfile.open(folder.with_name(f"{folder.name}.tar.gz"), "w:gz") as archive:
        archive.add(folder, folder.name)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"has 1 archives that are still packed, such as test/G0021\.tar\.gz"):
        recipe.prepare(root, tmp_path / "out")
    recipe.prepare.__globals__["unpack_inner"](root / "aidatatang_200zh", 1_000_000)
    assert prepare((recipe, root), tmp_path / "out")["test"]["T0055G0021S0001"].speaker == "G0021"


def test_aishell2_in_another_layout(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All below iOS, no other channel."""
    recipe, root = make("aishell2")
    for split in ("dev", "test"):
        rename(f"AISHELL-DEV-TEST-SET/iOS/{split}", f"AISHELL-2/iOS/{split}")(root)
    rename("AISHELL-DEV-TEST-SET", "../elsewhere")(root)
    assert list(prepare((recipe, root), tmp_path / "out")["test"]) == ["IT0011W0001"]
    assert "test without AISHELL-DEV-TEST-SET/android/test" in caplog.text


def test_a_path_of_aishell2_stays_in_its_folder(make: Make, tmp_path: Path) -> None:
    recipe, root = make("aishell2")
    edit("AISHELL-2/iOS/data/wav.scp", "wav/C0803/IC0803W0002", "../../../../x")(root)
    with pytest.raises(UserError, match="leads out of its folder"):
        recipe.prepare(root, tmp_path / "out")


def test_chime4_without_the_folder_of_its_track(make: Make, tmp_path: Path) -> None:
    """The lists name its files."""
    recipe, root = make("chime4")
    rename("CHiME3/data/audio/16kHz/isolated_1ch_track", "isolated_1ch_track")(root)
    (real,) = prepare((recipe, root), tmp_path / "out")["dt05_real"].values()
    assert real.audio.endswith("isolated/dt05_str_real/M03_22GC0102_STR.CH4.wav")


def test_samples_without_a_header(make: Make, tmp_path: Path) -> None:
    corpus = make("aurora4")
    samples, rate = soundfile.read(prepare(corpus, tmp_path / "out")["dev"]["4k0c0301d"].audio, dtype="int16")
    raw = corpus[1] / "AURORA/dev0330_16k/dev_0330_14/4k0/4k0c0301.wv2"
    assert rate == 16_000 and np.array_equal(samples, np.fromfile(raw, ">i2"))


def test_a_path_of_reverb_stays_in_its_folder(make: Make, tmp_path: Path) -> None:
    recipe, root = make("reverb")
    edit("tasks/taskFiles/1ch/SimData_et_for_1ch_far_room1_A", "/far_test", "/../far_test")(root)
    with pytest.raises(UserError, match="room1_A:1: expected a path such as"):
        recipe.prepare(root, tmp_path / "out")


def test_the_pronunciation_in_use_comes_first(make: Make, tmp_path: Path) -> None:
    assert len(prepare(make("speechocean762"), tmp_path / "out")["train_all"]) == 6
    dictionary = (tmp_path / "out" / "pronunciations.txt").read_text().splitlines()
    assert dictionary == ["A EY0", "A AH0", "BEAR B EH1 R", "IT'S IH1 T S"]


def test_examples_of_wordnet_are_spoken(make: Make, tmp_path: Path) -> None:
    sets = prepare(make("wordnet_synthetic"), tmp_path / "out")
    assert {len(utterances) for utterances in sets.values()} == {1}
    spoken = [utterance for utterances in sets.values() for utterance in utterances.values()]
    assert {u.text for u in spoken} == {"ABLE TO SWIM", "ISN'T HE COMING SOON", "THE CAT IT SEEMS SAT"}
    for utterance in spoken:
        assert soundfile.info(utterance.audio).duration == pytest.approx(utterance.duration)


def test_tedlium3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training talks of `legacy` are links into `data`."""
    make_corpus("tedlium2", tmp_path, monkeypatch)
    root = tmp_path / "TEDLIUM_release-3"
    (root / "data").mkdir(parents=True)
    (tmp_path / "TEDLIUM_release2").rename(root / "legacy")
    for kind in ("sph", "stm"):
        rename(f"legacy/train/{kind}", f"data/{kind}")(root)
        (root / "legacy/train" / kind).mkdir()
        for path in (root / "data" / kind).iterdir():
            (root / "legacy/train" / kind / path.name).symlink_to(Path("../../../data") / kind / path.name)
    counts = LAYOUTS["tedlium2"]["arguments"]
    small = {"NUM_TALKS": counts["num_talks"], "NUM_UTTERANCES": counts["num_utterances"]}
    recipe = load("tedlium3", monkeypatch, **small)
    sets = prepare((recipe, tmp_path), tmp_path / "out")
    assert {name: texts(found) for name, found in sets.items()} == LAYOUTS["tedlium2"]["sets"]
