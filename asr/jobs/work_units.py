"""Units of work, and the parts that hold their results.

A unit is some of a job's items in their order, about 30 minutes of audio, and is named by what it holds. Its
part appears under that name as a whole. So what is there is done, whoever did it, and a later call goes on
with the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.files import is_claimed, replace_file

UNIT_SECONDS = 1800.0
MAX_ITEMS = 5_000  # of a unit; thousands of tiny files, or of unknown length, are one no longer
PLAN = "plan.json"


@dataclass(frozen=True)
class WorkUnit:
    """Items `start` to `end`, without that one, of a job's list."""

    name: str
    start: int
    end: int
    seconds: float


def plan_units(
    keys: Sequence[str], seconds: Sequence[float], unit_seconds: float = UNIT_SECONDS
) -> list[WorkUnit]:
    """Divide items, in their order, into units; a longer item is a unit by itself.

    `keys`: of each item, all that its result depends on besides model and settings.
    """
    units: list[WorkUnit] = []
    start, total = 0, 0.0
    for index, length in enumerate(seconds):
        if index > start and (total + length > unit_seconds or index - start >= MAX_ITEMS):
            units.append(_make_unit(keys, start, index, total))
            start, total = index, 0.0
        total += length
    if start < len(keys):
        units.append(_make_unit(keys, start, len(keys), total))
    return units


def _make_unit(keys: Sequence[str], start: int, end: int, seconds: float) -> WorkUnit:
    return WorkUnit(hash_json(list(keys[start:end])), start, end, seconds)


def hash_json(value: Any) -> str:
    """Sixteen hexadecimal digits that are others when the value is."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class PartFolder:
    """The parts of a job, `UNIT-KEY.jsonl`: a header and a row for each item; and the newest call's plan."""

    def __init__(self, folder: Path, key: str) -> None:
        """`key`: the hashes of the model and of all settings, since with others no part is of use."""
        self.folder = folder
        self._key = key

    def path(self, unit: WorkUnit) -> Path:
        return self.folder / f"{unit.name}-{self._key}.jsonl"

    def write(self, unit: WorkUnit, rows: Sequence[dict[str, Any]]) -> None:
        """Put the part in its place, as a whole; a row with an `error` is of an item that failed."""
        header = {"items": len(rows), "failed": sum("error" in row for row in rows), "seconds": unit.seconds}
        with replace_file(self.path(unit)) as file:
            for row in (header, *rows):
                file.write(json.dumps(row).encode() + b"\n")

    def read(self, unit: WorkUnit) -> list[dict[str, Any]] | None:
        """The rows, or None where the unit is not done."""
        try:
            header, *rows = map(json.loads, self.path(unit).read_text(encoding="utf-8").splitlines())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path(unit)}: cannot be read ({error}); remove it, to do it anew"
            ) from None
        if len(rows) != header.get("items") or len(rows) != unit.end - unit.start:
            raise UserError(f"{self.path(unit)}: was changed after it was written; remove it, to do it anew")
        return rows

    def announce(self, units: Sequence[WorkUnit], left: Sequence[WorkUnit]) -> None:
        """Write down all units and which of them this call does, for `read_status`.

        The caller has claimed the folder: what a killed call has left half written is removed.
        """
        for remains in self.folder.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                remains.unlink()
        names = {unit.name for unit in left}
        plan = {
            "key": self._key,
            "began": time.time(),
            "units": [[unit.name, unit.end - unit.start, unit.seconds, unit.name in names] for unit in units],
        }
        with replace_file(self.folder / PLAN) as file:
            file.write(json.dumps(plan).encode())


@dataclass(frozen=True)
class JobStatus:
    """Progress of a job."""

    num_units: int
    done_units: int
    num_items: int
    done_items: int
    """Those that failed among them."""
    failed_items: int
    seconds: float
    done_seconds: float
    is_running: bool
    eta_seconds: float | None
    """None where none is left, or nothing tells the speed."""


def read_status(folder: Path) -> JobStatus:
    """Compare the plan in a folder of parts with the parts that are there."""
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        key, began, units = str(plan["key"]), float(plan["began"]), list(plan["units"])
    except FileNotFoundError:
        raise UserError(
            f"{folder.parent}: holds no plan of a job; expected the --output-dir of a call with --engine ray"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / PLAN}: cannot be read ({error}); the same call again writes it") from None
    done_units = done_items = failed_items = 0
    done_seconds = seconds_of_call = 0.0
    newest = began
    for name, num_items, seconds, is_of_call in units:
        path = folder / f"{Path(str(name)).name}-{key}.jsonl"
        try:
            with open(path, encoding="utf-8") as file:
                failed_items += int(json.loads(file.readline())["failed"])
            if is_of_call:
                newest = max(newest, path.stat().st_mtime)
                seconds_of_call += seconds
        except FileNotFoundError:
            if is_of_call:
                continue  # others were done by an earlier call, perhaps without parts
        done_units, done_items, done_seconds = done_units + 1, done_items + num_items, done_seconds + seconds
    total = sum(seconds for _, _, seconds, _ in units)
    speed = seconds_of_call / max(newest - began, 1e-3)
    return JobStatus(
        len(units),
        done_units,
        sum(num_items for _, num_items, _, _ in units),
        done_items,
        failed_items,
        total,
        done_seconds,
        is_claimed(folder),
        (total - done_seconds) / speed if speed and done_units < len(units) else None,
    )
