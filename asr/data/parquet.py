"""Parquet tables with audio in their cells, as Hugging Face datasets have them: audio out into files."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.data.records import MEANINGS, LeaveOut, UniqueNames, build_id, keep_scalars
from asr.errors import UserError, shorten
from asr.files import replace_file

BATCH_ROWS = 32  # in memory at once, with their audio
AUDIO_MARKS = {b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3", b"\xff\xfb": ".mp3", b"\xff\xf3": ".mp3"}


def read_rows(
    path: str | Path, audio_dir: Path, losses: Counter[str], leave_out: LeaveOut
) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """(table, table and row for messages, record) of each row of a table, or of all in a folder and below.

    The audio of a row is now a file in `audio_dir`. `losses` counts columns that a manifest cannot hold.
    `leave_out` is called for rows without audio.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install 'asr-toolkit[parquet]'") from None
    ids = UniqueNames()
    for table in sorted(Path(path).rglob("*.parquet")) if os.path.isdir(path) else [Path(path)]:
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
                        record = _name_labels(keep_scalars(row, losses), labels)
                        id, name = _pop_names(record, cell.get("path"))
                        record["id"] = ids.add(id)
                        if cell.get("bytes") is not None:
                            record["audio"] = _write_audio(audio_dir / record["id"], cell["bytes"])
                        elif (audio := _find_beside(table.parent, name)) is not None:
                            record["audio"] = audio
                        else:
                            message = "its audio is neither in the table nor a file beside it"
                            leave_out(UserError(f"{source}: {message}: {shorten(name)}"))
                            continue
                        yield table, source, record
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
