"""Forced alignment against the best of all paths, and against torchaudio's."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asr.models import align_tokens
from asr.text import BLANK_ID

# B batch, T encoded steps, U tokens, V vocabulary


def best_path_spans(log_probabilities_TV: Tensor, tokens: list[int], blank: int) -> list[tuple[int, int]]:
    """First step and one past the last step of each token, by trying every path."""
    num_steps, vocab_size = log_probabilities_TV.shape
    best, best_path = -torch.inf, ()
    for path in itertools.product(range(vocab_size), repeat=num_steps):
        if [token for token, _ in itertools.groupby(path) if token != blank] == tokens:
            score = sum(log_probabilities_TV[t, token].item() for t, token in enumerate(path))
            if score > best:
                best, best_path = score, path
    spans, start = [], 0
    for token, run in itertools.groupby(best_path):
        length = len(list(run))
        if token != blank:
            spans.append((start, start + length))
        start += length
    return spans


@given(tokens=st.lists(st.integers(1, 2), max_size=3), num_steps=st.integers(1, 6), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_alignment_is_the_best_path(tokens: list[int], num_steps: int, seed: int) -> None:
    num_repeats = sum(a == b for a, b in itertools.pairwise(tokens))
    if num_steps < len(tokens) + num_repeats:
        return
    random = torch.Generator().manual_seed(seed)
    log_probabilities_BTV = torch.randn(2, 7, 3, generator=random).log_softmax(-1)
    tokens_BU = torch.tensor([[1, 2, 1], [*tokens, *[1] * (3 - len(tokens))]])
    first_BU, past_BU = align_tokens(
        log_probabilities_BTV, torch.tensor([7, num_steps]), tokens_BU, torch.tensor([3, len(tokens)])
    )
    spans = list(zip(first_BU[1].tolist(), past_BU[1].tolist(), strict=True))
    assert spans[: len(tokens)] == best_path_spans(log_probabilities_BTV[1, :num_steps], tokens, 0)
    assert spans[len(tokens) :] == [(0, 0)] * (3 - len(tokens))


def test_alignment_of_clear_speech() -> None:
    """Blanks around the tokens, a repeated token, a batch with a shorter and an empty utterance."""
    paths = [[0, 0, 3, 3, 0, 3, 4, 4, 4, 0], [5, 0, 0, 4, 4, 9, 9, 9, 9, 9], [0] * 10]
    scores_BTV = torch.full((3, 10, 10), -5.0)
    scores_BTV.scatter_(2, torch.tensor(paths)[..., None], 5.0)
    tokens_BU = torch.tensor([[3, 3, 4], [5, 4, 1], [1, 1, 1]])
    first_BU, past_BU = align_tokens(
        scores_BTV.log_softmax(-1), torch.tensor([10, 5, 10]), tokens_BU, torch.tensor([3, 2, 0])
    )
    assert first_BU.tolist() == [[2, 5, 6], [0, 3, 0], [0, 0, 0]]
    assert past_BU.tolist() == [[4, 6, 9], [1, 5, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("tokens", "num_steps", "first", "past"),
    [
        ([1, 1], 2, [0, 1], [1, 2]),  # no room for a blank between equal tokens
        ([1, 2, 3, 4], 2, [0, 0, 1, 1], [0, 1, 1, 2]),
        ([1, 2], 0, [0, 0], [0, 0]),
    ],
)
def test_tokens_without_a_path_are_spread_evenly(
    tokens: list[int], num_steps: int, first: list[int], past: list[int]
) -> None:
    log_probabilities_BTV = torch.randn(1, 6, 5).log_softmax(-1)
    counts_B = torch.tensor([len(tokens)])
    first_BU, past_BU = align_tokens(
        log_probabilities_BTV, torch.tensor([num_steps]), torch.tensor([tokens]), counts_B
    )
    assert first_BU[0].tolist() == first
    assert past_BU[0].tolist() == past


def path_of(first_BU: Tensor, past_BU: Tensor, tokens_BU: Tensor, row: int, length: int) -> list[int]:
    """The token or blank of each step, as torchaudio returns an alignment."""
    path = [BLANK_ID] * length
    for first, past, token in zip(first_BU[row], past_BU[row], tokens_BU[row], strict=True):
        path[first:past] = [int(token)] * int(past - first)
    return path


def test_alignment_equals_torchaudio(torchaudio: ModuleType) -> None:
    random = torch.Generator().manual_seed(0)
    log_probabilities_BTV = torch.randn(24, 60, 12, generator=random).log_softmax(-1)
    lengths_B = torch.randint(40, 61, (24,), generator=random)
    tokens_BU = torch.randint(1, 12, (24, 20), generator=random)
    counts_B = torch.randint(1, 21, (24,), generator=random)
    first_BU, past_BU = align_tokens(log_probabilities_BTV, lengths_B, tokens_BU, counts_B)
    for row, (length, count) in enumerate(zip(lengths_B.tolist(), counts_B.tolist(), strict=True)):
        expected_1T, _ = torchaudio.functional.forced_align(
            log_probabilities_BTV[row : row + 1, :length], tokens_BU[row : row + 1, :count], blank=BLANK_ID
        )
        assert path_of(first_BU, past_BU, tokens_BU, row, length) == expected_1T[0].tolist()
