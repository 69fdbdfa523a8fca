"""Whisper and Moonshine in sherpa-onnx write what they write here. The models are small and random, but end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from export_examples import run_readme
from ort_examples import load_talker
from whisper_systems import build_system

from asr.cli import main
from asr.data.manifest import Utterance
from asr.decoding.hypothesis import ChecksConfig
from asr.evaluation.speech import read_utterances
from asr.export.plan import FAMILY_TYPES, Plan
from asr.system.system import System
from asr.text.tokenizer import EOS_ID
from asr.whisper import windows
from asr.whisper.loading import write_model
from asr.whisper.manners import WhisperManners
from asr.whisper.weights import get_weights
from asr.whisper.whisper_tokenizer import units_of

pytest.importorskip("onnx", reason="onnx is not installed: pip install '.[export]'")
pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed: pip install sherpa-onnx")

from asr.export.proof import Examples, decode_examples, prove
from asr.export.writing import write_family

pytestmark = pytest.mark.slow
WHISPER = Plan("whisper", False, FAMILY_TYPES["whisper"])


def build_talker(is_multilingual: bool, num_mels: int = 80) -> System:
    """A Whisper whose texts are ASCII, since sherpa-onnx drops what is no UTF-8."""
    system = build_system(is_multilingual, window_steps=1500, num_mels=num_mels)
    pieces = units_of(system.tokenizer).pieces
    strange = [id for id, piece in enumerate(pieces) if not piece.decode("latin-1").isprintable()]
    strange += [id for id, piece in enumerate(pieces) if not piece.isascii() or (not piece and id != EOS_ID)]
    system.model.decoder.embedding.weight.data[strange] = 0
    return system


def export_whisper(system: System, folder: Path, tones: Path) -> list[str]:
    """Returns the texts that both runtimes have."""
    manners = WhisperManners(system, ChecksConfig.off())
    examples = decode_examples(manners, WHISPER, read_utterances(f"{tones}/dev.jsonl"))
    prove(folder, write_family(folder, manners, WHISPER), examples, WHISPER, False)
    return list(examples.texts)


@pytest.mark.parametrize("silence", [windows.Silence(np.inf, None), windows.Silence(1.0, 8)])
def test_published_whisper(
    silence: windows.Silence, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all silence up to 30 seconds, and with a part of it."""
    monkeypatch.setitem(windows.SILENCES, (32, False), silence)
    texts = export_whisper(build_talker(False), tmp_path, tones)
    assert len(set(texts)) > 1 and all(texts)


def test_fine_tuned_whisper(tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It learned without silence after the audio; some of its texts are longer than sherpa-onnx lets them be."""
    system = replace(build_talker(False), is_published=False)
    assert all(export_whisper(system, tmp_path, tones))
    assert "sherpa-onnx limits the tokens of a second" in caplog.text


def test_moonshine(tones: Path, tmp_path: Path) -> None:
    manners = load_talker(tmp_path)
    plan = Plan("moonshine", False, FAMILY_TYPES["moonshine"])
    examples = decode_examples(manners, plan, read_utterances(f"{tones}/dev.jsonl"))
    about = write_family(tmp_path, manners, plan)
    assert prove(tmp_path, about, examples, plan, False) == about
    assert all(examples.texts)


@pytest.mark.parametrize("num_mels", [80, 128])
def test_multilingual_whisper(num_mels: int, tones: Path, tmp_path: Path) -> None:
    """Both detect the language of each recording. With 128 mel bands it is as large-v3 and turbo."""
    system = build_talker(True, num_mels)
    assert all(export_whisper(system, tmp_path, tones))
    assert len(system.tokenizer) == 51_865 + (num_mels == 128)
    assert json.loads((tmp_path / "export.json").read_text())["sherpa"]["arguments"]["language"] == ""


def test_the_command(tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Weights of 8 bits are named wherever they are kept."""
    system = build_talker(False)
    write_model(tmp_path / "model", system, get_weights(system))
    caplog.set_level("INFO")
    words = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--int8"]
    assert main([*words, "--manifest", f"{tones}/dev.jsonl"]) == 0, caplog.text
    assert "sherpa-onnx: the same texts of 5 utterances" in caplog.text
    out = tmp_path / "out"
    about = json.loads((out / "export.json").read_text())
    call = about["sherpa"]
    assert about["files"] == {part: call["arguments"][part] for part in ("encoder", "decoder")}
    assert {path.name for path in out.glob("*.onnx")} == {*about["files"].values()}
    page = (out / "README.md").read_text()
    assert "--whisper-language=en" in page and "language='en'" in page
    assert len(set(run_readme(out, tones / "dev-0.wav"))) == 1


def test_published_models_write_other_letters_than_references(tmp_path: Path) -> None:
    manners = WhisperManners(build_talker(False), ChecksConfig.off())
    one = Utterance(id="a", audio="a.wav", duration=1.0, text="GO HOME")
    assert Examples(manners.system, [one], [], [], 0.0).compute_wer(["Go home."]) == 0
