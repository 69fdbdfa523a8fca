"""Attention guide: in joint search, cross-attention looks around the step where CTC has the next token."""

from __future__ import annotations

import torch
from torch import Tensor

# B utterances, W beams of each, T encoded steps

ELSEWHERE = 1e-8  # factor of attention far from the window; not 0, which CTC might be sure of at no step


class AttentionGuide:
    """A soft window on cross-attention for each hypothesis, a Gaussian of `width` steps; nothing to train."""

    def __init__(self, width: float, num_steps: int, device: torch.device) -> None:
        steps_T = torch.arange(num_steps, device=device)
        self._window_TT = torch.exp(-(((steps_T - steps_T[:, None]) / width) ** 2) / 2)

    def compute_bias(self, times_BWT: Tensor) -> Tensor:
        """(B, W, T), to be added to the scores, from the probability of each step to have the next token."""
        return (times_BWT @ self._window_TT + ELSEWHERE).log()
