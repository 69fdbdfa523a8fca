"""Texts that a person would call alike become alike; the golden answers are those of Whisper's normaliser."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from asr.text import join_letters, normalize_english, to_american, write_numbers

# What EnglishTextNormalizer of openai-whisper 20250625 makes of the same text.
SAME_AS_WHISPER = [
    ("I'm going to the theatre, can't you? He's gone; it's Mr. Smith's won't", "i am going to the theater can not you he has gone it is mister smith is will not"),
    ("um uh hmm hello", "hello"),
    ("[noise] (laughs) hi", "hi"),
    ("mr and mrs and dr and st. and jr", "mister and missus and doctor and saint and junior"),
    ("colour analyse organisation centre", "color analyze organization center"),
    ("grey jewellery", "gray jewelry"),
    ("gonna wanna gotta", "going to want to got to"),
    ("let's ain't y'all", "let us aint you all"),
    ("I'd've shouldn't've", "i would have should not have"),
    ("he's been", "he has been"),
    ("she'd gone", "she had gone"),
    ("goin' 'cause 'bout ma'am", "goin cause bout madam"),
    ("naïve café", "naive cafe"),
    ("e-mail", "e mail"),
    ("u.s.a at&t 10:30 a.m.", "u s a at t 10 30 a m"),
    ("2x 3rd-party", "2 x 3rd party"),
    # numbers
    ("twenty one hundred and five", "2105"),
    ("one thousand two hundred thirty four", "1234"),
    ("five hundred twenty two thousand and three", "522003"),
    ("one million one", "1000001"),
    ("one hundred thousand", "100000"),
    ("a hundred", "a 100"),
    ("two hundred and", "200 and"),
    ("seventy-five", "75"),
    ("1,234,567", "1234567"),
    ("twenty five and thirty", "25 and 30"),
    ("half a million", "half a 1000000"),
    ("thousands of people hundreds", "1000s of people 100s"),
    # read digit by digit, or in pairs
    ("nineteen ninety nine", "1999"),
    ("nineteen oh five", "1905"),
    ("two thousand ten", "2010"),
    ("ten thirty", "1030"),
    ("one two three four", "1234"),
    ("double oh seven", "007"),
    ("triple five", "555"),
    ("thirteen hundred hours", "1300 hours"),
    # a lone one may be a pronoun
    ("wait one moment", "wait one moment"),
    ("between one and two", "between one and 2"),
    ("1 2 3 4", "one 2 3 4"),
    # ordinals and plurals
    ("the first of may, twenty third", "the 1st of may 23rd"),
    ("twenty-first century", "21st century"),
    ("five hundredth", "500th"),
    ("1st 2nd 3rd", "1st 2nd 3rd"),
    ("20s and the nineties", "20s and the 90s"),
    # parts of numbers
    ("3 point 14", "3.14"),
    ("forty two point one five", "42.15"),
    ("five point oh", "5.0"),
    ("point five", ".5"),
    ("3.14", "3.14"),
    ("three and a half", "3.5"),
    ("two point", "2 point"),
    # signs, percent, money
    ("minus five plus five negative seven minus", "-5 +5 -7 minus"),
    ("5 percent", "5%"),
    ("fifty percent", "50%"),
    ("$3.50 and £20", "$3.50 and £20"),
    ("$2.5 million", "$2500000"),
    ("two point five million dollars", "$2500000"),
    ("five dollars and ten cents", "$5.10"),
    ("5 dollars 20 cents", "$5.20"),
    ("fifty cents", "¢50"),
    ("ten euros", "€10"),
]  # fmt: skip

# Where we differ on purpose, with Whisper's answer last.
OTHER_THAN_WHISPER = [
    ("five o'clock", "5 oclock", "50 clock"),
    ("oh my god", "oh my god", "0 my god"),
    ("and a half", "and a half", ""),
    ("10 %", "10%", "10"),
    ("one dollar", "$1", "one"),
    ("two hundred three hundred", "200 300", "20300"),
    ("3 and a half", "3.5", "3 and a half"),
    ("cannot", "can not", "cannot"),
]


@pytest.mark.parametrize(("text", "expected"), SAME_AS_WHISPER)
def test_as_whisper_does(text: str, expected: str) -> None:
    assert normalize_english(text) == expected


@pytest.mark.parametrize(("text", "expected", "whisper"), OTHER_THAN_WHISPER)
def test_other_than_whisper(text: str, expected: str, whisper: str) -> None:
    assert normalize_english(text) == expected != whisper


@pytest.mark.parametrize(
    ("spoken", "written"),
    [
        ("it costs twenty five dollars", "It costs $25."),
        ("he is the twenty second", "He's the 22nd!"),
        ("doctor brown will not come at ten thirty", "Dr. Brown won't come at, um, 1030"),
        ("three point one four", "3.14"),
        ("two million three hundred thousand", "2,300,000"),
        ("nineteen eighty four", "1984"),
        ("sixty percent of the colour", "60% of the color"),
        ("it is don’t", "it's don't"),
    ],
)
def test_spoken_and_written_become_alike(spoken: str, written: str) -> None:
    assert normalize_english(spoken) == normalize_english(written)


def spell(number: int) -> str:
    """As people say it; the way back is what is tested."""
    units = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
    ]
    units += ["sixteen", "seventeen", "eighteen", "nineteen"]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    if number < 20:
        return units[number]
    if number < 100:
        return tens[number // 10 - 2] + (f" {units[number % 10]}" if number % 10 else "")
    for scale, name in ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= scale:
            rest = f" {spell(number % scale)}" if number % scale else ""
            return f"{spell(number // scale)} {name}{rest}"
    raise AssertionError


@given(st.integers(2, 10**12 - 1))
def test_every_number_is_found_again(number: int) -> None:
    assert write_numbers(spell(number).split()) == [str(number)]
    assert write_numbers(["about", *spell(number).split(), "people"]) == ["about", str(number), "people"]


@given(st.text(max_size=60))
def test_any_text_ends_in_plain_words(text: str) -> None:
    words = normalize_english(text).split(" ")
    assert words == [""] or all(words)
    assert not set("".join(words)) & set(",;:!?()[]\"'\n\t")


@given(st.lists(st.sampled_from(["one", "two", "oh", "double", "hundred", "thousand", "million", "point", "and", "a", "half", "first", "nineties", "percent", "dollars", "cents", "minus", "5", "2.5", "$3", "dog", "second", "zero", "twenty"]), max_size=9))  # fmt: skip
def test_no_word_that_is_no_number_is_lost(words: list[str]) -> None:
    result = write_numbers(words)
    assert result.count("dog") == words.count("dog")
    assert len(result) <= len(words)


@pytest.mark.parametrize(
    ("british", "american"),
    [
        ("honoured", "honored"), ("neighbourhood", "neighborhood"), ("realises", "realizes"), ("travelling", "traveling"),
        ("theatres", "theaters"), ("catalogue", "catalog"), ("paralysed", "paralyzed"), ("defence", "defense"),
        ("anaemia", "anemia"), ("oedema", "edema"), ("programme", "program"), ("organisational", "organizational"),
    ],
)  # fmt: skip
def test_british_spelling(british: str, american: str) -> None:
    assert to_american(british) == american


def test_words_that_look_british_stay() -> None:
    words = "four hour our your flour pour tour exercise promise premise wise rise raise advise surprise otherwise called"
    words += " filling selling tell well hello spelling fellow collar dollar genre acre massacre mediocre analysis poet does shoe"
    assert [to_american(word) for word in words.split()] == words.split()


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "normalizer.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize(("text", "ours", "theirs", "why"), ROWS)
def test_the_page_of_differences_is_true(text: str, ours: str, theirs: str, why: str) -> None:
    assert normalize_english(text) == ours
    if importlib.util.find_spec("whisper_normalizer") is not None:
        english = importlib.import_module("whisper_normalizer.english")
        assert " ".join(english.EnglishTextNormalizer()(text).split()) == theirs


@pytest.mark.parametrize(
    "text", ["5'10\"", "5' 10\"", "5\u2032 10\u2033", "5\u201910\u201d", "five foot ten", "5 feet 10 inches"]
)
def test_heights_are_the_same_however_they_are_written(text: str) -> None:
    assert normalize_english(f"He is {text} tall.") == "he is 5 foot 10 tall"


def test_apostrophes_near_numbers_are_not_all_feet() -> None:
    assert normalize_english("the '90s, 'from 5 to 6'") == "the 90s from 5 to 6"
    assert normalize_english("2 feet 3 feet") == "2 feet 3 feet"


# --- spelled letters and digits -----------------------------------------------------------------


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
