"""Linear layers in 8 bits, against whole numbers multiplied plainly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from asr.models import Int8Linear, is_int8_exact

# M rows, N outputs, K inputs


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def multiply_plainly(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor) -> np.ndarray:
    """In float64, of numbers from -127 to 127 with a scale for each row and each output."""
    x, weight = x_MK.double().numpy(), weight_NK.double().numpy()
    result = np.empty((len(x), len(weight)))
    for row, values in enumerate(x):
        row_scale = np.abs(values).max() / 127 or 1.0
        whole = np.floor(values / row_scale + 0.5)
        for output, weights in enumerate(weight):
            scale = np.abs(weights).max() / 127 or 1.0
            total = int(whole @ np.rint(weights / scale))
            result[row, output] = total * row_scale * scale + float(bias_N[output])
    return result


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


needs_int8 = pytest.mark.skipif(
    not is_int8_exact(), reason="sums of 8-bit products saturate without VNNI or AMX"
)


@needs_int8
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_sums_of_whole_numbers(dtype: torch.dtype, tolerance: float) -> None:
    x_MK = draw(9, 70) * torch.logspace(-3, 3, 9)[:, None]
    x_MK[4] = 0.0
    weight_NK, bias_N = draw(33, 70, seed=1), draw(33, seed=2)
    weight_NK[7] = 0.0
    found_MN = Int8Linear(weight_NK, bias_N, dtype)(x_MK)
    assert found_MN.dtype == dtype
    expected_MN = multiply_plainly(x_MK, weight_NK, bias_N)
    is_right_MN = np.abs(found_MN.double().numpy() - expected_MN) <= tolerance * np.abs(expected_MN).max(
        axis=1, keepdims=True
    )
    # In float32 a number near a half may be rounded the other way, which changes the sums of its row.
    assert is_right_MN.all(axis=1).sum() >= 8


@needs_int8
@given(st.integers(1, 12), st.integers(1, 90), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=30)
def test_close_to_float32(rows: int, inputs: int, outputs: int, seed: int) -> None:
    x_MK, weight_NK, bias_N = draw(rows, inputs, seed=seed), draw(outputs, inputs), draw(outputs, seed=1)
    found_MN, expected_MN = Int8Linear(weight_NK, bias_N)(x_MK), F.linear(x_MK, weight_NK, bias_N)
    # Each of the two factors is off by half a step of its scale at most.
    steps = x_MK.abs().amax(1, True) / 127, weight_NK.abs().amax(1) / 127
    bound_MN = steps[0] / 2 * weight_NK.abs().sum(1) + steps[1] / 2 * x_MK.abs().sum(1, True)
    bound_MN += inputs * steps[0] * steps[1] / 4
    assert ((found_MN - expected_MN).abs() <= bound_MN + 1e-4).all()


def test_company_changes_nothing() -> None:
    layer = Int8Linear(draw(48, 64, seed=1), draw(48, seed=2))
    x_BTK = draw(3, 5, 64) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    together_BTN = layer(x_BTK)
    assert together_BTN.shape == (3, 5, 48)
    for place in range(3):
        torch.testing.assert_close(layer(x_BTK[place, 2:3]), together_BTN[place, 2:3], rtol=0, atol=0)


@pytest.mark.parametrize("products", [300.0, None], ids=["wrong", "none"])
def test_a_processor_without(monkeypatch: pytest.MonkeyPatch, products: float | None) -> None:
    def forward(self: Int8Linear, x: Tensor) -> Tensor:
        if products is None:
            raise RuntimeError("not here")
        return torch.full((len(x), self.out_features), products)

    monkeypatch.setattr(Int8Linear, "forward", forward)
    assert not is_int8_exact()
