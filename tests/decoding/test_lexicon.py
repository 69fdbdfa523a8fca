"""asr/decoding/ngram.py: known words and nothing else, as brute force over all texts finds them."""

from __future__ import annotations

import itertools
import logging
import math
import tracemalloc
from types import SimpleNamespace

import pytest
import torch
from decoding_examples import search_beams
from hypothesis import given, strategies as st
from torch import Tensor
from torch.nn import functional as F

from asr.decoding import (
    DecodingConfig,
    Lexicon,
    ShallowFusion,
    WordNgramModel,
    collect_words,
    estimate_ngrams,
    score_texts,
)
from asr.errors import UserError
from asr.text import BLANK_ID, EOS_ID, SOS_ID, Tokenizer, TokenizerConfig

CHARACTERS = Tokenizer.train(TokenizerConfig(), ["A B"])
WORDS = Tokenizer.train(TokenizerConfig(type="words"), ["ONE TWO THREE"])
PIECES = Tokenizer.train(
    TokenizerConfig(type="bpe", vocab_size=24), ["ONE TWO THREE", "TEN ONETEN", "THE TWOS"] * 20
)


class Talker(torch.nn.Module):
    """A CTC head of given scores and no decoder, as far as a beam asks."""

    decoder = None
    guided_attention = SimpleNamespace(ctc_width=None)

    def __init__(self, scores_TV: Tensor) -> None:
        super().__init__()
        self.scores_BTV = scores_TV[None]

    def ctc_log_probabilities(self, encoded_BTD: Tensor) -> Tensor:
        return self.scores_BTV

    def limit_tokens(self, lengths_B: Tensor, max_tokens: int | None) -> Tensor:
        return lengths_B


def accepts(lexicon: Lexicon, tokens: list[int]) -> bool:
    score = score_texts(lexicon, torch.tensor([tokens]).long(), torch.tensor([len(tokens)]), SOS_ID, EOS_ID)
    assert score.item() in (0.0, -math.inf)
    return score.item() == 0.0


@given(st.lists(st.sampled_from("AB "), max_size=9).map("".join))
def test_texts_of_known_words_with_single_spaces_and_no_others(text: str) -> None:
    words = {"A", "AB", "BBA"}
    is_known = text == "" or all(word in words for word in text.split(" "))
    assert accepts(Lexicon(CHARACTERS, words), CHARACTERS.encode(text)) == is_known


@given(st.lists(st.sampled_from("ABC"), max_size=9).map("".join))
def test_without_spaces_texts_that_fall_into_known_words_and_no_others(text: str) -> None:
    words = ["AB", "ABC", "CA", "BBA", "C"]  # ABCA is AB CA as well as ABC A, of which A is none
    tokenizer = Tokenizer.train(TokenizerConfig(), ["ABC"])
    is_known = [True] + [False] * len(text)
    for end in range(1, len(text) + 1):
        is_known[end] = any(text[:end].endswith(word) and is_known[end - len(word)] for word in words)
    assert accepts(Lexicon(tokenizer, words), tokenizer.encode(text)) == is_known[-1]


def test_long_words_take_memory_in_proportion() -> None:
    """Where there are no spaces, a whole sentence is a word; each of its beginnings would be a tuple."""
    words = [letter * 3000 for letter in "ABC"]
    tokenizer = Tokenizer.train(TokenizerConfig(), words)
    tracemalloc.start()
    Lexicon(tokenizer, words)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.parametrize(
    ("tokenizer", "words", "texts", "others"),
    [
        (WORDS, ["ONE", "TWO"], ["", "ONE", "ONE ONE TWO"], ["THREE", "ONE THREE", "THREE ONE"]),
        (
            PIECES,
            ["ONE", "TEN", "THE"],
            ["ONE TEN", "THE", "TEN THE ONE"],
            ["ONETEN", "TWO", "THREE", "TWOS"],
        ),
    ],
)
def test_words_and_pieces(
    tokenizer: Tokenizer, words: list[str], texts: list[str], others: list[str]
) -> None:
    lexicon = Lexicon(tokenizer, words)
    assert all(accepts(lexicon, tokenizer.encode(text)) for text in texts)
    assert not any(accepts(lexicon, tokenizer.encode(text)) for text in others)


def ctc_scores_of(texts: list[str], scores_TV: Tensor) -> dict[str, float]:
    """By PyTorch's own loss."""
    found = {}
    for text in texts:
        tokens = torch.tensor(CHARACTERS.encode(text)).long()[None]
        lengths = (torch.tensor([len(scores_TV)]), torch.tensor([tokens.size(1)]))
        loss = F.ctc_loss(scores_TV[:, None].double(), tokens, *lengths, BLANK_ID, "none")
        found[text] = -loss.item()
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_a_wide_beam_finds_the_likeliest_text_of_known_words(seed: int, weight: float) -> None:
    random = torch.Generator().manual_seed(seed)
    scores_TV = torch.randn(6, len(CHARACTERS), generator=random).log_softmax(-1)
    words = ["A", "AB", "BBA"]
    texts = [" ".join(text) for count in range(4) for text in itertools.product(words, repeat=count)]
    expected = ctc_scores_of([text for text in texts if len(text) <= 6], scores_TV)
    lexicon = Lexicon(CHARACTERS, words)
    fusion = lexicon
    if weight:
        arpa = estimate_ngrams([["A", "AB"], ["AB"], ["BBA", "AB"], ["A", "A"]], 2, [])
        ngrams = WordNgramModel(arpa, CHARACTERS)
        fusion = ShallowFusion([ngrams, lexicon])
        for text in expected:
            tokens_RU = torch.tensor([CHARACTERS.encode(text)]).long()
            lengths_R = torch.tensor([tokens_RU.size(1)])
            expected[text] += weight * score_texts(ngrams, tokens_RU, lengths_R, SOS_ID, EOS_ID).item()
    config = DecodingConfig(method="ctc_beam", beam=400, nbest=3, language_model_weight=weight or 1.0)
    arguments = (torch.zeros(1, 6, 1), torch.tensor([6]), config, fusion)
    (found,) = search_beams(Talker(scores_TV), *arguments, ctc_weight=1.0)
    best = sorted(expected, key=lambda text: -expected[text])[:3]
    assert [CHARACTERS.decode(hypothesis.tokens) for hypothesis in found] == best
    assert [hypothesis.score for hypothesis in found] == pytest.approx(
        [expected[text] for text in best], abs=1e-4
    )


def test_rows_are_selected_with_what_they_said() -> None:
    state = Lexicon(CHARACTERS, ["AB", "BA"]).start(2, torch.device("cpu"))
    a, b = CHARACTERS.encode("AB")
    state.score(torch.tensor([SOS_ID, SOS_ID]))
    state.score(torch.tensor([a, b]))
    state.select(torch.tensor([1, 1, 0]))
    allowed_RV = state.score(torch.tensor([a, b, b])).isfinite()
    (space,) = CHARACTERS.encode("A B")[1:2]
    assert [row.nonzero()[:, 0].tolist() for row in allowed_RV] == [
        sorted([EOS_ID, space]),
        [],
        sorted([EOS_ID, space]),
    ]


def test_words_without_a_spelling_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lexicon = Lexicon(CHARACTERS, ["A", "ÄB", "C"])
    assert accepts(lexicon, CHARACTERS.encode("A"))
    assert "2 words of the lexicon have no spelling in tokens, 'ÄB' for one" in caplog.text
    with pytest.raises(UserError, match="words that the tokenizer can encode, and there are none"):
        Lexicon(CHARACTERS, ["C"])


def test_collect_words() -> None:
    assert collect_words(["B A", "A  C", ""]) == ["A", "B", "C"]
