"""Decoders: the kinds there are, and `build_decoder`, which makes the one that a config describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pydantic

from asr.config import Config
from asr.models.decoder import AnyDecoder
from asr.models.non_autoregressive import (
    EndDecoder,
    EndDecoderConfig,
    LengthDecoder,
    LengthDecoderConfig,
    MaskDecoder,
    MaskDecoderConfig,
)
from asr.models.recurrent_decoder import (
    AttentionDecoder,
    AttentionDecoderConfig,
    IntraAttentionDecoderConfig,
    SingleSummaryDecoder,
    SingleSummaryDecoderConfig,
)
from asr.models.transformer import TransformerDecoder, TransformerDecoderConfig
from asr.whisper.model import WhisperDecoderConfig, build_whisper_decoder


def _type_of(section: Any) -> str:
    """transformer where no type is given."""
    given = section.get("type") if isinstance(section, dict) else getattr(section, "type", None)
    return "transformer" if given is None else str(given)


DecoderConfig = Annotated[
    Annotated[TransformerDecoderConfig, pydantic.Tag("transformer")]
    | Annotated[AttentionDecoderConfig, pydantic.Tag("attention")]
    | Annotated[IntraAttentionDecoderConfig, pydantic.Tag("intra_attention")]
    | Annotated[SingleSummaryDecoderConfig, pydantic.Tag("single_summary")]
    | Annotated[LengthDecoderConfig, pydantic.Tag("parallel_length")]
    | Annotated[EndDecoderConfig, pydantic.Tag("parallel_end")]
    | Annotated[MaskDecoderConfig, pydantic.Tag("mask_ctc")]
    | Annotated[WhisperDecoderConfig, pydantic.Tag("whisper")],
    pydantic.Discriminator(_type_of),
]

# The only table from the type in a config to a class.
DECODERS: dict[type[Config], Callable[[Any, int, int], AnyDecoder]] = {
    TransformerDecoderConfig: TransformerDecoder,
    AttentionDecoderConfig: AttentionDecoder,
    IntraAttentionDecoderConfig: AttentionDecoder,
    SingleSummaryDecoderConfig: SingleSummaryDecoder,
    LengthDecoderConfig: LengthDecoder,
    EndDecoderConfig: EndDecoder,
    MaskDecoderConfig: MaskDecoder,
    WhisperDecoderConfig: build_whisper_decoder,
}


def build_decoder(config: DecoderConfig, memory_dim: int, vocab_size: int) -> AnyDecoder:
    return DECODERS[type(config)](config, memory_dim, vocab_size)
