"""Subsampling: lengths, values against convolutions one utterance at a time, and padding that stays out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from asr.models import Subsampling, SubsamplingConfig

# B batch, T frames, F features, C channels, D model dimension

NUM_FEATURES, DIM = 11, 6  # an odd number of features: the last one has no neighbour
TYPES = ["conv2d", "stack"]
FACTORS = [1, 2, 4, 8]


def build_subsampling(kind: str, factor: int) -> Subsampling:
    torch.manual_seed(0)
    options = {"channels": 3} if kind == "conv2d" and factor > 1 else {}
    config = SubsamplingConfig(type=kind, factor=factor, **options)
    return Subsampling(config, NUM_FEATURES, DIM).double()


def subsample_alone(ours: Subsampling, features_TF: Tensor) -> Tensor:
    return F.layer_norm(project_alone(ours, features_TF), (DIM,), ours.norm.weight, ours.norm.bias)


def project_alone(ours: Subsampling, features_TF: Tensor) -> Tensor:
    """One utterance, step by step as the configuration describes it."""
    factor = ours.config.factor
    if ours.config.type == "stack":
        rows = [F.pad(part, (0, 0, 0, factor - len(part))) for part in features_TF.split(factor)]
        return torch.stack([part.flatten() for part in rows]) @ ours.project.weight.T + ours.project.bias
    x_CTF = features_TF[None]
    for layer in ours.convolutions:
        x_CTF = F.conv2d(x_CTF, layer.weight, layer.bias, stride=2, padding=1).relu()
    # Of a step, frequency comes before channel.
    return x_CTF.permute(1, 2, 0).flatten(1) @ ours.project.weight.T + ours.project.bias


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("padding", [0.0, 1e4, float("nan")])
def test_each_utterance_as_if_alone(kind: str, factor: int, padding: float) -> None:
    """Values and gradients, whatever stands in the padding."""
    ours, reference = build_subsampling(kind, factor), build_subsampling(kind, factor)
    lengths_B = torch.tensor([21, 16, 1, 0, 9])
    features_BTF = torch.full((5, 21, NUM_FEATURES), padding, dtype=torch.float64)
    for row, length in enumerate(lengths_B.tolist()):
        features_BTF[row, :length] = torch.randn(length, NUM_FEATURES, dtype=torch.float64)
    steps_BTD, step_lengths_B = ours(features_BTF, lengths_B)
    assert step_lengths_B.tolist() == [-(-length // factor) for length in lengths_B.tolist()]
    assert steps_BTD.shape == (5, -(-21 // factor), DIM)
    assert steps_BTD.isfinite().all()
    total = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(lengths_B.tolist()):
        if length:
            expected_TD = subsample_alone(reference, features_BTF[row, :length])
            steps_TD = steps_BTD[row, : len(expected_TD)]
            torch.testing.assert_close(steps_TD, expected_TD, rtol=0, atol=1e-12)
            total = total + steps_TD.sin().sum() - expected_TD.sin().sum()
    total.backward()  # ours minus the reference: the gradients must cancel out
    for parameter, other in zip(ours.parameters(), reference.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, -other.grad, rtol=0, atol=1e-10)


@given(frame=st.integers(0, 63), kind=st.sampled_from(TYPES), factor=st.sampled_from(FACTORS))
@settings(max_examples=40)
def test_a_step_sees_its_own_frames_and_few_others(frame: int, kind: str, factor: int) -> None:
    """Step t stands for frames t * factor to (t + 1) * factor; times in the encoder rest on that."""
    ours = build_subsampling(kind, factor)
    features_BTF = torch.randn(1, 64, NUM_FEATURES, dtype=torch.float64)
    changed_BTF = features_BTF.clone()
    changed_BTF[0, frame] += 10
    lengths_B = torch.tensor([64])
    difference = ours(features_BTF, lengths_B)[0] - ours(changed_BTF, lengths_B)[0]
    changed = difference[0].abs().sum(-1).nonzero()[:, 0].tolist()
    assert changed
    assert min(changed) >= frame // factor
    assert max(changed) <= frame // factor + (0 if kind == "stack" or factor == 1 else 1)
