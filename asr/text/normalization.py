"""Rules that normalize texts before training and before scoring, chosen by name in the config."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from asr.config import Config
from asr.errors import UserError, shorten

Rule = Literal[
    "strip_invisible",
    "nfc",
    "nfkc",
    "strip_tags",
    "strip_brackets",
    "lowercase",
    "uppercase",
    "plain_apostrophes",
    "strip_symbols",
    "strip_punctuation",
    "collapse_spaces",
]

# They remove only what is neither visible nor audible, in any script.
SAFE_RULES: tuple[Rule, ...] = ("strip_invisible", "nfc", "collapse_spaces")

# `unicodedata` sorts the marks of one letter by insertion, in quadratic time. Spelling takes up to four.
MAX_MARKS = 100


class TextConfig(Config):
    """Normalization of texts. Rules run in the order listed for `training`, not in the order of a config."""

    training: tuple[Rule, ...] = SAFE_RULES
    """Rules for the texts that a model and its tokenizer learn. strip_invisible drops control characters
    and zero width spaces. nfc joins a letter and its accent in one character, nfkc also writes ² as 2.
    strip_tags drops [noise] and <unk>, strip_brackets also (laughs). plain_apostrophes writes don’t as don't.
    strip_symbols and strip_punctuation put spaces in place of $, emoji or marks."""

    scoring: tuple[Rule, ...] = SAFE_RULES
    """Rules for references and hypotheses before words are counted."""


def normalize(text: str, rules: Sequence[Rule]) -> str:
    """Apply rules in the order of `RULES`; applying them twice changes nothing."""
    _check_characters(text)
    for name, rule in RULES.items():
        if name in rules:
            text = rule(text)
    return text


@functools.cache
def _load_english() -> Callable[[str], str]:
    from whisper_normalizer.english import EnglishTextNormalizer  # slow to import

    return functools.lru_cache(1 << 16)(EnglishTextNormalizer())  # references recur for each system


def normalize_english(text: str) -> str:
    """Normalize by Whisper's rules: numbers as digits, contractions in full, American spelling."""
    _check_characters(text)
    try:
        return " ".join(_load_english()(text).split())
    except (AssertionError, ValueError):  # a number with more than 4,300 digits
        raise UserError(f"{shorten(text)}: the rules for English cannot read it; correct the text") from None


def _check_characters(text: str) -> None:
    if text.isascii():
        return
    if found := re.search("[\ud800-\udfff]", text):
        raise UserError(
            f"character {found.start() + 1} of a text is half of a surrogate pair (U+{ord(found[0]):04X}), "
            f"which is no character by itself; write the text again, as UTF-8"
        )
    # Nor may rules bring so many together: nfkc makes marks of half-width voicing signs, and strip_invisible
    # removes what stands between marks.
    for suspects in re.finditer(rf"[\W\uff9e\uff9f]{{{MAX_MARKS},}}", text):
        count = sum(unicodedata.category(one)[0] == "M" or one in "\uff9e\uff9f" for one in suspects[0])
        if count > MAX_MARKS:
            raise UserError(
                f"near character {suspects.start() + 1} of a text, {count} combining marks in a row; "
                f"expected up to {MAX_MARKS}, more than any script needs; correct or remove it"
            )


# --- rules --------------------------------------------------------------------------------------


# Controls other than white space; soft hyphen; Arabic letter mark; zero width space; directional marks,
# embeddings and isolates; word joiner and invisible operators; variation selectors; byte order mark;
# interlinear annotation; tags. The zero width joiners stay: Persian and the Indic scripts spell with them.
_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000e-\u001b\u007f-\u0084\u0086-\u009f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0001\U000e0020-\U000e007f\U000e0100-\U000e01ef]+"
)


# Brackets are replaced by a space, or by nothing between characters of scripts without spaces.
_GAP = "\ufdd0"  # not a character
_UNSPACED = "[\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"
_JOINED = re.compile(f"(?<={_UNSPACED}){_GAP}+(?={_UNSPACED})")


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _strip_brackets(text: str, openings: str = "[<(") -> str:
    for opening in openings:
        closing = {"[": "]", "<": ">", "(": ")"}[opening]
        unmatched: list[int] = []  # indices in `parts` of unmatched brackets
        parts: list[str] = []
        for part in re.split(f"([{re.escape(opening + closing)}])", text) if opening in text else [text]:
            if part == closing and unmatched:
                del parts[unmatched.pop() :]
                part = _GAP
            elif part == opening:
                unmatched.append(len(parts))
            parts.append(part)
        text = "".join(parts)
    return _JOINED.sub("", text).replace(_GAP, " ")


def _replace_symbol(match: re.Match[str]) -> str:
    return " " if unicodedata.category(match[1]).startswith("S") else match[0]


# Apostrophes, hyphens (the last does not break), the Catalan middle dot; Hebrew maqaf, geresh, gershayim.
_WORD_PUNCTUATION = "'\u2019-\u2010\u2011\u00b7\u05be\u05f3\u05f4"


def _replace_punctuation(match: re.Match[str]) -> str:
    character, text, position = match[0], match.string, match.start()
    if not unicodedata.category(character).startswith("P"):
        return character
    if character in _WORD_PUNCTUATION and 0 < position < len(text) - 1:
        neighbors = text[position - 1], text[position + 1]
        if all(unicodedata.category(neighbor)[0] in "LMN" for neighbor in neighbors):
            return character
    return " "


# In the order in which they have to run: removing punctuation after spaces would leave two spaces.
RULES: dict[str, Callable[[str], str]] = {
    # Control characters, marks of direction, soft hyphens, zero width spaces, variation selectors. White
    # space and zero width joiners stay. Khmer or Thai with zero width spaces between words loses its words.
    "strip_invisible": lambda text: _INVISIBLE.sub("", text),
    # Letter and accent as one character where there is one (e + ´ as é), Hangul as syllables.
    "nfc": _nfc,
    # nfc, and variants of form: Ａ becomes A, ﬁ fi, ² 2, ½ 1⁄2, ™ TM, ㎏ kg, ｶ カ, （ (. Thai ำ and Lao ຳ
    # become two characters each, and Korean ㅋ another ᄏ.
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    # Tags such as [noise] and <unk> become a space each, with what is nested inside them, or nothing between
    # kana and Chinese characters; words in round brackets stay. A bracket without a partner stays.
    "strip_tags": lambda text: _strip_brackets(text, "[<"),
    # strip_tags, and the same with (laughs). Not for texts that keep spoken words in brackets.
    "strip_brackets": _strip_brackets,
    # By Unicode's rules for no language in particular; the result is in NFC. Σ ends a word as ς; ß stays. Not
    # for Turkish: I becomes i (not ı), and İ an i with a dot above it.
    "lowercase": lambda text: _nfc(text.lower()),
    # The same; ß becomes SS. Not for Turkish: i becomes I (not İ).
    "uppercase": lambda text: _nfc(text.upper()),
    # ’ ‘ ʼ ＇ become the apostrophe of the keyboard: don’t becomes don't.
    "plain_apostrophes": lambda text: re.sub("[\u2018\u2019\u02bc\uff07]", "'", text),
    # Symbols (Unicode's S categories: $ + < = ^ ° © ♪, emoji with their joiners) become a space each. Neither
    # a symbol nor a punctuation mark is \w, but for the underscore.
    "strip_symbols": lambda text: re.sub("([^\\w\\s])[\u200d\ufe0e\ufe0f]*", _replace_symbol, text),
    # Punctuation (Unicode's P categories, which hold % & @ # * / too) becomes a space each. Apostrophes and
    # hyphens inside words stay: don't, mother-in-law, col·lecció; dogs' loses its own. Full stops and commas
    # go everywhere: 3.5 becomes 3 5, and U.S. becomes U S.
    "strip_punctuation": lambda text: re.sub(r"[^\w\s]|_", _replace_punctuation, text),
    # One space between words, none at the ends, whatever stood there: tabs, line ends, wide spaces.
    "collapse_spaces": lambda text: " ".join(text.split()),
}
assert tuple(RULES) == get_args(Rule)
