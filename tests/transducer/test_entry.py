"""asr/transducer/entry: the method of transducers among the others, and a transducer through every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from decoding_examples import BigramModel, search
from hostile_audio import make_speechlike
from system_examples import save_talker
from tone_examples import TINY_RUN
from transducer_examples import DURATIONS, build_transducer, encode

from asr.audio import SegmentationConfig
from asr.cli import main
from asr.decoding.decode import offered_methods, plan_fallbacks, resolve_method
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.serve.live import LiveTranscriber, transcribe_live
from asr.system.system import load_system
from asr.transcription.transcribe import load_recognizer
from asr.transducer.label_looping import GreedySearch


def test_auto_is_its_own_method() -> None:
    model = build_transducer()
    assert resolve_method(model, "auto") == "transducer"
    assert offered_methods(model) == ["ctc_greedy", "ctc_beam", "transducer"]
    assert offered_methods(model, with_language_model=True) == ["ctc_beam", "transducer"]
    assert [one.method for one in plan_fallbacks(model, DecodingConfig())] == ["transducer", "ctc_beam"]
    with pytest.raises(UserError, match="decoding method joint needs a decoder"):
        resolve_method(model, "joint")


@torch.inference_mode()
def test_a_wider_beam_finds_likelier_texts() -> None:
    """A beam of 1 is greedy, and counts one alignment; with a language model, it is a beam."""
    model = build_transducer(blank=2.0)
    encoded = encode(model, [7, 5])
    greedy = search(model, *encoded, DecodingConfig(beam=1))
    search_greedy = GreedySearch(model.decoder, 2, encoded[1].device)
    search_greedy.read(model.decoder.prepare_steps(encoded[0]), encoded[1])
    assert [text for (text,) in greedy] == search_greedy.finish()[0]
    for (narrow,), wide in zip(
        greedy, search(model, *encoded, DecodingConfig(beam=30, nbest=3)), strict=True
    ):
        assert len(wide) == 3 and wide[0].log_probability > narrow.log_probability
        assert [one.score for one in wide] == sorted((one.score for one in wide), reverse=True)
    config = DecodingConfig(beam=1, language_model_weight=0.5)
    assert all(len(texts) == 1 for texts in search(model, *encoded, config, BigramModel()))


@torch.inference_mode()
def test_durations_are_decoded_greedily() -> None:
    model = build_transducer(durations=DURATIONS)
    encoded = encode(model, [9, 4])
    config = DecodingConfig(nbest=3)
    assert search(model, *encoded, config) == search(model, *encoded, DecodingConfig(beam=1))
    config = DecodingConfig(language_model_weight=0.5)
    with pytest.raises(UserError, match="with durations has no use for a language model; decode by ctc_beam"):
        search(model, *encoded, config, BigramModel())


def run(*words: str | Path) -> None:
    assert main([str(word) for word in words]) == 0


@pytest.mark.slow
def test_training_starts_from_ctc(tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps encoder and head, and reports its loss, which falls."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(TINY_RUN.format(folder=tmp_path, tones=tones))
    common = ["train", "run.yaml", "model.guided_attention=null", "train.threads=1"]
    common += ["optim.learning_rate=1e-2"]
    run(*common, "output_dir=ctc", "model.decoder=null", "model.ctc_weight=1.0", "train.steps=2")
    decoder = "model.decoder={type: transducer, dim: 32, predictor: lstm}"
    still = ["model.frozen=[encoder, ctc_head]", "train={steps: 24, log_every: 4, validate_every: 24}"]
    run(*common, "output_dir=run", decoder, "start_from=ctc", *still)
    before, after = load_system(tmp_path / "ctc/model").model, load_system(tmp_path / "run/model").model
    kept = {name: weight for name, weight in after.state_dict().items() if not name.startswith("decoder.")}
    assert kept.keys() == before.state_dict().keys()
    assert all(torch.equal(weight, before.state_dict()[name]) for name, weight in kept.items())
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [row["transducer"] for row in log if row["kind"] == "train"]
    assert len(losses) == 6 and losses[-1] < 0.7 * losses[0]


def test_all_commands_take_a_transducer(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = save_talker(tmp_path / "model", "model.decoder={type: transducer, dim: 32}")
    off = "--set=checks=off"
    run("evaluate", model, tones / "dev.jsonl", "--json", "--decoding", "all", off)
    assert list(json.loads(capsys.readouterr().out)["methods"]) == ["ctc_greedy", "ctc_beam", "transducer"]
    run("transcribe", tones / "dev-0.wav", "--model", model, "--format", "json", off)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["text"] and found["segments"][0]["decoding"] == "transducer"
    assert " ".join(word["text"] for word in found["segments"][0]["words"]) == found["text"]
    hotwords = "--hotwords", "twelve", "--set=decoding.hotword_boost=90"
    run("transcribe", tones / "dev-0.wav", "--model", model, off, *hotwords)
    assert "twelve twelve" in capsys.readouterr().out
    row = {"id": "a", "audio": str(tones / "dev-0.wav"), "duration": 0.6, "text": "one two"}
    (tmp_path / "text.jsonl").write_text(json.dumps(row))
    for method in ("ctc", "attention"):
        run("align", model, "text.jsonl", "--output", "aligned.jsonl", "--method", method)
        aligned = json.loads((tmp_path / "aligned.jsonl").read_text())["extras"]["word_times"]
        assert [word.split(":")[0] for word in aligned.split()] == ["one", "two"]


def test_live_text(tmp_path: Path) -> None:
    model = save_talker(tmp_path / "model", "model.decoder={type: transducer, dim: 32}")
    recognizer = load_recognizer(
        str(model), "cpu", "float32", SegmentationConfig(method="none"), ChecksConfig.off()
    )
    audio_S = make_speechlike(1.0)
    blocks = [audio_S[:8000], audio_S[8000:]]
    live = [*transcribe_live(blocks, LiveTranscriber(recognizer), 16_000)]
    assert any(text.segment is not None and text.segment.text for text in live)
