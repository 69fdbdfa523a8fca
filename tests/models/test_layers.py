"""Layers: dropout, feed-forward, attention and positions against formulas in float64 and PyTorch's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from asr.models import layers
from asr.models.layers import (
    CrossAttention,
    KeyValueCache,
    Positions,
    Rotary,
    attend,
    attention_weights,
    drop_out,
    length_mask,
)


def test_length_mask() -> None:
    expected = [[False, False, False], [True, False, False], [True, True, True], [True, True, True]]
    assert length_mask(torch.tensor([0, 1, 3, 5]), 3).tolist() == expected


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
    """Elements share a 64-bit draw: all patterns of eight neighbors must be as frequent as by chance."""
    torch.manual_seed(0)
    kept = (drop_out(torch.ones(400_000), 0.5) != 0).view(-1, 8)
    patterns = (kept.long() << torch.arange(8)).sum(1).bincount(minlength=256).double()
    expected = len(kept) / 256
    chi_square = ((patterns - expected) ** 2 / expected).sum().item()
    assert chi_square < 350  # exceeded by chance once in 10,000 times at 255 degrees of freedom


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


# B batch, T query steps, S key steps, H heads, K head dimension, D model dimension

DIM, HEADS = 24, 4
LENGTHS = torch.tensor([9, 5, 1])


def plain_attention(queries: Tensor, keys: Tensor, values: Tensor, may_see: Tensor) -> Tensor:
    """The formula, for each head of (B, H, T, K)."""
    scores = queries @ keys.transpose(-1, -2) / queries.size(-1) ** 0.5
    exponents = scores.exp() * may_see
    return exponents / exponents.sum(-1, keepdim=True) @ values


def random_heads(num_steps: int, *, batch: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys and values, (B, H, T, K)."""
    random = torch.Generator().manual_seed(0)
    return [torch.randn(batch, HEADS, num_steps, 6, generator=random, dtype=dtype) for _ in range(3)]


def test_cross_attention_and_its_weights_equal_torch() -> None:
    torch.manual_seed(0)
    ours = CrossAttention(DIM, HEADS, memory_dim=10).double().eval()
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True, kdim=10, vdim=10).double().eval()
    theirs.q_proj_weight.data = ours.project_queries.weight.data
    theirs.k_proj_weight.data, theirs.v_proj_weight.data = ours.project_memory.weight.data.chunk(2)
    theirs.in_proj_bias.data = torch.cat([ours.project_queries.bias.data, ours.project_memory.bias.data])
    theirs.out_proj.load_state_dict(ours.project_out.state_dict())
    x_BTD = torch.randn(3, 4, DIM, dtype=torch.float64)
    encoded_BSD = torch.randn(3, 9, 10, dtype=torch.float64)
    mask_BS = length_mask(LENGTHS, 9)
    expected, weights_BHTS = theirs(
        x_BTD, encoded_BSD, encoded_BSD, key_padding_mask=~mask_BS, average_attn_weights=False
    )
    attended, weights = ours(x_BTD, ours.precompute_kv(encoded_BSD, mask_BS), weights_of=(3, 1))
    torch.testing.assert_close(attended, expected, rtol=0, atol=1e-12)
    assert weights is not None
    torch.testing.assert_close(weights, weights_BHTS[:, [3, 1]].float(), rtol=0, atol=1e-6)
    assert (weights.masked_select(~mask_BS[:, None, None]) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_training", [False, True])
def test_attend_equals_the_formula(dtype: torch.dtype, is_training: bool) -> None:
    """On a CPU, gradients in half precision use a different path."""
    mask = length_mask(torch.tensor([7, 3]), 7)[:, None, None]
    heads = random_heads(7)
    exact = [part.clone().requires_grad_() for part in heads]
    expected = plain_attention(*exact, mask)
    expected.sin().sum().backward()
    ours = [part.to(dtype).requires_grad_() for part in heads]
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 0.05}[dtype]
    with torch.set_grad_enabled(is_training):
        attended = attend(*ours, mask)
    assert attended.dtype == dtype
    torch.testing.assert_close(attended.double(), expected, rtol=0, atol=tolerance)
    if is_training:
        attended.sin().sum().backward()
        for part, exact_part in zip(ours, exact, strict=True):
            assert part.grad is not None
            torch.testing.assert_close(part.grad.double(), exact_part.grad, rtol=0, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_scores", [1, 60, 10**6])
def test_attend_in_blocks_of_queries(
    monkeypatch: pytest.MonkeyPatch, causal: bool, block_scores: int
) -> None:
    """As in bfloat16 on a CPU: of one query, a few, or all at once."""
    monkeypatch.setattr(layers, "has_any", lambda instructions: False)
    monkeypatch.setattr(layers, "BLOCK_SCORES", block_scores)
    mask = length_mask(torch.tensor([7, 3]), 7)[:, None, None]
    mask = mask & torch.ones(7, 7, dtype=torch.bool).tril() if causal else mask
    heads = random_heads(7)
    with torch.no_grad():
        attended = attend(*(part.bfloat16() for part in heads), mask)
    assert attended.dtype == torch.bfloat16
    torch.testing.assert_close(attended.double(), plain_attention(*heads, mask), rtol=0, atol=0.05)


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("num_queries", [1, 7])
@pytest.mark.parametrize("first", [0, 4, 7])
def test_attend_with_a_bias(first: int, num_queries: int, amx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last keys, in bfloat16 on a CPU: without AMX, scores without a bias are left as they are."""
    monkeypatch.setattr(layers, "has_any", lambda instructions: amx)
    queries, keys, values = (part.bfloat16() for part in random_heads(7))
    bias_B11S = torch.zeros(len(keys), 1, 1, 7)
    bias_B11S[1, ..., first:] = 2.0
    with torch.no_grad():
        attended = attend(queries[:, :, :num_queries], keys, values, bias_B11S)
    scores = queries[:, :, :num_queries].double() @ keys.double().mT / keys.size(-1) ** 0.5
    expected = (scores + bias_B11S).softmax(-1) @ values.double()
    torch.testing.assert_close(attended.double(), expected, rtol=0, atol=0.05)


def test_a_step_with_a_cache_attends_to_what_is_in_it() -> None:
    """In bfloat16 on a CPU: the room behind the keys, whatever it holds, is as if it were not there."""
    torch.manual_seed(0)
    room = torch.full((2, 3, HEADS, 40, 6), torch.nan, dtype=torch.bfloat16)
    with torch.no_grad():
        for length in range(1, 40):
            room[:, :, :, length - 1] = torch.randn(2, 3, HEADS, 6)
            queries, (keys, values) = torch.randn(3, HEADS, 1, 6).bfloat16(), room[:, :, :, :length]
            exact = (part.double() for part in (queries, keys, values))
            expected = plain_attention(*exact, torch.ones(length))
            attended = attend(queries, keys, values, None)
            torch.testing.assert_close(attended.double(), expected, rtol=0, atol=0.05)


class ProductShapes(TorchDispatchMode):
    """Notes the shapes of the products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[torch.Size, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bmm.default:
            self.shapes.add(tuple(part.shape for part in args))
        return func(*args, **(kwargs or {}))


def test_steps_have_no_products_of_many_shapes() -> None:
    """In bfloat16 on a CPU, where PyTorch compiles and keeps a kernel for each shape."""
    cache = KeyValueCache()
    with torch.no_grad(), ProductShapes() as products:
        for _ in range(64):
            new = torch.randn(2, HEADS, 1, 6).bfloat16()
            attend(new, *cache.append(new, new), None)
    assert not products.shapes


def attend_in_window(
    queries: Tensor, keys: Tensor, values: Tensor, window: tuple[int, int], mask_BT: Tensor
) -> Tensor:
    mask = layers._self_attention_mask(mask_BT, queries, keys, False, window)
    return attend(queries, keys, values, mask)


@given(
    length=st.integers(1, 90),
    left=st.integers(0, 40),
    right=st.integers(0, 40),
    shortest=st.integers(1, 90),
    data=st.data(),
)
def test_window_attention_equals_a_band_mask(
    length: int, left: int, right: int, shortest: int, data: st.DataObject
) -> None:
    queries, keys, values = random_heads(length)
    mask_BT = length_mask(torch.tensor([length, min(shortest, length)]), length)
    distance_TS = torch.arange(length) - torch.arange(length)[:, None]
    band_TS = (distance_TS >= -left) & (distance_TS <= right)
    may_see = band_TS & mask_BT[:, None, None, :]
    is_real_BT = mask_BT & may_see.any(-1)[:, 0]
    windowed = attend_in_window(queries, keys, values, (left, right), mask_BT)
    expected = plain_attention(queries, keys, values, may_see)
    assert windowed.isfinite().all()
    torch.testing.assert_close(
        windowed.transpose(1, 2)[is_real_BT], expected.transpose(1, 2)[is_real_BT], rtol=0, atol=1e-12
    )
    # What lies outside the window of a step never reaches it, be it ever so large.
    step = data.draw(st.integers(0, length - 1))
    keys[:, :, ~band_TS[step]] = 1e6
    values[:, :, ~band_TS[step]] = 1e6
    again = attend_in_window(queries, keys, values, (left, right), mask_BT)
    torch.testing.assert_close(
        again[:, :, step][is_real_BT[:, step]], windowed[:, :, step][is_real_BT[:, step]], rtol=0, atol=1e-12
    )


def test_weights_are_in_float32_under_autocast() -> None:
    queries, keys, _ = random_heads(50, dtype=torch.float32)
    exact = attention_weights(queries, keys, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = attention_weights(queries, keys, None)
    assert weights.dtype == torch.float32
    assert torch.equal(weights, exact)


def test_codes_equal_their_formula_far_from_the_start_too() -> None:
    """Angles in float32 would be off by a thousandth at 20,000."""
    codes_TD = Positions(6).codes(20_001, torch.device("cpu")).numpy()
    for step in (0, 1, 700, 20_000):
        angles = [10000 ** (-2 * i / 6) * step for i in range(3)]
        expected = [wave(angle) for angle in angles for wave in (math.sin, math.cos)]
        np.testing.assert_allclose(codes_TD[step], expected, atol=1e-6)
    x_BTD = torch.randn(2, 5, 6)
    assert torch.equal(Positions(6)(x_BTD), x_BTD + torch.from_numpy(codes_TD[:5]))


def test_rotary_equals_a_complex_product() -> None:
    x_BHTK = torch.randn(2, 3, 50, 8)
    turned = Rotary(8)(x_BHTK, start=1000).double()
    pairs = torch.complex(*x_BHTK.double().chunk(2, dim=-1))
    angles = torch.arange(1000, 1050)[:, None] * 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1), rtol=0, atol=1e-5)


@given(first=st.integers(1, 30), second=st.integers(1, 30), length=st.integers(1, 30))
def test_a_start_continues_a_sequence(first: int, second: int, length: int) -> None:
    """Also after the tables had to grow, and after they were longer than needed."""
    positions = Positions(8)
    positions(torch.zeros(1, length, 8))
    x_BTD = torch.randn(2, first + second, 8)
    parts = [positions(x_BTD[:, :first]), positions(x_BTD[:, first:], start=first)]
    torch.testing.assert_close(torch.cat(parts, dim=1), Positions(8)(x_BTD))


@pytest.mark.parametrize("make", [lambda: Positions(8), lambda: Rotary(8)])
def test_tables_made_while_decoding_serve_training_and_are_not_saved(make: Any) -> None:
    tables = make()
    with torch.inference_mode():
        tables(torch.zeros(1, 1, 20, 8) if isinstance(tables, Rotary) else torch.zeros(1, 20, 8))
    x = torch.randn(1, 20, 8, requires_grad=True)
    tables(x[:, None] if isinstance(tables, Rotary) else x).square().sum().backward()
    assert x.grad is not None and not tables.state_dict()


def test_the_dtype_of_the_input_stays() -> None:
    x = torch.zeros(1, 3, 8, dtype=torch.bfloat16)
    assert Positions(8).bfloat16()(x).dtype == torch.bfloat16
    assert Rotary(8)(x[:, None]).dtype == torch.bfloat16
