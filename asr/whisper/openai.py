"""OpenAI's own files: `.pt`, with sizes and weights, but without a vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic

from asr.errors import UserError
from asr.whisper.naming import Checkpoint, rename_weights
from asr.whisper.pickles import check_tensors, read_pickled
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
    try:
        return WhisperConfig(**values)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(str(part) for part in fault["loc"])
        raise UserError(
            f"{source}: {name} = {str(fault['input'])[:40]}: {fault['msg']}; is it a Whisper model?"
        ) from None
