"""UserError, which the command line prints without a traceback, and how messages show values and names."""

import difflib
import importlib
import json
import reprlib
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any


class UserError(ValueError):
    """Wrong input. The message says what came, what was expected and what to do about it."""


class AudioError(UserError):
    """A problem of an audio file, or of what is asked of it; the message starts with the file's path."""


def shorten(value: object) -> str:
    """Show a value in a message, in at most 60 characters: a text in quotes, others as YAML writes them."""
    if isinstance(value, bytes):
        value = value[:100].decode(errors="backslashreplace")
    if isinstance(value, (str, Path)):
        shown = repr(str(value)[:100])
    else:
        try:
            shown = json.dumps(value, ensure_ascii=False, default=str)
        except (RecursionError, TypeError, ValueError):
            shown = reprlib.repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def plural(count: int, noun: str) -> str:
    """Count things in words: `1 speaker`, `2 speakers`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that an option does not have."""
    if value not in choices:
        near = suggest(value, choices, "") if isinstance(value, str) else ""
        hint = f"; {near}" if near else ""
        raise UserError(f"{name} = {shorten(value)}: expected {', '.join(choices)}{hint}")


def suggest(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """Suggest the nearest of the known names; where none is near, list them, or say what else to do."""
    if near := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {near[0]}?"
    return f"there are {', '.join(known) or 'none'}" if otherwise is None else otherwise


def import_extra(module: str, purpose: str, extra: str) -> Any:
    """Import a module; where it is missing, the error names the packages of the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        from importlib.metadata import distributions

        lines = [line for own in distributions(name="asr-toolkit") for line in own.requires or []]
        packages = [line.partition(";")[0] for line in lines if line.endswith(f"extra == '{extra}'")]
        command = shlex.join(["pip", "install", *(packages or [f".[{extra}]"])])
        raise UserError(f"{purpose} needs {error.name}, which is not installed; run: {command}") from None
