"""Finished segments of a recording on disk, so that an interrupted one goes on where it stopped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from asr.errors import UserError

Place = tuple[float, float]  # begin and end in seconds
Value = TypeVar("Value")


class SegmentLog:
    """A file of JSON Lines: what the results depend on, then place and value of each finished segment."""

    def __init__(self, path: Path, made_by: Mapping[str, Any]) -> None:
        """Open the log; what was made by anything else than `made_by` is forgotten."""
        self._path = path
        self._made_by = json.loads(json.dumps(made_by))
        self._known = self._read()
        self._is_begun = False

    def __len__(self) -> int:
        """Number of segments that an earlier call has finished."""
        return len(self._known)

    def find(self, place: Place, kind: pydantic.TypeAdapter[Value]) -> Value | None:
        """Find the segment at the same place, if an earlier call has finished it."""
        try:
            return kind.validate_python(self._known[place])
        except (KeyError, pydantic.ValidationError):
            self._known.pop(place, None)
            return None

    def add(self, place: Place, value: dict[str, Any]) -> None:
        if place not in self._known:
            self._append([*place, value])

    def remove(self) -> None:
        """Remove the log, once the whole transcript is written."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            self._path.parent.rmdir()  # unless other recordings have theirs there

    def _read(self) -> dict[Place, Any]:
        known: dict[Place, Any] = {}
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return known
        for number, line in enumerate(lines):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None  # cut when the process was killed
            match value:
                case _ if number == 0 and value != self._made_by:
                    return known
                case [float(start), float(end), dict(found)]:
                    known[start, end] = found
        return known

    def _append(self, value: Any) -> None:
        try:
            if not self._is_begun:
                self._begin()
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")
        except OSError as error:
            raise UserError(f"{self._path}: cannot write the file ({error.strerror})") from None

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a" if self._known else "w", encoding="utf-8") as file:
            # The last line of a killed process may be cut: it is ended.
            file.write("\n" if self._known else json.dumps(self._made_by) + "\n")
        self._is_begun = True
