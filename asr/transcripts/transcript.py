"""What was said in a recording, and when: plain records that decoding makes and writers and scoring read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr.audio import Damage


@dataclass(frozen=True)
class Word:
    """One word of a transcript. Times are seconds from the start of the recording."""

    text: str
    start: float
    end: float
    confidence: float
    """How sure the model is, 0 to 1."""


@dataclass(frozen=True)
class Segment:
    """A stretch of speech between pauses."""

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

    @property
    def speaker(self) -> str | None:
        return None if self.channel is None else f"speaker{self.channel}"


@dataclass(frozen=True)
class Transcript:
    """All that was said in one recording."""

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
