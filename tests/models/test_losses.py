"""Losses against formulas in float64, sums over all paths, and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asr.models import (
    IGNORED,
    GuidedAttentionConfig,
    attention_measures,
    cross_entropy,
    ctc_loss,
    diagonal_times,
    guided_attention_loss,
)
from asr.text import BLANK_ID

# B batch, T encoded steps, U tokens, N rows of attention, V vocabulary, H heads

# --- cross-entropy ------------------------------------------------------------------------------


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


# --- CTC ----------------------------------------------------------------------------------------


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


def test_ctc_loss_of_long_utterances_equals_torch_in_float64() -> None:
    torch.manual_seed(0)
    log_probabilities_BTV = (4 * torch.randn(3, 300, 40)).log_softmax(-1)
    tokens_BU, lengths_B = torch.randint(1, 40, (3, 60)), torch.tensor([300, 250, 130])
    token_lengths_B = torch.tensor([60, 5, 50])
    expected_B = torch.nn.functional.ctc_loss(
        log_probabilities_BTV.double().transpose(0, 1),
        tokens_BU,
        lengths_B,
        token_lengths_B,
        reduction="none",
    )
    loss_B = ctc_loss(log_probabilities_BTV, lengths_B, tokens_BU, token_lengths_B)
    torch.testing.assert_close(loss_B.double(), expected_B, rtol=1e-5, atol=0)


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


# --- guided attention ---------------------------------------------------------------------------

# Two rows, four steps, sigma = 0.5: W_nt = 1 - exp(-2 (n/2 - t/4)^2).
PENALTIES = [[0.0, 0.1175031, 0.3934693, 0.6753475], [0.3934693, 0.1175031, 0.0, 0.1175031]]


def loss_of(weights: list[list[float]], sigma: float = 0.5) -> float:
    """Of one utterance and one head, with the straight diagonal."""
    num_rows_B, lengths_B = torch.tensor([len(weights)]), torch.tensor([len(weights[0])])
    times_BN = diagonal_times(torch.tensor([[0.0, len(weights[0])]]), num_rows_B, len(weights))
    return guided_attention_loss(torch.tensor([[weights]]), times_BN, num_rows_B, lengths_B, sigma).item()


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([[1.0, 0, 0, 0], [0, 0, 1.0, 0]], 0.0),
        ([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]], (0.1175031 + 0.1175031) / 2),
        ([[0, 0, 0, 1.0], [1.0, 0, 0, 0]], 0.6753475 + 0.3934693),
        ([[0.25] * 4, [0.25] * 4], sum(map(sum, PENALTIES)) / 4),
    ],
)
def test_guided_attention_loss_by_hand(weights: list[list[float]], expected: float) -> None:
    assert loss_of(weights) == pytest.approx(expected, abs=1e-6)


@given(
    num_rows=st.integers(1, 12),
    num_steps=st.integers(1, 40),
    sigma=st.sampled_from([0.05, 0.2, 0.4, 2.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=50)
def test_guided_attention_loss_equals_its_formula(
    num_rows: int, num_steps: int, sigma: float, seed: int
) -> None:
    """W = 1 - exp(-(n/N - t/T)^2 / (2 sigma^2)), times the attention; at most 1 a row."""
    weights_NT = torch.rand(num_rows, num_steps, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    n, t = np.arange(num_rows)[:, None] / num_rows, np.arange(num_steps) / num_steps
    penalty_NT = 1 - np.exp(-((n - t) ** 2) / (2 * sigma**2))
    expected = (weights_NT.double().numpy() * penalty_NT).sum()
    assert loss_of(weights_NT.tolist(), sigma) == pytest.approx(expected, abs=1e-5)
    assert 0 <= expected <= num_rows


def random_attention(batch: int = 3, heads: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights, times, rows and steps of a batch; the weights do not vanish in the padding."""
    torch.manual_seed(0)
    num_rows_B, lengths_B = torch.tensor([6, 2, 1])[:batch], torch.tensor([10, 7, 1])[:batch]
    weights_BHNT = torch.rand(batch, heads, 6, 10)
    spans_B2 = torch.stack([torch.zeros(batch), lengths_B], dim=1)
    return weights_BHNT, diagonal_times(spans_B2, num_rows_B, 6), num_rows_B, lengths_B


def test_guided_attention_loss_ignores_padding_and_adds_up_over_a_batch() -> None:
    weights_BHNT, times_BN, num_rows_B, lengths_B = random_attention()
    batched = guided_attention_loss(weights_BHNT, times_BN, num_rows_B, lengths_B, 0.2)
    alone = 0.0
    for row, (num_rows, length) in enumerate(zip(num_rows_B.tolist(), lengths_B.tolist(), strict=True)):
        one = slice(row, row + 1)
        weights = weights_BHNT[one, :, :num_rows, :length]
        times = times_BN[one, :num_rows]
        alone += guided_attention_loss(weights, times, num_rows_B[one], lengths_B[one], 0.2).item()
    assert batched.item() == pytest.approx(alone, rel=1e-6)


def test_guided_attention_loss_is_the_mean_over_heads() -> None:
    weights_BHNT, *rows = random_attention(heads=3)
    each = [guided_attention_loss(weights_BHNT[:, [head]], *rows, 0.2).item() for head in range(3)]
    assert guided_attention_loss(weights_BHNT, *rows, 0.2).item() == pytest.approx(np.mean(each), rel=1e-6)


def test_its_gradient_pulls_attention_to_the_diagonal() -> None:
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 5, 20, requires_grad=True)
    num_rows_B, lengths_B = torch.tensor([5]), torch.tensor([20])
    rows = diagonal_times(torch.tensor([[0.0, 20.0]]), num_rows_B, 5), num_rows_B, lengths_B
    before = attention_measures(scores.detach().softmax(-1), *rows)
    optimizer = torch.optim.SGD([scores], lr=20.0)
    for _ in range(100):
        optimizer.zero_grad()
        guided_attention_loss(scores.softmax(-1), *rows, sigma=0.2).backward()
        optimizer.step()
    after = attention_measures(scores.detach().softmax(-1), *rows)
    # The penalty is flat near the path: three steps of twenty away it is 0.25.
    assert ((scores.argmax(-1).flatten() - torch.tensor([0, 4, 8, 12, 16])).abs() <= 3).all()
    assert after["attention_monotonic"] == 5
    assert after["attention_distance"] < 0.25 * before["attention_distance"]


def test_diagonal_runs_through_the_speech() -> None:
    times_BN = diagonal_times(torch.tensor([[2.0, 10.0], [0.0, 3.0]]), torch.tensor([4, 3]), 4)
    assert times_BN[0].tolist() == [2, 4, 6, 8]
    assert times_BN[1, :3].tolist() == [0, 1, 2]


def test_attention_measures_by_hand() -> None:
    """Centres of attention at steps 0, 3, 1, 4 and 3; the path wants 0, 2, 2, 4 and 5; the last row is padding."""
    weights_BHNT = torch.nn.functional.one_hot(torch.tensor([[[0, 3, 1, 4, 3, 0]]]), 8).float()
    times_BN = torch.tensor([[0.0, 2.0, 2.0, 4.0, 5.0, 0.0]])
    measures = attention_measures(weights_BHNT, times_BN, torch.tensor([5]), torch.tensor([8]))
    assert measures["attention_distance"].item() == pytest.approx((0 + 1 + 1 + 0 + 2) / 8)
    # Of 5: from step 3 it went back to step 1; a single step back is none.
    assert measures["attention_monotonic"].item() == 4


# --- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, {0: 2.0, 10**6: 2.0}),
        ({"steps": 100}, {0: 2.0, 99: 2.0, 100: 0.0, 101: 0.0}),
        ({"schedule": "linear", "steps": 100}, {0: 2.0, 25: 1.5, 50: 1.0, 99: 0.02, 100: 0.0, 500: 0.0}),
        ({"schedule": "exponential", "half_life": 10}, {0: 2.0, 10: 1.0, 20: 0.5, 5: 2 / math.sqrt(2)}),
        ({"schedule": "exponential", "half_life": 10, "steps": 20}, {10: 1.0, 19: 2 * 0.5**1.9, 20: 0.0}),
    ],
)
def test_schedules_of_the_weight(options: dict[str, Any], weights: dict[int, float]) -> None:
    config = GuidedAttentionConfig(weight=2.0, **options)
    assert {step: config.weight_at(step) for step in weights} == pytest.approx(weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "linear"}, "schedule = linear falls to zero at `steps`, which is missing; add steps"),
        ({"layers": ()}, "at least 1 item"),
        ({"heads": ()}, "at least 1 item"),
        ({"heads": (-1,)}, "greater than or equal to 0"),
        ({"half_life": 10}, "half_life = 10 does nothing without schedule = exponential"),
        ({"ctc_threshold": 0.5}, "ctc_threshold = 0.5 does nothing without path = ctc"),
    ],
)
def test_config_names_what_does_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GuidedAttentionConfig(**options)
