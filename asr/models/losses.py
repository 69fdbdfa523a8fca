"""Cross-entropy, CTC, and the references that they are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.models.layers import length_mask
from asr.text.tokenizer import BLANK_ID, EOS_ID, SOS_ID

# B batch, T encoded steps, U tokens, N rows of attention (tokens and the end), V vocabulary, H heads

IGNORED = -100  # a target at this position does not count


def cross_entropy(scores_BUV: Tensor, targets_BU: Tensor, label_smoothing: float) -> Tensor:
    """Return the cross-entropy, summed over all targets that are not IGNORED."""
    return F.cross_entropy(
        scores_BUV.flatten(0, 1).float(),
        targets_BU.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def ctc_loss(
    log_probabilities_BTV: Tensor, lengths_B: Tensor, tokens_BU: Tensor, token_lengths_B: Tensor
) -> Tensor:
    """Return each utterance's loss (B,); 0 instead of infinity if it has too few steps for its tokens."""
    return F.ctc_loss(
        log_probabilities_BTV.transpose(0, 1).float(),
        tokens_BU,
        lengths_B,
        token_lengths_B,
        blank=BLANK_ID,
        reduction="none",
        zero_infinity=True,
    )


@dataclass(frozen=True)
class Losses:
    """Losses, summed over a batch.

    Divided by the tokens of all batches in an update, they give the same mean however it is split.
    """

    total: Tensor  # the sum to differentiate
    num_tokens: int  # number of targets; see `Net.count_targets`
    parts: dict[str, Tensor] = field(default_factory=dict)  # detached; some of `Net.reported`


@dataclass(frozen=True)
class Targets:
    """The reference tokens of a batch."""

    tokens_BU: Tensor
    lengths_B: Tensor

    @property
    def num_rows_B(self) -> Tensor:
        """Number of the decoder's decisions: the tokens and the end."""
        return self.lengths_B + 1

    def for_decoder(self) -> tuple[Tensor, Tensor]:
        """Return inputs, which start with the start token, and targets, which end with the end token."""
        is_token_BU = length_mask(self.lengths_B, self.tokens_BU.size(1))
        start_B1 = self.tokens_BU.new_full((len(self.tokens_BU), 1), SOS_ID)
        inputs_BN = torch.cat([start_B1, self.tokens_BU.masked_fill(~is_token_BU, EOS_ID)], dim=1)
        targets_BN = F.pad(self.tokens_BU.masked_fill(~is_token_BU, IGNORED), (0, 1), value=IGNORED)
        return inputs_BN, targets_BN.scatter(1, self.lengths_B[:, None], EOS_ID)
