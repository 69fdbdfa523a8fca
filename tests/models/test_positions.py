"""Position codes: golden values, what makes them useful (shifts, uniqueness, distance), and their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asr.errors import UserError
from asr.models import PositionConfig, Positions, Rotary, fourier_codes, sinusoid_codes

TYPES = ["sinusoid", "fourier", "learned", "rotary", "none"]
CODED = [(kind, combine) for kind in TYPES[:3] for combine in ("add", "concatenate")]


def build_positions(kind: str, combine: str = "add", dim: int = 8, span: int = 64) -> Positions:
    torch.manual_seed(0)
    options = {"span": span} if kind in ("fourier", "learned") else {}
    return Positions(PositionConfig(type=kind, combine=combine, **options), dim)


# --- values -------------------------------------------------------------------------------------


def test_sinusoid_equals_its_formula() -> None:
    codes = sinusoid_codes(torch.tensor([0, 1, 10_000]), 6).numpy()
    for row, step in enumerate([0, 1, 10_000]):
        for i in range(3):
            angle = step / 10000 ** (2 * i / 6)
            np.testing.assert_allclose(codes[row, 2 * i], math.sin(angle), atol=1e-9)
            np.testing.assert_allclose(codes[row, 2 * i + 1], math.cos(angle), atol=1e-9)


def test_fourier_equals_its_formula() -> None:
    codes = fourier_codes(torch.tensor([0, 1, 700]), 6, span=500).numpy()
    for row, step in enumerate([0, 1, 700]):
        for k in (1, 2, 3):
            angle = math.pi * k * step / 500
            np.testing.assert_allclose(codes[row, 2 * k - 2], math.sin(angle), atol=1e-9)
            np.testing.assert_allclose(codes[row, 2 * k - 1], math.cos(angle), atol=1e-9)


def test_codes_in_float32_are_exact_far_from_the_start() -> None:
    """Angles in float32 would be off by a thousandth there."""
    x = torch.zeros(1, 1, 8)
    code = build_positions("sinusoid")(x, start=20_000)[0, 0]
    expected = [f(20_000 / 10000 ** (2 * i / 8)) for i in range(4) for f in (math.sin, math.cos)]
    np.testing.assert_allclose(code.numpy(), expected, atol=1e-6)


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


# --- what codes are for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "codes_TD",
    [
        sinusoid_codes(torch.arange(4000), 32),
        fourier_codes(torch.arange(2 * 2048), 32, span=2048),
        build_positions("learned", dim=32, span=500).codes(500, torch.device("cpu")).detach().double(),
    ],
    ids=TYPES[:3],
)
def test_no_two_steps_share_a_code(codes_TD: Tensor) -> None:
    distances = torch.cdist(codes_TD, codes_TD)
    distances.fill_diagonal_(torch.inf)
    assert distances.min() > 1e-3


DIM, SPAN = 8, 100
SINUSOID_FREQUENCIES = [10000 ** (-2 * i / DIM) for i in range(DIM // 2)]
FOURIER_FREQUENCIES = [math.pi * k / SPAN for k in range(1, DIM // 2 + 1)]


@given(start=st.integers(0, 5000), distance=st.integers(0, 5000), is_fourier=st.booleans())
@settings(max_examples=40)
def test_a_shift_is_a_rotation_that_does_not_depend_on_the_step(
    start: int, distance: int, is_fourier: bool
) -> None:
    steps = torch.arange(start, start + 20)
    if is_fourier:
        frequencies = FOURIER_FREQUENCIES
        before, after = (fourier_codes(s, DIM, SPAN) for s in (steps, steps + distance))
    else:
        frequencies = SINUSOID_FREQUENCIES
        before, after = (sinusoid_codes(s, DIM) for s in (steps, steps + distance))
    rotations = [
        [[math.cos(f * distance), math.sin(f * distance)], [-math.sin(f * distance), math.cos(f * distance)]]
        for f in frequencies
    ]
    rotation = torch.block_diag(*(torch.tensor(r, dtype=torch.float64) for r in rotations))
    torch.testing.assert_close(before @ rotation.T, after, rtol=0, atol=1e-8)


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
    with pytest.raises(
        UserError, match="65 steps, but learned positions end at span = 64; cut the recording"
    ):
        positions(torch.zeros(1, 1, 8), start=64)


@pytest.mark.parametrize(("kind", "combine"), CODED)
def test_tables_made_while_decoding_serve_training(kind: str, combine: str) -> None:
    positions = build_positions(kind, combine)
    with torch.inference_mode():
        positions(torch.zeros(1, 20, 8))
    x = torch.randn(1, 20, 8, requires_grad=True)
    positions(x).square().sum().backward()
    assert x.grad is not None


def test_rotary_tables_made_while_decoding_serve_training() -> None:
    rotary = Rotary(8)
    with torch.inference_mode():
        rotary(torch.zeros(1, 1, 20, 8))
    x = torch.randn(1, 1, 20, 8, requires_grad=True)
    rotary(x).square().sum().backward()
    assert x.grad is not None


def test_tables_are_no_part_of_a_checkpoint() -> None:
    positions, rotary = build_positions("sinusoid"), Rotary(8)
    positions(torch.zeros(1, 20, 8))
    rotary(torch.zeros(1, 1, 20, 8))
    assert not positions.state_dict()
    assert not rotary.state_dict()


@pytest.mark.parametrize("kind", TYPES)
def test_the_dtype_of_the_input_stays(kind: str) -> None:
    x = torch.zeros(1, 3, 8, dtype=torch.bfloat16)
    assert build_positions(kind).bfloat16()(x).dtype == torch.bfloat16
    assert Rotary(8)(x[:, None]).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["rotary", "none"])
def test_config_refuses_to_concatenate_nothing(kind: str) -> None:
    with pytest.raises(ValueError, match="combine = concatenate does nothing without type = sinusoid"):
        PositionConfig(type=kind, combine="concatenate")
