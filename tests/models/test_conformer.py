"""The Conformer layer against a plain float64 reference, its convolution against PyTorch's grouped one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from asr.models import (
    ConformerEncoderConfig,
    ConformerLayer,
    DepthwiseConvolution,
    length_mask,
)

# B batch, T steps, D model dimension, K kernel

SIZE: dict[str, Any] = {"dim": 16, "num_layers": 2, "num_heads": 2, "feed_forward_dim": 24, "kernel": 5}


def build_layer(**options: Any) -> ConformerLayer:
    torch.manual_seed(0)
    layer = ConformerLayer(ConformerEncoderConfig(**(SIZE | options))).double().eval()
    for (
        name,
        parameter,
    ) in layer.named_parameters():  # fresh norms are all alike; mixing them up would not show
        if "norm" in name:
            torch.nn.init.normal_(parameter)
    return layer


# --- depthwise convolution ----------------------------------------------------------------------


@given(
    length=st.integers(1, 100),
    kernel=st.sampled_from([1, 3, 5, 7, 15, 31, 33, 63]),
    dim=st.integers(1, 5),
    batch=st.integers(1, 3),
)
@settings(max_examples=80)
def test_depthwise_convolution_equals_a_grouped_one(length: int, kernel: int, dim: int, batch: int) -> None:
    """Forwards and backwards, in float64."""
    torch.manual_seed(0)
    ours = DepthwiseConvolution(dim, kernel).double()
    torch.nn.init.normal_(ours.bias_D)
    x_BTD = torch.randn(batch, length, dim, dtype=torch.float64, requires_grad=True)
    arguments = (x_BTD, ours.weight_DK, ours.bias_D)
    expected_BDT = F.conv1d(x_BTD.mT, ours.weight_DK[:, None], ours.bias_D, padding=kernel // 2, groups=dim)
    convolved_BTD = ours(x_BTD)
    torch.testing.assert_close(convolved_BTD, expected_BDT.mT, rtol=0, atol=1e-12)
    upstream_BTD = torch.randn_like(x_BTD)
    gradients = torch.autograd.grad(convolved_BTD, arguments, upstream_BTD)
    expected = torch.autograd.grad(expected_BDT.mT, arguments, upstream_BTD)
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-11)


def test_depthwise_convolution_in_half_precision() -> None:
    torch.manual_seed(0)
    ours = DepthwiseConvolution(8, 15)
    x_BTD = torch.randn(2, 50, 8)
    convolved_BTD = ours(x_BTD.bfloat16())
    assert convolved_BTD.dtype == torch.bfloat16
    torch.testing.assert_close(convolved_BTD.float(), ours(x_BTD), rtol=0, atol=0.03)


# --- layer --------------------------------------------------------------------------------------


def normalize(x_TD: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    centred_TD = x_TD - x_TD.mean(-1, keepdim=True)
    variance_T1 = centred_TD.square().mean(-1, keepdim=True)
    return centred_TD / (variance_T1 + 1e-5).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


def linear(x_TD: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    return x_TD @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def feed_forward(x_TD: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    hidden_TD = linear(normalize(x_TD, state, f"{name}_norm"), state, f"{name}.expand")
    return linear(hidden_TD * hidden_TD.sigmoid(), state, f"{name}.contract")


def attend_plainly(x_TD: Tensor, state: dict[str, Tensor], num_heads: int, turn: bool) -> Tensor:
    """Head by head; each pair of a query or key is a complex number that turns with its step."""
    packed = linear(normalize(x_TD, state, "attention_norm"), state, "attention.project_in")
    queries, keys, values = (part.unflatten(-1, (num_heads, -1)) for part in packed.chunk(3, dim=-1))
    width = queries.size(-1)
    frequencies = 10000.0 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    angles = torch.arange(len(x_TD))[:, None] * frequencies * turn
    turns = torch.polar(torch.ones_like(angles), angles)
    heads = []
    for head in range(num_heads):
        query, key = (torch.complex(*part[:, head].chunk(2, dim=-1)) * turns for part in (queries, keys))
        scores = (query @ key.mH).real / width**0.5
        heads.append(scores.softmax(-1) @ values[:, head])
    return linear(torch.cat(heads, dim=-1), state, "attention.project_out")


def convolve_plainly(x_TD: Tensor, state: dict[str, Tensor], kernel: int) -> Tensor:
    value, gate = linear(normalize(x_TD, state, "convolution_norm"), state, "convolution.expand").chunk(2, -1)
    gated_TD = value * gate.sigmoid()
    padded_TD = F.pad(gated_TD, (0, 0, kernel // 2, kernel // 2))
    weight_DK = state["convolution.depthwise.weight_DK"]
    taps = [padded_TD[k : k + len(x_TD)] * weight_DK[:, k] for k in range(kernel)]
    convolved_TD = sum(taps, state["convolution.depthwise.bias_D"])
    hidden_TD = normalize(convolved_TD, state, "convolution.norm")
    return linear(hidden_TD * hidden_TD.sigmoid(), state, "convolution.contract")


@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_layer_equals_a_plain_reference(positions: str) -> None:
    """Of each utterance alone, while ours runs over the padded batch."""
    ours = build_layer(positions={"type": positions})
    state = ours.state_dict()
    lengths_B = torch.tensor([40, 13, 1])
    mask_BT = length_mask(lengths_B, 40)
    x_BTD = torch.randn(3, 40, 16, dtype=torch.float64).masked_fill(~mask_BT[..., None], 100.0)
    y_BTD = ours(x_BTD, mask_BT)
    for row, length in enumerate(lengths_B.tolist()):
        x_TD = x_BTD[row, :length]
        x_TD = x_TD + 0.5 * feed_forward(x_TD, state, "first")
        x_TD = x_TD + attend_plainly(x_TD, state, SIZE["num_heads"], positions == "rotary")
        x_TD = x_TD + convolve_plainly(x_TD, state, SIZE["kernel"])
        x_TD = x_TD + 0.5 * feed_forward(x_TD, state, "second")
        # Rotary tables are kept in float32.
        torch.testing.assert_close(
            y_BTD[row, :length],
            normalize(x_TD, state, "norm"),
            rtol=0,
            atol=1e-6 if positions == "rotary" else 1e-12,
        )


def test_window_limits_what_a_step_sees() -> None:
    """One layer sees as far as its window and then half a kernel."""
    ours = build_layer(window=(6, 4), kernel=5)
    x_BTD = torch.randn(1, 60, 16, dtype=torch.float64)
    changed_BTD = x_BTD.clone()
    changed_BTD[0, 30, 0] += 1  # of all channels, LayerNorm would take it off again
    mask_BT = torch.ones(1, 60, dtype=torch.bool)
    changed = (ours(x_BTD, mask_BT) - ours(changed_BTD, mask_BT))[0].abs().sum(-1).nonzero()[:, 0]
    assert changed.tolist() == list(range(30 - 4 - 2, 30 + 6 + 2 + 1))


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel = 6"):
        ConformerEncoderConfig(kernel=6)


def test_the_convolution_of_other_devices_keeps_the_precision() -> None:
    x_BTD = torch.zeros(2, 9, 4, dtype=torch.bfloat16, device="meta")
    assert DepthwiseConvolution(4, 3).to("meta")(x_BTD).dtype == torch.bfloat16
