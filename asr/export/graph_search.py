"""Greedy search through the graphs of an export, with ONNX Runtime and numpy, without PyTorch.

docs/export.md says what the folder holds. It may come from a stranger: names stay in the folder, sizes are
limited, and whatever goes wrong while the graphs are computed is an error of the folder.
"""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import dataclass, field
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

logger = logging.getLogger(__name__)

MAX_DESCRIPTION_BYTES, MAX_GRAPH_BYTES = 1_000_000, 2**31
MAX_CACHE_ELEMENTS = 2**28
STEP_MULTIPLE = 16  # encoded steps that a recording is padded to, as by `SpeechDecoder`
EXTERNAL = b"\n\x08location\x12"  # the key of weights that are in another file than the graph

Count = Annotated[int, pydantic.Field(ge=0, le=100_000)]
Some = Annotated[int, pydantic.Field(ge=1, le=100_000)]


class Cache(Config, extra="ignore"):
    """An input of a chunk that holds what the chunks before it left."""

    shape: tuple[Count, ...]
    type: Literal["float32", "int64", "int32", "bool"]


class ChunkInputs(Config, extra="ignore"):
    """Sizes and caches of an encoder that reads a recording chunk by chunk."""

    frames: Some
    takes_lengths: bool
    caches: tuple[Cache, ...]


class Description(Config, extra="ignore"):
    """The fields of export.json that the search needs; there may be more."""

    format: Literal[1]
    kind: Literal["ctc", "transducer", "attention"]
    sample_scale: float = pydantic.Field(gt=0, le=2**31)
    features: FeaturesConfig
    files: dict[str, str]
    tokenizer: str
    blank: Count | None = None
    start: Count | None = None
    end: Count | None = None
    first: Count = 0
    predictor: Literal["stateless", "lstm"] | None = None
    durations: tuple[Count, ...] = ()
    max_tokens: Some | None = None
    subsampling: Some
    streaming: ChunkInputs | None = None
    language: str | None = None
    max_seconds: float = pydantic.Field(default=20.0, gt=0)
    longest_seconds: float | None = pydantic.Field(default=None, gt=0)


@dataclass
class FoundTokens:
    """The tokens of a recording, with their steps for CTC and transducers, and their log-probability."""

    tokens: list[int] = field(default_factory=list)
    times: list[TokenTime] = field(default_factory=list)
    log_probability: float = 0.0


class ExportedModel:
    """The graphs of an export, and the search through them."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.folder, path = folder, folder / "export.json"
        content = read_limited(path, MAX_DESCRIPTION_BYTES, "which the description of a model never has")
        try:
            self.about = Description.model_validate_json(content)
        except pydantic.ValidationError as error:
            raise UserError(
                f"{path}: {describe_error(error)}; export the model again, or run it as README.md says"
            ) from None
        names = [self.about.tokenizer, *self.about.files.values()]
        if wrong := [name for name in names if Path(name).name != name or not (folder / name).is_file()]:
            raise UserError(f"{path}: names {shorten(wrong[0])}: expected a file that is next to it")
        self.tokenizer = Tokenizer.load(folder / self.about.tokenizer)
        self.sessions = {part: load_graph(folder / name, threads) for part, name in self.about.files.items()}

    def search(self, features_TF: np.ndarray) -> FoundTokens:
        """Find the likeliest token, one after the other."""
        if not len(features_TF):
            return FoundTokens()
        try:
            if self.about.kind == "attention":
                return self._search_attention(*self._encode(features_TF))
            encode = self._encode_chunks if self.about.streaming else self._encode_steps
            search = self._search_ctc if self.about.kind == "ctc" else self._search_transducer
            return search(encode(features_TF))
        except Exception as error:  # of any class, as graphs may compute anything
            logger.debug("%s", self.folder, exc_info=True)
            reason = str(error).partition("\n")[0][:200]
            raise UserError(
                f"{self.folder}: its graphs do not do what export.json says ({reason}); export again"
            ) from None

    def run(self, part: str, *inputs: np.ndarray) -> list[np.ndarray]:
        names = [one.name for one in self.sessions[part].get_inputs()]
        found: list[np.ndarray] = self.sessions[part].run(None, dict(zip(names, inputs, strict=True)))
        return found

    def _encode(self, features_TF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        missing = -len(features_TF) % (STEP_MULTIPLE * self.about.subsampling)
        padded_TF = np.pad(features_TF, ((0, missing), (0, 0)))
        encoded, lengths_N = self.run("encoder", padded_TF[None], np.array([len(features_TF)]))
        return encoded, lengths_N

    def _encode_steps(self, features_TF: np.ndarray) -> np.ndarray:
        steps_NUJ, lengths_N = self._encode(features_TF)
        return steps_NUJ[0, : int(lengths_N[0])]

    def _encode_chunks(self, features_TF: np.ndarray) -> np.ndarray:
        chunks, found = self.about.streaming, []
        assert chunks is not None
        if max((math.prod(cache.shape) for cache in chunks.caches), default=0) > MAX_CACHE_ELEMENTS:
            raise UserError(f"a cache has over {MAX_CACHE_ELEMENTS:,} elements")
        kept = [np.zeros(cache.shape, cache.type) for cache in chunks.caches]
        for first in range(0, len(features_TF), chunks.frames):
            chunk_TF = features_TF[first : first + chunks.frames]
            padded_TF = np.pad(chunk_TF, ((0, chunks.frames - len(chunk_TF)), (0, 0)))
            lengths = [np.array([len(chunk_TF)])] if chunks.takes_lengths else []
            steps_NUJ, *kept = self.run("encoder", padded_TF[None], *lengths, *kept)
            count = int(kept.pop(0)[0]) if lengths else steps_NUJ.shape[1]
            found.append(steps_NUJ[0, :count])
        return np.concatenate(found)

    def _search_ctc(self, scores_UV: np.ndarray) -> FoundTokens:
        best_U, found = scores_UV.max(axis=1), FoundTokens(log_probability=float(scores_UV.max(axis=1).sum()))
        first = 0
        for token, run in itertools.groupby(scores_UV.argmax(axis=1).tolist()):
            past = first + len(list(run))
            if token != self.about.blank:
                found.tokens.append(token)
                found.times.append(TokenTime(first, past - 1, math.exp(best_U[first:past].max())))
            first = past
        return found

    def _search_transducer(self, steps_UJ: np.ndarray) -> FoundTokens:
        durations, start, found = self.about.durations, self.about.start, FoundTokens()
        place = at_step = 0
        predicted_NJ, state = self._predict([start, start], [])
        while place < len(steps_UJ):
            (logits_NV,) = self.run("joiner", steps_UJ[place][None], predicted_NJ)
            scores_V = log_softmax(logits_NV[0, : logits_NV.shape[1] - len(durations)])
            token = int(scores_V.argmax())
            is_token = token != self.about.blank
            found.log_probability += float(scores_V[token])
            move = durations[int(logits_NV[0, len(scores_V) :].argmax())] if durations else int(not is_token)
            if is_token:
                found.tokens.append(token)
                found.times.append(TokenTime(place, place, math.exp(scores_V[token])))
                predicted_NJ, state = self._predict([start, *found.tokens][-2:], state)
            at_step += is_token
            if move == 0 and (not is_token or at_step >= (self.about.max_tokens or 1)):
                move = 1
            place, at_step = place + move, at_step if move == 0 else 0
        return found

    def _predict(self, tokens: list[Any], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        if self.about.predictor == "stateless":
            return self.run("decoder", np.array([tokens]))[0], []
        if not state:
            shape = [1, *self.sessions["decoder"].get_inputs()[1].shape[1:]]
            state = [np.zeros(shape, np.float32)] * 2
        predicted_NJ, *state = self.run("decoder", np.array([tokens[-1:]]), *state)
        return predicted_NJ, state

    def _search_attention(self, cross: np.ndarray, lengths_N: np.ndarray) -> FoundTokens:
        about, token, found = self.about, self.about.start, FoundTokens()
        past = np.zeros((*cross.shape[:4], 0, cross.shape[5]), np.float32)
        for _ in range(min(int(lengths_N[0]), cross.shape[4]) * (about.max_tokens or 1)):
            logits_NV, past = self.run("step", np.array([[token]]), cross, lengths_N, past)
            scores_V = log_softmax(logits_NV[0])
            scores_V[[id for id in range(about.first) if id != about.end]] = -np.inf
            token = int(scores_V.argmax())
            found.log_probability += float(scores_V[token])
            if token == about.end:
                break
            found.tokens.append(token)
        return found


def load_graph(path: Path, threads: int) -> Any:
    """Load a graph that holds its own weights."""
    content = read_limited(path, MAX_GRAPH_BYTES, "more than a graph has")
    if EXTERNAL in content:
        raise UserError(f"{path}: its weights are in another file; expected a graph that holds them")
    runtime = import_extra("onnxruntime", "an exported model", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many classes, which have no base of their own
        reason = str(error).partition("\n")[0][:200]
        raise UserError(f"{path}: not a graph of ONNX ({reason}); export the model again") from None


def log_softmax(scores_V: np.ndarray) -> np.ndarray:
    shifted_V: np.ndarray = scores_V - scores_V.max()
    return shifted_V - np.log(np.exp(shifted_V).sum())
