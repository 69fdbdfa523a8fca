"""CTC prefix beam search against the sum over every alignment of every text."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from decoding_examples import collapse, decode_ctc_greedily
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asr.decoding.beam import drop_certain_blanks, search_prefixes
from asr.decoding.hypothesis import DecodingConfig
from asr.models.decoders import mask_padding
from asr.text.tokenizer import BLANK_ID, UNK_ID

TOKENS = [UNK_ID, UNK_ID + 1, UNK_ID + 2]  # and the blank
VOCABULARY = UNK_ID + 3


def random_scores(lengths: list[int], seed: int, scale: float = 2.0, vocabulary: int = VOCABULARY) -> Tensor:
    """Log-probabilities that rule out the special tokens, which are never said."""
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(len(lengths), max(lengths), vocabulary, generator=random)
    logits[:, :, [id for id in range(UNK_ID) if id != BLANK_ID]] = -torch.inf
    return logits.log_softmax(-1)


def sum_alignments(scores_TV: Tensor) -> list[tuple[float, tuple[int, ...]]]:
    """Every text that is possible, likeliest first."""
    sums: dict[tuple[int, ...], float] = {}
    for path in itertools.product([BLANK_ID, *TOKENS], repeat=len(scores_TV)):
        probability = math.exp(sum(scores_TV[step, token].item() for step, token in enumerate(path)))
        sums[collapse(path)] = sums.get(collapse(path), 0.0) + probability
    return sorted(((math.log(total), text) for text, total in sums.items()), reverse=True)


@given(st.lists(st.lists(st.integers(0, 7), max_size=12), min_size=1, max_size=4))
def test_the_best_path_merges_repeats_and_removes_blanks(paths: list[list[int]]) -> None:
    longest = max(1, *map(len, paths))
    padded = torch.tensor([[*path, *[6] * (longest - len(path))] for path in paths])
    log_probabilities_BTV = torch.nn.functional.one_hot(padded, 8).float().log_softmax(-1)
    lengths_B = torch.tensor([len(path) for path in paths])
    assert decode_ctc_greedily(log_probabilities_BTV, lengths_B) == [list(collapse(tuple(p))) for p in paths]


@given(st.integers(0, 1000), st.floats(0.5, 6.0))
@settings(max_examples=12)
def test_a_wide_beam_finds_every_text_with_its_probability(seed: int, scale: float) -> None:
    lengths = [4, 3, 1, 4]
    scores_BTV = random_scores(lengths, seed, scale)
    config = DecodingConfig(beam=130, nbest=10)
    for row, hypotheses in enumerate(search_prefixes(scores_BTV, torch.tensor(lengths), config)):
        expected = sum_alignments(scores_BTV[row, : lengths[row]])[:10]
        assert [hypothesis.tokens for hypothesis in hypotheses] == [text for _, text in expected]
        for hypothesis, (total, _) in zip(hypotheses, expected, strict=True):
            assert hypothesis.score == hypothesis.ctc_log_probability == pytest.approx(total, abs=1e-5)


@given(st.integers(0, 1000), st.integers(1, 5))
def test_a_beam_equals_the_textbook_search(seed: int, beam: int) -> None:
    """Narrow beams too: no extension is missed by looking at some candidates only."""
    lengths = [14, 9]
    scores_BTV = random_scores(lengths, seed, 2.0, UNK_ID + 12)
    config = DecodingConfig(beam=beam, nbest=beam)
    for row, hypotheses in enumerate(search_prefixes(scores_BTV, torch.tensor(lengths), config)):
        expected = search_plainly(scores_BTV[row, : lengths[row]], beam)
        assert [hypothesis.tokens for hypothesis in hypotheses] == [text for text, _ in expected]
        for hypothesis, (_, total) in zip(hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(total, abs=1e-4)


def search_plainly(scores_TV: Tensor, beam: int) -> list[tuple[tuple[int, ...], float]]:
    """Prefix beam search with dictionaries, one utterance and one token at a time, in probabilities."""
    texts: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 0.0)}
    for row in scores_TV.double().exp().tolist():
        new: dict[tuple[int, ...], tuple[float, float]] = {}

        def add(text: tuple[int, ...], in_blank: float, in_token: float, new=new) -> None:
            old = new.get(text, (0.0, 0.0))
            new[text] = (old[0] + in_blank, old[1] + in_token)

        for text, (in_blank, in_token) in texts.items():
            add(text, (in_blank + in_token) * row[BLANK_ID], in_token * row[text[-1]] if text else 0.0)
            for token in range(UNK_ID, len(row)):
                before = in_blank if text and token == text[-1] else in_blank + in_token
                add((*text, token), 0.0, before * row[token])
        texts = dict(sorted(new.items(), key=lambda item: -sum(item[1]))[:beam])
    return [(text, math.log(sum(parts))) for text, parts in texts.items()]


def test_certain_blanks_are_dropped_and_change_nothing() -> None:
    """Long stretches of silence between the tokens."""
    logits = 2 * torch.randn(2, 60, VOCABULARY, generator=torch.Generator().manual_seed(0))
    logits[0, 5:30, BLANK_ID] = logits[0, 31:50, BLANK_ID] = logits[1, 2:20, BLANK_ID] = 60.0
    scores_BTV = logits.log_softmax(-1)
    lengths_B = torch.tensor([60, 41])
    # 25 and 19 certain steps in the first, 18 in the second, and its padding.
    assert drop_certain_blanks(scores_BTV[:1]).size(1) == 60 - 24 - 18
    assert drop_certain_blanks(mask_padding(scores_BTV, lengths_B)).size(1) == 41 - 17 + 1
    dense_BTV = logits.masked_fill(logits == 60.0, 9.0).log_softmax(-1)  # not quite certain
    assert drop_certain_blanks(dense_BTV).size(1) == 60
    config = DecodingConfig(beam=6, nbest=4)
    for row, length in enumerate(lengths_B.tolist()):
        hypotheses = search_prefixes(scores_BTV, lengths_B, config)[row]
        expected = search_plainly(scores_BTV[row, :length], 6)[:4]
        assert [hypothesis.tokens for hypothesis in hypotheses] == [text for text, _ in expected]


def test_a_single_token_and_more_beams_than_texts() -> None:
    scores_BTV = random_scores([3], 0, 1.0, UNK_ID + 1)
    (hypotheses,) = search_prefixes(scores_BTV, torch.tensor([3]), DecodingConfig(beam=20, nbest=20))
    assert {hypothesis.tokens for hypothesis in hypotheses} == {(), (UNK_ID,), (UNK_ID, UNK_ID)}
    assert sum(math.exp(hypothesis.score) for hypothesis in hypotheses) == pytest.approx(1.0)
