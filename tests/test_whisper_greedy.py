"""Greedy text of 30-second windows, against a plain loop that computes everything anew at each step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from whisper_examples import SIZES, VOCABULARY, make_weights

from asr.errors import UserError
from asr.features import FeaturesConfig, FrontEnd
from asr.models.whisper import Whisper
from asr.whisper.greedy import compute_window_features, decode_windows, transcribe_windows
from asr.whisper.loading import WhisperSystem
from asr.whisper.naming import rename_weights
from asr.whisper.openai import build_config
from asr.whisper.tokenizer import WhisperTokenizer


def build_system(is_multilingual: bool) -> WhisperSystem:
    """Windows of 0.4 seconds, texts of at most 12 tokens, and a decoder that says more than one thing."""
    tokenizer = WhisperTokenizer(VOCABULARY, 99, is_multilingual)
    sizes = SIZES | {"n_audio_ctx": 20, "n_text_ctx": 24, "n_text_layer": 1}
    config = build_config(sizes | {"n_vocab": len(tokenizer)}, "the test")
    weights = make_weights(3, sizes)
    # A decoder that says text, hears more than random weights do, and comes to an end.
    embedding_VD = weights["decoder.token_embedding.weight"]
    embedding_VD[: tokenizer.end + 1] *= 1.5
    for part in ("value", "out"):
        weights[f"decoder.blocks.0.cross_attn.{part}.weight"] *= 4
    growth_U1 = torch.arange(sizes["n_text_ctx"])[:, None] / 2
    weights["decoder.positional_embedding"] += growth_U1 * embedding_VD[tokenizer.end]
    model = Whisper.of(config, rename_weights(config, weights, "the test"))
    return WhisperSystem(
        config, tokenizer, FrontEnd(FeaturesConfig(convention="whisper", num_mels=80)), model
    )


@pytest.fixture(scope="module", params=[False, True], ids=["English", "multilingual"])
def system(request: pytest.FixtureRequest) -> WhisperSystem:
    return build_system(request.param)


def decode_plainly(system: WhisperSystem, encoded_1TD: Tensor, prompt: list[int]) -> list[int]:
    tokens, tokenizer = list(prompt), system.tokenizer
    lengths_1 = torch.tensor([encoded_1TD.size(1)])
    while len(tokens) < len(prompt) + system.config.max_tokens // 2:
        scores_V = system.model.decoder(torch.tensor([tokens]), encoded_1TD, lengths_1)[0][0, -1].tolist()
        allowed = set(range(len(tokenizer))) - set(tokenizer.suppressed)
        if len(tokens) == len(prompt):
            allowed -= {tokenizer.end, *tokenizer.encode(" ")}
        best = max(sorted(allowed), key=scores_V.__getitem__)
        if best == tokenizer.end:
            break
        tokens.append(best)
    return tokens[len(prompt) :]


@torch.inference_mode()
def test_tokens_of_a_batch(system: WhisperSystem) -> None:
    prompt = system.tokenizer.prompt("en")
    encoded_BTD = torch.randn(24, 20, 32, generator=torch.Generator().manual_seed(1))
    found = decode_windows(system.model, system.tokenizer, encoded_BTD, torch.full((24,), 20), prompt)
    assert found == [decode_plainly(system, encoded_1TD[None], prompt) for encoded_1TD in encoded_BTD]
    lengths = {len(tokens) for tokens in found}
    assert len(lengths) > 2 and max(lengths) == 12  # some end early, some at the limit


def test_text_of_audio(system: WhisperSystem) -> None:
    """Each recording as if alone, whatever lies behind it in the batch."""
    random = torch.Generator().manual_seed(0)
    audio_BS = 0.1 * torch.randn(3, 7000, generator=random)
    lengths_B = torch.tensor([6400, 3000, 100])
    texts = transcribe_windows(system, audio_BS, lengths_B, "en")
    for audio_S, length, text in zip(audio_BS, lengths_B.tolist(), texts, strict=True):
        alone = transcribe_windows(system, audio_S[None, :length], torch.tensor([length]), "en")
        assert alone == [text]
    assert len(set(texts)) > 1
    assert transcribe_windows(system, audio_BS[:0], lengths_B[:0], "en") == []


def test_features_are_those_of_audio_with_silence_behind(system: WhisperSystem) -> None:
    audio_BS = 0.1 * torch.randn(1, 3000, generator=torch.Generator().manual_seed(0))
    features_BTF, lengths_B = compute_window_features(system, audio_BS, torch.tensor([3000]))
    padded_BS = torch.cat([audio_BS, torch.zeros(1, 3400)], dim=1)
    expected_BTF, _ = system.front_end(padded_BS, torch.tensor([6400]))
    assert lengths_B.tolist() == [40] and features_BTF.shape == (1, 40, 80)
    torch.testing.assert_close(features_BTF, expected_BTF)
    with pytest.raises(UserError, match=r"0.50 seconds of audio; one window has at most 0.4"):
        compute_window_features(system, torch.zeros(1, 8000), torch.tensor([8000]))


def test_a_language_is_needed_where_there_are_many() -> None:
    with pytest.raises(UserError, match="name the one that is spoken"):
        transcribe_windows(build_system(True), torch.zeros(1, 3000), torch.tensor([3000]))
