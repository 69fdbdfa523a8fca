"""Greedy search through the graphs of `asr export`, in ONNX Runtime and numpy, without PyTorch.

`description.py` says what the folder holds. It may come from a stranger: names stay in the folder, sizes are
limited, and what a graph returns is checked before it is used.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from asr.config import Config, describe_error
from asr.decoding.word_spans import TokenTime
from asr.errors import UserError, import_extra, shorten
from asr.features.filters import FeaturesConfig
from asr.files import read_limited
from asr.text.tokenizer import Tokenizer

# N recordings (one), T frames, F features, U encoded steps, V vocabulary, J joint network

MAX_DESCRIPTION_BYTES = 1_000_000
MAX_GRAPH_BYTES = 2**31  # of a protocol buffer
MAX_CACHE_ELEMENTS = 2**28
STEP_MULTIPLE = 16  # encoded steps that a length is padded to, as in `SpeechDecoder`
EXTERNAL = b"\n\x08location\x12"  # key of weights that are stored outside the graph
PARTS = {
    "ctc": ("encoder",),
    "transducer": ("encoder", "decoder", "joiner"),
    "attention": ("encoder", "step"),
}

Count = Annotated[int, pydantic.Field(ge=0, le=100_000)]


class _Lenient(Config):
    """A part of export.json, which may hold more than is needed here."""

    model_config = pydantic.ConfigDict(extra="ignore")


class Cache(_Lenient):
    """An input of a chunk that holds what the chunks before left."""

    output: str | None
    shape: tuple[Count, ...]
    type: Literal["float32", "int64", "int32", "bool"]

    @pydantic.field_validator("shape")
    @classmethod
    def _is_small(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) > 8 or np.prod(shape, dtype=float) > MAX_CACHE_ELEMENTS:
            raise ValueError("expected at most 8 sizes, and fewer elements")
        return shape


class Chunks(_Lenient):
    """How the encoder reads a recording chunk by chunk."""

    frames: Annotated[int, pydantic.Field(ge=1, le=100_000)]
    takes_lengths: bool
    caches: tuple[Cache, ...]


class Description(_Lenient):
    """The fields of export.json that decoding needs."""

    format: Literal[1]
    kind: Literal["ctc", "transducer", "attention"]
    sample_scale: float = pydantic.Field(gt=0, le=2**31)
    features: FeaturesConfig
    files: dict[str, str]
    tokenizer: str
    blank: Count = 0
    start: Count = 0
    end: Count = 0
    first: Count = 0
    predictor: Literal["stateless", "lstm"] | None = None
    durations: tuple[Count, ...] = ()
    max_tokens: Annotated[int, pydantic.Field(ge=1, le=1_000)] = 1
    subsampling: Annotated[int, pydantic.Field(ge=1, le=1_000)]
    streaming: Chunks | None = None
    language: str | None = None
    max_seconds: float = pydantic.Field(default=20.0, gt=0)
    longest_seconds: float | None = pydantic.Field(default=None, gt=0)


@dataclass(frozen=True)
class Decoded:
    """Tokens with their steps and probabilities, and the log-probability of the path through the steps."""

    tokens: tuple[int, ...] = ()
    times: tuple[TokenTime, ...] = ()
    log_probability: float = 0.0


def find_file(folder: Path, name: str) -> Path:
    """Return the path of a file whose name stands in the description."""
    path = folder / name
    if name in ("", ".", "..") or Path(name).name != name or not path.is_file():
        raise UserError(f"{folder}/export.json names {shorten(name)}: expected a file in the same folder")
    return path


class ExportedModel:
    """The graphs of a folder, and the greedy search through them."""

    def __init__(self, folder: Path, threads: int) -> None:
        path = folder / "export.json"
        content = read_limited(path, MAX_DESCRIPTION_BYTES, "which the description of a model never has")
        try:
            self.about = Description.model_validate_json(content)
        except pydantic.ValidationError as error:
            raise UserError(f"{path}: {describe_error(error)}; export the model again") from None
        self.folder = folder
        self.tokenizer = Tokenizer.load(find_file(folder, self.about.tokenizer))
        if missing := [part for part in PARTS[self.about.kind] if part not in self.about.files]:
            raise UserError(f"{path}: names no {missing[0]}; export the model again")
        self._sessions = {
            part: load_graph(find_file(folder, self.about.files[part]), threads)
            for part in PARTS[self.about.kind]
        }

    def run(self, part: str, *inputs: np.ndarray) -> list[np.ndarray]:
        """Compute a graph; whatever fails in it is a fault of the folder."""
        session, path = self._sessions[part], self.folder / self.about.files[part]
        names = [one.name for one in session.get_inputs()]
        try:
            found: list[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
        except Exception as error:  # ONNX Runtime has many classes of them, without a base of their own
            reason = str(error).partition("\n")[0]
            raise UserError(f"{path}: fails to compute ({reason[:200]}); export the model again") from None
        return found

    def search(self, features_TF: np.ndarray) -> Decoded:
        """Find the likeliest tokens, one after the other."""
        if not len(features_TF):
            return Decoded()
        if self.about.kind == "attention":
            return self._search_attention(*self._encode(features_TF, rank=6))
        encode = self._encode_chunks if self.about.streaming else self._encode_steps
        steps_UV = encode(features_TF)
        return (
            self._search_transducer(steps_UV)
            if self.about.kind == "transducer"
            else self._search_ctc(steps_UV)
        )

    def _encode(self, features_TF: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
        multiple = STEP_MULTIPLE * self.about.subsampling
        padded_TF = np.pad(features_TF, ((0, -len(features_TF) % multiple), (0, 0)))
        encoded, lengths_N = self.run("encoder", padded_TF[None], np.array([len(features_TF)]))[:2]
        self._require("encoder", encoded, rank)
        return encoded, lengths_N

    def _encode_steps(self, features_TF: np.ndarray) -> np.ndarray:
        steps_NUV, lengths_N = self._encode(features_TF, rank=3)
        return steps_NUV[0, : int(lengths_N[0])]

    def _encode_chunks(self, features_TF: np.ndarray) -> np.ndarray:
        chunks = self.about.streaming
        assert chunks is not None
        found, kept = [], [np.zeros(cache.shape, cache.type) for cache in chunks.caches]
        for first in range(0, len(features_TF), chunks.frames):
            chunk_TF = features_TF[first : first + chunks.frames]
            padded_TF = np.pad(chunk_TF, ((0, chunks.frames - len(chunk_TF)), (0, 0)))
            lengths = [np.array([len(chunk_TF)])] if chunks.takes_lengths else []
            steps_NUV, *rest = self.run("encoder", padded_TF[None], *lengths, *kept)
            self._require("encoder", steps_NUV, 3)
            count = int(rest.pop(0)[0]) if lengths else steps_NUV.shape[1]
            kept = [
                rest.pop(0) if cache.output else old for cache, old in zip(chunks.caches, kept, strict=True)
            ]
            found.append(steps_NUV[0, :count])
        return np.concatenate(found)

    def _search_ctc(self, scores_UV: np.ndarray) -> Decoded:
        self._require("encoder", scores_UV, 2, len(self.tokenizer))
        tokens, times, best_U = list[int](), list[TokenTime](), scores_UV.max(axis=1, initial=-np.inf)
        first = 0
        for token, run in itertools.groupby(scores_UV.argmax(axis=1).tolist()):
            past = first + len(list(run))
            if token != self.about.blank:
                tokens.append(token)
                times.append(TokenTime(first, past - 1, float(np.exp(best_U[first:past].max()))))
            first = past
        return Decoded(tuple(tokens), tuple(times), float(best_U.sum()))

    def _search_transducer(self, steps_UJ: np.ndarray) -> Decoded:
        about, total, tokens, times = self.about, 0.0, list[int](), list[TokenTime]()
        place = at_step = 0
        predicted_NJ, state = self._predict([about.start, about.start], [])
        while place < len(steps_UJ):
            (logits_NV,) = self.run("joiner", steps_UJ[place][None], predicted_NJ)
            self._require("joiner", logits_NV, 2, len(self.tokenizer) + len(about.durations))
            scores_V = log_softmax(logits_NV[0, : len(self.tokenizer)])
            token = int(scores_V.argmax())
            is_token = token != about.blank
            total += float(scores_V[token])
            move = int(not is_token)
            if about.durations:
                move = about.durations[int(logits_NV[0, len(scores_V) :].argmax())]
            if is_token:
                tokens.append(token)
                times.append(TokenTime(place, place, float(np.exp(scores_V[token]))))
                predicted_NJ, state = self._predict([about.start, *tokens][-2:], state)
            at_step += is_token
            if move == 0 and (not is_token or at_step >= about.max_tokens):
                move = 1
            place, at_step = place + move, at_step if move == 0 else 0
        return Decoded(tuple(tokens), tuple(times), total)

    def _predict(self, tokens: list[int], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        if self.about.predictor == "stateless":
            return self.run("decoder", np.array([tokens]))[0], []
        if not state:
            shape = [
                size if isinstance(size, int) else 1
                for size in self._sessions["decoder"].get_inputs()[1].shape
            ]
            state = [np.zeros(shape, np.float32)] * 2
        predicted_NJ, *state = self.run("decoder", np.array([tokens[-1:]]), *state)
        return predicted_NJ, state

    def _search_attention(self, cross: np.ndarray, lengths_N: np.ndarray) -> Decoded:
        about, total, tokens = self.about, 0.0, list[int]()
        past = np.zeros((*cross.shape[:4], 0, cross.shape[5]), np.float32)
        special = [id for id in range(about.first) if id != about.end]
        token = about.start
        for _ in range(min(int(lengths_N[0]), cross.shape[4]) * about.max_tokens):
            logits_NV, past = self.run("step", np.array([[token]]), cross, lengths_N, past)
            self._require("step", logits_NV, 2, len(self.tokenizer))
            scores_V = log_softmax(logits_NV[0])
            scores_V[special] = -np.inf
            token = int(scores_V.argmax())
            total += float(scores_V[token])
            if token == about.end:
                break
            tokens.append(token)
        return Decoded(tuple(tokens), (), total)

    def _require(self, part: str, found: np.ndarray, rank: int, width: int | None = None) -> None:
        """Check the shape of what a graph returned."""
        if found.ndim != rank or (width is not None and found.shape[-1] != width):
            raise UserError(
                f"{self.folder / self.about.files[part]}: returned the shape {found.shape}, expected {rank} "
                f"sizes{'' if width is None else f', the last of them {width}'}; export the model again"
            )


def load_graph(path: Path, threads: int) -> Any:
    """Load a graph that holds all of its weights."""
    content = read_limited(path, MAX_GRAPH_BYTES, "too large for a graph")
    if EXTERNAL in content:
        raise UserError(f"{path}: its weights are in another file; expected a graph that holds them")
    runtime = import_extra("onnxruntime", "an exported model", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as in `Graphs.run`
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path}: not a graph of ONNX ({reason[:200]}); export the model again") from None


def log_softmax(scores_V: np.ndarray) -> np.ndarray:
    shifted_V = scores_V - scores_V.max()
    normalized_V: np.ndarray = shifted_V - np.log(np.exp(shifted_V).sum())
    return normalized_V
