"""Base of all encoders: subsampled features to encoded steps, and the times of these in the audio."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pydantic
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import Config
from asr.features.front_end import FeaturesConfig
from asr.models.layers import Dropout, length_mask
from asr.models.positions import PositionConfig, Positions

# B batch, T frames, F features, C channels, D model dimension


class SubsamplingConfig(Config):
    """Subsampling of frames of 10 ms to fewer steps."""

    type: Literal["conv2d", "stack"] = "conv2d"
    """conv2d: over time and frequency; stack: frames side by side, cheaper."""
    factor: Literal[1, 2, 4, 8] = 4
    """Frames to a step: 4 makes steps of 40 ms."""
    channels: int = pydantic.Field(default=32, gt=0)
    """Of each 2-D convolution."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> SubsamplingConfig:
        self.refuse_idle(self.factor > 1, "factor above 1", "channels")
        self.refuse_idle(self.type == "conv2d", "type = conv2d", "channels")
        return self


def subsampled_lengths(lengths: Tensor, factor: int) -> Tensor:
    """Steps that are left of so many frames; a part of a step counts as a whole one."""
    return (lengths + factor - 1) // factor


class Subsampling(nn.Module):
    """(B, T, F) frames to (B, ceil(T / factor), D) steps; padding never reaches a real step."""

    def __init__(self, config: SubsamplingConfig, num_features: int, dim: int) -> None:
        super().__init__()
        self.config = config
        self.factor = config.factor
        # A convolution of width 3, stride 2, padding 1 is centred on each second frame, a stack on its own.
        self.first_frame = (config.factor - 1) / 2 if config.type == "stack" else 0.0
        self.convolutions = nn.ModuleList()
        num_halvings = config.factor.bit_length() - 1
        width = num_features
        if config.type == "stack":
            width = num_features * config.factor
        else:
            for index in range(num_halvings):
                channels = 1 if index == 0 else config.channels
                self.convolutions.append(nn.Conv2d(channels, config.channels, 3, stride=2, padding=1))
                width = (width + 1) // 2
            width *= config.channels if num_halvings else 1
        self.project = nn.Linear(width, dim)
        # Convolutions start out with outputs of a tenth, which position codes of size one would drown.
        self.norm = nn.LayerNorm(dim)

    def forward(self, features_BTF: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        is_padding_BT = ~length_mask(lengths_B, features_BTF.size(1))
        x_BTF = features_BTF.masked_fill(is_padding_BT[..., None], 0.0)
        if self.config.type == "stack":
            x_BTF = F.pad(x_BTF, (0, 0, 0, -x_BTF.size(1) % self.config.factor))
            x_BTF = x_BTF.unflatten(1, (-1, self.config.factor)).flatten(2)
            return self.norm(self.project(x_BTF)), subsampled_lengths(lengths_B, self.config.factor)
        # In memory the channels come last: on a CPU PyTorch would else rearrange every input and output.
        x_BTFC = x_BTF[..., None]
        batch = len(x_BTFC)
        if batch == 1 and not self.training:
            # A batch of one takes another way through oneDNN, which rounds otherwise. In the company of its
            # double an utterance gives to the bit what it gives in any batch.
            x_BTFC = x_BTFC.repeat(2, 1, 1, 1)
        x_BCTF = x_BTFC.permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            lengths_B = subsampled_lengths(lengths_B, 2)
            x_BCTF = convolution(x_BCTF)
            # A convolution writes into the padding, where the next one would read it. A product keeps the
            # memory format on the way back, which `masked_fill_` loses.
            is_step_BT = length_mask(lengths_B, x_BCTF.size(2))
            x_BCTF = x_BCTF.mul_(is_step_BT[:, None, :, None]).relu_()
        return self.norm(self.project(x_BCTF[:batch].permute(0, 2, 3, 1).flatten(2))), lengths_B


class EncoderConfig(Config):
    """Section model.encoder; each kind of encoder has its `type`."""

    from_start: ClassVar[tuple[str, ...]] = ()
    """Settings that are those of `start_from` where they are null."""

    type: str


class LayeredEncoderConfig(EncoderConfig):
    """Subsampling, then layers."""

    dim: int = pydantic.Field(default=256, gt=0)
    """Width of the model; of a recurrent one, of each direction, and its output has twice as many."""
    num_layers: int = pydantic.Field(default=12, gt=0)
    dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Of the output of each layer or block, and inside the feed-forward blocks."""
    subsampling: SubsamplingConfig = SubsamplingConfig()
    """How frames become steps, before the first layer."""


class Encoder(nn.Module, abc.ABC):
    """(B, T, F) features to (B, ceil(T / subsampling_factor), output_dim) encoded steps."""

    output_dim: int
    dropout: Dropout
    """Of the output too, where a CTC head reads it."""
    subsampling: Subsampling

    @property
    def subsampling_factor(self) -> int:
        """Frames from one step to the next."""
        return self.subsampling.factor

    @property
    def first_frame(self) -> float:
        """Middle of the frames that step 0 sees most of."""
        return self.subsampling.first_frame

    @abc.abstractmethod
    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Encoded steps and their lengths."""


class LayeredEncoder(Encoder):
    """(B, T, F) features to (B, T / factor, D) encoded steps, by layers that know which steps are real."""

    def __init__(
        self,
        config: LayeredEncoderConfig,
        num_features: int,
        layers: Iterator[nn.Module],
        norm: nn.Module,
        positions: PositionConfig | None = None,
    ) -> None:
        super().__init__()
        self.output_dim = config.dim
        self.subsampling = Subsampling(config.subsampling, num_features, config.dim)
        self.positions = Positions(positions or PositionConfig(type="none"), config.dim)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, features_BTF: Tensor, feature_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD, lengths_B = self.subsampling(features_BTF, feature_lengths_B)
        x_BTD = self.dropout(self.positions(x_BTD))
        mask_BT = length_mask(lengths_B.clamp(min=1), x_BTD.size(1))
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_BT)
        return self.norm(x_BTD), lengths_B


@dataclass(frozen=True)
class Clock:
    """Times of evenly spaced steps, in seconds of the audio."""

    first: float
    """Seconds from the first sample to the middle of what step 0 sees."""
    seconds_per_step: float

    def times(self, num_steps: int) -> np.ndarray:
        """Times of the first steps."""
        return self.first + self.seconds_per_step * np.arange(num_steps)

    def time(self, step: float) -> float:
        return self.first + step * self.seconds_per_step


def make_frame_clock(features: FeaturesConfig) -> Clock:
    """Clock of the frames that an encoder reads."""
    # Kaldi's first window begins at the first sample, Whisper's is centred there.
    middle = 0.0 if features.convention == "whisper" else features.window_samples / features.sample_rate / 2
    return Clock(middle, features.shift_samples / features.sample_rate)


def make_clock(features: FeaturesConfig, encoder: Encoder) -> Clock:
    """Clock of the steps that the encoder makes."""
    frame = make_frame_clock(features)
    return Clock(frame.time(encoder.first_frame), frame.seconds_per_step * encoder.subsampling_factor)
