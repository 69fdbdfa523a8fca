"""Hotwords: add to the score of each of their tokens, and subtract it again from incomplete words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asr.language_models.fusion import Columns, RowModel

# R rows of a search, V vocabulary, N nodes of the trie of all words, E tokens that lead on from a node

ROOT, INSIDE = 0, 1  # before a word; within one that is none of these


class Step(NamedTuple):
    """Target node of a token, and its addition to the score."""

    node: int
    change: float


class Hotwords(RowModel):
    """A trie of spelled words. With a space token, a word counts only between two spaces."""

    def __init__(
        self, spellings: Sequence[Sequence[int]], boost: float, vocab_size: int, end: int, space: int | None
    ) -> None:
        self.vocab_size, self._boost, self._space, self._end = vocab_size, boost, space, end
        self._children: list[dict[int, int]] = [{}, {}]
        self._is_word = [False, False]
        for spelling in spellings:
            self._add(spelling)
        self._pending = [0.0] * len(self._children)  # added so far to a word that is not complete
        for node, children in enumerate(self._children):  # each comes after its parent
            for child in children.values():
                self._pending[child] = (0.0 if self._is_complete(node) else self._pending[node]) + boost
        rows = [self._list_steps(node) for node in range(len(self._children))]
        longest = max(map(len, rows))
        none = Step(ROOT, 0.0)
        padded = [[*row.items(), *[(vocab_size, none)] * (longest - len(row))] for row in rows]
        self.tokens_NE = torch.tensor([[token for token, _ in row] for row in padded])
        self.targets_NE = torch.tensor([[step.node for _, step in row] for row in padded])
        self.changes_NE = torch.tensor([[step.change for _, step in row] for row in padded])
        self.elsewhere = ROOT if space is None else INSIDE
        lost = [self._find_loss(node, self._is_complete(node)) for node in range(len(rows))]
        self.lost_N = torch.tensor(lost)

    def _add(self, spelling: Sequence[int]) -> None:
        node = ROOT
        for token in spelling:
            if token not in self._children[node]:
                self._children[node][token] = len(self._children)
                self._children.append({})
                self._is_word.append(False)
            node = self._children[node][token]
        self._is_word[node] = True

    def _is_complete(self, node: int) -> bool:
        """Complete a word at its last token if no space has to follow."""
        return self._is_word[node] and self._space is None

    def _find_loss(self, node: int, is_complete: bool) -> float:
        return 0.0 if is_complete else -self._pending[node]

    def _list_steps(self, node: int) -> dict[int, Step]:
        """List the tokens that continue or complete a word, or begin another one."""
        lost = self._find_loss(node, self._is_word[node])
        steps = {}
        if self._space is None:  # the next word may begin at any token
            steps = {token: Step(to, lost + self._boost) for token, to in self._children[ROOT].items()}
        else:
            steps[self._space] = Step(ROOT, lost)
        steps[self._end] = Step(ROOT, lost)
        own = {token: Step(to, self._boost) for token, to in self._children[node].items()}
        return steps | own

    def step(self, columns: Columns | None, tokens_R: Tensor) -> tuple[Columns, Tensor]:
        """The column: the node that each text has reached."""
        tokens_R = tokens_R.cpu()
        nodes_R = torch.full_like(tokens_R, ROOT)
        if columns is not None:
            (before_R,) = columns
            is_step_RE = self.tokens_NE[before_R] == tokens_R[:, None]
            targets_R = (self.targets_NE[before_R] * is_step_RE).sum(1)
            nodes_R = torch.where(is_step_RE.any(1), targets_R, self.elsewhere)
        scores_RV = self.lost_N[nodes_R][:, None].repeat(1, self.vocab_size + 1)
        scores_RV.scatter_(1, self.tokens_NE[nodes_R], self.changes_NE[nodes_R])
        return (nodes_R,), scores_RV[:, : self.vocab_size]
