"""Records of other toolkits, from tables or JSON: their fields are found by the names that are in use."""

from __future__ import annotations

import csv
import itertools
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from asr.data.text_lines import MAX_TEXT_LINE_BYTES, Lines, parse_json
from asr.errors import UserError, shorten

if TYPE_CHECKING:
    from asr.data.manifest import Utterance

logger = logging.getLogger(__name__)

Kind = Literal["jsonl", "nemo", "csv", "tsv", "kaldi"]
SourceKind = Kind | Literal["librispeech", "lhotse", "parquet", "audiofolder", "files"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SOURCES_ONLY = ("librispeech", "lhotse", "parquet", "audiofolder", "files")

LeaveOut = Callable[[UserError], None]
"""Called for an utterance without readable audio: it raises the error, or notes it and the others go on."""

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
_SCALARS = (str, int, float, type(None))
_TIMES = ("start", "end", "duration", "milliseconds")
SEPARATORS = (",", ";", "\t", "|")
LJSPEECH_COLUMNS = {2: ("id", "text"), 3: ("id", "raw_text", "normalized_text")}
"""Columns of a table without a header, by their number; an id may be the path of the audio."""
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|validation|valid|val|dev|test|testing|eval|evaluation)(?![a-z])",
    re.IGNORECASE,
)


def raise_error(error: UserError) -> None:
    raise error


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
    | and no known name in its first line has no header, as that of LJSpeech.
    """
    first = next(((number, line) for number, line in lines.numbered if line.strip()), (1, ""))
    known = {
        own: sum(name.strip(' "\r').lower() in MEANINGS for name in first[1].split(own))
        for own in (separator, *SEPARATORS)
    }
    has_header = any(known.values()) or "|" not in first[1]
    separator = max(known, key=lambda own: known[own]) if has_header else "|"  # of equal ones the first
    lines = replace(lines, numbered=itertools.chain([first], lines.numbered))
    rows = _split_quoted(lines, separator) if separator in ",;" else _split_plain(lines, separator)
    number, header = first[0], list(LJSPEECH_COLUMNS.get(first[1].count("|") + 1, ()))
    if has_header or not header:
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
    if {"duration", "milliseconds"} & names.keys():  # SpeechBrain tells the end besides
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


def keep_scalars(record: Mapping[str, Any], losses: Counter[str], prefix: str = "") -> dict[str, Any]:
    """The fields that a manifest can hold as extras; `losses` counts the others."""
    kept = {name: value for name, value in record.items() if isinstance(value, _SCALARS)}
    losses.update(
        f"lose {shorten(prefix + name)}, a list or an object" for name in record if name not in kept
    )
    return kept


def find_split(path: str) -> str | None:
    """The split that a path below the folder of a data set names, as Hugging Face's do: test/a.wav."""
    found = _SPLIT.findall(path)
    return found[-1].lower() if found else None


class UniqueNames:
    """Names that are given once each: one that is taken gets a number behind it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str) -> str:
        self._counts[name] += 1
        return name if self._counts[name] == 1 else self.add(f"{name}-{self._counts[name]}")


class Records:
    """Utterances of the records of one source, and warnings about the source as a whole."""

    def __init__(
        self, path: str | Path, text_column: str | None = None, leave_out: LeaveOut = raise_error
    ) -> None:
        self.leave_out = leave_out
        self.losses: Counter[str] = Counter()
        """How many utterances lose what, by reason."""
        self.ids = UniqueNames()
        self._path, self._text_column = path, text_column
        self.columns = COLUMNS if text_column is None else {**COLUMNS, "text": (text_column.lower(),)}
        self._count = self._texts = 0
        self._names: list[str] = []

    def check_names(self, names: Iterable[str]) -> None:
        """Check, once, that one column has the texts; `names` are those of a header or of a first record."""
        if self._names:
            return
        self._names = list(names)
        own_names = {name.lower(): name for name in self._names}
        texts = [own_names[name] for name in self.columns["text"] if name in own_names]
        if self._text_column is not None and not texts:
            raise UserError(
                f"{self._path}: no column {shorten(self._text_column)} among {self._list_names()}"
            )
        if len(texts) > 1:
            logger.warning("%s: the text is %s, not %s; choose by --text-column", self._path, *texts[:2])

    def _list_names(self) -> str:
        return ", ".join(map(shorten, self._names[:20])) or "nothing"

    def build(
        self, source: str, record: Mapping[str, Any], folder: str | Path, split: str | None = None
    ) -> Iterator[Utterance]:
        """The utterance of a record, none if it is left out. Relative audio starts at `folder`."""
        from asr.audio.reading import measure_seconds  # here, since --help lists the names of columns
        from asr.data.manifest import build_utterance

        self.check_names(record)
        try:
            named = name_fields(record, self.columns)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
        fields: dict[str, Any] = {"start": 0.0, **named.values, "extras": named.rest}
        for name in ("id", "speaker", "language"):  # often written as numbers
            if isinstance(fields.get(name), int):
                fields[name] = str(fields[name])
        if not fields.get("audio"):
            raise UserError(f"{source}: the path of the audio file is missing")
        if isinstance(fields["audio"], str):
            fields["audio"] = os.path.join(os.path.abspath(folder), fields["audio"])
            if "duration" not in fields:
                try:
                    seconds = measure_seconds(fields["audio"])
                    fields["duration"] = round(seconds - fields["start"], 9)
                except UserError as error:
                    self.leave_out(UserError(f"{source}: the duration is not given, and {error}"))
                    return
        channel = named.rest.get("channel")
        if isinstance(channel, int | str) and str(channel).isdecimal():  # others have names for it: left
            fields["channel"] = int(named.rest.pop("channel"))
        if split is not None:
            named.rest.setdefault("split", split)
        if "id" not in fields:
            fields["id"] = self.ids.add(build_id(fields["audio"], fields["start"], fields.get("duration")))
        utterance = build_utterance(source, fields)
        self._count += 1
        self._texts += bool(utterance.text)
        yield utterance

    def read(self, utterances: Iterable[Utterance]) -> Iterator[Utterance]:
        """Pass on the utterances, then warn of what the source as a whole lacks."""
        yield from utterances
        warn_of_losses(self._path, self.losses)
        if self._count and not self._texts:
            names = self._list_names()
            logger.warning("%s: no utterance has a text; name it by --text-column: %s", self._path, names)


def warn_of_losses(path: str | Path, losses: Mapping[str, int]) -> None:
    """Say how many utterances lost something on their way to or from another format."""
    for loss, count in losses.items():
        if count:
            logger.warning("%s: %d utterances %s", path, count, loss)
