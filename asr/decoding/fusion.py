"""Shallow fusion: the interface of what a beam adds to the scores of a speech model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

# R rows (utterances x beams), V vocabulary


class FusionState(Protocol):
    """The rows of one search, each with its tokens so far."""

    def score(self, tokens_R: Tensor) -> Tensor:
        """Append one token to each row; (R, V) natural log-probabilities of the token after it.

        The first call brings `SOS_ID` for every row, and all rows always have the same number of tokens. The
        vocabulary is the speech model's: the same ids, the end at `EOS_ID`. Log-probabilities are at most 0
        (a search stops when no row can win any more, and relies on that); they may be -inf.
        """
        ...

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; some may come several times, others not at all."""
        ...


class FusionModel(Protocol):
    """A language model, or anything else that scores a token after those before."""

    def start(self, num_rows: int, device: torch.device) -> FusionState:
        """The state of a new search, whose rows have no tokens yet. Searches do not share states."""
        ...


class ShallowFusion:
    """Several models as one: their log-probabilities are added up."""

    def __init__(self, models: Sequence[FusionModel]) -> None:
        self._models = models

    def start(self, num_rows: int, device: torch.device) -> FusionState:
        return _ShallowFusionState([model.start(num_rows, device) for model in self._models])


class _ShallowFusionState:
    def __init__(self, states: Sequence[FusionState]) -> None:
        self._states = states

    def score(self, tokens_R: Tensor) -> Tensor:
        return torch.stack([state.score(tokens_R) for state in self._states]).sum(0)

    def select(self, rows: Tensor) -> None:
        for state in self._states:
            state.select(rows)


def score_texts(model: FusionModel, tokens_RU: Tensor, lengths_R: Tensor, sos_id: int, eos_id: int) -> Tensor:
    """(R,) log-probabilities, in float64, of whole texts and their end."""
    rows, width = tokens_RU.shape
    state = model.start(rows, tokens_RU.device)
    inputs_RN = torch.cat([tokens_RU.new_full((rows, 1), sos_id), tokens_RU], dim=1)
    targets_RN = torch.cat([tokens_RU, tokens_RU.new_full((rows, 1), eos_id)], dim=1)
    targets_RN = targets_RN.scatter(1, lengths_R[:, None], eos_id)
    total_R = torch.zeros(rows, dtype=torch.float64, device=tokens_RU.device)
    for step in range(width + 1):
        scores_RV = state.score(inputs_RN[:, step])
        score_R = scores_RV.gather(1, targets_RN[:, step : step + 1])[:, 0].double()
        total_R += score_R.masked_fill(step > lengths_R, 0.0)
    return total_R
