"""Encoders: the kinds there are, `build_encoder`, which makes one by its config, and models that have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Union

import pydantic

from asr.families import find_families
from asr.models.conformer import ConformerEncoder, ConformerEncoderConfig
from asr.models.convolutional import ConvolutionalEncoder, ConvolutionalEncoderConfig
from asr.models.encoder import Encoder, EncoderConfig
from asr.models.intra_attention import IntraAttentionEncoder, IntraAttentionEncoderConfig
from asr.models.lstm import LSTMEncoder, LSTMEncoderConfig
from asr.models.model import Model
from asr.models.transformer import TransformerEncoder, TransformerEncoderConfig

# The only table from the type in a config to a class.
ENCODERS: dict[type[EncoderConfig], Callable[[Any, int], Encoder]] = {
    TransformerEncoderConfig: TransformerEncoder,
    ConformerEncoderConfig: ConformerEncoder,
    LSTMEncoderConfig: LSTMEncoder,
    IntraAttentionEncoderConfig: IntraAttentionEncoder,
    ConvolutionalEncoderConfig: ConvolutionalEncoder,
}
for _family in find_families():
    ENCODERS |= _family.ENCODERS

if TYPE_CHECKING:
    AnyEncoderConfig = EncoderConfig
else:
    AnyEncoderConfig = Annotated[Union[tuple(ENCODERS)], pydantic.Field(discriminator="type")]  # noqa: UP007


def build_encoder(config: EncoderConfig, num_features: int) -> Encoder:
    return ENCODERS[type(config)](config, num_features)


class EncoderModel(Model):
    """Model of audio: whatever it gives, it gives by what its encoder makes of the features."""

    def __init__(self, config: EncoderConfig, num_features: int) -> None:
        super().__init__()
        self.encoder: Encoder = build_encoder(config, num_features)

    @property
    def subsampling_factor(self) -> int:
        return self.encoder.subsampling_factor
