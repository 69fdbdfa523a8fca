"""Decode a split with one or more setups, and measure the error rates and speed of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from asr.audio.segmentation import AudioSegment, Recording
from asr.data.manifest import Utterance
from asr.data.manifest_readers import read_data
from asr.data.utterance_audio import fetch, read_audio
from asr.decoding.decode import read_clock
from asr.errors import UserError
from asr.files import replace_file
from asr.scoring.counting import score
from asr.scoring.result import Score
from asr.text.normalization import TextConfig, normalize
from asr.transcription.transcribe import WINDOW, Recognizer, Request, batch_by_length
from asr.transcripts.transcript import Segment, Transcript
from asr.transcripts.writers import format_transcript

Normalizer = Callable[[str, str | None], str]
"""Maps a text and its language (None if unknown) to the text that is scored."""
ReadAudio = tuple[Utterance, np.ndarray]


@dataclass(kw_only=True)
class ComputingTime:
    """Seconds of computing (features, model and search, without reading files) and of audio."""

    seconds: float = 0.0
    audio_seconds: float = 0.0

    @property
    def real_time_factor(self) -> float:
        """Seconds of computing per second of audio."""
        return self.seconds / self.audio_seconds if self.audio_seconds else math.nan

    def describe_time(self) -> dict[str, float]:
        names = ("real_time_factor", "seconds", "audio_seconds")
        return {name: getattr(self, name) for name in names}


@dataclass
class DecodedSplit(ComputingTime):
    """Texts of the utterances as decoded with one setup, and the computing time."""

    request: Request
    texts: dict[str, str] = field(default_factory=dict)  # ID to text, as the model wrote it
    warnings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """ID to the warnings of the checks, for utterances whose first text they rejected."""
    languages: dict[str, str] = field(default_factory=dict)  # ID to language, if the model has several

    def add(self, utterance: Utterance, segment: Segment) -> None:
        self.texts[utterance.id] = segment.text
        if segment.language is not None:
            self.languages[utterance.id] = segment.language
        if segment.warnings:
            self.warnings[utterance.id] = segment.warnings


@dataclass(frozen=True)
class EvaluatedSplit:
    """The readable utterances, decoded with each setup, and the problems of the others."""

    setups: dict[str, DecodedSplit]
    problems: dict[str, str]  # ID to message


def decode_utterances(
    transcriber: Recognizer,
    utterances: Sequence[Utterance],
    requests: Mapping[str, Request],
    report: Callable[[float], None] = lambda seconds: None,
) -> EvaluatedSplit:
    """Decode each utterance as `asr transcribe` does; it is encoded only once for all requests."""
    for request in requests.values():
        transcriber.check(request)
    first, rate = next(iter(requests.values())), transcriber.sample_rate
    split = EvaluatedSplit({name: DecodedSplit(request) for name, request in requests.items()}, {})

    def is_long(num_samples: int) -> bool:
        return num_samples / rate > transcriber.uncut_seconds

    def decode(batch: Sequence[ReadAudio]) -> None:
        if is_long(len(batch[0][1])):
            _decode_long(transcriber, batch, split)
        else:
            segments = [AudioSegment(0.0, audio, rate) for _, audio in batch]
            results = transcriber.read(segments, {name: own.request for name, own in split.setups.items()})
            for name, texts in results.items():
                split.setups[name].seconds += texts.seconds
                for (item, _), segment in zip(batch, texts.segments, strict=True):
                    split.setups[name].add(item, segment)
        for own in split.setups.values():
            own.audio_seconds += sum(len(audio) for _, audio in batch) / rate

    def group(num_samples: int) -> int:
        return -1 if is_long(num_samples) else transcriber.decoder.padded_length(num_samples)

    # Models that cut utterances need a whole window of them at once to fill their batches.
    batch_size = first.batch_size if transcriber.uncut_seconds else WINDOW * first.batch_size
    decode_split(
        utterances, rate, batch_size, decode, split.problems, report, group, WINDOW * first.batch_size
    )
    return split


def _decode_long(transcriber: Recognizer, batch: Sequence[ReadAudio], split: EvaluatedSplit) -> None:
    """Cut each utterance like a recording, and join the texts."""
    items, rate = {item.id: item for item, _ in batch}, transcriber.sample_rate
    recordings = [
        Recording(
            item.audio, item.id, duration=item.duration, content=audio, sample_rate=rate, is_utterance=True
        )
        for item, audio in batch
    ]
    for own in split.setups.values():
        began, request = read_clock(transcriber.device), replace(own.request, has_words=False)
        for recording, result in transcriber.transcribe_events(recordings, request):
            if isinstance(result, Transcript):
                warnings = tuple(warning for segment in result.segments for warning in segment.warnings)
                item = items[recording.id]
                own.add(
                    item,
                    Segment(0.0, item.duration, result.text, warnings=warnings, language=result.language),
                )
        own.seconds += read_clock(transcriber.device) - began


def decode_split(
    utterances: Sequence[Utterance],
    sample_rate: int,
    batch_size: int,
    decode: Callable[[Sequence[ReadAudio]], None],
    problems: dict[str, str],
    report: Callable[[float], None] = lambda seconds: None,
    group: Callable[[int], int] = lambda num_samples: 0,
    window: int | None = None,
) -> None:
    """Read utterances and decode them in batches, longest first, so that a lack of memory shows at once.

    All utterances in a batch have the same `group`, which depends on the number of samples. Utterances that
    cannot be read, or that `decode` refuses, become problems, and the rest continues. `report` is called with
    the seconds of audio just decoded. `window` utterances are read at once.
    """
    ordered = sorted(utterances, key=lambda utterance: (-utterance.duration, utterance.id))
    window = window or WINDOW * batch_size
    for start in range(0, len(ordered), window):
        read = read_batch(ordered[start : start + window], sample_rate, problems)
        for rows in batch_by_length([group(len(audio)) for _, audio in read], batch_size):
            batch = [read[row] for row in rows]
            _decode_or_split(decode, batch, problems)
            report(sum(len(audio) for _, audio in batch) / sample_rate)


def _decode_or_split(
    decode: Callable[[Sequence[ReadAudio]], None], batch: Sequence[ReadAudio], problems: dict[str, str]
) -> None:
    try:
        decode(batch)
    except UserError as error:
        if len(batch) > 1:
            for one in batch:
                _decode_or_split(decode, [one], problems)
        else:
            problems[batch[0][0].id] = f"utterance {batch[0][0].id}: {error}"


def read_batch(
    utterances: Sequence[Utterance], sample_rate: int, problems: dict[str, str]
) -> list[ReadAudio]:
    read = []
    for utterance, content in zip(utterances, fetch(utterances), strict=True):
        try:
            read.append((utterance, read_audio(utterance, sample_rate, content)))
        except UserError as error:
            problems[utterance.id] = str(error)
    return read


# --- scores -------------------------------------------------------------------------------------


def read_references(path: str | Path) -> list[Utterance]:
    """Read a manifest in which every utterance must have a reference text."""
    utterances = read_utterances(path)
    for utterance in utterances:
        if utterance.text is None:
            raise UserError(f"{path}: utterance {utterance.id} has no text to compare with; add one")
        _ = utterance.more_references  # raises an error unless each is a text
    return utterances


def read_utterances(path: str | Path) -> list[Utterance]:
    """Read a manifest or a folder of shards, which must not be empty or have duplicate IDs."""
    utterances = list(read_data(path))
    if not utterances:
        raise UserError(f"{path}: contains no utterances; give another manifest")
    ids: set[str] = set()
    for utterance in utterances:
        if utterance.id in ids:
            raise UserError(f"{path}: duplicate id {utterance.id}; each utterance needs its own")
        ids.add(utterance.id)
    return utterances


def make_normalizer(config: TextConfig) -> Normalizer:
    """Return a normalizer with a run's text rules for scoring (text.scoring)."""
    return lambda text, _: normalize(text, config.scoring)


def score_setups(
    split: EvaluatedSplit, utterances: Sequence[Utterance], normalizer: Normalizer
) -> dict[str, Score]:
    """Score all utterances, normalized on both sides; words of those not decoded count as deletions."""
    references = _normalize({item.id: item.text or "" for item in utterances}, utterances, normalizer)
    speakers = {item.id: item.speaker for item in utterances if item.speaker is not None}
    alternatives = {
        item.id: [normalizer(text, item.language) for text in item.more_references] for item in utterances
    }
    return {
        name: score(
            references,
            _normalize(decoded.texts, utterances, normalizer),
            speakers=speakers if len(speakers) == len(utterances) else None,
            alternatives=alternatives,
        )
        for name, decoded in split.setups.items()
    }


def _normalize(
    texts: Mapping[str, str], utterances: Sequence[Utterance], normalizer: Normalizer
) -> dict[str, str]:
    return {item.id: normalizer(texts[item.id], item.language) for item in utterances if item.id in texts}


# --- files --------------------------------------------------------------------------------------


def write_texts(
    folder: str | Path, split: EvaluatedSplit, utterances: Sequence[Utterance], normalizer: Normalizer
) -> None:
    """Write references and hypotheses as scored, so that `asr score` computes the same rates from them.

    JSON Lines include the speakers, for confidence intervals; trn files are for sclite. NAME.raw.jsonl has
    the text as the model wrote it. Alternative references are in reference_2.jsonl and so on.
    """
    folder = Path(folder)
    texts = {"reference": {item.id: item.text or "" for item in utterances}}
    for number in range(max((len(item.more_references) for item in utterances), default=0)):
        having = [item for item in utterances if len(item.more_references) > number]
        texts[f"reference_{number + 2}"] = {item.id: item.more_references[number] for item in having}
    texts |= {name: decoded.texts for name, decoded in split.setups.items()}
    for name, raw in texts.items():
        known = [item for item in utterances if item.id in raw]
        normalized, setup = _normalize(raw, known, normalizer), name if name in split.setups else ""
        for kind in ("trn", "jsonl"):
            _write(folder / f"{name}.{kind}", kind, known, normalized, setup)
        if setup:
            _write(folder / f"{name}.raw.jsonl", "jsonl", known, raw, setup)


def _write(
    path: Path, format_name: str, utterances: Sequence[Utterance], texts: Mapping[str, str], setup: str
) -> None:
    with replace_file(path) as file:
        for item in utterances:
            text = texts[item.id]
            segment = Segment(0.0, item.duration, text, confidence=math.nan, decoding=setup)
            transcript = Transcript(item.id, item.audio, item.duration, (segment,), item.speaker)
            file.write(format_transcript(format_name, transcript).encode())
