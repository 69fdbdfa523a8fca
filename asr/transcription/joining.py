"""From recognized segments back to recordings; where they overlap no word is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from asr.errors import UserError
from asr.transcription.segmentation import AudioSegment
from asr.transcription.sources import Source, describe_source
from asr.transcripts.transcript import Segment, Transcript, Word


@dataclass(frozen=True)
class Recognized:
    """The text of a segment of audio, and where that was cut out of speech."""

    segment: Segment
    cut_before: float | None
    cut_after: float | None
    language: str | None = None
    """That was told to the model, or that it heard."""


@dataclass
class Recording:
    """A source on its way: its segments come in any order, each to its own place."""

    source: Source
    num_segments: int = 0
    recognized: dict[int, Recognized] = field(default_factory=dict)
    end: End | None = None
    reported_seconds: float = 0.0
    """Of its segments that are recognized."""


@dataclass(frozen=True)
class End:
    """Of a recording, whole or where it broke off."""

    seconds: float
    error: UserError | None


def assemble(recording: Recording, separator: str) -> Transcript | UserError:
    """Without anything read, the error; else what was read, with the error as a warning."""
    assert recording.end is not None
    seconds, error = recording.end.seconds, recording.end.error
    if error is not None and not seconds:
        return error
    name, path, _ = describe_source(recording.source)
    warnings = () if error is None else (str(error),)
    found = [recording.recognized[index] for index in range(recording.num_segments)]
    segments = tuple(
        segment for segment in join_segments(found, separator) if segment.text or segment.warnings
    )
    return Transcript(name, path, seconds, segments, None, separator, warnings)


def join_segments(found: Sequence[Recognized], separator: str) -> list[Segment]:
    """The segments in their order; where speech was cut and they overlap, each word is in one of them."""
    segments = [one.segment for one in found]
    for index in range(1, len(found)):
        before, after, cut = segments[index - 1], segments[index], found[index].cut_before
        if cut is None or found[index - 1].cut_after != cut:
            continue
        parts = join_words(before.words, after.words, cut)
        for position, old, words in zip((index - 1, index), (before, after), parts, strict=True):
            if len(words) < len(old.words):
                text = separator.join(word.text for word in words)
                segments[position] = make_segment(old, text, words, old.decoding, old.warnings)
    return segments


def join_words(before: Sequence[Word], after: Sequence[Word], cut: float) -> tuple[list[Word], list[Word]]:
    """Of two segments that overlap around `cut`, the words that each keeps, so that none is lost or doubled.

    They part behind the word nearest to the cut on which both agree: it is heard whole in both. Without one,
    each keeps the words whose middle is on its side.
    """
    agreed = [
        (abs(_middle(word) - cut), left, right)
        for left, word in enumerate(before)
        for right, other in enumerate(after)
        if word.text == other.text and _is_same_time(word, other)
    ]
    if agreed:
        _, left, right = min(agreed)
        return list(before[: left + 1]), list(after[right + 1 :])
    return [word for word in before if _middle(word) < cut], [word for word in after if _middle(word) >= cut]


def _is_same_time(word: Word, other: Word) -> bool:
    """Whether they share more than half of the shorter one: a word said twice in a row is not one word."""
    shared = min(word.end, other.end) - max(word.start, other.start)
    return shared > min(word.end - word.start, other.end - other.start) / 2


def _middle(word: Word) -> float:
    return (word.start + word.end) / 2


def make_segment(
    place: AudioSegment | Segment, text: str, words: Sequence[Word], method: str, warnings: tuple[str, ...]
) -> Segment:
    start, end = (words[0].start, words[-1].end) if words else (place.start, place.end)
    confidence = sum(word.confidence for word in words) / len(words) if words else 0.0
    return Segment(start, end, text, tuple(words), confidence, method, warnings)
