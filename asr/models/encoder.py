"""Base of all encoders: features to encoded steps, and where in the features each step lies."""

from __future__ import annotations

import abc
from typing import ClassVar

from torch import Tensor, nn

from asr.config import Config
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
