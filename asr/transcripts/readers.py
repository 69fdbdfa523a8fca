"""Read references and hypotheses of all usual formats, which are recognised by their content.

A file goes by line by line; what stays in memory are the texts. Nothing is guessed in silence: the format
that was recognised is part of the result, and `kaldi:hyp.txt` says it where content leaves a doubt.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from asr.data.text_lines import Lines, open_lines
from asr.errors import UserError, shorten
from asr.transcripts.line_formats import (
    Entry,
    Format,
    Reader,
    Record,
    Role,
    add_speakers,
    is_number,
    read_ctm,
    read_kaldi_text,
    read_plain,
    read_stm,
    read_subtitles,
    read_trn,
)
from asr.transcripts.record_formats import (
    HYPOTHESIS_COLUMNS,
    ID_COLUMNS,
    TEXT_COLUMNS,
    read_csv,
    read_jsonl,
    read_tsv,
)

MAX_TEXT_CHARACTERS = 1_000_000  # some 15 hours of speech; no alignment of more would end today
_SAMPLE_LINES = 200

READERS: dict[Format, Reader] = {
    "jsonl": read_jsonl,
    "stm": read_stm,
    "ctm": read_ctm,
    "trn": read_trn,
    "tsv": read_tsv,
    "csv": read_csv,
    "srt": read_subtitles,
    "vtt": read_subtitles,
    "kaldi": read_kaldi_text,
    "plain": read_plain,
}


@dataclass(frozen=True)
class TranscriptFile:
    """All utterances of one file, in its order."""

    path: str
    format: Format
    entries: dict[str, Entry]
    notes: tuple[str, ...] = ()
    """What a person should know about the file before trusting its numbers."""
    is_guess: bool = False
    """Plain text, for want of anything that shows another format; its first words may be ids."""


def read_transcripts(
    path: str | Path, role: Role = "reference", known_ids: Container[str] = ()
) -> TranscriptFile:
    """Read a file of any format. "-" is standard input; a folder is Kaldi's, of which `text` is read.

    Of a record that holds both sides, such as `text` and `pred_text`, `role` chooses. `FILE#FIELD` reads the
    texts in a field of the records, such as a system's column in a table of several. `known_ids` are those of
    the other file: a line that begins with one of them has an id.
    """
    chosen, path_text, field = split_format(str(path))
    if os.path.isdir(path_text):
        folder, path_text, chosen = path_text, os.path.join(path_text, "text"), "kaldi"
        if not os.path.isfile(path_text):
            raise UserError(f"{folder}: a folder without `text`, as Kaldi's have it; give a file")
    with open_lines(path_text) as lines:
        sample = _take_sample(lines.numbered)
        found = chosen or recognize(sample, known_ids)
        rest = Lines(lines.name, lines.folder, itertools.chain(sample, lines.numbered))
        notes: list[str] = []
        entries = collect(rest.name, READERS[found](rest, role, notes))
    if found == "kaldi":
        entries = add_speakers(path_text, entries, notes)
    if field:
        entries = _take_field(lines.name, entries, field)
    if not entries:
        raise UserError(f"{lines.name}: no utterance in it; expected one a line, as {_NAMES}")
    is_guess = found == "plain" and not chosen
    if is_guess:
        notes.append("no ids were recognised: line N is compared with line N")
    return TranscriptFile(lines.name, found, entries, tuple(notes), is_guess)


def split_format(path: str) -> tuple[Format | None, str, str]:
    """Split `trn:a.txt` and `a.jsonl#field` into format, path and field, unless a file has that name."""
    if os.path.exists(path):
        return None, path, ""
    name, colon, rest = path.partition(":")
    chosen = FORMATS[name] if colon and name in FORMATS else None
    path = rest if chosen else path
    if os.path.exists(path):
        return chosen, path, ""
    path, _, field = path.partition("#")
    return chosen, path, field


def _take_field(name: str, entries: dict[str, Entry], field: str) -> dict[str, Entry]:
    """Take the texts from a field of the records; records without it are left out."""
    taken = {id: replace(e, text=e.fields[field]) for id, e in entries.items() if field in e.fields}
    if not taken:
        known = sorted({field for entry in entries.values() for field in entry.fields})
        raise UserError(f"{name}: no field {shorten(field)}; its fields are {', '.join(known) or 'none'}")
    return taken


def collect(name: str, records: Iterator[Record]) -> dict[str, Entry]:
    """The records by their id. One that comes twice is an error: which of them counts?"""
    entries: dict[str, Entry] = {}
    repeated: dict[str, tuple[int, bool]] = {}
    for number, id, entry in records:
        text = entry.text or ""
        if len(text) > MAX_TEXT_CHARACTERS:
            raise UserError(
                f"{name}:{number}: a text of {len(text):,} characters, beginning {shorten(text)}; "
                f"expected one utterance, up to {MAX_TEXT_CHARACTERS:,}: cut it, or give another file"
            )
        if _CONTROL.search(id) or not _is_encodable(id) or not _is_encodable(text):
            raise UserError(
                f"{name}:{number}: utterance {shorten(id)} has a control character in its id, or half a "
                f"character (a lone surrogate); expected a name, and text that UTF-8 can write: mend it"
            )
        if id in entries:
            repeated.setdefault(id, (number, entries[id].text == entry.text))
        entries[id] = entry
    if repeated:
        id, (number, is_same) = next(iter(repeated.items()))
        others = f" (so do {len(repeated) - 1:,} other ids)" if len(repeated) > 1 else ""
        raise UserError(
            f"{name}:{number}: the id {shorten(id)} comes twice, with {'the same' if is_same else 'another'} "
            f"text{others}; expected each id once: remove one of the lines"
        )
    return entries


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- recognition --------------------------------------------------------------------------------

FORMATS: dict[str, Format] = {name: name for name in READERS}
_NAMES = "JSON, stm, ctm, trn, TSV or CSV with a header, srt, vtt, Kaldi text, or plain text"

# Speaker, recording and utterance names hold a digit or an underscore, and something else than a number.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SRT_TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d+ +--> +\d+:\d\d:\d\d[,.]\d+")
_ID = re.compile(r"(?=\S*[0-9_])(?=\S*[^0-9.,:])\S+")
# Ids such as 020300065: no text begins with such a number in each line, another one every time.
_LONG_NUMBER = re.compile(r"0\d{3,}|\d{6,}")


def recognize(sample: list[tuple[int, str]], known_ids: Container[str] = ()) -> Format:
    """The format that all lines of the beginning of a file have."""
    lines = [line for _, line in sample if line.strip()]
    if not lines:
        return "plain"
    if lines[0].lstrip()[:1] in ("{", "[") and re.match(r"\s*(\{\s*(\"|\}|$)|\[\s*(\{|\]|$))", lines[0]):
        return "jsonl"
    if lines[0].startswith("WEBVTT"):
        return "vtt"
    if any(_SRT_TIMES.match(line) for line in lines[:2]):
        return "srt"
    for separator, name in (("\t", "tsv"), (",", "csv")):
        if is_header(lines[0], separator):
            return FORMATS[name]
    timed = [line.split() for line in lines if not line.startswith(";;")]
    could_be_stm = bool(timed) and all(_is_stm(columns) for columns in timed)
    could_be_ctm = bool(timed) and all(_is_ctm(columns) for columns in timed)
    if could_be_stm and not could_be_ctm:
        return "stm"
    if could_be_ctm:
        return "ctm"
    if all(re.search(r"\([^()\s]+\)\s*$", line) for line in lines if not line.startswith(";;")):
        return "trn"
    first_words = [line.split(maxsplit=1)[0] for line in lines]
    if all(word in known_ids for word in first_words) or all(_ID.fullmatch(word) for word in first_words):
        return "kaldi"
    if all(_LONG_NUMBER.fullmatch(word) for word in first_words) and len(set(first_words)) == len(lines) > 1:
        return "kaldi"
    # Hypotheses of another corpus, or a few utterances more than the reference has.
    if sum(word in known_ids for word in first_words) > len(first_words) / 2:
        return "kaldi"
    return "plain"


def is_header(line: str, separator: str) -> bool:
    columns = {column.strip().strip('"').lower() for column in line.split(separator)}
    return (
        len(columns) > 1
        and bool(columns & {*TEXT_COLUMNS, *HYPOTHESIS_COLUMNS})
        and all(column and len(column) <= 40 for column in columns)
        and bool(columns & set(ID_COLUMNS))
    )


def _is_stm(columns: list[str]) -> bool:
    if len(columns) < 5 or not (is_number(columns[3]) and is_number(columns[4])):
        return False
    return float(columns[3]) <= float(columns[4])


def _is_ctm(columns: list[str]) -> bool:
    return (
        5 <= len(columns) <= 8
        and all(is_number(column) or column == "*" for column in columns[2:4])
        and (len(columns) == 5 or is_number(columns[5]) or columns[5] == "NA")
    )


def _take_sample(numbered: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    sample, filled = [], 0
    for number, line in numbered:
        sample.append((number, line))
        filled += bool(line.strip()) and not line.startswith(";;")
        if filled == _SAMPLE_LINES:
            break
    return sample
