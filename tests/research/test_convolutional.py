"""The convolutional encoder against a plain reference with PyTorch's grouped convolution; how far it sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoder_examples import assert_each_as_if_alone
from torch import Tensor
from torch.nn import functional as F

from asr.research import ConvolutionalEncoder, ConvolutionalEncoderConfig

# B batch, T steps, F features, D dimension

SIZE: dict[str, Any] = {"dim": 8, "num_layers": 3, "feed_forward_dim": 12, "kernel": 5}


def build_encoder(**options: Any) -> ConvolutionalEncoder:
    torch.manual_seed(0)
    config = ConvolutionalEncoderConfig(**(SIZE | options))
    encoder = ConvolutionalEncoder(config, num_features=20).double().eval()
    for name, parameter in encoder.named_parameters():
        if "norm" in name or "bias" in name:  # fresh ones are all alike; mixing them up would not show
            torch.nn.init.normal_(parameter)
    return encoder


def encode_alone(encoder: ConvolutionalEncoder, features_TF: Tensor) -> Tensor:
    x_TD = encoder.subsampling(features_TF[None], torch.tensor([len(features_TF)]))[0][0]
    for layer in encoder.layers:
        state = layer.state_dict()
        weight_DK = state["convolution.weight_DK"]
        y_DT = F.conv1d(
            *(x_TD.T, weight_DK[:, None], state["convolution.bias_D"]),
            padding=weight_DK.size(1) // 2,
            groups=weight_DK.size(0),
        )
        y_TD = F.layer_norm(y_DT.T, y_DT.shape[:1], state["norm.weight"], state["norm.bias"])
        y_TD = F.gelu(y_TD @ state["feed_forward.expand.weight"].T + state["feed_forward.expand.bias"])
        x_TD = x_TD + y_TD @ state["feed_forward.contract.weight"].T + state["feed_forward.contract.bias"]
    return F.layer_norm(x_TD, x_TD.shape[1:], encoder.norm.weight, encoder.norm.bias)


@pytest.mark.parametrize("kernel", [1, 5, 9])
@pytest.mark.parametrize("kind", ["conv2d", "stack"])
def test_each_utterance_as_if_alone(kind: str, kernel: int) -> None:
    encoder = build_encoder(kernel=kernel, subsampling={"type": kind, "factor": 2})
    assert_each_as_if_alone(encoder, 2, lambda features_TF: encode_alone(encoder, features_TF))
