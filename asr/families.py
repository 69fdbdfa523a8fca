"""Families of pretrained models, such as Whisper: the one place where the core imports them.

A family is a folder of `asr` and a line in FAMILIES. If the folder is deleted, the core still transcribes
with native models and trains them. `asr/whisper/__init__.pyi` shows what a family offers.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

Family: TypeAlias = Any  # a package that offers what asr/whisper does, and imports its modules when asked


def _import_whisper() -> Family:
    import asr.whisper  # `from asr import whisper` would ask asr/__init__.py first

    return asr.whisper


FAMILIES = {"whisper": _import_whisper}


def find_families() -> list[Family]:
    """Import the families whose folders are there."""
    return [load() for name, load in FAMILIES.items() if find_spec(f"asr.{name}")]


def find_family(source: str | Path, *, as_run: bool = False) -> Family:
    """The family of a model, by its path or name; None for a native model.

    A run that fine-tuned a model of a family is of that family too, unless it is asked for `as_run`.
    """
    return next((family for family in find_families() if family.matches(source, as_run)), None)


def describe_missing() -> str:
    """Name the folders of models that are not there, for the message about an unknown one; "" if all are."""
    missing = [f"asr.{name}" for name in (*FAMILIES, "research") if find_spec(f"asr.{name}") is None]
    return f"; {' and '.join(missing)}, which may have it, is not installed" if missing else ""
