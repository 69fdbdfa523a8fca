"""UserError, which the command line prints without a traceback, and how messages show values and names."""

import difflib
import reprlib
from collections.abc import Collection, Sequence


class UserError(ValueError):
    """Wrong input. The message says what came, what was expected and what to do about it."""


class AudioError(UserError):
    """A fault of an audio file, or of what is asked of it; the message starts with the file's path."""


def shorten(value: object) -> str:
    """Show a value in a message, as Python does, in at most 60 characters."""
    shown = repr(value[:100]) if isinstance(value, (str, bytes)) else reprlib.repr(value)
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
