"""asr/models/encoders.py: what every type of encoder promises."""

from __future__ import annotations

import pytest
import torch

from asr.config import Config
from asr.models.encoders import ENCODERS, build_encoder
from asr.whisper.sections import WhisperEncoderConfig

# All but that of Whisper, whose sizes are those of its weights.
KINDS = [config_type for config_type in ENCODERS if config_type is not WhisperEncoderConfig]


@pytest.mark.parametrize("config_type", KINDS, ids=lambda type: type.__name__)
def test_dropout_in_training_only(config_type: type[Config]) -> None:
    encoders = []
    for dropout in (0.5, 0.0):
        torch.manual_seed(0)
        config = config_type(dim=16, num_layers=2, dropout=dropout)
        encoders.append(build_encoder(config, 20).eval())
    arguments = torch.randn(1, 30, 20), torch.tensor([30])
    (encoded_BTD, _), (without_BTD, _) = (encoder(*arguments) for encoder in encoders)
    assert torch.equal(encoded_BTD, without_BTD)
    encoders[0].train()
    assert not torch.equal(encoders[0](*arguments)[0], encoders[0](*arguments)[0])
