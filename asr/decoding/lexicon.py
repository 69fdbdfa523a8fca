"""A lexicon as a language model of zeros and -inf: whatever beam weighs it in says known words only."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from asr.errors import UserError
from asr.tokenizer import EOS_ID, UNK_ID, Tokenizer

logger = logging.getLogger(__name__)

# R rows of a search, V tokens, N nodes of the tree of beginnings of words, E edges by node and token

ROOT = 0
SPACE = " "


class Lexicon:
    """For each beginning of a text, which tokens go on or end a word of the lexicon.

    Between words stands the space, if the tokenizer has one, else nothing. `words` are spelled as the
    training texts are; one that has no spelling in tokens is left out.
    """

    def __init__(self, tokenizer: Tokenizer, words: Iterable[str]) -> None:
        spellings = _spell_all(tokenizer, words)
        nodes: dict[tuple[int, ...], int] = {(): ROOT}
        for spelling in spellings:
            for end in range(1, len(spelling) + 1):
                nodes.setdefault(spelling[:end], len(nodes))
        self.vocab_size = len(tokenizer)
        has_space = tokenizer.type == "characters" and SPACE in tokenizer.tokens
        self.space_id = tokenizer.tokens.index(SPACE) if has_space else None
        self.dead = len(nodes)  # no word begins like this
        self.is_word_N = torch.zeros(len(nodes) + 1, dtype=torch.bool)
        self.is_word_N[[nodes[spelling] for spelling in spellings]] = True
        edges = sorted(
            (nodes[tokens[:-1]] * self.vocab_size + tokens[-1], node)
            for tokens, node in nodes.items()
            if tokens
        )
        self.keys_E, self.targets_E = torch.tensor(edges, dtype=torch.int64).T.contiguous()
        self.num_edges_N = torch.bincount(self.keys_E // self.vocab_size, minlength=len(nodes) + 1)
        self.first_edge_N = self.num_edges_N.cumsum(0) - self.num_edges_N

    def start(self, num_rows: int, device: torch.device) -> LexiconState:
        return LexiconState(self, device)

    def advance(self, nodes_R: Tensor, tokens_R: Tensor) -> Tensor:
        """The beginning of a word after one more token."""
        after_R = self._follow(nodes_R, tokens_R)
        if self.space_id is not None:
            ends_R = tokens_R == self.space_id
            return torch.where(ends_R, torch.where(self.is_word_N[nodes_R], ROOT, self.dead), after_R)
        fresh_R = self._follow(torch.full_like(nodes_R, ROOT), tokens_R)
        return torch.where((after_R == self.dead) & self.is_word_N[nodes_R], fresh_R, after_R)

    def allow(self, nodes_R: Tensor) -> Tensor:
        """(R, V): whether a token may come next."""
        allowed_RV = self._children(nodes_R)
        is_word_R1 = self.is_word_N[nodes_R][:, None]
        if self.space_id is None:
            allowed_RV |= is_word_R1 & self._children(torch.tensor([ROOT]))
        else:
            allowed_RV[:, self.space_id] = is_word_R1[:, 0]
        allowed_RV[:, EOS_ID] = is_word_R1[:, 0]
        return allowed_RV

    def _follow(self, nodes_R: Tensor, tokens_R: Tensor) -> Tensor:
        keys_R = nodes_R * self.vocab_size + tokens_R
        places_R = torch.searchsorted(self.keys_E, keys_R).clamp(max=len(self.keys_E) - 1)
        return torch.where(self.keys_E[places_R] == keys_R, self.targets_E[places_R], self.dead)

    def _children(self, nodes_R: Tensor) -> Tensor:
        counts_R = self.num_edges_N[nodes_R]
        rows = torch.repeat_interleave(counts_R)
        inside = torch.arange(len(rows)) - (counts_R.cumsum(0) - counts_R)[rows]
        edges = self.first_edge_N[nodes_R][rows] + inside
        allowed_RV = torch.zeros(len(nodes_R), self.vocab_size, dtype=torch.bool)
        allowed_RV[rows, self.keys_E[edges] % self.vocab_size] = True
        return allowed_RV


class LexiconState:
    """Of each row, the beginning of its last word. Kept on the CPU."""

    def __init__(self, lexicon: Lexicon, device: torch.device) -> None:
        self._lexicon = lexicon
        self._device = device
        self._nodes_R: Tensor | None = None

    def score(self, tokens_R: Tensor) -> Tensor:
        """(R, V): 0 for what may follow this token and those before, else -inf; the first is `SOS_ID`."""
        tokens_R = tokens_R.cpu()
        is_new = self._nodes_R is None
        if self._nodes_R is None:
            self._nodes_R = torch.full_like(tokens_R, ROOT)
        else:
            self._nodes_R = self._lexicon.advance(self._nodes_R, tokens_R)
        allowed_RV = self._lexicon.allow(self._nodes_R)
        if is_new:
            allowed_RV[:, EOS_ID] = True  # nothing may have been said
        return torch.zeros(allowed_RV.shape).masked_fill(~allowed_RV, -math.inf).to(self._device)

    def select(self, rows: Tensor) -> None:
        assert self._nodes_R is not None
        self._nodes_R = self._nodes_R[rows.cpu()]


def collect_words(texts: Iterable[str]) -> list[str]:
    """All words of the texts, each once, in alphabetical order."""
    return sorted({word for text in texts for word in text.split()})


def _spell_all(tokenizer: Tokenizer, words: Iterable[str]) -> list[tuple[int, ...]]:
    spellings, unspeakable = [], []
    for word in dict.fromkeys(words):
        tokens = tuple(tokenizer.encode(word))
        if not tokens or UNK_ID in tokens or word.split() != [word]:
            unspeakable.append(word)
        else:
            spellings.append(tokens)
    if not spellings:
        raise UserError("a lexicon needs words that the tokenizer can spell, and there are none")
    if unspeakable:
        logger.warning(
            "%d words of the lexicon have no spelling in tokens, %r for one; left out",
            len(unspeakable), unspeakable[0],
        )  # fmt: skip
    return spellings
