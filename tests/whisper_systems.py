"""A tiny Whisper that hears, says text and comes to an end: windows of 0.4 seconds, texts of up to 12 tokens."""

from __future__ import annotations

import torch
from whisper_examples import SIZES, VOCABULARY, make_weights

from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.whisper import Whisper, WhisperSystem, WhisperTokenizer, build_sizes, rename_weights


def build_system(is_multilingual: bool, *, window_steps: int = 20, max_tokens: int = 24) -> WhisperSystem:
    tokenizer = WhisperTokenizer(VOCABULARY, 99, is_multilingual)
    sizes = SIZES | {"n_audio_ctx": window_steps, "n_text_ctx": max_tokens, "n_text_layer": 1}
    config = build_sizes(sizes | {"n_vocab": len(tokenizer)}, "the test")
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
