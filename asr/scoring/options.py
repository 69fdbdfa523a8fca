"""Names of the scoring options, shared by the command line and Python, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from asr.errors import UserError, require_choice, shorten

Align = Literal["levenshtein", "sclite", "sclite-D", "sclite-F", "sclite-FD"]
"""levenshtein: the fewest edits. sclite: as NIST sclite counts without options, or with -D (words in brackets
may be missing), -F (`ab-` is any word that begins so), or both."""
Metric = Literal["wer", "cer", "cpwer", "tcpwer", "orcwer"]
"""Word and character error rate; the last three are for recordings with several speakers."""
MEETING_METRICS = ("cpwer", "tcpwer", "orcwer")
Unit = Literal["words", "characters", "mixed"]
Normalization = Literal["none", "basic", "english"]
CHOICES: dict[str, Any] = {"align": Align, "metric": Metric, "unit": Unit, "normalize": Normalization}
# Values that `align` had in version 0.2, and what replaces them.
RENAMED = {"jiwer": "align levenshtein", **{name: f"metric {name}" for name in MEETING_METRICS}}


def check_options(
    *,
    align: str,
    unit: str,
    normalize: str | Callable[[str], str],
    resamples: int,
    metric: str = "wer",
    collar: float = 0.0,
) -> None:
    """Refuse unknown values, and combinations that would silently count something else."""
    if isinstance(align, str) and align in RENAMED:
        raise UserError(f"align {align}: this value has been renamed; expected {RENAMED[align]}")
    given = {"align": align, "unit": unit, "normalize": normalize, "metric": metric}
    for name, value in given.items():
        if not (name == "normalize" and callable(value)):
            require_choice(name, value, get_args(CHOICES[name]))
    if isinstance(resamples, bool) or not isinstance(resamples, int) or not 0 <= resamples <= 1_000_000:
        raise UserError(f"resamples = {shorten(resamples)}: expected a whole number from 0 to 1,000,000")
    if isinstance(collar, bool) or not isinstance(collar, (int, float)) or not 0 <= collar < float("inf"):
        raise UserError(f"collar = {shorten(collar)}: expected seconds, 0 or more")
    if align.startswith("sclite-") and (normalize != "none" or unit != "words"):
        raise UserError(f"align {align}: expected unit words and no normalization")
    if metric in MEETING_METRICS and (align != "levenshtein" or unit == "characters"):
        raise UserError(f"metric {metric}: expected words or mixed units, and align levenshtein")
