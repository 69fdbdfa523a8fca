"""Build utterances from the records of one source, and warn about the source as a whole."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.audio.reading import measure_seconds
from asr.data.columns import COLUMNS, build_id, name_fields
from asr.data.manifest import Utterance, build_utterance
from asr.errors import UserError, shorten

logger = logging.getLogger(__name__)

_SPLIT = re.compile(
    r"(?<![a-z])(train|training|validation|valid|val|dev|test|testing|eval|evaluation)(?![a-z])",
    re.IGNORECASE,
)

LeaveOut = Callable[[UserError], None]
"""Called for an utterance without readable audio; either raises the error, or records it and continues."""


def raise_error(error: UserError) -> None:
    raise error


class UniqueNames:
    """Makes names unique by appending a number to repeated ones."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str) -> str:
        self._counts[name] += 1
        return name if self._counts[name] == 1 else self.add(f"{name}-{self._counts[name]}")


class Source:
    """Builds utterances from the records of one source, and warns about the source as a whole."""

    def __init__(
        self, path: str | Path, text_column: str | None = None, leave_out: LeaveOut = raise_error
    ) -> None:
        self.leave_out = leave_out
        self.losses: Counter[str] = Counter()
        """Reason for a loss of information to the number of utterances affected."""
        self.ids = UniqueNames()
        self._path, self._text_column = path, text_column
        self.columns = COLUMNS if text_column is None else {**COLUMNS, "text": (text_column.lower(),)}
        self._count = self._texts = 0
        self._names = ""

    def check_names(self, names: Iterable[str]) -> None:
        """Check once that one column has the texts; `names` come from a header or the first record."""
        if self._names:
            return
        own_names = {name.lower(): name for name in names}
        self._names = ", ".join(map(shorten, list(own_names.values())[:20])) or "nothing"
        texts = [own_names[name] for name in self.columns["text"] if name in own_names]
        if self._text_column is not None and not texts:
            raise UserError(f"{self._path}: no column {shorten(self._text_column)} among {self._names}")
        if len(texts) > 1:
            logger.warning("%s: using %s as text, not %s; choose with --text-column", self._path, *texts[:2])

    def build(
        self, place: str, record: Mapping[str, Any], folder: str | Path, split: str | None = None
    ) -> Iterator[Utterance]:
        """Yield the utterance of a record, unless it is left out. Audio is relative to `folder`."""
        self.check_names(record)
        try:
            named = name_fields(record, self.columns)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        fields: dict[str, Any] = {"start": 0.0, **named.values, "extras": named.rest}
        for name in ("id", "speaker", "language"):  # often written as numbers
            if isinstance(fields.get(name), int):
                fields[name] = str(fields[name])
        if not fields.get("audio"):
            raise UserError(f"{place}: the path of the audio file is missing")
        if isinstance(fields["audio"], str):
            fields["audio"] = os.path.join(os.path.abspath(folder), fields["audio"])
            if "duration" not in fields:
                try:
                    seconds = measure_seconds(fields["audio"])
                    fields["duration"] = round(seconds - fields["start"], 9)
                except UserError as error:
                    self.leave_out(UserError(f"{place}: the duration is missing, and {error}"))
                    return
        channel = named.rest.get("channel")
        if isinstance(channel, int | str) and str(channel).isdecimal():  # a channel name is left in extras
            fields["channel"] = int(named.rest.pop("channel"))
        if split is not None:
            named.rest.setdefault("split", split)
        if "id" not in fields:
            fields["id"] = self.ids.add(build_id(fields["audio"], fields["start"], fields.get("duration")))
        utterance = build_utterance(place, fields)
        self._count += 1
        self._texts += bool(utterance.text)
        yield utterance

    def read(self, utterances: Iterable[Utterance]) -> Iterator[Utterance]:
        """Yield the utterances, then warn about what the source as a whole lacks."""
        yield from utterances
        for loss, count in self.losses.items():
            logger.warning("%s: %d utterances %s", self._path, count, loss)
        if self._count and not self._texts:
            names = self._names
            logger.warning("%s: no utterance has a text; name it with --text-column: %s", self._path, names)

    def keep_scalars(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that a manifest can store as extras; the others are counted as losses."""
        kept = {name: value for name, value in record.items() if isinstance(value, str | int | float | None)}
        self.losses.update(
            f"lose {shorten(name)}, a list or an object" for name in record if name not in kept
        )
        return kept


def find_split(path: str) -> str | None:
    """Return the split named in a path below a data set's folder, as in Hugging Face's test/a.wav."""
    found = _SPLIT.findall(path)
    return found[-1].lower() if found else None
