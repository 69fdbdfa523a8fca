"""Language models in a search step by step, where some texts get a token and others wait.

`FusionState` reads a token of every row, so that all texts are equally long. Here a row that waits keeps its
scores. A model with a few numbers for each row continues from these; another one reads the text again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.decoding.hypothesis import FusionModel
from asr.text.tokenizer import EOS_ID, SOS_ID

# R rows of a search, M rows with a new token, U tokens, V vocabulary


class UnevenTexts:
    """The rows of a search under a model of shallow fusion, or several, with their weights."""

    def __init__(self, model: FusionModel, num_rows: int, device: torch.device) -> None:
        from asr.language_models.fusion import RowModel

        self.parts: list[tuple[float, TextsByColumns | TextsReadAgain]] = []
        for weight, part in find_parts(model):
            kind = TextsByColumns if isinstance(part, RowModel) else TextsReadAgain
            self.parts.append((weight, kind(part, num_rows, device)))

    @property
    def scores_RV(self) -> Tensor:
        """Log-probabilities of the next token of each text."""
        return torch.stack([weight * part.scores_RV for weight, part in self.parts]).sum(0)

    def go_on(self, parents_R: Tensor, rows_M: Tensor, tokens_M: Tensor) -> None:
        """Each row continues one that there was; then these rows get a token each."""
        for _, part in self.parts:
            part.go_on(parents_R, rows_M, tokens_M)


def find_parts(model: FusionModel, weight: float = 1.0) -> Iterator[tuple[float, Any]]:
    """The models that one consists of, and their weights."""
    from asr.language_models.fusion import ShallowFusion, Weighted

    if isinstance(model, ShallowFusion):
        for part in model.parts:
            yield from find_parts(part, weight)
    elif isinstance(model, Weighted):
        yield from find_parts(model.part, weight * model.weight)
    else:
        yield weight, model


class TextsByColumns:
    """Texts under a `RowModel`, which keeps a few numbers for each."""

    def __init__(self, model: Any, num_rows: int, device: torch.device) -> None:
        self.model = model
        first_R = torch.full((num_rows,), SOS_ID, device=device)
        self.columns, scores_RV = model.step(None, first_R)
        self.scores_RV = scores_RV.to(device)

    def go_on(self, parents_R: Tensor, rows_M: Tensor, tokens_M: Tensor) -> None:
        columns = [column[parents_R.to(column.device)] for column in self.columns]
        self.scores_RV = self.scores_RV[parents_R]
        if len(rows_M):
            chosen = tuple(column[rows_M.to(column.device)] for column in columns)
            stepped, scores_MV = self.model.step(chosen, tokens_M)
            for column, part in zip(columns, stepped, strict=True):
                column[rows_M.to(column.device)] = part
            self.scores_RV[rows_M] = scores_MV.to(self.scores_RV.device)
        self.columns = tuple(columns)


class TextsReadAgain:
    """Texts under any other model, which reads them from the start whenever they get a token."""

    def __init__(self, model: FusionModel, num_rows: int, device: torch.device) -> None:
        self.model = model
        self.tokens_RU = torch.full((num_rows, 1), SOS_ID, device=device)
        self.counts_R = torch.ones(num_rows, dtype=torch.long, device=device)
        self.scores_RV = model.start(num_rows, device).score(self.tokens_RU[:, 0]).float()

    def go_on(self, parents_R: Tensor, rows_M: Tensor, tokens_M: Tensor) -> None:
        self.counts_R, self.scores_RV = self.counts_R[parents_R], self.scores_RV[parents_R]
        self.tokens_RU = F.pad(self.tokens_RU[parents_R], (0, 1), value=EOS_ID)
        if not len(rows_M):
            return
        self.tokens_RU[rows_M, self.counts_R[rows_M]] = tokens_M
        self.counts_R[rows_M] += 1
        self.tokens_RU = self.tokens_RU[:, : int(self.counts_R.max())]
        state = self.model.start(len(rows_M), tokens_M.device)
        for count, tokens_M in enumerate(self.tokens_RU[rows_M].unbind(1), start=1):
            scores_MV = state.score(tokens_M).float()
            is_last_M = self.counts_R[rows_M] == count
            self.scores_RV[rows_M[is_last_M]] = scores_MV[is_last_M]
