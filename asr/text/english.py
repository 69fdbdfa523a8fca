"""Normalise English texts for scoring: numbers, contractions, titles, fillers and spelling.

In the spirit of the normaliser that Whisper is scored with: what a person would not call an error should
not count as one. Both sides go through the same rules: one that is wrong about one is wrong about both.
"""

from __future__ import annotations

import re
import unicodedata

from asr.text.english_numbers import write_numbers
from asr.text.english_spelling import to_american
from asr.text.normalization import normalize

_FILLERS = re.compile(r"\b(h+m+|m+h+m*|mm+|u+h+|u+m+)\b")

# Whole words, after the apostrophes have been made plain.
_WORDS = {
    "won't": "will not",
    "can't": "can not",
    "cannot": "can not",
    "shan't": "shall not",
    "let's": "let us",
    "ain't": "aint",  # is, am, are, has or have not
    "y'all": "you all",
    "ma'am": "madam",
    "o'clock": "oclock",
    "wanna": "want to",
    "gonna": "going to",
    "gotta": "got to",
    "gimme": "give me",
    "lemme": "let me",
    "i'ma": "i am going to",
    "imma": "i am going to",
    "woulda": "would have",
    "coulda": "could have",
    "shoulda": "should have",
    "mr": "mister",
    "mrs": "missus",
    "st": "saint",
    "dr": "doctor",
    "prof": "professor",
    "capt": "captain",
    "gov": "governor",
    "ald": "alderman",
    "gen": "general",
    "sen": "senator",
    "rep": "representative",
    "pres": "president",
    "rev": "reverend",
    "hon": "honorable",
    "asst": "assistant",
    "assoc": "associate",
    "lt": "lieutenant",
    "col": "colonel",
    "jr": "junior",
    "sr": "senior",
    "esq": "esquire",
}
_WORD = re.compile(rf"(?<![\w'])({'|'.join(map(re.escape, _WORDS))})(?![\w'])")

# Endings, in this order: the participle tells "he's been" from "he's here".
_PARTICIPLES = "been|gone|done|got|had|become"
_ENDINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"'s (?=({_PARTICIPLES})\b)", " has "),
        (rf"'d (?=({_PARTICIPLES})\b)", " had "),
        (r"n't\b", " not"),
        (r"'re\b", " are"),
        (r"'s\b", " is"),  # the genitive too; both sides lose it alike
        (r"'d\b", " would"),
        (r"'ll\b", " will"),
        (r"'t\b", " not"),
        (r"'ve\b", " have"),
        (r"'m\b", " am"),
    )
]
# 5'10", which is said as five foot ten, five feet ten or five feet ten inches.
_HEIGHT = re.compile(r"\b(\d+)\s?['\u2032]\s?(\d+)(?!\w)\s?(\"|''|[\u2032\u2033\u201d]{1,2})?")
_SPOKEN_HEIGHT = re.compile(r"\b(\d+) (?:foot|feet) (\d+)(?: inch(?:es)?)?\b(?! (?:foot|feet)\b)")
# ł, ø and others have no accent to take off, but English writes them without.
_LETTERS = str.maketrans(
    {"œ": "oe", "æ": "ae", "ø": "o", "ß": "ss", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ı": "i"}
)

# Spelled letters and digits, in texts that are normalised.
_BORDER = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_SPELLED_LETTERS = re.compile(r"\b[^\W\d_](?: [^\W\d_])+\b")
_SPELLED_DIGITS = re.compile(r"\b(?:\d+|one)(?: (?:\d+|one))+\b")


def normalize_english(text: str) -> str:
    """Normalise to lower case without punctuation, digits, contractions in full, American spelling.

    It is made for scoring, not for training: what it returns is no longer what anybody would write.
    """
    text = normalize(text, ("strip_invisible", "nfkc", "strip_brackets", "lowercase", "plain_apostrophes"))
    text = _HEIGHT.sub(r"\1 foot \2 ", text)
    text = _FILLERS.sub(" ", text)
    text = re.sub(r"\s+'(?=(s|t|d|m|ll|re|ve)\b)", "'", text)  # he 's
    text = _WORD.sub(lambda match: _WORDS[match[1]], text)
    for pattern, replacement in _ENDINGS:
        text = pattern.sub(replacement, text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = _strip(text)
    text = re.sub(r"(?<=[^\W\d])(?=\d)|(?<=\d)(?!(st|nd|rd|th|s)\b)(?=[^\W\d])", " ", text)  # 2x
    words = write_numbers(text.split())
    text = _SPOKEN_HEIGHT.sub(r"\1 foot \2", " ".join(to_american(word) for word in words))
    # Signs that belong to no number, such as a full stop at the end or a lone %.
    text = re.sub(r"[.$£€¢](?!\d|\.\d)", " ", text)
    text = re.sub(r"(?<!\d)%", " ", text)
    text = re.sub(r"(?<![\d])(?<!^)(?<!\s)[-+]|[-+](?![\d.$£€])", " ", text)
    return " ".join(text.split())


def _strip(text: str) -> str:
    """Take off accents and apostrophes; of all signs only those stay that belong to numbers."""
    kept = []
    for character in unicodedata.normalize("NFKD", text.translate(_LETTERS)):
        category = unicodedata.category(character)[0]
        if category == "M" or character == "'":
            continue
        kept.append(" " if category in "PSZC" and character not in ".%$£€¢" else character)
    text = "".join(kept)
    # A full stop belongs to a number only between or before digits: 3.14, .5, but not "end." or "u.s.".
    return re.sub(r"(?<!\d)\.(?!\d)|\.(?!\d)|(?<=[^\W\d])\.(?=\d)", " ", text)


def join_letters(text: str) -> str:
    """Join runs of letters, and of digits: CZD8 for C Z D EIGHT, as the other side may write it.

    The text has no punctuation, and its numbers are digits.
    `normalize_english` writes a single 1 as one; among digits it is a digit.
    """
    text = _BORDER.sub(" ", text)
    text = _SPELLED_LETTERS.sub(lambda found: found[0].replace(" ", ""), text)
    return _SPELLED_DIGITS.sub(_join_digits, text)


def _join_digits(found: re.Match[str]) -> str:
    run = found[0]
    return run.replace("one", "1").replace(" ", "") if any(c.isdigit() for c in run) else run
