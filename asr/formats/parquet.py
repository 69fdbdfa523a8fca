"""Parquet tables with audio in their cells, as Hugging Face publishes data sets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.data.manifest import Utterance
from asr.data.records import MEANINGS, build_id
from asr.errors import UserError
from asr.files import replace_file
from asr.formats.source import Source, find_split

BATCH_ROWS = 32  # in memory at once, with their audio
AUDIO_MARKS = {b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3", b"\xff\xfb": ".mp3", b"\xff\xf3": ".mp3"}


def read_parquet(path: str | Path, source: Source, audio_dir: Path) -> Iterator[Utterance]:
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
                        place = f"{table}: row {number}"
                        cell = row.pop(column) or {}
                        record = _name_labels(source.keep_scalars(row), labels)
                        id = source.ids.add(_take_id(record, cell.get("path")))
                        source.check_names(record)
                        if cell.get("bytes") is None:
                            source.leave_out(UserError(f"{place}: its audio is not in the table"))
                            continue
                        record |= {"id": id, "audio": _write_audio(audio_dir / id, cell["bytes"])}
                        known = {name: value for name, value in record.items() if value is not None}
                        yield from source.build(place, known, "", split)
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


def _take_id(record: dict[str, Any], path: str | None) -> str:
    """Take the id, which becomes the name of a file, and the path of another machine out of a record."""
    names = {"id": "", "audio": path or ""}
    for key in list(record):
        meaning = MEANINGS.get(key.lower())
        if meaning in names:
            value = record.pop(key)
            names[meaning] = names[meaning] or ("" if value is None else str(value))
    id = re.sub(r"[^\w.-]+", "_", names["id"] or build_id(names["audio"]))
    return id.strip(".")[:150] or "utterance"


def _write_audio(stem: Path, content: bytes) -> str:
    suffix = next((own for mark, own in AUDIO_MARKS.items() if content.startswith(mark)), ".wav")
    with replace_file(f"{stem}{suffix}", flush=False) as file:
        file.write(content)
    return f"{stem}{suffix}"
