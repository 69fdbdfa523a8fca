"""tools/convert_ggml.py: files of whisper.cpp as folders of Hugging Face; damaged ones give a clear error."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from whisper_examples import SIZES, VOCAB_SIZE, VOCABULARY, make_weights, write_ggml

from asr.errors import UserError
from asr.whisper import build_sizes, load_whisper, rename_weights

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import convert_ggml

WEIGHTS = make_weights()


def load_expected() -> dict[str, torch.Tensor]:
    return rename_weights(build_sizes({**SIZES, "n_vocab": VOCAB_SIZE}, "the test"), WEIGHTS, "the test")


@pytest.mark.parametrize("half", [False, True])
def test_it_is_the_same_model(half: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_ggml(tmp_path / "ggml.bin", WEIGHTS, half=half)
    assert convert_ggml.main([str(path), str(tmp_path / "folder")]) == 0
    system = load_whisper(tmp_path / "folder")
    weights = system.model.state_dict()
    for name, weight in load_expected().items():
        torch.testing.assert_close(weights[name].float(), weight, rtol=0, atol=0)
    assert system.tokenizer.vocabulary == VOCABULARY
    path.write_bytes(b"GGUF")
    assert convert_ggml.main([str(path), str(tmp_path / "other")]) == 2
    assert "ggml.bin" in capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_ggml(tmp_path_factory.mktemp("ggml") / "ggml.bin", WEIGHTS, half=True).read_bytes()


def test_ggml_cut_anywhere(whole: bytes, tmp_path: Path) -> None:
    """Never a traceback; in the middle of the weights it is seen by what is missing."""
    path = tmp_path / "ggml.bin"
    places = {*range(4, 60), *np.linspace(60, len(whole) - 1, 60).astype(int).tolist()}
    for place in places:
        path.write_bytes(whole[:place])
        with pytest.raises(UserError, match=r"left; the file is cut off|weights are missing|mel filters"):
            convert_ggml.read_ggml(path)


def test_ggml_that_declares_the_moon(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ggml.bin"
    tokens = whole.index(struct.pack("<i", len(VOCABULARY) + 1) + struct.pack("<i", 1) + VOCABULARY[0])
    tensor = whole.index(b"encoder.conv1.weight") - 24
    for place, value, message in (
        (4, 2**30, "vocab_size = 1073741824"),
        (tokens, 2**31 - 1, "tokens of text"),
        (tokens + 4, 2**31 - 1, "token 0 has"),
        (tensor, 2**30, "a tensor of 1073741824 dimensions"),
        (tensor + 4, 2**30, "a tensor of 3 dimensions"),
        (tensor + 8, 14, "and type 14 is none that is read here"),
        (tensor + 12, 2**31 - 1, "encoder.conv1.weight should have"),
        (tensor + 12, -1, "encoder.conv1.weight has shape"),
    ):
        path.write_bytes(whole[:place] + struct.pack("<i", value) + whole[place + 4 :])
        with pytest.raises(UserError, match=message):
            convert_ggml.read_ggml(path)


def quantized_value(kind: int, block: bytes, place: int) -> float:
    """One weight of a block, as ggml defines it."""
    scale = struct.unpack_from("<e", block)[0]
    if kind == convert_ggml.Q8_0:
        return scale * struct.unpack_from("<32b", block, 2)[place]
    has_lowest = kind in (convert_ggml.Q4_1, convert_ggml.Q5_1)
    has_fifth = kind in (convert_ggml.Q5_0, convert_ggml.Q5_1)
    fifths = struct.unpack_from("<I", block, 4 if has_lowest else 2)[0] if has_fifth else 0
    byte = block[-16:][place % 16]
    value = (byte & 15 if place < 16 else byte >> 4) + 16 * (fifths >> place & 1)
    if has_lowest:
        return scale * value + struct.unpack_from("<e", block, 2)[0]
    return scale * (value - (16 if has_fifth else 8))


@pytest.mark.parametrize(
    ("kind", "size"), [("Q4_0", 18), ("Q4_1", 20), ("Q5_0", 22), ("Q5_1", 24), ("Q8_0", 34)]
)
def test_quantized_weights(kind: str, size: int) -> None:
    random, number = np.random.default_rng(0), getattr(convert_ggml, kind)
    blocks = [struct.pack("<ee", *random.standard_normal(2)) + random.bytes(size - 4) for _ in range(20)]
    found = convert_ggml._dequantize(np.frombuffer(b"".join(blocks), convert_ggml.BLOCKS[number]))
    expected = [quantized_value(number, block, place) for block in blocks for place in range(32)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
