"""OpenAI's own files, `.pt`, and others of torch.save: read as tensors, nothing in them is executed."""

from __future__ import annotations

import json
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import torch
from torch import Tensor

from asr.config import describe_fault
from asr.errors import UserError
from asr.whisper.naming import Checkpoint, rename_weights
from asr.whisper.sections import WhisperConfig
from asr.whisper.vocabulary import read_ranks

# Their name of a size to ours.
SIZES = {
    "n_mels": "num_mels",
    "n_vocab": "vocab_size",
    "n_audio_state": "dim",
    "n_audio_ctx": "max_steps",
    "n_audio_head": "encoder_heads",
    "n_audio_layer": "encoder_layers",
    "n_text_ctx": "max_tokens",
    "n_text_head": "decoder_heads",
    "n_text_layer": "decoder_layers",
}
# The files of the package openai-whisper that hold its vocabularies.
RANKS = ("multilingual.tiktoken", "gpt2.tiktoken")


def read_openai(path: Path) -> Checkpoint:
    """The vocabulary is taken from a file of `RANKS` in the same folder, if it is there."""
    tree = read_pickled(path)
    if not isinstance(tree.get("dims"), dict):
        raise UserError(f"{path}: no sizes in it (dims); expected a .pt file of OpenAI's Whisper")
    config = build_config(tree["dims"], str(path))
    theirs = check_tensors(tree.get("model_state_dict"), path)
    ranks = path.parent / RANKS[0 if config.is_multilingual else 1]
    vocabulary = read_ranks(ranks) if ranks.is_file() else None
    return Checkpoint("OpenAI", config, vocabulary, rename_weights(config, theirs, str(path)))


def build_config(sizes: dict[str, Any], source: str) -> WhisperConfig:
    """Read the sizes as OpenAI names them."""
    for name in (*SIZES, "n_text_state"):
        if type(sizes.get(name)) is not int:
            raise UserError(f"{source}: {name} is no number; is it a Whisper model?")
    if sizes["n_text_state"] != sizes["n_audio_state"]:
        raise UserError(f"{source}: encoder and decoder of different widths, which Whisper never has")
    return make_config({ours: sizes[theirs] for theirs, ours in SIZES.items()}, source)


def make_config(values: dict[str, Any], source: str) -> WhisperConfig:
    try:  # by way of JSON, whose lists may fill tuples
        return WhisperConfig.model_validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {describe_fault(error)}; is it a Whisper model?") from None


# --- files of torch.save ----------------------------------------------------------------------------

MAX_PICKLE_BYTES = 10_000_000  # that of large-v3 has 0.2 MB
# All that a dict of tensors needs. PyTorch's own list is longer, and has things that fill the memory.
HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch FloatStorage",
    "torch HalfStorage",
    "torch BFloat16Storage",
}
DAMAGED = "the file is damaged or not of torch.save; download it anew"


def is_torch_file(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def read_pickled(path: Path) -> dict[str, Any]:
    """The dict that the file holds; tensors are mapped from the file, not read."""
    try:
        _check_archive(path)
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UserError:
        raise
    except Exception as error:  # PyTorch says in many ways, and at length, what is wrong
        raise UserError(f"{path}: {DAMAGED} ({type(error).__name__})") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: holds no dict of weights; expected a Whisper checkpoint")
    return tree


def check_tensors(tensors: Any, path: Path) -> dict[str, Tensor]:
    """Names to tensors that are no larger than the file: else a few bytes could ask for any memory."""
    if not isinstance(tensors, Mapping):
        raise UserError(f"{path}: no weights in it; expected a Whisper checkpoint")
    num_bytes = 0
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(f"{path}: not all of its weights are tensors with a name; {DAMAGED}")
        num_bytes += tensor.numel() * tensor.element_size()
    if num_bytes > path.stat().st_size:
        raise UserError(f"{path}: {num_bytes:,} bytes of weights in a smaller file; {DAMAGED}")
    return dict(tensors)


def _check_archive(path: Path) -> None:
    """Check that the archive holds plain bytes, and its pickle only what makes tensors."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise UserError(f"{path}: a compressed archive, as torch.save never writes it; {DAMAGED}")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise UserError(f"{path}: declares more bytes than it has; {DAMAGED}")
        pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE_BYTES:
            raise UserError(f"{path}: no index of tensors, or a huge one; {DAMAGED}")
        content = archive.read(pickles[0])
    try:
        used = [_what_runs(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    except ValueError:
        raise UserError(f"{path}: {DAMAGED}") from None
    if unknown := {name for name in used if name is not None} - HARMLESS:
        raise UserError(
            f"{path}: would run code ({min(unknown)[:60]}); nothing was run. Weights need none: do not use "
            "this file, take safetensors, or a file of a source that you trust"
        )


def _what_runs(opcode: str, argument: Any) -> str | None:
    """Name what an opcode would make Python call; None for one that only brings data."""
    if opcode == "GLOBAL":
        return str(argument)
    return opcode if opcode in ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4") else None
