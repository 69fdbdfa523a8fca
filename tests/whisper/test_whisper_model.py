"""The network, compared with Whisper's equations written out plainly in float64."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from whisper_examples import SIZES, VOCAB_SIZE, VOCABULARY, make_weights
from whisper_systems import build_system

from asr.errors import UserError
from asr.models.precision import Int8Linear, is_int8_exact
from asr.models.speech_model import SpeechModel
from asr.whisper import (
    SILENCES,
    Bf16Linear,
    Silence,
    SpecialTokens,
    Windows,
    build_sizes,
    make_system,
    quantize,
)

WEIGHTS = make_weights()
CONFIG = build_sizes({**SIZES, "n_vocab": VOCAB_SIZE}, "the test")
ORDER = SpecialTokens(VOCAB_SIZE).order()  # their id of each of ours


def build_model() -> SpeechModel:
    weights = {name: weight.clone() for name, weight in WEIGHTS.items()}
    return make_system(Path("the test"), CONFIG, VOCABULARY, weights).model


MODEL = build_model()

# --- Whisper, written plainly, of one utterance -----------------------------------------------------


def norm(x_TD: Tensor, name: str) -> Tensor:
    x_TD = x_TD - x_TD.mean(-1, keepdim=True)
    x_TD = x_TD / (x_TD.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return x_TD * WEIGHTS[f"{name}.weight"].double() + WEIGHTS[f"{name}.bias"].double()


def linear(x_TD: Tensor, name: str) -> Tensor:
    y_TD = x_TD @ WEIGHTS[f"{name}.weight"].double().T
    return y_TD + WEIGHTS[f"{name}.bias"].double() if f"{name}.bias" in WEIGHTS else y_TD


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def attention(x_TD: Tensor, memory_SD: Tensor, name: str, num_heads: int, causal: bool) -> Tensor:
    queries, keys, values = (
        linear(x_TD, f"{name}.query"),
        linear(memory_SD, f"{name}.key"),
        linear(memory_SD, f"{name}.value"),
    )
    size = x_TD.size(1) // num_heads
    heads = []
    for head in range(num_heads):
        part = slice(head * size, (head + 1) * size)
        scores_TS = queries[:, part] @ keys[:, part].T / math.sqrt(size)
        if causal:
            later = torch.ones_like(scores_TS).triu(1).bool()
            scores_TS = scores_TS.masked_fill(later, -math.inf)
        heads.append(scores_TS.softmax(-1) @ values[:, part])
    return linear(torch.cat(heads, dim=1), f"{name}.out")


def block(x_TD: Tensor, name: str, num_heads: int, memory_SD: Tensor | None = None) -> Tensor:
    normed = norm(x_TD, f"{name}.attn_ln")
    x_TD = x_TD + attention(normed, normed, f"{name}.attn", num_heads, causal=memory_SD is not None)
    if memory_SD is not None:
        normed = norm(x_TD, f"{name}.cross_attn_ln")
        x_TD = x_TD + attention(normed, memory_SD, f"{name}.cross_attn", num_heads, causal=False)
    return x_TD + linear(gelu(linear(norm(x_TD, f"{name}.mlp_ln"), f"{name}.mlp.0")), f"{name}.mlp.2")


def encode(features_TF: Tensor) -> Tensor:
    x = features_TF.double().T[None]
    for name, stride in (("encoder.conv1", 1), ("encoder.conv2", 2)):
        parts = (WEIGHTS[f"{name}.{part}"].double() for part in ("weight", "bias"))
        x = gelu(F.conv1d(x, *parts, stride=stride, padding=1))
    x_TD = x[0].T
    x_TD = x_TD + WEIGHTS["encoder.positional_embedding"][: len(x_TD)].double()
    for index in range(SIZES["n_audio_layer"]):
        x_TD = block(x_TD, f"encoder.blocks.{index}", SIZES["n_audio_head"])
    return norm(x_TD, "encoder.ln_post")


def score(tokens_U: Tensor, encoded_TD: Tensor) -> Tensor:
    embedding_VD = WEIGHTS["decoder.token_embedding.weight"].double()[ORDER]
    x_UD = embedding_VD[tokens_U] + WEIGHTS["decoder.positional_embedding"][: len(tokens_U)].double()
    for index in range(SIZES["n_text_layer"]):
        x_UD = block(x_UD, f"decoder.blocks.{index}", SIZES["n_text_head"], encoded_TD)
    return norm(x_UD, "decoder.ln") @ embedding_VD.T


# --- tests ------------------------------------------------------------------------------------------


def make_batch(*lengths: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features padded with noise, their lengths, and tokens."""
    random = torch.Generator().manual_seed(0)
    features_BTF = torch.randn(len(lengths), max(lengths), 80, generator=random)
    tokens_BU = torch.randint(VOCAB_SIZE, (len(lengths), 6), generator=random)
    return features_BTF, torch.tensor(lengths), tokens_BU


@pytest.mark.parametrize("lengths", [(60, 60), (60, 31, 1, 44)])
@torch.inference_mode()
def test_encoder_and_decoder(lengths: tuple[int, ...]) -> None:
    """Each utterance of a batch is computed as if it were alone, whatever its padding contains."""
    features_BTF, lengths_B, tokens_BU = make_batch(*lengths)
    encoded_BTD, steps_B = MODEL.encode(features_BTF, lengths_B)
    scores_BUV, _ = MODEL.decoder(tokens_BU, encoded_BTD, steps_B)
    assert steps_B.tolist() == [(length + 1) // 2 for length in lengths]
    for row, length in enumerate(lengths):
        expected_TD = encode(features_BTF[row, :length])
        torch.testing.assert_close(
            encoded_BTD[row, : steps_B[row]].double(), expected_TD, atol=1e-4, rtol=1e-4
        )
        expected_UV = score(tokens_BU[row], expected_TD)
        torch.testing.assert_close(scores_BUV[row].double(), expected_UV, atol=1e-3, rtol=1e-3)


@torch.inference_mode()
def test_few_steps_of_silence() -> None:
    """If no step stands for others, the result is that of features padded with silence."""
    features_BTF, _, tokens_BU = make_batch(60, 60)
    features_BTF[:, 50:] = -0.5
    silent_BTF = features_BTF[:, -1:].expand(-1, 2 * CONFIG.max_steps - 60, -1)
    expected_BTD, *_ = MODEL.encode(torch.cat([features_BTF, silent_BTF], dim=1), torch.full((2,), 3000))
    encoded_BTD, bias_BT = MODEL.encoder.encode_with_silence(features_BTF, 1)
    # The last step is at the end of the window, which is no silence to a convolution.
    torch.testing.assert_close(encoded_BTD[:, :-1], expected_BTD[:, :-1], atol=1e-3, rtol=1e-3)
    assert encoded_BTD.size(1) == 1500 and not bias_BT.any()
    encoded_BTD, bias_BT = MODEL.encoder.encode_with_silence(features_BTF, 16)
    assert encoded_BTD.size(1) == bias_BT.size(1) < 150
    torch.testing.assert_close(bias_BT.exp().sum(1), torch.full((2,), 1500.0))
    state = MODEL.decoder.start(encoded_BTD, torch.full((2,), 1500), bias_BT)
    scores_BUV, _ = MODEL.decoder.step(tokens_BU, state)
    expected_BUV, _ = MODEL.decoder(tokens_BU, expected_BTD, torch.full((2,), 1500))
    assert (scores_BUV - expected_BUV).square().mean() < 0.1**2 * expected_BUV.var()


@torch.inference_mode()
def test_windows_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU encodes at most 30 seconds at once."""
    windows, calls = Windows.of(build_system(False)), []
    audio_BS, lengths_B = torch.randn(3, 6400), torch.full((3,), 6400)
    expected, whole = windows.encode(audio_BS, lengths_B), windows.model.encoder.forward
    monkeypatch.setattr(
        windows.model.encoder, "forward", lambda *part: calls.append(len(part[0])) or whole(*part)
    )
    monkeypatch.setattr("asr.whisper.windows.MAX_STEPS", 40)
    found = windows.encode(audio_BS, lengths_B)
    assert calls == [2, 1] and torch.equal(found.lengths_B, expected.lengths_B)
    torch.testing.assert_close(found.encoded_BTD, expected.encoded_BTD, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not is_int8_exact(), reason="this processor has no instructions for 8 bits")
@pytest.mark.parametrize("has_amx", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_quantized(dtype: torch.dtype, has_amx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of scores is small compared with their spread, at once and step by step."""
    monkeypatch.setattr("asr.whisper.encoder_decoder.has_any", lambda instructions: has_amx)
    model = build_model()
    quantize(model, dtype)
    linears = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    counts = Counter(type(module) for module in model.modules())
    bf16 = 4 * SIZES["n_audio_layer"] + SIZES["n_text_layer"] if has_amx and dtype == torch.bfloat16 else 0
    assert not linears and counts[Bf16Linear] == bf16
    assert counts[Int8Linear] == 4 * SIZES["n_audio_layer"] + 7 * SIZES["n_text_layer"] + 1 - bf16
    features_BTF, lengths_B, tokens_BU = make_batch(60, 60)
    encoded_BTD, steps_B = model.encode(features_BTF, lengths_B)
    expected_BTD, *_ = MODEL.encode(features_BTF, lengths_B)
    assert encoded_BTD.dtype == torch.float32
    assert (encoded_BTD - expected_BTD).square().mean() < 0.05**2 * expected_BTD.var()
    scores_BUV, _ = model.decoder(tokens_BU, encoded_BTD, steps_B)
    expected_BUV, _ = MODEL.decoder(tokens_BU, expected_BTD, steps_B)
    assert scores_BUV.dtype == torch.float32
    assert (scores_BUV - expected_BUV).square().mean() < 0.05**2 * expected_BUV.var()
    state = model.decoder.start(encoded_BTD, steps_B)
    assert state.memories[0].keys_BHSK.dtype == dtype
    for place in range(tokens_BU.size(1)):
        scores_B1V, _ = model.decoder.step(tokens_BU[:, place : place + 1], state)
        difference_BV = scores_B1V[:, 0] - scores_BUV[:, place]
        assert difference_BV.square().mean() < 0.05**2 * expected_BUV.var()


def test_features_are_those_of_audio_with_silence_behind() -> None:
    windows = Windows.of(build_system(False))
    audio_BS = 0.1 * torch.randn(2, 3000, generator=torch.Generator().manual_seed(0))
    features_BTF, lengths_B = windows.compute_features(audio_BS, torch.tensor([3000, 1000]))
    padded_BS = torch.cat([audio_BS, torch.zeros(2, 3400)], dim=1)
    padded_BS[1, 1000:] = 0
    expected_BTF, _ = windows.front_end(padded_BS, torch.tensor([6400, 6400]))
    assert lengths_B.tolist() == [40, 40] and features_BTF.shape == (2, 40, 80)
    torch.testing.assert_close(features_BTF, expected_BTF)
    with pytest.raises(UserError, match=r"0.50 seconds of audio, but a window has at most 0.4"):
        windows.compute_features(torch.zeros(1, 8000), torch.tensor([8000]))


def test_which_sizes_skip_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny, base and base.en compute a second of it whole; tiny.en and small have not been measured."""
    system, found = build_system(False, window_steps=1500), list[tuple[int, int | None]]()
    for width, vocabulary in (384, 51_865), (512, 51_865), (512, 51_864), (384, 51_864), (768, 51_865):
        sizes = build_sizes({**SIZES, "n_vocab": vocabulary, "n_audio_state": width}, "the test")
        monkeypatch.setattr("asr.whisper.windows.find_sizes", lambda _, sizes=sizes: sizes)
        windows = Windows.of(system)
        found.append((windows.count_window_samples(16_000), windows.silence.stride))
    assert found == [(32_000, 8), (32_000, 8), (32_000, 16), (480_000, None), (480_000, None)]


@torch.inference_mode()
def test_windows_of_different_length_are_padded_to_be_decoded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is encoded at its own length, so that other windows of the batch do not change it."""
    system = build_system(False, window_steps=1500)
    assert Windows.of(system).count_window_samples(16_000) == 480_000
    assert Windows.of(replace(system, is_published=False)).count_window_samples(16_001) == 24_000
    monkeypatch.setitem(SILENCES, (32, False), Silence(1.0, 16))
    windows = Windows.of(system)
    for seconds, window, padded in (
        (0, 1, 4),
        (1.1, 2.5, 4),
        (3, 4, 4),
        (8, 9, 16),
        (29, 30, 30),
        (30, 30, 30),
    ):
        num_samples = round(16_000 * seconds)
        assert windows.count_window_samples(num_samples) == 16_000 * window
        assert windows.count_padded_samples(num_samples) == 16_000 * padded
    lengths_B = torch.tensor([round(16_000 * one) for one in (3.5, 4.2, 4.4, 6.9)])
    audio_BS = 0.1 * torch.randn(4, int(lengths_B.max()), generator=torch.Generator().manual_seed(0))
    together = windows.encode(audio_BS, lengths_B)
    assert together.lengths_B.tolist() == [1500] * 4
    for row, length in enumerate(lengths_B.tolist()):
        own = slice(row, row + 1)
        alone = windows.encode(audio_BS[own, :length], lengths_B[own])
        for name in ("encoded_BTD", "lengths_B", "bias_BT"):
            assert torch.equal(getattr(alone, name), getattr(together, name)[own])
        (bias_T,), (encoded_TD,) = alone.bias_BT, alone.encoded_BTD
        torch.testing.assert_close(bias_T.exp().sum(), torch.tensor(1500.0))
        features_BTF, _ = windows.compute_features(audio_BS[own], lengths_B[own])
        expected_BTD, _ = system.model.encoder.encode_with_silence(features_BTF, 16)
        num_steps, steps = int(bias_T.isfinite().sum()), windows.count_window_samples(length) // 320
        assert num_steps == expected_BTD.size(1) == steps + -(-(1500 - steps) // 16)
        assert torch.equal(encoded_TD[:num_steps], expected_BTD[0]) and not encoded_TD[num_steps:].any()


def test_what_is_trained() -> None:
    """The output shares the embedding's gradients; the encoder's positions are fixed; keys have no bias."""
    model = build_model()
    names = dict(model.named_parameters())
    assert "decoder.output.weight" not in names and "encoder.positions_TD" not in names
    features_BTF, lengths_B, tokens_BU = make_batch(20, 14)
    scores_BUV, _ = model.decoder(tokens_BU, *model.encode(features_BTF, lengths_B)[:2])
    scores_BUV.log_softmax(-1)[..., 0].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in names.values())
    dim = CONFIG.dim
    gradient = names["encoder.layers.0.attention.project_in.bias"].grad
    assert gradient is not None
    assert gradient[dim : 2 * dim].abs().max() < 1e-5 * gradient.abs().max()


@torch.inference_mode()
def test_limits() -> None:
    features_BTF, lengths_B, _ = make_batch(20)
    encoded = MODEL.encode(features_BTF, lengths_B)[:2]
    with pytest.raises(UserError, match="a text of 449 tokens"):
        MODEL.decoder(torch.zeros(1, 449, dtype=torch.int64), *encoded)
    with pytest.raises(UserError, match="3001 frames"):
        MODEL.encode(torch.zeros(1, 3001, 80), torch.tensor([3001]))
