"""asr/tokenizer.py: ids and back for each type, what training refuses, and files that are not tokenizers."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from asr import tokenizer as tokenizer_module
from asr.config import load_config
from asr.errors import UserError
from asr.text import Rule, TextConfig, normalize, normalize_for_training
from asr.tokenizer import (
    BLANK_ID,
    EOS_ID,
    PAD_ID,
    SOS_ID,
    SPECIAL_TOKENS,
    UNK_ID,
    UNKNOWN_MARK,
    Tokenizer,
    TokenizerConfig,
    TokenizerType,
)

TEXTS = ["the cat sat on the mat", "the dog sat", "a cat"]
TYPES: tuple[TokenizerType, ...] = ("characters", "bpe", "unigram", "words")
PIECE_TYPES: tuple[TokenizerType, ...] = ("bpe", "unigram")


def train(type: TokenizerType, texts: list[str], vocab_size: int | None = None) -> Tokenizer:
    """With the smallest vocabulary that holds every character, unless told otherwise."""
    if type in PIECE_TYPES and vocab_size is None:
        vocab_size = len(SPECIAL_TOKENS) + len({" ", *"".join(texts)})
    return Tokenizer.train(TokenizerConfig(type=type, vocab_size=vocab_size), texts)


def read_with_sentencepiece(tokenizer: Tokenizer) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)


# --- what a model may rely on -------------------------------------------------------------------


@pytest.mark.parametrize("type", TYPES)
def test_special_ids_are_the_same_for_each_type(type: TokenizerType) -> None:
    tokenizer = train(type, TEXTS)
    special = (tokenizer.blank_id, tokenizer.pad_id, tokenizer.sos_id, tokenizer.eos_id, tokenizer.unk_id)
    assert special == (BLANK_ID, PAD_ID, SOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3, 4)
    assert tokenizer.tokens[:5] == ("<blank>", "<pad>", "<sos>", "<eos>", "<unk>")
    assert len(tokenizer) == len(tokenizer.tokens) == len(set(tokenizer.tokens))
    assert min(tokenizer.encode(TEXTS[0])) > UNK_ID


@pytest.mark.parametrize("type", TYPES)
def test_decode_leaves_out_special_tokens_and_shows_the_unknown(type: TokenizerType) -> None:
    tokenizer = train(type, TEXTS)
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([SOS_ID, BLANK_ID, *ids, PAD_ID, EOS_ID, PAD_ID]) == "the cat"
    assert tokenizer.decode([UNK_ID]) == UNKNOWN_MARK == "⁇"
    assert tokenizer.decode([]) == tokenizer.decode([BLANK_ID]) == ""
    assert tokenizer.decode(np.array(ids)) == "the cat"


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("wrong", [-1, 1000])
def test_decode_refuses_ids_of_another_vocabulary(type: TokenizerType, wrong: int) -> None:
    tokenizer = train(type, TEXTS)
    with pytest.raises(
        UserError, match=f"token id {wrong} is outside of this tokenizer's 0 to {len(tokenizer) - 1}"
    ):
        tokenizer.decode([5, wrong])


@pytest.mark.parametrize("type", TYPES)
def test_no_text_becomes_a_special_token(type: TokenizerType) -> None:
    tokenizer = train(type, [*TEXTS, *"<blank> <pad> <sos> <eos> <unk>".replace("<", "< ").split()])
    for token in SPECIAL_TOKENS:
        assert set(tokenizer.encode(token)).isdisjoint({BLANK_ID, PAD_ID, SOS_ID, EOS_ID})


# --- against tables made by hand, and against sentencepiece -------------------------------------


def test_characters_by_hand() -> None:
    tokenizer = train("characters", ["aab", "a c"])
    assert tokenizer.tokens == (*SPECIAL_TOKENS, "a", " ", "b", "c")  # the most frequent first
    assert tokenizer.encode("cab a") == [8, 5, 7, 6, 5]
    assert tokenizer.decode([8, 5, 7, 6, 5]) == "cab a"


def test_words_by_hand() -> None:
    tokenizer = train("words", ["b a b", "c"])
    assert tokenizer.tokens == (*SPECIAL_TOKENS, "b", "a", "c")
    assert tokenizer.encode("c a  x\tb") == [7, 6, UNK_ID, 5]
    assert tokenizer.decode([7, 6, UNK_ID, 5]) == "c a ⁇ b"


def test_words_keeps_the_most_frequent() -> None:
    tokenizer = train("words", ["b a b", "c a b"], vocab_size=len(SPECIAL_TOKENS) + 2)
    assert tokenizer.tokens == (*SPECIAL_TOKENS, "b", "a")
    assert train("words", ["b a b"], vocab_size=1000).tokens == (*SPECIAL_TOKENS, "b", "a")


def random_words(seed: int, alphabet: str = "abcdefghijklmnop") -> list[str]:
    draw = random.Random(seed)
    words = ["".join(draw.choices(alphabet, k=draw.randint(1, 7))) for _ in range(200)]
    return [" ".join(draw.choices(words, k=12)) for _ in range(200)]


@pytest.mark.parametrize("type", PIECE_TYPES)
def test_pieces_are_those_of_sentencepiece(type: TokenizerType, tmp_path: Path) -> None:
    texts = random_words(1)
    tokenizer = train(type, texts, vocab_size=104)
    (tmp_path / "texts").write_text("\n".join(texts), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts"),
        model_prefix=str(tmp_path / "model"),
        model_type=type,
        vocab_size=100,
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "model.model"))
    assert [reference.id_to_piece(id) for id in range(1, 100)] == list(tokenizer.tokens[UNK_ID + 1 :])
    for text in random_words(2)[:50]:
        assert [tokenizer.tokens[id] for id in tokenizer.encode(text)] == reference.encode(text, out_type=str)


@pytest.mark.parametrize("type", PIECE_TYPES)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_pieces_encode_and_decode_as_sentencepiece(type: TokenizerType, data: st.DataObject) -> None:
    tokenizer = PIECES[type]
    reference = read_with_sentencepiece(tokenizer)
    text = data.draw(st.text("abcdefghijklmnop ", max_size=40))
    assert [id - UNK_ID for id in tokenizer.encode(text)] == reference.encode(text)
    ids = data.draw(st.lists(st.integers(UNK_ID + 1, len(tokenizer) - 1), max_size=20))
    assert tokenizer.decode(ids) == reference.decode([id - UNK_ID for id in ids])


PIECES = {type: train(type, random_words(3), vocab_size=80) for type in PIECE_TYPES}


# --- every text of the training comes back ------------------------------------------------------

# Letters that meet often, so that there are pieces to learn; then everything that Unicode has.
characters = st.one_of(
    st.sampled_from("aab  "),
    st.sampled_from("\t\n\r\0\x1f\x85▁▅<>⁇\u3000\u00a0\u2028\ufeff\u200b\uffff\ufffd👩\u200d\u0301ก\u0e33"),
    st.characters(exclude_categories=["Cs"]),
)
corpora = st.lists(st.text(characters, max_size=25), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(corpora)
def test_characters_hold_any_text(texts: list[str]) -> None:
    if any(texts):
        tokenizer = train("characters", texts)
        assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
        assert all(
            UNK_ID not in tokenizer.encode(text) and not tokenizer.find_unknown(text) for text in texts
        )


@pytest.mark.parametrize("type", ["bpe", "unigram", "words"])
@settings(max_examples=200, deadline=None)
@given(texts=corpora, is_normalized=st.booleans(), num_pieces=st.integers(0, 20))
def test_a_text_comes_back_or_is_refused(
    type: TokenizerType, texts: list[str], is_normalized: bool, num_pieces: int
) -> None:
    if is_normalized:
        texts = [normalize_for_training(text, TextConfig()) for text in texts]
    vocab_size = len(SPECIAL_TOKENS) + len({" ", *"".join(texts)}) + num_pieces
    try:
        tokenizer = train(type, texts, None if type == "words" else vocab_size)
    except UserError as error:
        # Of normalised texts, only those with signs that sentencepiece needs for itself may be refused.
        reason = r"these texts allow only|all of them are empty|reserved|U\+FFFF"
        assert not is_normalized or re.search(reason, str(error))
        return
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    assert all(UNK_ID not in tokenizer.encode(text) and not tokenizer.find_unknown(text) for text in texts)


@pytest.mark.parametrize("type", PIECE_TYPES)
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text("aabc ", min_size=1, max_size=25), min_size=1, max_size=6))
def test_the_range_in_the_error_is_right(type: TokenizerType, texts: list[str]) -> None:
    if not "".join(texts).strip():
        return
    smallest = len(SPECIAL_TOKENS) + len({" ", *"".join(texts)})
    with pytest.raises(
        UserError, match=rf"vocab_size = 1000 with type = {type}: .* {smallest} to \d+"
    ) as raised:
        train(type, texts, 1000)
    largest = int(re.findall(r" to (\d+)", str(raised.value))[0])
    for vocab_size in {smallest, largest}:
        assert len(train(type, texts, vocab_size)) == vocab_size
    with pytest.raises(UserError, match=f"allow only {smallest} to {largest}"):
        train(type, texts, largest + 1)
    if smallest > 6:
        with pytest.raises(UserError, match=f"vocab_size = {smallest - 1} .*expected at least {smallest}"):
            train(type, texts, smallest - 1)


# --- texts that are refused, and the rule that mends them ---------------------------------------

REFUSED: list[tuple[TokenizerType, str, Rule]] = [
    ("words", "a  b", "collapse_spaces"),
    ("words", " a", "collapse_spaces"),
    ("words", "a ", "collapse_spaces"),
    ("words", "a\tb", "collapse_spaces"),
    ("words", "a\u00a0b", "collapse_spaces"),
    ("words", "a <unk> b", "strip_brackets"),
    ("words", "<eos>", "strip_brackets"),
    ("bpe", "a\nb", "collapse_spaces"),
    ("unigram", "a\x1fb", "collapse_spaces"),
    ("bpe", "a\0b", "strip_invisible"),
    ("unigram", "a▁b", "strip_symbols"),
    ("bpe", "a▅b", "strip_symbols"),
    ("unigram", "a<unk>b", "strip_brackets"),
    ("bpe", "a<blank>b", "strip_brackets"),
]


@pytest.mark.parametrize(("type", "text", "rule"), REFUSED)
def test_refused_text_is_named_with_the_rule_that_mends_it(
    type: TokenizerType, text: str, rule: Rule
) -> None:
    with pytest.raises(UserError, match=rf"text 2, character \d+, near '.*': .*{rule}"):
        train(type, ["x y", text])
    rules: list[Rule] = [rule] if type != "words" or rule == "collapse_spaces" else [rule, "collapse_spaces"]
    mended = normalize(text, rules)
    tokenizer = train(type, ["x y", mended])
    assert tokenizer.decode(tokenizer.encode(mended)) == mended


@pytest.mark.parametrize("type", TYPES)
def test_lone_surrogate_is_refused(type: TokenizerType) -> None:
    with pytest.raises(UserError, match=r"text 2, character 2, near .*half of a surrogate pair"):
        train(type, ["a b", "a\ud800"])


@pytest.mark.parametrize("type", PIECE_TYPES)
def test_a_code_that_is_no_character_is_refused(type: TokenizerType) -> None:
    with pytest.raises(UserError, match=r"text 1, character 2, near .*U\+FFFF, which is not a character"):
        train(type, ["a\uffff"])


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_no_text_is_refused(type: TokenizerType, texts: list[str]) -> None:
    with pytest.raises(UserError, match="learns from texts, but there are none"):
        train(type, texts)


# --- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("type", TYPES)
def test_training_is_deterministic_and_takes_an_iterator(type: TokenizerType, tmp_path: Path) -> None:
    texts = random_words(4)
    config = TokenizerConfig(type=type, vocab_size=100 if type in PIECE_TYPES else None)
    Tokenizer.train(config, texts).save(tmp_path / "one.json")
    Tokenizer.train(config, (text for text in texts)).save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("error", [UserError("manifest.jsonl: line 7"), KeyboardInterrupt()])
def test_an_error_of_the_texts_comes_through(type: TokenizerType, error: BaseException) -> None:
    def texts() -> Iterator[str]:
        yield "a b"
        raise error

    config = TokenizerConfig(type=type, vocab_size=20 if type in PIECE_TYPES else None)
    with pytest.raises(BaseException) as raised:
        Tokenizer.train(config, texts())
    assert raised.value is error


@pytest.mark.parametrize("type", PIECE_TYPES)
def test_no_text_is_too_long_and_no_character_too_rare(type: TokenizerType) -> None:
    texts = [
        "ab " * 3_000 + "ω",
        *["ab ba"] * 20_000,
        "ж",
    ]  # its own limits: 4,192 bytes; 99.95 % of the characters
    tokenizer = train(type, texts)
    assert not tokenizer.find_unknown("".join(texts))
    assert tokenizer.decode(tokenizer.encode(texts[0])) == texts[0]


@pytest.mark.parametrize("type", PIECE_TYPES)
def test_sentencepiece_prints_nothing(type: TokenizerType) -> None:
    # In a process of its own: the level of its log is global.
    program = f"""
from asr.tokenizer import SPECIAL_TOKENS, Tokenizer, TokenizerConfig
for vocab_size in (15, 1000):
    try:
        Tokenizer.train(TokenizerConfig(type={type!r}, vocab_size=vocab_size), ["the cat sat"] * 9)
        Tokenizer({type!r}, SPECIAL_TOKENS, b"nonsense")
    except ValueError:
        print("refused")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("refused\nrefused\n", "")


# --- what the vocabulary does not hold ----------------------------------------------------------


@pytest.mark.parametrize("type", ["characters", "bpe", "unigram"])
@pytest.mark.parametrize(
    ("text", "shown", "unknown"),
    [
        ("the zoo", "the ⁇oo", ["z"]),
        ("zzz", "⁇⁇⁇", ["z"]),
        ("q cat zq", "⁇ cat ⁇⁇", ["q", "z"]),
        ("a▁cat", "a⁇cat", ["▁"]),
        ("a\ud800\uffff\0", "a⁇⁇⁇", ["\ud800", "\uffff", "\0"]),
        ("a\tcat", "a⁇cat", ["\t"]),
        ("Ａ", "⁇", ["Ａ"]),
        (" a  cat ", " a  cat ", []),
        ("", "", []),
    ],
)
def test_unknown_characters(type: TokenizerType, text: str, shown: str, unknown: list[str]) -> None:
    tokenizer = train(type, TEXTS)
    assert tokenizer.find_unknown(text) == unknown
    assert tokenizer.encode(text).count(UNK_ID) == shown.count(UNKNOWN_MARK)
    assert tokenizer.decode(tokenizer.encode(text)) == shown


def test_unknown_words() -> None:
    tokenizer = train("words", TEXTS)
    assert tokenizer.find_unknown("the bird and the bird <pad>") == ["bird", "and", "<pad>"]
    assert tokenizer.decode(tokenizer.encode("the bird sat")) == "the ⁇ sat"


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("type: bpe", "type = bpe needs vocab_size, for example vocab_size: 500"),
        ("type: unigram", "type = unigram needs vocab_size"),
        ("type: characters\nvocab_size: 30", "type = characters takes no vocab_size; remove vocab_size"),
        ("vocab_size: 30", "type = characters takes no vocab_size"),
        ("type: bpe\nvocab_size: 5", "run.yaml:2: vocab_size = 5: expected greater than 5"),
        (
            "type: syllables",
            "type = 'syllables': expected 'characters', 'bpe', 'unigram', 'words', 'labels' or 'whisper'",
        ),
    ],
)
def test_wrong_settings(yaml: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml)
    with pytest.raises(UserError) as raised:
        load_config(TokenizerConfig, path)
    assert message in str(raised.value)


# --- one file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("type", TYPES)
def test_load_returns_what_was_saved(type: TokenizerType, tmp_path: Path) -> None:
    tokenizer = train(type, [*TEXTS, 'наш ส์ 👍 \\ " \u200b'])
    path = tmp_path / "new folder" / "tokenizer.json"
    tokenizer.save(path)
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded == tokenizer
    assert loaded.encode("the cat") == tokenizer.encode("the cat")
    assert os.listdir(path.parent) == ["tokenizer.json"]


@pytest.mark.parametrize("type", TYPES)
def test_copies_work_in_other_processes(type: TokenizerType) -> None:
    tokenizer = train(type, TEXTS)
    for other in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert other == tokenizer
        assert other.decode(other.encode("the cat")) == "the cat"


def test_tokenizers_differ_by_type_and_tokens() -> None:
    assert len({repr(train(type, TEXTS)) for type in TYPES}) == len(TYPES)
    assert train("characters", ["ab"]) == train("characters", ["ab"])
    assert train("characters", ["ab"]) != train("characters", ["abc"])
    assert train("characters", ["a"]) != train("words", ["a"])
    assert train("bpe", TEXTS, 25) != train("unigram", TEXTS, 19)


@pytest.mark.parametrize("where", ["folder", "file/tokenizer.json"])
def test_save_where_it_cannot(where: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"{where}: (not a regular file|cannot write the file)"):
        train("words", TEXTS).save(tmp_path / where)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    train("words", TEXTS).save(path)
    before = path.read_bytes()

    def interrupt(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train("characters", TEXTS).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["tokenizer.json"]


def write_record(path: Path, type: TokenizerType, changes: dict[str, Any]) -> None:
    """A saved tokenizer with some keys changed; those that become `...` are left out."""
    train(type, TEXTS).save(path)
    record = json.loads(path.read_text(encoding="utf-8")) | changes
    record = {key: value for key, value in record.items() if value is not ...}
    path.write_text(json.dumps(record), encoding="utf-8")


def as_model(content: bytes) -> dict[str, str]:
    return {"model": base64.b64encode(content).decode(), "model_sha256": hashlib.sha256(content).hexdigest()}


SPECIAL = list(SPECIAL_TOKENS)


@pytest.mark.parametrize(
    ("type", "changes", "message"),
    [
        ("words", {"format": "other"}, "format: Input should be 'asr tokenizer'"),
        ("words", {"format": ...}, "format: Field required"),
        ("words", {"version": 2, "news": 1}, "version 2 of the format, but this program knows only 1; update it"),
        ("words", {"version": True}, "version: Input should be a valid integer"),
        ("words", {"version": 0}, "version: Input should be greater"),
        ("words", {"type": "syllables"}, "type: Input should be"),
        ("words", {"type": ...}, "type: Field required"),
        ("words", {"news": 1}, "news: Extra inputs are not permitted"),
        ("words", {"tokens": "abc"}, "tokens: Input should be a valid array"),
        ("words", {"tokens": [*SPECIAL, 1]}, "tokens.5: Input should be a valid string"),
        ("words", {"tokens": ["a", "b"]}, "the first tokens must be <blank>, <pad>"),
        ("words", {"tokens": [*SPECIAL[::-1], "a"]}, "the first tokens must be <blank>, <pad>"),
        ("words", {"tokens": [*SPECIAL, "a", "a"]}, "token 'a' is there twice"),
        ("words", {"tokens": [*SPECIAL, "<pad>"]}, "token '<pad>' is there twice"),
        ("words", {"tokens": [*SPECIAL, "a b"]}, "'a b' cannot be a token of type words"),
        ("words", {"tokens": [*SPECIAL, ""]}, "'' cannot be a token of type words"),
        ("characters", {"tokens": [*SPECIAL, "ab"]}, "'ab' cannot be a token of type characters"),
        ("characters", {"tokens": [*SPECIAL, "\ud800"]}, "Invalid JSON"),
        ("characters", as_model(b"abc"), "type characters has no model"),
        ("characters", {"model": "YWJj"}, "model differs from model_sha256"),
        ("bpe", {"model": "?"}, "model is not base64"),
        ("bpe", {"model": "é"}, "model is not base64"),
        ("bpe", {"model": 1}, "model: Input should be a valid string"),
        ("bpe", {"model": "YWJj"}, "model differs from model_sha256"),
        ("bpe", {"model": ..., "model_sha256": ...}, "the sentencepiece model has 0 bytes"),
        ("bpe", as_model(b"abc"), "sentencepiece refuses its model"),
        ("bpe", as_model(b"a" * 5000), "the sentencepiece model has 5,000 bytes; expected 1 to"),
        ("unigram", as_model(train("unigram", ["ab"]).model), "the pieces of the sentencepiece model are not"),
        ("unigram", {"tokens": [*SPECIAL, "a", "b"]}, "the pieces of the sentencepiece model are not"),
    ],
)  # fmt: skip
def test_load_refuses_records(
    type: TokenizerType, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    write_record(path, type, changes)
    with pytest.raises(UserError) as raised:
        Tokenizer.load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"a"',
        b"\xff\xfe",
        b"\x00" * 100,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{}",
    ],
    ids=lambda content: ascii(content[:8]),
)
def test_load_refuses_what_is_no_record(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(
        UserError, match=r"tokenizer.json: not a tokenizer as `asr tokenizer` writes it \(.{5,200}\)"
    ):
        Tokenizer.load(path)


def test_huge_missing_and_special_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"none.json: cannot read this tokenizer \(No such file"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(UserError, match="not a file"):
        Tokenizer.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a file"):
        Tokenizer.load(tmp_path / "pipe")
    train("words", TEXTS).save(tmp_path / "tokenizer.json")
    monkeypatch.setattr(tokenizer_module, "MAX_FILE_BYTES", 100)
    with pytest.raises(UserError, match="over 100 bytes"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="a tokenizer of over 100 bytes; give a lower vocab_size"):
        train("words", TEXTS).save(tmp_path / "other.json")


def test_load_refuses_a_model_that_rewrites_texts(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type="bpe", vocab_size=20, minloglevel=2
    )  # with the table of NFKC
    write_record(tmp_path / "tokenizer.json", "bpe", as_model(model.getvalue()))
    with pytest.raises(UserError, match=r"the sentencepiece model has .* bytes; expected 1 to"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("type", PIECE_TYPES)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_models_are_refused(type: TokenizerType, data: st.DataObject) -> None:
    tokenizer = PIECES[type]
    model = bytearray(tokenizer.model)
    if data.draw(st.booleans()):
        del model[data.draw(st.integers(0, len(model) - 1)) :]
    for position in data.draw(st.lists(st.integers(0, max(0, len(model) - 1)), max_size=4)):
        if model:
            model[position] ^= 1 << data.draw(st.integers(0, 7))
    # The checksum keeps accidents away from sentencepiece; here the damage comes with a checksum of its own.
    try:
        damaged = Tokenizer(type, tokenizer.tokens, bytes(model))
    except UserError:
        return
    assert damaged.tokens == tokenizer.tokens
    assert all(0 <= id < len(damaged) for id in damaged.encode("abc nop xyz"))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_or_sound(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    PIECES["bpe"].save(path)
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    content[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    try:
        loaded = Tokenizer.load(path)
    except UserError:
        return
    assert loaded == PIECES["bpe"]  # only white space, or an escape for the same character


def test_import_is_light() -> None:
    program = (
        "import sys, asr.tokenizer, asr.text; print({'torch', 'sentencepiece', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_long_text() -> None:
    # No clock: over 10 million characters a second on one core, and minutes if anything were quadratic.
    text = "the cat sat on the mat " * 20_000
    for type in TYPES:
        tokenizer = train(type, TEXTS)
        assert tokenizer.decode(tokenizer.encode(text.strip())) == text.strip()
