"""Read Moonshine's weights and pieces from its runtime's files and Hugging Face folders."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor

from asr.config import describe_error
from asr.data.text_lines import read_object
from asr.errors import UserError, shorten
from asr.files import read_limited
from asr.moonshine.family import ORT_FILES
from asr.moonshine.ort_file import OrtFile
from asr.moonshine.sizes import HEADS, TURNED, MoonshineSizes
from asr.moonshine.tokens import BYTE
from asr.system.system import read_tensors

MAX_BYTES = 20_000_000  # largest file of pieces or settings
TOO_LARGE = "which this file of a Moonshine model never has"
PIECES = (ORT_FILES[2], "tokenizer.json")
EMBEDDING, OUTPUT = "decoder.embed_tokens.weight", "proj_out.weight"  # tied


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights in float32, with Hugging Face's names without "model."; the output is left out.

    Missing weights and wrong shapes are detected when a model is built from them.
    """
    if (folder / ORT_FILES[0]).is_file():
        weights = _read_part(folder / ORT_FILES[0], "encoder") | _read_part(folder / ORT_FILES[1], "decoder")
    else:
        weights = _read_huggingface(folder)
    output = weights.pop(OUTPUT, None)
    if EMBEDDING not in weights or not (output is None or torch.equal(output, weights[EMBEDDING])):
        raise UserError(f"{folder}: {OUTPUT} is not {EMBEDDING}; in Moonshine they are the same")
    return weights


def find_sizes(weights: Mapping[str, Tensor], source: Path) -> MoonshineSizes:
    layers = {name.split(".")[2] for name in weights if name.startswith("decoder.layers.")}
    rows, dim = weights[EMBEDDING].shape
    try:
        return MoonshineSizes(dim=dim, layers=len(layers), vocab_size=rows)
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {describe_error(error)}; is it a Moonshine model?") from None


# --- files of Moonshine's runtime -------------------------------------------------------------------

OPERATORS = ("MatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "Mul", "Add")
# Numbers in tensor names have no meaning: a layer is identified by the node that multiplies its weights.
LAYER = re.compile(r"(?:/model/decoder)?/(layers\.\d+/\w+/\w+|proj_out)/MatMul(?:_quant)?")
GROUP_NORM = {"/groupnorm/Mul": "groupnorm.weight", "/groupnorm/Add": "groupnorm.bias"}
NAMED = re.compile(
    r"(?:model\.decoder\.)?"
    r"(layers\.\d+\.(?:mlp\.\w+\.bias|\w+norm\.weight)|(?:layer_)?norm\.weight|conv[23]\.bias"
    r"|conv[123]\.weight|embed_tokens\.weight)"
    r"(?:_merged_\d+)?(?:_add_tensor|_quantized)?"
)
COMPUTED = "_add_tensor"  # suffix of tensors that the graph computes from 8-bit numbers
TIED = "model.decoder.embed_tokens.weight_transposed"  # the output, if the graph ties it to the embeddings
RENAMED = {"attn.dense": "attn.o_proj", "mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"}


def _read_part(path: Path, part: Literal["encoder", "decoder"]) -> dict[str, Tensor]:
    """Read the weights of one of the two files; in total up to four times the file size."""
    file = OrtFile(path, OPERATORS)
    if any(node.name.startswith("/model/decoder/") for node in file.nodes) != (part == "decoder"):
        raise UserError(f"{path}: it is not the {part}; are the names of the two files swapped?")
    try:
        weights = {}
        for node in file.nodes:
            if node.name in GROUP_NORM:
                weights[GROUP_NORM[node.name]] = _take(file, node.inputs[1]).ravel()
            elif (layer := LAYER.fullmatch(node.name)) and node.inputs[1] != TIED:
                name = layer[1].replace("/", ".")
                weights[f"{name}.weight"] = _take(file, node.inputs[1], transposed=True)
        for theirs in [*file.tensors]:
            if named := NAMED.fullmatch(theirs):
                weights[named[1]] = _take(file, theirs)
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"{path}: not Moonshine's weights ({shorten(str(error))}); the file is damaged, or belongs to "
            "another model"
        ) from None
    return {_rename(name, part): torch.from_numpy(weight) for name, weight in weights.items()}


def _take(file: OrtFile, name: str, transposed: bool = False) -> np.ndarray:
    """Return a float32 copy of a tensor, dequantized if the graph computes it from 8 bits."""
    stem = name.removesuffix(COMPUTED).removesuffix("_quantized")
    is_whole = name in file.tensors and file.tensors[name].dtype == np.float32
    stored = file.tensors.pop(name if is_whole else f"{stem}_quantized")
    weights = (stored.T if transposed else stored).astype(np.float32, order="C")
    if is_whole:
        return weights
    scale, zero_point = (file.tensors[f"{stem}_{kind}"].reshape(()) for kind in ("scale", "zero_point"))
    if zero_point.dtype == np.float32:  # in base
        weights *= scale
        weights += zero_point
    else:
        weights -= zero_point.astype(np.float32)
        weights *= scale
    return weights


def _rename(name: str, part: str) -> str:
    name = functools.reduce(lambda name, theirs: name.replace(theirs, RENAMED[theirs]), RENAMED, name)
    return name if name == OUTPUT else f"{part}.{name}"


# --- folders of Hugging Face ------------------------------------------------------------------------

# Settings that every Moonshine model has, and that a config.json may leave out.
FACTS: dict[str, Any] = {
    "model_type": "moonshine",
    "encoder_hidden_act": "gelu",
    "decoder_hidden_act": "silu",
    "attention_bias": False,
    "rope_theta": 10_000,
    "rope_type": "default",
    "rope_scaling": None,
    "encoder_num_attention_heads": HEADS,
    "encoder_num_key_value_heads": HEADS,
    "decoder_num_attention_heads": HEADS,
    "decoder_num_key_value_heads": HEADS,
}


def _read_huggingface(folder: Path) -> dict[str, Tensor]:
    path = folder / "config.json"
    settings = read_object(path, MAX_BYTES, TOO_LARGE)
    if isinstance(rotary := settings.get("rope_parameters"), dict):
        settings |= rotary
    for name, expected in FACTS.items():
        if settings.get(name) not in (None, expected):
            value = shorten(settings[name])
            raise UserError(f"{path}: {name} is {value}, but Moonshine has {shorten(expected)}")
    width, share = settings.get("hidden_size", 288), settings.get("partial_rotary_factor", 0.9)
    if type(width) is not int or type(share) is not float or int(width // HEADS * share) != TURNED:
        raise UserError(
            f"{path}: hidden_size is {shorten(width)} and partial_rotary_factor {shorten(share)}, but in "
            f"Moonshine positions turn {TURNED} dimensions of each of {HEADS} heads"
        )
    tensors = read_tensors(folder / "model.safetensors")
    return {name.removeprefix("model."): tensor.float() for name, tensor in tensors}


# --- pieces -----------------------------------------------------------------------------------------

FIRST_PIECES = [b"<unk>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256))]


def read_pieces(folder: Path) -> list[bytes]:
    """Read the pieces by ID: special tokens, the 256 bytes, then pieces of text."""
    path, other = (folder / name for name in PIECES)
    if path.is_file():
        pieces = _split_pieces(read_limited(path, MAX_BYTES, TOO_LARGE))
    else:
        path = other
        pieces = _read_vocabulary(read_object(path, MAX_BYTES, TOO_LARGE))
    if pieces[: len(FIRST_PIECES)] != FIRST_PIECES:
        raise UserError(
            f"{path}: not Moonshine's pieces, which begin with <unk>, <s>, </s> and the 256 bytes; the file "
            "is truncated or damaged, download it again"
        )
    return pieces


def _split_pieces(data: bytes) -> list[bytes]:
    """Split at lengths, which precede pieces: one byte, or two from 128 on, with the low 7 bits first."""
    pieces = []
    place = 0
    while place < len(data):
        length = data[place]
        place += 1
        if length >= 128:
            length += 128 * sum(data[place : place + 1]) - 128
            place += 1
        pieces.append(data[place : place + length])
        place += length
    return pieces if place == len(data) else []


def _read_vocabulary(tree: dict[str, Any]) -> list[bytes]:
    """Return the pieces of tokenizer.json; none if its IDs are not 0, 1, 2 ..."""
    try:
        added = {one["content"]: one["id"] for one in tree.get("added_tokens") or ()}
        ids = {id: name for name, id in (tree["model"]["vocab"] | added).items()}
        names = [ids[id] for id in range(len(ids))]
    except (AttributeError, KeyError, TypeError):
        return []
    return [bytes([int(byte[1], 16)]) if (byte := BYTE.fullmatch(name)) else name.encode() for name in names]
