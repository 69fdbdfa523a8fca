"""Position codes: golden values, what makes them useful (shifts, uniqueness, distance), and their limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from asr.errors import UserError
from asr.models import PositionConfig, Positions, Rotary

TYPES = ["sinusoid", "fourier", "learned", "rotary", "none"]
CODED = [(kind, combine) for kind in TYPES[:3] for combine in ("add", "concatenate")]


def build_positions(kind: str, combine: str = "add", dim: int = 8, span: int = 64) -> Positions:
    torch.manual_seed(0)
    return Positions(PositionConfig(type=kind, combine=combine, span=span), dim)


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "frequencies"),
    [
        ("sinusoid", [10000 ** (-2 * i / 6) for i in range(3)]),
        ("fourier", [math.pi * k / 500 for k in (1, 2, 3)]),
    ],
)
def test_codes_equal_their_formula_far_from_the_start_too(kind: str, frequencies: list[float]) -> None:
    """Angles in float32 would be off by a thousandth at 20,000. A shift is a rotation."""
    codes_TD = build_positions(kind, dim=6, span=500).codes(20_001, torch.device("cpu")).numpy()
    for step in (0, 1, 700, 20_000):
        expected = [wave(frequency * step) for frequency in frequencies for wave in (math.sin, math.cos)]
        np.testing.assert_allclose(codes_TD[step], expected, atol=1e-6)


@pytest.mark.parametrize(("kind", "combine"), CODED)
def test_codes_are_added_or_put_beside(kind: str, combine: str) -> None:
    positions = build_positions(kind, combine)
    x_BTD = torch.randn(2, 5, 8)
    codes_TD = positions.codes(5, x_BTD.device)
    if combine == "add":
        expected = x_BTD + codes_TD
    else:
        assert positions.combine is not None
        left, right = positions.combine.weight.chunk(2, dim=1)  # of the inputs, of their codes
        expected = x_BTD @ left.T + codes_TD @ right.T + positions.combine.bias
    torch.testing.assert_close(positions(x_BTD), expected)


@pytest.mark.parametrize("kind", ["rotary", "none"])
def test_rotary_and_none_leave_the_input_alone(kind: str) -> None:
    x = torch.randn(1, 3, 8)
    assert build_positions(kind)(x) is x


@pytest.mark.parametrize(("kind", "length"), [("sinusoid", 4000), ("fourier", 2 * 2048), ("learned", 500)])
def test_no_two_steps_share_a_code(kind: str, length: int) -> None:
    span = length if kind == "learned" else 2048
    codes_TD = build_positions(kind, dim=32, span=span).codes(length, torch.device("cpu")).detach()
    distances = torch.cdist(codes_TD, codes_TD, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(torch.inf)
    assert distances.min() > 1e-3


# --- rotary -------------------------------------------------------------------------------------


def test_rotary_equals_a_complex_product() -> None:
    x_BHTK = torch.randn(2, 3, 50, 8)
    turned = Rotary(8)(x_BHTK, start=1000).double()
    pairs = torch.complex(*x_BHTK.double().chunk(2, dim=-1))
    angles = torch.arange(1000, 1050)[:, None] * 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1), rtol=0, atol=1e-5)


@given(distance=st.integers(0, 300), start=st.integers(0, 20_000), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_rotary_scores_depend_on_the_distance_alone(distance: int, start: int, seed: int) -> None:
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(seed))
    rotary = Rotary(16)
    at_zero = (rotary(query, start=0) * rotary(key, start=distance)).sum()
    moved = (rotary(query, start=start) * rotary(key, start=start + distance)).sum()
    torch.testing.assert_close(moved, at_zero, rtol=0, atol=2e-5)
    if distance:
        assert not torch.isclose(moved, (query * key).sum(), rtol=0, atol=1e-6)


# --- lengths ------------------------------------------------------------------------------------


@given(first=st.integers(1, 30), second=st.integers(1, 30), length=st.integers(1, 30))
@settings(max_examples=30)
@pytest.mark.parametrize(("kind", "combine"), CODED)
def test_a_start_continues_a_sequence(kind: str, combine: str, first: int, second: int, length: int) -> None:
    """Also after the tables had to grow, and after they were longer than needed."""
    positions = build_positions(kind, combine)
    positions(torch.zeros(1, length, 8))
    x_BTD = torch.randn(2, first + second, 8)
    parts = [positions(x_BTD[:, :first]), positions(x_BTD[:, first:], start=first)]
    torch.testing.assert_close(torch.cat(parts, dim=1), build_positions(kind, combine)(x_BTD))


def test_learned_positions_end_with_advice() -> None:
    positions = build_positions("learned", span=64)
    positions(torch.zeros(1, 64, 8))
    with pytest.raises(UserError, match="65 steps, but learned positions end at span = 64"):
        positions(torch.zeros(1, 1, 8), start=64)


@pytest.mark.parametrize("make", [lambda: build_positions("sinusoid"), lambda: Rotary(8)])
def test_tables_made_while_decoding_serve_training_and_are_not_saved(make: Any) -> None:
    tables = make()
    with torch.inference_mode():
        tables(torch.zeros(1, 1, 20, 8) if isinstance(tables, Rotary) else torch.zeros(1, 20, 8))
    x = torch.randn(1, 20, 8, requires_grad=True)
    tables(x[:, None] if isinstance(tables, Rotary) else x).square().sum().backward()
    assert x.grad is not None and not tables.state_dict()


@pytest.mark.parametrize("kind", TYPES)
def test_the_dtype_of_the_input_stays(kind: str) -> None:
    x = torch.zeros(1, 3, 8, dtype=torch.bfloat16)
    assert build_positions(kind).bfloat16()(x).dtype == torch.bfloat16
    assert Rotary(8)(x[:, None]).dtype == torch.bfloat16
