"""Intra-attention compared with a float64 loop over the equations; all steps at once and step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from encoder_examples import assert_each_as_if_alone
from hypothesis import given, settings, strategies as st
from test_recurrent_decoder import run_lstmn
from torch import Tensor

from asr.research.intra_attention import (
    IntraAttention,
    IntraAttentionCell,
    IntraAttentionEncoder,
    IntraAttentionEncoderConfig,
    IntraAttentionState,
)

# B batch, T steps, F features, D dimension

DIM, INPUT_DIM = 5, 3


def build_layer() -> IntraAttention:
    torch.manual_seed(0)
    layer = IntraAttention(INPUT_DIM, DIM).double()
    for parameter in layer.parameters():  # large enough to move the gates and make attention uneven
        torch.nn.init.normal_(parameter)
    return layer


def random_inputs(batch: int, length: int) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, INPUT_DIM, dtype=torch.float64, generator=random)


@torch.no_grad()
def run_plainly(cell: IntraAttentionCell, x_TD: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden and cell states of one sequence by the equations of the paper, one vector at a time."""
    weights = {f"cell.{name}": part.numpy() for name, part in cell.state_dict().items()}
    past: list[tuple[np.ndarray, np.ndarray]] = []
    summary = np.zeros(DIM)
    for x_D in x_TD.numpy():
        state, summary = run_lstmn(weights, "cell", x_D, past, summary)
        past.append(state)
    hidden_TD, cell_TD = (torch.from_numpy(np.stack(part)) for part in zip(*past, strict=True))
    return hidden_TD, cell_TD


def run_by_steps(cell: IntraAttentionCell, x_BTD: Tensor) -> tuple[Tensor, IntraAttentionState]:
    tape = IntraAttentionState()
    hidden = [cell(x_BD, tape) for x_BD in x_BTD.unbind(1)]
    return torch.stack(hidden, dim=1), tape


@pytest.mark.parametrize("is_training", [True, False])
def test_both_implementations_equal_a_plain_loop(is_training: bool) -> None:
    """The implementations compute all steps at once, and step by step on a growing tape."""
    layer, x_BTD = build_layer(), random_inputs(2, 40)
    with torch.set_grad_enabled(is_training):
        at_once_BTD, _ = layer(x_BTD)
        by_steps_BTD, tape = run_by_steps(layer.cell, x_BTD)
    for row, x_TD in enumerate(x_BTD):
        hidden_TD, cell_TD = run_plainly(layer.cell, x_TD)
        for ours_TD in (at_once_BTD[row], by_steps_BTD[row]):
            torch.testing.assert_close(ours_TD, hidden_TD, rtol=0, atol=1e-12)
        states_TD = tape.read()[1][row]
        torch.testing.assert_close(states_TD, torch.cat([hidden_TD, cell_TD], dim=-1), rtol=0, atol=1e-12)


@given(batch=st.integers(1, 3), length=st.integers(1, 9))
@settings(max_examples=25)
def test_gradients_equal_those_step_by_step(batch: int, length: int) -> None:
    """The backward pass is written by hand; for single steps PyTorch derives it."""
    layer, x_BTD = build_layer(), random_inputs(batch, length).requires_grad_()
    upstream_BTD = torch.randn(batch, length, DIM, dtype=torch.float64)
    arguments = (x_BTD, *layer.parameters())
    gradients = torch.autograd.grad(layer(x_BTD)[0], arguments, upstream_BTD)
    by_steps_BTD, _ = run_by_steps(layer.cell, x_BTD)
    expected = torch.autograd.grad(
        by_steps_BTD, arguments, upstream_BTD, allow_unused=True, materialize_grads=True
    )
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)


def build_encoder(**options: Any) -> IntraAttentionEncoder:
    torch.manual_seed(0)
    config = IntraAttentionEncoderConfig(**({"dim": DIM, "num_layers": 2} | options))
    return IntraAttentionEncoder(config, num_features=20).double().eval()


def test_each_utterance_as_if_alone() -> None:
    encoder = build_encoder(subsampling={"factor": 2})

    def encode_alone(features_TF: Tensor) -> Tensor:
        x_TD = encoder.subsampling(features_TF[None], torch.tensor([len(features_TF)]))[0][0]
        for layer, norm in zip(encoder.layers, encoder.norms, strict=True):
            forwards_TD, _ = run_plainly(layer.forwards.cell, x_TD)
            backwards_TD, _ = run_plainly(layer.backwards.cell, x_TD.flip(0))
            x_TD = norm(torch.cat([forwards_TD, backwards_TD.flip(0)], dim=-1))
        return x_TD

    assert_each_as_if_alone(encoder, 2, encode_alone)
