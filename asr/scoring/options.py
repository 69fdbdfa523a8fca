"""The options of scoring: their names, which the command line and Python share, and the check of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from asr.errors import UserError, require_choice, shorten

Align = Literal["jiwer", "sclite", "sclite-D", "sclite-F", "sclite-FD"]
"""jiwer: the fewest edits. sclite: as NIST sclite counts without options, or with -D (words in brackets may
be missing), -F (`ab-` is any word that begins so), or both."""
Meeting = Literal["cpwer", "tcpwer", "orcwer"]
"""Error rates of several speakers in a recording."""
Unit = Literal["words", "characters", "mixed"]
Normalization = Literal["none", "basic", "english"]
CHOICES: dict[str, Any] = {"align": Align, "meeting": Meeting, "unit": Unit, "normalize": Normalization}


def check_options(
    *,
    align: str,
    unit: str,
    normalize: str | Callable[[str], str],
    resamples: int,
    meeting: str | None = None,
    collar: float = 0.0,
) -> None:
    """Refuse values that no option has, and combinations that would count something else."""
    given = {"align": align, "unit": unit, "normalize": normalize, "meeting": meeting}
    for name, value in given.items():
        if not ((name == "meeting" and value is None) or (name == "normalize" and callable(value))):
            require_choice(name, value, get_args(CHOICES[name]))
    if isinstance(resamples, bool) or not isinstance(resamples, int) or not 0 <= resamples <= 1_000_000:
        raise UserError(f"resamples = {shorten(resamples)}: expected a whole number from 0 to 1,000,000")
    if isinstance(collar, bool) or not isinstance(collar, (int, float)) or not 0 <= collar < float("inf"):
        raise UserError(f"collar = {shorten(collar)}: expected seconds, 0 or more")
    if align.startswith("sclite-") and (normalize != "none" or unit != "words"):
        raise UserError(f"align {align}: expected unit words and no normalization")
    if meeting is not None and (align != "jiwer" or unit == "characters"):
        raise UserError(f"{meeting}: expected words or mixed units, and align jiwer")
