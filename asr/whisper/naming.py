"""Rename OpenAI's weights to our names, with the projections that go together joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


def rename_weights(config: WhisperConfig, theirs: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Rename all weights that `config` asks for, and no others, each of the shape that it asks for."""
    expected = expected_shapes(config)
    ours: dict[str, Tensor] = {}
    known: set[str] = set()
    for name, part_names in _table(config):
        shape = expected[name]
        part_shape = (shape[0] // len(part_names), *shape[1:])
        parts = [_take(theirs, part, part_shape, source) for part in part_names if part != NO_BIAS]
        known.update(part_names)
        if NO_BIAS in part_names:
            parts.insert(part_names.index(NO_BIAS), parts[0].new_zeros(part_shape))
        ours[name] = torch.cat(parts) if len(parts) > 1 else parts[0]
    if unknown := theirs.keys() - known:
        raise UserError(f"{source}: unknown weights, {min(unknown)[:80]!r} for one; is it a Whisper model?")
    return ours


def split_weights(config: WhisperConfig, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights by OpenAI's names, as `rename_weights` takes them."""
    theirs: dict[str, Tensor] = {}
    for name, part_names in _table(config):
        for part_name, part in zip(part_names, ours[name].chunk(len(part_names)), strict=True):
            theirs[part_name] = part
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


# Whisper's keys have no bias. Ours have one, but as it is the same for all keys, no softmax sees it.
NO_BIAS = ""

_LAYER = {
    "feed_forward_block.norm": "mlp_ln",
    "feed_forward.expand": "mlp.0",
    "feed_forward.contract": "mlp.2",
}
_SELF_ATTENTION = {"project_out": ("out",), "project_in": ("query", "key", "value")}
_CROSS_ATTENTION = {
    "project_out": ("out",),
    "project_queries": ("query",),
    "project_memory": ("key", "value"),
}


def _table(config: WhisperConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Our name, and theirs that make it up."""
    yield "encoder.positions_TD", ("encoder.positional_embedding",)
    yield "decoder.positions.table.weight", ("decoder.positional_embedding",)
    yield "decoder.embedding.weight", ("decoder.token_embedding.weight",)
    whole = {"encoder.norm": "encoder.ln_post", "decoder.norm": "decoder.ln"}
    whole |= {"encoder.convolution_1": "encoder.conv1", "encoder.convolution_2": "encoder.conv2"}
    for index in range(config.encoder_layers):
        ours, theirs = f"encoder.layers.{index}", f"encoder.blocks.{index}"
        whole |= {f"{ours}.{name}": f"{theirs}.{other}" for name, other in _LAYER.items()}
        whole |= {f"{ours}.attention_block.norm": f"{theirs}.attn_ln"}
        yield from _join(f"{ours}.attention", f"{theirs}.attn", _SELF_ATTENTION)
    for index in range(config.decoder_layers):
        ours, theirs = f"decoder.layers.{index}", f"decoder.blocks.{index}"
        whole |= {f"{ours}.{name}": f"{theirs}.{other}" for name, other in _LAYER.items()}
        whole |= {f"{ours}.self_attention_block.norm": f"{theirs}.attn_ln"}
        whole |= {f"{ours}.cross_attention_block.norm": f"{theirs}.cross_attn_ln"}
        yield from _join(f"{ours}.self_attention", f"{theirs}.attn", _SELF_ATTENTION)
        yield from _join(f"{ours}.cross_attention", f"{theirs}.cross_attn", _CROSS_ATTENTION)
    for name, other in whole.items():
        for part in ("weight", "bias"):
            yield f"{name}.{part}", (f"{other}.{part}",)


def _join(ours: str, theirs: str, parts: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, others in parts.items():
        yield f"{ours}.{name}.weight", tuple(f"{theirs}.{other}.weight" for other in others)
        biases = (NO_BIAS if other == "key" else f"{theirs}.{other}.bias" for other in others)
        yield f"{ours}.{name}.bias", tuple(biases)
