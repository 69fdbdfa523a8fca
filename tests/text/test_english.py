"""The English rules are those that Whisper is scored with; the page about them is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asr.errors import UserError
from asr.text.normalization import normalize_english

# What EnglishTextNormalizer of openai-whisper 20250625 makes of it.
SAME_AS_WHISPER = [
    ("I'm going to the theatre, can't you? It's Mr. Smith's", "i am going to the theater can not you it is mister smith is"),
    ("[noise] (laughs) um hi, naïve café", "hi naive cafe"),
    ("one thousand two hundred thirty four", "1234"),
    ("in nineteen oh five the twenty-first century", "in 1905 the 21st century"),
    ("three point one four", "3.14"),
    ("two point five million dollars and fifty percent", "$2500000 and 50%"),
    ("five o'clock", "50 clock"),
]  # fmt: skip
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "score.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(.+?)` \| `(.+?)` \|", PAGE, re.MULTILINE)
assert len(ROWS) == 7


@pytest.mark.parametrize(("text", "expected"), [*SAME_AS_WHISPER, *ROWS])
def test_as_whisper_does(text: str, expected: str) -> None:
    assert normalize_english(text) == expected


@pytest.mark.parametrize("text", ["9" * 5000, "a\ud800"])
def test_texts_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"correct the text|write the text again"):
        normalize_english(text)
