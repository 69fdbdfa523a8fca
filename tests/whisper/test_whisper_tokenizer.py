"""Whisper's tokens: merges, bytes, special ids, prompts; and its vocabulary in files."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from whisper_examples import NUM_SPECIAL, TEXT, VOCABULARY, write_huggingface_vocabulary

from asr.errors import UserError
from asr.whisper import (
    LANGUAGES,
    WhisperTokenizer,
    find_language,
    read_huggingface_vocabulary,
    read_ranks,
    write_ranks,
)

ENGLISH = WhisperTokenizer(VOCABULARY, 99, is_multilingual=False)
MULTILINGUAL = WhisperTokenizer(VOCABULARY, 100, is_multilingual=True)


def merge_plainly(word: bytes) -> list[bytes]:
    """Merge after merge in the order in which they were learnt, each wherever it can be done."""
    parts = [bytes([byte]) for byte in word]
    for token in VOCABULARY[256:]:
        place = 0
        while place < len(parts) - 1:
            if parts[place] + parts[place + 1] == token:
                parts[place : place + 2] = [token]
            place += 1
    return parts


@given(st.lists(st.text(alphabet="thersinplyad", min_size=1, max_size=12), max_size=6))
def test_encoding_merges_in_the_order_of_the_ids(words: list[str]) -> None:
    text = "".join(f" {word}" for word in words)
    expected = [part for word in words for part in merge_plainly(f" {word}".encode())]
    assert [VOCABULARY[id] for id in ENGLISH.encode(text)] == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_gives_back_any_text(text: str) -> None:
    assert ENGLISH.decode(ENGLISH.encode(text)) == text


def test_text_is_shorter_in_tokens() -> None:
    assert len(ENGLISH.encode(TEXT)) < len(TEXT) / 2


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("don't we'll", ["don", "'t", " we", "'ll"]),
        ("a  b", ["a", " ", " b"]),
        ("x12½ ,;", ["x", "12½", " ,;"]),
        ("end  ", ["end", "  "]),
        ("日本 語", ["日本", " 語"]),
    ],
)
def test_words_never_merge_across_their_borders(text: str, pieces: list[str]) -> None:
    assert ENGLISH.encode(text) == [id for piece in pieces for id in ENGLISH._merge(piece.encode())]


def test_decoding_leaves_out_special_tokens_and_marks_broken_bytes() -> None:
    ids = ENGLISH.encode("the é")
    assert ENGLISH.decode([ENGLISH.start, *ids, ENGLISH.first_time + 3, ENGLISH.end]) == "the é"
    assert ENGLISH.decode(ids[:-1]) == "the \N{REPLACEMENT CHARACTER}"
    for wrong in (-1, len(ENGLISH)):
        with pytest.raises(UserError, match=f"token id {wrong} is outside"):
            ENGLISH.decode([wrong])


def test_text_that_looks_special_stays_text() -> None:
    assert max(ENGLISH.encode("<|endoftext|><|0.00|>")) < ENGLISH.end


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UserError, match="surrogate"):
        ENGLISH.encode("a \ud800")


def test_special_tokens_follow_in_their_order() -> None:
    for tokenizer, more in ((ENGLISH, 0), (MULTILINGUAL, 1)):
        assert len(tokenizer) == len(VOCABULARY) + NUM_SPECIAL + more
        codes = list(tokenizer.languages)
        ids = [
            tokenizer.end, tokenizer.start, *tokenizer.languages.values(), *tokenizer.tasks.values(),
            tokenizer.start_of_language_model, tokenizer.start_of_previous, tokenizer.no_speech, tokenizer.no_times,
            tokenizer.first_time,
        ]  # fmt: skip
        assert ids == [*range(len(VOCABULARY), len(VOCABULARY) + len(ids))]
        assert codes[0] == "en" and codes[98] == "su" and codes[99:] == ["yue"] * more


def test_prompts() -> None:
    start, no_times = MULTILINGUAL.start, MULTILINGUAL.no_times
    german = MULTILINGUAL.languages["de"]
    assert MULTILINGUAL.prompt("German") == [start, german, MULTILINGUAL.tasks["transcribe"], no_times]
    assert MULTILINGUAL.prompt("DE", "translate", times=True) == [
        start,
        german,
        MULTILINGUAL.tasks["translate"],
    ]
    assert ENGLISH.prompt() == ENGLISH.prompt("en") == [ENGLISH.start, ENGLISH.no_times]


@pytest.mark.parametrize(
    ("tokenizer", "arguments", "message"),
    [
        (ENGLISH, ("de",), "knows English"),
        (ENGLISH, (None, "translate"), "no translation"),
        (MULTILINGUAL, (None,), "name the one that is spoken"),
        (MULTILINGUAL, ("klingon",), "'klingon' is none that Whisper knows"),
        (WhisperTokenizer(VOCABULARY, 99, True), ("yue",), "no token in this model"),
    ],
)
def test_prompts_that_a_model_does_not_know(
    tokenizer: WhisperTokenizer, arguments: tuple, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        tokenizer.prompt(*arguments)


def test_suppressed_tokens_are_signs_and_special_ones() -> None:
    suppressed = set(ENGLISH.suppressed)
    assert {*ENGLISH.encode("["), *ENGLISH.encode("#"), ENGLISH.start, ENGLISH.no_speech} <= suppressed
    assert not {*ENGLISH.encode("a,.?!-'"), ENGLISH.end, ENGLISH.no_times, ENGLISH.first_time} & suppressed


def test_languages() -> None:
    assert len(LANGUAGES) == 100 and LANGUAGES["ht"] == "haitian creole"
    assert find_language(" Haitian Creole ") == "ht" and find_language("EN") == "en"


def test_a_vocabulary_must_fit_its_model() -> None:
    for off in (-1, 1):
        with pytest.raises(UserError, match=f"leave {99 + off} for languages, where this model has 99"):
            WhisperTokenizer.of_size(VOCABULARY, len(VOCABULARY) + NUM_SPECIAL + off)
    vocabulary = (*VOCABULARY, *(b"%d" % number for number in range(1000, 52_000)))[:50_257]
    for vocab_size, num_languages in ((51_865, 99), (51_866, 100)):
        assert WhisperTokenizer.of_size(vocabulary, vocab_size).num_languages == num_languages
        with pytest.raises(UserError, match="another model"):
            WhisperTokenizer.of_size(vocabulary[:-1], vocab_size)  # that of English
    with pytest.raises(UserError, match="without the byte 65"):
        WhisperTokenizer(tuple(token for token in VOCABULARY if token != b"A"), 99, False)


# --- files ----------------------------------------------------------------------------------------


def test_ranks_in_a_file(tmp_path: Path) -> None:
    vocabulary = (*VOCABULARY, b"")  # as the multilingual one, which ends with an empty token
    write_ranks(tmp_path / "ranks", vocabulary)
    assert read_ranks(tmp_path / "ranks") == vocabulary
    assert (tmp_path / "ranks").read_bytes().endswith(b"\n= %d\n" % len(VOCABULARY))


@pytest.mark.parametrize("as_one", [False, True])
def test_vocabulary_of_hugging_face(tmp_path: Path, as_one: bool) -> None:
    write_huggingface_vocabulary(tmp_path, as_one)
    assert read_huggingface_vocabulary(tmp_path) == VOCABULARY


def test_no_vocabulary_of_hugging_face(tmp_path: Path) -> None:
    assert read_huggingface_vocabulary(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no base64!\n", "but expected a token in base64"),
        (b"YQ== x\n", "but expected a token in base64"),
        (b"YQ== 1\n", "ids are not 0, 1, 2"),
        (b"", "ids are not 0, 1, 2"),
        (b"YQ== 0\nYQ== 1\n", "the same token has two ids"),
        (b"YQ== " + b"9" * 5000, "but expected a token in base64"),
    ],
)
def test_damaged_ranks(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "ranks").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_ranks(tmp_path / "ranks")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"model": {"vocab": [], "merges": []}}', "no vocabulary with merges"),
        ('{"model": 3}', "no vocabulary with merges"),
        ("[]", "expected a JSON object"),
        ('{"model": {"vocab": {"a": 0}, "merges": []}}', r"no token <\|endoftext\|>"),
        ('{"model": {"vocab": {"a": "b", "<|endoftext|>": 1}, "merges": []}}', "expected a number"),
        ('{"model": {"vocab": {"a": 1e400, "<|endoftext|>": 1}, "merges": []}}', "expected a number"),
        ('{"model": {"vocab": {"a": 0, "<|endoftext|>": "x"}, "merges": []}}', r"no token <\|endoftext\|>"),
        (
            '{"model": {"vocab": {" ": 0, "<|endoftext|>": 1}, "merges": []}}',
            "no token of a byte-level vocabulary",
        ),
        (
            '{"model": {"vocab": {"a": 0, "b": 1, "ba": 2, "ab": 3, "<|endoftext|>": 4}, "merges": ["a b", "b a"]}}',
            "one of an earlier merge",
        ),
        ('{"model": {"vocab": {"a": 0, "<|endoftext|>": 1}, "merges": [3]}}', "makes no token"),
        (" " * 20_000_001, "over 20,000,000 bytes"),
    ],
)
def test_damaged_vocabulary_of_hugging_face(tmp_path: Path, tree: str, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(tree)
    with pytest.raises(UserError, match=message):
        read_huggingface_vocabulary(tmp_path)


def test_ranks_are_those_of_tiktoken(tmp_path: Path) -> None:
    """The format, written here by hand."""
    lines = [base64.b64encode(bytes([byte])) + b" " + str(byte).encode() for byte in range(256)]
    (tmp_path / "ranks").write_bytes(b"\n".join(lines))
    assert read_ranks(tmp_path / "ranks") == tuple(bytes([byte]) for byte in range(256))
