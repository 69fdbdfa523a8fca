"""Parquet tables with audio in their cells, as Hugging Face datasets have them: audio out into files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.data.records import MEANINGS, build_id
from asr.errors import UserError, shorten
from asr.files import replace_file

BATCH_ROWS = 32  # in memory at once, with their audio
AUDIO_MARKS = {b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3", b"\xff\xfb": ".mp3", b"\xff\xf3": ".mp3"}
_SCALARS = (str, int, float)


def find_tables(path: str | Path) -> list[Path]:
    """The file, or all .parquet of a folder and below, in the order of their names."""
    path = Path(path)
    tables = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not tables:
        raise UserError(f"{path}: no .parquet in it; give a table, or a folder with some")
    return tables


def read_rows(
    path: str | Path, audio_dir: Path, losses: Counter[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file:row, record) of each row, whose audio is a file in `audio_dir` then, named by its id.

    `losses` counts columns that a manifest cannot hold.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError("Parquet tables are read by pyarrow, which is missing: pip install pyarrow") from None
    taken: set[str] = set()
    for table in find_tables(path):
        number = 0
        try:
            with parquet.ParquetFile(table) as file:
                column = _find_audio_column(table, file.schema_arrow, pyarrow)
                for batch in file.iter_batches(BATCH_ROWS):
                    for row in batch.to_pylist():
                        number += 1
                        source = f"{table}: row {number}"
                        yield (
                            source,
                            _store_audio(source, row, column, table.parent, audio_dir, taken, losses),
                        )
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{table}: not a whole Parquet table ({error}); get it again") from None


def _find_audio_column(table: Path, schema: Any, pyarrow: Any) -> str:
    """The column of structs with bytes and path: `audio`, if there are several."""
    found = [
        field.name
        for field in schema
        if pyarrow.types.is_struct(field.type)
        and {"bytes", "path"} <= {field.type.field(index).name for index in range(field.type.num_fields)}
    ]
    if not found or (len(found) > 1 and "audio" not in found):
        raise UserError(
            f"{table}: expected one column of audio, each cell with bytes and path; found "
            f"{', '.join(found) or 'none'} among {', '.join(schema.names)}"
        )
    return found[0] if len(found) == 1 else "audio"


def _store_audio(
    source: str,
    row: dict[str, Any],
    column: str,
    folder: Path,
    audio_dir: Path,
    taken: set[str],
    losses: Counter[str],
) -> dict[str, Any]:
    cell = row[column] or {}
    content, name = cell.get("bytes"), str(cell.get("path") or "")
    record = {key: value for key, value in row.items() if value is None or isinstance(value, _SCALARS)}
    losses.update(f"lose {key}, a list or an object" for key in row if key not in record and key != column)
    for key in [key for key in record if MEANINGS.get(key.lower()) == "audio"]:
        name = name or str(record[key] or "")
        del record[key]  # a path on the machine that made the table
    ids = [record.pop(key) for key in list(record) if MEANINGS.get(key.lower()) == "id"]
    base = next((str(id) for id in ids if id is not None), None) or build_id(name)
    stem = base = re.sub(r"[^\w.-]+", "_", base).strip(".")[:150] or "utterance"
    while stem in taken:  # some tables number sentences, which several people read
        stem = f"{base}-{len(taken)}"
    taken.add(stem)
    if content is None:
        path = os.path.realpath(folder / name)
        if not name or not path.startswith(os.path.realpath(folder) + os.sep) or not os.path.isfile(path):
            raise UserError(
                f"{source}: its audio is neither in the table nor a file beside it: {shorten(name)}"
            )
        record["audio"] = path
    else:
        suffix = next((own for mark, own in AUDIO_MARKS.items() if content.startswith(mark)), ".wav")
        path = str(audio_dir / f"{stem}{suffix}")
        with replace_file(path, flush=False) as file:
            file.write(content)
        record["audio"] = path
    return record | {"id": stem}
