"""Spelled letters and digits as one: before scoring, where one side writes CZD8 and the other C Z D EIGHT."""

from __future__ import annotations

import re

_BORDER = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_LETTERS = re.compile(r"\b[^\W\d_](?: [^\W\d_])+\b")
_DIGITS = re.compile(r"\b\d+(?: \d+)+\b")


def join_letters(text: str) -> str:
    """Of a text without punctuation and with numbers as digits: runs of letters, and of digits, are words."""
    text = _BORDER.sub(" ", text)
    for run in (_LETTERS, _DIGITS):
        text = run.sub(lambda found: found[0].replace(" ", ""), text)
    return text
