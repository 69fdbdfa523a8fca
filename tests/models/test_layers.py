"""Dropout, feed-forward blocks and masks against what they promise and against formulas in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from asr.models import Dropout, FeedForward, drop_out, length_mask


def test_length_mask() -> None:
    expected = [[False, False, False], [True, False, False], [True, True, True], [True, True, True]]
    assert length_mask(torch.tensor([0, 1, 3, 5]), 3).tolist() == expected


# --- dropout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_keeps_the_expectation(probability: float) -> None:
    torch.manual_seed(0)
    x = torch.full((1000, 1001), 3.0)  # an odd number of elements: the last draw is used in part
    dropped = drop_out(x, probability)
    (kept,) = dropped[dropped != 0].unique().tolist()
    rounded = 1 - 3 / kept  # the probability, as far as the random bits of an element go
    assert rounded == pytest.approx(probability, abs=1 / 512)
    deviation = math.sqrt(rounded * (1 - rounded) / x.numel())
    assert (dropped == 0).double().mean().item() == pytest.approx(rounded, abs=5 * deviation + 1e-6)
    assert dropped.double().mean().item() == pytest.approx(3.0, rel=5 * deviation / (1 - rounded) + 1e-6)


def test_dropout_of_nearly_everything_divides_by_no_zero() -> None:
    torch.manual_seed(0)
    dropped = drop_out(torch.ones(1000, 1000), 0.9999)
    assert dropped.isfinite().all()
    assert 0 < (dropped != 0).sum() < 300


def test_dropout_draws_for_each_element_alone() -> None:
    """Elements share a 64-bit draw: all patterns of eight neighbours must be as frequent as by chance."""
    torch.manual_seed(0)
    kept = (drop_out(torch.ones(400_000), 0.5) != 0).view(-1, 8)
    patterns = (kept.long() << torch.arange(8)).sum(1).bincount(minlength=256).double()
    expected = len(kept) / 256
    chi_square = ((patterns - expected) ** 2 / expected).sum().item()
    assert chi_square < 350  # exceeded by chance once in 10,000 times at 255 degrees of freedom


def test_dropout_is_the_same_for_the_same_seed() -> None:
    x = torch.ones(3, 5, 7)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(drop_out(x, 0.5))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_dropout_is_off_in_evaluation_and_at_probability_zero() -> None:
    x = torch.randn(10, 10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert (Dropout(0.5).train()(x) == 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_passes_the_gradient_where_it_passes_the_value(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.full((50, 30), 2.0, dtype=dtype).mT.requires_grad_()  # not contiguous
    dropped = drop_out(x, 0.25)
    dropped.sum().backward()
    assert dropped.dtype == dtype
    assert dropped.shape == x.shape
    assert x.grad is not None
    assert torch.equal(x.grad * 2, dropped.detach())
    assert 0 < (x.grad == 0).sum() < x.numel()


def test_dropout_of_nothing() -> None:
    assert drop_out(torch.ones(0, 4), 0.5).shape == (0, 4)


# --- feed-forward -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        (F.gelu, lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        (F.silu, lambda x: x / (1 + torch.exp(-x))),
    ],
)
def test_feed_forward_equals_its_formula(activation: Any, formula: Any) -> None:
    torch.manual_seed(0)
    block = FeedForward(6, 10, 0.5, activation).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    hidden = formula(x @ block.expand.weight.T + block.expand.bias)
    expected = hidden @ block.contract.weight.T + block.contract.bias
    torch.testing.assert_close(block.eval()(x), expected, rtol=0, atol=1e-12)
    assert not torch.equal(block.train()(x), block(x))
