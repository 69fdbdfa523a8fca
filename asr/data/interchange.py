"""Manifests of other toolkits in and out: NeMo JSON Lines, tables such as Common Voice, Kaldi folders.

In only: LibriSpeech, lhotse, Parquet tables of Hugging Face.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from asr.audio.reading import measure_seconds
from asr.data import parquet
from asr.data.kaldi_folder import read_kaldi, require_no_control_characters, write_kaldi
from asr.data.lhotse_manifests import is_lhotse, read_lhotse
from asr.data.manifest import (
    Utterance,
    build_utterance,
    read_manifest,
    relative_audio,
    require_line_fits,
    shorten,
    with_absolute_audio,
    write_manifest,
)
from asr.data.records import (
    COLUMNS,
    MEANINGS,
    UniqueNames,
    build_id,
    describe_columns,
    keep_scalars,
    name_fields,
    read_objects,
    read_rows,
    require_distinct,
    warn_of_losses,
)
from asr.data.text_lines import open_lines, parse_json, read_text_lines
from asr.errors import UserError
from asr.files import replace_file

logger = logging.getLogger(__name__)

Kind = Literal["jsonl", "nemo", "csv", "tsv", "kaldi"]
SourceKind = Kind | Literal["librispeech", "lhotse", "parquet"]
KINDS: tuple[Kind, ...] = ("jsonl", "nemo", "csv", "tsv", "kaldi")
SOURCES_ONLY = ("librispeech", "lhotse", "parquet")
TRANS = ".trans.txt"
_NEMO_NAMES = {"audio": "audio_filepath", "start": "offset", "language": "lang"}
_TABLE_COLUMNS = ("id", "path", "start", "duration", "text", "speaker", "language", "channel")


def read_utterances(
    path: str | Path, kind: SourceKind, allow_pipes: bool = False, audio_dir: Path | None = None
) -> Iterator[Utterance]:
    """The utterances of a manifest of any kind, with absolute audio paths.

    `audio_dir`: where the audio goes that a Parquet table has in its cells.
    """
    if kind == "kaldi":
        return read_kaldi(path, allow_pipes)
    if allow_pipes:
        raise UserError(f"{path}: only Kaldi folders have pipes to allow, this is read as {kind}")
    if kind == "parquet":
        if audio_dir is None:
            raise UserError(f"{path}: holds audio; make a manifest of it first, by `asr manifest convert`")
        return read_parquet(path, audio_dir)
    return _READERS[kind](path)


def write_utterances(path: str | Path, kind: Kind, utterances: Iterable[Utterance]) -> int:
    """Write a manifest of any kind; returns the count."""
    return _WRITERS[kind](path, utterances)


def guess_source_kind(path: str | Path) -> SourceKind:
    """Folders are Kaldi's, LibriSpeech's or of Parquet tables, tables have suffixes, of JSON Lines the first
    record decides."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; check the path")
    if path.is_dir():
        if (path / "wav.scp").exists():
            return "kaldi"
        if next(path.rglob("*.parquet"), None) is not None:
            return "parquet"
        return "kaldi" if next(path.rglob(f"*{TRANS}"), None) is None else "librispeech"
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(TRANS):
        return "librispeech"
    suffix = Path(name).suffix
    if suffix == ".parquet":
        return "parquet"
    if suffix in (".csv", ".tsv"):
        return "csv" if suffix == ".csv" else "tsv"
    if suffix not in (".jsonl", ".json"):
        raise UserError(
            f"{path}: cannot tell the kind of this source; name it by --from: "
            + ", ".join((*KINDS, *SOURCES_ONLY))
        )
    first = next((parse_json(line) for _, line in read_text_lines(path)), None)
    if is_lhotse(first):
        return "lhotse"
    return "nemo" if isinstance(first, dict) and "audio_filepath" in first else "jsonl"


def guess_target_kind(path: str | Path) -> Kind:
    """Guess by the suffix; a path without one is a Kaldi folder."""
    path = Path(path)
    kinds: dict[str, Kind] = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "nemo", "": "kaldi"}
    kind = "kaldi" if path.is_dir() else kinds.get(path.suffix.lower())
    if kind is None:
        raise UserError(f"{path}: cannot tell the kind of this target; name it: {', '.join(KINDS)}")
    return kind


# --- NeMo ---------------------------------------------------------------------------------------


def read_nemo(path: str | Path) -> Iterator[Utterance]:
    """Read a NeMo manifest. Relative audio starts at its folder; unknown plain fields become extras."""
    ids, losses = UniqueNames(), Counter[str]()
    with open_lines(path) as lines:
        for number, record in read_objects(lines):
            yield _build(f"{path}:{number}", keep_scalars(record, losses), lines.folder, ids)
    warn_of_losses(path, losses)


def write_nemo(path: str | Path, utterances: Iterable[Utterance]) -> int:
    """Audio paths are absolute, since only some versions of NeMo know relative ones."""
    folder = os.path.dirname(os.path.abspath(path))
    count = 0
    with replace_file(path) as file:
        for utterance in utterances:
            _require_free_names(f"utterance {utterance.id}", utterance.extras)
            absolute = with_absolute_audio(utterance, folder)
            fields = absolute.model_dump(exclude_defaults=True, exclude={"extras"})
            known = {_NEMO_NAMES.get(name, name): value for name, value in fields.items()}
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
        for source, line in read_text_lines(table):
            id, *text = line.split(maxsplit=1)
            names = (f"{id}{suffix}" for suffix in (".flac", ".wav", ".mp3", ".opus", ".ogg"))
            audio = next((name for name in names if "/" not in id and (table.parent / name).is_file()), None)
            if audio is None:
                raise UserError(
                    f"{source}: no audio for {shorten(id)} beside it; expected {shorten(id + '.flac')}"
                )
            record = {"id": id, "audio": audio, "text": "".join(text), "speaker": id.split("-")[0]}
            yield _build(source, record, table.parent, UniqueNames())


# --- Parquet ------------------------------------------------------------------------------------


def read_parquet(path: str | Path, audio_dir: Path) -> Iterator[Utterance]:
    """A table, or a folder of them; the audio of their cells becomes files in `audio_dir`."""
    losses: Counter[str] = Counter()
    for source, record in parquet.read_rows(path, audio_dir, losses):
        yield _build(source, {k: v for k, v in record.items() if v is not None}, "", UniqueNames())
    warn_of_losses(path, losses)


# --- tables -------------------------------------------------------------------------------------


def read_table(path: str | Path, separator: str) -> Iterator[Utterance]:
    """A table with a header. Relative audio starts at the table's folder.

    One with client_id and path is from Common Voice: its audio is in `clips/` beside it, and the durations in
    `clip_durations.tsv`, if that is there. One of its spontaneous speech, ss-corpus-LOCALE.tsv, names files
    in `audios/`; where its transcription is empty, nobody has written it down.
    """
    ids = UniqueNames()
    with open_lines(path) as lines:
        rows = read_rows(lines, separator)
        _, names = next(rows, (1, []))
        require_distinct(lines, names)
        meanings = [MEANINGS.get(name.lower()) for name in names]
        if "audio" not in meanings:
            found = ", ".join(shorten(name) for name in names[:20]) or "nothing"
            raise UserError(
                f"{path}: no column for the audio; the header has {found}."
                f"{_explain_separator(names, separator)} Known are {describe_columns()}"
            )
        if "text" not in meanings and None in meanings:
            unknown = [name for name, meaning in zip(names, meanings, strict=True) if meaning is None]
            logger.warning(
                "%s: no text is read, for no column is named %s; the header also has %s",
                *(path, " or ".join(COLUMNS["text"]), ", ".join(map(shorten, unknown[:20]))),
            )
        folder, milliseconds = Path(lines.folder), dict[str, str]()
        known = {name.lower() for name in names}
        is_spontaneous = {"client_id", "audio_file"} <= known
        if is_spontaneous and (folder / "audios").is_dir():
            folder /= "audios"
        locale = re.fullmatch(r"ss-corpus-(\S+)\.tsv", Path(path).name)  # its column has a name, not a code
        if {"client_id", "path"} <= known:
            if "duration" not in meanings and (folder / "clip_durations.tsv").exists():
                milliseconds = _read_clip_durations(folder / "clip_durations.tsv")
            folder /= "clips"
        keeps_empty = set() if is_spontaneous else {"text"}
        for number, row in rows:
            cells = zip(names, meanings, row, strict=True)
            record = {name: cell for name, meaning, cell in cells if cell or meaning in keeps_empty}
            if is_spontaneous and locale:
                record["language"] = locale[1]
            clip = next((record[n] for n in record if MEANINGS.get(n.lower()) == "audio"), "")
            if clip in milliseconds:
                record.setdefault("duration_ms", milliseconds[clip])
            yield _build(f"{path}:{number}", record, folder, ids)


def _explain_separator(names: Sequence[str], separator: str) -> str:
    """A header of one cell with another separator in it was meant to be more."""
    others = (
        [other for other in ",;|\t" if other != separator and other in names[0]] if len(names) == 1 else []
    )
    if not others:
        return ""
    return (
        f" Its cells stand between {others[0]!r}; save the table with commas as .csv, or with tabs as .tsv."
    )


def _read_clip_durations(path: Path) -> dict[str, str]:
    with open_lines(path) as lines:
        rows = read_rows(lines, "\t")
        _, header = next(rows, (1, []))
        if (
            header[:1] not in (["clip"], ["filename"])
            or len(header) != 2
            or MEANINGS.get(header[1]) != "milliseconds"
        ):
            raise UserError(f"{path}: expected the columns clip and duration[ms], found {shorten(header)}")
        return {clip: milliseconds for _, (clip, milliseconds) in rows}


def _build(source: str, record: Mapping[str, Any], folder: str | Path, ids: UniqueNames) -> Utterance:
    """Fill in what a record may leave out: start, duration (from the audio file) and id."""
    try:
        named = name_fields(record)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    fields = {"start": 0.0, **named.values, "extras": named.rest}
    for name in ("id", "speaker"):  # often written as numbers
        if isinstance(fields.get(name), int):
            fields[name] = str(fields[name])
    audio = fields.get("audio")
    if not audio:
        raise UserError(f"{source}: the path of the audio file is missing")
    if isinstance(audio, str):
        if found := re.match(r"\$\w+|\{\w+\}", audio):
            raise UserError(
                f"{source}: {shorten(audio)} begins with a placeholder; put the corpus's "
                f"folder in place of {found[0]}, as by sed"
            )
        fields["audio"] = os.path.join(folder, audio)
        if "duration" not in fields:
            try:
                fields["duration"] = measure_seconds(fields["audio"]) - fields["start"]
            except UserError as error:
                raise UserError(f"{source}: the duration is not given, and {error}") from None
    channel = named.rest.get("channel")
    if isinstance(channel, int | str) and str(channel).isdecimal():  # others have names for it: left, phone
        fields["channel"], fields["extras"] = int(channel), {**named.rest}
        del fields["extras"]["channel"]
    if "id" not in fields:
        fields["id"] = ids.add(build_id(fields["audio"], fields["start"], fields.get("duration")))
    return build_utterance(source, fields)


def _require_free_names(place: str, extras: Iterable[str]) -> None:
    """A name that is in use for something else would not come back as an extra."""
    for name in extras:
        if not name.strip() or name != name.strip() or name.lower() in MEANINGS:
            raise UserError(
                f"{place}: extras.{name} cannot be a column, the name means something else; rename it"
            )


def write_table(
    path: str | Path, utterances: Iterable[Utterance], format_row: Callable[[str, list[str]], str]
) -> int:
    """Write a table with the columns that are needed; returns the count."""
    records = list(utterances)
    folder = os.path.dirname(os.path.abspath(path))
    extras = sorted({name for record in records for name in record.extras})
    _require_free_names(str(path), extras)
    with_text = any(record.text is not None for record in records)
    with_channel = any(record.channel is not None for record in records)
    is_needed = {"text": with_text, "channel": with_channel}
    header = [name for name in _TABLE_COLUMNS if is_needed.get(name, True)] + extras
    losses: Counter[str] = Counter()
    with replace_file(path) as file:
        file.write(format_row("header", header).encode())
        for record in records:
            values = record.model_dump() | {"path": relative_audio(record.audio, folder)} | record.extras
            cells = ["" if (value := values.get(name)) is None else str(value) for name in header]
            file.write(format_row(record.id, cells).encode())
            losses["without a text get an empty one"] += with_text and record.text is None
            losses["lose an extra that is empty"] += any(
                value in (None, "") for value in record.extras.values()
            )
            losses["have extras that come back as text"] += any(
                not isinstance(value, (str, type(None))) for value in record.extras.values()
            )
    warn_of_losses(path, losses)
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


read_csv = partial(read_table, separator=",")
read_tsv = partial(read_table, separator="\t")
write_csv = partial(write_table, format_row=_format_csv_row)
write_tsv = partial(write_table, format_row=_format_tsv_row)
_READERS: dict[str, Callable[[str | Path], Iterator[Utterance]]] = {
    "jsonl": read_manifest,
    "nemo": read_nemo,
    "csv": read_csv,
    "tsv": read_tsv,
    "librispeech": read_librispeech,
    "lhotse": read_lhotse,
}
_WRITERS: dict[str, Callable[[str | Path, Iterable[Utterance]], int]] = {
    "jsonl": write_manifest,
    "nemo": write_nemo,
    "csv": write_csv,
    "tsv": write_tsv,
    "kaldi": write_kaldi,
}
