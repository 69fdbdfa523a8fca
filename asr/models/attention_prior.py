"""Attention prior: a bias that holds cross-attention near the diagonal at first, and then lets it go."""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor

from asr.config import Config

# B batch, N rows of attention (tokens and the end), T encoded steps

MIN_DEVIATION = 0.5  # steps


class AttentionPriorConfig(Config):
    """A Gaussian around each token's place on the diagonal, as a factor of attention in training.

    Its logarithm is added to the scores before the softmax, in all layers and heads: the decoder sees about
    the right steps from the first update on. It widens until it is flat, and decoding never has it. That
    teaches a decoder without CTC to attend, which a penalty does not: recipes/fsdd/guided_attention.md.
    """

    width: float = pydantic.Field(default=0.08, gt=0)
    """Standard deviation at first, as a share of the length of the speech."""
    keep_updates: int = pydantic.Field(default=100, ge=0)
    """Updates during which the width stays as it is."""
    end_updates: int = pydantic.Field(default=500, gt=0)
    """Updates after which there is no prior. Until then the width is divided by a factor that falls linearly
    from 1 to 0."""
    trim_silence: bool = True
    """Run the diagonal from the first to the last loud frame, not through silence at the ends."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> AttentionPriorConfig:
        if self.end_updates <= self.keep_updates:
            raise ValueError(
                f"end_updates = {self.end_updates} is not after keep_updates = {self.keep_updates}; raise it"
            )
        return self

    def width_at(self, step: int) -> float | None:
        """The width after so many updates; None: no prior any more."""
        if step >= self.end_updates:
            return None
        share = (self.end_updates - step) / (self.end_updates - self.keep_updates)
        return self.width / min(1.0, share)


def prior_bias(times_BN: Tensor, spans_B2: Tensor, num_steps: int, width: float) -> Tensor:
    """(B, N, T): -(t - time of row n)^2 / (2 (width * length of the speech)^2)."""
    deviation_B = (width * (spans_B2[:, 1] - spans_B2[:, 0])).clamp(min=MIN_DEVIATION)
    steps_T = torch.arange(num_steps, device=times_BN.device)
    distance_BNT = (steps_T - times_BN[..., None]) / deviation_B[:, None, None]
    return -(distance_BNT**2) / 2
