"""The checkout of the sources: its commit, which results name, and the recipes and confs that come along."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SHIPPED = Path(__file__).resolve().parent.parent / "shipped"
"""Where an installed package has `recipes` and `conf`, which in a checkout lie beside the package."""
PUBLISHED = ("recipes/*/results/*", "recipes/*/studies/*")  # what `--publish` writes says nothing of the code


def find_shipped(path: str | Path) -> Path:
    """The path, else what comes along under this name, such as `recipes/an4/pretrained`."""
    path = Path(path)
    if path.exists() or path.parts[:1] not in (("conf",), ("recipes",)) or ".." in path.parts:
        return path
    return next((root / path for root in (CHECKOUT, SHIPPED) if (root / path).exists()), path)


@functools.cache
def find_commit() -> str:
    """Find the commit of this package at the first call: the checkout may change while a process runs."""
    return describe_commit(CHECKOUT)


def describe_commit(root: Path) -> str:
    """Name the commit; -dirty where more than published results changed or is new, "unknown" without one."""
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
