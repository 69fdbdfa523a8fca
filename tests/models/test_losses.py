"""Losses and alignments against formulas in float64, sums over all paths, and torchaudio."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from asr.decoding.timestamps import align_tokens
from asr.models.losses import IGNORED, cross_entropy, ctc_loss
from asr.text.tokenizer import BLANK_ID

# B batch, T encoded steps, U tokens, V vocabulary


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.5])
def test_cross_entropy_equals_its_formula(label_smoothing: float) -> None:
    torch.manual_seed(0)
    scores_BUV = 3 * torch.randn(2, 4, 7)
    targets_BU = torch.tensor([[1, 5, 2, IGNORED], [6, IGNORED, IGNORED, IGNORED]])
    expected = 0.0
    for row, position in [(0, 0), (0, 1), (0, 2), (1, 0)]:
        scores_V = scores_BUV[row, position].double().numpy()
        log_probabilities_V = scores_V - np.log(np.exp(scores_V).sum())
        right = -log_probabilities_V[targets_BU[row, position]]
        expected += (1 - label_smoothing) * right + label_smoothing * -log_probabilities_V.mean()
    loss = cross_entropy(scores_BUV, targets_BU, label_smoothing)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert cross_entropy(scores_BUV.bfloat16(), targets_BU, label_smoothing).dtype == torch.float32


def sum_over_paths(probabilities_TV: Tensor, tokens: list[int], blank: int) -> Tensor:
    """-log of the probability of all sequences of T tokens and blanks that collapse to `tokens`."""
    num_steps, vocab_size = probabilities_TV.shape
    total = probabilities_TV.new_zeros(())
    for path in itertools.product(range(vocab_size), repeat=num_steps):
        merged = [token for token, _ in itertools.groupby(path)]
        if [token for token in merged if token != blank] == tokens:
            total = total + torch.stack([probabilities_TV[t, token] for t, token in enumerate(path)]).prod()
    return -total.log()


@pytest.mark.parametrize("tokens", [[], [1], [1, 3], [1, 1], [3, 1, 3], [1, 3, 3]])
def test_ctc_loss_is_a_sum_over_all_paths(tokens: list[int]) -> None:
    """Value and gradient, in a padded batch."""
    torch.manual_seed(0)
    scores_TV = torch.randn(5, 4, requires_grad=True)
    tokens_BU = torch.tensor([[*tokens, *[1] * (4 - len(tokens))], [1, 3, 1, 3]])
    log_probabilities_TV = torch.nn.functional.pad(scores_TV, (0, 0, 0, 2), value=9.0).log_softmax(-1)
    log_probabilities_BTV = torch.stack([log_probabilities_TV, torch.randn(7, 4).log_softmax(-1)])
    counts_B = torch.tensor([len(tokens), 4])
    loss_B = ctc_loss(log_probabilities_BTV, torch.tensor([5, 7]), tokens_BU, counts_B)
    exact_TV = scores_TV.detach().double().requires_grad_()
    expected = sum_over_paths(exact_TV.softmax(-1), tokens, BLANK_ID)
    assert loss_B[0].item() == pytest.approx(expected.item(), rel=1e-5)
    gradient_TV = torch.autograd.grad(loss_B[0], scores_TV)[0]
    expected_TV = torch.autograd.grad(expected, exact_TV)[0]
    torch.testing.assert_close(gradient_TV.double(), expected_TV, rtol=0, atol=1e-5)


def test_ctc_loss_is_zero_where_the_tokens_do_not_fit() -> None:
    """Two equal tokens need a blank between them; without steps, no token fits at all."""
    scores_BTV = torch.randn(4, 4, 5, requires_grad=True)
    tokens_BU = torch.tensor([[1, 1, 1], [1, 2, 1], [1, 2, 3], [1, 0, 0]])
    lengths_B, token_lengths_B = torch.tensor([4, 4, 2, 0]), torch.tensor([3, 3, 3, 1])
    loss_B = ctc_loss(scores_BTV.log_softmax(-1), lengths_B, tokens_BU, token_lengths_B)
    assert (loss_B == 0).tolist() == [True, False, True, True]
    loss_B.sum().backward()
    assert scores_BTV.grad is not None
    assert scores_BTV.grad.isfinite().all()
    assert (scores_BTV.grad != 0).any(-1).any(-1).tolist() == [False, True, False, False]


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
