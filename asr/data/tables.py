"""Rows of tables and objects of JSON Lines, each with its line in the file."""

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
"""Columns of a table without a header, by their number."""


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
