"""Base of all encoders: features to encoded steps, where in the features each lies, and when in the audio."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from asr.config import Config
from asr.features.front_end import FeaturesConfig
from asr.models.layers import Dropout
from asr.models.subsampling import Subsampling

# B batch, T frames, F features


class EncoderConfig(Config):
    """Section model.encoder; each kind of encoder has its `type`."""

    from_start: ClassVar[tuple[str, ...]] = ()
    """Settings that are those of `start_from` where they are null."""

    type: str


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
