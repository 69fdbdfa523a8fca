"""The time-delay encoder: padding changes nothing, and each step sees as far as the config says."""

from __future__ import annotations

import torch
from encoder_examples import assert_each_as_if_alone

from asr.research.tdnn import TDNNEncoder, TDNNEncoderConfig

# B batch, T steps, F features, D dimension


def build_encoder(factor: int) -> TDNNEncoder:
    torch.manual_seed(0)
    config = TDNNEncoderConfig.model_validate({"dim": 8, "num_layers": 3, "subsampling": {"factor": factor}})
    return TDNNEncoder(config, num_features=20).double().eval()


def test_each_utterance_as_if_alone() -> None:
    encoder = build_encoder(factor=2)
    assert_each_as_if_alone(encoder, 2, lambda x_TF: encoder(x_TF[None], torch.tensor([len(x_TF)]))[0][0])


def test_a_step_sees_seven_steps_to_each_side() -> None:
    features_BTF = torch.randn(1, 41, 20, dtype=torch.float64, requires_grad=True)
    encoded_BTD, _ = build_encoder(factor=1)(features_BTF, torch.tensor([41]))
    (gradient_BTF,) = torch.autograd.grad(encoded_BTD[0, 20].square().sum(), features_BTF)
    seen = gradient_BTF[0].abs().sum(-1).nonzero()[:, 0].tolist()
    assert seen == list(range(13, 28))
