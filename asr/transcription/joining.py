"""Join recognized segments to recordings; where they overlap no word is lost or doubled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pydantic

from asr.audio.reading import Damage
from asr.audio.segmentation import AudioSegment
from asr.audio.sources import Source, describe_source
from asr.errors import UserError
from asr.transcription.segment_log import SegmentLog
from asr.transcripts.transcript import Segment, Transcript, Word

logger = logging.getLogger(__name__)
Value = TypeVar("Value")

SHORTEST_WORD = 0.02  # seconds; alignment may leave a word without a step of its own
EARLY_SECONDS = 0.2  # by which alignment may be early


@dataclass(frozen=True)
class Recognized:
    """The text of a segment of audio, and where that was cut out of speech."""

    segment: Segment
    cut_before: float | None
    cut_after: float | None
    language: str | None = None
    """That was told to the model, or that it detected."""
    language_probability: float | None = None
    num_tokens: int = 0
    """With the end: what its average log-probability is a mean of."""
    familiarity: tuple[float, int] = (0.0, 0)
    """Log-probability and number of tokens, by which a model tells what it was not trained for."""


RECOGNIZED: pydantic.TypeAdapter[Recognized] = pydantic.TypeAdapter(Recognized)


@dataclass(frozen=True)
class End:
    """End of a recording, whole or where it broke off."""

    seconds: float
    error: UserError | None


@dataclass
class OpenRecording:
    """A source on its way: its segments come in any order, each to its own place."""

    source: Source
    log: SegmentLog | None = None
    """Where finished segments are kept for a later call."""
    num_segments: int = 0
    recognized: dict[int, Recognized] = field(default_factory=dict)
    """Those whose turn has not come."""
    end: End | None = None
    reported_seconds: float = 0.0
    """Of its segments that are recognized."""
    segments: list[Segment] = field(default_factory=list)
    """The final ones."""
    damages: list[Damage] = field(default_factory=list)
    """At most one: what is missing, if anything is."""
    language: str | None = None
    """That of its first segment."""
    language_probability: float | None = None
    familiarity: tuple[float, int] = (0.0, 0)
    """That of its segments, summed."""
    _num_taken: int = 0
    _held: Recognized | None = None  # the newest one; where speech was cut, the next one may change it

    @property
    def is_done(self) -> bool:
        return self.end is not None and self._num_taken == self.num_segments

    def recall(self, index: int, place: AudioSegment, kind: pydantic.TypeAdapter[Value]) -> Value | None:
        """Return what an earlier call found in the same segment, or window."""
        return None if self.log is None else self.log.find(index, (place.start, place.end), kind)

    def keep(self, index: int, place: AudioSegment, value: dict[str, Any]) -> None:
        """Log what was found in a segment, or window, for a later call if this one is interrupted."""
        if self.log is not None:
            self.log.add(index, (place.start, place.end), value)

    def add(self, one: Recognized) -> None:
        self.recognized[self.num_segments] = one
        self.num_segments += 1

    def take_final(self, separator_in: Callable[[str | None], str]) -> list[Segment]:
        """The segments that no later one can change, in their order, each of them once."""
        final = []
        while (one := self.recognized.pop(self._num_taken, None)) is not None:
            self._num_taken += 1
            if self.language is None:
                self.language, self.language_probability = one.language, one.language_probability
            self.familiarity = (
                self.familiarity[0] + one.familiarity[0],
                self.familiarity[1] + one.familiarity[1],
            )
            before, self._held = self._held, one
            if before is not None:
                left, right = join_segments(before, one, separator_in(self.language))
                final.append(left)
                self._held = replace(one, segment=right)
            if one.cut_after is None:
                final.append(self._held.segment)
                self._held = None
        if self.is_done and self._held is not None:
            final.append(self._held.segment)
            self._held = None
        final = [segment for segment in final if segment.text or segment.warnings]
        self.segments += final
        return final


def assemble(recording: OpenRecording, separator: str) -> Transcript | UserError:
    """Transcript of what was read, with an error as a warning; the error alone where nothing was read."""
    assert recording.end is not None
    seconds, error = recording.end.seconds, recording.end.error
    if error is not None and not seconds:
        return error
    name, path, _ = describe_source(recording.source)
    damage = recording.damages[0] if recording.damages else None
    faults = [*([str(error)] if error else []), *([damage.message] if damage else [])]
    return Transcript(
        name,
        path,
        seconds,
        tuple(recording.segments),
        separator=separator,
        warnings=tuple(faults),
        language=recording.language,
        language_probability=recording.language_probability,
        incomplete=damage,
    )


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


def join_segments(before: Recognized, after: Recognized, separator: str) -> tuple[Segment, Segment]:
    """Two neighbours; where speech was cut and they overlap, each word is in one of them."""
    cut = after.cut_before
    if cut is None or before.cut_after != cut:
        return before.segment, after.segment
    left, right = join_words(before.segment.words, after.segment.words, cut)
    return keep_words(before.segment, left, separator), keep_words(after.segment, right, separator)


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
