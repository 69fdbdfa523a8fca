"""Manifests of other toolkits in and out: NeMo JSON Lines, tables such as Common Voice, Kaldi folders.

In only: LibriSpeech, lhotse, audiofolder and Parquet of Hugging Face, recordings with a .txt beside each.

What a format cannot hold is an error if it would damage the rest, else a warning with a count.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from asr.audio.reading import AUDIO_SUFFIXES
from asr.data.kaldi_folder import read_kaldi, write_kaldi
from asr.data.manifest import (
    Utterance,
    read_manifest,
    relative_audio,
    require_line_fits,
    with_absolute_audio,
    write_manifest,
)
from asr.data.records import (
    COLUMNS,
    KINDS,
    MEANINGS,
    SOURCES_ONLY,
    Kind,
    LeaveOut,
    Records,
    SourceKind,
    build_id,
    describe_columns,
    find_split,
    keep_scalars,
    raise_error,
    read_objects,
    read_rows,
    warn_of_losses,
)
from asr.data.text_lines import open_lines, parse_json, read_id_texts, read_text_lines
from asr.errors import UserError, shorten
from asr.files import replace_file

TRANS = ".trans.txt"
METADATA = ("metadata.csv", "metadata.jsonl")
_NEMO_NAMES = {"audio": "audio_filepath", "start": "offset", "language": "lang"}
_TABLE_COLUMNS = ("id", "path", "start", "duration", "text", "speaker", "language", "channel")


def read_utterances(
    path: str | Path,
    kind: SourceKind,
    *,
    allow_pipes: bool = False,
    audio_dir: Path | None = None,
    text_column: str | None = None,
    leave_out: LeaveOut = raise_error,
) -> Iterator[Utterance]:
    """The utterances of a manifest of any kind, with absolute audio paths.

    `audio_dir`: where the audio goes that a Parquet table has in its cells. `text_column`: which column of a
    table has the texts. `leave_out` is called for each utterance whose audio is missing or cannot be read.
    """
    if kind == "jsonl":
        return read_manifest(path)
    if kind == "lhotse":
        from asr.data.lhotse_manifests import read_lhotse

        return read_lhotse(path)
    records = Records(path, text_column, leave_out)
    if kind == "kaldi":
        return records.read(read_kaldi(path, allow_pipes, records))
    if kind == "parquet":
        if audio_dir is None:
            raise UserError(f"{path}: holds audio; make a manifest of it first, by `asr manifest convert`")
        return records.read(_read_parquet(path, records, audio_dir))
    return records.read(_READERS[kind](path, records))


def guess_source_kind(path: str | Path) -> SourceKind:
    """The kind of a folder is that of the files in it, of a table that of its suffix, and of JSON Lines that
    of the first record."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; check the path")
    if path.is_dir():
        return _guess_folder_kind(path)
    name = path.name.lower().removesuffix(".gz")
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    if not name.endswith((".jsonl", ".json")):
        raise UserError(f"{path}: of unknown kind; name it by --from: {', '.join((*KINDS, *SOURCES_ONLY))}")
    first = next((parse_json(line) for _, line in read_text_lines(path)), None)
    if not isinstance(first, dict) or {"id", "audio", "duration"} <= first.keys():
        return "jsonl"
    if str(first.get("type")).endswith("Cut") or {"recording_id", "start", "duration"} <= first.keys():
        return "lhotse"
    return "nemo" if any(MEANINGS.get(name.lower()) == "audio" for name in first) else "jsonl"


_SUFFIXES: dict[str, SourceKind] = {TRANS: "librispeech", ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv"}


def _guess_folder_kind(folder: Path) -> SourceKind:
    if (folder / "wav.scp").exists():
        return "kaldi"
    patterns: list[tuple[str, SourceKind]] = [("*.parquet", "parquet"), (f"*{TRANS}", "librispeech")]
    patterns += [(name, "audiofolder") for name in METADATA]
    for pattern, kind in patterns:
        if next(folder.rglob(pattern), None) is not None:
            return kind
    return "kaldi" if next(_find_recordings(folder), None) is None else "files"


def guess_target_kind(path: str | Path) -> Kind:
    """Guess by the suffix; a path without one is a Kaldi folder."""
    path = Path(path)
    kinds: dict[str, Kind] = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "nemo", "": "kaldi"}
    kind = "kaldi" if path.is_dir() else kinds.get(path.suffix.lower())
    if kind is None:
        raise UserError(f"{path}: cannot tell the kind of this target; name it: {', '.join(KINDS)}")
    return kind


# --- NeMo ---------------------------------------------------------------------------------------


def _read_nemo(path: str | Path, records: Records, split: str | None = None) -> Iterator[Utterance]:
    """JSON Lines of NeMo and others. Relative audio starts at its folder; other fields become extras."""
    with open_lines(path) as lines:
        for number, record in read_objects(lines):
            fields = keep_scalars(record, records.losses)
            yield from records.build(f"{path}:{number}", fields, lines.folder, split)


# --- folders of recordings ----------------------------------------------------------------------


def _read_librispeech(path: str | Path, records: Records) -> Iterator[Utterance]:
    """All SPEAKER-CHAPTER.trans.txt of a folder and below, or one of them: a line is an id and its text.

    The audio, ID.flac or of another format, lies beside; the speaker is the first part of the id.
    """
    for table in sorted(Path(path).rglob(f"*{TRANS}")) if Path(path).is_dir() else [Path(path)]:
        with open_lines(table) as lines:
            for number, id, text in read_id_texts(lines):
                audio = _find_file(table.parent, id, (".flac", ".wav", ".mp3", ".opus", ".ogg"))
                if audio is None:
                    message = f"no audio for {shorten(id)} beside it; expected {shorten(id + '.flac')}"
                    records.leave_out(lines.error(number, message))
                    continue
                record = {"id": id, "audio": audio, "text": text, "speaker": id.split("-")[0]}
                yield from records.build(f"{table}:{number}", record, table.parent)


def _find_file(folder: Path, stem: str, suffixes: Iterable[str]) -> str | None:
    names = (f"{stem}{suffix}" for suffix in suffixes)
    return next((name for name in names if "/" not in stem and (folder / name).is_file()), None)


def _find_recordings(folder: Path) -> Iterator[Path]:
    files = (file for file in folder.rglob("*") if file.suffix.lower() in AUDIO_SUFFIXES)
    return (file for file in files if not file.name.startswith("."))


def _read_files(path: str | Path, records: Records) -> Iterator[Utterance]:
    """All audio files of a folder and below, each with the text of NAME.txt beside it; ids are the paths."""
    root = Path(path)
    for audio in sorted(_find_recordings(root)):
        name = audio.relative_to(root)
        record = {"id": records.ids.add(build_id("-".join(name.parts))), "audio": str(name)}
        text = audio.with_suffix(".txt")
        if text.is_file():
            record["text"] = " ".join(line for _, line in read_text_lines(text))
        else:
            records.losses["have no text, for no .txt of their name is beside them"] += 1
        yield from records.build(str(audio), record, root, find_split(str(name.parent)))


def _read_audiofolder(path: str | Path, records: Records) -> Iterator[Utterance]:
    """The tables named metadata of a folder and below, with the audio relative to each of them."""
    for table in sorted(file for name in METADATA for file in Path(path).rglob(name)):
        split = find_split(os.path.relpath(table.parent, path))
        yield from (_read_csv if table.suffix == ".csv" else _read_nemo)(table, records, split=split)


def _read_parquet(path: str | Path, records: Records, audio_dir: Path) -> Iterator[Utterance]:
    """A table, or a folder of them; the audio of their cells becomes files in `audio_dir`."""
    from asr.data.parquet import read_rows as read_parquet_rows

    root = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    for table, source, record in read_parquet_rows(path, audio_dir, records.losses, records.leave_out):
        records.check_names(record)
        known = {name: value for name, value in record.items() if value is not None}
        yield from records.build(source, known, "", find_split(os.path.relpath(table, root)))


# --- tables -------------------------------------------------------------------------------------


def _read_table(
    path: str | Path, records: Records, separator: str, split: str | None = None
) -> Iterator[Utterance]:
    """A table with a header. Relative audio starts at the table's folder; one without a column for it has
    ID.wav there or in `wavs/`, as LJSpeech.

    One with client_id and path is from Common Voice: its audio is in `clips/` beside it, and the durations in
    `clip_durations.tsv`, if that is there. One of its spontaneous speech, ss-corpus-LOCALE.tsv, names files
    in `audios/`; where its transcription is empty, nobody has written it down.
    """
    with open_lines(path) as lines:
        rows = read_rows(lines, separator)
        _, names = next(rows, (1, []))
        records.check_names(names)
        folder = Path(lines.folder)
        known, durations = {name.lower() for name in names}, dict[str, str]()
        if not known & {*records.columns["audio"], *records.columns["id"]}:
            found = ", ".join(map(shorten, names[:20])) or "nothing"
            raise UserError(f"{path}: no column for the audio in {found}. Known are {describe_columns()}")
        is_spontaneous = {"client_id", "audio_file"} <= known
        locale = re.fullmatch(r"ss-corpus-(\S+)\.tsv", Path(path).name)  # its column has a name, not a code
        if is_spontaneous and (folder / "audios").is_dir():
            folder /= "audios"
        elif {"client_id", "path"} <= known:
            if not known & {"duration", "duration_ms"} and (folder / "clip_durations.tsv").exists():
                durations = _read_clip_durations(folder / "clip_durations.tsv")
            folder /= "clips"
        keeps_empty = set() if is_spontaneous else {*records.columns["text"]}
        for number, row in rows:
            cells = zip(names, row, strict=True)
            record = {name: cell for name, cell in cells if cell or name.lower() in keeps_empty}
            if is_spontaneous and locale:
                record["language"] = locale[1]
            if not known & {*records.columns["audio"]}:
                record = _find_audio_of_id(record, folder)
            if record.get("path") in durations:
                record["duration_ms"] = durations[record["path"]]
            yield from records.build(f"{path}:{number}", record, folder, split)


def _find_audio_of_id(record: dict[str, str], folder: Path) -> dict[str, str]:
    """The record of a table that names no audio file, with that of its id, which may be a path itself."""
    column = next((name for name in record if MEANINGS.get(name.lower()) == "id"), "")
    id = record.get(column, "")
    if "/" in id or (folder / id).is_file():
        return {name: cell for name, cell in record.items() if name != column} | {"audio": id}
    audio = _find_file(folder, id, (".wav", ".flac")) or f"wavs/{id}.wav"
    return record | {"audio": audio}


def _read_clip_durations(path: Path) -> dict[str, str]:
    with open_lines(path) as lines:
        rows = read_rows(lines, "\t")
        _, header = next(rows, (1, []))
        if len(header) != 2 or MEANINGS.get(header[1]) != "milliseconds":
            raise UserError(f"{path}: expected the columns clip and duration[ms], found {shorten(header)}")
        return {clip: milliseconds for _, (clip, milliseconds) in rows}


# --- writing ------------------------------------------------------------------------------------


def _flatten(utterance: Utterance, audio: str, names: Mapping[str, str]) -> dict[str, Any]:
    """The fields of an utterance under the names of a format, with its extras beside them."""
    for name in utterance.extras:
        if utterance.text is not None and name.lower() in COLUMNS["text"][1:]:
            continue  # the column `text` goes before
        if not name.strip() or name != name.strip() or name.lower() in MEANINGS:
            raise UserError(
                f"utterance {utterance.id}: extras.{name} means something else as a column; rename it"
            )
    fields = utterance.model_dump(exclude_defaults=True, exclude={"extras"}) | {"audio": audio}
    return {names.get(name, name): value for name, value in fields.items()} | utterance.extras


def _write_nemo(path: str | Path, utterances: Iterable[Utterance]) -> int:
    """Audio paths are absolute, since only some versions of NeMo know relative ones."""
    folder = os.path.dirname(os.path.abspath(path))
    count = 0
    with replace_file(path) as file:
        for utterance in utterances:
            fields = _flatten(utterance, with_absolute_audio(utterance, folder).audio, _NEMO_NAMES)
            line = json.dumps(fields, ensure_ascii=False).encode()
            require_line_fits(utterance.id, line)
            file.write(line + b"\n")
            count += 1
    return count


def _write_table(path: str | Path, utterances: Iterable[Utterance], separator: str) -> int:
    """A row as `read_rows` reads it has quotes between commas, and none between tabs."""
    folder = os.path.dirname(os.path.abspath(path))
    rows = [_flatten(item, relative_audio(item.audio, folder), {"audio": "path"}) for item in utterances]
    found = {name for row in rows for name in row}
    header = [name for name in _TABLE_COLUMNS if name in found or name not in ("text", "channel")]
    header += sorted(found.difference(header))
    plain: Any = {"quoting": csv.QUOTE_NONE, "quotechar": None, "lineterminator": "\n"}
    limit, marks = csv.field_size_limit(), set("\0\r" if separator == "\t" else "\0")
    losses: Counter[str] = Counter()
    with replace_file(path) as file:
        for row in (dict(zip(header, header, strict=True)), *rows):
            cells = ["" if (value := row.get(name)) is None else str(value) for name in header]
            buffer = io.StringIO()
            writer = csv.writer(buffer, delimiter=separator, **(plain if separator == "\t" else {}))
            try:
                if any(len(cell) > limit or marks & set(cell) for cell in cells):
                    raise csv.Error(f"a cell has at most {limit:,} characters and no control characters")
                writer.writerow(cells)
            except csv.Error as error:  # a tab or the end of a line in a cell
                raise UserError(f"utterance {row['id']}: cannot be a row of this table ({error})") from None
            file.write(buffer.getvalue().encode())
            own = [row[name] for name in row.keys() - set(_TABLE_COLUMNS)]
            losses["without a text get an empty one"] += "text" in header and "text" not in row
            losses["lose an extra that is empty"] += None in own or "" in own
            losses["have extras that come back as text"] += any(
                not isinstance(value, (str, type(None))) for value in own
            )
    warn_of_losses(path, losses)
    return len(rows)


_read_csv = partial(_read_table, separator=",")
_READERS: dict[str, Callable[[str | Path, Records], Iterator[Utterance]]] = {
    "nemo": _read_nemo,
    "csv": _read_csv,
    "tsv": partial(_read_table, separator="\t"),
    "librispeech": _read_librispeech,
    "audiofolder": _read_audiofolder,
    "files": _read_files,
}
_WRITERS: dict[str, Callable[[str | Path, Iterable[Utterance]], int]] = {
    "jsonl": write_manifest,
    "nemo": _write_nemo,
    "csv": partial(_write_table, separator=","),
    "tsv": partial(_write_table, separator="\t"),
    "kaldi": write_kaldi,
}


def write_utterances(path: str | Path, kind: Kind, utterances: Iterable[Utterance]) -> int:
    """Write a manifest of any kind; returns the count."""
    return _WRITERS[kind](path, utterances)
