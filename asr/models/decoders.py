"""Decoders: the kinds there are, and `build_decoder`, which makes the one that a config describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asr.config import choose_by_type
from asr.families import find_families
from asr.models.decoder import AnyDecoder, DecoderConfig
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

# The only table from the type in a config to a class.
DECODERS: dict[type[DecoderConfig], Callable[[Any, int, int], AnyDecoder]] = {
    TransformerDecoderConfig: TransformerDecoder,
    AttentionDecoderConfig: AttentionDecoder,
    IntraAttentionDecoderConfig: AttentionDecoder,
    SingleSummaryDecoderConfig: SingleSummaryDecoder,
    LengthDecoderConfig: LengthDecoder,
    EndDecoderConfig: EndDecoder,
    MaskDecoderConfig: MaskDecoder,
}
for _family in find_families():
    DECODERS |= _family.DECODERS

if TYPE_CHECKING:
    AnyDecoderConfig = DecoderConfig
else:
    AnyDecoderConfig = choose_by_type(DECODERS, default="transformer")


def build_decoder(config: DecoderConfig, memory_dim: int, vocab_size: int) -> AnyDecoder:
    return DECODERS[type(config)](config, memory_dim, vocab_size)
