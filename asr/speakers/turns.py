"""Read and write speaker turns: RTTM, SegLST (JSON with words), and UEM (parts of recordings to score)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.data.columns import read_seconds
from asr.data.text_lines import open_lines, parse_json
from asr.errors import UserError, shorten
from asr.transcripts.transcript import round_seconds
from asr.transcripts.writers import dump_json, format_turn

# Other line types in RTTM files.
_OTHER_TYPES = {
    *("SEGMENT", "NOSCORE", "NO_RT_METADATA", "LEXEME", "NON-LEX", "NON-SPEECH", "FILLER", "EDIT", "SU"),
    *("IP", "CB", "A/P", "SPKR-INFO"),
}

Spans = dict[str, list[tuple[float, float]]]  # recording to its parts, with start and end in seconds


@dataclass(frozen=True, slots=True)
class Turn:
    """A time span in which one speaker talks. Times are seconds from the start of the recording."""

    recording: str
    start: float
    end: float
    speaker: str
    text: str = ""  # the words, if the file has them


def read_rttm(path: str | Path) -> list[Turn]:
    """Read the lines `SPEAKER recording channel start duration <NA> <NA> speaker` of all channels.

    Turns are sorted by recording and start. Lines of other types, such as LEXEME, are skipped.
    """
    turns = []
    with open_lines(path) as lines:
        for number, line in lines.numbered:
            columns = line.split()
            if not columns or line.startswith(";") or columns[0] in _OTHER_TYPES:
                continue
            if columns[0] != "SPEAKER" or len(columns) < 8:
                expected = "SPEAKER recording channel start duration <NA> <NA> speaker"
                raise lines.error(number, f"{shorten(line)}: not a line of RTTM. Expected {expected}.")
            try:
                start, duration = read_seconds("start", columns[3]), read_seconds("duration", columns[4])
            except UserError as error:
                raise lines.error(number, str(error)) from None
            turns.append(Turn(columns[1], start, round(start + duration, 9), columns[7]))
    return sorted(turns, key=lambda turn: (turn.recording, turn.start))


def format_rttm(turns: Iterable[Turn]) -> str:
    """Format turns as RTTM, in milliseconds; spaces and brackets in names are written as in URLs (%20)."""
    return "".join(format_turn(turn.recording, turn.start, turn.end, turn.speaker) for turn in turns)


def read_uem(path: str | Path) -> Spans:
    """Read the lines `recording channel start end`: the parts of recordings that are scored."""
    spans: Spans = {}
    with open_lines(path) as lines:
        for number, line in lines.numbered:
            columns = line.split()
            if not columns or line.startswith(";"):
                continue
            try:
                if len(columns) != 4:
                    raise UserError(f"{shorten(line)}: not a line of UEM")
                start, end = read_seconds("start", columns[2]), read_seconds("end", columns[3])
                if start >= end:
                    raise UserError(f"end {columns[3]} is not after start {columns[2]}")
            except UserError as error:
                raise lines.error(number, f"{error}. Expected recording channel start end.") from None
            spans.setdefault(columns[0], []).append((start, end))
    return spans


def read_seglst(path: str | Path) -> list[Turn]:
    """Read a JSON list of segments: session_id, speaker, start_time, end_time and words.

    Turns are sorted by recording and start; the order in the file breaks ties.
    """
    with open_lines(path) as lines:
        records = parse_json("\n".join(line for _, line in lines.numbered))
    if not isinstance(records, list):
        raise UserError(
            f"{lines.name}: not a JSON list. Expected segments with session_id, speaker and words."
        )
    turns = []
    for number, record in enumerate(records, 1):
        try:
            turns.append(_read_segment(record))
        except UserError as error:
            raise UserError(f"{lines.name}: segment {number}, {shorten(record)}: {error}") from None
    return sorted(turns, key=lambda turn: (turn.recording, turn.start))


def _read_segment(record: Any) -> Turn:
    if not isinstance(record, dict):
        raise UserError("expected a JSON object")
    names = [record.get("session_id"), record.get("speaker")]
    if not all(isinstance(name, (str, int)) and str(name) for name in names):
        raise UserError("expected session_id and speaker")
    start, end = (read_seconds(name, record.get(name)) for name in ("start_time", "end_time"))
    if start > end:
        raise UserError(f"end_time {end:g} is before start_time {start:g}")
    if not isinstance(text := record.get("words") or "", str):
        raise UserError(f"words = {shorten(text)}: expected a string")
    return Turn(str(names[0]), start, end, str(names[1]), text)


def format_seglst(turns: Iterable[Turn]) -> str:
    """Format turns as SegLST: a JSON list with a line for each segment, times in milliseconds."""
    rows = []
    for turn in turns:
        times = {"start_time": round_seconds(turn.start), "end_time": round_seconds(turn.end)}
        record = {"session_id": turn.recording, "speaker": turn.speaker, **times, "words": turn.text}
        rows.append(dump_json(record))
    return "[\n" + ",\n".join(rows) + "\n]\n" if rows else "[]\n"
