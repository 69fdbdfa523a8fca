"""Writes small ONNX Runtime files like Moonshine's: FlatBuffers tables, each placed after what points to it."""

import io
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

import asr.moonshine
from asr.decoding.hypothesis import ChecksConfig
from asr.moonshine.family import ORT_FILES
from asr.moonshine.installed import find_installed
from asr.moonshine.tokens import BYTE

TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7}
Node = tuple[str, str, Sequence[str]]
"""Name, operator and inputs."""


def write_tables(root: Mapping[int, Any]) -> bytes:
    """A table is a dict from field numbers to values: int, str, bytes, table, or a list of int, str or tables."""
    data = bytearray(b"\0\0\0\0ORTM")

    def point(place: int, value: Any) -> None:
        struct.pack_into("<I", data, place, add(value) - place)

    def add(value: Any) -> int:
        """Append an object; return its place."""
        place = len(data)
        if isinstance(value, str | bytes):
            content = value.encode() if isinstance(value, str) else value
            data.extend(struct.pack("<I", len(content)) + content)
        elif isinstance(value, list) and all(isinstance(one, int) for one in value):
            data.extend(struct.pack(f"<I{len(value)}q", len(value), *value))
        elif isinstance(value, list):
            data.extend(struct.pack("<I", len(value)) + bytes(4 * len(value)))
            places: dict[int, int] = {}
            for pointer, one in enumerate(value, start=1):
                if id(one) not in places:  # one object that is in a list many times is written once
                    places[id(one)] = add(one)
                struct.pack_into("<I", data, place + 4 * pointer, places[id(one)] - place - 4 * pointer)
        else:
            return add_table(value)
        return place

    def add_table(fields: Mapping[int, Any]) -> int:
        count = max(fields) + 1
        offsets = [4 + 4 * sorted(fields).index(number) if number in fields else 0 for number in range(count)]
        layout = len(data)
        data.extend(struct.pack(f"<HH{count}H", 4 + 2 * count, 4 + 4 * len(fields), *offsets))
        place = len(data)
        data.extend(struct.pack("<i", place - layout) + bytes(4 * len(fields)))
        for number, value in fields.items():
            if isinstance(value, int):
                struct.pack_into("<i", data, place + offsets[number], value)
            else:
                point(place + offsets[number], value)
        return place

    point(0, root)
    return bytes(data)


def make_graph(
    tensors: Mapping[str, np.ndarray], nodes: Sequence[Node], branch: Any = None
) -> dict[int, Any]:
    stored = [
        {0: name, 2: list(array.shape), 3: TYPES[array.dtype.name], 4: array.tobytes()}
        for name, array in tensors.items()
    ]
    steps: list[dict[int, Any]] = [{0: name, 5: kind, 8: list(inputs)} for name, kind, inputs in nodes]
    if branch is not None:
        branches = [{0: "then_branch", 7: make_graph({}, [])}, {0: "else_branch", 7: branch}]
        steps.append({0: "if", 5: "If", 8: ["use_cache"], 10: branches})
    return {0: stored, 2: steps}


def write_ort(path: Path, graph: Mapping[int, Any]) -> None:
    path.write_bytes(write_tables({0: "6", 1: {0: 8, 7: graph}}))


class ModelWriter:
    """Writes a model with one layer in each part and random weights, and keeps the values that they stand for.

    `is_base`: int8 and a graph that computes stored * scale + zero point; else uint8, as in tiny.
    """

    def __init__(self, dim: int = 16, vocab_size: int = 40, is_base: bool = False) -> None:
        self.dim, self.vocab_size, self.is_base = dim, vocab_size, is_base
        self.weights: dict[str, np.ndarray] = {}
        self._random = np.random.default_rng(dim)
        self._tensors: dict[str, np.ndarray] = {}
        self._nodes: list[Node] = []

    def write(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._add_encoder()
        write_ort(folder / "encoder_model.ort", make_graph(self._tensors, self._nodes))
        self._tensors, self._nodes = {}, []
        self._add_decoder()
        write_ort(
            folder / "decoder_model_merged.ort", make_graph(self._tensors, [], make_graph({}, self._nodes))
        )

    def _add_encoder(self) -> None:
        dim = self.dim
        convolutions = {1: (dim, 1, 127), 2: (2 * dim, dim, 7), 3: (dim, 2 * dim, 3)}
        for number, shape in convolutions.items():
            name = f"conv{number}.weight"
            if self.is_base:
                self.weights[f"encoder.{name}"] = self._quantize(name, shape)
            else:
                self._store(f"encoder.{name}", f"{name}_add_tensor", shape)
        self._store("encoder.conv2.bias", "conv2.bias", (2 * dim,))
        self._store("encoder.conv3.bias", "conv3.bias", (dim,))
        for kind, operator in (("weight", "Mul"), ("bias", "Add")):
            values = self._store(f"encoder.groupnorm.{kind}", f"onnx::{operator}_7", (dim, 1))
            self.weights[f"encoder.groupnorm.{kind}"] = values.ravel()
            self._nodes.append((f"/groupnorm/{operator}", operator, ["x", f"onnx::{operator}_7"]))
        self._store("encoder.layer_norm.weight", "layer_norm.weight", (dim,))
        self._add_layer("encoder", ["self_attn"], ["input", "post_attention"], 4 * dim)

    def _add_decoder(self) -> None:
        stem = "model.decoder.embed_tokens.weight_merged_0"
        self.weights["decoder.embed_tokens.weight"] = self._quantize(stem, (self.vocab_size, self.dim))
        self._store("decoder.norm.weight", "model.decoder.norm.weight_merged_0", (self.dim,))
        self._add_layer(
            "decoder", ["self_attn", "encoder_attn"], ["input", "post_attention", "final"], 8 * self.dim
        )
        if self.is_base:
            output = "model.decoder.embed_tokens.weight_transposed"
            self._nodes.append(("/proj_out/MatMul", "MatMul", ["x", output]))
        else:
            for kind in ("scale", "zero_point"):
                self._tensors[f"onnx::MatMul_9_{kind}"] = self._tensors[f"{stem}_{kind}"]
            self._tensors["onnx::MatMul_9_quantized"] = np.ascontiguousarray(
                self._tensors[f"{stem}_quantized"].T
            )
            self._multiply("/proj_out/MatMul", "onnx::MatMul_9")

    def _add_layer(self, part: str, attentions: list[str], norms: list[str], wide: int) -> None:
        prefix, path = ("", "/") if part == "encoder" else ("model.decoder.", "/model/decoder/")
        suffix = "" if part == "encoder" else "_merged_0"
        renamed = (
            {"o_proj": "dense", "fc1": "up_proj", "fc2": "down_proj"}
            if self.is_base and part == "decoder"
            else {}
        )
        narrow = 4 * self.dim
        shapes = {
            (attention, f"{name}_proj"): (self.dim, self.dim) for attention in attentions for name in "qkvo"
        }
        shapes |= {("mlp", "fc1"): (wide, self.dim), ("mlp", "fc2"): (self.dim, narrow)}
        for number, ((block, name), shape) in enumerate(shapes.items()):
            # As in the real files, the names of tensors do not say where they are used.
            stem, theirs = f"onnx::MatMul_{900 - number}{suffix}", renamed.get(name, name)
            self.weights[f"{part}.layers.0.{block}.{name}.weight"] = self._quantize(stem, shape[::-1]).T
            self._multiply(f"{path}layers.0/{block}/{theirs}/MatMul", stem)
            if block == "mlp":
                own = f"{part}.layers.0.mlp.{name}.bias"
                self._store(own, f"{prefix}layers.0.mlp.{theirs}.bias{suffix}", shape[:1])
        for name in norms:
            own = f"layers.0.{name}_layernorm.weight"
            self._store(f"{part}.{own}", f"{prefix}{own}{suffix}", (self.dim,))

    def _store(self, own: str, theirs: str, shape: tuple[int, ...]) -> np.ndarray:
        values = self._random.normal(size=shape).astype(np.float32)
        self.weights[own] = self._tensors[theirs] = values
        return values

    def _quantize(self, stem: str, shape: tuple[int, ...]) -> np.ndarray:
        scale = np.float32(self._random.uniform(0.01, 0.02))
        if self.is_base:
            stored, zero = self._random.integers(-128, 128, shape, np.int8), np.float32(0.25)
            values = np.float32(stored) * scale + zero
        else:
            stored, zero = self._random.integers(0, 256, shape, np.uint8), np.uint8(120)
            values = (np.float32(stored) - np.float32(zero)) * scale
        self._tensors |= {
            f"{stem}_quantized": stored,
            f"{stem}_scale": np.array([scale]),
            f"{stem}_zero_point": np.array(zero),
        }
        return values

    def _multiply(self, name: str, stem: str) -> None:
        if self.is_base:
            self._nodes.append((name, "MatMul", ["x", f"{stem}_add_tensor"]))
        elif len(self._nodes) % 2:
            weights = [f"{stem}_{kind}" for kind in ("quantized", "scale", "zero_point")]
            self._nodes.append((f"{name}_quant", "DynamicQuantizeMatMul", ["x", *weights, ""]))
        else:
            inputs = [
                "x",
                f"{stem}_quantized",
                "x_scale",
                f"{stem}_scale",
                "x_zero_point",
                f"{stem}_zero_point",
            ]
            self._nodes.append((f"{name}_quant", "MatMulIntegerToFloat", inputs))


def write_pieces(path: Path, pieces: Sequence[bytes]) -> None:
    """tokenizer.bin."""
    with path.open("wb") as file:
        for piece in pieces:
            length = [len(piece)] if len(piece) < 128 else [128 + len(piece) % 128, len(piece) // 128]
            file.write(bytes(length) + piece)


def write_package(site: Path) -> tuple[Path, Path]:
    """Write a model into a package that is installed but cannot be imported, with the package's metadata."""
    folder, about = site / "moonshine_cpp" / "models" / "base-en", site / "moonshine_cpp-0.1.4.dist-info"
    folder.mkdir(parents=True)
    about.mkdir()
    (site / "moonshine_cpp" / "__init__.py").write_text("raise RuntimeError")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: moonshine-cpp\nVersion: 0.1.4\n")
    files = [folder / name for name in ORT_FILES]
    for file in files:
        file.write_bytes(b"x")
    (about / "RECORD").write_text("".join(f"{file.relative_to(site)},,\n" for file in files))
    return folder, about


def find_published(size: str) -> Path:
    """The folder of the published files: ASR_MOONSHINE, or that of an installed package."""
    given = os.environ.get("ASR_MOONSHINE")
    folder = Path(given) / size if given else find_installed(f"moonshine-{size}")
    if folder is None:
        pytest.skip(
            f"no package has moonshine-{size}, and ASR_MOONSHINE, a folder of tiny/ and base/, is not set"
        )
    return folder


TEXTS = ["he call it bear", "the bear called her", "call her there"]


def train_pieces() -> tuple[sentencepiece.SentencePieceProcessor, list[bytes]]:
    """Train a vocabulary in Moonshine's layout, which sentencepiece can encode with too."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5),
        model_writer=model,
        model_type="bpe",
        vocab_size=290,
        byte_fallback=True,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(id).encode() for id in range(processor.get_piece_size())]
    pieces[3:259] = [bytes([byte]) for byte in range(256)]
    return processor, pieces


def load_talker(folder: Path) -> Any:
    """A Moonshine that writes random words. They are ASCII, since other runtimes drop what is no UTF-8."""
    ModelWriter(dim=256, vocab_size=300).write(folder)
    write_pieces(folder / "tokenizer.bin", train_pieces()[1])
    manners = asr.moonshine.load(folder, "cpu", "float32", None, ChecksConfig.off()).decoder
    strange = [id for id, token in enumerate(manners.tokenizer.tokens) if BYTE.fullmatch(token)]
    manners.model.decoder.embedding.weight.data[strange] = 0
    return manners


def draw(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)
