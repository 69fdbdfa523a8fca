"""Shallow fusion: models of the next token whose log-probabilities a search adds to its scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asr.decoding.hypothesis import FusionState

# R rows of a search, V vocabulary

Columns = tuple[Tensor, ...]


class RowModel:
    """A model that keeps a few numbers for each row of a search."""

    def start(self, num_rows: int, device: torch.device) -> RowState:
        return RowState(self)

    def step(self, columns: Columns | None, tokens_R: Tensor) -> tuple[Columns, Tensor]:
        """Append one token to each row; (R, V) log-probabilities after it. None: `SOS_ID`, the first."""
        raise NotImplementedError


class RowState:
    """The rows of one search under such a model."""

    def __init__(self, model: RowModel) -> None:
        self._model = model
        self._columns: Columns | None = None

    def score(self, tokens_R: Tensor) -> Tensor:
        self._columns, scores_RV = self._model.step(self._columns, tokens_R)
        return scores_RV.to(tokens_R.device)

    def select(self, rows: Tensor) -> None:
        assert self._columns is not None
        self._columns = tuple(column[rows.to(column.device)] for column in self._columns)


class ShallowFusion:
    """Several models or their states in a search, whose log-probabilities are added."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def start(self, num_rows: int, device: torch.device) -> FusionState:
        return ShallowFusion([model.start(num_rows, device) for model in self.parts])

    def score(self, tokens_R: Tensor) -> Tensor:
        return torch.stack([state.score(tokens_R) for state in self.parts]).sum(0)

    def select(self, rows: Tensor) -> None:
        for state in self.parts:
            state.select(rows)


class Weighted:
    """A model or its state in a search, whose log-probabilities are multiplied by a weight."""

    def __init__(self, part: Any, weight: float) -> None:
        self.part, self.weight = part, weight

    def start(self, num_rows: int, device: torch.device) -> FusionState:
        return Weighted(self.part.start(num_rows, device), self.weight)

    def score(self, tokens_R: Tensor) -> Tensor:
        scores_RV: Tensor = self.part.score(tokens_R)
        return self.weight * scores_RV

    def select(self, rows: Tensor) -> None:
        self.part.select(rows)
