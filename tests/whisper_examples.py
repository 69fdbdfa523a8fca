"""A tiny Whisper with random weights, written in every form that is read, by writers of the tests' own."""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from asr.errors import UserError
from asr.features.filters import compute_whisper_filters
from asr.whisper import load_source

SIZES = {
    "n_mels": 80,
    "n_audio_ctx": 1500,
    "n_audio_state": 32,
    "n_audio_head": 4,
    "n_audio_layer": 2,
    "n_text_ctx": 448,
    "n_text_state": 32,
    "n_text_head": 2,
    "n_text_layer": 3,
}
TEXT = "the rain in spain stays mainly in the plain, then the rain ends and the sun is on the plain again"
NUM_SPECIAL = 1608  # with 99 languages


def make_vocabulary(num_merges: int = 60) -> tuple[bytes, ...]:
    """The bytes, and the pairs that are most frequent in a text, as BPE learns them."""
    words = [(" " + word).encode() for word in TEXT.replace(",", " ,").split()]
    split = [[bytes([byte]) for byte in word] for word in words]
    vocabulary = [bytes([byte]) for byte in [*range(33, 256), *range(33)]]  # not by their numbers
    for _ in range(num_merges):
        pairs = [pair for parts in split for pair in itertools.pairwise(parts)]
        if not pairs:
            break
        best = max(sorted(set(pairs)), key=pairs.count)
        vocabulary.append(b"".join(best))
        for parts in split:
            for place in range(len(parts) - 1, 0, -1):
                if tuple(parts[place - 1 : place + 1]) == best:
                    parts[place - 1 : place + 1] = [b"".join(best)]
    return tuple(vocabulary)


VOCABULARY = make_vocabulary()
VOCAB_SIZE = len(VOCABULARY) + NUM_SPECIAL
# As large as that of a multilingual model, by tokens that no text has.
MULTILINGUAL = (
    *VOCABULARY,
    *(b"\xff" + number.to_bytes(3, "big") for number in range(50_257 - len(VOCABULARY))),
)


def make_weights(
    seed: int = 0, sizes: dict[str, int] = SIZES, vocab_size: int = VOCAB_SIZE
) -> dict[str, Tensor]:
    """By OpenAI's names. All are random, biases, norms and positions too."""
    dim, random = sizes["n_audio_state"], torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (dim, sizes["n_mels"], 3),
        "encoder.conv1.bias": (dim,),
        "encoder.conv2.weight": (dim, dim, 3),
        "encoder.conv2.bias": (dim,),
        "encoder.positional_embedding": (sizes["n_audio_ctx"], dim),
        "decoder.positional_embedding": (sizes["n_text_ctx"], dim),
        "decoder.token_embedding.weight": (vocab_size, dim),
    }
    norms = ["encoder.ln_post", "decoder.ln"]
    linears: dict[str, tuple[int, int]] = {}
    for side, count in (("encoder", sizes["n_audio_layer"]), ("decoder", sizes["n_text_layer"])):
        for index in range(count):
            block = f"{side}.blocks.{index}"
            attentions = ["attn", "cross_attn"] if side == "decoder" else ["attn"]
            norms += [f"{block}.mlp_ln", *(f"{block}.{attention}_ln" for attention in attentions)]
            linears |= {f"{block}.mlp.0": (4 * dim, dim), f"{block}.mlp.2": (dim, 4 * dim)}
            for attention in attentions:
                for part in ("query", "key", "value", "out"):
                    linears[f"{block}.{attention}.{part}"] = (dim, dim)
    for name, shape in linears.items():
        shapes[f"{name}.weight"] = shape
        if not name.endswith(".key"):
            shapes[f"{name}.bias"] = shape[:1]
    for name in norms:
        shapes |= {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}
    weights = {}
    for name, shape in shapes.items():
        fan_in = math.prod(shape[1:]) if len(shape) > 1 and "embedding" not in name else 4
        weights[name] = torch.randn(shape, generator=random) / math.sqrt(fan_in)
    for name in norms:
        weights[f"{name}.weight"] += 1
    return {name: weight.half().float() for name, weight in weights.items()}  # so that halves lose nothing


# --- writers --------------------------------------------------------------------------------------


def write_openai(path: Path, weights: dict[str, Tensor], sizes: dict[str, Any] = SIZES) -> Path:
    vocab_size = len(weights["decoder.token_embedding.weight"])
    torch.save({"dims": {**sizes, "n_vocab": vocab_size}, "model_state_dict": weights}, path)
    return path


def write_ranks(path: Path, vocabulary: tuple[bytes, ...]) -> None:
    lines = [(base64.b64encode(token) or b"=") + b" %d\n" % id for id, token in enumerate(vocabulary)]
    path.write_bytes(b"".join(lines))


def write_ggml(
    path: Path, weights: dict[str, Tensor], half: bool = False, sizes: dict[str, int] = SIZES
) -> Path:
    """Matrices in half precision if asked for; vectors and positions never are."""
    order = ("n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer")
    order += ("n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels")
    content = b"lmgg" + struct.pack("<11i", VOCAB_SIZE, *(sizes[name] for name in order), int(half))
    filters = compute_whisper_filters(np.arange(201) * 40.0, 0.0, 8000.0, 80).T.astype("<f4")
    content += struct.pack("<2i", *filters.shape) + filters.tobytes()
    words = (*VOCABULARY, b"<|endoftext|>")
    content += struct.pack("<i", len(words)) + b"".join(struct.pack("<i", len(word)) + word for word in words)
    for name, weight in weights.items():
        array = weight.numpy()
        if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
            array = array[:, None]
        is_half = half and array.ndim > 1 and not name.endswith(("embedding", "bias"))
        head = struct.pack("<3i", array.ndim, len(name), int(is_half))
        content += head + struct.pack(f"<{array.ndim}i", *reversed(array.shape)) + name.encode()
        content += array.astype("<f2" if is_half else "<f4").tobytes()
    path.write_bytes(content)
    return path


def huggingface_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = {
        "blocks": "layers", "attn": "self_attn", "cross_attn": "encoder_attn", "attn_ln": "self_attn_layer_norm",
        "cross_attn_ln": "encoder_attn_layer_norm", "mlp_ln": "final_layer_norm", "mlp.0": "fc1", "mlp.2": "fc2",
        "query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj", "ln_post": "layer_norm",
        "ln": "layer_norm", "token_embedding": "embed_tokens", "positional_embedding": "embed_positions.weight",
    }  # fmt: skip
    renamed = {}
    for name, weight in weights.items():
        words = name.replace("mlp.0", "fc1").replace("mlp.2", "fc2").split(".")
        renamed["model." + ".".join(parts.get(word, word) for word in words)] = weight
    return renamed


def write_huggingface(
    folder: Path, weights: dict[str, Tensor], *, form: str = "safetensors", sizes: dict[str, int] = SIZES
) -> Path:
    """`form`: safetensors, sharded or pickled; with vocab.json and merges.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    dim = sizes["n_audio_state"]
    settings = {
        "model_type": "whisper", "activation_function": "gelu", "scale_embedding": False, "d_model": dim,
        "encoder_ffn_dim": 4 * dim, "decoder_ffn_dim": 4 * dim, "num_mel_bins": sizes["n_mels"],
        "vocab_size": len(weights["decoder.token_embedding.weight"]), "max_source_positions": sizes["n_audio_ctx"],
        "max_target_positions": sizes["n_text_ctx"], "encoder_layers": sizes["n_audio_layer"],
        "decoder_layers": sizes["n_text_layer"], "encoder_attention_heads": sizes["n_audio_head"],
        "decoder_attention_heads": sizes["n_text_head"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": [[1, 0], [2, 1]]}))
    renamed = huggingface_names(weights)
    if form == "pickled":
        tied = renamed["model.decoder.embed_tokens.weight"]
        torch.save(renamed | {"proj_out.weight": tied}, folder / "pytorch_model.bin")
    elif form == "sharded":
        index = {name: f"model-{1 + place % 2}-of-2.safetensors" for place, name in enumerate(renamed)}
        for shard in set(index.values()):
            save_file({name: renamed[name] for name in index if index[name] == shard}, folder / shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    else:
        save_file(renamed, folder / "model.safetensors")
    write_huggingface_vocabulary(folder)
    return folder


def write_huggingface_vocabulary(folder: Path, as_one: bool = False) -> None:
    """vocab.json and merges.txt, or both in tokenizer.json."""
    # GPT-2's way to show bytes: those that print as they are, the others from U+0100 on.
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shown = {byte: chr(byte) for byte in prints}
    for byte in range(256):
        if byte not in prints:
            shown[byte] = chr(0x100 + len(shown) - len(prints))
    names = ["".join(shown[byte] for byte in token) for token in VOCABULARY]
    merges = []
    for rank, token in enumerate(VOCABULARY[256:], start=256):
        # The pair that was merged: what the token falls into by the tokens before it.
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            ids = {known: id for id, known in enumerate(VOCABULARY[:rank])}
            ranks = [ids.get(left + right, rank) for left, right in itertools.pairwise(parts)]
            place = ranks.index(min(ranks))
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        merges.append(["".join(shown[byte] for byte in part) for part in parts])
    vocabulary = {name: id for id, name in enumerate(names)}
    if as_one:
        tree = {"model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
        tree |= {"added_tokens": [{"id": len(vocabulary), "content": "<|endoftext|>"}]}
        (folder / "tokenizer.json").write_text(json.dumps(tree))
        return
    (folder / "vocab.json").write_text(json.dumps(vocabulary | {"<|endoftext|>": len(vocabulary)}))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def refuse(path: Path, message: str) -> None:
    """A clear error, and little memory on the way there."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=message):
            load_source(path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
