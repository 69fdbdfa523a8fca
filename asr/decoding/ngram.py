"""Back-off n-grams that score whole batches of beams at once, as tables of tensors; of tokens and of words.

A context is a node: the root for no context, one for each n-gram below the highest order. The row of a node
holds the tokens that follow it in the file; for all others it backs off to the node without its first token.

N-grams of words become probabilities of characters, so that any beam can add them up. Of the words that begin
as the last one does so far, a character has the share of those that go on with it; <unk> is spelled by
characters that are all alike. The shares of a step sum to one, and a text has the probability that its words
have.
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
from asr.text.tokenizer import Tokenizer
from asr.text.units import BLANK_ID, EOS_ID, PAD_ID, SOS_ID, SPECIAL_TOKENS, UNK_ID

# R rows of a search, V vocabulary, C nodes, E entries: n-grams of order 2 and more
# Of words: W words of the file, S words that can be spelled, in alphabetical order of their tokens, N nodes
# of the tree of their beginnings

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
    """N-grams of a file: natural logarithms of how likely each token is after the last ones.

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


# --- words --------------------------------------------------------------------------------------


def build_ngram_model(arpa: Arpa, tokenizer: Tokenizer) -> NgramModel | WordNgramModel:
    """Build a model of tokens if all words of the file are tokens, and the space, if any; else of words."""
    tokens, words = token_vocabulary(tokenizer.tokens), set(arpa.vocabulary)
    if words <= set(tokens) and (" " in words or " " not in tokens):
        return NgramModel(arpa, tokens)
    return WordNgramModel(arpa, tokenizer)


class WordNgramModel:
    """An n-gram of words for tokenizers with a token between words: of characters or phones."""

    def __init__(self, arpa: Arpa, tokenizer: Tokenizer) -> None:
        if tokenizer.space_id is None:
            raise UserError(
                "these n-grams are not of tokens; those of words go with a tokenizer of characters or phones "
                f"and a space, not with {tokenizer.type}; take n-grams of tokens (asr ngram --units tokens)"
            )
        self.space_id = tokenizer.space_id
        self.words = arpa.vocabulary + [
            word for word in (UNKNOWN, END, START) if (word,) not in arpa.orders[0]
        ]
        self.ngrams = NgramModel(arpa, self.words)
        self.word_ids = {word: id for id, word in enumerate(self.words)}
        vocab_size = len(tokenizer)
        spelled = sorted(
            (tuple(tokenizer.encode(word)), id)
            for word, id in self.word_ids.items()
            if word not in (START, END, UNKNOWN) and not {UNK_ID, self.space_id} & set(tokenizer.encode(word))
        )
        nodes: dict[tuple[int, ...], int] = {(): ROOT}
        spans = [[0, len(spelled)]]
        for place, (tokens, _) in enumerate(spelled):
            for end in range(1, len(tokens) + 1):
                if nodes.setdefault(tokens[:end], len(nodes)) == len(spans):
                    spans.append([place, place])
                spans[nodes[tokens[:end]]][1] = place + 1
        spans.append([0, 0])  # no word begins like this
        children = torch.full((len(spans), vocab_size), len(nodes))
        for tokens, node in nodes.items():
            if tokens:
                children[nodes[tokens[:-1]], tokens[-1]] = node
        self.children_NV = children
        self.spans_N2 = torch.tensor(spans)
        self.order_S = torch.tensor([id for _, id in spelled], dtype=torch.int64)
        self.word_of_N = torch.full((len(spans),), self.word_ids[UNKNOWN])
        for tokens, id in spelled:
            self.word_of_N[nodes[tokens]] = id
        self.is_character_V = torch.arange(vocab_size) >= UNK_ID
        self.is_character_V[self.space_id] = False
        self.num_symbols = int(self.is_character_V.sum()) + 1  # and the end of the word

    def start(self, num_rows: int, device: torch.device) -> WordNgramState:
        return WordNgramState(self, self.ngrams.start(num_rows, torch.device("cpu")), device)


class WordNgramState:
    """Words so far and the beginning of the next, for each row. Kept on the CPU."""

    def __init__(self, model: WordNgramModel, history: NgramState, device: torch.device) -> None:
        self._model = model
        self._history = history
        self._device = device
        self._scores_RW = torch.empty(0)
        self._nodes_R = torch.empty(0, dtype=torch.int64)
        self._depths_R = torch.empty(0, dtype=torch.int64)
        self._is_new = True

    def score(self, tokens_R: Tensor) -> Tensor:
        """(R, V) log-probabilities of the token after this one and those before; the first is `SOS_ID`."""
        model, tokens_R = self._model, tokens_R.cpu()
        if self._is_new:
            words_R = torch.full_like(tokens_R, model.word_ids[START])
            self._scores_RW = self._history.score(words_R)
            self._nodes_R, self._depths_R = torch.full_like(tokens_R, ROOT), torch.zeros_like(tokens_R)
        else:
            ends_R = tokens_R == model.space_id
            if bool(ends_R.any()):
                longer = self._history.copy()
                scores_RW = longer.score(model.word_of_N[self._nodes_R])
                self._scores_RW = torch.where(ends_R[:, None], scores_RW, self._scores_RW)
                self._history = longer.where(ends_R, self._history)
            self._nodes_R = model.children_NV[self._nodes_R, tokens_R].masked_fill(ends_R, ROOT)
            self._depths_R = (self._depths_R + 1).masked_fill(ends_R, 0)
        chances_RV = self._chances()
        self._is_new = False
        return chances_RV.clamp(max=1).log().float().to(self._device)

    def select(self, rows: Tensor) -> None:
        rows = rows.cpu()
        self._history.select(rows)
        self._scores_RW = self._scores_RW[rows]
        self._nodes_R, self._depths_R = self._nodes_R[rows], self._depths_R[rows]

    def _chances(self) -> Tensor:
        model = self._model
        chances_RW = self._scores_RW.double().exp()
        sums_RS = torch.nn.functional.pad(chances_RW[:, model.order_S].cumsum(1), (1, 0))
        unknown_R = chances_RW[:, model.word_ids[UNKNOWN]] * float(model.num_symbols) ** -self._depths_R
        words_R = model.word_of_N[self._nodes_R]
        whole_R = chances_RW.gather(1, words_R[:, None])[:, 0]
        whole_R = whole_R.masked_fill(words_R == model.word_ids[UNKNOWN], 0.0) + unknown_R / model.num_symbols
        ends_R = self._history.copy().score(words_R)[:, model.word_ids[END]].double().exp()

        spans_RV2 = model.spans_N2[model.children_NV[self._nodes_R]]
        parts_RV = sums_RS.gather(1, spans_RV2[..., 1]) - sums_RS.gather(1, spans_RV2[..., 0])
        parts_RV = (parts_RV.clamp(min=0) + unknown_R[:, None] / model.num_symbols) * model.is_character_V
        span_R2 = model.spans_N2[self._nodes_R]
        all_R2 = sums_RS.gather(1, span_R2)
        all_R = all_R2[:, 1] - all_R2[:, 0] + unknown_R
        parts_RV[:, model.space_id] = whole_R * (1 - ends_R)
        parts_RV[:, EOS_ID] = whole_R * ends_R
        chances_RV = parts_RV / all_R[:, None]
        if self._is_new:  # no token yet: the end is a word like any other
            none_R = chances_RW[:, model.word_ids[END]]
            chances_RV *= 1 - none_R[:, None]
            chances_RV[:, EOS_ID] = none_R + chances_RV[:, EOS_ID]
        return chances_RV
