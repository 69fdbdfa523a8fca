"""Time-delay encoder: convolutions along time with ever wider gaps between the steps that they see."""

from __future__ import annotations

from typing import Literal

import pydantic
import torch
from torch import Tensor, nn

from asr.models.encoders import Encoder, EncoderConfig, Subsampling, SubsamplingConfig
from asr.models.layers import Dropout, length_mask

# B batch, T steps, F features, D model dimension


class TDNNEncoderConfig(EncoderConfig):
    """Subsampling, then dilated convolutions, each with a residual connection (Peddinti et al. 2015)."""

    type: Literal["tdnn"] = "tdnn"
    dim: int = pydantic.Field(default=256, gt=0)
    """Width of the model."""
    num_layers: int = pydantic.Field(default=6, gt=0, le=10)
    """Layer n sees three steps with gaps of 2^n; all together see 2^(num_layers + 1) - 1 steps."""
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout of the output of each layer."""
    subsampling: SubsamplingConfig = SubsamplingConfig()
    """Convolutions from frames to steps."""


class TDNNEncoder(Encoder):
    """(B, T, F) features to (B, T / factor, D) encoded steps."""

    def __init__(self, config: TDNNEncoderConfig, num_features: int) -> None:
        super().__init__()
        self.output_dim = config.dim
        self.subsampling = Subsampling(config.subsampling, num_features, config.dim)
        gaps = [2**index for index in range(config.num_layers)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.dim, config.dim, 3, padding=gap, dilation=gap) for gap in gaps
        )
        self.norms = nn.ModuleList(nn.LayerNorm(config.dim) for _ in gaps)
        self.dropout = Dropout(config.dropout)

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, feature_lengths_B)
        is_padding_BT1 = ~length_mask(lengths_B, x_BTD.size(1))[..., None]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            # Without the mask, what stands in the padding would reach the last steps.
            y_BTD = convolution(x_BTD.masked_fill(is_padding_BT1, 0.0).mT).mT
            x_BTD = x_BTD + self.dropout(torch.relu(norm(y_BTD)))
        return x_BTD, lengths_B
