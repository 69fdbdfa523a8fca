"""Conformer encoder: attention for what is far, convolution for what is near, between feed-forwards."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.models.encoder import LayeredEncoder
from asr.models.layers import Activation, Dropout, FeedForward, Kernel
from asr.models.positions import PositionConfig
from asr.models.transformer import AttentionEncoderConfig

# B batch, T steps, F features, D model dimension, K kernel


class ConformerEncoderConfig(AttentionEncoderConfig):
    """Subsampling, then layers of feed-forward, self-attention, convolution and feed-forward."""

    type: Literal["conformer"] = "conformer"
    activation: Activation = "swish"
    kernel: Kernel = 15
    """Steps that the convolution sees; odd."""
    positions: PositionConfig = PositionConfig(type="rotary")
    """How the encoder knows where a step stands; rotary is the relative kind that a Conformer wants."""


class DepthwiseConvolution(nn.Module):
    """One filter a channel, along time: (B, T, D) to (B, T, D), zeros beyond the ends.

    On a CPU this is a batched product with a banded matrix a channel. PyTorch's grouped convolution takes
    several times as long there; its 2-D one with channels last is quick, but compiles a kernel for each new
    length, which for some small shapes never ends (torch 2.11, bfloat16, 8 channels, 50 steps, kernel 15).
    """

    block = 32  # steps that one product makes: the band is then half full at a kernel of 31

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight_DK = nn.Parameter(nn.init.uniform_(torch.empty(dim, kernel), -1, 1).mul_(kernel**-0.5))
        self.bias_D = nn.Parameter(torch.zeros(dim))

    def forward(self, x_BTD: Tensor) -> Tensor:
        weight_DK = self.weight_DK.to(x_BTD.dtype)
        if x_BTD.device.type != "cpu":
            x_BDT = F.conv1d(x_BTD.mT, weight_DK[:, None], padding=self.kernel // 2, groups=len(weight_DK))
            return x_BDT.mT + self.bias_D.to(x_BTD.dtype)
        batch, length, dim = x_BTD.shape
        num_blocks = -(-length // self.block)
        span = self.block + self.kernel - 1
        # The kernel and `block` zeros, repeated and cut into rows one element shorter, move one step a row.
        row = F.pad(weight_DK, (0, self.block)).repeat(1, self.block)
        band = row[:, : self.block * span].view(dim, self.block, span)
        tail = num_blocks * self.block - length
        padded = F.pad(x_BTD, (0, 0, self.kernel // 2, self.kernel // 2 + tail))
        spans = padded.unfold(1, span, self.block).permute(2, 0, 1, 3).reshape(dim, batch * num_blocks, span)
        convolved = torch.bmm(spans, band.transpose(1, 2)).view(dim, batch, num_blocks * self.block)
        return convolved[:, :, :length].permute(1, 2, 0) + self.bias_D.to(x_BTD.dtype)


class ConvolutionModule(nn.Module):
    """Gate, depthwise convolution, norm, swish.

    The norm is over channels, not over the batch: a step then does not depend on what else is in the batch.
    """

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, 2 * dim)
        self.depthwise = DepthwiseConvolution(dim, kernel)
        self.norm = nn.LayerNorm(dim)
        self.contract = nn.Linear(dim, dim)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        x_BTD = F.glu(self.expand(x_BTD), dim=-1)
        # The convolution would carry padding into the last steps.
        x_BTD = x_BTD.masked_fill_(~mask_BT[..., None], 0.0)
        return self.contract(F.silu(self.norm(self.depthwise(x_BTD))))


class ConformerLayer(nn.Module):
    """Half feed-forward, self-attention, convolution, half feed-forward, norm (Gulati et al. 2020)."""

    def __init__(self, config: ConformerEncoderConfig) -> None:
        super().__init__()
        dim = config.dim
        self.first_norm = nn.LayerNorm(dim)
        self.first = FeedForward(dim, config.feed_forward_dim, config.activation, config.dropout)
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = config.build_attention()
        self.convolution_norm = nn.LayerNorm(dim)
        self.convolution = ConvolutionModule(dim, config.kernel)
        self.second_norm = nn.LayerNorm(dim)
        self.second = FeedForward(dim, config.feed_forward_dim, config.activation, config.dropout)
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        x_BTD = torch.add(x_BTD, self.dropout(self.first(self.first_norm(x_BTD))), alpha=0.5)
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), mask_BT))
        x_BTD = x_BTD + self.dropout(self.convolution(self.convolution_norm(x_BTD), mask_BT))
        x_BTD = torch.add(x_BTD, self.dropout(self.second(self.second_norm(x_BTD))), alpha=0.5)
        return self.norm(x_BTD)


class ConformerEncoder(LayeredEncoder):
    """Layers of convolution between attention and feed-forward."""

    def __init__(self, config: ConformerEncoderConfig, num_features: int) -> None:
        layers = (ConformerLayer(config) for _ in range(config.num_layers))
        super().__init__(config, num_features, layers, nn.Identity(), config.positions)
