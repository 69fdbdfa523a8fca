"""Do a task of a recipe once, and again when what it reads has changed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr import files
from asr.errors import UserError
from asr.files import replace_file

logger = logging.getLogger(__name__)

STAGES = {
    "download": "fetch and unpack the corpus",
    "prepare": "check the corpus and write the manifests train.jsonl, dev.jsonl and test.jsonl",
    "tokenizer": "find the tokens of each system in its training texts",
    "train": "train each system, or go on where training was cut off",
    "evaluate": "decode dev and test with each system; dev chooses the decoding setup",
    "compare": "compute error rates with intervals, and test which system is better",
    "report": "write one HTML page and one Markdown table",
}


class PartError(UserError):
    """An error after part of the work; the message says what was not done."""


@dataclass(frozen=True)
class Task:
    """One step of a recipe. What it reads is kept as fingerprints in its record, a small JSON file."""

    name: str
    """The stage, and the run if it is that of one: "train conformer"."""
    does: str
    """What it does, as in "would ..."."""
    record: Path
    inputs: Callable[[], dict[str, str]]
    """What it reads, in words for a message, with the fingerprint of each."""
    outputs: Callable[[], list[Path]]
    """What is there once it has been done."""
    run: Callable[[], Mapping[str, Any] | None]
    """Does the work; what it returns is kept in the record too."""
    needless: str | None = None
    """Why there is nothing to do whatever has been done; None if there is something."""
    after: tuple[str, ...] = ()
    """Names of tasks that make what this one reads."""

    @property
    def reason_to_skip(self) -> str:
        return self.needless or (
            f"it has been done, and nothing that it reads has changed; to run it again, delete {self.record}"
        )


def find_reason_to_run(task: Task) -> str | None:
    """Find why a task is to be done: for the first time, or for what has changed; None if it is not."""
    if task.needless:
        return None
    done = read_record(task.record).get("inputs")
    if not isinstance(done, dict):
        return "it has not been done"
    now = task.inputs()
    if changed := [what for what in {**now, **done} if now.get(what) != done.get(what)]:
        return f"changed since it was done: {', '.join(changed)}"
    if missing := [str(path) for path in task.outputs() if not path.exists()]:
        return f"missing: {', '.join(missing)}"
    return None


def run_task(task: Task) -> None:
    """Do the task, unless there is nothing to do."""
    reason = find_reason_to_run(task)
    if reason is None:
        logger.info("%s: skipped, %s", task.name, task.reason_to_skip)
        return
    logger.info("%s: %s (%s)", task.name, task.does, reason)
    try:
        task.record.unlink(missing_ok=True)
        inputs = task.inputs()  # before the work: what changes meanwhile counts as changed
        facts = task.run() or {}
    except OSError as error:
        raise UserError(
            f"{error.filename or task.record.parent}: {error.strerror or error}; {task.name} ended there. "
            "The same command goes on from there"
        ) from error
    if missing := [str(path) for path in task.outputs() if not path.exists()]:
        raise UserError(f"{task.name} has not written {', '.join(missing)}")
    write_record(task.record, {"inputs": inputs, **facts})


def explain_plan(tasks: list[Task]) -> list[str]:
    """Say in a line for each task what would be done and why, or why not."""
    lines, would_run = [], set[str]()
    for task in tasks:
        before = [name for name in task.after if name in would_run]
        if reason := find_reason_to_run(task):
            would_run.add(task.name)
            lines.append(f"{task.name}: would {task.does} ({reason})")
        elif before and not task.needless:
            lines.append(f"{task.name}: would be skipped, unless {' or '.join(before)} makes something new")
        else:
            lines.append(f"{task.name}: would be skipped, {task.reason_to_skip}")
    return lines


# --- records and fingerprints -------------------------------------------------------------------


def read_record(path: Path) -> dict[str, Any]:
    """Read what a task has left; empty if it has not been done."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    with replace_file(path) as file:
        file.write(json.dumps(record, ensure_ascii=False, indent=1).encode() + b"\n")


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of the content, or "missing"."""
    try:
        return files.hash_file(path)
    except OSError:
        return "missing"
