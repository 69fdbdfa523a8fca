"""Best path of the CTC head: the likeliest token of each step, repeats merged, blanks removed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asr.models.layers import length_mask
from asr.text.units import BLANK_ID, UNK_ID

# B utterances, T encoded steps, U tokens, V vocabulary


@dataclass(frozen=True)
class BestPaths:
    """Tokens on the best CTC path of each utterance of a batch."""

    tokens_BU: Tensor
    steps_BU: Tensor
    """First step of each token."""
    log_probabilities_BU: Tensor
    """Highest of the steps of the token."""
    counts_B: Tensor
    path_log_probability_B: Tensor
    """Of the whole path, blanks and repeats too."""

    def texts(self) -> list[list[int]]:
        rows = zip(self.tokens_BU.tolist(), self.counts_B.tolist(), strict=True)
        return [tokens[:count] for tokens, count in rows]


def find_best_paths(log_probabilities_BTV: Tensor, lengths_B: Tensor) -> BestPaths:
    best_BT, path_BT = log_probabilities_BTV.max(-1)
    is_first_BT = torch.ones_like(path_BT, dtype=torch.bool)
    is_first_BT[:, 1:] = path_BT[:, 1:] != path_BT[:, :-1]
    is_token_BT = (path_BT != BLANK_ID) & length_mask(lengths_B, path_BT.size(1))
    # Each step goes to the place of its token; blanks and padding to one behind all.
    places_BT = (is_first_BT & is_token_BT).cumsum(1) - 1
    counts_B = (is_first_BT & is_token_BT).sum(1)
    longest = int(counts_B.max()) if len(counts_B) else 0
    places_BT = places_BT.masked_fill(~is_token_BT, longest)
    empty = (len(path_BT), longest + 1)
    steps_BT = torch.arange(path_BT.size(1), device=path_BT.device).expand_as(path_BT)
    tokens_BU = path_BT.new_full(empty, UNK_ID).scatter(1, places_BT, path_BT)
    steps_BU = path_BT.new_full(empty, path_BT.size(1)).scatter_reduce(1, places_BT, steps_BT, "amin")
    peaks_BU = best_BT.new_full(empty, -torch.inf).scatter_reduce(1, places_BT, best_BT, "amax")
    path_B = best_BT.masked_fill(~length_mask(lengths_B, path_BT.size(1)), 0.0).sum(1)
    return BestPaths(tokens_BU[:, :-1], steps_BU[:, :-1], peaks_BU[:, :-1], counts_B, path_B)
