"""Convolutional encoder: a stack of residual 1-D convolutions, each seeing a few steps to both sides."""

from __future__ import annotations

from typing import Literal

import pydantic
from torch import Tensor, nn

from asr.models.encoders import DepthwiseConvolution, LayeredEncoder, LayeredEncoderConfig
from asr.models.layers import Dropout, FeedForward, Kernel

# B batch, T steps, F features, D model dimension


class ConvolutionalEncoderConfig(LayeredEncoderConfig):
    """Subsampling, then layers of convolution and feed-forward, which see num_layers * (kernel - 1) steps."""

    type: Literal["convolutional"] = "convolutional"
    feed_forward_dim: int = pydantic.Field(default=1024, gt=0)
    """Width inside the feed-forward blocks."""
    kernel: Kernel = 15
    """Steps that a convolution sees; odd."""


class ConvolutionalLayer(nn.Module):
    """Depthwise convolution along time, then norm and feed-forward of each step (Liu et al. 2022).

    The norm is over channels, not over the batch: a step then does not depend on what else is in the batch.
    """

    def __init__(self, config: ConvolutionalEncoderConfig) -> None:
        super().__init__()
        self.convolution = DepthwiseConvolution(config.dim, config.kernel)
        self.norm = nn.LayerNorm(config.dim)
        self.feed_forward = FeedForward(config.dim, config.feed_forward_dim, config.dropout)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        # The convolution would carry padding into the last steps.
        convolved_BTD = self.convolution(x_BTD.masked_fill(~mask_BT[..., None], 0.0))
        return x_BTD + self.dropout(self.feed_forward(self.norm(convolved_BTD)))


class ConvolutionalEncoder(LayeredEncoder):
    """Layers of convolution and feed-forward."""

    layer = ConvolutionalLayer
