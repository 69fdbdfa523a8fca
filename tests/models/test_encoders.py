"""asr/models/encoders.py: what every type of encoder promises."""

from __future__ import annotations

import pytest
import torch

from asr.models import ENCODERS, Encoder, EncoderConfig, SubsamplingConfig, build_encoder
from asr.whisper import WhisperEncoderConfig, WhisperSizes

# All but that of Whisper, whose sizes are those of its weights.
KINDS = [config_type for config_type in ENCODERS if config_type is not WhisperEncoderConfig]
WHISPER = WhisperSizes(
    num_mels=80, vocab_size=9, dim=16, encoder_layers=1, encoder_heads=2, decoder_layers=1, decoder_heads=2
)
FRONTS = [
    SubsamplingConfig(type="conv2d", factor=4, channels=4),
    SubsamplingConfig(
        type="conv2d", factor=8, channels=16
    ),  # of few channels, the middle is a matter of chance
    SubsamplingConfig(type="stack", factor=4),
]
GEOMETRIES = [kind(dim=16, num_layers=1, subsampling=front) for kind in KINDS for front in FRONTS]
GEOMETRIES.append(WhisperEncoderConfig(sizes=WHISPER))


@pytest.mark.parametrize("config_type", KINDS, ids=lambda type: type.__name__)
def test_dropout_in_training_only(config_type: type[EncoderConfig]) -> None:
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


@pytest.mark.parametrize("config", GEOMETRIES, ids=lambda config: f"{config.type}-{describe_front(config)}")
def test_an_impulse_moves_the_step_at_its_time(config: EncoderConfig) -> None:
    """Words have their times by `first_frame` and `subsampling_factor`: a step is where what moves it most is."""
    late = []
    for seed in range(3):
        torch.manual_seed(seed)
        late.append(measure_lateness(build_encoder(config, 80).eval()))
    assert abs(sum(late) / len(late)) < 0.5  # frames, of 10 ms


def describe_front(config: EncoderConfig) -> str:
    front = getattr(config, "subsampling", None)
    return "own" if front is None else f"{front.type}-{front.factor}"


def measure_lateness(encoder: Encoder) -> float:
    """Mean over impulses: how many frames after the impulse the step is that it moves most."""
    frames = torch.arange(32, 64)
    quiet_TF = torch.randn(96, 80)
    impulses_NTF = quiet_TF.repeat(len(frames), 1, 1)
    impulses_NTF[torch.arange(len(frames)), frames] += 3 * torch.randn(len(frames), 80)
    rows_BTF = torch.cat([quiet_TF[None], impulses_NTF])
    with torch.no_grad():
        encoded_BTD, _ = encoder(rows_BTF, torch.full((len(rows_BTF),), 96))
    energy_NT = (encoded_BTD[1:] - encoded_BTD[:1]).square().sum(-1)
    weights_NT = energy_NT.square()  # attention spreads a little of an impulse over all steps
    steps_T = torch.arange(energy_NT.size(1))
    middles_N = (weights_NT * steps_T).sum(1) / weights_NT.sum(1)
    return float((encoder.first_frame + encoder.subsampling_factor * middles_N - frames).mean())
