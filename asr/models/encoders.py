"""Encoders: the kinds there are, and `build_encoder`, which makes the one that a config describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pydantic

from asr.config import Config
from asr.models.conformer import ConformerEncoder, ConformerEncoderConfig
from asr.models.convolutional import ConvolutionalEncoder, ConvolutionalEncoderConfig
from asr.models.intra_attention import IntraAttentionEncoder, IntraAttentionEncoderConfig
from asr.models.lstm import LSTMEncoder, LSTMEncoderConfig
from asr.models.transformer import TransformerEncoder, TransformerEncoderConfig
from asr.whisper.model import WhisperEncoder, WhisperEncoderConfig, build_whisper_encoder

EncoderConfig = Annotated[
    TransformerEncoderConfig
    | ConformerEncoderConfig
    | LSTMEncoderConfig
    | IntraAttentionEncoderConfig
    | ConvolutionalEncoderConfig
    | WhisperEncoderConfig,
    pydantic.Field(discriminator="type"),
]

# The only table from the type in a config to a class.
Encoder = (
    TransformerEncoder
    | ConformerEncoder
    | LSTMEncoder
    | IntraAttentionEncoder
    | ConvolutionalEncoder
    | WhisperEncoder
)
ENCODERS: dict[type[Config], Callable[[Any, int], Encoder]] = {
    TransformerEncoderConfig: TransformerEncoder,
    ConformerEncoderConfig: ConformerEncoder,
    LSTMEncoderConfig: LSTMEncoder,
    IntraAttentionEncoderConfig: IntraAttentionEncoder,
    ConvolutionalEncoderConfig: ConvolutionalEncoder,
    WhisperEncoderConfig: build_whisper_encoder,
}


def build_encoder(config: EncoderConfig, num_features: int) -> Encoder:
    return ENCODERS[type(config)](config, num_features)
