"""Join the words of segments, and the channels of a recording."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from asr.audio.segmentation import AudioSegment
from asr.errors import UserError
from asr.transcripts.transcript import Segment, Transcript, Word

logger = logging.getLogger(__name__)
Value = TypeVar("Value")

SHORTEST_WORD = 0.02  # seconds; alignment may leave a word without a step of its own
EARLY_SECONDS = 0.2  # by which alignment may be early


def merge_channels(found: Sequence[Transcript | UserError]) -> Transcript | UserError:
    """Merge the channels of one recording: their segments in the order of time, each channel a speaker."""
    good = [result for result in found if isinstance(result, Transcript)]
    if len(good) < len(found):
        return next(result for result in found if isinstance(result, UserError))
    first = good[0]
    if all(one.segments == first.segments for one in good):
        if len(good) > 1 and first.segments:
            logger.warning(
                "%s: its channels are all the same, so that they tell no speakers apart", first.audio
            )
        return first
    spoken = next((one for one in good if one.segments), first)
    numbered = enumerate(good, 1)
    segments = [replace(segment, channel=channel) for channel, one in numbered for segment in one.segments]
    return replace(
        first,
        duration=max(one.duration for one in good),
        segments=tuple(sorted(segments, key=lambda segment: segment.start)),
        warnings=tuple(dict.fromkeys(warning for one in good for warning in one.warnings)),
        language=spoken.language,
        language_probability=spoken.language_probability,
        out_of_domain=next((one.out_of_domain for one in good if one.out_of_domain), ""),
    )


def join_segments(
    before: tuple[AudioSegment, Segment], after: tuple[AudioSegment, Segment], separator: str
) -> tuple[Segment, Segment]:
    """Two neighbours; where speech was cut and they overlap, each word is in one of them."""
    (left_audio, left), (right_audio, right) = before, after
    cut = right_audio.cut_before
    if cut is None or left_audio.cut_after != cut:
        return left, right
    left_words, right_words = join_words(left.words, right.words, cut)
    return keep_words(left, left_words, separator), keep_words(right, right_words, separator)


def keep_words(segment: Segment, words: Sequence[Word], separator: str) -> Segment:
    """Keep only these words of it."""
    if len(words) == len(segment.words):
        return segment
    return replace_words(segment, separator.join(word.text for word in words), words)


def join_words(before: Sequence[Word], after: Sequence[Word], cut: float) -> tuple[list[Word], list[Word]]:
    """Divide the words of two segments that overlap around `cut`, so that none is lost or doubled.

    They part behind the word nearest to the cut on which both agree: it is whole in both. Without one,
    each keeps the words whose middle is on its side.
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
    """Check that they share more than half of the shorter one: a word spoken twice in a row is not one."""
    shared = min(word.end, other.end) - max(word.start, other.start)
    return shared > min(word.end - word.start, other.end - other.start) / 2


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
    """Clip to the last span it touches; in a pause, to one that begins at once. What the VAD missed stays.

    The last one: attention moves on to the next word while the one before is still being spoken.
    """
    touched = [(start, end) for start, end in speech if word.start < end and start < word.end]
    near = [(start, end) for start, end in speech if word.end <= start < word.end + EARLY_SECONDS]
    if not touched and not near:
        return word
    start, end = touched[-1] if touched else near[0]
    start = max(word.start, start)
    return replace(word, start=start, end=max(start, min(word.end, end)))


def replace_words(segment: Segment, text: str, words: Sequence[Word]) -> Segment:
    """The same segment with another text and other words, and times and confidence of these."""
    start, end = (words[0].start, words[-1].end) if words else (segment.start, segment.end)
    return replace(
        segment, start=start, end=end, text=text, words=tuple(words), confidence=mean_confidence(words)
    )


def mean_confidence(words: Sequence[Word]) -> float:
    return sum(word.confidence for word in words) / len(words) if words else 0.0


def make_segment(
    place: AudioSegment | Segment, text: str, words: Sequence[Word], method: str, warnings: tuple[str, ...]
) -> Segment:
    start, end = (words[0].start, words[-1].end) if words else (place.start, place.end)
    return Segment(start, end, text, tuple(words), mean_confidence(words), method, warnings)
