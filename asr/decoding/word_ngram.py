"""N-grams of words as probabilities of characters, so that any beam can add them up.

Of the words that begin as the last one does so far, a character has the share of those that go on with it;
<unk> is spelled by characters that are all alike. The shares of a step sum to one, and a text has the
probability that its words have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asr.decoding.arpa import END, START, UNKNOWN, Arpa
from asr.decoding.ngram import NgramModel, NgramState, token_vocabulary
from asr.errors import UserError
from asr.text.tokenizer import Tokenizer
from asr.text.units import EOS_ID, UNK_ID

# R rows of a search, V tokens, W words of the file, S words that can be spelled, in alphabetical order of
# their tokens, N nodes of the tree of their beginnings

ROOT = 0


def build_ngram_model(arpa: Arpa, tokenizer: Tokenizer) -> NgramModel | WordNgramModel:
    """Build a model of tokens if all words of the file are tokens, and the space, if any; else of words."""
    tokens, words = token_vocabulary(tokenizer.tokens), set(arpa.vocabulary)
    if words <= set(tokens) and (" " in words or " " not in tokens):
        return NgramModel(arpa, tokens)
    return WordNgramModel(arpa, tokenizer)


class WordNgramModel:
    """An n-gram of words for tokenizers of characters with a space."""

    def __init__(self, arpa: Arpa, tokenizer: Tokenizer) -> None:
        if tokenizer.type != "characters" or " " not in tokenizer.tokens:
            raise UserError(
                "these n-grams are not of tokens; those of words go with a tokenizer of characters and a "
                f"space, not with {tokenizer.type}; take n-grams of tokens (asr ngram --units tokens)"
            )
        self.space_id = tokenizer.tokens.index(" ")
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
