"""Steps that are done once: each records its inputs and is repeated when they change."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr import files
from asr.files import replace_file

logger = logging.getLogger(__name__)


def do_once(
    name: str,
    record: Path,
    inputs: Mapping[str, str],
    make: Callable[[], Mapping[str, Any] | None],
    *,
    outputs: Sequence[Path] = (),
    force: bool = False,
) -> None:
    """Do a step unless its record shows that it was done with these inputs and its outputs exist.

    `make` does the step and returns further fields for the record, if any.
    """
    reason = find_change(read_record(record), inputs, outputs)
    if reason is None and not force:
        log_skipped(name)
        return
    logger.info("%s: %s", name, reason or "repeated because of --force")
    record.unlink(missing_ok=True)  # a step that fails counts as not done
    write_record(record, {**(make() or {}), "inputs": inputs})


def log_skipped(name: str) -> None:
    logger.info("%s: skipped, already done and its inputs have not changed", name)


def find_change(
    record: Mapping[str, Any], inputs: Mapping[str, str], outputs: Sequence[Path] = ()
) -> str | None:
    """Return why a step is out of date (not done yet, or changed inputs), or None."""
    done = record.get("inputs")
    if not isinstance(done, dict):
        return "not done yet"
    if changed := [what for what in {**inputs, **done} if inputs.get(what) != done.get(what)]:
        return f"changed since it was done: {', '.join(changed)}"
    missing = [str(path) for path in outputs if not path.exists()]
    return f"missing: {', '.join(missing)}" if missing else None


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of a step; empty if it has not been done."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    with replace_file(path) as file:
        file.write(json.dumps(record, ensure_ascii=False, indent=1).encode() + b"\n")


def hash_file(path: Path) -> str:
    """SHA-256 of the content, or "missing"."""
    try:
        return files.hash_file(path)
    except OSError:
        return "missing"
