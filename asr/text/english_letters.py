"""Spelled letters and digits as one: before scoring, where one side writes CZD8 and the other C Z D EIGHT."""

from __future__ import annotations

import re

_BORDER = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_LETTERS = re.compile(r"\b[^\W\d_](?: [^\W\d_])+\b")
_DIGITS = re.compile(r"\b(?:\d+|one)(?: (?:\d+|one))+\b")


def join_letters(text: str) -> str:
    """Join runs of letters, and of digits. The text has no punctuation, and its numbers are digits.

    The rules for English write a single 1 as one; among digits it is a digit.
    """
    text = _BORDER.sub(" ", text)
    text = _LETTERS.sub(lambda found: found[0].replace(" ", ""), text)
    return _DIGITS.sub(_join_digits, text)


def _join_digits(found: re.Match[str]) -> str:
    run = found[0]
    return run.replace("one", "1").replace(" ", "") if any(c.isdigit() for c in run) else run
