"""Transcripts with times, and the JSON that describes them: see docs/json.md."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asr.audio.reading import Damage


@dataclass(frozen=True)
class Word:
    """One word of a transcript. Times are seconds from the start of the recording."""

    text: str
    start: float
    end: float
    confidence: float
    """How sure the model is, 0 to 1."""

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "start": round_seconds(self.start),
            "end": round_seconds(self.end),
            "confidence": round_score(self.confidence),
        }


@dataclass(frozen=True)
class Segment:
    """A segment of speech between pauses."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] = ()
    confidence: float = 0.0
    """Mean of the words' confidences."""
    decoding: str = ""
    """How the text was found, such as "joint" or "ctc"."""
    warnings: tuple[str, ...] = ()
    """Why another decoding was taken than the one asked for, or why the text may be wrong."""
    channel: int | None = None
    """Counted from 1, where each channel of a recording was transcribed by itself: one speaker each."""
    average_log_probability: float | None = None
    """Mean over its tokens and the end, without a language model; None where nothing was decoded."""
    no_speech_probability: float | None = None
    """Whisper: that nobody speaks; None of a model that does not tell."""
    temperature: float | None = None
    """Whisper: 0, or at which the text was drawn; None of a model that draws none."""
    tokens: tuple[int, ...] = ()
    """Ids in the vocabulary of the model, as decoded, where asked for."""
    language: str | None = None
    """Code of the language that was given to the model or detected; None: the model knows one."""
    language_probability: float | None = None
    token_scores: tuple[float, int] = (0.0, 0)
    """Sum of the log-probabilities of its tokens and the end, and their number, for the mean over several."""

    @property
    def compression_ratio(self) -> float:
        return measure_compression(self.text)

    @property
    def speaker(self) -> str | None:
        return None if self.channel is None else f"speaker{self.channel}"

    def to_dict(self) -> dict[str, Any]:
        speaker = {} if self.channel is None else {"speaker": self.speaker, "channel": self.channel}
        return {
            **speaker,
            "start": round_seconds(self.start),
            "end": round_seconds(self.end),
            "text": self.text,
            "confidence": round_score(self.confidence),
            "average_log_probability": round_score(self.average_log_probability),
            "no_speech_probability": round_score(self.no_speech_probability),
            "temperature": round_score(self.temperature),
            "compression_ratio": round_score(self.compression_ratio),
            "decoding": self.decoding,
            "warnings": list(self.warnings),
            "words": [word.to_dict() for word in self.words],
            **({"tokens": list(self.tokens)} if self.tokens else {}),
        }


def measure_compression(text: str) -> float:
    """Bytes of the text over those that zlib needs for it; 0 for no text. Under 1 for short ones."""
    content = text.encode("utf-8", "surrogatepass")
    return len(content) / len(zlib.compress(content))


@dataclass(frozen=True)
class Transcript:
    """The transcript of one recording."""

    id: str
    """Name of the recording: the stem of its file, or the id of its utterance."""
    audio: str
    """Path of the file; "-" for standard input, "" for an array."""
    duration: float
    """Seconds."""
    segments: tuple[Segment, ...] = ()
    speaker: str | None = None
    separator: str = " "
    """Between the texts of two segments; "" in languages without spaces."""
    warnings: tuple[str, ...] = ()
    """What is missing, such as the rest of a file that breaks off."""
    language: str | None = None
    """Code of what is spoken; None: the model knows one language, and nobody asked."""
    language_probability: float | None = None
    """Of that language, by the first speech; None where it was given, or there is no other."""
    model: str = ""
    """As it was given to `load_model`."""
    out_of_domain: str = ""
    """Why this is probably not what the model was trained for; "" where nothing tells so."""
    arithmetic: str = ""
    """Precision of matrix products and device, such as "int8 on cpu": with another, texts may differ."""
    incomplete: Damage | None = None
    """What could not be decoded of a damaged file."""

    @property
    def text(self) -> str:
        return self.separator.join(segment.text for segment in self.segments if segment.text)

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(word for segment in self.segments for word in segment.words)

    def to_dict(self) -> dict[str, Any]:
        """Build the record of the formats json and jsonl; what is not known is left out."""
        record: dict[str, Any] = {
            "id": self.id,
            "audio": self.audio,
            "duration": round_seconds(self.duration),
            "text": self.text,
        }
        if self.speaker is not None:
            record["speaker"] = self.speaker
        if self.language is not None:
            record["language"] = self.language
            record["language_probability"] = round_score(self.language_probability)
        for name in ("model", "out_of_domain", "arithmetic"):
            if value := getattr(self, name):
                record[name] = value
        if self.incomplete is not None:
            record["incomplete"] = _describe_damage(self.incomplete)
        if self.warnings:
            record["warnings"] = list(self.warnings)
        return record | {"segments": [segment.to_dict() for segment in self.segments]}


def _describe_damage(damage: Damage) -> dict[str, Any]:
    """Seconds that the file promises, that were found, and the spans that are missing; null: unknown."""

    def known(seconds: float | None) -> float | None:
        return None if seconds is None else round_seconds(seconds)

    missing = [[known(start), known(end)] for start, end in damage.missing]
    return {"promised": known(damage.promised), "found": known(damage.found), "missing": missing}


def to_milliseconds(seconds: float) -> int:
    """The nearest; never below 0. The product of two floats would be rounded twice."""
    return max(0, round(Fraction(seconds) * 1000))


def round_seconds(seconds: float) -> float:
    return to_milliseconds(seconds) / 1000


def round_score(value: float | None) -> float | None:
    """Round a confidence or score to four digits; None where there is none."""
    return round(value, 4) if value is not None and math.isfinite(value) else None
