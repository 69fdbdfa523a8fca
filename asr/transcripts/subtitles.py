"""Subtitles: divides a transcript into cues that fit the screen and stay long enough to be read."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pydantic

from asr.config import Config
from asr.transcripts.transcript import Segment, to_milliseconds

# Maximum duration of a cue, and its minimum unless the next cue starts earlier.
MAX_SECONDS, MIN_MS = 7.0, 1000
# When two people speak at once, the second cue replaces the first after this reading time.
READ_MS, READ_MS_PER_COLUMN = 500, 40
# Costs of a division into cues; the division with the lowest sum is chosen.
CUE_COST = 10.0  # for each cue, to prefer few full cues over many short ones
UNEVEN_COST = 4.0  # for a cue that is nearly empty, because a single last word is gone too soon
BREAK_COST = 3.0  # for a cue that ends neither at a pause nor at the end of a sentence
PAUSE_SECONDS = 0.3  # a pause of this length is a good place to end a cue
MAX_PAUSE_SECONDS = 1.5  # a cue spans no longer pause, or it would show words too early
SENTENCE_ENDS = tuple(".!?…。！？؟।")
CLOSING = "\"')]}”’»“"  # quotes and brackets after a word


class SubtitlesConfig(Config):
    """Division of a text into subtitles."""

    line_width: int = pydantic.Field(default=42, ge=8, le=200)
    """Maximum columns of a line; a Chinese or Japanese character takes two. 42 is usual for films."""
    max_lines: int = pydantic.Field(default=2, ge=1, le=10)
    """Maximum number of lines shown at once."""


@dataclass(frozen=True)
class Cue:
    """The text on the screen at one time."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str | None = None
    label: str = ""  # name of the speaker as shown before the first line, shortened if necessary


@dataclass(frozen=True)
class _Screen:
    """The space that a cue has on the screen."""

    line_width: int
    max_lines: int
    label_width: int  # columns that the speaker's name takes on the first line


@dataclass(frozen=True)
class _Piece:
    """A part of the text that is not broken: a word, or a part of a word wider than a line."""

    text: str
    start: float
    end: float
    glued: bool  # no space before it

    @cached_property
    def width(self) -> int:
        return measure_width(self.text)


def build_cues(segments: Sequence[Segment], duration: float, config: SubtitlesConfig) -> list[Cue]:
    """Build cues that do not overlap, none of which spans two segments. Texts have to be single lines."""
    cues: list[Cue] = []
    for speaker in dict.fromkeys(segment.speaker for segment in segments):
        label = _make_label(speaker, config)
        screen = _Screen(config.line_width, config.max_lines, measure_width(label))
        spoken = sorted((one for one in segments if one.speaker == speaker), key=lambda one: one.start)
        groups = [group for segment in spoken for group in _divide(_pieces(segment, screen), screen)]
        free_ms = 0  # end of the previous cue
        for group, following in itertools.zip_longest(groups, groups[1:]):
            start_ms = max(free_ms, to_milliseconds(group[0].start))
            end_ms = max(start_ms + 1, to_milliseconds(max(piece.end for piece in group)))
            next_ms = to_milliseconds(following[0].start if following else duration)
            end_ms = max(end_ms, min(start_ms + MIN_MS, next_ms))
            free_ms = min(end_ms, start_ms + to_milliseconds(MAX_SECONDS))
            cues.append(Cue(start_ms, free_ms, tuple(_balance(group, screen)), speaker, label))
    return _take_turns(sorted(cues, key=lambda cue: cue.start_ms))


def _make_label(speaker: str | None, config: SubtitlesConfig) -> str:
    """Return the speaker's name and a colon, shortened to two thirds of a line."""
    if speaker is None:
        return ""
    width = 2 * config.line_width // 3 - len(": ")
    if measure_width(speaker) > width:
        ends = range(len(speaker), -1, -1)
        speaker = next(f"{speaker[:end]}…" for end in ends if measure_width(speaker[:end]) < width)
    return f"{speaker}: "


def _reading_ms(cue: Cue) -> int:
    """Return the time needed to read a cue, at most its own duration."""
    columns = sum(map(measure_width, cue.lines))
    return min(cue.end_ms - cue.start_ms, max(READ_MS, READ_MS_PER_COLUMN * columns))


def _take_turns(cues: Sequence[Cue]) -> list[Cue]:
    """Prevent cues from overlapping, which players show in any order, or not at all."""
    shown: list[Cue] = []
    for cue in cues:
        if shown and cue.start_ms < shown[-1].end_ms:
            read_ms, before_ms = _reading_ms(cue), shown[-1].start_ms + _reading_ms(shown[-1])
            start_ms = min(shown[-1].end_ms, max(cue.start_ms, before_ms))
            shown[-1] = replace(shown[-1], end_ms=start_ms)
            cue = replace(cue, start_ms=start_ms, end_ms=max(cue.end_ms, start_ms + read_ms))
        shown.append(cue)
    return shown


def measure_width(text: str) -> int:
    """Count columns on a screen: 2 for wide characters, 0 for combining accents."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


# --- pieces of a segment ------------------------------------------------------------------------


def _pieces(segment: Segment, screen: _Screen) -> list[_Piece]:
    """Divide the text of a segment into pieces, with times from its words if these spell the text."""
    pieces = _find_words(segment)
    if pieces is None:
        words = segment.text.split()
        pieces = _share_time(words, segment.start, segment.end, [False] * len(words))
    return [part for piece in pieces for part in _break_long(piece, screen.line_width - screen.label_width)]


def _ends_sentence(text: str, following: str) -> bool:
    """Return True if `text` ends a sentence, which "etc." before "and" does not."""
    word = text.rstrip(CLOSING)
    return word.endswith(SENTENCE_ENDS) and not (word.endswith(".") and following[:1].islower())


def _find_words(segment: Segment) -> list[_Piece] | None:
    """Find each word in the text; None if the words do not spell the text."""
    pieces: list[_Piece] = []
    position = 0
    for word in segment.words:
        parts = word.text.split()  # a tokenizer may put spaces in a word, whose parts then share its time
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
    """Return the parts in order, each with time in proportion to its number of characters."""
    ends = [0, *itertools.accumulate(map(len, parts))]
    times = [start + (end - start) * (position / max(ends[-1], 1)) for position in ends]
    return [_Piece(*piece) for piece in zip(parts, times, times[1:], glued, strict=False)]


def _break_long(piece: _Piece, width_limit: int) -> list[_Piece]:
    """Break a word wider than a line, as in scripts without spaces; accents stay with their letter."""
    if piece.width <= width_limit:
        return [piece]
    parts = [""]
    width = 0
    for character in piece.text:
        width += _character_width(character)
        if width > width_limit:
            parts.append("")
            width = _character_width(character)
        parts[-1] += character
    return _share_time(parts, piece.start, piece.end, [piece.glued, *[True] * (len(parts) - 1)])


# --- division into cues -------------------------------------------------------------------------


def _divide(pieces: Sequence[_Piece], screen: _Screen) -> list[list[_Piece]]:
    """Group pieces into cues, choosing the division of lowest cost among all that keep the limits."""
    best = [(0.0, 0), *[(math.inf, 0)] * len(pieces)]  # for the first n: cost, and start of the last cue
    for start in range(len(pieces)):
        for end, columns in _find_ends(pieces, start, screen):
            cost = best[start][0] + _cost(columns, pieces[end - 1 : end + 1], screen)
            best[end] = min(best[end], (cost, start))
    groups: list[list[_Piece]] = []
    end = len(pieces)
    while end:
        start = best[end][1]
        groups.append(list(pieces[start:end]))
        end = start
    return groups[::-1]


def _find_ends(pieces: Sequence[_Piece], start: int, screen: _Screen) -> Iterator[tuple[int, int]]:
    """Yield each end that a cue from `start` may have, with the columns of its text."""
    first = before = pieces[start]
    latest, num_lines, width, columns = first.end, 1, screen.label_width - (not first.glued), 0
    most = screen.line_width * screen.max_lines  # limits pieces too, as some, such as accents, have no width
    for end, piece in enumerate(pieces[start : start + most], start + 1):
        latest, gap = max(latest, piece.end), not piece.glued
        is_late = latest - first.start > MAX_SECONDS or piece.start - before.end > MAX_PAUSE_SECONDS
        width += gap + piece.width
        if width > screen.line_width:
            num_lines, width = num_lines + 1, piece.width
        if piece is not first and (is_late or num_lines > screen.max_lines):
            return
        columns, before = columns + gap + piece.width, piece
        yield end, columns


def _cost(columns: int, last: Sequence[_Piece], screen: _Screen) -> float:
    """Return the cost of a cue. `last` is its last piece and the next one, if there is one."""
    filled = columns / (screen.line_width * screen.max_lines)
    cost = CUE_COST + UNEVEN_COST * max(0.0, 1 - filled) ** 2
    if len(last) > 1:
        pause = last[1].start - last[0].end
        if pause < PAUSE_SECONDS and not _ends_sentence(last[0].text, last[1].text):
            cost += BREAK_COST
    return cost


def _fill(group: Sequence[_Piece], line_width: int, label_width: int) -> list[str]:
    """Fill line after line, which gives the fewest lines. The first leaves room for the label."""
    lines = [group[0].text]
    width = label_width + group[0].width
    for piece in group[1:]:
        gap = "" if piece.glued else " "
        if width + len(gap) + piece.width <= line_width:
            lines[-1] += gap + piece.text
            width += len(gap) + piece.width
        else:
            lines.append(piece.text)
            width = piece.width
    return lines


def _balance(group: Sequence[_Piece], screen: _Screen) -> list[str]:
    """Break a cue into the fewest lines, as equal as possible, using the narrowest width that suffices."""
    fewest = len(_fill(group, screen.line_width, screen.label_width))
    narrowest = max(screen.label_width + group[0].width, *(piece.width for piece in group))
    widths = range(narrowest, screen.line_width + 1)
    return next(lines for width in widths if len(lines := _fill(group, width, screen.label_width)) <= fewest)
