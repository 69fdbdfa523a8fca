"""Folders as Hugging Face has them: config.json, weights as safetensors or pickled, and a vocabulary."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asr.errors import UserError
from asr.whisper.naming import Checkpoint, rename_weights
from asr.whisper.openai import check_tensors, make_config, read_pickled
from asr.whisper.vocabulary import read_huggingface_vocabulary, read_json

MAX_JSON_BYTES = 10_000_000
# What to fetch of a model on the hub; the pickled weights only where there are no others.
PATTERNS = ("*.json", "merges.txt", "model.safetensors", "model-*.safetensors")
PICKLED = "pytorch_model.bin"

# Their name of a size to ours.
SIZES = {
    "num_mel_bins": "num_mels",
    "vocab_size": "vocab_size",
    "d_model": "dim",
    "max_source_positions": "max_steps",
    "encoder_attention_heads": "encoder_heads",
    "encoder_layers": "encoder_layers",
    "max_target_positions": "max_tokens",
    "decoder_attention_heads": "decoder_heads",
    "decoder_layers": "decoder_layers",
}

OUTPUT = "proj_out.weight"


def is_huggingface_folder(path: Path) -> bool:
    return (path / "config.json").is_file()


def read_huggingface(folder: Path) -> Checkpoint:
    settings = read_json(folder / "config.json", MAX_JSON_BYTES)
    source = str(folder / "config.json")
    if settings.get("model_type") != "whisper":
        raise UserError(f"{source}: model_type is {str(settings.get('model_type'))[:40]}; expected whisper")
    values = {ours: settings.get(theirs) for theirs, ours in SIZES.items()}
    if (generation := folder / "generation_config.json").is_file():
        values["alignment_heads"] = read_json(generation, MAX_JSON_BYTES).get("alignment_heads") or None
    config = make_config(values, str(folder))
    for name, expected in {
        "activation_function": "gelu",
        "scale_embedding": False,
        "encoder_ffn_dim": 4 * config.dim,
        "decoder_ffn_dim": 4 * config.dim,
    }.items():
        if settings.get(name, expected) != expected:
            raise UserError(f"{source}: {name} is {str(settings[name])[:40]}, but Whisper has {expected}")
    theirs = {name.removeprefix("model."): weight for name, weight in _read_weights(folder).items()}
    output = theirs.pop(OUTPUT, None)
    embedding = theirs.get("decoder.embed_tokens.weight")
    if (
        output is not None
        and embedding is not None
        and (output.dtype != embedding.dtype or not torch.equal(output, embedding))
    ):
        raise UserError(f"{folder}: {OUTPUT} differs from the embeddings; in Whisper they are the same")
    weights = rename_weights(config, theirs, str(folder), "Hugging Face")
    return Checkpoint("Hugging Face", config, read_huggingface_vocabulary(folder), weights)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Mapped from the file, not read."""
    try:
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > MAX_JSON_BYTES:
            raise UserError(f"{path}: a header of {header_bytes:,} bytes; it is no whole safetensors file")
        with safe_open(path, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); download it anew") from None


def find_weights(folder: Path) -> list[Path]:
    """The files of the weights; none where there are none."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if index.is_file():
        parts = read_json(index, MAX_JSON_BYTES).get("weight_map")
        names = {str(name) for name in parts.values()} if isinstance(parts, dict) else set()
        if not names or any(re.fullmatch(r"[\w.-]+\.safetensors", name) is None for name in names):
            raise UserError(f"{index}: names no files of this folder; download it anew")
        return [folder / name for name in sorted(names)]
    return [folder / PICKLED] if (folder / PICKLED).is_file() else []


def _read_weights(folder: Path) -> dict[str, Tensor]:
    paths = find_weights(folder)
    if not paths:
        raise UserError(f"{folder}: no weights; expected model.safetensors or {PICKLED} beside config.json")
    if paths[0].name != PICKLED:
        return {name: weight for path in paths for name, weight in read_safetensors(path).items()}
    tree = read_pickled(paths[0])
    output = tree.pop(OUTPUT, None)  # the same bytes of the file as the embeddings
    weights = check_tensors(tree, paths[0])
    return weights | {OUTPUT: output} if isinstance(output, Tensor) else weights
