"""Whisper files of whisper.cpp and openai-whisper. Damaged and hostile ones give a clear error and run no code."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from whisper_examples import (
    SIZES,
    VOCAB_SIZE,
    VOCABULARY,
    make_weights,
    refuse,
    write_ggml,
    write_huggingface,
    write_openai,
    write_ranks,
)

from asr.cli import main
from asr.errors import UserError
from asr.whisper import build_sizes, find_weights, load_source, make_system, units_of
from asr.whisper.single_files import KINDS, dequantize, read_ranks

WEIGHTS = make_weights()


def load_expected() -> dict[str, torch.Tensor]:
    sizes = build_sizes({**SIZES, "n_vocab": VOCAB_SIZE}, "the test")
    return make_system(Path("the test"), sizes, VOCABULARY, WEIGHTS).model.state_dict()


def assert_same(source: Path) -> None:
    system = load_source(source)
    weights = system.model.state_dict()
    for name, weight in load_expected().items():
        torch.testing.assert_close(weights[name].float(), weight, rtol=0, atol=0)
    assert units_of(system.tokenizer).vocabulary == VOCABULARY


@pytest.mark.parametrize("half", [False, True])
def test_ggml_is_the_same_model_read_and_converted(half: bool, tmp_path: Path) -> None:
    path = write_ggml(tmp_path / "ggml.bin", WEIGHTS, half=half)
    assert main(["convert", str(path), str(tmp_path / "folder")]) == 0
    assert_same(path)
    assert_same(tmp_path / "folder")
    assert find_weights(path) == path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_ggml(tmp_path_factory.mktemp("ggml") / "ggml.bin", WEIGHTS, half=True).read_bytes()


def test_ggml_cut_anywhere(whole: bytes, tmp_path: Path) -> None:
    """Never a traceback; if the cut is within the weights, missing bytes reveal it."""
    path = tmp_path / "ggml.bin"
    places = {*range(4, 60), *np.linspace(60, len(whole) - 1, 60).astype(int).tolist()}
    for place in places:
        path.write_bytes(whole[:place])
        with pytest.raises(UserError, match=r"left; the file is truncated|weights are missing|mel filters"):
            load_source(path)


def test_ggml_that_declares_the_moon(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ggml.bin"
    tokens = whole.index(struct.pack("<i", len(VOCABULARY) + 1) + struct.pack("<i", 1) + VOCABULARY[0])
    tensor = whole.index(b"encoder.conv1.weight") - 24
    for place, value, message in (
        (4, 2**30, "vocab_size = 1073741824"),
        (tokens, 2**31 - 1, "tokens of text"),
        (tokens + 4, 2**31 - 1, "token 0 has"),
        (tensor, 2**30, "a tensor has 1073741824 dimensions"),
        (tensor + 4, 2**30, "a tensor has 3 dimensions"),
        (tensor + 8, 14, "and type 14, but expected"),
        (tensor + 12, 2**31 - 1, "encoder.conv1.weight should have"),
        (tensor + 12, -1, "encoder.conv1.weight has the sizes"),
    ):
        path.write_bytes(whole[:place] + struct.pack("<i", value) + whole[place + 4 :])
        with pytest.raises(UserError, match=message):
            load_source(path)


Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 2, 3, 6, 7, 8  # as ggml numbers them


def quantized_value(kind: int, block: bytes, place: int) -> float:
    """One weight of a block, as ggml defines it."""
    scale = struct.unpack_from("<e", block)[0]
    if kind == Q8_0:
        return scale * struct.unpack_from("<32b", block, 2)[place]
    has_lowest, has_fifth = kind in (Q4_1, Q5_1), kind in (Q5_0, Q5_1)
    fifths = struct.unpack_from("<I", block, 4 if has_lowest else 2)[0] if has_fifth else 0
    byte = block[-16:][place % 16]
    value = (byte & 15 if place < 16 else byte >> 4) + 16 * (fifths >> place & 1)
    if has_lowest:
        return scale * value + struct.unpack_from("<e", block, 2)[0]
    return scale * (value - (16 if has_fifth else 8))


@pytest.mark.parametrize(("kind", "size"), [(Q4_0, 18), (Q4_1, 20), (Q5_0, 22), (Q5_1, 24), (Q8_0, 34)])
def test_quantized_weights(kind: int, size: int) -> None:
    random = np.random.default_rng(0)
    blocks = [struct.pack("<ee", *random.standard_normal(2)) + random.bytes(size - 4) for _ in range(20)]
    found = dequantize(np.frombuffer(b"".join(blocks), KINDS[kind]))
    expected = [quantized_value(kind, block, place) for block in blocks for place in range(32)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_quantized_tensor_in_a_file(whole: bytes, tmp_path: Path) -> None:
    """The first query weights in 8 bits, as whisper.cpp quantizes: the whole file is read, and they are close."""
    name = b"encoder.blocks.0.attn.query.weight"
    place, dim = whole.index(name), SIZES["n_audio_state"]
    weight = WEIGHTS[name.decode()].numpy()
    scales = np.abs(weight).max(axis=1) / 127  # rows are one block each
    blocks = [
        struct.pack("<e", scale) + np.rint(row / scale).astype("i1").tobytes()
        for row, scale in zip(weight, scales, strict=True)
    ]
    head, start = struct.pack("<5i", 2, len(name), Q8_0, dim, dim), place + len(name)
    content = whole[: place - 20] + head + name + b"".join(blocks) + whole[start + 2 * dim * dim :]
    (tmp_path / "ggml.bin").write_bytes(content)
    found = load_source(tmp_path / "ggml.bin").model.state_dict()
    joined = next(weight for name, weight in found.items() if name.endswith("attention.project_in.weight"))
    query = joined[:dim].numpy()
    np.testing.assert_allclose(query, weight, atol=float(scales.max()) * 0.51 + 1e-4)


# --- openai-whisper --------------------------------------------------------------------------------


def test_openai_and_hugging_face_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read unchanged; the vocabulary of a .pt is next to it or in the installed package openai-whisper."""
    pickled = write_huggingface(tmp_path / "old", WEIGHTS, form="pickled")
    path = write_openai(tmp_path / "tiny.en.pt", WEIGHTS)
    with pytest.raises(UserError, match=r"tiny\.en\.pt: has no vocabulary\. Put gpt2\.tiktoken next to it"):
        load_source(path)
    assets = tmp_path / "site" / "whisper" / "assets"
    assets.mkdir(parents=True)
    write_ranks(assets / "gpt2.tiktoken", VOCABULARY)
    (assets.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "whisper", raising=False)  # the folder of these tests
    for source in (path, pickled):
        assert_same(source)
        assert main(["convert", str(source), str(tmp_path / f"new-{source.name}")]) == 0
        assert_same(tmp_path / f"new-{source.name}")


def test_a_model_is_written_as_openai_has_it(tmp_path: Path) -> None:
    """`asr convert FOLDER FILE.pt` writes weights and sizes as openai-whisper loads them."""
    folder = write_huggingface(tmp_path / "tiny.en", WEIGHTS)
    assert main(["convert", str(folder), str(tmp_path / "tiny.en.pt")]) == 0
    tree = torch.load(tmp_path / "tiny.en.pt", weights_only=True)
    assert tree["dims"].items() >= SIZES.items() and tree["model_state_dict"].keys() == WEIGHTS.keys()
    assert all(torch.equal(tree["model_state_dict"][name], weight) for name, weight in WEIGHTS.items())
    assert main(["convert", str(folder), str(tmp_path / "tiny.en.pt")]) == 2
    large = write_huggingface(tmp_path / "large", WEIGHTS | {"decoder.ln.bias": torch.full((32,), 1e6)})
    assert main(["convert", str(large), str(tmp_path / "half.pt"), "--dtype", "float16"]) == 2
    assert not (tmp_path / "half.pt").exists(), "float16 cannot hold it"


def test_ranks_in_a_file(tmp_path: Path) -> None:
    vocabulary = (*VOCABULARY, b"")  # as the multilingual one, which ends with an empty token
    write_ranks(tmp_path / "ranks", vocabulary)
    assert read_ranks(tmp_path / "ranks") == vocabulary
    for damaged in ("no base64!\n", "YQ== x\n", "YQ== 1\n", "", "YQ== 0\nYQ== 1\n", "YQ== " + "9" * 5000):
        (tmp_path / "ranks").write_text(damaged)
        with pytest.raises(UserError, match="ranks"):
            read_ranks(tmp_path / "ranks")


def write_archive(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("tiny/data.pkl", content)
        archive.writestr("tiny/version", "3\n")
    return path


class _Code:
    """If it were unpickled, it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_pickle_with_code_runs_nothing(tmp_path: Path, protocol: int, is_hidden: bool) -> None:
    tree = {"dims": dict(SIZES), "model_state_dict": {"x": _Code(tmp_path / "executed")}}
    content = pickle.dumps(tree if is_hidden else _Code(tmp_path / "executed"), protocol=protocol)
    path = write_archive(tmp_path / "tiny.pt", content)
    refuse(path, "would run code .*nothing was run")
    assert not (tmp_path / "executed").exists()


def test_archives_that_ask_for_memory(tmp_path: Path) -> None:
    """A terabyte of zeros by a call that PyTorch allows, a zip bomb, and one number expanded to a large matrix."""
    zeros = b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R."
    refuse(write_archive(tmp_path / "tiny.pt", zeros), "would run code .*bytearray")
    refuse(write_archive(tmp_path / "bomb.pt", bytes(60_000_000), zipfile.ZIP_DEFLATED), "compressed archive")
    repeated = torch.zeros(1, 1).expand(len(VOCABULARY) + 1608, 10**9)
    wide = WEIGHTS | {"decoder.token_embedding.weight": repeated}
    refuse(write_openai(tmp_path / "wide.pt", wide), "bytes of weights, more than the file")
    shared = dict.fromkeys(WEIGHTS, torch.zeros(500, 500))
    refuse(write_openai(tmp_path / "shared.pt", shared), "bytes of weights, more than the file")


def test_sizes_that_are_no_sizes(tmp_path: Path) -> None:
    for change, message in (
        ({"n_audio_state": 64}, "no Whisper sizes"),
        ({"n_text_ctx": 10**5000}, "damaged"),
    ):
        refuse(write_openai(tmp_path / "tiny.pt", WEIGHTS, SIZES | change), message)
    (tmp_path / "page.pt").write_text("<html>")
    refuse(tmp_path / "page.pt", "damaged")
