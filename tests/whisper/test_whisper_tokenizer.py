"""Whisper's tokens: merges, bytes, special ids, prompts, and vocabulary files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from whisper_examples import MULTILINGUAL, NUM_SPECIAL, VOCAB_SIZE, VOCABULARY, write_huggingface_vocabulary

from asr import whisper
from asr.errors import UserError
from asr.text.tokenizer import BLANK_ID, EOS_ID, PAD_ID, SOS_ID, UNK_ID, Tokenizer, TokenizerConfig
from asr.whisper import (
    SpecialTokens,
    find_language,
    find_prompt,
    languages,
    make_tokenizer,
    read_huggingface_vocabulary,
    units_of,
)

TOKENIZER = make_tokenizer(VOCABULARY, VOCAB_SIZE)
ENGLISH = units_of(TOKENIZER)
FIRST = 5  # id of text


def merge_plainly(word: bytes) -> list[bytes]:
    """Apply merges in the order in which they were learned, each wherever possible."""
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
    assert [ENGLISH.pieces[id] for id in ENGLISH.encode_piece(text)] == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_gives_back_any_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode([SOS_ID, *ids, VOCAB_SIZE - 3, EOS_ID]) == text
    assert all(FIRST <= id < ENGLISH.special.first for id in ids)


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
    ids = ENGLISH.encode_piece(text)
    assert ids == [
        FIRST + VOCABULARY.index(part) for piece in pieces for part in merge_plainly(piece.encode())
    ]


def test_odd_texts() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("the é")[:-1]) == "the \N{REPLACEMENT CHARACTER}"
    assert max(TOKENIZER.encode("<|endoftext|><|0.00|>")) < ENGLISH.special.first
    with pytest.raises(UserError, match="surrogate"):
        TOKENIZER.encode("a \ud800")


def test_special_tokens_are_those_of_openai() -> None:
    """OpenAI's follow the text tokens in a fixed order; ours are the same, but five come first."""
    for vocab_size, num_languages in ((51_864, 99), (51_865, 99), (51_866, 100)):
        special = SpecialTokens(vocab_size)
        num_texts = vocab_size - NUM_SPECIAL - (num_languages - 99)
        codes = list(languages)[:num_languages]
        assert codes[0] == "en" and codes[98] == "su" and codes[99:] == ["yue"] * (num_languages - 99)
        names = [
            "endoftext",
            "startoftranscript",
            *codes,
            "translate",
            "transcribe",
            "startoflm",
            "startofprev",
        ]
        names += ["nospeech", "notimestamps", *(f"{place * 0.02:.2f}" for place in range(1501))]
        theirs = {name: num_texts + place for place, name in enumerate(names)}
        order = special.order()
        assert sorted(order) == list(range(vocab_size))
        assert order[FIRST : FIRST + num_texts] == list(range(num_texts))
        assert special.first == FIRST + num_texts
        ours = {"nospeech": BLANK_ID, "startofprev": PAD_ID, "startoftranscript": SOS_ID, "endoftext": EOS_ID}
        ours |= {"startoflm": UNK_ID, "notimestamps": special.no_times} | special.tasks | special.languages
        assert {name: order[id] for name, id in ours.items()} == {name: theirs[name] for name in ours}
        assert [f"<|{name}|>" for name in names] == list(special.their_names)
        assert order[special.no_times :] == [theirs[name] for name in names[-1502:]]
    assert len(languages) == 100 and languages["ht"] == "haitian creole"
    suppressed = set(ENGLISH.find_suppressed())
    assert {*ENGLISH.encode_piece("["), *ENGLISH.encode_piece("#"), BLANK_ID, PAD_ID, SOS_ID} <= suppressed
    times = range(ENGLISH.special.no_times, VOCAB_SIZE)
    assert not {*ENGLISH.encode_piece("a,.?!-'"), EOS_ID, *times} & suppressed


def test_each_name_is_of_one_language() -> None:
    for code, name in languages.items():
        assert {find_language(one) for one in (code, name, name.upper(), f" {name.title()} ")} == {code}
    with pytest.raises(UserError, match=r"language 'Germn': .*did you mean german"):
        find_language("Germn")


def test_prompts() -> None:
    english, older, newer = map(SpecialTokens, (51_864, 51_865, 51_866))
    german, tasks = newer.languages["de"], newer.tasks
    assert newer.prompt("German") == [SOS_ID, german, tasks["transcribe"], newer.no_times]
    assert newer.prompt("DE", "translate") == [SOS_ID, german, tasks["translate"], newer.no_times]
    assert english.prompt() == english.prompt("en") == [SOS_ID, english.no_times]
    for special, arguments, message in (
        (english, ("de",), "English only"),
        (english, (None, "translate"), "translate"),
        (newer, (None,), "give the spoken language"),
        (newer, ("klingon",), "'klingon'"),
        (older, ("yue",), "yue"),
    ):
        with pytest.raises(UserError, match=message):
            special.prompt(*arguments)  # type: ignore[arg-type]


def test_a_vocabulary_must_fit_its_model() -> None:
    for off in (-1, 1):
        with pytest.raises(UserError, match="another model"):
            make_tokenizer(VOCABULARY, VOCAB_SIZE + off)
    for vocab_size, num_languages in ((51_865, 99), (51_866, 100)):
        tokenizer = make_tokenizer(MULTILINGUAL, vocab_size)
        assert len(units_of(tokenizer).special.languages) == num_languages
        with pytest.raises(UserError, match="another model"):
            make_tokenizer(MULTILINGUAL[:-1], vocab_size)  # that of English
    without = (*(token for token in VOCABULARY if token != b"A"), b"AA")
    with pytest.raises(UserError, match="without byte 65"):
        make_tokenizer(without, VOCAB_SIZE)


def test_vocabulary_in_files(tmp_path: Path) -> None:
    for as_one in (False, True):
        folder = tmp_path / str(as_one)
        folder.mkdir()
        write_huggingface_vocabulary(folder, as_one)
        assert read_huggingface_vocabulary(folder) == VOCABULARY
    (tmp_path / "ours").mkdir()
    whisper.write_huggingface_vocabulary(tmp_path / "ours", TOKENIZER)
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


def test_prompt_of_a_run() -> None:
    """It names the tokens; we add the start token before it."""
    names = make_tokenizer(MULTILINGUAL, 51_865).tokens
    assert len(set(names)) == len(names) == 51_865
    prompt = find_prompt(51_865, "german")
    assert [names[id] for id in prompt] == ["<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    with pytest.raises(UserError, match=r"model.decoder.language"):
        find_prompt(51_865, None)


def test_tokenizer_is_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(path)
    loaded = Tokenizer.load(path)
    assert loaded == TOKENIZER and len(loaded) == VOCAB_SIZE
    for text in ("", "the rain in spain", "Grüße, 東京 ▁ <eos> <|en|>", "a  b ", "\n"):
        ids = loaded.encode(text)
        assert loaded.decode(ids) == text and min(ids, default=5) >= 5
    parts = merge_plainly(b" the") + merge_plainly(b" rain")
    assert [loaded.tokens[id] for id in loaded.encode("the rain")] == [
        part.decode().replace(" ", "▁") for part in parts
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
