"""Subtitles: a transcript cut into cues that fit the screen and can be read in their time."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import pydantic

from asr.config import Config

if TYPE_CHECKING:
    from asr.transcripts.transcript import Segment

# A cue stays as long at most, and at least where the next one leaves it the time.
MAX_SECONDS, MIN_MS = 7.0, 1000
# Costs of a division into cues; the division with the lowest sum is taken.
CUE_COST = 10.0  # each further cue: few full ones rather than many short ones
UNEVEN_COST = 4.0  # a cue that is nearly empty, since a lone last word flashes by
BREAK_COST = 3.0  # a cue that ends neither at a pause nor at the end of a sentence
PAUSE_SECONDS = 0.3  # a pause of this length is a good place to end a cue
MAX_PAUSE_SECONDS = 1.5  # a cue does not span a longer one, or it would show what comes
SENTENCE_ENDS = tuple(".!?…。！？؟।")
CLOSING = "\"')]}”’»“"  # quotes and brackets after a word


class SubtitlesConfig(Config):
    """Division of a text into subtitles."""

    line_width: int = pydantic.Field(default=42, ge=8, le=200)
    """Columns of a line at most; a Chinese or Japanese character takes two. 42 is usual for films."""
    max_lines: int = pydantic.Field(default=2, ge=1, le=10)
    """Lines that are shown at once."""


@dataclass(frozen=True)
class Cue:
    """The text on the screen at one time."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str | None = None  # name of the speaker, to be shown before the first line


@dataclass(frozen=True)
class _Piece:
    """A part that is not broken: a word, or a part of one that is wider than a line."""

    text: str
    start: float
    end: float
    glued: bool  # no space between it and the one before it

    @property
    def width(self) -> int:
        return measure_width(self.text)


def to_milliseconds(seconds: float) -> int:
    """The nearest; never below 0. The product of two floats would be rounded twice."""
    return max(0, round(Fraction(seconds) * 1000))


def build_cues(segments: Sequence[Segment], duration: float, config: SubtitlesConfig) -> list[Cue]:
    """Cues in the order of time, of segments whose texts are one line; none reaches over two segments."""
    cues: list[Cue] = []
    for speaker in dict.fromkeys(segment.speaker for segment in segments):
        spoken = sorted((one for one in segments if one.speaker == speaker), key=lambda one: one.start)
        groups = [group for segment in spoken for group in _divide(_pieces(segment, config), config)]
        free_ms = 0  # the end of the cue before
        for group, following in itertools.zip_longest(groups, groups[1:]):
            start_ms = max(free_ms, to_milliseconds(group[0].start))
            end_ms = max(start_ms + 1, to_milliseconds(max(piece.end for piece in group)))
            next_ms = to_milliseconds(following[0].start if following else duration)
            end_ms = max(end_ms, min(start_ms + MIN_MS, next_ms))
            free_ms = min(end_ms, start_ms + to_milliseconds(MAX_SECONDS))
            cues.append(Cue(start_ms, free_ms, tuple(_balance(group, config)), speaker))
    return sorted(cues, key=lambda cue: cue.start_ms)


def measure_width(text: str) -> int:
    """Columns on a screen: 2 for wide characters, 0 for accents that stand on the one before."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


# --- pieces of a segment ------------------------------------------------------------------------


def _pieces(segment: Segment, config: SubtitlesConfig) -> list[_Piece]:
    """The words of a segment with their times. Its text is what is shown; times come from its words."""
    pieces = _find_words(segment)
    if pieces is None:
        words = segment.text.split()
        pieces = _share_time(words, segment.start, segment.end, [False] * len(words))
    return [part for piece in pieces for part in _break_long(piece, config.line_width)]


def _ends_sentence(text: str, following: str) -> bool:
    """Find the end of a sentence; none is in "etc. and"."""
    word = text.rstrip(CLOSING)
    return word.endswith(SENTENCE_ENDS) and not (word.endswith(".") and following[:1].islower())


def _find_words(segment: Segment) -> list[_Piece] | None:
    """Place each word in the text; None if the words do not spell the text."""
    pieces: list[_Piece] = []
    position = 0
    for word in segment.words:
        parts = word.text.split()  # a word with spaces, from an odd tokenizer, is several that share its time
        glued = []
        for part in parts:
            start = position + segment.text.startswith(" ", position)
            if not segment.text.startswith(part, start):
                return None
            glued.append(start == position > 0)
            position = start + len(part)
        pieces += _share_time(parts, word.start, max(word.start, word.end), glued)
    return None if segment.text[position:].strip() else pieces


def _share_time(parts: Sequence[str], start: float, end: float, glued: Sequence[bool]) -> list[_Piece]:
    """The parts one after the other, each with time in proportion to its characters."""
    ends = [0, *itertools.accumulate(map(len, parts))]
    times = [start + (end - start) * (position / max(ends[-1], 1)) for position in ends]
    return [_Piece(*piece) for piece in zip(parts, times, times[1:], glued, strict=False)]


def _break_long(piece: _Piece, line_width: int) -> list[_Piece]:
    """Break words that are wider than a line, such as unspaced scripts; accents stay with their letter."""
    if piece.width <= line_width:
        return [piece]
    parts = [""]
    width = 0
    for character in piece.text:
        width += _character_width(character)
        if width > line_width:
            parts.append("")
            width = _character_width(character)
        parts[-1] += character
    return _share_time(parts, piece.start, piece.end, [piece.glued, *[True] * (len(parts) - 1)])


# --- division into cues -------------------------------------------------------------------------


def _divide(pieces: Sequence[_Piece], config: SubtitlesConfig) -> list[list[_Piece]]:
    """Groups for one cue each. Of all divisions that keep the limits, the one that costs least."""
    best: list[tuple[float, int]] = [(0.0, 0)]  # for the first n pieces: cost, and where the last cue starts
    for end in range(1, len(pieces) + 1):
        options = []
        for start in range(end - 1, -1, -1):
            group = pieces[start:end]
            if start < end - 1 and not _fits(group, config):
                break
            options.append((best[start][0] + _cost(group, pieces[end : end + 1], config), start))
        best.append(min(options))
    groups: list[list[_Piece]] = []
    end = len(pieces)
    while end:
        start = best[end][1]
        groups.insert(0, list(pieces[start:end]))
        end = start
    return groups


def _fits(group: Sequence[_Piece], config: SubtitlesConfig) -> bool:
    if max(piece.end for piece in group) - group[0].start > MAX_SECONDS:
        return False
    if any(after.start - before.end > MAX_PAUSE_SECONDS for before, after in itertools.pairwise(group)):
        return False
    return len(_fill(group, config.line_width)) <= config.max_lines


def _cost(group: Sequence[_Piece], following: Sequence[_Piece], config: SubtitlesConfig) -> float:
    filled = sum(piece.width + (not piece.glued) for piece in group) / (config.line_width * config.max_lines)
    cost = CUE_COST + UNEVEN_COST * max(0.0, 1 - filled) ** 2
    if following:
        pause = following[0].start - group[-1].end
        if pause < PAUSE_SECONDS and not _ends_sentence(group[-1].text, following[0].text):
            cost += BREAK_COST
    return cost


def _fill(group: Sequence[_Piece], line_width: int) -> list[str]:
    """Lines, each as full as it can be: no other way needs fewer."""
    lines: list[str] = []
    width = 0
    for piece in group:
        gap = "" if piece.glued else " "
        if lines and width + len(gap) + piece.width <= line_width:
            lines[-1] += gap + piece.text
            width += len(gap) + piece.width
        else:
            lines.append(piece.text)
            width = piece.width
    return lines


def _balance(group: Sequence[_Piece], config: SubtitlesConfig) -> list[str]:
    """Break into as few lines as can be, of nearly one length: of the narrowest width that will do."""
    fewest = len(_fill(group, config.line_width))
    widths = range(max(piece.width for piece in group), config.line_width + 1)
    return next(lines for width in widths if len(lines := _fill(group, width)) <= fewest)
