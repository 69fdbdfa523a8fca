"""Folders of CTranslate2, as faster-whisper has them: model.bin, config.json and a vocabulary.

model.bin names each variable, its shape and its type; weights in 8 or 16 bits have a scale beside them. What
it declares is compared with the bytes that are left before any memory is asked for.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.errors import UserError
from asr.files import read_limited
from asr.whisper.ggml import MappedFile
from asr.whisper.huggingface import MAX_JSON_BYTES
from asr.whisper.naming import Checkpoint, check_weight, expected_shapes, find_names
from asr.whisper.openai import make_config
from asr.whisper.sections import WhisperConfig
from asr.whisper.vocabulary import (
    END,
    MAX_BYTES,
    TOO_LARGE,
    Vocabulary,
    in_order,
    parse_json,
    read_huggingface_vocabulary,
    read_json,
    to_bytes,
)

MODEL = "model.bin"
VERSION = 6
BFLOAT16 = 5  # which numpy does not have
TYPES = [
    np.dtype(name) for name in ("<f4", "i1", "<i2", "<i4", "<f2", "<i2")
]  # by number; the last: bfloat16
MAX_DIMS = 3


def is_ctranslate2_folder(path: Path) -> bool:
    return (path / MODEL).is_file() and (path / "config.json").is_file()


def read_ctranslate2(folder: Path) -> Checkpoint:
    variables = _read_variables(folder / MODEL)
    settings = read_json(folder / "config.json", MAX_JSON_BYTES)
    config = _find_sizes(variables, settings.get("alignment_heads") or None, str(folder))
    weights = {}
    for name, shape in expected_shapes(config).items():
        (theirs,) = find_names(name, "CTranslate2")
        theirs = (
            theirs.replace(".", "/").replace("norm/weight", "norm/gamma").replace("norm/bias", "norm/beta")
        )
        if theirs not in variables:
            raise UserError(f"{folder / MODEL}: weights are missing, {theirs} for one; is it whole?")
        weights[name] = _dequantise(variables, theirs)
        check_weight(weights[name], theirs, shape, str(folder / MODEL))
    return Checkpoint("CTranslate2", config, _read_vocabulary(folder), weights)


def _read_variables(path: Path) -> dict[str, Tensor]:
    """Map all variables of the file, by their names."""
    file = MappedFile(path)
    if file.numbers("<u4", 1, "the version") != [VERSION] or _read_string(file) != "WhisperSpec":
        raise UserError(
            f"{path}: not a Whisper model in the form of CTranslate2 that is read here (version {VERSION}); "
            "convert the original model anew, or name it in place of this folder"
        )
    file.numbers("<u4", 1, "the revision")
    variables: dict[str, Tensor] = {}
    for _ in range(file.numbers("<u4", 1, "the number of variables")[0]):
        name = _read_string(file)
        (num_dims,) = file.numbers("u1", 1, name)
        shape = file.numbers("<u4", num_dims, name) if num_dims <= MAX_DIMS else []
        (kind,) = file.numbers("u1", 1, name)
        (num_bytes,) = file.numbers("<u4", 1, name)
        if num_dims > MAX_DIMS or kind >= len(TYPES) or math.prod(shape) * TYPES[kind].itemsize != num_bytes:
            raise UserError(f"{path}: {name[:80]} has shape {shape} and type {kind}; the file is damaged")
        tensor = torch.from_numpy(file.take(num_bytes, name).view(TYPES[kind])).view(shape)
        variables[name] = tensor.view(torch.bfloat16) if kind == BFLOAT16 else tensor
    for _ in range(file.numbers("<u4", 1, "the number of aliases")[0]):
        alias, name = _read_string(file), _read_string(file)
        if name not in variables:
            raise UserError(f"{path}: {alias[:80]} is {name[:80]}, which is not there; the file is damaged")
        variables[alias] = variables[name]
    return variables


def _read_string(file: MappedFile) -> str:
    (length,) = file.numbers("<u2", 1, "the length of a name")
    return file.take(length, "a name").tobytes().rstrip(b"\0").decode("utf-8", errors="replace")


def _find_sizes(variables: dict[str, Tensor], alignment_heads: Any, source: str) -> WhisperConfig:
    """Read the sizes off the shapes of the weights."""

    def size(name: str, dim: int) -> int | None:
        return variables[name].size(dim) if name in variables and variables[name].dim() > dim else None

    def heads(side: str) -> int | None:
        number = variables.get(f"{side}/num_heads")
        return int(number) if number is not None and number.numel() == 1 else None

    def layers(side: str) -> int:
        return len(
            {name.split("/")[1] for name in variables if name.startswith(f"{side}/layer_")} - {"layer_norm"}
        )

    values = {
        "num_mels": size("encoder/conv1/weight", 1),
        "vocab_size": size("decoder/embeddings/weight", 0),
        "dim": size("decoder/embeddings/weight", 1),
        "max_steps": size("encoder/position_encodings/encodings", 0),
        "encoder_heads": heads("encoder"),
        "encoder_layers": layers("encoder"),
        "max_tokens": size("decoder/position_encodings/encodings", 0),
        "decoder_heads": heads("decoder"),
        "decoder_layers": layers("decoder"),
        "alignment_heads": alignment_heads,
    }
    return make_config(values, source)


def _dequantise(variables: dict[str, Tensor], name: str) -> Tensor:
    weight, scale = variables[name], variables.get(f"{name}_scale")
    if weight.is_floating_point():
        return weight
    if scale is None or scale.numel() not in (1, weight.size(0) if weight.dim() else 1):
        raise UserError(f"{name}: whole numbers without a scale for them; the file is damaged")
    return weight.float() / scale.float().reshape(-1, *[1] * (weight.dim() - 1))


def _read_vocabulary(folder: Path) -> Vocabulary | None:
    """Read the vocabulary of tokenizer.json, else of the list of tokens; None where there is neither."""
    if (vocabulary := read_huggingface_vocabulary(folder)) is not None:
        return vocabulary
    tokens: Any
    if (path := folder / "vocabulary.json").is_file():
        tokens = parse_json(path, MAX_BYTES)
    elif (path := folder / "vocabulary.txt").is_file():
        tokens = read_limited(path, MAX_BYTES, TOO_LARGE).decode("utf-8", errors="replace").split("\n")
    else:
        return None
    if not isinstance(tokens, list) or END not in tokens or not all(isinstance(one, str) for one in tokens):
        raise UserError(f"{path}: no list of tokens with {END}; is it Whisper's vocabulary?")
    return in_order({id: to_bytes(token, path) for id, token in enumerate(tokens[: tokens.index(END)])}, path)
