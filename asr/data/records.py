"""Records of other toolkits, from tables or JSON: their fields are found by the names that are in use."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from asr.data.text_lines import MAX_TEXT_LINE_BYTES, Lines, parse_json
from asr.errors import UserError, shorten

# The kinds of manifests that `asr manifest convert` reads.
SOURCES = ("jsonl", "nemo", "kaldi", "csv", "tsv", "audiofolder", "files")

COLUMNS = {
    "id": ("id", "utt_id", "utterance_id", "utt", "key", "segment_id", "utterance"),
    "audio": (
        *("audio", "audio_filepath", "path", "audio_path", "audio_file", "file", "file_path", "filename"),
        *("file_name", "wav", "wav_path", "wav_filename"),
    ),
    "start": ("start", "offset"),
    "end": ("end", "stop"),
    "duration": ("duration", "seconds"),
    "milliseconds": ("duration_ms", "duration[ms]"),
    "text": ("text", "sentence", "transcript", "transcription", "wrd", "normalized_text"),
    "speaker": ("speaker", "speaker_id", "spk_id", "client_id"),
    "language": ("language", "lang", "locale"),
}
MEANINGS = {name: meaning for meaning, names in COLUMNS.items() for name in names}
_TIMES = ("start", "end", "duration", "milliseconds")
SEPARATORS = (",", ";", "\t", "|")
LJSPEECH_COLUMNS = {2: ("path", "text"), 3: ("id", "raw_text", "normalized_text")}
"""Columns of a table without a header, by their number."""


def describe_columns() -> str:
    """List the column names that are understood, for messages and help."""
    return "; ".join(f"{meaning}: {', '.join(names)}" for meaning, names in COLUMNS.items())


# --- JSON Lines and tables ----------------------------------------------------------------------


def read_objects(lines: Lines) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON object of each line that is not blank, with the number of the line."""
    for number, line in lines.numbered:
        if line.strip():
            record = parse_json(line)
            if not isinstance(record, dict):
                raise lines.error(number, f"not a JSON object on one line; it begins with {shorten(line)}")
            yield number, record


def read_rows(lines: Lines, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The header, then rows as long as it, each with its line.

    `separator` gives way to another one by which the header has more known names. Cells between commas or
    semicolons may stand in quotes; elsewhere quotes are letters like others, as in Common Voice. A table with
    | and no known name in its first line has no header, as LJSpeech's.
    """
    first = next(((number, line) for number, line in lines.numbered if line.strip()), (1, ""))

    def count_known(own: str) -> int:
        return sum(name.strip(' "\r').lower() in MEANINGS for name in first[1].split(own))

    separator = max((separator, *SEPARATORS), key=count_known)  # of equal ones the first
    lines = replace(lines, numbered=itertools.chain([first], lines.numbered))
    rows = _split_quoted(lines, separator) if separator in ",;" else _split_plain(lines, separator)
    if not count_known(separator) and (columns := LJSPEECH_COLUMNS.get(first[1].count("|") + 1)):
        rows = itertools.chain([(first[0], [*columns])], _split_plain(lines, "|"))
    number, header = next(rows, (1, []))
    names = [name.strip().strip('"') for name in header]
    if "" in names or len(set(names)) < len(names):
        raise lines.error(number, f"a column without a name, or two of one name, in {shorten(names)}")
    yield number, names
    for number, row in rows:
        if len(row) != len(names):
            raise lines.error(number, f"{len(row)} cells, but the header names {len(names)} columns")
        yield number, row


def _split_plain(lines: Lines, separator: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines.numbered:
        if line.strip():
            yield number, line.rstrip("\r").split(separator)


def _split_quoted(lines: Lines, separator: str) -> Iterator[tuple[int, list[str]]]:
    row_size = 0

    def feed() -> Iterator[str]:
        nonlocal row_size
        for number, line in lines.numbered:
            row_size += len(line)
            if row_size > MAX_TEXT_LINE_BYTES:  # a row has many lines if its quotes do
                raise lines.error(number, f"the row is longer than {MAX_TEXT_LINE_BYTES:,} characters")
            yield line + "\n"

    reader = csv.reader(feed(), delimiter=separator, strict=True)  # limits a cell to 131,072 characters
    try:
        for row in reader:
            row_size = 0
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise lines.error(
            reader.line_num,
            f'not a row of a CSV table ({error}); expected {separator!r} between cells, and " around text',
        ) from None


# --- fields -------------------------------------------------------------------------------------


class NamedFields(NamedTuple):
    """A record whose known fields have our names."""

    values: dict[str, Any]
    """Id, audio, text, speaker, language, start and duration, as far as the record has them."""
    rest: dict[str, Any]
    """All other fields, under their own names."""
    names: dict[str, str]
    """Under which name the record has each known field."""


def name_fields(record: Mapping[str, Any], columns: Mapping[str, Sequence[str]] = COLUMNS) -> NamedFields:
    """Find the known fields. Of several names of one field, the first in `columns` counts."""
    names: dict[str, str] = {}
    own_names = {name.lower(): name for name in reversed(list(record))}
    for meaning, known in columns.items():
        for name in known:
            own = own_names.get(name)
            if own is not None and (meaning == "text" or record[own] not in (None, "")):
                names.setdefault(meaning, own)
    if "duration" in names:
        names.pop("milliseconds", None)
    if {"duration", "milliseconds"} & names.keys():  # SpeechBrain also gives the end
        names.pop("end", None)
    values = {meaning: record[name] for meaning, name in names.items()}
    for meaning in _TIMES:
        if meaning in values:
            values[meaning] = read_seconds(names[meaning], values[meaning])
    if "milliseconds" in values:
        values["duration"] = values.pop("milliseconds") / 1000
    if "end" in values:
        values["duration"] = round(values.pop("end") - values.get("start", 0.0), 9)
    rest = {
        name: value
        for name, value in record.items()
        if name not in names.values() and not (value in (None, "") and name.lower() in MEANINGS)
    }
    return NamedFields(values, rest, names)


def read_seconds(name: str, value: Any) -> float:
    """A number, or its digits; `name` is for the message of the error."""
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < 1e9:
        raise UserError(f"{name} = {shorten(value)}: expected seconds")
    return seconds


def build_id(audio: object, start: object = None, duration: object = None) -> str:
    """Build an id from the name of the audio file and, for a part of it, the milliseconds."""
    name = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", "_", Path(str(audio)).stem)[:150] or "utterance"
    if isinstance(start, (int, float)) and isinstance(duration, (int, float)) and start > 0:
        return f"{name}-{start * 1000:07.0f}-{(start + duration) * 1000:07.0f}"
    return name
