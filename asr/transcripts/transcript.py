"""Transcripts with times: words, segments and recordings, and how segments and channels are joined."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from asr.errors import UserError, plural, shorten

if TYPE_CHECKING:
    from asr.audio.segmentation import AudioSegment

logger = logging.getLogger(__name__)

SHORTEST_WORD = 0.02  # seconds, needed because alignment may leave a word without a frame of its own
EARLY_SECONDS = 0.2  # how early alignment may place a word


@dataclass(frozen=True)
class Word:
    """One word of a transcript. Times are seconds from the start of the recording."""

    text: str
    start: float
    end: float
    confidence: float  # confidence of the model, 0 to 1

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
    confidence: float = 0.0  # mean of the words' confidences
    decoding: str = ""  # decoding method that found the text, such as "joint" or "ctc_beam"
    warnings: tuple[str, ...] = ()  # reasons why a fallback was used, or why the text may be wrong
    channel: int | None = None
    """Channel, counted from 1, if channels were transcribed separately, one speaker each."""
    average_log_probability: float | None = None
    """Mean over its tokens and the end token, without a language model; None if nothing was decoded."""
    no_speech_probability: float | None = None
    """Probability that nobody speaks; None for models that do not estimate it."""
    temperature: float | None = None
    """Sampling temperature, 0 for greedy or beam search; None for models that do not sample."""
    tokens: tuple[int, ...] = ()  # ids in the vocabulary of the model, as decoded
    language: str | None = None  # language code passed in or detected; None: the model supports only one
    language_probability: float | None = None
    token_scores: tuple[float, int] = (0.0, 0)
    """Sum of the log-probabilities of its tokens and the end token, and their number."""
    diarized: str | None = None  # speaker found by diarization

    @property
    def compression_ratio(self) -> float:
        return measure_compression(self.text)

    @property
    def speaker(self) -> str | None:
        return self.diarized if self.channel is None else f"speaker{self.channel}"

    def to_dict(self) -> dict[str, Any]:
        own = {"speaker": self.speaker, "channel": self.channel}
        return {
            **{name: value for name, value in own.items() if value is not None},
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
        }


def measure_compression(text: str) -> float:
    """Return the compression ratio of a text by zlib: 0 for an empty text, under 1 for short ones."""
    content = text.encode("utf-8", "surrogatepass")
    return len(content) / len(zlib.compress(content))


@dataclass(frozen=True, repr=False)
class Transcript:
    """The transcript of one recording; as a string, its text."""

    id: str  # name of the recording: the stem of its file, or the id of its utterance
    audio: str  # path of the file; "-" for standard input, "" for an array
    duration: float  # seconds
    segments: tuple[Segment, ...] = ()
    speaker: str | None = None
    separator: str = " "  # between the texts of two segments; "" in languages without spaces
    warnings: tuple[str, ...] = ()  # missing parts, such as the rest of a truncated file
    language: str | None = None  # language code passed in or detected; None: the model supports only one
    language_probability: float | None = None
    """Probability of that language in the first speech; None if it was not detected."""
    model: str = ""  # the argument of `load_model`
    out_of_domain: str = ""
    """Warning that the model was probably not trained for such audio; "" if it was, or if unknown."""
    compute_type: str = ""
    """Precision of matrix products and device, such as "int8 on cpu", on which texts may depend."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        parts = plural(len(self.segments), "segment")
        return f"Transcript({self.id!r}, {self.duration:.1f} s, {parts}: {shorten(self.text)})"

    @property
    def text(self) -> str:
        return self.separator.join(segment.text for segment in self.segments if segment.text)

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(word for segment in self.segments for word in segment.words)

    def to_dict(self) -> dict[str, Any]:
        """Build the record of the formats json and jsonl, without fields that are unknown."""
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
        for name in ("model", "out_of_domain", "compute_type"):
            if value := getattr(self, name):
                record[name] = value
        if self.warnings:
            record["warnings"] = list(self.warnings)
        return record | {"segments": [segment.to_dict() for segment in self.segments]}


def to_milliseconds(seconds: float) -> int:
    """Round to milliseconds, at least 0. Uses a fraction, as a product of floats would be rounded twice."""
    return max(0, round(Fraction(seconds) * 1000))


def round_seconds(seconds: float) -> float:
    return to_milliseconds(seconds) / 1000


def round_score(value: float | None) -> float | None:
    """Round a confidence or score to four decimals; None if it is missing or not finite."""
    return round(value, 4) if value is not None and math.isfinite(value) else None


# --- segments and channels ------------------------------------------------------------------------


def make_segment(
    source: AudioSegment | Segment, text: str, words: Sequence[Word], method: str, warnings: tuple[str, ...]
) -> Segment:
    source = Segment(source.start, source.end, "", decoding=method, warnings=warnings)
    return replace_words(source, text, words)


def replace_words(segment: Segment, text: str, words: Sequence[Word]) -> Segment:
    """Return the segment with another text and other words, which set its times and confidence."""
    start, end = (words[0].start, words[-1].end) if words else (segment.start, segment.end)
    confidence = sum(word.confidence for word in words) / max(len(words), 1)
    return replace(segment, start=start, end=end, text=text, words=tuple(words), confidence=confidence)


def keep_words(segment: Segment, words: Sequence[Word], separator: str) -> Segment:
    """Return the segment with only these of its words."""
    if len(words) == len(segment.words):
        return segment
    return replace_words(segment, separator.join(word.text for word in words), words)


def merge_channels(results: Sequence[Transcript | UserError]) -> Transcript | UserError:
    """Merge the channels of one recording into one transcript, ordered by time; each channel is a speaker."""
    transcripts = [result for result in results if isinstance(result, Transcript)]
    if len(transcripts) < len(results):
        return next(result for result in results if isinstance(result, UserError))
    first = transcripts[0]
    if all(one.segments == first.segments for one in transcripts):
        if len(transcripts) > 1 and first.segments:
            logger.warning("%s: all channels are identical, so speakers are unknown", first.audio)
        return first
    spoken = next((one for one in transcripts if one.segments), first)
    numbered = enumerate(transcripts, 1)
    segments = [replace(segment, channel=channel) for channel, one in numbered for segment in one.segments]
    return replace(
        spoken,
        duration=max(one.duration for one in transcripts),
        segments=tuple(sorted(segments, key=lambda segment: segment.start)),
        warnings=tuple(dict.fromkeys(warning for one in transcripts for warning in one.warnings)),
        out_of_domain=next((one.out_of_domain for one in transcripts if one.out_of_domain), ""),
    )


# --- words where segments overlap, and pauses -----------------------------------------------------


def join_words(before: Sequence[Word], after: Sequence[Word], cut: float) -> tuple[list[Word], list[Word]]:
    """Divide the words of two segments that overlap around `cut`, so that none is lost or duplicated.

    The division is after the word nearest to the cut that both segments contain, because it is complete in
    both. If they share no word, each keeps the words whose middle is on its side.
    """
    agreed = [
        (abs(word.middle - cut), left, right)
        for left, word in enumerate(before)
        for right, other in enumerate(after)
        if word.text == other.text and _is_same_time(word, other)
    ]
    if agreed:
        _, left, right = min(agreed)
        return list(before[: left + 1]), list(after[right + 1 :])
    return [word for word in before if word.middle < cut], [word for word in after if word.middle >= cut]


def _is_same_time(word: Word, other: Word) -> bool:
    """Return True if the words overlap by over half of the shorter, unlike one that is spoken twice."""
    shared = min(word.end, other.end) - max(word.start, other.start)
    return shared > min(word.end - word.start, other.end - other.start) / 2


def clip_words(words: Sequence[Word], segment: AudioSegment) -> list[Word]:
    """Clip each word to the span of speech that contains it, and give each a positive duration.

    This is needed because alignment also assigns pauses, to the word before or after them.
    """
    clipped = [_clip(word, segment.speech) for word in words]
    shortest = min(SHORTEST_WORD, (segment.end - segment.start) / max(len(words), 1))
    free = segment.start
    for index, word in enumerate(clipped):
        start = max(word.start, free)
        free = max(word.end, start + shortest)
        clipped[index] = replace(word, start=start, end=free)
    limit = segment.end
    for index, word in reversed(list(enumerate(clipped))):
        end = min(word.end, limit)
        limit = max(segment.start, min(word.start, end - shortest))
        clipped[index] = replace(word, start=limit, end=end)
    return clipped


def _clip(word: Word, speech: Sequence[tuple[float, float]]) -> Word:
    """Clip a word to the last span of speech that it touches, else to one that starts soon; or leave it.

    It is the last one because attention moves to the next word while the previous one is still being spoken.
    """
    touched = [(start, end) for start, end in speech if word.start < end and start < word.end]
    near = [(start, end) for start, end in speech if word.end <= start < word.end + EARLY_SECONDS]
    if not touched and not near:
        return word
    start, end = touched[-1] if touched else near[0]
    start = max(word.start, start)
    return replace(word, start=start, end=max(start, min(word.end, end)))
