"""From recognized segments back to recordings; where they overlap no word is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from asr.errors import UserError
from asr.transcription.segmentation import AudioSegment
from asr.transcription.sources import Source, describe_source
from asr.transcripts.transcript import Segment, Transcript, Word

SHORTEST_WORD = 0.02  # seconds; alignment may leave a word without a step of its own


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


def clip_words(words: Sequence[Word], segment: AudioSegment) -> list[Word]:
    """The same words, each inside the span of speech that it is in, and none without length.

    Alignment hands out all of the time, pauses too: to the first word after a pause or the last one before.
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
    """To the span that it shares most time with; a word outside of all stays, since the VAD missed it."""
    shared = [(min(word.end, end) - max(word.start, start), start, end) for start, end in speech]
    most, start, end = max(shared, default=(0.0, 0.0, 0.0))
    if most <= 0:
        return word
    return replace(word, start=max(word.start, start), end=min(word.end, end))


def make_segment(
    place: AudioSegment | Segment, text: str, words: Sequence[Word], method: str, warnings: tuple[str, ...]
) -> Segment:
    start, end = (words[0].start, words[-1].end) if words else (place.start, place.end)
    confidence = sum(word.confidence for word in words) / len(words) if words else 0.0
    return Segment(start, end, text, tuple(words), confidence, method, warnings)
