"""Bidirectional LSTM encoder, with the frame pyramid or convolution in front: the baseline with CTC."""

from __future__ import annotations

from typing import Literal

import pydantic
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from asr.config import Config
from asr.models.layers import Dropout
from asr.models.subsampling import Subsampling, SubsamplingConfig, subsampled_lengths

# B batch, T steps, F features, D output dimension (both directions)


class LSTMEncoderConfig(Config):
    """Layers of bidirectional LSTM."""

    type: Literal["lstm"] = "lstm"
    dim: int = pydantic.Field(default=256, gt=0)
    """Cells of each direction; the output has twice as many."""
    num_layers: int = pydantic.Field(default=4, gt=0)
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Of the output of each layer."""
    pyramid_layers: int = pydantic.Field(default=0, ge=0)
    """Of the first layers, how many take two steps of the one below at once (Chan et al. 2016)."""
    subsampling: SubsamplingConfig = SubsamplingConfig()
    """How frames become steps, before the first layer."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> LSTMEncoderConfig:
        if self.pyramid_layers >= self.num_layers:
            raise ValueError(
                f"pyramid_layers = {self.pyramid_layers} must be below num_layers = {self.num_layers}: "
                "the first layer has none below it"
            )
        return self


class LSTMEncoder(nn.Module):
    """(B, T, F) features to (B, T / factor, 2 * dim) encoded steps."""

    def __init__(self, config: LSTMEncoderConfig, num_features: int) -> None:
        super().__init__()
        self.output_dim = 2 * config.dim
        self.pyramid_layers = config.pyramid_layers
        self.subsampling_factor = config.subsampling.factor * 2**config.pyramid_layers
        self.subsampling = Subsampling(config.subsampling, num_features, config.dim)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList()
        width = config.dim
        for index in range(config.num_layers):
            if 1 <= index <= config.pyramid_layers:
                width *= 2
            self.layers.append(nn.LSTM(width, config.dim, batch_first=True, bidirectional=True))
            width = 2 * config.dim

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, feature_lengths_B)
        x_BTD = self.dropout(x_BTD)
        for index, layer in enumerate(self.layers):
            if 1 <= index <= self.pyramid_layers:
                x_BTD, lengths_B = stack_pairs(x_BTD, lengths_B)
            assert isinstance(layer, nn.LSTM)
            x_BTD = self.dropout(run_packed(layer, x_BTD, lengths_B))
        return x_BTD, lengths_B


def run_packed(layer: nn.LSTM, x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """The backward direction starts at the end of each sequence, not at the end of the padding."""
    # A sequence of no steps, which cannot be packed, runs over one step of padding that nobody reads.
    packed = pack_padded_sequence(x_BTD, lengths_B.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x_BTD.size(1))[0]


def stack_pairs(x_BTD: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Two steps side by side as one; padding is zero already, as `run_packed` leaves it."""
    x_BTD = F.pad(x_BTD, (0, 0, 0, x_BTD.size(1) % 2))
    return x_BTD.unflatten(1, (-1, 2)).flatten(2), subsampled_lengths(lengths_B, 2)
