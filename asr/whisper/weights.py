"""Convert Whisper's sizes and weights between OpenAI's, Hugging Face's and our names.

Ours join related projections into one weight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import pydantic
import torch
from torch import Tensor

from asr.config import describe_error
from asr.errors import UserError
from asr.features.filters import FeaturesConfig
from asr.features.front_end import FrontEnd
from asr.models.layers import check_weights, without_weights
from asr.models.speech_model import SpeechModel, SpeechModelConfig, build_model
from asr.system.run_config import BatchConfig, DataConfig, RunConfig
from asr.system.system import System
from asr.text.tokenizer import TokenizerConfig
from asr.whisper.encoder_decoder import WhisperDecoder
from asr.whisper.family import WhisperDecoderConfig, WhisperEncoderConfig
from asr.whisper.sizes import SECONDS_PER_STEP, WhisperSizes
from asr.whisper.whisper_tokenizer import SpecialTokens, Vocabulary, make_tokenizer

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Form = Literal["OpenAI", "Hugging Face"]
_FORMS: tuple[Form, ...] = ("OpenAI", "Hugging Face")
# Our name of each size to the names in each format.
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
# Our name of each part to the names in each format; commas separate parts that we join.
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
    "self_attention": ("attention", "attention"),  # in the decoder; then renamed like the encoder's
    "attention_block.norm": ("attn_ln", "self_attn_layer_norm"),
    "attention.project_in": ("attn.query,key,value", "self_attn.q_proj,k_proj,v_proj"),
    "attention.project_out": ("attn.out", "self_attn.out_proj"),
    "feed_forward_block.norm": ("mlp_ln", "final_layer_norm"),
    "feed_forward.expand": ("mlp.0", "fc1"),
    "feed_forward.contract": ("mlp.2", "fc2"),
}
# Whisper's keys have no bias. Ours do, but it is the same for all keys, so it does not change the softmax.
NO_BIAS = ""
EMBEDDING, OUTPUT = "decoder.embedding.weight", "decoder.output.weight"  # tied


def make_system(
    path: Path,
    sizes: WhisperSizes,
    vocabulary: Vocabulary,
    theirs: Mapping[str, Tensor],
    form: Form = "OpenAI",
) -> System:
    """Build a model around these weights without copying them, except embeddings, which are reordered."""
    try:
        tokenizer = make_tokenizer(vocabulary, sizes.vocab_size)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    config = make_config(sizes, str(path))
    spoken = make_config(sizes, str(path), "en").model  # any language will do, because callers write prompts
    with without_weights():  # random ones would take longer than loading these
        model = cast(SpeechModel, build_model(spoken, sizes.num_mels, sizes.vocab_size))
    weights = rename_weights(model, theirs, str(path), form)
    model.load_state_dict(weights | {OUTPUT: weights[EMBEDDING]}, assign=True)
    decoder = cast(WhisperDecoder, model.decoder)
    decoder.tie()
    decoder.take_prompts()
    return System(config, tokenizer, FrontEnd(config.features), model.eval(), is_published=True)


def make_config(sizes: WhisperSizes, source: str, language: str | None = None) -> RunConfig:
    """Return the settings of a run that has such a model."""
    longest = SECONDS_PER_STEP * sizes.max_steps
    return RunConfig(
        output_dir=source,
        start_from=source,
        data=DataConfig(train=source, dev=source),
        tokenizer=TokenizerConfig(type="whisper"),
        features=FeaturesConfig(convention="whisper", num_mels=sizes.num_mels),
        batches=BatchConfig(min_seconds=0, max_utterance_seconds=longest, max_seconds=longest),
        model=SpeechModelConfig(
            encoder=WhisperEncoderConfig(sizes=sizes),
            decoder=WhisperDecoderConfig(sizes=sizes, language=language),
            ctc_weight=0.0,
        ),
    )


def get_weights(system: System) -> dict[str, Tensor]:
    """Return the weights with our names, without the output, which is tied to the embeddings."""
    weights = system.model.state_dict()
    del weights[OUTPUT]
    return weights


def build_sizes(theirs: Mapping[str, Any], source: str, form: Form = "OpenAI", **more: Any) -> WhisperSizes:
    """Read sizes that are named as by OpenAI or Hugging Face."""
    values = {ours: theirs.get(names[_FORMS.index(form)]) for ours, names in _SIZES.items()} | more
    try:  # validate as JSON, because strict mode then accepts lists for tuples
        return WhisperSizes.model_validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {describe_error(error)}; is it a Whisper model?") from None


def name_sizes(sizes: WhisperSizes, form: Form) -> dict[str, Any]:
    """Return the sizes with the names of a format."""
    named = {names[_FORMS.index(form)]: getattr(sizes, ours) for ours, names in _SIZES.items()}
    return named | ({"n_text_state": sizes.dim} if form == "OpenAI" else {})


def find_names(name: str, form: Form) -> list[str]:
    """Return their names of the parts of one of our weights; NO_BIAS for parts that they lack."""
    for ours, theirs in _PARTS.items():
        name = name.replace(ours, theirs[_FORMS.index(form)])
    path, _, kind = name.rpartition(".")
    block, dot, parts = path.rpartition(".")
    return [
        NO_BIAS if kind == "bias" and part in ("key", "k_proj") else f"{block}{dot}{part}.{kind}"
        for part in parts.split(",")
    ]


def rename_weights(
    model: SpeechModel, theirs: Mapping[str, Tensor], source: str, form: Form = "OpenAI"
) -> dict[str, Tensor]:
    """Convert weights to our names; names and shapes must be exactly the model's.

    Sizes that do not match the weights are refused before memory is allocated.
    """
    own = {name: weight for name, weight in model.state_dict().items() if name != OUTPUT}
    names = {name: find_names(name, form) for name in own}
    expected: dict[str, object] = {
        part: (len(own[name]) // len(parts), *own[name].shape[1:])
        for name, parts in names.items()
        for part in parts
        if part != NO_BIAS
    }
    found = {
        name: tuple(weight.shape) if weight.dtype in DTYPES else weight.dtype
        for name, weight in theirs.items()
    }
    check_weights(source, found, expected, "The file is damaged, or its sizes are from another model")

    def join(parts: list[str]) -> Tensor:
        last = theirs[parts[-1]]
        joined = [torch.zeros_like(last) if part == NO_BIAS else theirs[part] for part in parts]
        return torch.cat(joined) if len(joined) > 1 else last

    ours = {name: join(parts) for name, parts in names.items()}
    ours[EMBEDDING] = ours[EMBEDDING][SpecialTokens(len(ours[EMBEDDING])).order()]
    return ours


def split_weights(ours: Mapping[str, Tensor], form: Form = "OpenAI") -> dict[str, Tensor]:
    """Convert weights to the names of a format; the inverse of `rename_weights`."""
    embedding_VD = torch.empty_like(ours[EMBEDDING])
    embedding_VD[SpecialTokens(len(embedding_VD)).order()] = ours[EMBEDDING]
    theirs: dict[str, Tensor] = {}
    for name, weight in ({**ours, EMBEDDING: embedding_VD}).items():
        parts = find_names(name, form)
        theirs |= zip(parts, weight.chunk(len(parts)), strict=True)
    theirs.pop(NO_BIAS, None)
    return {name: weight.contiguous() for name, weight in theirs.items()}
