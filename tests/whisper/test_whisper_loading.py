"""Whisper models in every format: all give the same weights; hostile or damaged files give a clear error."""

from __future__ import annotations

import functools
import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import soundfile
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from torch import Tensor
from whisper_examples import SIZES, VOCABULARY, make_weights, refuse, write_huggingface

from asr.cli import main
from asr.errors import UserError
from asr.families import find_family
from asr.whisper import find_files, find_sizes, load_source, quantize, units_of

WEIGHTS = make_weights()


@functools.cache
def expected_weights() -> dict[str, Tensor]:
    """Under our names; test_whisper_model.py shows that they compute what Whisper computes."""
    from test_whisper_model import MODEL

    return MODEL.state_dict()


def convert(folder: Path) -> Path:
    source = write_huggingface(folder / "hf", WEIGHTS)
    assert main(["convert", str(source), str(folder / "new" / "hf")]) == 0
    return folder / "new" / "hf"


FORMS: dict[str, Callable[[Path], Path]] = {
    "hugging face": lambda folder: write_huggingface(folder / "hf", WEIGHTS),
    "hugging face, sharded": lambda folder: write_huggingface(folder / "hf", WEIGHTS, form="sharded"),
    "converted": convert,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_model(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = FORMS[form](tmp_path)
    assert find_family(path).section == "whisper"
    system = load_source(path)
    weights = system.model.state_dict()
    assert weights.keys() == expected_weights().keys()
    for name, weight in expected_weights().items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=0)
    units, sizes = units_of(system.tokenizer), find_sizes(system)
    assert units.vocabulary == VOCABULARY and not units.special.is_multilingual
    assert len(system.tokenizer) == sizes.vocab_size
    assert not system.model.training and weights["encoder.norm.weight"].dtype == torch.float32
    assert sizes.alignment_heads == ((1, 0), (2, 1))
    capsys.readouterr()
    assert main(["info", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["model"]
    biases_of_keys = (2 + 2 * 3) * SIZES["n_audio_state"]
    assert told["parameters"] == sum(weight.numel() for weight in WEIGHTS.values()) + biases_of_keys
    assert told["dim"] == 32


@torch.inference_mode()
def test_rounded_as_they_are_read(tmp_path: Path) -> None:
    """Half precision becomes 8 bits without float32 copies of the weights, and the scores are the same."""
    halves = {name: weight.half() for name, weight in WEIGHTS.items()}
    path = write_huggingface(tmp_path / "hf", halves)
    models = [load_source(path).model for _ in range(2)]
    models[0].float()
    assert {weight.dtype for weight in models[1].state_dict().values()} == {torch.float16}
    scores = []
    for model in models:
        quantize(model, torch.float32)  # which leaves nothing of the file mapped
        encoded = model.encode(torch.ones(1, 20, 80), torch.tensor([20]))
        scores.append(model.decoder.step(torch.tensor([[3, 4]]), model.decoder.start(*encoded))[0])
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=0)
    assert models[1].decoder.embedding.weight.dtype == torch.float16
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(path) not in maps.read_text()


def test_convert_writes_over_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = convert(tmp_path)
    assert main(["convert", str(tmp_path / "hf"), str(folder)]) == 2
    assert "hf: is not empty" in capsys.readouterr().err


# --- the hub ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["whisper-tiny.en", "openai/whisper-tiny.en"])
def test_a_name_on_the_hub_is_found_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--openai--whisper-tiny.en"
    revision = "0123456789abcdef0123456789abcdef01234567"
    write_huggingface(repository / "snapshots" / revision, WEIGHTS)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    assert find_family(name)
    weight = load_source(name).model.state_dict()["decoder.embedding.weight"]
    torch.testing.assert_close(weight, expected_weights()["decoder.embedding.weight"])


def test_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message comes within a second, because the hub's client lists the files before it retries downloads."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.create_connection", unknown)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"whisper-small: .*service not known; there may be no net.*`hf down"):
        load_source("small")
    assert time.monotonic() - began < 1.5
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"whisper-small: .*unset the `HF_HUB_OFFLINE`"):
        load_source("small")


def test_names_as_in_other_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asr.whisper.loading._fetch", Path)
    for name, hub_name in (
        ("tiny", "openai/whisper-tiny"),
        ("base.en", "openai/whisper-base.en"),
        ("large", "openai/whisper-large-v3"),
        ("large-v1", "openai/whisper-large"),
        ("turbo", "openai/whisper-large-v3-turbo"),
        ("distil-large-v3", "distil-whisper/distil-large-v3"),
        ("whisper-small", "openai/whisper-small"),
    ):
        assert find_family(name) and find_files(name) == Path(hub_name)
    assert not find_family("large-v4")
    (tmp_path / "tiny").mkdir()  # the folder of a run
    assert not find_family("tiny") and find_files("tiny") == Path("tiny")


def test_what_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, local_files_only: bool = False, **__: object) -> None:
        raise LocalEntryNotFoundError("nothing") if local_files_only else OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    monkeypatch.setattr("asr.hub._download", fail)
    (tmp_path / "tiny.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "ggml.bin").write_bytes(b"lmgg")
    for name, message in (
        (str(tmp_path / "absent" / "model.pt"), "no such file or folder"),
        ("nonsense", "no such file or folder"),
        ("../whisper-missing", "no such file or folder"),
        ("whisper-bas", "did you mean openai/whisper-base?"),
        ("base", r"no network\).*`hf download openai/whisper-base`"),
        (str(tmp_path / "tiny.pt"), r"tiny\.pt: damaged, or not weights from torch.save"),
        (str(tmp_path), "no Whisper model in this folder"),
        (str(tmp_path / "ggml.bin"), r"ggml\.bin: the sizes should have 40 bytes, but 0 are left"),
    ):
        with pytest.raises(UserError, match=message):
            load_source(name)
    assert not find_family("nonsense") and not find_family(str(tmp_path / "absent" / "model.pt"))
    monkeypatch.delenv("ASR_MODEL", raising=False)
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 16_000)
    assert main(["transcribe", str(tmp_path / "a.wav"), "--language", "de"]) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in ("hf download openai/whisper-base", "--model", "ASR_MODEL"))


# --- hostile and damaged files ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_audio_state": 10**12}, "dim = 1000000000000"),
        ({"n_audio_layer": 10**9}, "encoder_layers = 1000000000"),
        ({"n_audio_head": 5}, "is not a multiple of encoder_heads"),
        ({"n_mels": "80"}, "num_mels"),
        ({"n_text_ctx": 10**500}, "max_tokens"),
        ({"n_audio_ctx": 750}, r"encoder.embed_positions.weight are \(1500, 32\)"),
        ({"n_text_layer": 4}, "decoder.layers.3.* are missing"),
        ({"n_audio_layer": 1}, "encoder.layers.1.* expected none"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    refuse(write_huggingface(tmp_path, WEIGHTS, sizes=SIZES | change), message)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "hf", WEIGHTS)
    path = folder / "model.safetensors"
    whole, weights = path.read_bytes(), load_file(path)
    norm = "model.decoder.layer_norm.bias"
    save_file(weights | {norm: weights[norm].to(torch.int64)}, path)
    refuse(folder, "decoder.layer_norm.bias are torch.int64")
    save_file(weights | {norm: torch.ones(33)}, path)
    refuse(folder, r"decoder.layer_norm.bias are \(33,\)")
    save_file(weights | {"proj_out.weight": weights["model.decoder.embed_tokens.weight"] + 1}, path)
    refuse(folder, "proj_out.weight differs from the embeddings")
    for content in (struct.pack("<Q", 2**40) + whole[8:], whole[:-1]):
        path.write_bytes(content)
        refuse(folder, "not a complete safetensors file")
    path.unlink()
    refuse(folder, "no weights; expected model.safetensors")


def test_settings_of_hugging_face_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path, WEIGHTS)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for change, message in (
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"activation_function": "relu"}, "activation_function is 'relu', but Whisper has 'gelu'"),
        ({"decoder_ffn_dim": 64}, "decoder_ffn_dim is 64, but Whisper has 128"),
        ({"d_model": None}, "dim = null"),
        ({"d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}, "expected .448, 64."),
        ({"encoder_layers": 10**6}, "encoder_layers"),
    ):
        path.write_text(json.dumps(config | change))
        refuse(folder, message)
    for content, message in (("[" * 1_000_000, "nested too deep"), (" " * 20_000_001, "over 20,000,000")):
        path.write_text(content)
        refuse(folder, message)
    path.write_text(json.dumps(config))
    generation = folder / "generation_config.json"
    for heads in ("[[1e400, 1]]", "[[0, 2.7]]", '[["0", "1"]]', "[[0]]", "[3]", "7", "[[3, 0]]"):
        generation.write_text(f'{{"alignment_heads": {heads}}}')
        refuse(folder, rf"{folder}: .*alignment_heads")
    generation.write_text('{"alignment_heads": [[0, 1]]}')
    assert find_sizes(load_source(folder)).alignment_heads == ((0, 1),)
