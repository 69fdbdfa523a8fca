"""UserError, which the command line prints without a traceback, and helpers that format error messages."""

import difflib
import importlib
import json
import reprlib
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any


class UserError(ValueError):
    """Invalid input. The message says what was given, what was expected, and what to do about it."""


class AudioError(UserError):
    """A problem with an audio file or with a request for a part of it. The message starts with its path."""


def shorten(value: object) -> str:
    """Format a value for a message in at most 60 characters: strings as their repr, other values as JSON."""
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
    """Format a count with its noun: `1 speaker`, `2 speakers`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a UserError unless the value is one of the choices."""
    if value not in choices:
        near = suggest(value, choices, "") if isinstance(value, str) else ""
        hint = f"; {near}" if near else ""
        raise UserError(f"{name} = {shorten(value)}: expected {', '.join(choices)}{hint}")


def suggest(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """Suggest the most similar known name. If there is none, return `otherwise`, or list all known names."""
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
