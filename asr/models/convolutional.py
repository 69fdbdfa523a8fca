"""Convolutional encoder: a stack of residual 1-D convolutions, each seeing a few steps to both sides."""

from __future__ import annotations

from typing import Literal

import pydantic
from torch import Tensor, nn

from asr.models.conformer import DepthwiseConvolution
from asr.models.encoder import Encoder, EncoderConfig, Subsampling, SubsamplingConfig
from asr.models.layers import Activation, Dropout, FeedForward, length_mask

# B batch, T steps, F features, D model dimension


class ConvolutionalEncoderConfig(EncoderConfig):
    """Subsampling, then layers of convolution and feed-forward, which see num_layers * (kernel - 1) steps."""

    type: Literal["convolutional"] = "convolutional"
    dim: int = pydantic.Field(default=256, gt=0)
    """Width of the model."""
    num_layers: int = pydantic.Field(default=12, gt=0)
    feed_forward_dim: int = pydantic.Field(default=1024, gt=0)
    """Width inside the feed-forward blocks."""
    activation: Activation = "gelu"
    kernel: int = pydantic.Field(default=15, gt=0)
    """Steps that a convolution sees; odd."""
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Of the output of each layer and inside the feed-forward blocks."""
    subsampling: SubsamplingConfig = SubsamplingConfig()
    """How frames become steps."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> ConvolutionalEncoderConfig:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel = {self.kernel} has no middle; take an odd number")
        return self


class ConvolutionalLayer(nn.Module):
    """Depthwise convolution along time, then norm and feed-forward of each step (Liu et al. 2022).

    The norm is over channels, not over the batch: a step then does not depend on what else is in the batch.
    """

    def __init__(self, config: ConvolutionalEncoderConfig) -> None:
        super().__init__()
        self.convolution = DepthwiseConvolution(config.dim, config.kernel)
        self.norm = nn.LayerNorm(config.dim)
        self.feed_forward = FeedForward(
            config.dim, config.feed_forward_dim, config.activation, config.dropout
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, is_padding_BT1: Tensor) -> Tensor:
        # The convolution would carry padding into the last steps.
        convolved_BTD = self.convolution(x_BTD.masked_fill(is_padding_BT1, 0.0))
        return x_BTD + self.dropout(self.feed_forward(self.norm(convolved_BTD)))


class ConvolutionalEncoder(Encoder):
    """(B, T, F) features to (B, T / factor, D) encoded steps."""

    def __init__(self, config: ConvolutionalEncoderConfig, num_features: int) -> None:
        super().__init__()
        self.output_dim = config.dim
        self.subsampling = Subsampling(config.subsampling, num_features, config.dim)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(ConvolutionalLayer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, feature_lengths_B)
        x_BTD = self.dropout(x_BTD)
        is_padding_BT1 = ~length_mask(lengths_B, x_BTD.size(1))[..., None]
        for layer in self.layers:
            x_BTD = layer(x_BTD, is_padding_BT1)
        return self.norm(x_BTD), lengths_B
