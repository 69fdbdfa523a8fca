"""Whisper's tokens: merges, bytes, special ids, prompts; and its vocabulary in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from whisper_examples import NUM_SPECIAL, VOCAB_SIZE, VOCABULARY, write_huggingface_vocabulary

from asr import whisper
from asr.errors import UserError
from asr.text.tokenizer import EOS_ID, SOS_ID, SPECIAL_TOKENS, Tokenizer, TokenizerConfig
from asr.whisper import (
    WhisperSizes,
    WhisperTokenizer,
    find_language,
    find_prompt,
    languages,
    name_tokens,
    read_huggingface_vocabulary,
)
from asr.whisper.language_names import _NAMES

ENGLISH = WhisperTokenizer(VOCABULARY, 99, False)
MULTILINGUAL = WhisperTokenizer(VOCABULARY, 100, True)


def merge_plainly(word: bytes) -> list[bytes]:
    """Merge after merge in the order in which they were learned, each wherever it can be done."""
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
    ids = ENGLISH.encode(text)
    assert ENGLISH.decode([ENGLISH.start, *ids, ENGLISH.first_time + 3, ENGLISH.end]) == text
    assert max(ids, default=0) < ENGLISH.end


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
    ids = ENGLISH.encode(text)
    assert ids == [VOCABULARY.index(part) for piece in pieces for part in merge_plainly(piece.encode())]


def test_odd_texts() -> None:
    assert ENGLISH.decode(ENGLISH.encode("the é")[:-1]) == "the \N{REPLACEMENT CHARACTER}"
    assert max(ENGLISH.encode("<|endoftext|><|0.00|>")) < ENGLISH.end
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
    assert len(languages) == 100 and languages["ht"] == "haitian creole"
    assert find_language(" Haitian Creole ") == "ht" and find_language("EN") == "en"
    suppressed = set(ENGLISH.suppressed)
    assert {*ENGLISH.encode("["), *ENGLISH.encode("#"), ENGLISH.start, ENGLISH.no_speech} <= suppressed
    assert not {*ENGLISH.encode("a,.?!-'"), ENGLISH.end, ENGLISH.no_times, ENGLISH.first_time} & suppressed


def test_each_name_is_of_one_language() -> None:
    """In English or in the language itself, in any case, with or without accents."""
    assert sum(len(names) > 1 for names in _NAMES.values()) > 85
    for code, names in _NAMES.items():
        assert {find_language(name) for name in (code, *names, *map(str.upper, names))} == {code}
    for name, code in (("Francais", "fr"), ("ελληνικα", "el"), ("日本語", "ja"), ("Kreyòl Ayisyen", "ht")):
        assert find_language(name) == code
    with pytest.raises(UserError, match=r"language 'Doitsch': .*did you mean deutsch"):
        find_language("Doitsch")


def test_prompts() -> None:
    start, no_times, german = MULTILINGUAL.start, MULTILINGUAL.no_times, MULTILINGUAL.languages["de"]
    tasks = MULTILINGUAL.tasks
    assert MULTILINGUAL.prompt("German") == [start, german, tasks["transcribe"], no_times]
    assert MULTILINGUAL.prompt("DE", "translate") == [start, german, tasks["translate"], no_times]
    assert ENGLISH.prompt() == ENGLISH.prompt("en") == [ENGLISH.start, ENGLISH.no_times]
    older = WhisperTokenizer(VOCABULARY, 99, True)
    for tokenizer, arguments, message in (
        (ENGLISH, ("de",), "English only"),
        (ENGLISH, (None, "translate"), "translate"),
        (MULTILINGUAL, (None,), "give the language"),
        (MULTILINGUAL, ("klingon",), "'klingon'"),
        (older, ("yue",), "yue"),
    ):
        with pytest.raises(UserError, match=message):
            tokenizer.prompt(*arguments)  # type: ignore[arg-type]


def test_a_vocabulary_must_fit_its_model() -> None:
    for off in (-1, 1):
        with pytest.raises(UserError, match="another model"):
            WhisperTokenizer.of(VOCABULARY, len(VOCABULARY) + NUM_SPECIAL + off)
    vocabulary = (*VOCABULARY, *(b"%d" % number for number in range(1000, 52_000)))[:50_257]
    for vocab_size, num_languages in ((51_865, 99), (51_866, 100)):
        assert len(WhisperTokenizer.of(vocabulary, vocab_size).languages) == num_languages
        with pytest.raises(UserError, match="another model"):
            WhisperTokenizer.of(vocabulary[:-1], vocab_size)  # that of English
    without = (*(token for token in VOCABULARY if token != b"A"), b"AA")
    with pytest.raises(UserError, match="without byte 65"):
        WhisperTokenizer.of(without, len(VOCABULARY) + NUM_SPECIAL)


def test_vocabulary_in_files(tmp_path: Path) -> None:
    for as_one in (False, True):
        folder = tmp_path / str(as_one)
        folder.mkdir()
        write_huggingface_vocabulary(folder, as_one)
        assert read_huggingface_vocabulary(folder) == VOCABULARY
    (tmp_path / "ours").mkdir()
    whisper.write_huggingface_vocabulary(tmp_path / "ours", ENGLISH)
    for name in ("merges.txt", "vocab.json"):
        ours, theirs = ((tmp_path / folder / name).read_text() for folder in ("ours", "False"))
        assert json.loads(ours) == json.loads(theirs) if name == "vocab.json" else ours == theirs


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer.json", '{"model": {"vocab": [], "merges": []}}'),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer.json", '{"added_tokens": 3, "model": {"vocab": {}}}'),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0}, "merges": []}}'),
        ("tokenizer.json", '{"model": {"vocab": {"a": "b", "<|endoftext|>": 1}, "merges": []}}'),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0, "<|endoftext|>": "x"}, "merges": []}}'),
        ("vocab.json", '{" ": 0, "<|endoftext|>": 1}'),
        ("vocab.json", '{"a": 0, "<|endoftext|>": 5}'),
        ("vocab.json", " " * 20_000_001),
    ],
)
def test_damaged_vocabulary(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=name):
        read_huggingface_vocabulary(tmp_path)


WHISPER = WhisperTokenizer.of(VOCABULARY, VOCAB_SIZE)
TOKENIZER = Tokenizer("whisper", SPECIAL_TOKENS + name_tokens(WHISPER))


def test_prompt_of_a_multilingual_model() -> None:
    """In our ids, by the names of the tokens; the start, before it, is ours."""
    more = (f"~{number}~".encode() for number in range(50_257 - len(VOCABULARY)))
    names = SPECIAL_TOKENS + name_tokens(WhisperTokenizer.of((*VOCABULARY, *more), 51_865))
    assert len(set(names)) == len(names) == 51_865
    heads = dict.fromkeys(("dim", "encoder_layers", "encoder_heads", "decoder_layers", "decoder_heads"), 1)
    sizes = WhisperSizes(num_mels=80, vocab_size=51_865, **heads)
    prompt = find_prompt(sizes, "german")
    assert [names[id] for id in prompt] == ["<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    with pytest.raises(UserError, match=r"model.decoder.language"):
        find_prompt(sizes, None)


def test_tokenizer_is_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(path)
    loaded = Tokenizer.load(path)
    assert loaded == TOKENIZER and len(loaded) == len(WHISPER)
    for text in ("", "the rain in spain", "Grüße, 東京 ▁ <eos> <|en|>", "a  b ", "\n"):
        ids = loaded.encode(text)
        assert loaded.decode(ids) == text and min(ids, default=5) >= 5
    theirs = WHISPER.encode(" the rain")
    assert [loaded.tokens[id] for id in loaded.encode("the rain")] == [
        WHISPER.vocabulary[id].decode().replace(" ", "▁") for id in theirs
    ]
    assert loaded.decode([SOS_ID, *loaded.encode("six"), loaded.tokens.index("<|0.00|>"), EOS_ID]) == "six"
    record = json.loads(path.read_text())
    for tokens in (
        record["tokens"][:-1],
        [*record["tokens"][:5], *record["tokens"][6:]],
        [token if number != 9 else "日" for number, token in enumerate(record["tokens"])],
        record["tokens"][:5],
    ):
        path.write_text(json.dumps(record | {"tokens": tokens}))
        with pytest.raises(UserError, match=r"tokenizer\.json: "):
            Tokenizer.load(path)
    with pytest.raises(UserError, match="start_from"):
        Tokenizer.train(TokenizerConfig(type="whisper"), ["a text"])
