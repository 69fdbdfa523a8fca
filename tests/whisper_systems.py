"""A tiny Whisper that writes text and ends: windows of 0.4 seconds, texts of up to 12 tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from whisper_examples import MULTILINGUAL, NUM_SPECIAL, SIZES, VOCABULARY, make_weights

from asr.system.system import System
from asr.whisper import build_sizes, make_system


def build_system(
    is_multilingual: bool, *, window_steps: int = 20, max_tokens: int = 24, num_mels: int = 80
) -> System:
    """Build it, with 128 mel bands as large-v3, which knows one language more."""
    num_special = NUM_SPECIAL + (num_mels == 128)
    vocabulary, num_texts = MULTILINGUAL if is_multilingual else VOCABULARY, len(VOCABULARY)
    sizes = SIZES | {"n_audio_ctx": window_steps, "n_text_ctx": max_tokens, "n_text_layer": 1}
    sizes["n_mels"] = num_mels
    config = build_sizes(sizes | {"n_vocab": len(vocabulary) + num_special}, "the test")
    weights = make_weights(3, sizes, num_texts + num_special)
    # A decoder that says text, hears more than random weights do, and comes to an end.
    embedding_VD = weights["decoder.token_embedding.weight"]
    embedding_VD[: num_texts + 1] *= 1.5
    for part in ("value", "out"):
        weights[f"decoder.blocks.0.cross_attn.{part}.weight"] *= 4
    growth_U1 = torch.arange(sizes["n_text_ctx"])[:, None] / 2
    weights["decoder.positional_embedding"] += growth_U1 * embedding_VD[num_texts]
    unused_VD = embedding_VD.new_zeros(len(vocabulary) - num_texts, embedding_VD.size(1))
    parts = (embedding_VD[:num_texts], unused_VD, embedding_VD[num_texts:])
    weights["decoder.token_embedding.weight"] = torch.cat(parts)
    return make_system(Path("the test"), config, vocabulary, weights)
