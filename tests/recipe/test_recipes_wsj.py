"""Recipes of the Wall Street Journal and of what was made from it, each on a small corpus in its layout."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpus_examples import (
    Corpus,
    damage_test,
    edit,
    load,
    make_corpus,
    prepare,
    texts,
    write_audio,
    write_text,
)

from asr.cli import main
from asr.errors import UserError
from asr.families import find_model
from asr.recipe import Experiment, normalize_prompt, run_recipe
from asr.recipe.experiment import build_runs
from asr.system.system import load_state

EXAMPLES = [  # as Kaldi's normalize_transcript.pl writes them
    (
        r"Shares of Example Corp\. rose <the> two \.POINT three %PERCENT [door_slam]",
        "SHARES OF EXAMPLE CORP. ROSE THE TWO POINT THREE PERCENT <NOISE>",
    ),
    (
        r"~ the I\. B\. M\. unit [<cough] *Kwame* said wo:rds . ended --DASH today ,COMMA",
        "THE I. B. M. UNIT *KWAME* SAID WO:RDS ENDED -DASH TODAY ,COMMA",
    ),
    ("[/noise] \"DOUBLE-QUOTE yes [noise/] th- [laugh>]", '"DOUBLE-QUOTE YES TH-'),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "text"), EXAMPLES)
def test_prompts_are_normalized(prompt: str, text: str) -> None:
    assert normalize_prompt(prompt) == text


def write_prompts(folder: Path, ids: Iterable[str]) -> None:
    for id in ids:
        path = folder / f"{id[:6]}00.dot"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="latin-1") as file:
            file.write(f"Text of the \\.POINT {id[0]} [<noise] ({id.upper() if id[0] == '4' else id})\n")


def write_raw(path: Path, seconds: float = 0.1) -> None:
    """Samples without any header, the high byte first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(list(path.name.encode())).integers(-2000, 2000, round(16_000 * seconds))
    path.write_bytes(samples.astype(">i2").tobytes())


@pytest.fixture
def aurora4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Lists of dev leave out the first folder, and one of test is in other letters than the files."""
    root = tmp_path / "corpus"
    aurora = root / "AURORA"
    clean, multi = "si_tr_s/clean/01i/01ic0201.wv1", "si_tr_s/multi/01i/01ic0201.wv2"
    write_text(aurora / "lists/training_clean_sennh_16k.list", clean)
    write_text(aurora / "lists/training_multicondition_16k.list", multi, "si_tr_s/multi/408/408o0302.wv2")
    write_raw(aurora / clean)
    write_raw(aurora / multi)
    for number in range(1, 15):
        dev = f"dev_0330_{number}/4k0/4k0c0301.wv{1 + number // 8}"
        test = f"TEST_{number}/440/440C0401.WV1"
        write_text(aurora / f"lists/devtest{number:02}_0330_16k.list", f"{dev} more")
        write_text(aurora / f"lists/test{number:02}_0330_16k.list", test)
        write_raw(aurora / "dev0330_16k" / dev)
        write_raw(aurora / test.lower())
    write_prompts(root / "wsj0/transcrp/dots", ["01ic0201", "4k0c0301", "440c0401"])
    return load("aurora4", monkeypatch, COUNTS={"dev": 14, "test": 14}), root


def test_aurora4(aurora4: Corpus, tmp_path: Path) -> None:
    sets = prepare(aurora4, tmp_path / "out")
    assert list(sets["train"]) == ["01ic02011"] and list(sets["train_clean"]) == ["01ic02010"]
    assert list(sets["test"]) == [f"440c0401{condition}" for condition in "0123456789abcd"]
    last = sets["dev"]["4k0c0301d"]
    assert (last.text, last.speaker, last.duration) == ("TEXT OF THE POINT 4", "4k0", 0.1)
    samples, rate = soundfile.read(last.audio, dtype="int16")
    raw = aurora4[1] / "AURORA/dev0330_16k/dev_0330_14/4k0/4k0c0301.wv2"
    assert rate == 16_000 and np.array_equal(samples, np.fromfile(raw, ">i2"))
    assert Path(last.audio) == tmp_path / "out/audio/dev/4k0c0301d.flac"


@pytest.fixture
def reverb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    root = tmp_path / "corpus"
    names = {"dt": "Dev", "et": "Eval"}
    for part in ("dt", "et"):
        for distance in ("near", "far"):
            line = f"/{distance}_test/primary_microphone/si_{part}/c3l/c3lc0201_ch1.wav"
            write_audio(root / f"REVERB/REVERB_WSJCAM0_{part}/data{line}")
            write_text(root / f"tasks/taskFiles/1ch/SimData_{part}_for_1ch_{distance}_room1_A", line)
            for number, letter in enumerate("ABCDEFGH", 1):
                channel = line.replace("_ch1", f"_ch{number}")
                write_audio(root / f"REVERB/REVERB_WSJCAM0_{part}/data{channel}")
                write_text(
                    root / f"tasks/taskFiles/8ch/SimData_{part}_for_8ch_{distance}_room1_{letter}", channel
                )
            array = {"near": 1, "far": 2}[distance]
            line = f"/audio/stat/T21/array{array}/5k/AMI_WSJ21-Array{array}-1_T21c0206.wav"
            write_audio(root / f"REVERB/MC_WSJ_AV_{names[part]}{line}")
            write_text(root / f"tasks/taskFiles/1ch/RealData_{part}_for_1ch_{distance}_room1_A", line)
    for name in names.values():
        write_text(
            root / f"REVERB/MC_WSJ_AV_{name}/mlf/WSJ.mlf",
            """#!MLF!#\n"*/T21c0206.lab"\nPEOPLE'\n`SAY\nDON'T\nN\n.\n"*/T6c0201.lab"\nYES\n.""",
        )
    etc = root / "wsjcam0/data/primary_microphone/etc"
    write_text(etc / "si_tr.dot", "One \\.POINT two (c02c0201)", "[door_slam] (c02c0202)", "Three (c02c0203)")
    write_text(etc / "si_dt5a.dot", "Said <it> (c3lc0201)")
    for id in ("c02c0201", "c02c0202"):
        write_audio(root / f"wsjcam0/data/primary_microphone/si_tr/c02/{id}.wv1")
        write_audio(root / f"wsjcam0/data/secondary_microphone/si_tr/c02/{id}.wv2")
    sets = {f"{p}_{k}_{d}": 1 for p in ("dt", "et") for k in ("simu", "real") for d in ("near", "far")}
    return load("reverb", monkeypatch, COUNTS={"train": 2, **sets}), root


def test_reverb(reverb: Corpus, tmp_path: Path) -> None:
    sets = prepare(reverb, tmp_path / "out")
    assert texts(sets["train"]) == {"c02c0201": "ONE POINT TWO"}
    assert texts(sets["et_real_far"]) == {
        "t21_RealData_et_for_1ch_far_room1_A_t21c0206": "PEOPLE SAY DON'T N."
    }
    assert texts(sets["dt_simu_near"]) == {"c3l_SimData_dt_for_1ch_near_room1_A_c3lc0201": "SAID IT"}
    assert texts(sets["dt_simu_near_8ch"]) == {"c3l_SimData_dt_for_8ch_near_room1_c3lc0201": "SAID IT"}
    assert len(sets["dev"]) == len(sets["test"]) == 4
    far = sets["test"]["t21_RealData_et_for_1ch_far_room1_A_t21c0206"]
    assert (far.speaker, far.extras["set"]) == ("t21", "et_real_far")
    assert far.audio.endswith("MC_WSJ_AV_Eval/audio/stat/T21/array2/5k/AMI_WSJ21-Array2-1_T21c0206.wav")


def test_a_path_of_reverb_stays_in_its_folder(reverb: Corpus, tmp_path: Path) -> None:
    recipe, root = reverb
    edit("tasks/taskFiles/1ch/SimData_et_for_1ch_far_room1_A", "/far_test", "/../far_test")(root)
    with pytest.raises(UserError, match="room1_A:1: expected a path such as"):
        recipe.prepare(root, tmp_path / "out")


@pytest.mark.slow
def test_wsj_2mix_is_trained_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system of conf/wsj_2mix, in smoke size: prepared, trained for some updates, scored."""
    recipe, root = make_corpus("wsj_2mix", tmp_path / "corpus", monkeypatch)
    for split, gain in {"tr": "0.5", "cv": "0.25", "tt": "0.6154"}.items():  # each set has its own audio
        folder = root / "2speakers/wav16k/max" / split / "mix"
        (folder / "440c0401_-0.6154_01ic0201_0.6154.wav").unlink()
        write_audio(folder / f"440c0401_-{gain}_01ic0201_{gain}.wav", 3.0)
    write_audio(root / "2speakers/wav16k/max/tr/mix/01ic0202_1e-05_440c0402_-1e-05.wav", 3.0)
    experiment = Experiment(recipe, output_dir=tmp_path / "run", given_corpus_dir=root, smoke=True)
    run_recipe(experiment)
    (run,) = build_runs(experiment)
    assert run.name == "conformer" and load_state(find_model(run.folder))["step"] >= 2
    capsys.readouterr()
    assert main(["evaluate", str(run.folder), str(experiment.data_dir / "test.jsonl"), "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    assert (score["utterances"], score["reference_length"]) == (2, 10)  # the texts of both speakers
    assert score["errors"] > 0


test_no_damage_goes_unnoticed = damage_test("aurora4", "reverb")
