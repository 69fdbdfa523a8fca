"""Back-off n-grams that score whole batches of beams at once, as tables of tensors.

A context is a node: the root for no context, one for each n-gram below the highest order. The row of a node
holds the tokens that follow it in the file; for all others it backs off to the node without its first token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asr.decoding.arpa import END, NO_PROBABILITY, START, UNKNOWN, Arpa, Ngram
from asr.decoding.fusion import score_texts
from asr.errors import UserError
from asr.text.units import BLANK_ID, EOS_ID, PAD_ID, SOS_ID, SPECIAL_TOKENS, UNK_ID

# R rows of a search, V vocabulary, C nodes, E entries: n-grams of order 2 and more

ROOT = 0
ROWS_AT_ONCE = 64
# Nodes times tokens up to which all scores are computed once: ten times as quick and more with the 10,000
# n-grams of a small corpus, in at most 50 MB.
MAX_DENSE = 4_000_000


def token_vocabulary(tokens: Sequence[str]) -> list[str]:
    """The words that an ARPA file has for the tokens of a tokenizer, by id; special ones have their own."""
    names = {SOS_ID: START, EOS_ID: END, UNK_ID: UNKNOWN}
    return [names.get(id, token) for id, token in enumerate(tokens)]


@dataclass(frozen=True)
class _Tables:
    """The n-grams as tensors on one device."""

    unigrams_V: Tensor
    back_off_C: Tensor
    shorter_C: Tensor  # the node without its first token
    first_entry_C: Tensor
    num_entries_C: Tensor
    entry_tokens_E: Tensor
    entry_scores_E: Tensor
    entry_keys_E: Tensor  # node * V + token, sorted
    entry_nodes_E: Tensor  # the context that an entry leads to
    unigram_nodes_V: Tensor
    scores_CV: Tensor  # these two are empty beyond MAX_DENSE
    nodes_CV: Tensor

    def to(self, device: torch.device) -> _Tables:
        return _Tables(**{name: tensor.to(device) for name, tensor in vars(self).items()})


class NgramModel:
    """Says how likely each token is after the last ones, by the file's natural logarithms.

    A word of `vocabulary` that the file lacks is as likely as its <unk>.
    """

    def __init__(self, arpa: Arpa, vocabulary: Sequence[str]) -> None:
        self.order = len(arpa.orders)
        self.vocabulary = tuple(vocabulary)
        ids = {word: id for id, word in enumerate(vocabulary)}
        if missing := [word for word in arpa.vocabulary if word not in ids]:
            raise UserError(
                f"the n-grams have {missing[0]!r}, which is none of the {len(ids)} tokens "
                f"({len(missing)} such words in all); estimate them with the tokenizer of the speech model"
            )
        self._tables = _make_dense(_build_tables(arpa, ids))

    def log_probability(self, sentences: Iterable[Sequence[str]]) -> float:
        """Sum over all sentences and their ends; a word that is not in the vocabulary counts as <unk>."""
        ids = {word: id for id, word in enumerate(self.vocabulary)}
        unknown = ids[UNKNOWN]
        rows = [torch.tensor([ids.get(word, unknown) for word in words]).long() for words in sentences]
        total = 0.0
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[begin : begin + ROWS_AT_ONCE]
            lengths_R = torch.tensor([len(row) for row in part])
            tokens_RU = torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
            total += float(score_texts(self, tokens_RU, lengths_R, ids[START], ids[END]).sum())
        return total

    def start(self, num_rows: int, device: torch.device) -> NgramState:
        if self._tables.unigrams_V.device != device:
            self._tables = self._tables.to(device)
        return NgramState(self._tables, torch.full((num_rows,), ROOT, device=device))


class NgramState:
    """The context of each row of a search."""

    def __init__(self, tables: _Tables, nodes_R: Tensor) -> None:
        self._tables = tables
        self._nodes_R = nodes_R

    def score(self, tokens_R: Tensor) -> Tensor:
        """(R, V) log-probabilities of the token after this one and those before; the first is `SOS_ID`."""
        tables = self._tables
        if tables.scores_CV.numel():
            self._nodes_R = tables.nodes_CV[self._nodes_R, tokens_R]
            return tables.scores_CV[self._nodes_R]
        self._nodes_R = _advance(tables, self._nodes_R, tokens_R)
        return _score_nodes(tables, self._nodes_R)

    def select(self, rows: Tensor) -> None:
        self._nodes_R = self._nodes_R[rows]

    def copy(self) -> NgramState:
        return NgramState(self._tables, self._nodes_R)

    def where(self, is_own_R: Tensor, other: NgramState) -> NgramState:
        """The rows of this one where True, else those of the other."""
        return NgramState(self._tables, torch.where(is_own_R, self._nodes_R, other._nodes_R))


def _advance(tables: _Tables, nodes_R: Tensor, tokens_R: Tensor) -> Tensor:
    """The longest known context that ends in the new tokens."""
    vocab_size, num_entries = len(tables.unigrams_V), len(tables.entry_keys_E)
    found_R = torch.full_like(nodes_R, -1)
    while num_entries and bool((nodes_R != ROOT).any()):
        keys_R = nodes_R * vocab_size + tokens_R
        places_R = torch.searchsorted(tables.entry_keys_E, keys_R).clamp(max=num_entries - 1)
        is_hit_R = (tables.entry_keys_E[places_R] == keys_R) & (found_R < 0)
        found_R = torch.where(is_hit_R, tables.entry_nodes_E[places_R], found_R)
        nodes_R = torch.where(found_R < 0, tables.shorter_C[nodes_R], ROOT)
    return torch.where(found_R < 0, tables.unigram_nodes_V[tokens_R], found_R)


def _score_nodes(tables: _Tables, nodes_R: Tensor) -> Tensor:
    """Score nodes from the shortest context to the longest: back off, then put in the file's own scores."""
    chain = [nodes_R]
    while bool((chain[-1] != ROOT).any()):
        chain.append(tables.shorter_C[chain[-1]])
    scores_RV = tables.unigrams_V.repeat(len(nodes_R), 1)
    for nodes_R in chain[::-1]:
        scores_RV += tables.back_off_C[nodes_R][:, None]  # the root weighs 0 and has no entries
        counts_R = tables.num_entries_C[nodes_R]
        row_ends_R = counts_R.cumsum(0)
        rows = torch.repeat_interleave(counts_R)
        inside = torch.arange(len(rows), device=rows.device) - (row_ends_R - counts_R)[rows]
        entries = tables.first_entry_C[nodes_R][rows] + inside
        scores_RV[rows, tables.entry_tokens_E[entries]] = tables.entry_scores_E[entries]
    return scores_RV


def _build_tables(arpa: Arpa, ids: dict[str, int]) -> _Tables:
    nodes: dict[Ngram, int] = {(): ROOT}
    back_off, shorter = [0.0], [ROOT]
    for order in arpa.orders[:-1]:
        for words, (_, weight) in order.items():
            back_off.append(_natural(weight))
            shorter.append(_longest_node(words[1:], nodes))
            nodes[words] = len(nodes)
    entries = []
    for order in arpa.orders[1:]:
        for words, (log_probability, _) in order.items():
            if (node := nodes.get(words[:-1])) is None:
                raise UserError(
                    f"the n-gram {' '.join(words)!r} is there, but not its beginning, "
                    f"{' '.join(words[:-1])!r}; the ARPA file is damaged"
                )
            target = nodes[words] if words in nodes else _longest_node(words[1:], nodes)
            entries.append((node * len(ids) + ids[words[-1]], _natural(log_probability), target))
    entries.sort()
    keys_E = torch.tensor([key for key, _, _ in entries], dtype=torch.int64)
    num_entries_C = torch.bincount(keys_E // len(ids), minlength=len(nodes))

    unigrams = {words[0]: _natural(values[0]) for words, values in arpa.orders[0].items()}
    unknown = unigrams.get(UNKNOWN, _natural(NO_PROBABILITY))
    scores = [unigrams.get(word, unknown) for word in ids]
    for word in (START, SPECIAL_TOKENS[BLANK_ID], SPECIAL_TOKENS[PAD_ID]):  # nothing that a text may hold
        if word in ids:
            scores[ids[word]] = -math.inf
    return _Tables(
        unigrams_V=torch.tensor(scores),
        back_off_C=torch.tensor(back_off),
        shorter_C=torch.tensor(shorter),
        first_entry_C=num_entries_C.cumsum(0) - num_entries_C,
        num_entries_C=num_entries_C,
        entry_tokens_E=keys_E % len(ids),
        entry_scores_E=torch.tensor([score for _, score, _ in entries], dtype=torch.float32),
        entry_keys_E=keys_E,
        entry_nodes_E=torch.tensor([target for _, _, target in entries], dtype=torch.int64),
        unigram_nodes_V=torch.tensor([nodes.get((word,), ROOT) for word in ids]),
        scores_CV=torch.empty(0),
        nodes_CV=torch.empty(0),
    )


def _make_dense(tables: _Tables) -> _Tables:
    """Compute all scores and all moves beforehand, if they are few."""
    num_nodes, vocab_size = len(tables.back_off_C), len(tables.unigrams_V)
    if num_nodes * vocab_size > MAX_DENSE:
        return tables
    nodes_C, tokens_V = torch.arange(num_nodes), torch.arange(vocab_size)
    moves = _advance(tables, nodes_C.repeat_interleave(vocab_size), tokens_V.repeat(num_nodes))
    return replace(
        tables, scores_CV=_score_nodes(tables, nodes_C), nodes_CV=moves.view(num_nodes, vocab_size)
    )


def _longest_node(words: Ngram, nodes: dict[Ngram, int]) -> int:
    while words not in nodes:
        words = words[1:]
    return nodes[words]


def _natural(log10: float) -> float:
    return -math.inf if log10 <= NO_PROBABILITY else log10 * math.log(10)
