"""Transcripts as text in the formats that people use: txt, json, jsonl, srt, vtt, tsv, ctm, stm, trn."""

from __future__ import annotations

import html
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pydantic

from asr.config import Config
from asr.errors import UserError
from asr.transcripts.transcript import Segment, Transcript, round_score, to_milliseconds

# A cue stays as long at most, and at least where the next one leaves it the time.
MAX_SECONDS, MIN_MS = 7.0, 1000
# Costs of a division into cues; the division with the lowest sum is taken.
CUE_COST = 10.0  # each further cue: few full ones rather than many short ones
UNEVEN_COST = 4.0  # a cue that is nearly empty, since a lone last word flashes by
BREAK_COST = 3.0  # a cue that ends neither at a pause nor at the end of a sentence
PAUSE_SECONDS = 0.3  # a pause of this length is a good place to end a cue
MAX_PAUSE_SECONDS = 1.5  # a cue does not reach over a longer one, or it would tell what comes
SENTENCE_ENDS = tuple(".!?…。！？؟।")
CLOSING = "\"')]}”’»“"  # quotes and brackets behind a word


# --- subtitles: a transcript cut into cues that fit the screen and can be read in their time -----


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
    speaker: str | None = None
    """Name of the speaker, to be shown before the first line."""


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


def clean(text: str) -> str:
    """One line: any white space is a space, and characters that are none are left out."""
    text = " ".join(text.split())
    if text.isprintable():
        return text
    return " ".join(re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "", text).split())


def build_cues(segments: Sequence[Segment], duration: float, config: SubtitlesConfig) -> list[Cue]:
    """Cues in the order of time; a cue never reaches over two segments, nor over another of its speaker."""
    cues: list[Cue] = []
    for speaker in dict.fromkeys(segment.speaker for segment in segments):
        own = sorted((one for one in segments if one.speaker == speaker), key=lambda one: one.start)
        cleaned = [replace(segment, text=clean(segment.text)) for segment in own]
        groups = [group for segment in cleaned for group in _divide(_pieces(segment, config), config)]
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
    place = 0
    for word in segment.words:
        parts = word.text.split()  # a word with spaces, from an odd tokenizer, is several that share its time
        glued = []
        for part in parts:
            start = place + segment.text.startswith(" ", place)
            if not segment.text.startswith(part, start):
                return None
            glued.append(start == place > 0)
            place = start + len(part)
        pieces += _share_time(parts, word.start, max(word.start, word.end), glued)
    return None if segment.text[place:].strip() else pieces


def _share_time(parts: Sequence[str], start: float, end: float, glued: Sequence[bool]) -> list[_Piece]:
    """The parts one after the other, each with time in proportion to its characters."""
    ends = [0, *itertools.accumulate(map(len, parts))]
    times = [start + (end - start) * (place / max(ends[-1], 1)) for place in ends]
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


# --- formats ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """An output format."""

    write: Callable[..., str]
    """Write a transcript; or a transcript's segment; or a cue and its number, from 1."""
    takes: Literal["transcript", "segment", "cue"] = "segment"
    header: str = ""
    """Text before the first recording."""
    holds_several: bool = True
    """True if one file may contain several recordings. Subtitles belong to one."""


def format_transcript(name: str, transcript: Transcript, config: SubtitlesConfig | None = None) -> str:
    """The whole content of a file for one recording, in the format `name`."""
    if name == "json":
        return _write_json(transcript)
    stream = TranscriptStream(name, config, several=False)
    return stream.add(transcript) + stream.end()


class TranscriptStream:
    """One stream for all recordings, such as standard output: pieces of text, to be written one by one.

    As txt, each line of `several` recordings begins with the path of its audio. json is one array, jsonl
    has a line for each recording. Segments may come before their transcript: formats of segments write them
    at once.
    """

    def __init__(self, name: str, config: SubtitlesConfig | None = None, several: bool = True) -> None:
        self._writer = WRITERS[name]
        if several and not self._writer.holds_several:
            raise UserError(f"{name} holds one recording: give --output-dir for one {name} file to each")
        self._name, self._several, self._config = name, several, config or SubtitlesConfig()
        self._is_empty = True
        self._is_begun = False  # whether segments of the newest recording were added

    def add_segment(self, id: str, audio: str, segment: Segment) -> str:
        """Return what to write now for the next segment of a recording that is on its way."""
        if self._writer.takes != "segment" or not clean(segment.text):
            return ""
        self._is_begun = True
        return self._begin(self._write_segments(Transcript(id, audio, segment.end, (segment,))))

    def add(self, transcript: Transcript) -> str:
        """Return what to write for this recording, without segments that were added before it.

        After an error, the stream can go on with the next one.
        """
        was_begun, self._is_begun = self._is_begun, False
        if self._writer.takes == "transcript":
            return self._begin(self._writer.write(transcript))
        if self._writer.takes == "cue":
            cues = build_cues(_spoken(transcript), transcript.duration, self._config)
            return self._begin("".join(self._writer.write(*numbered) for numbered in enumerate(cues, 1)))
        return self._begin("" if was_begun else self._write_segments(transcript))

    def _write_segments(self, transcript: Transcript) -> str:
        segments = _spoken(transcript)
        if self._name == "stm" and not segments:  # it has a line for silence, too
            segments = [Segment(0.0, transcript.duration, "")]
        text = "".join(self._writer.write(transcript, segment) for segment in segments)
        if self._name == "txt" and self._several:
            lines = text.splitlines() or [""]
            return "".join(f"{clean(transcript.audio)}: {line}".rstrip() + "\n" for line in lines)
        return text

    def _begin(self, text: str) -> str:
        is_first, self._is_empty = self._is_empty, False
        if self._name == "json":
            return ("[\n" if is_first else ",\n") + text.removesuffix("\n")
        return (self._writer.header if is_first else "") + text

    def end(self) -> str:
        """Return what to write after the last recording."""
        if self._name == "json":
            return "[]\n" if self._is_empty else "\n]\n"
        return self._writer.header if self._is_empty else ""


# --- JSON ---------------------------------------------------------------------------------------


def _write_json(transcript: Transcript) -> str:
    return _dump_json(transcript.to_dict(), indent=2) + "\n"


def _write_jsonl(transcript: Transcript) -> str:
    """All of the recording on one line, so that the files of many can be put one after the other."""
    return _dump_json(transcript.to_dict()) + "\n"


def _dump_json(record: dict[str, Any], indent: int | None = None) -> str:
    dumped = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=indent)
    # Half characters, as in file names that are not UTF-8, cannot be encoded; they only stand in strings. The
    # others are line ends to some readers of lines.
    return re.sub("[\ud800-\udfff\u2028\u2029\x85]", lambda found: f"\\u{ord(found[0]):04x}", dumped)


# --- plain text and subtitles -------------------------------------------------------------------


def _write_txt(transcript: Transcript, segment: Segment) -> str:
    """A line for each segment between pauses."""
    return f"{_name_speaker(segment)}{clean(segment.text)}\n"


def _name_speaker(segment: Segment | Cue) -> str:
    return "" if segment.speaker is None else f"{segment.speaker}: "


def _write_srt_cue(number: int, cue: Cue) -> str:
    """SubRip knows no escapes: only the arrow, which would look like a line of times, is rewritten."""
    lines = "\n".join(line.replace("-->", "→") for line in cue.lines)
    return f"{number}\n{_clock(cue, ',')}\n{_name_speaker(cue)}{lines}\n\n"


def _write_vtt_cue(number: int, cue: Cue) -> str:
    lines = "\n".join(html.escape(line, quote=False) for line in cue.lines)
    voice = "" if cue.speaker is None else f"<v {cue.speaker}>"
    return f"{_clock(cue, '.')}\n{voice}{lines}\n\n"


def _clock(cue: Cue, mark: str) -> str:
    times = []
    for milliseconds in (cue.start_ms, cue.end_ms):
        minutes, milliseconds = divmod(milliseconds, 60_000)
        rest = f"{milliseconds // 1000:02}{mark}{milliseconds % 1000:03}"
        times.append(f"{minutes // 60:02}:{minutes % 60:02}:{rest}")
    return " --> ".join(times)


# --- tables: a line is a segment or a word; a tab or a space separates columns -------------------


def _write_tsv(transcript: Transcript, segment: Segment) -> str:
    """No quotes, no escapes: a text never holds a tab or a line end, which become spaces."""
    confidence = _decimal(segment.confidence)
    times = f"{_seconds(segment.start)}\t{_seconds(segment.end)}"
    return f"{clean(transcript.id)}\t{times}\t{confidence}\t{segment.speaker or ''}\t{clean(segment.text)}\n"


def _write_ctm(transcript: Transcript) -> str:
    """NIST's table of words: recording, channel, start, duration, word, confidence."""
    rows = []
    for segment in _spoken(transcript):
        if not segment.words:
            raise UserError(
                f"{transcript.id}: ctm needs the times of words, and this transcript has none; "
                "write stm, trn or txt"
            )
        for word in segment.words:
            start, end = to_milliseconds(word.start), to_milliseconds(word.end)
            times = f"{_milli(start)} {_milli(max(0, end - start))}"
            columns = [
                escape_id(transcript.id),
                str(segment.channel or 1),
                times,
                "_".join(clean(word.text).split()),
            ]
            rows.append(" ".join([*columns, _decimal(word.confidence)]).rstrip(" ") + "\n")
    return "".join(rows)


def _write_stm(transcript: Transcript, segment: Segment) -> str:
    """NIST's table of segments: recording, channel, speaker, start, end, label, text.

    The label is always there, since a text that begins with < would be taken for one.
    """
    speaker = escape_id(segment.speaker or transcript.speaker or "unknown")
    times = f"{_seconds(segment.start)} {_seconds(segment.end)}"
    line = f"{escape_id(transcript.id)} {segment.channel or 1} {speaker} {times} <NA> {clean(segment.text)}"
    return line.rstrip() + "\n"


def _write_trn(transcript: Transcript) -> str:
    """NIST's list of texts, each followed by its id in brackets; of channels that are speakers, one each."""
    lines = []
    channels = {segment.channel for segment in transcript.segments} or {None}
    for channel in sorted(channels, key=lambda one: one or 0):
        texts = [segment.text for segment in transcript.segments if segment.channel == channel]
        text = transcript.separator.join(text for text in texts if text)
        suffix = "" if channel is None else f"-{channel}"
        line = f"{clean(text)} ({escape_id(transcript.id + suffix)})\n".lstrip()
        lines.append(f" {line}" if line.startswith(";;") else line)  # without the space a comment
    return "".join(lines)


WRITERS: dict[str, Writer] = {
    "txt": Writer(_write_txt),
    "json": Writer(_write_json, "transcript"),
    "jsonl": Writer(_write_jsonl, "transcript"),
    "srt": Writer(_write_srt_cue, "cue", holds_several=False),
    "vtt": Writer(_write_vtt_cue, "cue", header="WEBVTT\n\n", holds_several=False),
    "tsv": Writer(_write_tsv, header="id\tstart\tend\tconfidence\tspeaker\ttext\n"),
    "ctm": Writer(_write_ctm, "transcript"),
    "stm": Writer(_write_stm),
    "trn": Writer(_write_trn, "transcript"),
}


# --- parts --------------------------------------------------------------------------------------


def escape_id(name: str) -> str:
    """A name for ctm, stm and trn, as in URLs: %20 for a space. What has meaning there: white space,
    brackets, the semicolon of a comment; and the percent sign, so that different names stay different."""
    return (
        re.sub(
            r"[\s\x00-\x1f\x7f-\x9f();%\ud800-\udfff]",
            lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")),
            name,
        )
        or "%"
    )


def _spoken(transcript: Transcript) -> list[Segment]:
    return [segment for segment in transcript.segments if clean(segment.text)]


def _decimal(confidence: float) -> str:
    rounded = round_score(confidence)
    return "" if rounded is None else f"{rounded:.4f}"


def _seconds(seconds: float) -> str:
    return _milli(to_milliseconds(seconds))


def _milli(milliseconds: int) -> str:
    """Seconds with three decimals, from integers: a sum of two is exact."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"
