"""Subtitles: a transcript cut into cues that fit the screen and can be read in their time."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pydantic

from asr.config import Config
from asr.transcripts.transcript import Segment

# Costs of a division into cues; the division with the lowest sum is taken.
CUE_COST = 10.0  # each further cue: few full ones rather than many short ones
UNEVEN_COST = 4.0  # a cue that is nearly empty, since a lone last word flashes by
BREAK_COST = 3.0  # a cue that ends neither at a pause nor at the end of a sentence
PAUSE_SECONDS = 0.3  # a pause of this length is a good place to end a cue
MAX_PAUSE_SECONDS = 1.5  # a cue does not reach over a longer one, or it would tell what comes
SENTENCE_ENDS = tuple(".!?…。！？؟।")
# Stay with the word that follows; in lower case, without the last full stop.
# fmt: off
ABBREVIATIONS = frozenset((
    "mr", "mrs", "ms", "mx", "dr", "drs", "prof", "rev", "hon", "messrs", "gen", "col", "maj", "capt", "lt",
    "sgt", "gov", "sen", "rep", "pres", "st", "mt", "e.g", "i.e", "cf", "vs", "viz", "approx", "ca", "z.b",
    "d.h", "bzw", "hr", "fr", "sr", "sra", "srta", "dra", "mme", "mlle", "p.ej", "sig", "dott",
))
# fmt: on
BEFORE_NUMBERS = frozenset(("no", "nos", "nr", "núm", "fig", "figs", "vol", "ch", "sec", "pp", "eq"))
OPENING, CLOSING = "\"'([{“‘«„¿¡", "\"')]}”’»“"  # quotes and brackets around a word


class SubtitlesConfig(Config):
    """Division of a text into subtitles."""

    line_width: int = pydantic.Field(default=42, ge=8, le=200)
    """Columns of a line at most; a Chinese or Japanese character takes two. 42 is usual for films."""
    max_lines: int = pydantic.Field(default=2, ge=1, le=10)
    """Lines that are shown at once."""
    max_seconds: float = pydantic.Field(default=7.0, ge=0.1)
    """A cue stays no longer."""
    min_seconds: float = pydantic.Field(default=1.0, ge=0)
    """A cue stays at least as long, where the next one leaves it the time."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> SubtitlesConfig:
        if self.min_seconds > self.max_seconds:
            raise ValueError(
                f"min_seconds = {self.min_seconds} is above max_seconds = {self.max_seconds}; lower it"
            )
        return self


@dataclass(frozen=True)
class Cue:
    """The text on the screen at one time."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str | None = None
    """Whose name stands before the first line."""


@dataclass(frozen=True)
class _Piece:
    """A part that is not broken: a word, or a part of one that is wider than a line."""

    text: str
    start: float
    end: float
    glued: bool
    """No space between it and the one before it."""

    @property
    def width(self) -> int:
        return measure_width(self.text)


def build_cues(segments: Sequence[Segment], duration: float, config: SubtitlesConfig) -> list[Cue]:
    """Cues in the order of time; a cue never reaches over two segments, nor over another of its speaker."""
    cues: list[Cue] = []
    for speaker in dict.fromkeys(segment.speaker for segment in segments):
        builder = CueBuilder(config)
        own = sorted((one for one in segments if one.speaker == speaker), key=lambda one: one.start)
        built = [cue for segment in own for cue in builder.add(segment)] + builder.finish(duration)
        cues += [replace(cue, speaker=speaker) for cue in built]
    return sorted(cues, key=lambda cue: cue.start_ms)


class CueBuilder:
    """Cues of segments that come one after the other; the last cue may stay until the next one begins."""

    def __init__(self, config: SubtitlesConfig) -> None:
        self._config = config
        self._held: list[_Piece] = []  # of the cue before
        self._free_ms = 0  # the end of the one before that

    def add(self, segment: Segment) -> list[Cue]:
        """The cues that are certain now."""
        cues = []
        for group in _divide(_pieces(segment, self._config), self._config):
            if self._held:
                cues.append(self._build(to_milliseconds(group[0].start)))
            self._held = group
        return cues

    def finish(self, duration: float) -> list[Cue]:
        if not self._held:
            return []
        end_ms = to_milliseconds(max(piece.end for piece in self._held))
        return [self._build(max(to_milliseconds(duration), end_ms))]

    def _build(self, next_ms: int) -> Cue:
        config, group = self._config, self._held
        start_ms = max(self._free_ms, to_milliseconds(group[0].start))
        end_ms = max(start_ms + 1, to_milliseconds(max(piece.end for piece in group)))
        wished_ms = start_ms + to_milliseconds(config.min_seconds)
        end_ms = max(end_ms, min(wished_ms, next_ms))
        # Rounded down, so that the limit holds.
        end_ms = min(end_ms, start_ms + max(1, math.floor(Fraction(config.max_seconds) * 1000)))
        self._free_ms = end_ms
        return Cue(start_ms, end_ms, tuple(_balance(group, config)))


def to_milliseconds(seconds: float) -> int:
    """The nearest; never below 0. The product of two floats would be rounded twice."""
    return max(0, round(Fraction(seconds) * 1000))


def measure_width(text: str) -> int:
    """Columns on a screen: 2 for wide characters, 0 for accents that stand on the one before."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


# --- pieces -------------------------------------------------------------------------------------


def _pieces(segment: Segment, config: SubtitlesConfig) -> list[_Piece]:
    """The words of a segment with their times. Its text is what is shown; times come from its words."""
    pieces = _with_word_times(segment)
    if pieces is None:
        whole = _Piece(segment.text, segment.start, segment.end, False)
        pieces = _share_time(whole, segment.text.split(), glued=False)
    return [part for piece in _bind(pieces, config) for part in _break_long(piece, config.line_width)]


def _bind(pieces: Sequence[_Piece], config: SubtitlesConfig) -> list[_Piece]:
    """Join an abbreviation such as "Mr." with the word that follows, as far as one line and cue hold both."""
    bound: list[_Piece] = []
    for piece in pieces:
        if bound and _is_abbreviation(bound[-1].text, piece.text):
            text = bound[-1].text + ("" if piece.glued else " ") + piece.text
            both = replace(bound[-1], text=text, end=max(bound[-1].end, piece.end))
            if both.width <= config.line_width and _fits((bound[-1], piece), config):
                bound[-1] = both
                continue
        bound.append(piece)
    return bound


def _is_abbreviation(text: str, following: str) -> bool:
    """Tell whether the last word of `text` is one that never ends a sentence."""
    word = text.split()[-1].lstrip(OPENING)
    if not word.endswith("."):
        return False
    name = word[:-1].lower()
    return name in ABBREVIATIONS or (name in BEFORE_NUMBERS and following[:1].isdigit())


def _ends_sentence(text: str, following: str) -> bool:
    """Find the end of a sentence; none is in "U.S. troops", "J. Smith" and "etc. and"."""
    word = text.rstrip(CLOSING)
    if not word.endswith(SENTENCE_ENDS) or _is_abbreviation(text, following):
        return False
    is_initial = len(word) == 2 and word[0].isupper() and word[0] != "I"
    return not (word.endswith(".") and (is_initial or following.lstrip(OPENING)[:1].islower()))


def _with_word_times(segment: Segment) -> list[_Piece] | None:
    """Place each word in the text; None if the words do not spell the text."""
    pieces: list[_Piece] = []
    place = 0
    for word in segment.words:
        # A word with spaces in it, from an odd tokenizer, is several, which share its time.
        found = []
        for part in word.text.split():
            start = place
            while start < len(segment.text) and segment.text[start].isspace():
                start += 1
            if not segment.text.startswith(part, start):
                return None
            found.append((part, start == place and place > 0))
            place = start + len(part)
        whole = _Piece(word.text, word.start, max(word.start, word.end), False)
        timed = _share_time(whole, [part for part, _ in found], glued=False)
        pieces += [
            _Piece(piece.text, piece.start, piece.end, glued)
            for piece, (_, glued) in zip(timed, found, strict=True)
        ]
    return pieces if not segment.text[place:].strip() else None


def _share_time(whole: _Piece, parts: Sequence[str], glued: bool) -> list[_Piece]:
    """The parts one after the other, each with time in proportion to its characters."""
    ends = list(itertools.accumulate(len(part) for part in parts))
    span = whole.end - whole.start
    shares = [0.0, *(end / ends[-1] for end in ends)] if ends else []
    return [
        _Piece(
            part,
            whole.start + span * shares[index],
            whole.start + span * shares[index + 1],
            whole.glued if index == 0 else glued,
        )
        for index, part in enumerate(parts)
    ]


def _break_long(piece: _Piece, line_width: int) -> list[_Piece]:
    """Scripts without spaces, and freaks: parts that fill a line; accents stay with their letter."""
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
    return _share_time(piece, parts, glued=True)


# --- division -----------------------------------------------------------------------------------


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
    if max(piece.end for piece in group) - group[0].start > config.max_seconds:
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
    lines = _fill(group, config.line_width)
    low, high = max(piece.width for piece in group), config.line_width
    while low < high:
        middle = (low + high) // 2
        if len(_fill(group, middle)) <= len(lines):
            high = middle
        else:
            low = middle + 1
    return _fill(group, low)
