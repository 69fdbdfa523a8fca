"""Convert a Whisper model of CTranslate2 in float16 or float32 to a folder as on Hugging Face.

python tools/convert_from_ctranslate2.py faster-whisper-base whisper-base
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
# Their name of each part, and its names on Hugging Face; commas separate parts that they join.
PARTS = {
    "layer_norm/gamma": "layer_norm.weight",
    "layer_norm/beta": "layer_norm.bias",
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "self_attention/linear_0": "self_attn.q_proj,k_proj,v_proj",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_1": "encoder_attn.k_proj,v_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "embeddings/weight": "embed_tokens.weight",
    "position_encodings/encodings": "embed_positions.weight",
    "layer_": "layers.",
    "layers.norm": "layer_norm",  # the last one, which is in no layer
}


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a model.bin."""
    with open(path, "rb") as file:

        def take(form: str) -> tuple[int, ...]:
            return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))

        def take_text() -> str:
            return file.read(*take("H")).rstrip(b"\0").decode()

        (version,), name = take("I"), take_text()
        if version != 6 or name != "WhisperSpec":
            raise SystemExit(f"{path}: {name} in version {version}; expected WhisperSpec in version 6")
        variables, (_, count) = {}, take("II")
        for _ in range(count):
            name, (rank,) = take_text(), take("B")
            shape, (kind, num_bytes) = take(f"{rank}I"), take("BI")
            variables[name] = np.frombuffer(file.read(num_bytes), DTYPES[kind]).reshape(shape)
    return variables


def rename(name: str, weight: np.ndarray) -> dict[str, Tensor]:
    """Return the weights on Hugging Face that one of theirs consists of."""
    for theirs, ours in PARTS.items():
        name = name.replace(theirs, ours)
    path, _, kind = name.replace("/", ".").rpartition(".")
    block, dot, parts = path.rpartition(".")
    names = [f"model.{block}{dot}{part}.{kind}" for part in parts.split(",")]
    chunks = torch.from_numpy(weight.copy()).chunk(len(names))
    named = zip(names, chunks, strict=True)
    return {name: chunk.contiguous() for name, chunk in named if not name.endswith("k_proj.bias")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="folder with model.bin and tokenizer.json")
    parser.add_argument("folder", type=Path, help="new folder")
    args = parser.parse_args()
    variables = read_variables(args.model / "model.bin")
    weights: dict[str, Tensor] = {}
    for name, weight in variables.items():
        if weight.ndim and weight.dtype in (np.float16, np.float32):
            weights |= rename(name, weight)
    num_tokens, dim = variables["decoder/embeddings/weight"].shape
    config = {"model_type": "whisper", "activation_function": "gelu", "scale_embedding": False}
    config |= {"d_model": dim, "vocab_size": num_tokens}
    config["num_mel_bins"] = variables["encoder/conv1/weight"].shape[1]
    config["max_source_positions"] = len(variables["encoder/position_encodings/encodings"])
    config["max_target_positions"] = len(variables["decoder/position_encodings/encodings"])
    for part in ("encoder", "decoder"):
        layers = {name.split("/")[1] for name in variables if name.startswith(f"{part}/layer_")}
        config[f"{part}_layers"] = len(layers - {"layer_norm"})
        config[f"{part}_attention_heads"] = int(variables[f"{part}/num_heads"])
        config[f"{part}_ffn_dim"] = 4 * dim
    args.folder.mkdir(parents=True)
    save_file(weights, args.folder / "model.safetensors", {"format": "pt"})
    shutil.copy(args.model / "tokenizer.json", args.folder)
    (args.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
