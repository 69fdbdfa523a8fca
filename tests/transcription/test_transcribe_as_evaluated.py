"""Transcribing the utterances of a data set gives the texts of evaluating it, for each model family."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile_audio import make_speechlike
from model_examples import SYSTEMS
from training_examples import TinyRun
from whisper_examples import SIZES, VOCABULARY, make_weights, write_huggingface

from asr import cli
from asr.audio import reading as audio
from asr.decoding import hypothesis
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.models.speech_model import build_model
from asr.system.checkpoint import save_checkpoint
from asr.system.system import System
from asr.text.tokenizer import EOS_ID, UNK_ID, Tokenizer, TokenizerConfig

pytestmark = pytest.mark.usefixtures("loud_is_speech")

RATE = 16_000
SECONDS = (0.3, 0.62, 0.6, 1.4)


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One file whose last utterance has silence before it, which no detector may cut off."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for number, seconds in enumerate(SECONDS):
        samples = make_speechlike(seconds, seed=number).astype(np.float32)
        samples[: len(samples) // 3] *= 0.001
        audio.write(f"{number}.wav", samples, RATE)
        rows.append({"id": f"u{number}", "audio": f"{number}.wav", "duration": seconds, "text": "ONE"})
    rows.append({"id": "part", "audio": "3.wav", "start": 0.5, "duration": 0.7, "text": "TWO"})
    Path("test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "test.jsonl"


def save_model(tiny_run: TinyRun, name: str) -> str:
    """Random weights that produce long texts."""
    features = FeaturesConfig(num_mels=20, cmvn="utterance")
    run = tiny_run().model_copy(update={"model": SYSTEMS[name], "features": features})
    tokenizer = Tokenizer.train(TokenizerConfig(type="characters"), ["ONE TWO SIX TEN"])
    torch.manual_seed(6)
    model = build_model(SYSTEMS[name], 20, len(tokenizer)).eval()
    for head in (model.ctc_head, model.decoder and getattr(model.decoder, "output", None)):
        if head is not None:
            torch.nn.init.normal_(head.weight, std=3.0 if "transformer" not in name else 1.0)
            torch.nn.init.constant_(head.bias[UNK_ID], -100.0)
    if model.decoder is not None and hasattr(model.decoder, "output"):
        torch.nn.init.constant_(model.decoder.output.bias[EOS_ID], 1.0)
    state = {"step": 0, "longest_seconds": max(SECONDS)}
    save_checkpoint(Path("model"), System(run, tokenizer, FrontEnd(features), model), state)
    return "model"


def decode_both_ways(
    model: str, manifest: str, *settings: str, files: Sequence[str] = ()
) -> tuple[dict[str, str], dict[str, str], int]:
    """Texts from transcribing the manifest or `files`, from evaluating, and the number of rejected texts."""
    options = [f"--set={setting}" for setting in settings]
    command = ["transcribe", *(files or [manifest]), "--model", model, "--format=json", "--output-dir=out"]
    assert cli.main([*command, "--device=cpu", "--batch-size=3", *options]) == 0
    transcribed, rejected = {}, 0
    for path in Path("out").glob("*.json"):
        record = json.loads(path.read_text())
        transcribed[path.stem] = record["text"]
        rejected += any(segment.get("warnings") for segment in record["segments"])
    assert cli.main(["evaluate", model, manifest, "--output-dir", "eval", "--device=cpu", *options]) == 0
    (path,) = Path("eval").glob("*.raw.jsonl")
    evaluated = [json.loads(line) for line in path.read_text().splitlines()]
    return transcribed, {record["id"]: record["text"] for record in evaluated}, rejected


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("transformer-hybrid", "joint"),
        pytest.param("transformer-attention", "attention", marks=pytest.mark.slow),
        ("lstm-ctc", "ctc_beam"),
        pytest.param("conformer-hybrid", "rescoring", marks=pytest.mark.slow),
        ("attention-location", "attention"),
        pytest.param("intra-attention-decoder", "attention", marks=pytest.mark.slow),
        pytest.param("parallel-length", "parallel", marks=pytest.mark.slow),
        ("mask-ctc", "parallel"),
    ],
)
def test_transcription_equals_evaluation(
    tiny_run: TinyRun, manifest: str, name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Random weights are never confident, so texts are checked but not dropped as silence.
    monkeypatch.setattr(hypothesis, "MIN_SPEECH_PROBABILITY", 1e-9)
    monkeypatch.setattr(hypothesis, "MIN_AGREED_PROBABILITY", 1e-9)
    settings = [f"decoding.method={method}", "decoding.beam=3"]
    transcribed, evaluated, rejected = decode_both_ways(save_model(tiny_run, name), manifest, *settings)
    assert transcribed == evaluated and len(set(evaluated.values())) > 1
    assert rejected or not name.endswith("hybrid")


def test_files_as_utterances(tiny_run: TinyRun, manifest: str) -> None:
    """Silence is cut off in neither case, because the model was trained with it."""
    model = save_model(tiny_run, "lstm-ctc")
    files = [f"{number}.wav" for number in range(len(SECONDS))]
    transcribed, evaluated, _ = decode_both_ways(model, manifest, "checks=off", files=files)
    assert transcribed == {Path(file).stem: evaluated[f"u{Path(file).stem}"] for file in files}


def test_at_several_speeds(tiny_run: TinyRun, manifest: str) -> None:
    settings = ["decoding.method=joint", "decoding.beam=3", "decoding.speeds=[0.9,1.0,1.2]"]
    model = save_model(tiny_run, "transformer-hybrid")
    transcribed, evaluated, rejected = decode_both_ways(model, manifest, *settings, "checks=off")
    assert transcribed == evaluated and len(set(evaluated.values())) > 3 and not rejected


@pytest.mark.slow
def test_long_utterances_are_cut_in_both(tiny_run: TinyRun, manifest: str) -> None:
    """They are longer than training allowed."""
    model = save_model(tiny_run, "transformer-hybrid")
    path = Path(model, "config.yaml")
    limit = json.dumps(1.1)
    text = path.read_text().replace("max_utterance_seconds: 30.0", f"max_utterance_seconds: {limit}")
    assert limit in text
    path.write_text(text)
    cut, evaluated, _ = decode_both_ways(model, manifest, "checks=off")
    assert cut == evaluated
    assert cut["u3"] != decode_both_ways(model, manifest, "segmentation.method=none", "checks=off")[1]["u3"]


def write_whisper(num_steps: int) -> str:
    """Random weights that produce text, with windows of `steps` steps of 20 ms."""
    sizes = SIZES | {"n_audio_ctx": num_steps, "n_text_ctx": 32}
    weights = make_weights(sizes=sizes)
    weights["decoder.token_embedding.weight"][: len(VOCABULARY)] *= 4
    return str(write_huggingface(Path("whisper-tiny"), weights, sizes=sizes))


WHISPER = ["checks.max_no_speech=null", "decoding.samples=1", "precision=float32"]


@pytest.mark.parametrize("checks", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_whisper(manifest: str, checks: str) -> None:
    settings = [*WHISPER, "decoding.temperatures=[0.4]", f"checks={checks}"]
    transcribed, evaluated, rejected = decode_both_ways(write_whisper(100), manifest, *settings)
    assert transcribed == evaluated and any(evaluated.values())
    assert (rejected > 0) == (checks == "on")


def test_files_as_utterances_with_whisper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is cut off in both cases, and silent audio has no text in either."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for number, (before, speech, after) in enumerate(((1.5, 1.2, 0.8), (0.0, 0.6, 3.0), (3.5, 0.0, 0.0))):
        parts = (
            np.zeros(int(before * RATE)),
            make_speechlike(speech, seed=number),
            np.zeros(int(after * RATE)),
        )
        audio.write(f"{number}.wav", np.concatenate(parts).astype(np.float32) + np.float32(1e-4), RATE)
        seconds = before + speech + after
        rows.append({"id": f"u{number}", "audio": f"{number}.wav", "duration": seconds, "text": "ONE"})
    Path("test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, settings = write_whisper(200), [*WHISPER, "decoding.temperatures=[]", "checks=off"]
    files = [f"{number}.wav" for number in range(3)]
    transcribed, evaluated, _ = decode_both_ways(model, "test.jsonl", *settings, files=files)
    assert {f"u{name}": text for name, text in transcribed.items()} == evaluated
    assert evaluated["u0"] and evaluated["u1"] and not evaluated["u2"]
