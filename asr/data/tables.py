"""Read rows of tables and JSON Lines objects, each with its line number."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from asr.data.columns import MEANINGS
from asr.data.text_lines import MAX_TEXT_LINE_BYTES, Lines, parse_json
from asr.errors import shorten

SEPARATORS = (",", ";", "\t", "|")
LJSPEECH_COLUMNS = {2: ("path", "text"), 3: ("id", "raw_text", "normalized_text")}
"""Column names of a table without a header, by number of columns."""


def read_objects(lines: Lines) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, JSON object) for each line that is not blank."""
    for number, line in lines.numbered:
        if line.strip():
            record = parse_json(line)
            if not isinstance(record, dict):
                raise lines.error(number, f"not a JSON object on one line; it begins with {shorten(line)}")
            yield number, record


def read_rows(lines: Lines, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the header, then rows of equal length, each with its line number.

    Another separator is used if it yields more known names in the header. Cells may be quoted if commas or
    semicolons separate them; otherwise quotes are plain characters, as in Common Voice. A table with | and no
    known name in its first line has no header, as in LJSpeech.
    """
    first = next(((number, line) for number, line in lines.numbered if line.strip()), (1, ""))

    def count_known(own: str) -> int:
        return sum(name.strip(' "\r').lower() in MEANINGS for name in first[1].split(own))

    separator = max((separator, *SEPARATORS), key=count_known)  # the first one wins a tie
    lines = replace(lines, numbered=itertools.chain([first], lines.numbered))
    rows = _split_quoted(lines, separator) if separator in ",;" else _split_plain(lines, separator)
    if not count_known(separator) and (columns := LJSPEECH_COLUMNS.get(first[1].count("|") + 1)):
        rows = itertools.chain([(first[0], [*columns])], _split_plain(lines, "|"))
    number, header = next(rows, (1, []))
    names = [name.strip().strip('"') for name in header]
    if "" in names or len(set(names)) < len(names):
        raise lines.error(number, f"a column has no name, or two have the same name: {shorten(names)}")
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
            if row_size > MAX_TEXT_LINE_BYTES:  # a row may span lines if a quoted cell does
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
