"""Moonshine's weights, sizes and pieces, read from small files that tests write and from the published ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ort_examples import ModelWriter, find_published, write_package, write_pieces
from safetensors.torch import save_file

from asr.errors import UserError
from asr.moonshine import weights as module
from asr.moonshine.installed import check_installed, find_installed
from asr.moonshine.weights import read_pieces, read_weights

PIECES = [
    b"<unk>",
    b"<s>",
    b"</s>",
    *(bytes([byte]) for byte in range(256)),
    b"\xe2\x96\x81the",
    b"",
    b"x" * 300,
]


def compare(weights: dict[str, torch.Tensor], expected: dict[str, np.ndarray]) -> None:
    assert weights.keys() == expected.keys()
    for name, values in expected.items():
        assert weights[name].dtype == torch.float32 and weights[name].is_contiguous()
        assert np.array_equal(weights[name].numpy(), values), name


@pytest.mark.parametrize("is_base", [False, True])
def test_files_of_the_runtime(is_base: bool, tmp_path: Path) -> None:
    writer = ModelWriter(dim=256, vocab_size=300, is_base=is_base)
    writer.write(tmp_path)
    weights = read_weights(tmp_path)
    compare(weights, writer.weights)


def test_swapped_files(tmp_path: Path) -> None:
    small, both = (tmp_path / name for name in ("small", "both"))
    ModelWriter(dim=16).write(small)
    both.mkdir()
    for sources, message in (
        ((small / "decoder_model_merged.ort", small / "encoder_model.ort"), "not the encoder; .* swapped"),
        ((small / "encoder_model.ort", small / "encoder_model.ort"), "not the decoder; .* swapped"),
    ):
        for name, source in zip(module.ORT_FILES, sources, strict=False):
            (both / name).write_bytes(source.read_bytes())
        with pytest.raises(UserError, match=message):
            read_weights(both)
    (both / "decoder_model_merged.ort").unlink()
    with pytest.raises(UserError, match=r"decoder_model_merged.ort: cannot read the file"):
        read_weights(both)


@pytest.mark.parametrize("change", ["output", "scale", "shared"])
def test_files_of_another_model(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(writer: ModelWriter) -> None:
        add_decoder(writer)
        if change == "output":
            writer._tensors["onnx::MatMul_9_quantized"][3, 4] ^= 1
        elif change == "scale":
            writer._tensors["onnx::MatMul_900_merged_0_scale"] = np.ones(1000, np.float32)
        else:
            writer._nodes.append(("/model/decoder/layers.1/mlp/fc1/MatMul", *writer._nodes[0][1:]))

    add_decoder = ModelWriter._add_decoder
    monkeypatch.setattr(ModelWriter, "_add_decoder", damage)
    ModelWriter().write(tmp_path)
    message = "proj_out.weight is not" if change == "output" else "damaged, or belongs to another"
    with pytest.raises(UserError, match=message):
        read_weights(tmp_path)


# --- folders of Hugging Face ------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "model_type": "moonshine",
    "hidden_size": 256,
    "encoder_num_attention_heads": 8,
    "encoder_num_key_value_heads": None,
    "attention_bias": False,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "encoder_hidden_act": "gelu",
}


@pytest.fixture
def huggingface(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    writer = ModelWriter(dim=256, vocab_size=300)
    writer.write(tmp_path / "ort")
    folder = tmp_path / "huggingface"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {f"model.{name}": torch.tensor(values).contiguous() for name, values in writer.weights.items()}
    tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    return folder, writer.weights


def test_huggingface(huggingface: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, expected = huggingface
    weights = read_weights(folder)
    compare(weights, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "whisper"}, "model_type is 'whisper', but Moonshine has 'moonshine'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"decoder_num_key_value_heads": 2}, "decoder_num_key_value_heads is 2, but Moonshine has 8"),
        ({"encoder_num_attention_heads": []}, "encoder_num_attention_heads is"),
        ({"encoder_hidden_act": "relu"}, "encoder_hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ({"partial_rotary_factor": 7}, "hidden_size is 256 and partial_rotary_factor 7, but"),
        ({"hidden_size": "256"}, "hidden_size is '256'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.62}}, "turn 32 dimensions of each of 8 heads"),
    ],
)
def test_other_settings(
    changes: dict[str, Any], message: str, huggingface: tuple[Path, dict[str, np.ndarray]]
) -> None:
    folder, _ = huggingface
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    with pytest.raises(UserError, match=message):
        read_weights(folder)


def test_other_weights(huggingface: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, expected = huggingface
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(UserError, match="damaged safetensors file"):
        read_weights(folder)
    name = "decoder.embed_tokens.weight"
    tensors = {f"model.{name}": torch.tensor(expected[name]), "proj_out.weight": torch.zeros(300, 256)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"proj_out.weight is not decoder.embed_tokens"):
        read_weights(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors: no such file"):
        read_weights(folder)
    save_file({"model.decoder.norm.weight": torch.tensor(1.0)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"proj_out.weight is not decoder.embed_tokens"):
        read_weights(folder)


# --- pieces -----------------------------------------------------------------------------------------


def test_pieces(tmp_path: Path) -> None:
    write_pieces(tmp_path / "tokenizer.bin", PIECES)
    assert read_pieces(tmp_path) == PIECES
    (tmp_path / "tokenizer.bin").unlink()
    names = [f"<0x{id - 3:02X}>" if 3 <= id < 259 else piece.decode() for id, piece in enumerate(PIECES)]
    vocabulary = {name: id for id, name in enumerate(names) if id > 2}
    added = [{"content": name, "id": id} for id, name in enumerate(names[:3])]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))
    assert read_pieces(tmp_path) == PIECES
    for tree in (3, {}, {"model": 1}, {"model": {"vocab": {"a": 2**60}}}, {"model": {"vocab": [1]}}):
        path.write_text(json.dumps(tree))
        with pytest.raises(UserError, match=r"not Moonshine's pieces|not a JSON object"):
            read_pieces(tmp_path)


def test_pieces_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.bin"
    write_pieces(path, PIECES[:259] + PIECES[-1:])
    whole = path.read_bytes()
    for place in [*range(0, 500, 7), *range(len(whole) - 300, len(whole))]:
        path.write_bytes(whole[:place])
        with pytest.raises(UserError, match="truncated or damaged, download it again"):
            read_pieces(tmp_path)


# --- installed packages, published files ------------------------------------------------------------


def test_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are found without importing it, and refused if they differ from the published ones."""
    folder, _ = write_package(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert find_installed("moonshine-base") == folder and find_installed("moonshine-tiny") is None
    message = r"encoder_model.ort: not the file that was published; install moonshine"
    with pytest.raises(UserError, match=message):
        check_installed(folder)
    (folder / module.ORT_FILES[2]).unlink()
    assert find_installed("moonshine-base") is None, "a file is not there"


@pytest.mark.parametrize(
    ("size", "tensors", "numbers", "pieces"),
    [("tiny", 160, 27_092_736, 32_768), ("base", 210, 61_513_920, 32_000)],
)
def test_published_files(size: str, tensors: int, numbers: int, pieces: int) -> None:
    folder = find_published(size)
    check_installed(folder)
    weights = read_weights(folder)
    assert (len(weights), sum(weight.numel() for weight in weights.values())) == (tensors, numbers)
    assert len(read_pieces(folder)) == pieces
