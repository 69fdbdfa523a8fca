"""`asr evaluate`, `asr info` and `asr transcribe` with classifiers: results, scores and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch
from label_examples import KINDS, RATE, SPEAKERS, build_run, write_labeled_tones

from asr import cli
from asr.audio import reading as audio
from asr.data import Utterance, read_manifest, write_manifest
from asr.models.encoders import make_frame_times
from asr.research.classification import Classification, ReadSplit
from asr.research.classifiers import FIRST_LABEL_ID, LabelModel
from asr.research.labels import SILENCE
from asr.system.system import System, load_any_system
from asr.train.loop import train

every_kind = pytest.mark.parametrize("kind", KINDS)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models that have learned a little, so they make some errors."""
    folder = write_labeled_tones(tmp_path_factory.mktemp("tones"), train=16, dev=6)
    for kind in KINDS:
        train(build_run(folder, kind, f"output_dir={folder}/{kind}", "train.steps=6"))
    return folder


def load(corpus: Path, kind: str) -> System[LabelModel]:
    return cast("System[LabelModel]", load_any_system(corpus / kind / "model"))


def run(corpus: Path, kind: str, utterances: list[Utterance], batch_size: int = 2) -> ReadSplit:
    return Classification(load(corpus, kind), "here", utterances).decode(CPU, batch_size)


def evaluate_as_json(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    assert cli.main(["evaluate", *map(str, arguments), "--json"]) == status
    return json.loads(capsys.readouterr().out)


# --- labels -------------------------------------------------------------------------------------


@every_kind
@torch.inference_mode()
def test_labels_are_the_predictions_of_the_model(kind: str, corpus: Path) -> None:
    """A batch has the predictions of each utterance alone; expected labels come from the manifest."""
    system, utterances = load(corpus, kind), list(read_manifest(corpus / "dev.jsonl"))
    task = Classification(load(corpus, kind), "here", utterances)
    split = task.decode(CPU, 2)
    expected_labels = task.find_expected(split)
    assert split.problems == {} and set(split.results) == {item.id for item in utterances}
    frame_times = make_frame_times(system.config.features, system.model.encoder)
    for item in utterances:
        samples = torch.from_numpy(audio.read(item.audio, RATE))
        features, lengths = system.front_end(samples[None], torch.tensor([len(samples)]))
        scores, counts = system.model.label(features, lengths)
        ids = scores[0, : int(counts[0])].argmax(-1) + FIRST_LABEL_ID
        assert split.results[item.id] == [system.tokenizer.tokens[id] for id in ids.tolist()]
        if kind == "recording":
            assert expected_labels[item.id] == [item.speaker]
        else:
            words = [word.split(":") for word in str(item.extras["word_times"]).split()]
            spans = [(word, *map(float, times.split("-"))) for word, times in words]
            times = [frame_times.first + 0.04 * step for step in range(int(counts[0]))]
            expected = [
                next((word for word, begin, end in spans if begin <= time < end), SILENCE) for time in times
            ]
            assert expected_labels[item.id] == expected
    assert split.audio_seconds == pytest.approx(sum(item.duration for item in utterances), abs=0.01)
    assert split.real_time_factor == split.seconds / split.audio_seconds


def test_the_interval_draws_speakers_unless_they_are_the_label(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utterances = [
        Utterance(id=f"u{number}", audio="a.wav", duration=1.0, speaker=f"s{number // 20}")
        for number in range(200)
    ]
    said = {item.id: ["b" if n % 20 < n // 20 else "a"] for n, item in enumerate(utterances)}
    nameless = [item.model_copy(update={"speaker": None}) for item in utterances]
    intervals = []
    for label, items in (("text", utterances), ("speaker", utterances), ("text", nameless)):
        task = Classification(load(corpus, "recording"), "here", utterances)
        task.utterances, task._label = items, label
        monkeypatch.setattr(task, "find_expected", lambda split: {name: ["a"] for name in said})
        intervals.append(task.score(ReadSplit(results=said)).interval)
    by_speaker, alone, without_names = intervals
    assert without_names == alone
    assert by_speaker is not None and alone is not None
    assert by_speaker.high - by_speaker.low > 1.2 * (alone.high - alone.low)


# --- asr evaluate -------------------------------------------------------------------------------


@every_kind
def test_evaluate(kind: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, JSON and files contain the same labels."""
    arguments = [corpus / kind, corpus / "dev.jsonl", "--output-dir", tmp_path]
    record = evaluate_as_json(capsys, *arguments)
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    pairs = [pair for row in rows for pair in zip(row["expected"], row["predicted"], strict=True)]
    accuracy = sum(left == right for left, right in pairs) / len(pairs)
    assert len(rows) == 6 and record["score"]["count"] == len(pairs) and record["failed"] == {}
    assert record["score"]["accuracy"] == pytest.approx(accuracy)
    names = list(record["score"]["labels"])
    assert names == sorted({label for pair in pairs for label in pair})
    for left, counts in zip(names, record["score"]["confusions"], strict=True):
        assert counts == [pairs.count((left, right)) for right in names]
    assert cli.main(["evaluate", str(corpus / kind), str(corpus / "dev.jsonl"), "--batch-size", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"6 utterances, {len(pairs)} labels, ")
    assert f"{'frame ' if kind == 'frames' else ''}accuracy {100 * accuracy:.2f} %" in shown
    assert shown.splitlines()[3].split() == ["label", "count", "precision", "%", "recall", "%"]


def test_a_bad_file_affects_only_its_utterance(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = list(read_manifest(corpus / "dev.jsonl"))[:2]
    soundfile.write(tmp_path / "short.wav", np.array([0.1, -0.1] * 5), RATE)
    bad = [
        good[0].model_copy(update={"id": name, "audio": f"{tmp_path}/{name}.wav", "duration": 0.0006})
        for name in ("none", "short")
    ]
    write_manifest(tmp_path / "test.jsonl", [*good, *bad])
    record = evaluate_as_json(capsys, corpus / "recording", tmp_path / "test.jsonl", status=1)
    assert record["failed"].keys() == {"none", "short"} and record["score"]["count"] == 2
    assert "10 samples are too short for one frame" in record["failed"]["short"]
    write_manifest(tmp_path / "bad.jsonl", bad)
    assert cli.main(["evaluate", str(corpus / "recording"), str(tmp_path / "bad.jsonl")]) == 2
    assert "none of its 2 utterances could be decoded" in capsys.readouterr().err


def test_unseen_labels_are_errors(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strangers = [item.model_copy(update={"speaker": "new"}) for item in read_manifest(corpus / "dev.jsonl")]
    write_manifest(tmp_path / "test.jsonl", strangers)
    record = evaluate_as_json(capsys, corpus / "recording", tmp_path / "test.jsonl")
    assert record["unseen"] == ["new"] and record["score"]["accuracy"] == 0
    assert record["score"]["labels"]["new"] == {"count": 6, "precision": None, "recall": 0.0}


# --- other commands -----------------------------------------------------------------------------


def test_transcribe_refuses(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(read_manifest(corpus / "dev.jsonl")).audio
    assert cli.main(["transcribe", path, "--model", str(corpus / "frames")]) == 2
    assert "a model of type frame_labels; expected type speech" in capsys.readouterr().err


@every_kind
def test_info(kind: str, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(corpus / kind), "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    expected = SPEAKERS if kind == "recording" else {SILENCE, "ONE", "TWO", "SIX", "TEN"}
    assert sorted(model["labels"].split(", ")) == sorted(expected)
    assert model["parameters"] == sum(model["parameters of"].values())
    assert set(model["scores on dev"]) == {"loss", "accuracy"}
