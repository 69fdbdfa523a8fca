"""Results as plain text and Markdown: tables, alignments, rates and their intervals in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from asr.scoring.alignments import Kind, Operation
from asr.scoring.intervals import Interval
from asr.transcripts.subtitles import measure_width

Rows = Sequence[Sequence[str]]
"""The headings, then the rows."""
LETTERS: dict[Kind, str] = {"correct": "C", "substitution": "S", "deletion": "D", "insertion": "I"}


def percent(rate: float, digits: int = 2) -> str:
    """ "-" for nan, the rate of nothing."""
    return "-" if math.isnan(rate) else f"{100 * rate:.{digits}f}"


def show_interval(
    interval: Interval | Sequence[float] | None, form: str = "{} to {}", unknown: str = ""
) -> str:
    """Format both ends in percent by `form`."""
    if interval is None:
        return unknown
    low, high = (interval.low, interval.high) if isinstance(interval, Interval) else interval
    return form.format(percent(low), percent(high))


def text_table(rows: Rows) -> list[str]:
    """Lines with columns below each other: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded] if widths[0] else padded).rstrip())
    return lines


def markdown_table(rows: Rows) -> str:
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows]
    return "".join([lines[0], "|" + "---|" * len(rows[0]) + "\n", *lines[1:]])


def align_lines(operations: Iterable[Operation]) -> list[str]:
    """Three lines: errors are in upper case, and stars stand where a word is missing.

    Words that differ in case only stay as they are: in upper case they would be equal.
    """
    top, bottom, marks = "REF:  ", "HYP:  ", "Eval: "
    for operation in operations:
        kind, reference, hypothesis = operation
        first, second = reference or "", hypothesis or ""
        if kind != "correct" and not operation.is_case_only:
            first, second = first.upper(), second.upper()
        width = max(measure_width(first), measure_width(second))
        top += _pad(first or "*" * width, width)
        bottom += _pad(second or "*" * width, width)
        marks += _pad("" if kind == "correct" else LETTERS[kind], width)
    return [top, bottom, marks]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - measure_width(text) + 1)
