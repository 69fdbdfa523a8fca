"""Manifests of other toolkits in and out: NeMo JSON Lines, tables such as Common Voice, Kaldi folders.

What a format cannot hold is an error if it would damage the rest, else a warning with a count.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from asr.data.columns import MEANINGS, describe_columns
from asr.data.kaldi_folder import read_kaldi, require_no_control_characters, write_kaldi
from asr.data.manifest import (
    MAX_LINE_BYTES,
    Utterance,
    build_utterance,
    parse_json,
    read_lines,
    read_manifest,
    relative_audio,
    require_line_fits,
    shorten,
    with_absolute_audio,
    write_manifest,
)
from asr.data.manifest_checks import measure_seconds
from asr.errors import UserError
from asr.files import replace_file

logger = logging.getLogger(__name__)

Kind = Literal["jsonl", "nemo", "csv", "tsv", "kaldi"]
SourceKind = Kind | Literal["librispeech"]
KINDS: tuple[Kind, ...] = ("jsonl", "nemo", "csv", "tsv", "kaldi")
TRANS = ".trans.txt"


def read_utterances(path: str | Path, kind: SourceKind, allow_pipes: bool = False) -> Iterator[Utterance]:
    """The utterances of a manifest of any kind, with absolute audio paths."""
    if kind == "kaldi":
        return read_kaldi(path, allow_pipes)
    if allow_pipes:
        raise UserError(f"{path}: only Kaldi folders have pipes to allow, this is read as {kind}")
    readers: dict[str, Callable[[str | Path], Iterator[Utterance]]] = {
        "jsonl": read_manifest,
        "nemo": read_nemo,
        "csv": read_csv,
        "tsv": read_tsv,
        "librispeech": read_librispeech,
    }
    return readers[kind](path)


def write_utterances(path: str | Path, kind: Kind, utterances: Iterable[Utterance]) -> int:
    """Write a manifest of any kind; returns the count."""
    writers: dict[str, Callable[[str | Path, Iterable[Utterance]], int]] = {
        "jsonl": write_manifest,
        "nemo": write_nemo,
        "csv": write_csv,
        "tsv": write_tsv,
        "kaldi": write_kaldi,
    }
    return writers[kind](path, utterances)


def guess_source_kind(path: str | Path) -> SourceKind:
    """Folders are Kaldi's or LibriSpeech's, tables have suffixes, of JSON Lines the first record decides."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; check the path")
    if path.is_dir():
        is_kaldi = (path / "wav.scp").exists() or next(path.rglob(f"*{TRANS}"), None) is None
        return "kaldi" if is_kaldi else "librispeech"
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(TRANS):
        return "librispeech"
    suffix = Path(name).suffix
    if suffix in (".csv", ".tsv"):
        return "csv" if suffix == ".csv" else "tsv"
    if suffix not in (".jsonl", ".json"):
        raise UserError(
            f"{path}: cannot tell the kind of this source; name it by --from: {', '.join(KINDS)}, librispeech"
        )
    first = next((parse_json(line) for _, _, line in read_lines(path)), None)
    return "nemo" if isinstance(first, dict) and "audio_filepath" in first else "jsonl"


def guess_target_kind(path: str | Path) -> Kind:
    """By the suffix; a path without one is a Kaldi folder."""
    path = Path(path)
    kinds: dict[str, Kind] = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "nemo", "": "kaldi"}
    kind = "kaldi" if path.is_dir() else kinds.get(path.suffix.lower())
    if kind is None:
        raise UserError(f"{path}: cannot tell the kind of this target; name it: {', '.join(KINDS)}")
    return kind


class _Ids:
    """Ids for records that bring none: the name of the audio file, and for a part of it the milliseconds."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.repeats: Counter[str] = Counter()

    def build(self, audio: object, start: object, duration: object) -> str:
        base = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", "_", Path(str(audio)).stem)[:150] or "utterance"
        if isinstance(start, (int, float)) and isinstance(duration, (int, float)) and start > 0:
            base += f"-{start * 1000:07.0f}-{(start + duration) * 1000:07.0f}"
        name = base
        while name in self.taken:
            self.repeats[base] += 1
            name = f"{base}-{self.repeats[base] + 1}"
        self.taken.add(name)
        return name


# --- NeMo ---------------------------------------------------------------------------------------

# Field of NeMo -> ours. NeMo itself has no id, and ignores fields that it does not know.
_NEMO_FIELDS = {
    "id": "id",
    "audio_filepath": "audio",
    "offset": "start",
    "duration": "duration",
    "text": "text",
    "speaker": "speaker",
    "lang": "language",
}


def read_nemo(path: str | Path) -> Iterator[Utterance]:
    """Relative audio starts at the manifest's folder. Unknown fields become extras; not lists and objects."""
    folder = os.path.dirname(os.path.abspath(path))
    ids = _Ids()
    dropped: Counter[str] = Counter()
    for number, _, line in read_lines(path):
        source = f"{path}:{number}"
        record = parse_json(line) if len(line) <= MAX_LINE_BYTES else None
        if not isinstance(record, dict):
            raise UserError(f"{source}: not a JSON object on one line; it begins with {shorten(line[:100])}")
        extras: dict[str, Any] = {}
        fields: dict[str, Any] = {"extras": extras}
        for name, value in record.items():
            if name in _NEMO_FIELDS:
                fields[_NEMO_FIELDS[name]] = value
            elif value is None or isinstance(value, (str, int, float)):
                extras[name] = value
            else:
                dropped[name] += 1
        for name in ("id", "speaker"):  # often written as numbers
            if isinstance(fields.get(name), int):
                fields[name] = str(fields[name])
        yield _build(source, fields, folder, ids)
    _warn(path, {f"lose {shorten(name)}, a list or an object": count for name, count in dropped.items()})


def write_nemo(path: str | Path, utterances: Iterable[Utterance]) -> int:
    """Audio paths are absolute, since only some versions of NeMo know relative ones."""
    folder = os.path.dirname(os.path.abspath(path))
    count = 0
    with replace_file(path) as file:
        for utterance in utterances:
            clash = next((name for name in utterance.extras if name in _NEMO_FIELDS), None)
            if clash is not None:
                raise UserError(
                    f"utterance {utterance.id}: extras.{clash} is a field of NeMo; give it another name"
                )
            record: dict[str, Any] = {
                "id": utterance.id,
                "audio_filepath": with_absolute_audio(utterance, folder).audio,
                "offset": utterance.start or None,
                "duration": utterance.duration,
                "text": utterance.text,
                "speaker": utterance.speaker,
                "lang": utterance.language,
            }
            known = {name: value for name, value in record.items() if value is not None}
            line = json.dumps(known | utterance.extras, ensure_ascii=False).encode()
            require_line_fits(utterance.id, line)
            file.write(line + b"\n")
            count += 1
    return count


# --- LibriSpeech --------------------------------------------------------------------------------


def read_librispeech(path: str | Path) -> Iterator[Utterance]:
    """All SPEAKER-CHAPTER.trans.txt of a folder and below, or one of them: a line is an id and its text.

    The audio, ID.flac or of another format, lies beside; the speaker is the first part of the id.
    """
    tables = sorted(Path(path).rglob(f"*{TRANS}")) if Path(path).is_dir() else [Path(path)]
    for table in tables:
        for number, _, line in read_lines(table):
            source = f"{table}:{number}"
            id, *text = _decode(line, source).split(maxsplit=1) or [""]
            names = (f"{id}{suffix}" for suffix in (".flac", ".wav", ".mp3", ".opus", ".ogg"))
            audio = next((name for name in names if "/" not in id and (table.parent / name).is_file()), None)
            if audio is None:
                raise UserError(
                    f"{source}: no audio for {shorten(id)} beside it; expected {shorten(id + '.flac')}"
                )
            fields = {"id": id, "audio": audio, "text": "".join(text).rstrip(), "speaker": id.split("-")[0]}
            yield _build(source, fields, table.parent, _Ids())


# --- tables -------------------------------------------------------------------------------------

_Rows = Iterator[tuple[int, list[str]]]


def read_csv(path: str | Path) -> Iterator[Utterance]:
    """A table with a header, cells in quotes where needed. Relative audio starts at the table's folder."""
    return _read_table(Path(path), _read_csv_rows(path))


def read_tsv(path: str | Path) -> Iterator[Utterance]:
    """A table with a header and without any quoting.

    One with client_id and path is from Common Voice: its audio is in `clips/` beside it, and the durations in
    `clip_durations.tsv`, if that is there.
    """
    return _read_table(Path(path), _read_tsv_rows(path))


def write_csv(path: str | Path, utterances: Iterable[Utterance]) -> int:
    return _write_table(Path(path), list(utterances), _format_csv_row)


def write_tsv(path: str | Path, utterances: Iterable[Utterance]) -> int:
    return _write_table(Path(path), list(utterances), _format_tsv_row)


def _read_table(path: Path, rows: _Rows) -> Iterator[Utterance]:
    _, header = next(rows, (0, []))
    names = [name.strip() for name in header]
    meanings = _find_meanings(path, names)
    folder, seconds_of_clip = path.absolute().parent, {}
    if "client_id" in (lowered := [name.lower() for name in names]) and "path" in lowered:
        if "duration" not in meanings and (folder / "clip_durations.tsv").exists():
            seconds_of_clip = _read_clip_durations(folder / "clip_durations.tsv")
        folder /= "clips"
    ids = _Ids()
    for number, row in rows:
        source = f"{path}:{number}"
        if len(row) != len(names):
            raise UserError(f"{source}: {len(row)} cells, but the header names {len(names)} columns")
        extras: dict[str, str] = {}
        fields: dict[str, Any] = {"extras": extras}
        for name, meaning, cell in zip(names, meanings, row, strict=True):
            if meaning == "text":
                fields["text"] = cell
            elif meaning in ("start", "end", "duration", "milliseconds") and cell:
                fields[meaning] = _parse_number(cell, f"{source}: {name}")
            elif cell:
                (extras if meaning is None else fields)[meaning or name] = cell
        if "milliseconds" in fields:
            fields["duration"] = fields.pop("milliseconds") / 1000
        elif "end" in fields:
            fields["duration"] = round(fields.pop("end") - fields.get("start", 0.0), 9)
        elif "duration" not in fields and fields.get("audio") in seconds_of_clip:
            fields["duration"] = seconds_of_clip[fields["audio"]]
        yield _build(source, fields, folder, ids)


def _find_meanings(path: Path, names: list[str]) -> list[str | None]:
    meanings = [MEANINGS.get(name.lower()) for name in names]
    if "audio" not in meanings:
        found = ", ".join(shorten(name) for name in names[:20]) or "nothing"
        raise UserError(
            f"{path}: no column for the audio; the header has {found}. Known are {describe_columns()}"
        )
    if "" in names:
        raise UserError(f"{path}: column {names.index('') + 1} has no name; name it or remove it")
    if {"duration", "milliseconds"} & set(meanings):  # SpeechBrain tells the end besides
        meanings = [None if meaning == "end" else meaning for meaning in meanings]
    names_seen: dict[str, str] = {}
    for name, meaning in zip(names, meanings, strict=True):
        key = "duration" if meaning == "milliseconds" else meaning or f"extras.{name}"
        if key in names_seen:
            raise UserError(
                f"{path}: the columns {names_seen[key]} and {name} mean the same; remove one of them"
            )
        names_seen[key] = name
    return meanings


def _read_clip_durations(path: Path) -> dict[str, float]:
    rows = _read_tsv_rows(path)
    _, header = next(rows, (0, []))
    if header[:1] != ["clip"] or len(header) != 2 or MEANINGS.get(header[1]) != "milliseconds":
        raise UserError(f"{path}: expected the columns clip and duration[ms], found {shorten(header)}")
    durations = {}
    for number, row in rows:
        if len(row) != 2:
            raise UserError(f"{path}:{number}: expected a clip and its milliseconds, found {len(row)} cells")
        durations[row[0]] = _parse_number(row[1], f"{path}:{number}") / 1000
    return durations


def _read_tsv_rows(path: str | Path) -> _Rows:
    for number, _, line in read_lines(path):
        yield number, _decode(line, f"{path}:{number}").rstrip("\r").split("\t")


def _read_csv_rows(path: str | Path) -> _Rows:
    row_bytes = 0

    def read_decoded() -> Iterator[str]:
        nonlocal row_bytes
        for number, _, line in read_lines(path, skip_blank=False):
            row_bytes += len(line)
            if row_bytes > MAX_LINE_BYTES:  # a row has many lines if its quotes do
                raise UserError(f"{path}:{number}: the row is longer than {MAX_LINE_BYTES:,} bytes")
            yield _decode(line, f"{path}:{number}") + "\n"

    reader = csv.reader(read_decoded(), strict=True)  # limits a cell to 131,072 characters
    try:
        for row in reader:
            row_bytes = 0
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not a row of a CSV table ({error})") from None


def _decode(line: bytes, source: str) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{source}: the line is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: not UTF-8 text (byte {error.start + 1} of the line)") from None


def _parse_number(cell: str, source: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UserError(f"{source}: {shorten(cell)} is not a number") from None


def _build(source: str, fields: dict[str, Any], folder: str | Path, ids: _Ids) -> Utterance:
    """Fill in what a record may leave out: start, duration (from the audio file) and id."""
    if fields.get("start") is None:
        fields["start"] = 0.0
    if not fields.get("audio"):
        raise UserError(f"{source}: the path of the audio file is missing")
    if isinstance(fields["audio"], str):
        if found := re.match(r"\$\w+|\{\w+\}", fields["audio"]):
            raise UserError(
                f"{source}: {shorten(fields['audio'])} begins with a placeholder; put the corpus's "
                f"folder in place of {found[0]}, as by sed"
            )
        fields["audio"] = os.path.join(folder, fields["audio"])
        if fields.get("duration") is None and isinstance(fields["start"], (int, float)):
            try:
                fields["duration"] = measure_seconds(fields["audio"]) - fields["start"]
            except UserError as error:
                raise UserError(f"{source}: the duration is not given, and {error}") from None
    if fields.get("id") is None:
        fields["id"] = ids.build(fields["audio"], fields["start"], fields.get("duration"))
    return build_utterance(source, fields)


def _write_table(path: Path, records: list[Utterance], format_row: Callable[[str, list[str]], str]) -> int:
    folder = str(path.absolute().parent)
    columns = sorted({name for record in records for name in record.extras})
    for name in columns:
        if not name.strip() or name != name.strip() or name.lower() in MEANINGS:
            raise UserError(
                f"{path}: extras.{name} cannot be a column, the name means something else; rename it"
            )
    with_text = any(record.text is not None for record in records)
    text_column = ["text"] if with_text else []
    header = ["id", "path", "start", "duration", *text_column, "speaker", "language", *columns]
    losses: Counter[str] = Counter()
    with replace_file(path) as file:
        file.write(format_row("header", header).encode())
        for record in records:
            values = [record.id, relative_audio(record.audio, folder), record.start, record.duration]
            values += [record.text] if with_text else []
            values += [record.speaker, record.language, *map(record.extras.get, columns)]
            cells = ["" if value is None else str(value) for value in values]
            file.write(format_row(record.id, cells).encode())
            losses["without a text get an empty one"] += with_text and record.text is None
            losses["lose an extra that is empty"] += any(
                value in (None, "") for value in record.extras.values()
            )
            losses["have extras that come back as text"] += any(
                not isinstance(value, (str, type(None))) for value in record.extras.values()
            )
    _warn(path, losses)
    return len(records)


def _format_csv_row(id: str, cells: list[str]) -> str:
    if any("\0" in cell or len(cell) > csv.field_size_limit() for cell in cells):
        raise UserError(
            f"utterance {id}: a cell of a CSV table has at most {csv.field_size_limit():,} characters, no NUL"
        )
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()


def _format_tsv_row(id: str, cells: list[str]) -> str:
    for cell in cells:
        require_no_control_characters(id, shorten(cell), cell)
    line = "\t".join(cells)
    require_line_fits(id, line.encode())
    return line + "\n"


def _warn(path: str | Path, losses: dict[str, int]) -> None:
    for loss, count in losses.items():
        if count:
            logger.warning("%s: %d utterances %s", path, count, loss)
