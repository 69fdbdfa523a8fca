"""Names of weights in each form of checkpoint; ours join the projections that go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asr.errors import UserError
from asr.models.layers import without_weights
from asr.whisper.encoder_decoder import Whisper
from asr.whisper.sections import WhisperConfig
from asr.whisper.vocabulary import Vocabulary

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Checkpoint:
    """Content of the files of a model, whatever their form."""

    kind: str
    """How to call the form."""
    config: WhisperConfig
    vocabulary: Vocabulary | None
    """None where the files have none."""
    weights: dict[str, Tensor]
    """By our names, in the precision of the file."""


Form = Literal["OpenAI", "Hugging Face"]
_FORMS: tuple[Form, ...] = ("OpenAI", "Hugging Face")
# Our name of a part of the model, or of a layer, to those of the forms; commas part those that we join.
_PARTS = {
    "layers": ("blocks.", "layers."),
    "positions": ("positional_embedding", "embed_positions.weight"),
    "embedding": ("token_embedding", "embed_tokens"),
    "convolution_1": ("conv1", "conv1"),
    "convolution_2": ("conv2", "conv2"),
    "encoder.norm": ("ln_post", "layer_norm"),
    "decoder.norm": ("ln", "layer_norm"),
    "attention_block.norm": ("attn_ln", "self_attn_layer_norm"),
    "attention.project_in": ("attn.query,key,value", "self_attn.q_proj,k_proj,v_proj"),
    "attention.project_out": ("attn.out", "self_attn.out_proj"),
    "cross_attention_block.norm": ("cross_attn_ln", "encoder_attn_layer_norm"),
    "cross_attention.project_queries": ("cross_attn.query", "encoder_attn.q_proj"),
    "cross_attention.project_memory": ("cross_attn.key,value", "encoder_attn.k_proj,v_proj"),
    "cross_attention.project_out": ("cross_attn.out", "encoder_attn.out_proj"),
    "feed_forward_block.norm": ("mlp_ln", "final_layer_norm"),
    "feed_forward.expand": ("mlp.0", "fc1"),
    "feed_forward.contract": ("mlp.2", "fc2"),
}
# Whisper's keys have no bias. Ours have one, but as it is the same for all keys, no softmax sees it.
NO_BIAS = ""
_WITHOUT_BIAS = ("key", "k_proj")


def find_names(name: str, form: Form) -> list[str]:
    """Their names of what makes up one of our weights."""
    column = _FORMS.index(form)
    side, _, rest = name.partition(".")
    if rest.startswith("positions"):
        return [f"{side}.{_PARTS['positions'][column]}"]
    place = f"{side}."
    part, _, kind = rest.rpartition(".")
    if part.startswith("layers."):
        _, index, part = part.split(".", 2)
        place += f"{_PARTS['layers'][column]}{index}."
    part = part.removeprefix("self_")
    theirs = (_PARTS.get(part) or _PARTS[f"{side}.{part}"])[column]
    block, dot, parts = theirs.rpartition(".")
    return [
        NO_BIAS if kind == "bias" and one in _WITHOUT_BIAS else f"{place}{block}{dot}{one}.{kind}"
        for one in parts.split(",")
    ]


def rename_weights(
    config: WhisperConfig, theirs: dict[str, Tensor], source: str, form: Form = "OpenAI"
) -> dict[str, Tensor]:
    """Rename all weights that `config` asks for, and no others, each of the shape that it asks for."""
    ours: dict[str, Tensor] = {}
    known: set[str] = set()
    for name, shape in expected_shapes(config).items():
        part_names = find_names(name, form)
        part_shape = (shape[0] // len(part_names), *shape[1:])
        parts = [_take(theirs, part, part_shape, source) for part in part_names if part != NO_BIAS]
        known.update(part_names)
        if NO_BIAS in part_names:
            parts.insert(part_names.index(NO_BIAS), parts[0].new_zeros(part_shape))
        ours[name] = torch.cat(parts) if len(parts) > 1 else parts[0]
    if unknown := theirs.keys() - known:
        raise UserError(f"{source}: unknown weights, {min(unknown)[:80]!r} for one; is it a Whisper model?")
    return ours


def split_weights(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights by OpenAI's names, as `rename_weights` takes them."""
    theirs: dict[str, Tensor] = {}
    for name, weight in ours.items():
        part_names = find_names(name, "OpenAI")
        theirs |= zip(part_names, weight.chunk(len(part_names)), strict=True)
    theirs.pop(NO_BIAS, None)
    return theirs


def expected_shapes(config: WhisperConfig) -> dict[str, tuple[int, ...]]:
    """Shapes by our names. The output is left out: it is the embeddings."""
    with without_weights():
        weights = Whisper(config).state_dict()
    return {name: tuple(weight.shape) for name, weight in weights.items() if name != "decoder.output.weight"}


def check_weight(weight: Tensor, name: str, shape: tuple[int, ...], source: str) -> None:
    if tuple(weight.shape) != shape or weight.dtype not in DTYPES:
        raise UserError(
            f"{source}: {name} has shape {tuple(weight.shape)} and type {weight.dtype}, but expected "
            f"{shape} of floating point; the file is damaged, or its sizes are those of another model"
        )


def _take(theirs: dict[str, Tensor], name: str, shape: tuple[int, ...], source: str) -> Tensor:
    if name not in theirs:
        raise UserError(f"{source}: weights are missing, {name} for one; is it a whole Whisper model?")
    check_weight(theirs[name], name, shape, source)
    return theirs[name]
