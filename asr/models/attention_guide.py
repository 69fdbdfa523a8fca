"""Attention guide: cross-attention kept to where CTC has the next token, in training and in decoding."""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor

from asr.config import Config
from asr.models.ctc_prefix import CTCPrefixes

# B utterances, W texts (or beams) of each, U tokens, N = U + 1 with the end, T encoded steps, V vocabulary

ELSEWHERE = 1e-8  # attention far from the window; not 0, which CTC might be sure of at no step


class AttentionGuideConfig(Config):
    """A soft window on cross-attention around the step where CTC has the next token, in all layers and heads.

    Part of the model: whatever asks the decoder keeps to it, so that it never has to find its place, however
    long the recording is. Let the decoder see few tokens back, too (`decoder.window`), and the encoder few
    steps (`encoder.window`), lest these know the lengths of training: recipes/guided_attention.md.
    """

    width: float = pydantic.Field(default=2.0, gt=0)
    """Standard deviation of the window, in encoded steps."""
    ctc_threshold: float = pydantic.Field(default=1.0, gt=0)
    """In training, an utterance has the window as soon as its CTC loss per token is below this. Until then
    its attention is free, or has the prior."""


class AttentionGuide:
    """A Gaussian of `width` steps around where CTC has the next token, for each text; nothing to train."""

    def __init__(self, width: float, num_steps: int, device: torch.device) -> None:
        steps_T = torch.arange(num_steps, device=device)
        self._window_TT = torch.exp(-(((steps_T - steps_T[:, None]) / width) ** 2) / 2)

    def compute_bias(self, times: Tensor) -> Tensor:
        """(..., T), to be added to the scores, from the probability of each step to have the next token."""
        return (times @ self._window_TT + ELSEWHERE).log()


def guide_texts(ctc_BTV: Tensor, lengths_B: Tensor, tokens_BWU: Tensor, width: float) -> Tensor:
    """(R, N, T), added to the scores of cross-attention before each token of these R = B x W texts."""
    times_BWNT = follow_texts(ctc_BTV, lengths_B, tokens_BWU)
    return AttentionGuide(width, ctc_BTV.size(1), ctc_BTV.device).compute_bias(times_BWNT).flatten(0, 1)


@torch.no_grad()
def follow_texts(ctc_BTV: Tensor, lengths_B: Tensor, tokens_BWU: Tensor) -> Tensor:
    """(B, W, N, T): `CTCPrefixes.next_token_times` before each token of these texts and after the last."""
    prefixes = CTCPrefixes(ctc_BTV, lengths_B)
    times = [prefixes.next_token_times().expand(-1, tokens_BWU.size(1), -1)]
    parents_BW = torch.zeros(tokens_BWU.shape[:2], dtype=torch.long, device=tokens_BWU.device)
    for tokens_BW in tokens_BWU.unbind(2):
        prefixes.advance(parents_BW, tokens_BW)
        times.append(prefixes.next_token_times())
        parents_BW = torch.arange(tokens_BW.size(1), device=tokens_BW.device).expand_as(parents_BW)
    return torch.stack(times, dim=2)
