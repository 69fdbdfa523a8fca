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
    build_utterance,
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
BATCH_ROWS = 32  # of Parquet in memory at once, with their audio
AUDIO_MARKS = {b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3", b"\xff\xfb": ".mp3", b"\xff\xf3": ".mp3"}
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
        return _read_lhotse(path)
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


# --- Parquet ------------------------------------------------------------------------------------


def _read_parquet(path: str | Path, records: Records, audio_dir: Path) -> Iterator[Utterance]:
    """A table, or all in a folder and below; the audio of their cells becomes files in `audio_dir`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install 'asr-toolkit[parquet]'") from None
    is_folder = os.path.isdir(path)
    for table in sorted(Path(path).rglob("*.parquet")) if is_folder else [Path(path)]:
        split = find_split(os.path.relpath(table, path if is_folder else table.parent))
        number = 0
        try:
            with parquet.ParquetFile(table) as file:
                column = _find_audio_column(table, file.schema_arrow)
                labels = _read_labels(file.schema_arrow.metadata or {})
                for batch in file.iter_batches(BATCH_ROWS):
                    for row in batch.to_pylist():
                        number += 1
                        source = f"{table}: row {number}"
                        cell = row.pop(column) or {}
                        record = _name_labels(keep_scalars(row, records.losses), labels)
                        id, name = _pop_names(record, cell.get("path"))
                        record["id"] = records.ids.add(id)
                        records.check_names(record)
                        if cell.get("bytes") is not None:
                            record["audio"] = _write_audio(audio_dir / record["id"], cell["bytes"])
                        elif (audio := _find_beside(table.parent, name)) is not None:
                            record["audio"] = audio
                        else:
                            message = "its audio is neither in the table nor a file beside it"
                            records.leave_out(UserError(f"{source}: {message}: {shorten(name)}"))
                            continue
                        known = {name: value for name, value in record.items() if value is not None}
                        yield from records.build(source, known, "", split)
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{table}: not a whole Parquet table ({error}); get it again") from None


def _find_audio_column(table: Path, schema: Any) -> str:
    """The column of structs with bytes and path: `audio`, if there are several."""
    structs = {field.name: field.type for field in schema if str(field.type).startswith("struct<")}
    found = [name for name, cell in structs.items() if {"bytes", "path"} <= {part.name for part in cell}]
    if not found or (len(found) > 1 and "audio" not in found):
        raise UserError(
            f"{table}: expected one column of audio, each cell with bytes and path; found "
            f"{', '.join(found) or 'none'} among {', '.join(schema.names)}"
        )
    return found[0] if len(found) == 1 else "audio"


def _read_labels(metadata: Mapping[bytes, bytes]) -> dict[str, list[Any]]:
    """Columns in which Hugging Face stores the number of a name, with these names."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {name: list(own["names"]) for name, own in features.items() if "names" in own}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # written by others


def _name_labels(record: dict[str, Any], labels: Mapping[str, list[Any]]) -> dict[str, Any]:
    for name in labels.keys() & record.keys():
        number = record[name]
        if isinstance(number, int) and number < len(labels[name]):
            record[name] = str(labels[name][number]) if number >= 0 else None
    return record


def _pop_names(record: dict[str, Any], path: str | None) -> tuple[str, str]:
    """Take the id out of a record, and the path of its audio on the machine that made the table."""
    names = {"id": "", "audio": path or ""}
    for key in list(record):
        meaning = MEANINGS.get(key.lower())
        if meaning in names:
            value = record.pop(key)
            names[meaning] = names[meaning] or ("" if value is None else str(value))
    id = re.sub(r"[^\w.-]+", "_", names["id"] or build_id(names["audio"]))
    return id.strip(".")[:150] or "utterance", names["audio"]


def _find_beside(folder: Path, name: str) -> str | None:
    path = os.path.realpath(folder / name)
    is_inside = name and path.startswith(os.path.realpath(folder) + os.sep)
    return path if is_inside and os.path.isfile(path) else None


def _write_audio(stem: Path, content: bytes) -> str:
    suffix = next((own for mark, own in AUDIO_MARKS.items() if content.startswith(mark)), ".wav")
    with replace_file(f"{stem}{suffix}", flush=False) as file:
        file.write(content)
    return f"{stem}{suffix}"


# --- lhotse -------------------------------------------------------------------------------------


def _read_lhotse(path: str | Path) -> Iterator[Utterance]:
    """An utterance for each supervision, in the order of the file.

    Recordings of supervisions come from the file of the same name with recordings instead of supervisions.
    Relative audio starts at the folder of the manifest or, as lhotse has it, at the current one.
    """
    recordings: dict[str, Mapping[str, Any]] | None = None
    losses: Counter[str] = Counter()
    with open_lines(path) as lines:
        for number, record in read_objects(lines):
            recording = record.get("recording")
            if "recording_id" in record:
                if recordings is None:
                    recordings = _read_recordings(Path(path))
                recording = recordings.get(str(record["recording_id"]))
                if recording is None:
                    raise lines.error(
                        number, f"no recording {shorten(record['recording_id'])} beside it; give all of them"
                    )
            if not isinstance(recording, dict):
                losses[f"are left out, as {record.get('type')} without a recording"] += 1
                continue
            try:
                found = [*_build_lhotse_fields(lines.folder, record, recording, losses)]
            except UserError as error:
                raise lines.error(number, str(error)) from None
            yield from (build_utterance(f"{path}:{number}", fields) for fields in found)
    warn_of_losses(path, losses)


def _build_lhotse_fields(
    folder: str, record: Mapping[str, Any], recording: Mapping[str, Any], losses: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The fields of an utterance for a supervision, or for each of a cut, whose times count from its start.

    A cut without any has no text.
    """
    if recording.get("transforms"):
        raise UserError(
            f"recording {shorten(recording.get('id'))} has transforms; store it by lhotse's save_audios"
        )
    shift: Any = 0.0
    supervisions: Any = [record]
    if "recording_id" not in record:
        shift = record.get("start")
        whole = {"id": record.get("id"), "start": 0, "duration": record.get("duration")}
        supervisions = record.get("supervisions") or [whole]
    for supervision in supervisions if isinstance(supervisions, list) else [{}]:
        start = supervision.get("start") if isinstance(supervision, dict) else None
        if not isinstance(start, (int, float)) or not isinstance(shift, (int, float)):
            raise UserError(f"cut {shorten(record.get('id'))}: expected supervisions, and starts in seconds")
        audio, channel = _find_lhotse_audio(recording, supervision.get("channel", record.get("channel")))
        if not os.path.isabs(audio):
            beside = os.path.join(folder, audio)
            audio = beside if os.path.exists(beside) else os.path.abspath(audio)
        custom = supervision.get("custom")
        extras = keep_scalars(custom if isinstance(custom, dict) else {}, losses, "custom.")
        losses["lose their alignment"] += bool(supervision.get("alignment"))
        if supervision.get("gender") is not None:
            extras.setdefault("gender", supervision["gender"])
        same = {name: supervision.get(name) for name in ("id", "duration", "text", "speaker", "language")}
        yield {**same, "audio": audio, "start": round(shift + start, 9), "channel": channel, "extras": extras}


def _find_lhotse_audio(recording: Mapping[str, Any], channels: object) -> tuple[str, int | None]:
    """The file with the channel, and which of its channels that is, counted from 1; None: its only one."""
    wanted = [str(one) for one in channels] if isinstance(channels, list) else [str(channels or 0)]
    own = recording.get("sources")
    for item in own if isinstance(own, list) else []:
        there = item.get("channels") if isinstance(item, dict) else None
        there = [str(one) for one in there] if isinstance(there, list) else []
        if not set(wanted) <= set(there):
            continue
        if item.get("type") != "file" or not isinstance(item.get("source"), str):
            raise UserError(
                f"audio of type {shorten(item.get('type'))} is not opened; store it by lhotse's save_audios"
            )
        if 1 < len(wanted) < len(there):
            raise UserError(f"{len(wanted)} of its channels are meant; expected one, or all")
        is_one = len(wanted) == 1 < len(there)
        return item["source"], there.index(wanted[0]) + 1 if is_one else None
    raise UserError(f"recording {shorten(recording.get('id'))} has no file with channel {', '.join(wanted)}")


def _read_recordings(supervisions: Path) -> dict[str, Mapping[str, Any]]:
    path = supervisions.with_name(supervisions.name.replace("supervisions", "recordings"))
    if path == supervisions or not path.exists():
        raise UserError(f"{supervisions}: no recordings; expected {path} beside it, or give the cuts")
    with open_lines(path) as lines:
        return {str(record.get("id")): record for _, record in read_objects(lines)}


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
