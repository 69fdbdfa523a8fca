"""Which commit of the sources is running: what a result names, so that anyone can repeat it."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

PUBLISHED = ("recipes/*/results/*", "recipes/*/studies/*")  # what `--publish` writes says nothing of the code


@functools.cache
def find_commit() -> str:
    """Of this package, as it is at the first call: the checkout may change while a process runs."""
    return describe_commit(Path(__file__).resolve().parent.parent.parent)


def describe_commit(root: Path) -> str:
    """Of a checkout, -dirty where more than published results changed or is new; "unknown" without one."""
    if not (root / ".git").exists():
        return "unknown"

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        outside = [".", *(f":(exclude){path}" for path in PUBLISHED)]
        changed = git("status", "--porcelain", "--untracked-files=all", "--", *outside)
        return git("rev-parse", "--short=12", "HEAD") + "-dirty" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
