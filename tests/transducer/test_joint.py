"""asr/transducer/joint: scores and gradients in pieces against the whole, finite differences and torchaudio."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from asr.text.tokenizer import BLANK_ID
from asr.transducer import joint
from asr.transducer.joint import NodeScores, cut_pieces
from asr.transducer.lattice import LOG_ZERO, RNNT_ARCS, SumOverPaths


class Inputs(NamedTuple):
    encoded_BTJ: Tensor
    predicted_BNJ: Tensor
    weight_VJ: Tensor
    bias_V: Tensor
    tokens_BU: Tensor
    lengths_B: Tensor
    counts_B: Tensor


def make_inputs(lengths: list[int], counts: list[int], vocab_size: int, dim: int, seed: int = 0) -> Inputs:
    torch.manual_seed(seed)
    batch, num_steps, width = len(lengths), max(lengths), max(counts) + 1
    weights = [torch.randn(batch, num_steps, dim), torch.randn(batch, width, dim)]
    weights += [torch.randn(vocab_size, dim), torch.randn(vocab_size)]
    tokens_BU = torch.randint(1, vocab_size - 2, (batch, width - 1))
    learned = (weight.double().requires_grad_() for weight in weights)
    return Inputs(*learned, tokens_BU, torch.tensor(lengths), torch.tensor(counts))


def in_float32(inputs: Inputs) -> Inputs:
    return Inputs(*(part.detach().float().requires_grad_() for part in inputs[:4]), *inputs[4:])


def compute_loss(inputs: Inputs) -> Tensor:
    """(B,) of RNN-T."""
    blank_BTN, next_BTN, _ = NodeScores.apply(*inputs, 0)
    scores_ABTN = torch.stack([blank_BTN, next_BTN]).double()
    return -SumOverPaths.apply(scores_ABTN, RNNT_ARCS, inputs.lengths_B, inputs.counts_B)


def join_all(inputs: Inputs) -> Tensor:
    hidden = torch.tanh(inputs.encoded_BTJ[:, :, None] + inputs.predicted_BNJ[:, None])
    return torch.nn.functional.linear(hidden, inputs.weight_VJ, inputs.bias_V)


def test_pieces_are_all_steps_of_all_utterances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "PIECE", 30)
    pieces = [*cut_pieces([3, 0, 5], [2, 1, 0], 5)]
    assert pieces == [(0, slice(0, 2), slice(3)), (0, slice(2, 3), slice(3)), (2, slice(0, 5), slice(1))]


@pytest.mark.parametrize("piece", [1, 40, 2**20])
@pytest.mark.parametrize("num_durations", [0, 2])
def test_node_scores_are_those_of_the_whole(
    piece: int, num_durations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "PIECE", piece)
    inputs = make_inputs([4, 3, 1], [2, 0, 1], 7, 3)
    scores_BTNV = join_all(inputs)
    tokens_BTNV = scores_BTNV[..., : 7 - num_durations].log_softmax(-1)
    durations_BTNK = scores_BTNV[..., 7 - num_durations :].log_softmax(-1)
    found = NodeScores.apply(*inputs, num_durations)
    expected = [torch.full_like(part, LOG_ZERO) for part in found]
    for row, (length, count) in enumerate(
        zip(inputs.lengths_B.tolist(), inputs.counts_B.tolist(), strict=True)
    ):
        node = (row, slice(length), slice(count + 1))
        expected[0][node] = tokens_BTNV[node][..., BLANK_ID]
        expected[2][node] = durations_BTNK[node]
        for number, token in enumerate(inputs.tokens_BU[row, :count].tolist()):
            expected[1][row, :length, number] = tokens_BTNV[row, :length, number, token]
    weights = [torch.rand_like(part) * (part > LOG_ZERO / 2) for part in expected]
    gradients = []
    for parts in (found, expected):
        for part, other in zip(parts, expected, strict=True):
            torch.testing.assert_close(part, other)
        total = sum((part * weight).sum() for part, weight in zip(parts, weights, strict=True))
        gradients.append(torch.autograd.grad(total, inputs[:4]))
    for part, other in zip(*gradients, strict=True):
        torch.testing.assert_close(part, other)


def test_gradient_is_that_of_finite_differences() -> None:
    inputs = make_inputs([3, 2], [2, 1], 5, 2)
    assert torch.autograd.gradcheck(lambda *learned: compute_loss(Inputs(*learned, *inputs[4:])), inputs[:4])


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_those_of_torchaudio(seed: int) -> None:
    torchaudio = pytest.importorskip("torchaudio")
    exact = make_inputs([30, 12, 1, 25], [9, 12, 2, 0], 20, 16, seed)
    inputs = in_float32(exact)
    sizes = (part.int() for part in inputs[4:])
    expected_B = torchaudio.functional.rnnt_loss(join_all(inputs), *sizes, blank=BLANK_ID, reduction="none")
    loss_B = compute_loss(inputs)
    torch.testing.assert_close(loss_B.float(), expected_B, rtol=1e-5, atol=0)
    gradients = [torch.autograd.grad(part.sum(), inputs[:4]) for part in (loss_B, expected_B)]
    gradients.append(torch.autograd.grad(compute_loss(exact).sum(), exact[:4]))
    for own, theirs, exact in zip(*gradients, strict=True):
        largest = float(exact.abs().max())
        torch.testing.assert_close(own.double(), exact, rtol=0, atol=1e-6 * largest)
        torch.testing.assert_close(own, theirs, rtol=0, atol=5e-5 * largest)  # which are not as exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    """Only the products of matrices are rounded, and scores that float16 could not hold stay finite."""
    inputs = in_float32(make_inputs([40, 9], [10, 3], 12, 8))
    exact_B = compute_loss(inputs)
    with torch.autocast("cpu", dtype):
        loss_B = compute_loss(inputs)
    assert loss_B.dtype == torch.float64
    torch.testing.assert_close(loss_B, exact_B, rtol=0.01, atol=0)
    pairs = zip(*(torch.autograd.grad(part.sum(), inputs[:4]) for part in (loss_B, exact_B)), strict=True)
    for gradient, exact in pairs:
        assert gradient.dtype == torch.float32
        assert (gradient - exact).norm() < 0.02 * exact.norm()
