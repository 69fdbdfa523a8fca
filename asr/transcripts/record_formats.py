"""Reads transcripts that are records: JSON Lines of ours, of NeMo and alike, one JSON value, TSV and CSV."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.data.columns import COLUMNS
from asr.data.manifest import shorten
from asr.errors import UserError
from asr.transcripts.line_formats import Entry, Record, Role, is_number
from asr.transcripts.text_lines import Lines
from asr.transcripts.transcript import Word

NAME_COLUMNS = (*COLUMNS["id"], "utterance")
AUDIO_COLUMNS = COLUMNS["audio"]
ID_COLUMNS = (*NAME_COLUMNS, *AUDIO_COLUMNS)
TEXT_COLUMNS = (*COLUMNS["text"], "reference", "ref", "normalized_text")
HYPOTHESIS_COLUMNS = ("pred_text", "hypothesis", "hyp", "prediction", "predicted_text")
_KNOWN = {*ID_COLUMNS, *TEXT_COLUMNS, *HYPOTHESIS_COLUMNS, *COLUMNS["speaker"], "start", "offset"}
_KNOWN |= {"duration", "extras", "segments", "words", "channel"}


def read_jsonl(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """One object a line, or one object or list for the whole file; ours, NeMo's, or alike."""
    first_number, first = next(lines.numbered)
    while not first.strip():
        first_number, first = next(lines.numbered)
    try:
        json.loads(first)
    except ValueError:
        is_one_line = False
    except RecursionError:
        raise lines.error(first_number, "brackets are nested too deeply for a transcript") from None
    else:
        is_one_line = first.lstrip().startswith("{")
    if is_one_line:
        numbered = itertools.chain([(first_number, first)], lines.numbered)
        records: Iterator[tuple[int, Any]] = (
            (number, _parse_json(lines, number, line)) for number, line in numbered if line.strip()
        )
    else:
        records = _read_document(lines, first_number, first)
    records = _expand_mapping(records)
    chosen = _Chosen()
    for number, record in records:
        if not isinstance(record, dict):
            raise lines.error(number, f"expected a JSON object with id and text, found {shorten(record)}")
        yield _build_record(lines, number, record, role, chosen)
    notes.extend(chosen.explain())


def _parse_json(lines: Lines, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise lines.error(number, f"not a JSON object on one line ({error})") from None
    except RecursionError:
        raise lines.error(number, "brackets are nested too deeply for a transcript") from None


def _read_document(lines: Lines, first_number: int, first: str) -> Iterator[tuple[int, Any]]:
    """A file that is one JSON value. A file of broken JSON Lines ends here too, so the message says both."""
    text = "\n".join([first, *(line for _, line in lines.numbered)])
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{lines.name}: neither JSON Lines nor one JSON value ({error})") from None
    except RecursionError:
        raise UserError(f"{lines.name}: brackets are nested too deeply for a transcript") from None
    for record in value if isinstance(value, list) else [value]:
        yield first_number, record


def _expand_mapping(records: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Of a file that is one object of texts by id, {"u1": "a b"}, a record for each."""
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
    """Which fields the ids and texts were taken from, where it is not the obvious ones."""

    def __init__(self) -> None:
        self.id_fields: set[str] = set()
        self.text_fields: set[str] = set()

    def explain(self) -> Iterator[str]:
        for what, found, plain in (("ids", self.id_fields, "id"), ("texts", self.text_fields, "text")):
            if found - {plain}:
                yield f"{what} come from {', '.join(sorted(found))}"


def _build_record(lines: Lines, number: int, record: dict[str, Any], role: Role, chosen: _Chosen) -> Record:
    own, other = TEXT_COLUMNS, HYPOTHESIS_COLUMNS
    columns = (*other, *own) if role == "hypothesis" else (*own, *other)
    text_field = next((name for name in columns if name in record), None)
    words = _read_words(lines, number, record)
    if text_field is None and "segments" not in record:
        raise lines.error(number, f"no text among {', '.join(map(str, record))[:200]}; expected `text`")
    if text_field is None:
        text: Any = " ".join(
            str(part.get("text", "")).strip() for part in _list_of_objects(record["segments"])
        )
    else:
        text = record[text_field]
        chosen.text_fields.add(text_field)
    if text is not None and not isinstance(text, str):
        raise lines.error(number, f"{text_field} = {shorten(text)}: expected a string, or null")
    audio = next((record[name] for name in AUDIO_COLUMNS if record.get(name)), None)
    audio = audio if isinstance(audio, str) and audio not in ("", "-") else None
    start = record.get("start", record.get("offset"))
    extras = record.get("extras")
    fields = {**(extras if isinstance(extras, dict) else {}), **record}
    speaker = next((record[name] for name in COLUMNS["speaker"] if record.get(name) is not None), None)
    id = _find_id(lines, number, record, audio, start, chosen)
    entry = Entry(
        text,
        speaker=None if speaker is None else str(speaker),
        start=_seconds(lines, number, "start", start),
        duration=_seconds(lines, number, "duration", record.get("duration")),
        audio=audio and os.path.join(lines.folder, audio),
        recording=Path(audio).stem if audio else None,
        fields={
            str(name): str(value)
            for name, value in fields.items()
            if name not in _KNOWN and isinstance(value, (str, int, float))
        },
        words=words,
    )
    return number, id, entry


def _find_id(
    lines: Lines, number: int, record: dict[str, Any], audio: str | None, start: Any, chosen: _Chosen
) -> str:
    for name in NAME_COLUMNS:
        if isinstance(record.get(name), (str, int)) and str(record[name]).strip():
            chosen.id_fields.add(name)
            return str(record[name]).strip()
    if audio is None:
        raise lines.error(number, "no id and no audio path; expected a field `id`")
    chosen.id_fields.add("the names of the audio files")
    duration = record.get("duration")
    name = re.sub(r"\s+", "_", Path(audio).stem)
    if isinstance(start, (int, float)) and isinstance(duration, (int, float)) and start > 0:
        return f"{name}-{start * 1000:07.0f}-{(start + duration) * 1000:07.0f}"
    return name


def _seconds(lines: Lines, number: int, name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and is_number(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise lines.error(number, f"{name} = {shorten(value)}: expected seconds")
    return float(value)


def _list_of_objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_words(lines: Lines, number: int, record: dict[str, Any]) -> tuple[Word, ...]:
    """Words with times, of the record or of its segments, with the names that are in use for them."""
    found = _list_of_objects(record.get("words")) or [
        word
        for part in _list_of_objects(record.get("segments"))
        for word in _list_of_objects(part.get("words"))
    ]
    words = []
    for word in found:
        text = word.get("text", word.get("word"))
        start = _seconds(lines, number, "start of a word", word.get("start"))
        end = _seconds(lines, number, "end of a word", word.get("end"))
        if isinstance(text, str) and start is not None and end is not None:
            sure = word.get("confidence", word.get("probability"))
            words.append(
                Word(text.strip(), start, end, float(sure) if isinstance(sure, (int, float)) else math.nan)
            )
    return tuple(words)


# --- tables -------------------------------------------------------------------------------------


def read_tsv(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Columns by their names; quotes are letters like others, as in Common Voice."""
    rows = ((number, line.split("\t")) for number, line in lines.numbered if line.strip())
    return _read_table(lines, rows, role, notes)


def read_csv(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Columns by their names; a field in quotes may hold commas and line ends."""
    reader = csv.reader((line + "\n" for _, line in lines.numbered), strict=True)

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise lines.error(
                reader.line_num, f'not CSV ({error}); expected commas, and " around text'
            ) from None

    return _read_table(lines, rows(), role, notes)


def _read_table(
    lines: Lines, rows: Iterator[tuple[int, list[str]]], role: Role, notes: list[str]
) -> Iterator[Record]:
    _, header = next(rows)
    names = [name.strip().strip('"').lower() for name in header]
    if len(set(names)) != len(names):
        raise lines.error(1, f"two columns have one name: {', '.join(names)}")
    chosen = _Chosen()
    for number, row in rows:
        if len(row) != len(names):
            raise lines.error(number, f"{len(row)} columns, but the header has {len(names)}")
        cells = {name: cell for name, cell in zip(names, row, strict=True) if cell or name in TEXT_COLUMNS}
        for name in HYPOTHESIS_COLUMNS:
            if name in names:
                cells.setdefault(name, "")
        yield _build_record(lines, number, cells, role, chosen)
    notes.extend(chosen.explain())
