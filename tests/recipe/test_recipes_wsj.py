"""Prompts of the Wall Street Journal, and two simultaneous speakers made from it, trained and scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus_examples import make_corpus, write_audio

from asr.cli import main
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
