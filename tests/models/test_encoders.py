"""Encoders of each type against plain references: subsampling, recurrent layers, convolutions; what all promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoder_examples import assert_each_as_if_alone, randomize_norms
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from asr.models.encoders import (
    ENCODERS,
    Bidirectional,
    ConformerEncoderConfig,
    ConformerLayer,
    DepthwiseConvolution,
    Encoder,
    EncoderConfig,
    LSTMEncoder,
    LSTMEncoderConfig,
    Subsampling,
    SubsamplingConfig,
    build_encoder,
)
from asr.models.layers import length_mask
from asr.whisper import WhisperEncoderConfig, WhisperSizes

# All but Whisper's, whose sizes come from its weights.
KINDS = [config_type for config_type in ENCODERS if config_type is not WhisperEncoderConfig]
WHISPER = WhisperSizes(
    num_mels=80, vocab_size=9, dim=16, encoder_layers=1, encoder_heads=2, decoder_layers=1, decoder_heads=2
)
FRONTS = [
    SubsamplingConfig(factor=4, channels=4),
    SubsamplingConfig(factor=8, channels=16),  # of few channels, the middle is a matter of chance
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
    """Words have their times by `subsampling_factor`: a step is where what moves it most is."""
    late = []
    for seed in range(3):
        torch.manual_seed(seed)
        late.append(measure_lateness(build_encoder(config, 80).eval()))
    assert abs(sum(late) / len(late)) < 0.5  # frames, of 10 ms


def describe_front(config: EncoderConfig) -> str:
    front = getattr(config, "subsampling", None)
    return "own" if front is None else str(front.factor)


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
    return float((encoder.subsampling_factor * middles_N - frames).mean())


# B batch, T frames, F features, C channels, D model dimension

NUM_FEATURES, DIM = 11, 6  # an odd number of features: the last one has no neighbor
FACTORS = [1, 2, 4, 8]


def build_subsampling(factor: int) -> Subsampling:
    torch.manual_seed(0)
    return Subsampling(SubsamplingConfig(factor=factor, channels=3), NUM_FEATURES, DIM).double()


def subsample_alone(ours: Subsampling, features_TF: Tensor) -> Tensor:
    return F.layer_norm(project_alone(ours, features_TF), (DIM,), ours.norm.weight, ours.norm.bias)


def project_alone(ours: Subsampling, features_TF: Tensor) -> Tensor:
    """One utterance, step by step as the configuration describes it."""
    x_CTF = features_TF[None]
    for layer in ours.convolutions:
        x_CTF = F.conv2d(x_CTF, layer.weight, layer.bias, stride=2, padding=1).relu()
    # Of a step, frequency comes before channel.
    return x_CTF.permute(1, 2, 0).flatten(1) @ ours.project.weight.T + ours.project.bias


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("padding", [0.0, 1e4, float("nan")])
def test_each_utterance_as_if_alone(factor: int, padding: float) -> None:
    """Padding affects neither values nor gradients."""
    ours, reference = build_subsampling(factor), build_subsampling(factor)
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


@given(frame=st.integers(0, 63), factor=st.sampled_from(FACTORS))
def test_a_step_sees_its_own_frames_and_few_others(frame: int, factor: int) -> None:
    """Step t stands for frames t * factor to (t + 1) * factor; times in the encoder rest on that."""
    ours = build_subsampling(factor)
    features_BTF = torch.randn(1, 64, NUM_FEATURES, dtype=torch.float64)
    changed_BTF = features_BTF.clone()
    changed_BTF[0, frame] += 10
    lengths_B = torch.tensor([64])
    difference = ours(features_BTF, lengths_B)[0] - ours(changed_BTF, lengths_B)[0]
    changed = difference[0].abs().sum(-1).nonzero()[:, 0].tolist()
    assert changed
    assert min(changed) >= frame // factor
    assert max(changed) <= frame // factor + (0 if factor == 1 else 1)


# T steps, F features, D dimension


def build_lstm(**options: Any) -> LSTMEncoder:
    torch.manual_seed(0)
    config = LSTMEncoderConfig(**({"dim": 8, "num_layers": 3} | options))
    return LSTMEncoder(config, num_features=20).double().eval()


def encode_alone(encoder: LSTMEncoder, features_TF: Tensor) -> Tensor:
    x_TD = encoder.subsampling(features_TF[None], torch.tensor([len(features_TF)]))[0][0]
    for index, layer in enumerate(encoder.layers):
        x_TD = encoder.norms[index](as_pytorch(layer, x_TD.size(1))(x_TD)[0])
    return x_TD


def as_pytorch(layer: Bidirectional, input_dim: int) -> nn.LSTM:
    """Compare with PyTorch's bidirectional layer with the same weights."""
    theirs = nn.LSTM(input_dim, 8, batch_first=True, bidirectional=True).double()
    backwards = {f"{name}_reverse": tensor for name, tensor in layer.backwards.state_dict().items()}
    theirs.load_state_dict(layer.forwards.state_dict() | backwards)
    return theirs


def test_lstm_each_utterance_as_if_alone() -> None:
    encoder = build_lstm(subsampling={"factor": 2})
    assert_each_as_if_alone(encoder, 2, lambda features_TF: encode_alone(encoder, features_TF))


def test_signals_and_gradients_stay_of_one_size_through_the_layers() -> None:
    """A new deep stack passes its input on; otherwise training takes long to start."""
    torch.manual_seed(0)
    encoder = LSTMEncoder(LSTMEncoderConfig(dim=64, num_layers=5, dropout=0.0), num_features=40)
    encoded_BTD, _ = encoder(torch.randn(2, 200, 40), torch.tensor([200, 200]))
    assert encoded_BTD.std(1).mean() > 0.3  # over time


# B batch, T steps, D model dimension, K kernel

SIZE: dict[str, Any] = {"dim": 16, "num_layers": 2, "num_heads": 2, "feed_forward_dim": 24, "kernel": 5}


def build_layer(**options: Any) -> ConformerLayer:
    torch.manual_seed(0)
    layer = ConformerLayer(ConformerEncoderConfig(**(SIZE | options))).double().eval()
    randomize_norms(layer)
    return layer


@given(
    length=st.integers(1, 100),
    kernel=st.sampled_from([1, 3, 5, 7, 15, 31, 33, 63]),
    dim=st.integers(1, 5),
    batch=st.integers(1, 3),
)
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


def normalize(x_TD: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    centered_TD = x_TD - x_TD.mean(-1, keepdim=True)
    variance_T1 = centered_TD.square().mean(-1, keepdim=True)
    return centered_TD / (variance_T1 + 1e-5).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


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
    ours = build_layer(positions=positions)
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
