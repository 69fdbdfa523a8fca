"""Spelled letters and digits: whatever way of writing them, it is the same word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.text.english import normalize_english
from asr.text.english_letters import join_letters


@pytest.mark.parametrize(
    ("reference", "texts", "expected"),
    [
        ("C Z D EIGHT", ["CZD8.", "C-Z-D-8", "c z d eight", "CZD 8"], "czd 8"),
        ("ONE FIVE TWO ONE THREE", ["15213.", "1-5-2-1-3", "1 5 2 1 3", "15 21 3", "one 5213"], "15213"),
        ("P I T T S B U R G H", ["P-I-T-T-S-B-U-R-G-H.", "PITTSBURGH"], "pittsburgh"),
        ("ENTER ONE", ["Enter one.", "Enter 1"], "enter one"),
        ("AND A HALF", ["and a half"], "and a half"),
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
