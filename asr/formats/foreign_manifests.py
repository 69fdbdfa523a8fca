"""Read manifests of other toolkits, and guess their kind.

Kinds are Kaldi folders, JSON Lines (NeMo and others), tables (such as Common Voice), Hugging Face's
audiofolder, and recordings with a .txt file next to each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from asr.audio.reading import AUDIO_SUFFIXES
from asr.data.columns import COLUMNS, MEANINGS, SOURCES, build_id, describe_columns
from asr.data.manifest import Utterance, is_manifest, read_manifest
from asr.data.tables import LJSPEECH_COLUMNS, read_objects, read_rows
from asr.data.text_lines import open_lines, parse_json, read_text_lines
from asr.errors import UserError, shorten
from asr.formats.kaldi_folder import read_kaldi
from asr.formats.source import LeaveOut, Source, find_split, raise_error

METADATA = ("metadata.csv", "metadata.jsonl")
_SUFFIXES = {".csv": "csv", ".tsv": "tsv"}


def read_utterances(
    path: str | Path, kind: str, *, text_column: str | None = None, leave_out: LeaveOut = raise_error
) -> Iterator[Utterance]:
    """Yield the utterances of a manifest of any kind, with absolute audio paths.

    `text_column`: the column of a table that has the texts. `leave_out` is called for each utterance whose
    audio is missing or cannot be read.
    """
    if kind == "jsonl":
        return read_manifest(path)
    source = Source(path, text_column, leave_out)
    return source.read(_READERS[kind](path, source))


def guess_source_kind(path: str | Path) -> str:
    """Guess the kind of a folder from its files, of a table from its suffix, and of JSON Lines from the first
    record."""
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
        raise UserError(f"{path}: unknown kind of manifest; name it with --from: {', '.join(SOURCES)}")
    if is_manifest(path):
        return "jsonl"
    first = next((parse_json(line) for _, line in read_text_lines(path)), None)
    names = first if isinstance(first, dict) else {}
    return "nemo" if any(MEANINGS.get(name.lower()) == "audio" for name in names) else "jsonl"


def _guess_folder_kind(folder: Path) -> str:
    if (folder / "wav.scp").exists():
        return "kaldi"
    if any(next(folder.rglob(name), None) is not None for name in METADATA):
        return "audiofolder"
    return "kaldi" if next(_find_recordings(folder), None) is None else "files"


# --- NeMo ---------------------------------------------------------------------------------------


def _read_nemo(path: str | Path, source: Source) -> Iterator[Utterance]:
    """Read JSON Lines (NeMo and others). Audio is relative to their folder; other fields become extras."""
    with open_lines(path) as lines:
        for number, record in read_objects(lines):
            yield from source.build(f"{path}:{number}", source.keep_scalars(record), lines.folder)


# --- folders of recordings ----------------------------------------------------------------------


def _find_recordings(folder: Path) -> Iterator[Path]:
    files = (file for file in folder.rglob("*") if file.suffix.lower() in AUDIO_SUFFIXES)
    return (file for file in files if not file.name.startswith("."))


def _read_files(path: str | Path, source: Source) -> Iterator[Utterance]:
    """Read all audio files below a folder, each with the text of NAME.txt next to it; paths become IDs."""
    root = Path(path)
    texts = {file.with_suffix(""): file for file in sorted(root.rglob("*")) if file.suffix.lower() == ".txt"}
    for audio in sorted(_find_recordings(root)):
        name = audio.relative_to(root)
        record = {"id": source.ids.add(build_id("-".join(name.parts))), "audio": str(name)}
        text = texts.get(audio.with_suffix(""))
        if text is not None and text.is_file():
            record["text"] = " ".join(line for _, line in read_text_lines(text))
        else:
            source.losses["have no text, because there is no .txt file with their name"] += 1
        yield from source.build(str(audio), record, root, find_split(str(name.parent)))


def _read_audiofolder(path: str | Path, source: Source) -> Iterator[Utterance]:
    """Read the tables named metadata below a folder, with audio relative to each of them."""
    for table in sorted(file for name in METADATA for file in Path(path).rglob(name)):
        split = find_split(os.path.relpath(table.parent, path))
        for utterance in (_read_csv if table.suffix == ".csv" else _read_nemo)(table, source):
            below = os.path.relpath(os.path.dirname(utterance.audio), path)
            if own := split or (None if below.startswith("..") else find_split(below)):
                utterance.extras.setdefault("split", own)
            yield utterance


# --- tables -------------------------------------------------------------------------------------


def _read_table(path: str | Path, source: Source, separator: str) -> Iterator[Utterance]:
    """Read a table. Audio is relative to its folder, or to `clips/` for Common Voice (client_id and path).

    LJSpeech has an ID and two texts; its audio is wavs/ID.wav.
    """
    with open_lines(path) as lines:
        rows = read_rows(lines, separator)
        _, names = next(rows, (1, []))
        source.check_names(names)
        folder = Path(lines.folder)
        known = {name.lower() for name in names}
        is_ljspeech = tuple(names) == LJSPEECH_COLUMNS[3]
        if not is_ljspeech and not known & {*COLUMNS["audio"]}:
            found = ", ".join(map(shorten, names[:20])) or "nothing"
            raise UserError(f"{path}: no audio column among {found}; known names are {describe_columns()}")
        if {"client_id", "path"} <= known:
            folder /= "clips"
        for number, row in rows:
            cells = zip(names, row, strict=True)
            record = {name: cell for name, cell in cells if cell or name.lower() in source.columns["text"]}
            if is_ljspeech:
                record["audio"] = f"wavs/{row[0]}.wav"
            yield from source.build(f"{path}:{number}", record, folder)


_read_csv = partial(_read_table, separator=",")
_READERS: dict[str, Callable[[str | Path, Source], Iterator[Utterance]]] = {
    "nemo": _read_nemo,
    "csv": _read_csv,
    "tsv": partial(_read_table, separator="\t"),
    "kaldi": read_kaldi,
    "audiofolder": _read_audiofolder,
    "files": _read_files,
}
