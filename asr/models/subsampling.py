"""The front of an encoder: fewer, wider steps, by convolution or by stacking frames."""

from __future__ import annotations

from typing import Literal

import pydantic
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config
from asr.models.layers import length_mask

# B batch, T frames, F features, C channels, D model dimension


class SubsamplingConfig(Config):
    """How frames of 10 ms become the fewer steps that an encoder sees."""

    type: Literal["conv2d", "conv1d", "stack"] = "conv2d"
    """conv2d: over time and frequency; conv1d: over time, cheaper; stack: frames side by side, cheapest."""
    factor: Literal[1, 2, 4, 8] = 4
    """Frames to a step: 4 makes steps of 40 ms."""
    channels: int = pydantic.Field(default=64, gt=0)
    """Of each 2-D convolution."""


def subsampled_lengths(lengths: Tensor, factor: int) -> Tensor:
    """Steps that are left of so many frames; a part of a step counts as a whole one."""
    return (lengths + factor - 1) // factor


class Subsampling(nn.Module):
    """(B, T, F) frames to (B, ceil(T / factor), D) steps; padding never reaches a real step."""

    def __init__(self, config: SubsamplingConfig, num_features: int, dim: int) -> None:
        super().__init__()
        self.config = config
        self.num_halvings = config.factor.bit_length() - 1
        width = num_features
        self.convolutions = nn.ModuleList()
        if config.type == "stack":
            width = num_features * config.factor
        for index in range(self.num_halvings if config.type != "stack" else 0):
            if config.type == "conv2d":
                channels = 1 if index == 0 else config.channels
                self.convolutions.append(
                    nn.Conv2d(channels, config.channels, kernel_size=3, stride=2, padding=1)
                )
                width = (width + 1) // 2
            else:
                self.convolutions.append(nn.Conv1d(width, dim, kernel_size=3, stride=2, padding=1))
                width = dim
        if config.type == "conv2d" and self.num_halvings:
            width *= config.channels
        self.project = nn.Linear(width, dim)

    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x = features_BTF * length_mask(lengths_B, features_BTF.size(1))[..., None]
        if self.config.type == "stack":
            x = F.pad(x, (0, 0, 0, -x.size(1) % self.config.factor))
            return self.project(x.unflatten(1, (-1, self.config.factor)).flatten(2)), self.output_lengths(
                lengths_B
            )
        x = x[:, None] if self.config.type == "conv2d" else x.transpose(1, 2)
        time_dim = -2 if self.config.type == "conv2d" else -1
        for convolution in self.convolutions:
            lengths_B = subsampled_lengths(lengths_B, 2)
            x = F.relu(convolution(x))
            # A convolution writes into the padding, where the next one would read it.
            mask = length_mask(lengths_B, x.size(time_dim))
            x = x * (mask[:, None, :, None] if time_dim == -2 else mask[:, None, :])
        x = x.transpose(1, 2).flatten(2)  # (B, C, T, F) to (B, T, C * F), or (B, C, T) to (B, T, C)
        return self.project(x), lengths_B

    def output_lengths(self, lengths_B: Tensor) -> Tensor:
        return subsampled_lengths(lengths_B, self.config.factor)
