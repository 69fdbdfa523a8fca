"""The recurrent encoder, of every cell, against PyTorch's own layers run over each utterance alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoder_examples import assert_each_as_if_alone
from torch import Tensor, nn

from asr.models import Bidirectional, LSTMEncoder, LSTMEncoderConfig

# T steps, F features, D dimension

THEIRS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}


def build_encoder(**options: Any) -> LSTMEncoder:
    torch.manual_seed(0)
    config = LSTMEncoderConfig(**({"dim": 8, "num_layers": 3} | options))
    return LSTMEncoder(config, num_features=20).double().eval()


def encode_alone(encoder: LSTMEncoder, features_TF: Tensor, cell: str) -> Tensor:
    x_TD = encoder.subsampling(features_TF[None], torch.tensor([len(features_TF)]))[0][0]
    for index, layer in enumerate(encoder.layers):
        x_TD = encoder.norms[index](as_pytorch(layer, cell, x_TD.size(1))(x_TD)[0])
    return x_TD


def as_pytorch(layer: Bidirectional, cell: str, input_dim: int) -> nn.RNNBase:
    """PyTorch's own layer of both directions, with the same weights."""
    theirs = THEIRS[cell](input_dim, 8, batch_first=True, bidirectional=True).double()
    backwards = {f"{name}_reverse": tensor for name, tensor in layer.backwards.state_dict().items()}
    theirs.load_state_dict(layer.forwards.state_dict() | backwards)
    return theirs


@pytest.mark.parametrize("kind", ["conv2d", "stack"])
@pytest.mark.parametrize("cell", THEIRS)
def test_each_utterance_as_if_alone(cell: str, kind: str) -> None:
    encoder = build_encoder(cell=cell, subsampling={"type": kind, "factor": 2})
    assert_each_as_if_alone(
        encoder,
        2,
        lambda features_TF: encode_alone(encoder, features_TF, cell),
    )


@pytest.mark.parametrize("cell", THEIRS)
def test_signals_and_gradients_stay_of_one_size_through_the_layers(cell: Any) -> None:
    """At the start a deep stack passes on what it hears: else training waits long before it begins."""
    torch.manual_seed(0)
    encoder = LSTMEncoder(LSTMEncoderConfig(cell=cell, dim=64, num_layers=5, dropout=0.0), num_features=40)
    encoded_BTD, _ = encoder(torch.randn(2, 200, 40), torch.tensor([200, 200]))
    assert encoded_BTD.std(1).mean() > 0.3  # over time
