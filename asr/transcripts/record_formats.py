"""Read transcripts that are records: JSON Lines of ours, of NeMo and alike, one JSON value, TSV and CSV."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.data.records import COLUMNS, MEANINGS, build_id, name_fields, read_rows, read_seconds
from asr.data.text_lines import Lines, parse_json
from asr.errors import UserError, shorten
from asr.transcripts.line_formats import Entry, Record, Role
from asr.transcripts.transcript import Word

ID_COLUMNS = (*COLUMNS["id"], *COLUMNS["audio"])
TEXT_COLUMNS = (*COLUMNS["text"], "reference", "ref")
HYPOTHESIS_COLUMNS = ("pred_text", "hypothesis", "hyp", "prediction", "predicted_text")
_KNOWN = {*MEANINGS, *TEXT_COLUMNS, *HYPOTHESIS_COLUMNS, "extras", "segments", "words", "channel"}


def read_jsonl(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """One object a line, or one object or list for the whole file; ours, NeMo's, or alike."""
    first_number, first = next(((number, line) for number, line in lines.numbered if line.strip()), (1, ""))
    if isinstance(parse_json(first), dict):
        numbered = itertools.chain([(first_number, first)], lines.numbered)
        records = _read_json_lines(lines, numbered)
    else:
        records = _read_document(lines, first_number, first)
    records = _expand_mapping(records)
    chosen = _Chosen()
    for number, record in records:
        if not isinstance(record, dict):
            raise lines.error(number, f"expected a JSON object with id and text, found {shorten(record)}")
        yield _build_record(lines, number, record, role, chosen)
    notes.extend(chosen.explain())


def _read_json_lines(lines: Lines, numbered: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    for number, line in numbered:
        if line.strip():
            record = parse_json(line)
            if record is None:
                raise lines.error(number, f"not a JSON object on one line; it begins with {shorten(line)}")
            yield number, record


def _read_document(lines: Lines, first_number: int, first: str) -> Iterator[tuple[int, Any]]:
    """A file that is one JSON value. A file of broken JSON Lines ends here too, so the message says both."""
    value = parse_json("\n".join([first, *(line for _, line in lines.numbered)]))
    if value is None:
        raise UserError(f"{lines.name}: neither JSON Lines nor one JSON value")
    for record in value if isinstance(value, list) else [value]:
        yield first_number, record


def _expand_mapping(records: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Expand a file that is one object of texts by id, {"u1": "a b"}, into a record for each."""
    beginning = list(itertools.islice(records, 2))
    mapping = beginning[0][1] if len(beginning) == 1 else None
    if (
        isinstance(mapping, dict)
        and mapping
        and not mapping.keys() & _KNOWN
        and all(text is None or isinstance(text, str) for text in mapping.values())
    ):
        yield from ((beginning[0][0], {"id": id, "text": text}) for id, text in mapping.items())
    else:
        yield from itertools.chain(beginning, records)


class _Chosen:
    """Fields that ids and texts were taken from, where those are not the obvious ones."""

    def __init__(self) -> None:
        self.id_fields: set[str] = set()
        self.text_fields: set[str] = set()

    def explain(self) -> Iterator[str]:
        for what, found, plain in (("ids", self.id_fields, "id"), ("texts", self.text_fields, "text")):
            if found - {plain}:
                yield f"{what} come from {', '.join(sorted(found))}"


def _build_record(lines: Lines, number: int, record: dict[str, Any], role: Role, chosen: _Chosen) -> Record:
    try:
        named = name_fields(record)
        words = _read_words(record)
    except UserError as error:
        raise lines.error(number, str(error)) from None
    values, rest = named.values, named.rest
    text = _find_text(lines, number, record, role, chosen)
    audio = values.get("audio")
    audio = audio if isinstance(audio, str) and audio != "-" else None
    start, duration = values.get("start"), values.get("duration")
    id = values.get("id")
    if isinstance(id, (str, int)) and str(id).strip():
        chosen.id_fields.add(named.names["id"].lower())
    elif audio is None:
        raise lines.error(number, "no id and no audio path; expected a field `id`")
    else:
        chosen.id_fields.add("the names of the audio files")
        id = build_id(audio, start, duration)
    extras = rest.pop("extras", None)
    others = {**(extras if isinstance(extras, dict) else {}), **rest, "language": values.get("language")}
    fields = {
        str(name): str(value)
        for name, value in others.items()
        if name.lower() not in (*TEXT_COLUMNS, *HYPOTHESIS_COLUMNS) and isinstance(value, (str, int, float))
    }
    speaker = values.get("speaker")
    entry = Entry(
        text,
        speaker=None if speaker is None else str(speaker),
        start=start,
        duration=duration,
        audio=audio and os.path.join(lines.folder, audio),
        recording=Path(audio).stem if audio else None,
        fields=fields,
        words=words,
    )
    return number, str(id).strip(), entry


def _find_text(lines: Lines, number: int, record: dict[str, Any], role: Role, chosen: _Chosen) -> str | None:
    own, other = TEXT_COLUMNS, HYPOTHESIS_COLUMNS
    lowered = {name.lower(): name for name in record}
    name = next(
        (n for n in ((*other, *own) if role == "hypothesis" else (*own, *other)) if n in lowered), None
    )
    if name is not None:
        chosen.text_fields.add(name)
        text = record[lowered[name]]
        if text is not None and not isinstance(text, str):
            raise lines.error(number, f"{name} = {shorten(text)}: expected a string, or null")
        return text
    if "segments" not in record:
        raise lines.error(number, f"no text among {', '.join(map(str, record))[:200]}; expected `text`")
    return " ".join(str(part.get("text", "")).strip() for part in _list_of_objects(record["segments"]))


def _list_of_objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_words(record: dict[str, Any]) -> tuple[Word, ...]:
    """Words with times, of the record or of its segments, with the names that are in use for them."""
    found = _list_of_objects(record.get("words")) or [
        word
        for part in _list_of_objects(record.get("segments"))
        for word in _list_of_objects(part.get("words"))
    ]
    words = []
    for word in found:
        text = word.get("text", word.get("word"))
        start, end = word.get("start"), word.get("end")
        if isinstance(text, str) and start is not None and end is not None:
            start, end = read_seconds("start of a word", start), read_seconds("end of a word", end)
            sure = word.get("confidence", word.get("probability"))
            words.append(
                Word(text.strip(), start, end, float(sure) if isinstance(sure, (int, float)) else math.nan)
            )
    return tuple(words)


# --- tables -------------------------------------------------------------------------------------


def read_tsv(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Columns by their names; quotes are letters like others."""
    return _read_table(lines, "\t", role, notes)


def read_csv(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Columns by their names; a field in quotes may hold commas and line ends."""
    return _read_table(lines, ",", role, notes)


def _read_table(lines: Lines, separator: str, role: Role, notes: list[str]) -> Iterator[Record]:
    rows = read_rows(lines, separator)
    _, names = next(rows)
    texts = {*TEXT_COLUMNS, *HYPOTHESIS_COLUMNS}
    chosen = _Chosen()
    for number, row in rows:
        cells = {n: cell for n, cell in zip(names, row, strict=True) if cell or n.lower() in texts}
        yield _build_record(lines, number, cells, role, chosen)
    notes.extend(chosen.explain())
