"""Manifests: utterances as strict JSON Lines records, read lazily, written atomically, or accessed randomly.

A manifest is UTF-8 text with one JSON object per line. Blank lines and a byte order mark are skipped; every
other line must be a complete `Utterance`. Audio paths are absolute or relative to the manifest's folder.
"""

from __future__ import annotations

import operator
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import numpy as np
import pydantic
from pydantic import Field

from asr.config import Config, dotted_key, explain_error
from asr.data.text_lines import MAX_LINE_BYTES, open_regular, parse_json, read_lines, read_text_lines
from asr.errors import UserError, shorten
from asr.files import replace_file, unpack

MAX_ID_LENGTH = 200  # because some IDs become file names, which are limited to 255 bytes
MAX_SECONDS = 1_000_000.0  # 11 days; a larger value is probably milliseconds or samples
MAX_CHANNEL = 1_000

_REFERENCE = re.compile(r"reference_([2-9]|[1-9]\d{1,3})")
_Value = TypeVar("_Value")


# Any length limit makes pydantic check the characters, and so refuse lone surrogates.
Text = Annotated[str, Field(max_length=MAX_LINE_BYTES)]
# No control characters, because paths and names are printed, and written to files with one record per line.
Name = Annotated[str, Field(pattern=r"^\P{Cc}+$")]


class Utterance(Config):
    """One utterance: a span of an audio file, and its metadata."""

    # No white space, which separates the columns of Kaldi, trn and ctm files.
    id: str = Field(max_length=MAX_ID_LENGTH, pattern=r"^[^\s\p{Cc}]+$")
    """Unique ID without spaces and control characters."""
    audio: Name
    """Path of the audio file, absolute or relative to the manifest's folder."""
    start: float = Field(default=0.0, ge=0, le=MAX_SECONDS)
    """Start in seconds from the beginning of the file."""
    duration: float = Field(gt=0, le=MAX_SECONDS)
    """Duration in seconds."""
    channel: int | None = Field(default=None, ge=1, le=MAX_CHANNEL)
    """Channel of the file, counted from 1, such as one side of a call; null: the mean of all channels."""
    text: Text | None = None
    """Transcript; null if there is none, "" if there is no speech."""
    speaker: Name | None = None
    """Name of the speaker; null if unknown."""
    language: Name | None = None
    """Language code; null if unknown."""
    extras: dict[Text, Text | int | float | bool | None] = Field(default_factory=dict)
    """Any other fields worth keeping."""

    @property
    def channel_index(self) -> int | None:
        """The channel counted from 0, as audio readers expect it."""
        return None if self.channel is None else self.channel - 1

    @property
    def more_references(self) -> list[str]:
        """Alternative references: `extras.reference_2`, `extras.reference_3` and so on."""
        texts = []
        for name, text in find_more_references(self.extras).items():
            if not isinstance(text, str | None):
                raise UserError(f"utterance {self.id}: extras.{name} is {text!r}; expected a text")
            texts += [] if text is None else [text]
        return texts

    def find_texts(self, count: int = 1) -> list[str]:
        """Return the texts of `count` speakers: `text`, `extras.text_2` and so on."""
        names = ["text", *(f"extras.text_{number}" for number in range(2, count + 1))]
        texts = [self.text, *(self.extras.get(name.removeprefix("extras.")) for name in names[1:])]
        for name, text in zip(names, texts, strict=True):
            if not isinstance(text, str):
                raise UserError(f"utterance {self.id} has no {name}; add it, or remove the utterance")
        return [str(text) for text in texts]


def read_manifest(*paths: str | Path) -> Iterator[Utterance]:
    """Yield the utterances of the files in order, with absolute audio paths, one line in memory at a time."""
    for path in paths:
        folder = os.path.dirname(os.path.abspath(path))
        for number, _, line in read_lines(path):
            yield with_absolute_audio(parse_utterance(line, f"{path}:{number}"), folder)


def is_manifest(path: str | Path) -> bool:
    """Distinguish a manifest from other toolkits' files, by its name and first record."""
    if not str(path).lower().removesuffix(".gz").endswith((".jsonl", ".json")) or not os.path.isfile(path):
        return False
    first = next((parse_json(line) for _, line in read_text_lines(path)), None)
    return isinstance(first, dict) and {"id", "audio", "duration"} <= first.keys()


def write_manifest(path: str | Path, utterances: Iterable[Utterance]) -> int:
    """Write all utterances to a file that replaces `path` once it is complete; returns their number.

    Audio paths below the manifest's folder are stored as relative, so that the folder can be moved.
    """
    folder = os.path.dirname(os.path.abspath(path))
    count = 0
    with replace_file(path) as file:
        for utterance in utterances:
            stored = relative_audio(utterance.audio, folder)
            if stored != utterance.audio:
                utterance = utterance.model_copy(update={"audio": stored})
            line = utterance.model_dump_json(exclude_defaults=True).encode()
            if len(line) >= MAX_LINE_BYTES:  # could not be read back
                raise UserError(f"utterance {utterance.id}: {_too_long(line)}")
            file.write(line + b"\n")
            count += 1
    return count


class Manifest(Sequence[Utterance]):
    """Random access to the utterances of one or more files, with an index of 16 bytes per line.

    Each access opens the file again. So a manifest can be pickled and shared by processes and threads, and a
    file that has changed since `Manifest.open` is detected instead of misread.
    """

    def __init__(self, *paths: str | Path) -> None:
        """Read the files once and check every line."""
        # Path; size and modification time; position of the file's first utterance.
        self._files: list[tuple[Path, tuple[int, int], int]] = []
        offsets, durations = array("q"), array("d")
        for path in paths:
            with open_regular(path) as file:
                stamp = _stamp(file)
                if unpack(file, path) is not file:
                    raise UserError(f"{path}: gzip does not allow random access to lines; gunzip it first")
            absolute = Path(os.path.abspath(path))  # a worker may have a different current folder
            self._files.append((absolute, stamp, len(offsets)))
            for number, offset, line in read_lines(path):
                durations.append(parse_utterance(line, f"{path}:{number}").duration)
                offsets.append(offset)
        self._offsets = np.array(offsets, dtype=np.int64)
        self.durations = np.array(durations, dtype=np.float64)
        """Duration of each utterance in seconds, float64, read-only."""
        self.durations.flags.writeable = False

    @classmethod
    def open(cls, *paths: str | Path) -> Manifest:
        return cls(*paths)

    @property
    def paths(self) -> list[Path]:
        return [path for path, _, _ in self._files]

    @property
    def name(self) -> str:
        """Names of the files, for messages."""
        return " + ".join(map(str, self.paths))

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Utterance]:
        for path, stamp, _ in self._files:
            with open_regular(path) as file:
                _require_unchanged(file, path, stamp)
        return read_manifest(*self.paths)

    def __getitem__(self, index: int) -> Utterance:  # type: ignore[override]
        position = range(len(self))[operator.index(index)]  # handles negative indices, raises IndexError
        path, stamp, first = next(file for file in reversed(self._files) if file[2] <= position)
        source = f"{path}: utterance number {position - first + 1}"
        with open_regular(path) as file:
            _require_unchanged(file, path, stamp)
            try:
                file.seek(self._offsets[position])
                line = file.readline(MAX_LINE_BYTES + 1)
            except OSError as error:
                raise UserError(f"{source}: cannot be read ({error.strerror})") from None
        return with_absolute_audio(parse_utterance(line, source), path.parent)


def _stamp(file: IO[bytes]) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _require_unchanged(file: IO[bytes], path: Path, stamp: tuple[int, int]) -> None:
    if _stamp(file) != stamp:
        raise UserError(f"{path}: the manifest has changed since it was opened; start again")


def find_more_references(fields: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the fields reference_2, reference_3 and so on, in numeric order."""
    numbers = {name: int(match[1]) for name in fields if (match := _REFERENCE.fullmatch(name))}
    return {name: fields[name] for name in sorted(numbers, key=lambda name: numbers[name])}


# --- records ------------------------------------------------------------------------------------


def build_utterance(source: str, fields: Mapping[str, Any]) -> Utterance:
    """Build an utterance from foreign values; error messages start with `source`, such as path:line."""
    try:
        return Utterance.model_validate(fields)
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {_explain(error, fields)}") from None


def parse_utterance(line: bytes, source: str = "") -> Utterance:
    """Parse one line of a manifest; error messages start with `source`, such as path:line."""
    place = f"{source}: " if source else ""
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{place}{_too_long(line)}")
    try:
        return Utterance.model_validate_json(line)
    except pydantic.ValidationError as error:
        raise UserError(f"{place}{_explain(error, parse_json(line))}") from None


def with_absolute_audio(utterance: Utterance, folder: str | Path) -> Utterance:
    if os.path.isabs(utterance.audio):
        return utterance
    return utterance.model_copy(update={"audio": os.path.join(folder, utterance.audio)})


def relative_audio(audio: str, folder: str) -> str:
    """Return the path relative to `folder` if it is below it, else unchanged."""
    prefix = folder.rstrip(os.sep) + os.sep
    below = audio[len(prefix) :].lstrip(os.sep) if audio.startswith(prefix) else ""
    return below or audio


def _too_long(line: bytes) -> str:
    return f"the line is longer than {MAX_LINE_BYTES:,} bytes; it begins with {shorten(line[:100])}"


def _explain(error: pydantic.ValidationError, record: Any) -> str:
    """Explain the first error in a record: what was given, and what was expected."""
    detail = error.errors(include_url=False, include_context=False)[0]
    if detail["type"] == "json_invalid":
        problem = detail["msg"].removeprefix("Invalid JSON: ")
        return f"not a JSON object on one line ({problem}); `asr manifest convert` reads tables"
    if not detail["loc"]:
        return f"expected a JSON object, found {shorten(detail['input'])}"
    field = dotted_key(detail, record)
    if detail["type"] == "string_pattern_mismatch":
        detail["msg"] = f"expected a name without control characters{' or spaces' * (field == 'id')}"
    advice = "fields of your own belong in extras; `asr manifest convert` reads other formats"
    problem = explain_error(detail, field, Utterance.model_fields, "field", advice)
    name = record.get("id")
    return problem if name is None else f"utterance {shorten(name)}: {problem}"
