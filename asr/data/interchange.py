"""Manifests of other toolkits in and out: NeMo JSON Lines, tables such as Common Voice, Kaldi folders.

In only: LibriSpeech, lhotse, audiofolder and Parquet of Hugging Face, recordings with a .txt beside each.

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

from asr.audio.headers import AUDIO_SUFFIXES
from asr.audio.reading import AudioError, measure_seconds
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
    LeaveOut,
    UniqueNames,
    build_id,
    describe_columns,
    keep_scalars,
    name_fields,
    raise_error,
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
SourceKind = Kind | Literal["librispeech", "lhotse", "parquet", "audiofolder", "files"]
KINDS: tuple[Kind, ...] = ("jsonl", "nemo", "csv", "tsv", "kaldi")
SOURCES_ONLY = ("librispeech", "lhotse", "parquet", "audiofolder", "files")
TRANS = ".trans.txt"
WITH_COLUMNS = ("nemo", "csv", "tsv", "parquet", "audiofolder")
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
    if text_column is not None and kind not in WITH_COLUMNS:
        raise UserError(f"{path}: only tables have a column of texts to choose, this is read as {kind}")
    if kind == "kaldi":
        return read_kaldi(path, allow_pipes, leave_out)
    if allow_pipes:
        raise UserError(f"{path}: only Kaldi folders have pipes to allow, this is read as {kind}")
    if kind == "jsonl":
        return read_manifest(path)
    if kind == "lhotse":
        return read_lhotse(path)
    records = Records(path, text_column, leave_out)
    if kind == "parquet":
        if audio_dir is None:
            raise UserError(f"{path}: holds audio; make a manifest of it first, by `asr manifest convert`")
        return _read(partial(_read_parquet, audio_dir=audio_dir), path, records)
    return _read(_READERS[kind], path, records)


def write_utterances(path: str | Path, kind: Kind, utterances: Iterable[Utterance]) -> int:
    """Write a manifest of any kind; returns the count."""
    return _WRITERS[kind](path, utterances)


def guess_source_kind(path: str | Path) -> SourceKind:
    """The kind of a folder is that of the files in it, of a table that of its suffix, and of JSON Lines that
    of the first record."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; check the path")
    if path.is_dir():
        return _guess_folder_kind(path)
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
    if not isinstance(first, dict) or {"id", "audio", "duration"} <= first.keys():
        return "jsonl"
    return "nemo" if any(MEANINGS.get(name.lower()) == "audio" for name in first) else "jsonl"


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


# --- records of any kind --------------------------------------------------------------------------


def _read(
    reader: Callable[[str | Path, Records], Iterator[Utterance]], path: str | Path, records: Records
) -> Iterator[Utterance]:
    yield from reader(path, records)
    records.finish()


class Records:
    """Utterances of the records of one source, and warnings about the source as a whole."""

    def __init__(
        self, path: str | Path, text_column: str | None = None, leave_out: LeaveOut = raise_error
    ) -> None:
        self.leave_out = leave_out
        self.losses: Counter[str] = Counter()
        """How many utterances lose what, by reason."""
        self.root: Path | None = None
        """Below it, the folders of audio files tell the split."""
        self._path, self._text_column = path, text_column
        own = {} if text_column is None else {"text": (text_column.lower(),)}
        self._columns = {**COLUMNS, **own}
        self._meanings = {name: meaning for meaning, names in self._columns.items() for name in names}
        self.ids = UniqueNames()
        self._count = self._texts = 0
        self._names: list[str] = []

    def find_meaning(self, name: str) -> str | None:
        """The meaning of a column, among those of COLUMNS."""
        return self._meanings.get(name.lower())

    def check_names(self, names: Iterable[str]) -> None:
        """Check, once, that one column has the texts; `names` are those of a header or of a first record."""
        if self._names:
            return
        self._names = list(names)
        texts = [name for name in self._names if self.find_meaning(name) == "text"]
        if self._text_column is not None and not texts:
            raise UserError(
                f"{self._path}: no column {shorten(self._text_column)} among {self._list_names()}"
            )
        if len(texts) > 1:
            texts.sort(key=lambda name: COLUMNS["text"].index(name.lower()))
            logger.warning(
                "%s: the text is %s, and %s goes into the extras; choose another by --text-column",
                *(self._path, texts[0], ", ".join(texts[1:])),
            )

    def build(
        self, source: str, record: Mapping[str, Any], folder: str | Path, split: str | None = None
    ) -> Iterator[Utterance]:
        """The utterance of a record, none if it is left out. Relative audio starts at `folder`."""
        self.check_names(record)
        try:
            utterance = _build(source, record, folder, self.ids, self._columns)
        except AudioError as error:
            self.leave_out(error)
            return
        if self.root is not None:
            split = _find_split(os.path.relpath(os.path.dirname(utterance.audio), self.root))
        if split is not None:
            utterance.extras.setdefault("split", split)
        self._count += 1
        self._texts += bool(utterance.text)
        yield utterance

    def finish(self) -> None:
        """Warn of what the source as a whole lacks."""
        warn_of_losses(self._path, self.losses)
        if self._count and not self._texts:
            logger.warning(
                "%s: no utterance has a text; if its column is one of %s, name it by --text-column",
                *(self._path, self._list_names()),
            )

    def _list_names(self) -> str:
        return ", ".join(map(shorten, self._names[:20])) or "nothing"


def _find_split(path: str) -> str | None:
    """The split that a path below the folder of a data set names, as Hugging Face's do: test/a.wav."""
    found = _SPLIT.findall(path)
    return found[-1].lower() if found else None


_SPLIT = re.compile(
    r"(?<![a-z])(train|training|validation|valid|val|dev|test|testing|eval|evaluation)(?![a-z])",
    re.IGNORECASE,
)


# --- NeMo ---------------------------------------------------------------------------------------


def _read_nemo(path: str | Path, records: Records) -> Iterator[Utterance]:
    """JSON Lines of NeMo and others. Relative audio starts at its folder; other fields become extras."""
    with open_lines(path) as lines:
        for number, record in read_objects(lines):
            yield from records.build(f"{path}:{number}", keep_scalars(record, records.losses), lines.folder)


def write_nemo(path: str | Path, utterances: Iterable[Utterance]) -> int:
    """Audio paths are absolute, since only some versions of NeMo know relative ones."""
    folder = os.path.dirname(os.path.abspath(path))
    count = 0
    with replace_file(path) as file:
        for utterance in utterances:
            has_text = utterance.text is not None
            _require_free_names(f"utterance {utterance.id}", utterance.extras, has_text)
            absolute = with_absolute_audio(utterance, folder)
            fields = absolute.model_dump(exclude_defaults=True, exclude={"extras"})
            known = {_NEMO_NAMES.get(name, name): value for name, value in fields.items()}
            line = json.dumps(known | utterance.extras, ensure_ascii=False).encode()
            require_line_fits(utterance.id, line)
            file.write(line + b"\n")
            count += 1
    return count


# --- LibriSpeech --------------------------------------------------------------------------------


def _read_librispeech(path: str | Path, records: Records) -> Iterator[Utterance]:
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
                expected = f"expected {shorten(id + '.flac')}"
                records.leave_out(UserError(f"{source}: no audio for {shorten(id)} beside it; {expected}"))
                continue
            record = {"id": id, "audio": audio, "text": "".join(text), "speaker": id.split("-")[0]}
            yield from records.build(source, record, table.parent)


# --- Hugging Face ---------------------------------------------------------------------------------


def _read_parquet(path: str | Path, records: Records, audio_dir: Path) -> Iterator[Utterance]:
    """A table, or a folder of them; the audio of their cells becomes files in `audio_dir`."""
    root = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    for table, source, record in parquet.read_rows(path, audio_dir, records.losses, records.leave_out):
        records.check_names(record)
        known = {name: value for name, value in record.items() if value is not None}
        yield from records.build(source, known, "", _find_split(os.path.relpath(table, root)))


def _read_audiofolder(path: str | Path, records: Records) -> Iterator[Utterance]:
    """The tables named metadata of a folder and below, with the audio relative to each of them."""
    records.root = Path(path)
    for table in sorted(file for name in METADATA for file in records.root.rglob(name)):
        yield from (_read_csv if table.suffix == ".csv" else _read_nemo)(table, records)


# --- recordings with a .txt beside each -----------------------------------------------------------


def _find_recordings(folder: Path) -> Iterator[Path]:
    files = (file for file in folder.rglob("*") if file.suffix.lower() in AUDIO_SUFFIXES)
    return (file for file in files if not file.name.startswith("."))


def _read_files(path: str | Path, records: Records) -> Iterator[Utterance]:
    """All audio files of a folder and below, each with the text of NAME.txt beside it; ids are the paths."""
    records.root = root = Path(path)
    for audio in sorted(_find_recordings(root)):
        name = audio.relative_to(root)
        record = {"id": records.ids.add(build_id("-".join(name.parts))), "audio": str(name)}
        text = audio.with_suffix(".txt")
        if text.is_file():
            record["text"] = " ".join(line for _, line in read_text_lines(text))
        else:
            records.losses["have no text, for no .txt of their name is beside them"] += 1
        yield from records.build(str(audio), record, root)


# --- tables -------------------------------------------------------------------------------------


def _read_table(path: str | Path, records: Records, separator: str) -> Iterator[Utterance]:
    """A table with a header. Relative audio starts at the table's folder; one without a column for it has
    ID.wav there or in `wavs/`, as LJSpeech.

    One with client_id and path is from Common Voice: its audio is in `clips/` beside it, and the durations in
    `clip_durations.tsv`, if that is there. One of its spontaneous speech, ss-corpus-LOCALE.tsv, names files
    in `audios/`; where its transcription is empty, nobody has written it down.
    """
    with open_lines(path) as lines:
        rows = read_rows(lines, separator)
        _, names = next(rows, (1, []))
        require_distinct(lines, names)
        records.check_names(names)
        meanings = [records.find_meaning(name) for name in names]
        if not {"audio", "id"} & set(meanings):
            found = ", ".join(shorten(name) for name in names[:20]) or "nothing"
            raise UserError(
                f"{path}: no column for the audio; the header has {found}. Known are {describe_columns()}"
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
            if "audio" not in meanings:
                record = _find_audio_of_id(record, names[meanings.index("id")], folder)
            if clip in milliseconds:
                record.setdefault("duration_ms", milliseconds[clip])
            yield from records.build(f"{path}:{number}", record, folder)


def _find_audio_of_id(record: dict[str, str], column: str, folder: Path) -> dict[str, str]:
    """The record of a table that names no audio file, with that of its id, which may be a path itself."""
    id = record.get(column, "")
    names = (id, f"{id}.wav", f"{id}.flac", f"wavs/{id}.wav")
    audio = next((name for name in names if id and (folder / name).is_file()), f"{id}.wav")
    return {name: cell for name, cell in record.items() if name != column or audio != id} | {"audio": audio}


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


def _build(
    source: str,
    record: Mapping[str, Any],
    folder: str | Path,
    ids: UniqueNames,
    columns: Mapping[str, Sequence[str]],
) -> Utterance:
    """Fill in what a record may leave out: start, duration (from the audio file) and id."""
    try:
        named = name_fields(record, columns)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    fields = {"start": 0.0, **named.values, "extras": named.rest}
    for name in ("id", "speaker", "language"):  # often written as numbers
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
        fields["audio"] = os.path.join(os.path.abspath(folder), audio)
        if "duration" not in fields:
            try:
                fields["duration"] = measure_seconds(fields["audio"]) - fields["start"]
            except UserError as error:
                raise AudioError(f"{source}: the duration is not given, and {error}") from None
    channel = named.rest.get("channel")
    if isinstance(channel, int | str) and str(channel).isdecimal():  # others have names for it: left, phone
        fields["channel"], fields["extras"] = int(channel), {**named.rest}
        del fields["extras"]["channel"]
    if "id" not in fields:
        fields["id"] = ids.add(build_id(fields["audio"], fields["start"], fields.get("duration")))
    return build_utterance(source, fields)


def _require_free_names(place: str, extras: Iterable[str], has_text: bool) -> None:
    """A name that is in use for something else would not come back as an extra."""
    for name in extras:
        if has_text and name.lower() in COLUMNS["text"][1:]:
            continue  # the column `text` goes before
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
    with_text = any(record.text is not None for record in records)
    _require_free_names(str(path), extras, with_text)
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


_read_csv = partial(_read_table, separator=",")
_read_tsv = partial(_read_table, separator="\t")
read_csv = partial(read_utterances, kind="csv")
read_tsv = partial(read_utterances, kind="tsv")
read_nemo = partial(read_utterances, kind="nemo")
write_csv = partial(write_table, format_row=_format_csv_row)
write_tsv = partial(write_table, format_row=_format_tsv_row)
_READERS: dict[str, Callable[[str | Path, Records], Iterator[Utterance]]] = {
    "nemo": _read_nemo,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "librispeech": _read_librispeech,
    "audiofolder": _read_audiofolder,
    "files": _read_files,
}
_WRITERS: dict[str, Callable[[str | Path, Iterable[Utterance]], int]] = {
    "jsonl": write_manifest,
    "nemo": write_nemo,
    "csv": write_csv,
    "tsv": write_tsv,
    "kaldi": write_kaldi,
}
