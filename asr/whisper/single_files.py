"""Read Whisper from one file: openai-whisper's `.pt` or whisper.cpp's `ggml-*.bin`. Neither can run code.

Declared sizes are checked against the remaining bytes of the file before memory is allocated. Weights in full
or half precision stay memory-mapped.
"""

from __future__ import annotations

import base64
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from asr.errors import UserError
from asr.features.filters import compute_whisper_filters
from asr.system.pickles import check_tensors, read_pickled
from asr.system.system import System
from asr.whisper.weights import build_sizes, make_system
from asr.whisper.whisper_tokenizer import END, Vocabulary, check_order, read_small

MAGIC = b"lmgg"


def read_file(path: Path) -> System:
    """Read a model in either format."""
    try:
        with open(path, "rb") as file:
            return _read_ggml(_Ggml(path, file)) if file.read(4) == MAGIC else _read_openai(path)
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror})") from None


# --- openai-whisper ---------------------------------------------------------------------------------

RANKS = {True: "multilingual.tiktoken", False: "gpt2.tiktoken"}  # vocabularies of the package openai-whisper


def _read_openai(path: Path) -> System:
    tree = read_pickled(path)
    dims = tree.get("dims")
    if not isinstance(dims, dict) or dims.get("n_text_state") != dims.get("n_audio_state"):
        raise UserError(
            f"{path}: no Whisper sizes (dims), which openai-whisper writes; give another file, or the folder "
            "if it is part of one"
        )
    sizes = build_sizes(dims, str(path))
    theirs = check_tensors(tree.get("model_state_dict"), path)
    return make_system(path, sizes, read_ranks(_find_ranks(path, RANKS[sizes.is_multilingual])), theirs)


def _find_ranks(path: Path, name: str) -> Path:
    """Return the vocabulary next to a model, else the installed package's, which is not imported."""
    package = find_spec("whisper")
    folders = [Path(folder) / "assets" for folder in (package and package.submodule_search_locations) or []]
    for ranks in (folder / name for folder in [path.parent, *folders]):
        if ranks.is_file():
            return ranks
    raise UserError(
        f"{path}: has no vocabulary. Put {name} next to it, from the folder whisper/assets of the package "
        "openai-whisper, or install that package: pip install --no-deps openai-whisper"
    )


def read_ranks(path: Path) -> Vocabulary:
    """Read tiktoken's format: lines with a token in base64 and its ID."""
    ids: dict[int, bytes] = {}
    for number, line in enumerate(read_small(path).splitlines(), start=1):
        token, _, id = line.rpartition(b" ")
        try:
            # The empty token of the multilingual vocabulary is written as a lone "=".
            ids[int(id)] = b"" if token == b"=" else base64.b64decode(token, validate=True)
        except ValueError:
            text = line[:40].decode("utf-8", "backslashreplace")
            raise UserError(
                f"{path}:{number}: {text!r}, but expected a token in base64, a space and a number"
            ) from None
    return check_order(ids, path)


# --- whisper.cpp ------------------------------------------------------------------------------------

SIZES = (
    *("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels"),
)
MAX_NAME_BYTES = 200
MAX_TOKEN_BYTES = 10_000
BLOCK = 32  # weights that share a scale in a quantized tensor
# Fields of a block in a quantized tensor: scale, in some types the lowest value or the fifth bits, weights.
_SCALE, _LOWEST, _FIFTH, _HALVES, _WHOLES = (
    ("scale", "<f2"),
    ("lowest", "<f2"),
    ("fifth", "u1", 4),
    ("halves", "u1", 16),
    ("wholes", "i1", BLOCK),
)
KINDS: dict[int, np.dtype] = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    2: np.dtype([_SCALE, _HALVES]),  # q4_0
    3: np.dtype([_SCALE, _LOWEST, _HALVES]),  # q4_1
    6: np.dtype([_SCALE, _FIFTH, _HALVES]),  # q5_0
    7: np.dtype([_SCALE, _LOWEST, _FIFTH, _HALVES]),  # q5_1
    8: np.dtype([_SCALE, _WHOLES]),  # q8_0
}


class _Ggml:
    """A file that is read sequentially. All numbers in it are little-endian."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self._file, self._size = path, file, os.fstat(file.fileno()).st_size

    @property
    def left(self) -> int:
        return self._size - self._file.tell()

    def take(self, num_bytes: int, what: str) -> bytes:
        self._require(num_bytes, what)
        return self._file.read(num_bytes)

    def integers(self, count: int, what: str) -> list[int]:
        integers: list[int] = np.frombuffer(self.take(4 * count, what), "<i4").tolist()
        return integers

    def map(self, count: int, dtype: np.dtype, what: str) -> np.ndarray:
        """Memory-map numbers, copy-on-write so that training may change them."""
        self._require(count * dtype.itemsize, what)
        place = self._file.tell()
        self._file.seek(place + count * dtype.itemsize)
        return np.asarray(np.memmap(self.path, dtype, "c", place, (count,)))

    def _require(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.left:
            raise UserError(
                f"{self.path}: {what} should have {num_bytes:,} bytes, but {self.left:,} are left; "
                "the file is truncated or damaged, download it again"
            )


def _read_ggml(file: _Ggml) -> System:
    sizes = build_sizes(dict(zip(SIZES, file.integers(len(SIZES), "the sizes"), strict=True)), str(file.path))
    file.integers(1, "the type of the file")  # each tensor has its own type
    _check_filters(file, sizes.num_mels)
    vocabulary = _read_vocabulary(file, sizes.vocab_size)
    theirs: dict[str, Tensor] = {}
    while file.left:
        name, weight = _read_tensor(file)
        theirs[name] = weight
    return make_system(file.path, sizes, vocabulary, theirs)


def _check_filters(file: _Ggml, num_mels: int) -> None:
    """Check that the file's mel filters equal ours."""
    if file.integers(2, "the size of the mel filters") == [num_mels, 201]:
        filters_MK = np.frombuffer(file.take(4 * num_mels * 201, "the mel filters"), "<f4")
        expected_KM = compute_whisper_filters(np.arange(201) * 40.0, 0.0, 8000.0, num_mels)
        if np.allclose(filters_MK, expected_KM.T.ravel(), atol=1e-5):
            return
    raise UserError(f"{file.path}: the mel filters in it are not Whisper's, so it is no Whisper, or damaged")


def _read_vocabulary(file: _Ggml, max_tokens: int) -> Vocabulary:
    (count,) = file.integers(1, "the size of the vocabulary")
    if not 0 <= count <= max_tokens:
        raise UserError(f"{file.path}: {count:,} tokens of text, but {max_tokens:,} in all; it is damaged")
    tokens = []
    for number in range(count):
        length = int.from_bytes(file.take(4, "the vocabulary"), "little")
        if length > MAX_TOKEN_BYTES:
            raise UserError(f"{file.path}: token {number} has {length:,} bytes; the file is damaged")
        tokens.append(file.take(length, "the vocabulary"))
    if tokens[-1:] == [END.encode()]:  # the English vocabulary includes the first special token
        tokens.pop()
    return tuple(tokens)


def _read_tensor(file: _Ggml) -> tuple[str, Tensor]:
    num_dims, name_bytes, kind = file.integers(3, "the head of a tensor")
    if not (1 <= num_dims <= 3 and 0 < name_bytes <= MAX_NAME_BYTES and kind in KINDS):
        raise UserError(
            f"{file.path}: a tensor has {num_dims} dimensions and type {kind}, but expected up to 3, and "
            "f32, f16, q4_0, q4_1, q5_0, q5_1 or q8_0; the file is damaged, or quantized in another way"
        )
    shape = file.integers(num_dims, "the shape of a tensor")[::-1]
    name = file.take(name_bytes, "the name of a tensor").decode("utf-8", errors="replace")
    is_quantized = KINDS[kind].names is not None
    if min(shape) < 1 or (is_quantized and shape[-1] % BLOCK):
        raise UserError(f"{file.path}: {name} has the sizes {shape}; the file is damaged")
    count = math.prod(shape)
    weights = file.map(count // BLOCK if is_quantized else count, KINDS[kind], name)
    if is_quantized:
        weights = dequantize(weights)
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        shape = [count]  # written with a second dimension of 1
    return name, torch.from_numpy(weights).view(shape)


def dequantize(blocks: np.ndarray) -> np.ndarray:
    """Return (N,) float32 from N / 32 blocks: scale * weight + lowest; without lowest, centered on 0."""
    names = blocks.dtype.names or ()
    scale_N1 = blocks["scale"].astype(np.float32)[:, None]
    if "wholes" in names:
        return (scale_N1 * blocks["wholes"]).ravel()
    halves = blocks["halves"]
    whole = np.concatenate([halves & 15, halves >> 4], axis=1).astype(np.float32)
    middle = 8
    if "fifth" in names:
        whole += 16 * np.unpackbits(blocks["fifth"], axis=1, bitorder="little")
        middle = 16
    if "lowest" in names:
        return (scale_N1 * whole + blocks["lowest"].astype(np.float32)[:, None]).ravel()
    return (scale_N1 * (whole - middle)).ravel()
