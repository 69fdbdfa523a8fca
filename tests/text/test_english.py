"""The English rules are those that Whisper is scored with; the page about them is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from asr.errors import UserError
from asr.text import join_letters, normalize_english

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
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "normalizer.md").read_text(encoding="utf-8")
ROWS = [line.split("`")[1::2] for line in PAGE.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize(("text", "expected"), [*SAME_AS_WHISPER, *(row[:2] for row in ROWS)])
def test_as_whisper_does(text: str, expected: str) -> None:
    assert normalize_english(text) == expected


@given(st.text(max_size=60))
def test_any_text_ends_in_plain_words(text: str) -> None:
    words = normalize_english(text).split(" ")
    assert words == [""] or all(words)


@pytest.mark.parametrize("text", ["9" * 5000, "a\ud800"])
def test_texts_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"mend the text|write the text anew"):
        normalize_english(text)


@pytest.mark.parametrize(
    ("reference", "texts", "expected"),
    [
        ("C Z D EIGHT", ["CZD8.", "C-Z-D-8", "c z d eight", "CZD 8"], "czd 8"),
        ("ONE FIVE TWO ONE THREE", ["15213.", "1-5-2-1-3", "1 5 2 1 3", "15 21 3", "one 5213"], "15213"),
        ("P I T T S B U R G H", ["P-I-T-T-S-B-U-R-G-H.", "PITTSBURGH"], "pittsburgh"),
        ("ENTER ONE", ["Enter one.", "Enter 1"], "enter one"),
    ],
)
def test_ways_of_writing(reference: str, texts: list[str], expected: str) -> None:
    written = [join_letters(normalize_english(text)) for text in (reference, *texts)]
    assert written == [expected] * (1 + len(texts))


@given(st.lists(st.sampled_from(["a", "b", "1", "22", "one", "enter"]), max_size=8))
def test_characters_stay_and_joining_twice_changes_nothing(words: list[str]) -> None:
    joined = join_letters(" ".join(words))
    assert joined.replace(" ", "").replace("one", "1") == "".join(words).replace("one", "1")
    assert join_letters(joined) == joined
