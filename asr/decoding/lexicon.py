"""Lexicon as a language model of zeros and -inf: with it, a beam finds known words only."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from asr.errors import UserError
from asr.text.tokenizer import Tokenizer
from asr.text.units import EOS_ID, UNK_ID

logger = logging.getLogger(__name__)

# R rows of a search, V tokens, N nodes of the tree of beginnings of words, E edges by node and token, D words
# that may be under way

ROOT = 0


class Lexicon:
    """A lexicon as a constraint: the tokens that go on or end one of its words, for each beginning of a text.

    Between words stands the space, if the tokenizer has one, else nothing: then a word that may be over may
    also go on, and each way to cut the text into words is followed. `words` are spelled as the training
    texts are; one that has no spelling in tokens is left out.
    """

    def __init__(self, tokenizer: Tokenizer, words: Iterable[str]) -> None:
        spellings = _spell_all(tokenizer, words)
        self.vocab_size = len(tokenizer)
        edges: dict[int, int] = {}  # node and token, as one number, to the node behind
        ends = []
        for spelling in spellings:
            node = ROOT
            for token in spelling:
                node = edges.setdefault(node * self.vocab_size + token, len(edges) + 1)
            ends.append(node)
        self.space_id = tokenizer.space_id
        # Column d holds the word of which d tokens are decoded; between spaces there is but one.
        self.width = 1 if self.space_id is not None else 1 + max(map(len, spellings))
        self.dead = len(edges) + 1  # no word begins like this
        self.is_word_N = torch.zeros(self.dead + 1, dtype=torch.bool)
        self.is_word_N[ends] = True
        self.keys_E, self.targets_E = torch.tensor(sorted(edges.items()), dtype=torch.int64).T.contiguous()
        self.num_edges_N = torch.bincount(self.keys_E // self.vocab_size, minlength=self.dead + 1)
        self.first_edge_N = self.num_edges_N.cumsum(0) - self.num_edges_N

    def start(self, num_rows: int, device: torch.device) -> LexiconState:
        return LexiconState(self, device)

    def begin(self, num_rows: int) -> Tensor:
        """(R, D): the beginnings of words that a text may stand in, before its first token."""
        nodes_RD = torch.full((num_rows, self.width), self.dead)
        nodes_RD[:, 0] = ROOT
        return nodes_RD

    def advance(self, nodes_RD: Tensor, tokens_R: Tensor) -> Tensor:
        """The state after one more token."""
        after_RD = self._follow(nodes_RD, tokens_R[:, None])
        if self.space_id is not None:
            ended_RD = torch.where(self.is_word_N[nodes_RD], ROOT, self.dead)
            return torch.where(tokens_R[:, None] == self.space_id, ended_RD, after_RD)
        next_R1 = torch.where(self.is_word_N[after_RD].any(1, keepdim=True), ROOT, self.dead)
        return torch.cat([next_R1, after_RD[:, :-1]], dim=1)

    def allow(self, nodes_RD: Tensor) -> Tensor:
        """(R, V): whether a token may come next."""
        allowed_RV = self._children(nodes_RD)
        is_over_R = self.is_word_N[nodes_RD].any(1)
        if self.space_id is not None:
            allowed_RV[:, self.space_id] = is_over_R
        allowed_RV[:, EOS_ID] = is_over_R
        return allowed_RV

    def _follow(self, nodes_RD: Tensor, tokens_R1: Tensor) -> Tensor:
        keys_RD = nodes_RD * self.vocab_size + tokens_R1
        places_RD = torch.searchsorted(self.keys_E, keys_RD).clamp(max=len(self.keys_E) - 1)
        return torch.where(self.keys_E[places_RD] == keys_RD, self.targets_E[places_RD], self.dead)

    def _children(self, nodes_RD: Tensor) -> Tensor:
        nodes = nodes_RD.flatten()
        counts = self.num_edges_N[nodes]
        places = torch.repeat_interleave(counts)  # one for each edge of each node
        inside = torch.arange(len(places)) - (counts.cumsum(0) - counts)[places]
        edges = self.first_edge_N[nodes][places] + inside
        allowed_RV = torch.zeros(len(nodes_RD), self.vocab_size, dtype=torch.bool)
        allowed_RV[places // self.width, self.keys_E[edges] % self.vocab_size] = True
        return allowed_RV


class LexiconState:
    """Beginnings of words that each row may stand in. Kept on the CPU."""

    def __init__(self, lexicon: Lexicon, device: torch.device) -> None:
        self._lexicon = lexicon
        self._device = device
        self._nodes_RD: Tensor | None = None

    def score(self, tokens_R: Tensor) -> Tensor:
        """(R, V): 0 for what may follow this token and those before, else -inf; the first is `SOS_ID`."""
        tokens_R = tokens_R.cpu()
        is_new = self._nodes_RD is None
        if self._nodes_RD is None:
            self._nodes_RD = self._lexicon.begin(len(tokens_R))
        else:
            self._nodes_RD = self._lexicon.advance(self._nodes_RD, tokens_R)
        allowed_RV = self._lexicon.allow(self._nodes_RD)
        if is_new:
            allowed_RV[:, EOS_ID] = True  # the empty text is allowed
        return torch.zeros(allowed_RV.shape).masked_fill(~allowed_RV, -math.inf).to(self._device)

    def select(self, rows: Tensor) -> None:
        assert self._nodes_RD is not None
        self._nodes_RD = self._nodes_RD[rows.cpu()]


def collect_words(texts: Iterable[str]) -> list[str]:
    """All words of the texts, each once, in alphabetical order."""
    return sorted({word for text in texts for word in text.split()})


def _spell_all(tokenizer: Tokenizer, words: Iterable[str]) -> list[tuple[int, ...]]:
    spellings, unencodable = [], []
    for word in dict.fromkeys(words):
        tokens = tuple(tokenizer.encode(word))
        if not tokens or UNK_ID in tokens or word.split() != [word]:
            unencodable.append(word)
        else:
            spellings.append(tokens)
    if not spellings:
        raise UserError("a lexicon needs words that the tokenizer can encode, and there are none")
    if unencodable:
        logger.warning(
            "%d words of the lexicon have no spelling in tokens, %r for one; left out",
            len(unencodable), unencodable[0],
        )  # fmt: skip
    return spellings
