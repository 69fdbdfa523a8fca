"""ARPA files: n-grams with log10 probabilities and back-off weights, read and written as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from asr.data.text_lines import read_lines
from asr.errors import UserError
from asr.files import replace_file

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPACE = "<space>"  # a token that is a space: the file separates words by those
NO_PROBABILITY = -99.0  # log10: how ARPA writes 0

Ngram = tuple[str, ...]


@dataclass(frozen=True)
class Arpa:
    """Log10 probability and back-off weight of each n-gram, by order from 1."""

    orders: list[dict[Ngram, tuple[float, float]]]

    @property
    def vocabulary(self) -> list[str]:
        return [words[0] for words in self.orders[0]]


def read_arpa(path: str | Path) -> Arpa:
    """Read the file, and check that it is whole. What cannot back off, weighs 0."""
    orders: list[dict[Ngram, tuple[float, float]]] = []
    counts: list[int] = []
    state = "head"
    for place, line in _read_text(path):
        if not line or state == "end":
            continue
        if line == "\\data\\":
            state = "counts"
        elif state == "counts" and line.startswith("ngram "):
            counts.append(_parse_count(place, line))
        elif line == f"\\{len(orders) + 1}-grams:" and counts:
            orders.append({})
            state = "n-grams"
        elif line == "\\end\\":
            state = "end"
        elif state == "n-grams":
            ngram, values = _parse_ngram(place, line, len(orders))
            orders[-1][ngram] = values
        elif state != "head":
            raise UserError(f"{place}: {line[:60]!r} is no line of an ARPA file; is it one, and whole?")
    if state != "end":
        raise UserError(f"{path}: no \\data\\ or no \\end\\; expected an ARPA file, as text and whole")
    found = [len(order) for order in orders]
    if found != counts or not found:
        raise UserError(f"{path}: {found} n-grams, but its head says {counts}; the file is damaged")
    return Arpa(orders)


def write_arpa(path: str | Path, arpa: Arpa) -> None:
    with replace_file(path) as file:
        file.writelines(f"{line}\n".encode() for line in _format(arpa))


def _format(arpa: Arpa) -> Iterable[str]:
    yield "\\data\\"
    for number, order in enumerate(arpa.orders, start=1):
        yield f"ngram {number}={len(order)}"
    for number, order in enumerate(arpa.orders, start=1):
        yield f"\n\\{number}-grams:"
        for words, (log_probability, back_off) in order.items():
            text = " ".join(SPACE if word == " " else word for word in words)
            has_back_off = number < len(arpa.orders) and words[-1] != END
            yield f"{log_probability:.7g}\t{text}" + (f"\t{back_off:.7g}" if has_back_off else "")
    yield "\n\\end\\"


def _read_text(path: str | Path) -> Iterator[tuple[str, str]]:
    for number, _, line in read_lines(path):
        try:
            yield f"{path}:{number}", line.decode("utf-8").strip("\r \t")
        except UnicodeDecodeError:
            raise UserError(
                f"{path}:{number}: not UTF-8 text; expected an ARPA file (KenLM's binary ones are not read)"
            ) from None


def _parse_count(place: str, line: str) -> int:
    try:
        return int(line.rpartition("=")[2])
    except ValueError:
        raise UserError(f"{place}: {line[:60]!r}, but expected a count such as ngram 1=1000") from None


def _parse_ngram(place: str, line: str, order: int) -> tuple[Ngram, tuple[float, float]]:
    # Not by any white space: a no-break space may be a token.
    fields = line.replace("\t", " ").split(" ")
    try:
        if len(fields) not in (order + 1, order + 2):
            raise ValueError
        values = float(fields[0]), float(fields[order + 1]) if len(fields) > order + 1 else 0.0
        if math.isnan(values[0]) or math.isnan(values[1]) or values[0] > 0:
            raise ValueError
    except ValueError:
        raise UserError(
            f"{place}: {line[:60]!r}, but expected a log10 probability, {order} words, and a weight or none"
        ) from None
    return tuple(" " if word == SPACE else word for word in fields[1 : order + 1]), values
