"""Hotwords: what a trie adds to a text, against counting its words; weights of language models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from asr.language_models.fusion import Weighted
from asr.language_models.hotwords import Hotwords

START, END, SPACE, SIZE = 2, 3, 4, 9
LETTERS = st.integers(5, 8)
WORD = st.lists(LETTERS, min_size=1, max_size=3).map(tuple)


def add_up(hotwords: Any, tokens: list[int]) -> float:
    """What a search adds to the score of a text and its end."""
    state, total = hotwords.start(1, torch.device("cpu")), 0.0
    for before, token in zip([START, *tokens], [*tokens, END], strict=True):
        total += float(state.score(torch.tensor([before]))[0, token])
    return total


@given(st.lists(WORD, min_size=1, max_size=4), st.lists(WORD, max_size=5))
def test_whole_words_count_where_spaces_part_them(hotwords: list[Any], words: list[Any]) -> None:
    tokens = [token for word in words for token in (*word, SPACE)][:-1]
    expected = sum(len(word) for word in words if word in hotwords)
    assert add_up(Hotwords(hotwords, 1.0, SIZE, END, SPACE), tokens) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5, 6], 2),
        ([5], 0),  # not completed
        ([5, 7], 0),
        ([5, 5, 6], 2),  # another one begins where the first is left
        ([5, 6, 5, 6, 7], 5),  # 5 6 and then the longer 5 6 7
        ([7, 5, 6, 8], 2),
        ([], 0),
    ],
)
def test_pieces_of_words_count_anywhere(tokens: list[int], expected: float) -> None:
    assert add_up(Hotwords([(5, 6), (5, 6, 7)], 1.0, SIZE, END, None), tokens) == pytest.approx(expected)


def test_rows_are_selected() -> None:
    state = Hotwords([(5, 6)], 2.0, SIZE, END, None).start(2, torch.device("cpu"))
    state.score(torch.tensor([START, START]))
    scores_RV = state.score(torch.tensor([5, 7]))
    assert scores_RV[0, 6] == 2.0 and scores_RV[0, 7] == -2.0 and scores_RV[1, 6] == 0.0
    state.select(torch.tensor([1, 0, 0]))
    assert state.score(torch.tensor([5, 6, 8]))[:, 6].tolist() == [2.0, 0.0, 0.0]


def test_weights() -> None:
    assert Weighted(Hotwords([(5,)], 2.0, SIZE, END, None), 0.5).start(1, torch.device("cpu")).score(
        torch.tensor([START])
    )[0, 5] == pytest.approx(1.0)
