"""A split decoded in several ways at once, and how good and how fast each of them is."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from asr.audio import reading as audio_files
from asr.audio.segmentation import AudioSegment
from asr.config import Config
from asr.data.manifest import Utterance, read_manifest
from asr.decoding.fusion import FusionModel
from asr.decoding.search import DecodingConfig, Hypothesis, Method, decode, resolve_method
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.files import replace_file
from asr.scoring.counting import Score, score
from asr.system.checkpoint import System
from asr.text.normalization import TextConfig, normalize_for_scoring
from asr.transcription.transcriber import Request, Transcriber
from asr.transcripts.transcript import Segment, Transcript
from asr.transcripts.writers import format_transcript

logger = logging.getLogger(__name__)

# B utterances of a batch, S samples, T frames or encoded steps, F features, D dimension


Normalizer = Callable[[str], str]
ConfigType = TypeVar("ConfigType", bound=Config, default=DecodingConfig, covariant=True)


@dataclass
class Decoded(Generic[ConfigType]):
    """What one way of decoding made of the utterances, and how long that took."""

    config: ConfigType
    """Of a model trained here, with its method resolved: never auto."""
    texts: dict[str, str] = field(default_factory=dict)
    """id to text, as the model wrote it."""
    seconds: float = 0.0
    """Of computing: features, encoder and search, without reading files."""
    audio_seconds: float = 0.0

    @property
    def real_time_factor(self) -> float:
        """Seconds of computing for a second of audio."""
        return self.seconds / self.audio_seconds if self.audio_seconds else math.nan


@dataclass(frozen=True)
class DecodedSplit(Generic[ConfigType]):
    """The utterances that could be read, decoded in each way, and the faults of the others."""

    ways: dict[str, Decoded[ConfigType]]
    faults: dict[str, str]
    """id to message."""


def choose_ways(
    system: System, methods: Sequence[Method], config: DecodingConfig
) -> dict[str, DecodingConfig]:
    """A config for each method, under the method's name; refuses what the model has no head for."""
    ways: dict[str, DecodingConfig] = {}
    for method in methods:
        resolved = resolve_method(system.model, method)
        ways[resolved] = config.model_copy(update={"method": resolved})
    return ways


@torch.inference_mode()
def decode_utterances(
    system: System,
    utterances: Sequence[Utterance],
    ways: Mapping[str, DecodingConfig],
    *,
    device: torch.device,
    batch_size: int = 8,
    language_model: FusionModel | None = None,
    report: Callable[[float], None] = lambda seconds: None,
) -> DecodedSplit:
    """Every utterance as it stands in the manifest, encoded once and decoded in each way.

    A file that cannot be read is a fault of its utterances, and so is audio that is too long for the model;
    the rest goes on. `report` is told the seconds of audio of each batch that is done.
    """
    model, front_end = system.model.to(device).eval(), system.front_end.to(device)
    sample_rate = front_end.config.sample_rate
    split = DecodedSplit({name: Decoded(config) for name, config in ways.items()}, {})
    for batch in batch_utterances(utterances, batch_size):
        read = read_batch(batch, sample_rate, split.faults)
        seconds = sum(len(audio) for _, audio in read) / sample_rate
        usable = [(item, audio) for item, audio in read if front_end.num_frames(len(audio)) > 0]
        best: dict[str, list[Hypothesis]] = {name: [] for name in ways}
        for speed in sorted({speed for config in ways.values() for speed in config.speeds}):
            clock = Stopwatch(device)
            # The slowest is first and longest: who is dropped, is so before anything is decoded.
            usable, encoded = encode_batch(model.encode, front_end, usable, device, split.faults, speed)
            if encoded is None:
                break
            encoded_BTD, encoded_lengths_B = encoded
            encoding_seconds = clock.read()
            for name, config in ways.items():
                if speed in config.speeds:
                    clock = Stopwatch(device)
                    found = decode(model, encoded_BTD, encoded_lengths_B, config, language_model)
                    best[name] = choose_likelier(best[name], found, encoded_lengths_B)
                    split.ways[name].seconds += encoding_seconds + clock.read()
        done = [(item, audio) for item, audio in read if item.id not in split.faults]
        for name, decoded in split.ways.items():
            # In less than a frame nothing can be said.
            decoded.texts |= {item.id: "" for item, _ in done}
            for (item, _), hypothesis in zip(usable, best[name], strict=True):
                decoded.texts[item.id] = system.tokenizer.decode(list(hypothesis.tokens))
            decoded.audio_seconds += sum(len(audio) for _, audio in done) / sample_rate
        report(seconds)
    return split


def choose_likelier(
    best: list[Hypothesis], found: Sequence[Sequence[Hypothesis]], encoded_lengths_B: Tensor
) -> list[Hypothesis]:
    """Of each utterance the likelier hypothesis. `best` is empty where nothing was found before.

    Played too fast for a single encoded step, nothing is heard of an utterance: that is no text to choose.
    """
    firsts = [
        ranked[0] if length else replace(ranked[0], log_probability=-math.inf, ctc_log_probability=-math.inf)
        for ranked, length in zip(found, encoded_lengths_B.tolist(), strict=True)
    ]
    pairs = zip(best or firsts, firsts, strict=True)
    return [max(pair, key=lambda hypothesis: hypothesis.likelihood) for pair in pairs]


def transcribe_utterances(
    recognizer: Transcriber,
    utterances: Sequence[Utterance],
    request: Request,
    report: Callable[[float], None] = lambda seconds: None,
) -> DecodedSplit[Config]:
    """The same by a ready model, in the one way asked for. What it cannot hear at once, it transcribes as a
    recording: cut, and joined where the pieces overlap."""
    recognizer.check(request)
    assert request.options is not None
    decoded = Decoded(request.options)
    split = DecodedSplit({"beam" if getattr(request.options, "beam", 1) > 1 else "greedy": decoded}, {})
    longest = recognizer.window_samples or sys.maxsize
    for batch in batch_utterances(utterances, request.batch_size):
        read = read_batch(batch, recognizer.sample_rate, split.faults)
        clock = Stopwatch(recognizer.device)
        short = [(item, audio) for item, audio in read if len(audio) <= longest]
        texts = recognizer.read_texts(
            [AudioSegment(0.0, audio, recognizer.sample_rate) for _, audio in short], request
        )
        decoded.texts |= {item.id: text for (item, _), text in zip(short, texts, strict=True)}
        for item, audio in read:
            if len(audio) > longest:
                decoded.texts[item.id] = recognizer.transcribe(
                    audio, recognizer.sample_rate, options=request.options, batch_size=request.batch_size
                ).text
        decoded.seconds += clock.read()
        seconds = sum(len(audio) for _, audio in read) / recognizer.sample_rate
        decoded.audio_seconds += seconds
        report(seconds)
    return split


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'s' if threads != 1 else ''})"


class Stopwatch:
    """Seconds of work, on a GPU too, where calls return before their work is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin = self._now()

    def read(self) -> float:
        return self._now() - self._begin

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def batch_utterances(utterances: Sequence[Utterance], batch_size: int) -> Iterator[list[Utterance]]:
    """Of similar length, the longest first: if memory is too small, that is seen at once."""
    ordered = sorted(utterances, key=lambda utterance: (-utterance.duration, utterance.id))
    for start in range(0, len(ordered), batch_size):
        yield ordered[start : start + batch_size]


def read_batch(
    utterances: Sequence[Utterance], sample_rate: int, faults: dict[str, str]
) -> list[tuple[Utterance, np.ndarray]]:
    read = []
    for utterance in utterances:
        try:
            samples = audio_files.read(
                utterance.audio,
                sample_rate,
                start=utterance.start,
                duration=utterance.duration,
                channel=utterance.channel_index,
            )
        except UserError as error:
            faults[utterance.id] = str(error)
        else:
            read.append((utterance, samples))
    return read


def encode_batch(
    encode: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    front_end: FrontEnd,
    read: Sequence[tuple[Utterance, np.ndarray]],
    device: torch.device,
    faults: dict[str, str],
    speed: float = 1.0,
) -> tuple[list[tuple[Utterance, np.ndarray]], tuple[Tensor, Tensor] | None]:
    """Who of a batch can be heard, and what the model makes of these; None where nobody can.

    What is too long for a model becomes a fault: the longest ones, until the rest fits.
    """
    heard, sample_rate = list(read), front_end.config.sample_rate
    while heard:
        played = [audio_files.change_speed(audio, speed, sample_rate) for _, audio in heard]
        try:
            return heard, encode(*front_end(*pad_batch(played, device)))
        except UserError as error:
            longest = max(range(len(heard)), key=lambda row: len(heard[row][1]))
            item, _ = heard.pop(longest)
            faults[item.id] = f"utterance {item.id}: {error}"
    return heard, None


def pad_batch(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    lengths_B = torch.tensor([len(row) for row in rows])
    padded_BS = torch.zeros(len(rows), int(lengths_B.max()))
    for target, row in zip(padded_BS, rows, strict=True):
        target[: len(row)] = torch.from_numpy(row)
    return padded_BS.to(device), lengths_B.to(device)


# --- scores -------------------------------------------------------------------------------------


def read_references(path: str | Path) -> list[Utterance]:
    """A manifest in which every utterance has a text to compare with."""
    utterances = read_utterances(path)
    for utterance in utterances:
        if utterance.text is None:
            raise UserError(f"{path}: utterance {utterance.id} has no text to compare with; give it one")
    return utterances


def read_utterances(path: str | Path) -> list[Utterance]:
    """A manifest with at least one utterance, each with an id of its own."""
    utterances = list(read_manifest(path))
    if not utterances:
        raise UserError(f"{path}: no utterance in it; give a manifest with some")
    ids: set[str] = set()
    for utterance in utterances:
        if utterance.id in ids:
            raise UserError(f"{path}: the id {utterance.id} stands there twice; each needs its own")
        ids.add(utterance.id)
    return utterances


def make_normalizer(config: TextConfig) -> Normalizer:
    """The text rules of a run for scoring (text.scoring)."""
    return lambda text: normalize_for_scoring(text, config)


def score_ways(
    split: DecodedSplit[Config], utterances: Sequence[Utterance], normalizer: Normalizer
) -> dict[str, Score]:
    """Of the utterances that could be read, after both sides were made alike."""
    known = [utterance for utterance in utterances if utterance.id not in split.faults]
    references = _normalize({item.id: item.text or "" for item in known}, normalizer)
    speakers = {item.id: item.speaker for item in known if item.speaker is not None}
    return {
        name: score(
            references,
            _normalize(decoded.texts, normalizer),
            speakers=speakers if len(speakers) == len(known) else None,
        )
        for name, decoded in split.ways.items()
    }


def _normalize(texts: Mapping[str, str], normalizer: Normalizer) -> dict[str, str]:
    return {name: normalizer(text) for name, text in texts.items()}


# --- files --------------------------------------------------------------------------------------


def write_texts(
    folder: str | Path, split: DecodedSplit[Config], utterances: Sequence[Utterance], normalizer: Normalizer
) -> list[Path]:
    """For each way WAY.jsonl, the text as the model wrote it, and WAY.trn, as it is scored; the references as
    they are scored.

    `asr score reference.jsonl WAY.trn` finds the same rates and intervals; reference.trn is for sclite.
    """
    folder = Path(folder)
    known = [utterance for utterance in utterances if utterance.id not in split.faults]
    references = _normalize({item.id: item.text or "" for item in known}, normalizer)
    paths = [_write(folder / f"reference.{name}", name, known, references, "") for name in ("trn", "jsonl")]
    for name, decoded in split.ways.items():
        paths.append(
            _write(folder / f"{name}.trn", "trn", known, _normalize(decoded.texts, normalizer), name)
        )
        paths.append(_write(folder / f"{name}.jsonl", "jsonl", known, decoded.texts, name))
    return paths


def _write(
    path: Path, format_name: str, utterances: Sequence[Utterance], texts: Mapping[str, str], way: str
) -> Path:
    with replace_file(path) as file:
        for item in utterances:
            text = texts[item.id]
            segment = Segment(0.0, item.duration, text, confidence=math.nan, decoding=way)
            transcript = Transcript(item.id, item.audio, item.duration, (segment,), item.speaker)
            file.write(format_transcript(format_name, transcript).encode())
    return path
