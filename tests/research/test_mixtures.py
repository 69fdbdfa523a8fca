"""`asr evaluate` with a model of two simultaneous speakers: scores that `asr score` confirms, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from label_examples import RUN, write_labeled_tones

from asr import cli
from asr.data import read_manifest, write_manifest
from asr.system.run_config import RunConfig
from asr.train.loop import train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_labeled_tones(tmp_path_factory.mktemp("tones"), train=8, dev=4)
    for name in ("train", "dev"):
        utterances = list(read_manifest(folder / f"{name}.jsonl"))
        both = [one.model_copy(update={"extras": {"text_2": "SIX"}}) for one in utterances]
        write_manifest(folder / f"{name}.jsonl", both)
    settings = ("model.type=multi_speaker", "tokenizer.type=characters", "train.select_by=loss")
    (folder / "run.yaml").write_text(RUN.format(folder=folder))
    train(RunConfig.load(folder / "run.yaml", [*settings, "train.steps=4"]))
    return folder


def test_evaluate(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files that it writes have the errors that it counts; unreadable utterances count as deleted."""
    good = list(read_manifest(corpus / "dev.jsonl"))
    write_manifest(tmp_path / "a.jsonl", [*good, good[0].model_copy(update={"id": "b", "audio": "no.wav"})])
    arguments = [str(corpus / "run"), str(tmp_path / "a.jsonl"), "--output-dir", str(tmp_path)]
    assert cli.main(["evaluate", *arguments, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert list(record["failed"]) == ["b"] and record["score"]["utterances"] == 2 * len(good) + 2
    sides = [str(tmp_path / f"{name}.stm") for name in ("reference", "hypothesis")]
    assert cli.main(["score", "--metric", "cpwer", *sides, "--json"]) == 0
    (scored,) = json.loads(capsys.readouterr().out)["systems"]
    for name in ("errors", "reference_length", "error_rate"):
        assert record["score"][name] == scored[name] > 0
    assert cli.main(["evaluate", *arguments]) == 1
    assert capsys.readouterr().out.startswith("4 utterances of several speakers, ")
