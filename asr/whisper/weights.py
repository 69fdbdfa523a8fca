"""Sizes and weights of Whisper by the names of OpenAI and of Hugging Face.

The weights get our names, which join projections that go together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
import torch
from torch import Tensor

from asr.config import describe_fault
from asr.errors import UserError
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.models.layers import check_weights, without_weights
from asr.whisper.encoder_decoder import Whisper, WhisperSystem
from asr.whisper.sizes import WhisperSizes
from asr.whisper.whisper_tokenizer import Vocabulary, WhisperTokenizer

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Form = Literal["OpenAI", "Hugging Face"]
_FORMS: tuple[Form, ...] = ("OpenAI", "Hugging Face")
# Our name of a size to those of the forms.
_SIZES = {
    "num_mels": ("n_mels", "num_mel_bins"),
    "vocab_size": ("n_vocab", "vocab_size"),
    "dim": ("n_audio_state", "d_model"),
    "max_steps": ("n_audio_ctx", "max_source_positions"),
    "encoder_heads": ("n_audio_head", "encoder_attention_heads"),
    "encoder_layers": ("n_audio_layer", "encoder_layers"),
    "max_tokens": ("n_text_ctx", "max_target_positions"),
    "decoder_heads": ("n_text_head", "decoder_attention_heads"),
    "decoder_layers": ("n_text_layer", "decoder_layers"),
}
# Our name of a part of the model, or of a layer, to those of the forms; commas part those that we join.
_PARTS = {
    ".layers.": (".blocks.", ".layers."),
    "encoder.positions_TD": ("encoder.positional_embedding", "encoder.embed_positions.weight"),
    "decoder.positions.table.weight": ("decoder.positional_embedding", "decoder.embed_positions.weight"),
    "decoder.embedding": ("decoder.token_embedding", "decoder.embed_tokens"),
    "encoder.convolution_": ("encoder.conv", "encoder.conv"),
    "encoder.norm": ("encoder.ln_post", "encoder.layer_norm"),
    "decoder.norm": ("decoder.ln", "decoder.layer_norm"),
    "cross_attention_block.norm": ("cross_attn_ln", "encoder_attn_layer_norm"),
    "cross_attention.project_queries": ("cross_attn.query", "encoder_attn.q_proj"),
    "cross_attention.project_memory": ("cross_attn.key,value", "encoder_attn.k_proj,v_proj"),
    "cross_attention.project_out": ("cross_attn.out", "encoder_attn.out_proj"),
    "self_attention": ("attention", "attention"),  # of the decoder, then as the encoder's
    "attention_block.norm": ("attn_ln", "self_attn_layer_norm"),
    "attention.project_in": ("attn.query,key,value", "self_attn.q_proj,k_proj,v_proj"),
    "attention.project_out": ("attn.out", "self_attn.out_proj"),
    "feed_forward_block.norm": ("mlp_ln", "final_layer_norm"),
    "feed_forward.expand": ("mlp.0", "fc1"),
    "feed_forward.contract": ("mlp.2", "fc2"),
}
# Whisper's keys have no bias. Ours have one, but as it is the same for all keys, no softmax sees it.
NO_BIAS = ""


def make_system(
    path: Path, sizes: WhisperSizes, vocabulary: Vocabulary, weights: Mapping[str, Tensor], **more: Any
) -> WhisperSystem:
    """Put a model together. `weights`: by our names; `more`: the fields of a fine-tuned system."""
    try:
        tokenizer = WhisperTokenizer.of(vocabulary, sizes.vocab_size)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    front_end = FrontEnd(FeaturesConfig(convention="whisper", num_mels=sizes.num_mels))
    return WhisperSystem(sizes, tokenizer, front_end, Whisper.of(sizes, weights), **more)


def get_weights(system: WhisperSystem) -> dict[str, Tensor]:
    """The weights of a model by our names, without those of the output, which are the embeddings."""
    weights = system.model.state_dict()
    del weights["decoder.output.weight"]
    return weights


def build_sizes(theirs: Mapping[str, Any], source: str, form: Form = "OpenAI", **more: Any) -> WhisperSizes:
    """Read the sizes as OpenAI or Hugging Face names them."""
    values = {ours: theirs.get(names[_FORMS.index(form)]) for ours, names in _SIZES.items()} | more
    try:  # by way of JSON, whose lists may fill tuples
        return WhisperSizes.model_validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {describe_fault(error)}; is it a Whisper model?") from None


def name_sizes(sizes: WhisperSizes, form: Form) -> dict[str, Any]:
    """The sizes by the names of a form."""
    named = {names[_FORMS.index(form)]: getattr(sizes, ours) for ours, names in _SIZES.items()}
    return named | ({"n_text_state": sizes.dim} if form == "OpenAI" else {})


def find_names(name: str, form: Form) -> list[str]:
    """Their names of what makes up one of our weights; NO_BIAS for what they lack."""
    for ours, theirs in _PARTS.items():
        name = name.replace(ours, theirs[_FORMS.index(form)])
    path, _, kind = name.rpartition(".")
    block, dot, parts = path.rpartition(".")
    return [
        NO_BIAS if kind == "bias" and part in ("key", "k_proj") else f"{block}{dot}{part}.{kind}"
        for part in parts.split(",")
    ]


def rename_weights(
    sizes: WhisperSizes, theirs: Mapping[str, Tensor], source: str, form: Form = "OpenAI"
) -> dict[str, Tensor]:
    """Rename all weights that the sizes ask for, and no others, each of the shape that they ask for.

    Sizes that the weights do not have are refused before memory is asked for.
    """
    with without_weights():
        model = Whisper(sizes).state_dict()
    del model["decoder.output.weight"]  # the embeddings
    names = {name: find_names(name, form) for name in model}
    expected: dict[str, object] = {
        part: (len(model[name]) // len(parts), *model[name].shape[1:])
        for name, parts in names.items()
        for part in parts
        if part != NO_BIAS
    }
    found = {name: tuple(own.shape) if own.dtype in DTYPES else own.dtype for name, own in theirs.items()}
    check_weights(source, found, expected, "The file is damaged, or its sizes are those of another model")

    def join(parts: list[str]) -> Tensor:
        last = theirs[parts[-1]]
        own = [torch.zeros_like(last) if part == NO_BIAS else theirs[part] for part in parts]
        return torch.cat(own) if len(own) > 1 else last

    return {name: join(parts) for name, parts in names.items()}


def split_weights(ours: Mapping[str, Tensor], form: Form = "OpenAI") -> dict[str, Tensor]:
    """Weights by the names of a form, as `rename_weights` takes them."""
    theirs: dict[str, Tensor] = {}
    for name, weight in ours.items():
        parts = find_names(name, form)
        theirs |= zip(parts, weight.chunk(len(parts)), strict=True)
    theirs.pop(NO_BIAS, None)
    return {name: weight.contiguous() for name, weight in theirs.items()}
