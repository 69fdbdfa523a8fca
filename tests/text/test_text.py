"""asr/text/normalization.py: what each rule does to texts of many scripts, and that a second time changes nothing."""

from __future__ import annotations

import unicodedata
from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st

from asr.errors import UserError
from asr.text.normalization import MAX_MARKS, RULES, SAFE_RULES, Rule, TextConfig, normalize

# What it is, rule, text, expected. Invisible characters are escaped.
CASES: list[tuple[str, Rule, str, str]] = [
    # form
    ("latin", "nfc", "cafe\u0301", "café"),
    ("full width", "nfkc", "ＡＢＣ１（）", "ABC1()"),
    ("half-width katakana", "nfkc", "ｶﾞ", "ガ"),
    ("ligature and powers", "nfkc", "ﬁ x² ™", "fi x2 TM"),
    ("thai sara am comes apart", "nfkc", "น\u0e33", "น\u0e4d\u0e32"),
    # invisible
    ("soft hyphen", "strip_invisible", "Zu\u00adcker", "Zucker"),
    ("right-to-left marks", "strip_invisible", "\u200fשלום\u202b\u202c \u2067ab\u2069", "שלום ab"),
    ("controls", "strip_invisible", "a\0b\x07c\x7fd\x9fe", "abcde"),
    ("white space stays", "strip_invisible", "a\tb\nc\r\x0b\x0c\x1c\x1f\x85d\u2028", "a\tb\nc\r\x0b\x0c\x1c\x1f\x85d\u2028"),
    ("emoji family stays, its selector goes", "strip_invisible", "👩\u200d❤\ufe0f\u200d👩", "👩\u200d❤\u200d👩"),
    # brackets
    ("tags", "strip_brackets", "well[noise]then <unk> (laughs)", "well then    "),
    ("nested", "strip_brackets", "a [b [c] (d)] e", "a   e"),
    ("mixed", "strip_brackets", "a (b [c) d] e", "a (b   e"),
    ("without partner", "strip_brackets", "a) (b ]] [[", "a) (b ]] [["),
    ("full width is for nfkc", "strip_brackets", "（笑）", "（笑）"),
    ("between characters without spaces", "strip_brackets", "你[笑]<x>好 <x>吗[x]a", "你好  吗 a"),
    ("round ones stay", "strip_tags", "a (b) [noise] <unk>你[laughter]好", "a (b)    你好"),
    # case
    ("latin", "lowercase", "ÀÉÎ Straße ẞ", "àéî straße ß"),
    ("greek final sigma", "lowercase", "ΟΔΟΣ ΣΟΦΟΣ", "οδος σοφος"),
    ("turkish is not for it", "lowercase", "Iİ", "ii\u0307"),
    ("german", "uppercase", "straße", "STRASSE"),
    ("turkish is not for it", "uppercase", "iı", "II"),
    # apostrophes
    ("all kinds", "plain_apostrophes", "don’t don‘t donʼt don＇t don't", "don't " * 4 + "don't"),
    # symbols
    ("signs", "strip_symbols", "$5 + 3° = ©^", " 5   3      "),
    ("punctuation stays", "strip_symbols", "50% & @ #1", "50% & @ #1"),
    ("emoji", "strip_symbols", "a👩\u200d❤\ufe0f\u200d👩b🇩🇪👍🏽", "a   b    "),
    # punctuation
    ("sentence", "strip_punctuation", "Hello, world! (No?)", "Hello  world   No  "),
    ("inside words", "strip_punctuation", "don't don’t mother-in-law col·lecció", "don't don’t mother-in-law col·lecció"),
    ("at the edges", "strip_punctuation", "'tis the dogs' -- a- -b rock 'n' roll", " tis the dogs     a   b rock  n  roll"),
    ("symbols stay", "strip_punctuation", "$5 + 3°", "$5 + 3°"),
    ("chinese", "strip_punctuation", "你好，世界。", "你好 世界 "),
    ("hindi: a vowel sign is in the word", "strip_punctuation", "हिन्दी-भाषा।", "हिन्दी-भाषा "),
    ("hebrew maqaf, gershayim", "strip_punctuation", "בית־ספר צה״ל", "בית־ספר צה״ל"),
    # spaces
    ("every kind", "collapse_spaces", " a\tb\r\nc\u00a0d\u3000e\u2028f\x1fg  ", "a b c d e f g"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "rule", "text", "expected"), CASES, ids=[f"{c[1]}: {c[0]}" for c in CASES])
def test_rule(what: str, rule: Rule, text: str, expected: str) -> None:
    assert normalize(text, [rule]) == expected


def test_every_rule_has_cases() -> None:
    assert {rule for _, rule, _, _ in CASES} == set(RULES)


SCORING: tuple[Rule, ...] = (
    "strip_invisible", "nfkc", "strip_brackets", "lowercase", "plain_apostrophes", "strip_symbols",
    "strip_punctuation", "collapse_spaces",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("“Don’t,” he said [noise] – well-known!", "don't he said well-known"),
        ("\ufeffＨｅｌｌｏ\u3000（笑）世界。", "hello 世界"),
        ("J\u030c. ΟΔΟΣ.", "ǰ οδος"),
        ("100 ℃", "100 c"),
        ("[noise]", ""),
        ("", ""),
    ],
)
def test_rules_together(text: str, expected: str) -> None:
    assert normalize(text, SCORING) == expected


def test_config_chooses_rules_for_training_and_scoring() -> None:
    config = TextConfig(training=("lowercase",), scoring=("uppercase",))
    assert normalize("Aa", config.training) == "aa"
    assert normalize("Aa", config.scoring) == "AA"
    text = "\ufeff It\u00a0 isn’t\tcafe\u0301,\r\nMr.\u200b X?\n"
    assert normalize(text, TextConfig().training) == "It isn’t café, Mr. X?"
    assert normalize(" e\u0301\t\0 ", []) == " e\u0301\t\0 "


def test_order_does_not_matter_and_unknown_rules_are_refused() -> None:
    assert normalize("-A  b.", ["collapse_spaces", "strip_punctuation", "lowercase"]) == "a b"
    with pytest.raises(UserError, match=r"TextConfig: training\.0 = 'casefold'"):
        TextConfig(training=("casefold",))  # type: ignore[arg-type]


# Subsets of the rules, without two that contradict each other.
LISTS = [
    rules
    for size in range(1, len(RULES))
    for rules in combinations(RULES, size)
    if not {"nfc", "nfkc"} <= {*rules} and not {"lowercase", "uppercase"} <= {*rules}
]

# What meets badly: letters that change length with case, marks, halves of compositions, joiners, brackets.
AWKWARD = (
    "aJjiIİıΣσςßẞΐŉᾳKÅﬁ½℃Ａカｶ\uff9eか가ᄀ\u1161\u11a8ำ\u0640\u064b❤👍\u200d\ufe0f\u0301\u0323\u030c\u0307\u0338\u0345"
    "\u0308\u3099'’-‐·.,_[]<>()≮≠+=\u00ad\u200b\u0085\u00a0\u3000 \t\n"
)
texts = st.text(st.one_of(st.sampled_from(AWKWARD), st.characters(exclude_categories=["Cs"])), max_size=12)


@settings(max_examples=300)
@given(texts, st.one_of(st.sampled_from(LISTS), st.sampled_from([(rule,) for rule in RULES])))
def test_idempotent_for_every_list_of_rules(text: str, rules: tuple[Rule, ...]) -> None:
    once = normalize(text, rules)
    assert normalize(once, rules) == once


@settings(max_examples=300)
@given(texts)
def test_form_is_what_unicode_says(text: str) -> None:
    assert unicodedata.is_normalized("NFC", normalize(text, SAFE_RULES))
    assert unicodedata.is_normalized("NFKC", normalize(text, SCORING))
    assert all(space == " " for space in normalize(text, SAFE_RULES) if space.isspace())


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "é\udc80é"])
def test_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"character \d of a text is half of a surrogate pair \(U\+D"):
        normalize(text, SAFE_RULES)


@pytest.mark.parametrize(
    "marks", ["\u0301\u0323", "\u0f73", "\uff9e\u0301", "\u0301\u0e38", "\u0301\u200b\u0323"], ids=ascii
)
def test_endless_marks_are_refused(marks: str) -> None:
    # `unicodedata.normalize` would need minutes for them, also when a rule has removed what is in between.
    with pytest.raises(UserError, match=rf"near character 2 of a text, \d+ combining marks.*{MAX_MARKS}"):
        normalize("a" + marks * 100_000, SCORING)


def test_how_many_marks_are_refused() -> None:
    text = ("a" + "\u0301\u0323" * (MAX_MARKS // 2)) * 100
    assert len(normalize(text, ["nfc"])) > 1000
    with pytest.raises(UserError, match=f" {MAX_MARKS + 1} combining marks"):
        normalize("a" + "\u0301" * (MAX_MARKS + 1), ["nfc"])


@pytest.mark.parametrize(
    "text",
    ["[", "]", "[]", "(<[", "'", "-a", "\u200d", "❤\u200d", "Σ.", "\t", "a\u0301\u0323", "\ufdfa", "_", "가"],
    ids=ascii,
)
def test_time_grows_with_length_alone(text: str) -> None:
    # No clock: this takes a blink each, and would take a minute if anything were quadratic.
    once = normalize(text * (30_000 // len(text)), SCORING)
    assert normalize(once, SCORING) == once


def test_deeply_nested_brackets() -> None:
    for text, expected in (("a" + "]" * 100_000, " "), ("a", "[" * 100_000 + "a")):
        assert normalize("[" * 100_000 + text, ["strip_brackets"]) == expected
