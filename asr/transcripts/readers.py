"""Read references and hypotheses in all usual formats, which are recognized by their content.

Files are read line by line, and only the texts stay in memory. The result names the format that was
recognized, and `kaldi:hyp.txt` sets it where the content is ambiguous.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from asr.data.columns import COLUMNS, build_id, name_fields, read_seconds
from asr.data.tables import read_objects, read_rows
from asr.data.text_lines import Lines, open_lines, parse_json, read_id_texts, read_texts
from asr.errors import UserError, shorten
from asr.transcripts.transcript import Word

Format = Literal["jsonl", "stm", "ctm", "trn", "tsv", "csv", "kaldi", "plain"]
Role = Literal["reference", "hypothesis"]

MAX_TEXT_CHARACTERS = 1_000_000  # about 15 hours of speech; aligning more would take days
_SAMPLE_LINES = 200

ID_COLUMNS = {*COLUMNS["id"], *COLUMNS["audio"]}
_REFERENCE = (*COLUMNS["text"], "reference", "ref")
_HYPOTHESIS = ("pred_text", "hypothesis", "hyp", "prediction", "predicted_text")
TEXT_COLUMNS = {*_REFERENCE, *_HYPOTHESIS}
# If a record has both a reference and a hypothesis, the role decides.
_COLUMNS: dict[Role, Mapping[str, tuple[str, ...]]] = {
    "reference": COLUMNS | {"text": _REFERENCE + _HYPOTHESIS},
    "hypothesis": COLUMNS | {"text": _HYPOTHESIS + _REFERENCE},
}

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NO_FIELDS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """One utterance in a file of transcripts."""

    text: str | None  # the transcript; None if there is none, or if it must not be scored
    speaker: str | None = None
    start: float | None = None  # seconds from the beginning of the recording
    duration: float | None = None  # seconds
    audio: str | None = None
    """Path of the audio file; a relative one is relative to the folder of the file that was read."""
    recording: str | None = None
    """Name of the recording that contains the utterance, in formats with times in recordings."""
    channel: str | None = None
    fields: Mapping[str, str] = field(default_factory=lambda: _NO_FIELDS)
    """Other fields, such as language or gender."""
    words: tuple[Word, ...] = ()  # words with their times in the recording, if the file has them


Record = tuple[int, str, Entry]  # (line, id, entry)
Reader = Callable[[Lines, Role, list[str]], Iterator[Record]]


@dataclass(frozen=True)
class TranscriptFile:
    """All utterances of one file, in order."""

    path: str
    format: Format
    entries: dict[str, Entry]
    notes: tuple[str, ...] = ()  # notes for the user about the file, such as where its ids come from
    is_guess: bool = False  # treated as plain text for lack of another match; first words may be ids


def read_transcripts(
    path: str | Path, role: Role = "reference", known_ids: Container[str] = ()
) -> TranscriptFile:
    """Read a file of any format. "-" is standard input; a folder is a Kaldi data folder with a file `text`.

    `role` decides which side of a record to read, such as `text` or `pred_text`. `FILE#FIELD` reads texts
    from a field of the records, such as the column of one system in a table. `known_ids` are the ids of the
    other file, which help to recognize lines that begin with an id.
    """
    chosen, path_text, field = split_format(str(path))
    if os.path.isdir(path_text):
        folder, path_text, chosen = path_text, os.path.join(path_text, "text"), "kaldi"
        if not os.path.isfile(path_text):
            raise UserError(f"{folder}: not a Kaldi data folder, which has a file `text`; give a file")
    with open_lines(path_text) as lines:
        sample = _take_sample(lines.numbered)
        format = chosen or recognize([line for _, line in sample if line.strip()], known_ids)
        notes: list[str] = []
        lines = replace(lines, numbered=itertools.chain(sample, lines.numbered))
        entries = _collect(lines.name, READERS[format](lines, role, notes))
    table = os.path.join(os.path.dirname(path_text), "utt2spk")
    if format == "kaldi" and os.path.basename(path_text) == "text" and os.path.isfile(table):
        speakers = read_texts(table)
        entries = {id: replace(entry, speaker=speakers.get(id)) for id, entry in entries.items()}
        notes.append(f"speakers come from {table}")
    if field:
        known = sorted({name for entry in entries.values() for name in entry.fields})
        entries = {id: replace(e, text=e.fields[field]) for id, e in entries.items() if field in e.fields}
        if not entries:
            fields = ", ".join(known) or "none"
            raise UserError(f"{lines.name}: no field {shorten(field)}; it has {fields}")
    if not entries:
        raise UserError(f"{lines.name}: contains no utterances; expected one of {', '.join(READERS)}")
    is_guess = format == "plain" and not chosen
    if is_guess:
        notes.append("no ids were recognized, so line N is compared with line N")
    return TranscriptFile(lines.name, format, entries, tuple(notes), is_guess)


def split_format(path: str) -> tuple[Format | None, str, str]:
    """Split `trn:a.txt` and `a.jsonl#field` into format, path and field, unless a file has that name."""
    if os.path.exists(path):
        return None, path, ""
    name, colon, rest = path.partition(":")
    chosen = next((known for known in READERS if colon and known == name), None)
    path = rest if chosen else path
    if os.path.exists(path):
        return chosen, path, ""
    path, _, field = path.partition("#")
    return chosen, path, field


def _take_sample(numbered: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    sample, filled = [], 0
    for number, line in numbered:
        sample.append((number, line))
        filled += bool(line.strip()) and not line.startswith(";;")
        if filled == _SAMPLE_LINES:
            break
    return sample


def _collect(name: str, records: Iterator[Record]) -> dict[str, Entry]:
    """Collect records by id. Raises UserError for a duplicate id."""
    entries: dict[str, Entry] = {}
    for number, id, entry in records:
        text = entry.text or ""
        if len(text) > MAX_TEXT_CHARACTERS:
            raise UserError(
                f"{name}:{number}: a text of {len(text):,} characters, starting with {shorten(text)}; "
                f"expected one utterance of up to {MAX_TEXT_CHARACTERS:,}: split it, or give another file"
            )
        if _CONTROL.search(id) or (not text.isascii() and re.search("[\ud800-\udfff]", text)):
            raise UserError(
                f"{name}:{number}: utterance {shorten(id)} has a control character in its id, or a lone "
                "surrogate, which UTF-8 cannot encode; remove it"
            )
        if id in entries:
            other = "the same" if entries[id].text == entry.text else "another"
            raise UserError(
                f"{name}:{number}: duplicate id {shorten(id)}, with {other} text; expected each id once: "
                "remove one of the lines"
            )
        entries[id] = entry
    return entries


# --- recognition --------------------------------------------------------------------------------

# Names of speakers, recordings and utterances contain a digit or underscore, but are not just a number.
_ID = re.compile(r"(?=\S*[0-9_])(?=\S*[^0-9.,:])\S+")
# Ids such as 020300065. In a text, lines would not all begin with a different number of this kind.
_LONG_NUMBER = re.compile(r"0\d{3,}|\d{6,}")


def recognize(lines: list[str], known_ids: Container[str] = ()) -> Format:
    """Recognize the format that the first lines of a file have in common."""
    if not lines:
        return "plain"
    if any(re.match(r"[\d:,.]+ --> [\d:,.]+", line) for line in lines[:9]):
        raise UserError("subtitles have no ids, so they cannot be compared; give a jsonl or trn transcript")
    if re.match(r"\s*(\{\s*(\"|\}|$)|\[\s*(\{|\]|$))", lines[0]):
        return "jsonl"
    if _is_header(lines[0], "\t"):
        return "tsv"
    if _is_header(lines[0], ",") or _is_header(lines[0], ";"):
        return "csv"
    spoken = [line for line in lines if not line.startswith(";;")]
    timed = [line.split() for line in spoken]
    if timed and all(map(_is_ctm, timed)):
        return "ctm"
    if timed and all(map(_is_stm, timed)):
        return "stm"
    if all(re.search(r"\([^()\s]+\)\s*$", line) for line in spoken):
        return "trn"
    first_words = [line.split(maxsplit=1)[0] for line in lines]
    are_numbers = all(map(_LONG_NUMBER.fullmatch, first_words)) and len(set(first_words)) == len(lines) > 1
    # More than half, because hypotheses may have a few utterances that the reference lacks.
    are_known = sum(word in known_ids for word in first_words) > len(first_words) / 2
    return "kaldi" if all(map(_ID.fullmatch, first_words)) or are_numbers or are_known else "plain"


def _is_header(line: str, separator: str) -> bool:
    columns = {column.strip().strip('"').lower() for column in line.split(separator)}
    is_named = bool(columns & TEXT_COLUMNS) and bool(columns & ID_COLUMNS)
    return is_named and len(columns) > 1 and all(column and len(column) <= 40 for column in columns)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _is_stm(columns: list[str]) -> bool:
    are_times = len(columns) >= 5 and _is_number(columns[3]) and _is_number(columns[4])
    return are_times and float(columns[3]) <= float(columns[4])


def _is_ctm(columns: list[str]) -> bool:
    return (
        5 <= len(columns) <= 8
        and all(_is_number(column) or column == "*" for column in columns[2:4])
        and (len(columns) == 5 or _is_number(columns[5]) or columns[5] == "NA")
    )


# --- lines --------------------------------------------------------------------------------------


def _read_plain(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Read plain text, where line N is utterance N and a blank line is an utterance without speech."""
    for number, line in lines.numbered:
        yield number, str(number), Entry(line.strip())


def _read_kaldi(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Read lines `id word word`; an id alone is an utterance with an empty text."""
    return ((number, id, Entry(text)) for number, id, text in read_id_texts(lines))


def _without_comments(lines: Lines) -> Iterator[tuple[int, str]]:
    """Skip blank lines and NIST's comments, which start with two semicolons without space before them."""
    return ((number, line) for number, line in lines.numbered if line.strip() and not line.startswith(";;"))


def _read_trn(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Read lines `word word (id)`."""
    for number, line in _without_comments(lines):
        match = re.fullmatch(r"(.*)\(([^()\s]+)\)\s*", line)
        if match is None:
            raise lines.error(number, f"{shorten(line)}: expected a text and then its id in parentheses")
        yield number, match[2], Entry(match[1].strip())


def read_stm(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Read lines `recording channel speaker start end [<label>] text`. Segments to ignore have text None."""
    ignored = 0
    for number, line in _without_comments(lines):
        columns = line.split(maxsplit=5)
        if not _is_stm(columns):
            raise lines.error(
                number, f"{shorten(line)}: expected recording, channel, speaker, start, a later end, text"
            )
        recording, channel, speaker, *times = columns[:5]
        start, end = map(float, times)
        text, label = (columns[5] if len(columns) > 5 else "").strip(), ""
        if match := re.match(r"<([^<>\s]*)>(\s+|$)", text):
            label, text = match[1], text[match.end() :]
        is_ignored = text.upper().startswith("IGNORE_TIME_SEGMENT_IN_SCORING")
        ignored += is_ignored
        id = f"{recording}-{channel}-{start * 1000:07.0f}-{end * 1000:07.0f}"
        entry = Entry(None if is_ignored else text, speaker, start, end - start)
        fields = {"label": label} if label else {}
        yield number, id, replace(entry, recording=recording, channel=channel, fields=fields)
    if ignored:
        notes.append(f"{ignored:,} segments are marked to be ignored in scoring")


def _read_ctm(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Read lines `recording channel start duration word [confidence]`, and sort words by time."""
    words: dict[tuple[str, str], list[Word]] = defaultdict(list)
    first_line: dict[tuple[str, str], int] = {}
    for number, line in _without_comments(lines):
        columns = line.split()
        if "*" in columns[2:4]:
            raise lines.error(number, "alternatives (<ALT_BEGIN>) are not supported; keep one of them")
        if len(columns) < 5 or not (_is_number(columns[2]) and _is_number(columns[3])):
            raise lines.error(number, f"{shorten(line)}: expected recording, channel, start, duration, word")
        start, duration = float(columns[2]), float(columns[3])
        confidence = float(columns[5]) if len(columns) > 5 and _is_number(columns[5]) else math.nan
        key = (columns[0], columns[1])
        first_line.setdefault(key, number)
        words[key].append(Word(columns[4], start, start + duration, confidence))
    channels = Counter(recording for recording, _ in words)
    for (recording, channel), spoken in words.items():
        spoken.sort(key=lambda word: word.start)  # stable, so words with equal times keep their order
        id = recording if channels[recording] == 1 else f"{recording}-{channel}"
        text = " ".join(word.text for word in spoken)
        entry = Entry(text, start=0.0, recording=recording, channel=channel, words=tuple(spoken))
        yield first_line[recording, channel], id, entry


# --- records: our JSON, NeMo's and similar, and tables -----------------------------------------


def _read_jsonl(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Read JSON Lines, or a file that is one JSON object or list."""
    first = next((item for item in lines.numbered if item[1].strip()), (1, ""))
    lines = replace(lines, numbered=itertools.chain([first], lines.numbered))
    records: Iterator[tuple[int, Any]]
    if isinstance(parse_json(first[1]), dict):
        records = read_objects(lines)
    else:
        value = parse_json("\n".join(line for _, line in lines.numbered))
        if not isinstance(value, (dict, list)):
            raise UserError(f"{lines.name}: neither JSON Lines nor one JSON value")
        records = ((first[0], record) for record in (value if isinstance(value, list) else [value]))
    return _read_records(lines, records, role, notes)


def _read_table(lines: Lines, separator: str, role: Role, notes: list[str]) -> Iterator[Record]:
    rows = read_rows(lines, separator)
    _, names = next(rows)
    records = (
        (number, {n: cell for n, cell in zip(names, row, strict=True) if cell or n.lower() in TEXT_COLUMNS})
        for number, row in rows
    )
    return _read_records(lines, records, role, notes)


def _read_records(
    lines: Lines, records: Iterator[tuple[int, Any]], role: Role, notes: list[str]
) -> Iterator[Record]:
    """Notes name the fields that ids and texts were taken from, if these are not `id` and `text`."""
    chosen: set[str] = set()
    for number, record in records:
        if not isinstance(record, dict):
            raise lines.error(number, f"expected a JSON object with id and text, found {shorten(record)}")
        try:
            yield number, *_build_entry(lines.folder, record, role, chosen)
        except UserError as error:
            raise lines.error(number, str(error)) from None
    if odd := sorted(chosen - {"id", "text"}):
        notes.append(f"ids or texts come from {', '.join(odd)}")


def _build_entry(folder: str, record: dict[str, Any], role: Role, chosen: set[str]) -> tuple[str, Entry]:
    named = name_fields(record, _COLUMNS[role])
    values, rest = named.values, named.rest
    if "text" not in values and "segments" not in record:
        hint = ". Try --metric cpwer, which reads SegLST" if "session_id" in record else ""
        raise UserError(f"no text among {', '.join(map(str, record))[:200]}; expected `text`{hint}")
    parts = (str(part.get("text", "")).strip() for part in _list_objects(record.get("segments")))
    text = values["text"] if "text" in values else " ".join(parts)
    if text is not None and not isinstance(text, str):
        raise UserError(f"{named.names['text']} = {shorten(text)}: expected a string, or null")
    audio, start, duration = values.get("audio"), values.get("start"), values.get("duration")
    audio = audio if isinstance(audio, str) and audio != "-" else None
    id = values.get("id")
    if not isinstance(id, (str, int)) or not str(id).strip():
        if audio is None:
            raise UserError("no id and no audio path; expected a field `id`")
        id = build_id(audio, start, duration)
        chosen.add("the names of the audio files")
    chosen.update(named.names[name].lower() for name in ("id", "text") if name in named.names)
    extras = rest.pop("extras", None)
    others = {**(extras if isinstance(extras, dict) else {}), **rest, "language": values.get("language")}
    fields = {
        str(name): str(value)
        for name, value in others.items()
        if name.lower() not in TEXT_COLUMNS and isinstance(value, (str, int, float))
    }
    speaker = values.get("speaker")
    entry = Entry(text, None if speaker is None else str(speaker), start, duration)
    recording = Path(audio).stem if audio else None
    audio = audio and os.path.join(folder, audio)
    words = tuple(_read_words(record))
    return str(id).strip(), replace(entry, audio=audio, recording=recording, fields=fields, words=words)


def _list_objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_words(record: dict[str, Any]) -> Iterator[Word]:
    """Yield words with times from the record or its segments, under any of the usual field names."""
    segments = _list_objects(record.get("segments"))
    own = _list_objects(record.get("words"))
    for word in own or [word for part in segments for word in _list_objects(part.get("words"))]:
        text, start, end = word.get("text", word.get("word")), word.get("start"), word.get("end")
        if isinstance(text, str) and start is not None and end is not None:
            times = read_seconds("start of a word", start), read_seconds("end of a word", end)
            confidence = word.get("confidence", word.get("probability"))
            score = float(confidence) if isinstance(confidence, (int, float)) else math.nan
            yield Word(text.strip(), *times, score)


READERS: dict[Format, Reader] = {
    "jsonl": _read_jsonl,
    "stm": read_stm,
    "ctm": _read_ctm,
    "trn": _read_trn,
    "tsv": lambda lines, role, notes: _read_table(lines, "\t", role, notes),
    "csv": lambda lines, role, notes: _read_table(lines, ",", role, notes),
    "kaldi": _read_kaldi,
    "plain": _read_plain,
}
