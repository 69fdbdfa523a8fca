"""asr/evaluation/word_times.py and `asr align`: words where they sound, as a manifest that models of labels learn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from label_examples import build_run, write_labeled_tones
from system_examples import save_talker
from tone_examples import TONES_HZ

from asr import cli
from asr.data import Utterance, read_manifest, write_manifest
from asr.evaluation.word_times import align_utterances
from asr.models.encoders import make_frame_times
from asr.research.labels import read_spans
from asr.system.system import System, load_system
from asr.text.tokenizer import BLANK_ID
from asr.train.loop import train
from asr.transcription.transcribe import Recognizer

CPU = torch.device("cpu")
FIELD = "extras.word_times"


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(tmp_path_factory.mktemp("talker") / "model", decoder=False)


def save_words(folder: Path, *settings: str, decoder: bool = True) -> Path:
    """Random weights; words of tones as tokens."""
    save_talker(folder, *settings, decoder=decoder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["tokens"][5:9] = list(TONES_HZ)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labeled_tones(tmp_path_factory.mktemp("tones"), train=8, dev=6)


def make_knowing(system: System, utterance: Utterance, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CTC head that says each word of this utterance in the middle of its sound, and else blank."""
    frame_times, times = (
        make_frame_times(system.config.features, system.model.encoder),
        read_spans(utterance, FIELD),
    )

    def log_probabilities(encoded_BTD: torch.Tensor) -> torch.Tensor:
        scores_1TV = torch.full((1, encoded_BTD.size(1), len(system.tokenizer)), -10.0)
        scores_1TV[..., BLANK_ID] = 0.0
        for label, begin, end in zip(times.labels, times.begins_K, times.ends_K, strict=True):
            step = round(((begin + end) / 2 - frame_times.first) / frame_times.seconds_per_step)
            scores_1TV[0, step, system.tokenizer.encode(label)[0]] = 10.0
        return scores_1TV.log_softmax(-1)

    monkeypatch.setattr(system.model, "ctc_log_probabilities", log_probabilities)


def find_spans(utterance: Utterance, times: str) -> Any:
    return read_spans(utterance.model_copy(update={"extras": {"t": times}}), "extras.t")


@pytest.mark.parametrize("by", ["ctc", "attention"])
def test_words_are_where_they_sound(
    by: Any, talker: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a CTC head, or by a decoder without CTC, whose last layer attends in the middle of each word."""
    system = load_system(talker if by == "ctc" else save_words(tmp_path / "m", "model.ctc_weight=0.0"))
    frame_times = make_frame_times(system.config.features, system.model.encoder)
    for utterance in read_manifest(corpus / "dev.jsonl"):
        true = read_spans(utterance, FIELD)
        if by == "ctc":
            make_knowing(system, utterance, monkeypatch)
        else:
            score = type(system.model.decoder).score_reference

            def score_reference(*arguments: Any, true: Any = true, score: Any = score) -> Any:
                scores_BNV, weights = score(system.model.decoder, *arguments)
                (last,) = weights
                attention_BHNT = torch.full_like(weights[last], 1e-6)
                for row, (begin, end) in enumerate(zip(true.begins_K, true.ends_K, strict=True)):
                    step = round(((begin + end) / 2 - frame_times.first) / frame_times.seconds_per_step)
                    attention_BHNT[:, :, row, step] = 1.0
                return scores_BNV, {last: attention_BHNT}

            monkeypatch.setattr(system.model.decoder, "score_reference", score_reference)
        times, problems = align_utterances(
            Recognizer(system, "cpu", "float32"), [utterance], by=by, batch_size=1
        )
        found = find_spans(utterance, times[utterance.id])
        assert problems == {} and found.labels == true.labels
        assert found.begins_K == pytest.approx(true.begins_K, abs=0.03)
        assert found.ends_K == pytest.approx(true.ends_K, abs=0.03)


def align(*arguments: Any) -> int:
    return cli.main(["align", *map(str, arguments)])


def test_command(talker: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same utterances with times, from which frame labels can be learned."""
    for split in ("train", "dev"):
        output = tmp_path / f"{split}.jsonl"
        assert align(talker, corpus / f"{split}.jsonl", "--output", output) == 0
        assert capsys.readouterr().out == f"{output}\n"
        before, after = list(read_manifest(corpus / f"{split}.jsonl")), list(read_manifest(output))
        kept = [item.model_copy(update={"extras": before[n].extras}) for n, item in enumerate(after)]
        assert kept == before and all(item.extras["word_times"] for item in after)
        assert after != before, "the corpus has true times"
    train(build_run(tmp_path, "frames", "model.label=extras.word_times", "train.steps=2"))


def test_problems_cost_one_utterance(
    talker: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = next(read_manifest(corpus / "dev.jsonl"))
    soundfile.write(tmp_path / "short.wav", [0.1, -0.1] * 800, 16_000)
    changes: list[dict[str, Any]] = [
        {"id": "silent", "text": ""},
        {"id": "unknown", "text": "ONE FOUR"},
        {"id": "crowded", "audio": f"{tmp_path}/short.wav", "duration": 0.1, "text": "ONE ONE ONE"},
        {"id": "none", "audio": f"{tmp_path}/none.wav"},
    ]
    write_manifest(tmp_path / "in.jsonl", [good, *(good.model_copy(update=change) for change in changes)])
    assert align(talker, tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl") == 1
    written = {item.id: item.extras["word_times"] for item in read_manifest(tmp_path / "out.jsonl")}
    assert written.keys() == {good.id, "silent"} and written["silent"] == ""
    assert "utterance unknown: the model has no token for 'FOUR'" in caplog.text
    assert "utterance crowded: its audio has 2 encoded steps, but its 3 tokens need 5" in caplog.text
    write_manifest(tmp_path / "in.jsonl", [good.model_copy(update=changes[1])])
    assert align(talker, tmp_path / "in.jsonl", "--output", tmp_path / "never.jsonl") == 2
    assert not (tmp_path / "never.jsonl").exists()


def test_wrong_use(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], talker: Path) -> None:
    listener = save_talker(tmp_path / "attention", "model.ctc_weight=0.0")
    arguments = [corpus / "dev.jsonl", "--output", tmp_path / "out.jsonl"]
    assert align(listener, *arguments, "--method", "ctc") == 2
    assert "needs a CTC head" in capsys.readouterr().err
    assert align(talker, *arguments, "--method", "attention") == 2
    assert "needs a decoder with attention" in capsys.readouterr().err
