"""`asr export`: graphs give the same texts and scores as the model, in ONNX Runtime and in sherpa-onnx."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from export_examples import run_readme
from safetensors.torch import load_file, save_file
from system_examples import save_talker
from whisper_examples import make_weights, write_huggingface

from asr.cli import main
from asr.errors import UserError
from asr.export.plan import Plan
from asr.export.publish import HOME
from asr.features.front_end import normalize_each, zero_padding
from asr.system.system import load_system
from asr.text.tokenizer import PAD_ID, SPECIAL_TOKENS, UNK_ID, Tokenizer

if find_spec("onnx") is None or find_spec("onnxruntime") is None:
    pytest.skip("the extra export is not installed", allow_module_level=True)

from asr.export import export as exporter, proof
from asr.export.graph_search import ExportedModel
from asr.export.writing import list_symbols, write_model

CONFORMER = ("model.encoder.type=conformer",)
LSTM = ("model.encoder={type: lstm, dim: 16, num_layers: 2, subsampling: {channels: 4}}",)
CHUNK = ("model.encoder.positions=rotary", "model.encoder.chunk={live_left: 16}", "features.cmvn=running")
UTTERANCE = ("features.cmvn=utterance",)
TRANSDUCER = ("model.ctc_weight=0.3", "model.decoder={type: transducer, dim: 24}")
SHERPA = ("features.num_mels=80",)
ICEFALL = (*SHERPA, "features.convention=icefall")


def save_model(folder: Path, *overrides: str, decoder: bool = False) -> str:
    """Save a model that never emits special tokens, which a trained one does not either."""
    model = save_talker(folder / "model", *overrides, decoder=decoder, sharpness=3.0)
    weights = load_file(model / "model.safetensors")
    weights["model.ctc_head.bias"][PAD_ID:UNK_ID] = -100.0
    save_file(weights, model / "model.safetensors")
    return str(model)


@pytest.mark.parametrize(
    ("overrides", "options", "decoder"),
    [
        (CONFORMER + UTTERANCE, "--format onnx", False),
        (LSTM + UTTERANCE, "--format onnx", False),
        (CONFORMER + CHUNK, "--format onnx --stream", False),
        (UTTERANCE, "--format onnx --decoding attention", True),
        (LSTM, "--format onnx --decoding attention", True),
        (("model.decoder.positions=rotary",), "--format onnx --decoding attention", True),
        (TRANSDUCER, "--format onnx", False),
        (("model.ctc_weight=0.3", "model.decoder={type: transducer, dim: 24, predictor: lstm, num_layers: 2}"), "--format onnx", False),
        (("model.ctc_weight=0.3", "model.decoder={type: transducer, dim: 24, durations: [0, 1, 2]}"), "--format onnx", False),
        (LSTM + UTTERANCE + SHERPA, "--format sherpa", False),
        (CONFORMER + UTTERANCE + ICEFALL, "--format sherpa", False),
        (CONFORMER + CHUNK + ICEFALL, "--format sherpa --stream", False),
        (TRANSDUCER + UTTERANCE + ICEFALL, "--format sherpa", False),
        (CONFORMER + CHUNK + TRANSDUCER + ICEFALL, "--format sherpa --stream", False),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_texts_are_the_same(
    overrides: tuple[str, ...],
    options: str,
    decoder: bool,
    tones: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The command itself compares them."""
    model = save_model(tmp_path, *overrides, decoder=decoder)
    words = ["export", model, str(tmp_path / "out"), *options.split(), "--manifest", f"{tones}/dev.jsonl"]
    caplog.set_level("INFO")
    assert main(words) == 0, caplog.text
    assert "ONNX Runtime: the same texts of 5 utterances" in caplog.text
    if "sherpa" in options and find_spec("sherpa_onnx"):
        assert "sherpa-onnx: the same texts of 5 utterances" in caplog.text


def run_export(folder: Path, tones: Path, model: str, *options: str) -> int:
    return main(["export", model, str(folder / "out"), "--manifest", f"{tones}/dev.jsonl", *options])


def test_scores_are_those_of_the_model(tmp_path: Path) -> None:
    """In batches of any length, padded by anything."""
    model = save_model(tmp_path, *CONFORMER, *UTTERANCE)
    system = load_system(model)
    about = write_model(tmp_path, system, Plan("ctc", False, None))
    random = torch.Generator().manual_seed(0)
    for lengths in ([9], [700], [41, 33], [120, 9, 77]):
        x_NTF = 3 * torch.randn(len(lengths), max(lengths), 20, generator=random) + 8
        lengths_N = torch.tensor(lengths)
        features_NTF = normalize_each(zero_padding(x_NTF.clone(), lengths_N), lengths_N)
        with torch.inference_mode():
            encoded_NUD, counts_N = system.model.encode(features_NTF, lengths_N)
            expected_NUV = system.model.ctc_log_probabilities(encoded_NUD)
        scores_NUV, found_N = ExportedModel(tmp_path).run("encoder", x_NTF.numpy(), lengths_N.numpy())
        assert found_N.tolist() == counts_N.tolist()
        for row, count in enumerate(found_N):
            expected_UV = expected_NUV[row, :count].numpy()
            np.testing.assert_allclose(scores_NUV[row, :count], expected_UV, atol=1e-3)
    assert about == json.loads((tmp_path / "export.json").read_text())
    graph = (tmp_path / "model.onnx").read_bytes()  # PyTorch's newer exporter writes where its code is
    assert HOME.search(graph) is None and b".py" not in graph and b"stack_trace" not in graph


def test_other_texts_fail_and_leave_nothing(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proof, "run_graphs", lambda *given: (["five"] * 5, 1.0))
    assert run_export(tmp_path, tones, save_model(tmp_path), "--format", "onnx") == 2
    said = capsys.readouterr().err
    assert "utterance dev-0, from character 0: the model reads" in said
    assert "its graph in ONNX Runtime 'five'" in said
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("better", [True, False])
def test_int8_is_kept_if_it_is_better(
    better: bool,
    tones: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real, seconds = proof.run_graphs, iter([2.0, 1.0 if better else 3.0])
    monkeypatch.setattr(proof, "run_graphs", lambda *given: (real(*given)[0], next(seconds)))
    monkeypatch.setattr(proof.Examples, "compute_wer", lambda self, texts: 12.5)
    caplog.set_level("INFO")
    assert run_export(tmp_path, tones, save_model(tmp_path), "--format", "onnx", "--int8") == 0
    assert "float32: WER 12.50 %, 2.00 s" in caplog.text
    (graph,) = (tmp_path / "out").glob("*.onnx")
    assert graph.name == ("model.int8.onnx" if better else "model.onnx")
    assert json.loads((tmp_path / "out" / "export.json").read_text())["files"] == {"encoder": graph.name}


def test_what_is_wrong_is_said(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path)
    assert run_export(tmp_path, tones, model) == 2
    assert "train it with features.num_mels=80" in capsys.readouterr().err
    assert main(["export", model, str(tmp_path / "out")]) == 2
    assert main(["export", model, str(tmp_path / "out"), "--format", "onnx"]) == 2
    assert "dev.jsonl: no such file; give --manifest" in capsys.readouterr().err
    assert main(["export", model, model, "--format", "onnx"]) == 2
    assert "is not empty; choose a new folder" in capsys.readouterr().err
    whisper = write_huggingface(tmp_path / "tiny.en", make_weights())
    assert main(["export", str(whisper), str(tmp_path / "out"), "--format", "onnx"]) == 2
    assert "a Whisper model, which is exported for sherpa-onnx as a whole" in capsys.readouterr().err
    monkeypatch.setattr(exporter, "find_spec", lambda name: None)
    assert main(["export", str(whisper), str(tmp_path / "out")]) == 2
    assert "sherpa-onnx compares the texts; run: pip install sherpa-onnx" in capsys.readouterr().err
    monkeypatch.setattr(exporter, "find_spec", lambda name: True)
    assert main(["export", str(whisper), str(tmp_path / "out")]) == 2
    assert "has no dev set; give --manifest with utterances" in capsys.readouterr().err
    monkeypatch.setattr(exporter, "MAX_GRAPH_BYTES", 100_000)
    assert run_export(tmp_path, tones, str(whisper)) == 2
    too_large = r"its encoder has \S+ GB in float32, and a graph of ONNX at most"
    assert re.search(too_large, capsys.readouterr().err)
    monkeypatch.setattr(exporter, "FAMILY_TYPES", {})
    assert main(["export", str(whisper), str(tmp_path / "out")]) == 2
    assert "a Whisper model, which cannot be exported; give a run instead" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tokens", [("a", "▁", " "), ("a", "a b"), ("a", "<blk>")])
def test_tokens_that_a_list_cannot_hold(tokens: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="cannot be a line"):
        list_symbols(Tokenizer("characters", SPECIAL_TOKENS + tokens))


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--stream"])
@pytest.mark.parametrize("decoder", [(), TRANSDUCER])
def test_the_commands_of_the_readme_run(
    options: str, decoder: tuple[str, ...], tones: Path, tmp_path: Path
) -> None:
    pytest.importorskip("sherpa_onnx")
    model = save_model(tmp_path, *CONFORMER, *CHUNK, *ICEFALL, *decoder)
    assert run_export(tmp_path, tones, model, *options.split()) == 0
    first, *others = run_readme(tmp_path / "out", tones / "dev-0.wav")
    assert first and all(other.split() == first.split() for other in others)
    page = (tmp_path / "out" / "README.md").read_text()
    assert not {"CALL", "OPTIONS", "SILENCE"} & {*re.findall(r"\w+", page)}
    if not others:
        pytest.skip("the programs in C++ are not installed: pip install sherpa-onnx-bin")


@pytest.mark.slow
def test_recordings_are_cut_as_by_the_run(tones: Path, tmp_path: Path) -> None:
    model = save_model(tmp_path, *UTTERANCE)
    (Path(model) / "state.json").write_text('{"longest_seconds": 7.5}')
    assert run_export(tmp_path, tones, model, "--format", "onnx") == 0
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (about["max_seconds"], about["longest_seconds"]) == (load_system(Path(model)).longest_seconds, 7.5)
