"""asr/decoding/lexicon.py: the likeliest alignment of known words, found by trying out all of them."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.decoding.arpa import write_arpa
from asr.decoding.hypothesis import DecodingConfig
from asr.decoding.lexicon import LexiconDecoder, collect_words
from asr.decoding.ngram import NgramModel
from asr.decoding.ngram_estimation import estimate_ngrams
from asr.errors import UserError
from asr.tokenizer import BLANK_ID, Tokenizer, TokenizerConfig

WORDS = ["A", "AB", "BA"]
TOKENIZER = Tokenizer.train(TokenizerConfig(), ["A B"])
LETTERS = {letter: TOKENIZER.tokens.index(letter) for letter in " AB"}
SENTENCES = ["A AB", "AB", "BA AB", "A A"]


@pytest.fixture
def flashlight() -> None:
    pytest.importorskip("flashlight.lib.text.decoder")


def random_scores(seed: int, steps: int) -> Tensor:
    """(1, T, V) log-probabilities of the blank and three letters; all others are as good as impossible."""
    scores = torch.full((1, steps, len(TOKENIZER)), -math.inf)
    used = [BLANK_ID, *LETTERS.values()]
    random = torch.Generator().manual_seed(seed)
    scores[..., used] = (2 * torch.randn(1, steps, len(used), generator=random)).log_softmax(-1)
    return scores


def try_all(scores_TV: Tensor, weigh: dict[str, float]) -> tuple[str, float]:
    """The best text over all alignments of it; `weigh` is what each text gets beside its alignment."""
    symbols = {BLANK_ID: "", **{id: letter for letter, id in LETTERS.items()}}
    best = ("", -math.inf)
    for path in itertools.product(symbols, repeat=len(scores_TV)):
        said = "".join(symbols[id] for id, _ in itertools.groupby(path))
        words = said.split()
        if all(word in WORDS for word in words):
            score = sum(float(scores_TV[step, id]) for step, id in enumerate(path))
            score += weigh.get(" ".join(words), -math.inf)
            best = max(best, (" ".join(words), score), key=lambda found: found[1])
    return best


def texts_of(words: Sequence[str], most: int) -> list[str]:
    return [" ".join(text) for count in range(most + 1) for text in itertools.product(words, repeat=count)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bonus", [0.0, 1.5])
def test_finds_the_best_of_all_alignments(flashlight: None, seed: int, bonus: float) -> None:
    scores = random_scores(seed, steps=6)
    config = DecodingConfig(beam=500, length_bonus=bonus)
    [[found]] = LexiconDecoder(TOKENIZER, WORDS, config).decode(scores, torch.tensor([6]))
    text, score = try_all(scores[0], {text: bonus * len(text.split()) for text in texts_of(WORDS, 3)})
    assert TOKENIZER.decode(found.tokens) == text
    assert found.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_words_are_weighed_by_ngrams(flashlight: None, seed: int, tmp_path: Path) -> None:
    arpa = estimate_ngrams([text.split() for text in SENTENCES], order=2)
    write_arpa(tmp_path / "words.arpa", arpa)
    config = DecodingConfig(beam=500, language_model_weight=0.7)
    decoder = LexiconDecoder(TOKENIZER, WORDS, config, tmp_path / "words.arpa")
    scores = random_scores(seed, steps=6)
    [[found]] = decoder.decode(scores, torch.tensor([6]))
    model = NgramModel(arpa, arpa.vocabulary)
    weigh = {text: 0.7 * model.log_probability([text.split()]) for text in texts_of(WORDS, 3)}
    text, score = try_all(scores[0], weigh)
    assert TOKENIZER.decode(found.tokens) == text
    assert found.score == pytest.approx(score, abs=1e-4)


def test_a_batch_is_decoded_as_its_utterances_are(flashlight: None) -> None:
    decoder = LexiconDecoder(TOKENIZER, WORDS, DecodingConfig(beam=50, nbest=3))
    singles = [random_scores(seed, steps) for seed, steps in ((0, 9), (1, 4), (2, 1))]
    batch = torch.zeros(3, 9, len(TOKENIZER))
    for row, scores in enumerate(singles):
        batch[row, : scores.size(1)] = scores[0]
    together = decoder.decode(batch, torch.tensor([9, 4, 1]))
    assert together == [decoder.decode(scores, torch.tensor([scores.size(1)]))[0] for scores in singles]
    assert len(together[0]) == 3
    assert len({hypothesis.tokens for hypothesis in together[0]}) == 3, "the same words twice"


def test_pieces_need_no_spaces(flashlight: None) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="words"), ["A AB BA"])
    scores = torch.full((1, 4, len(tokenizer)), -10.0)
    said = [tokenizer.tokens.index("AB"), BLANK_ID, tokenizer.tokens.index("A"), tokenizer.tokens.index("BA")]
    scores[0, range(4), said] = 0.0
    scores[0, 3, BLANK_ID] = -1.0
    [[found]] = LexiconDecoder(tokenizer, ["AB", "A"], DecodingConfig(beam=50)).decode(
        scores, torch.tensor([4])
    )
    assert tokenizer.decode(found.tokens) == "AB A", "BA is no word of this lexicon"


def test_words_without_a_spelling_are_left_out(flashlight: None, caplog: pytest.LogCaptureFixture) -> None:
    LexiconDecoder(TOKENIZER, ["A", "Ç"], DecodingConfig())
    assert "1 words of the lexicon have no spelling in tokens, 'Ç'" in caplog.text
    with pytest.raises(UserError, match="there are none"):
        LexiconDecoder(TOKENIZER, ["Ç"], DecodingConfig())


def test_bad_ngrams_are_said(flashlight: None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        LexiconDecoder(TOKENIZER, WORDS, DecodingConfig(), tmp_path / "none.arpa")
    (tmp_path / "bad.arpa").write_text("hello\n")
    with pytest.raises(UserError, match=r"bad\.arpa: "):
        LexiconDecoder(TOKENIZER, WORDS, DecodingConfig(), tmp_path / "bad.arpa")


def test_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashlight.lib.text.decoder", None)
    monkeypatch.setitem(sys.modules, "flashlight", None)
    with pytest.raises(UserError, match=r"pip install 'asr\[lexicon\]'"):
        LexiconDecoder(TOKENIZER, WORDS, DecodingConfig())


def test_words_of_texts() -> None:
    assert collect_words(["B A", "", "A C"]) == ["A", "B", "C"]
