"""Whole texts under a language model, by its steps."""

from __future__ import annotations

import pytest
import torch
from decoding_examples import BigramModel

from asr.decoding import score_texts
from asr.text import EOS_ID, PAD_ID, SOS_ID


@pytest.mark.parametrize("padding", [EOS_ID, PAD_ID, 7])
def test_texts_of_all_lengths_are_scored_with_their_end(padding: int) -> None:
    texts = [(5, 6, 5), (), (7,), (12, 12), (4, 4, 4)]
    tokens_RU = torch.tensor([[*text, *[padding] * (3 - len(text))] for text in texts])
    lengths_R = torch.tensor([len(text) for text in texts])
    model = BigramModel()
    expected = [model.log_probability(text) for text in texts]
    assert score_texts(model, tokens_RU, lengths_R, SOS_ID, EOS_ID).tolist() == pytest.approx(expected)


def test_empty_texts_alone() -> None:
    model = BigramModel()
    scores = score_texts(model, torch.empty(2, 0, dtype=torch.long), torch.tensor([0, 0]), SOS_ID, EOS_ID)
    assert scores.tolist() == pytest.approx([model.log_probability(())] * 2)


def test_a_token_that_is_impossible_in_the_padding_does_no_harm() -> None:
    model = BigramModel()
    model.scores_VV[:, PAD_ID] = -torch.inf
    tokens_RU = torch.tensor([[5, PAD_ID, PAD_ID], [5, 6, 7]])
    scores = score_texts(model, tokens_RU, torch.tensor([1, 3]), SOS_ID, EOS_ID)
    assert scores.tolist() == pytest.approx([model.log_probability((5,)), model.log_probability((5, 6, 7))])
