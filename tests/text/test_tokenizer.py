"""asr/text/tokenizer.py: what a model may rely on for each type, and files that are not tokenizers."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings, strategies as st
from tokenizer_examples import PIECE_TYPES, TEXTS, TYPES, train, train_pieces

from asr.errors import UserError
from asr.text import tokenizer as tokenizer_module
from asr.text.tokenizer import (
    BLANK_ID,
    EOS_ID,
    PAD_ID,
    SOS_ID,
    SPECIAL_TOKENS,
    UNK_ID,
    UNKNOWN_MARK,
    Tokenizer,
    TokenizerType,
)


@pytest.mark.parametrize("type", TYPES)
def test_what_a_model_may_rely_on(type: TokenizerType) -> None:
    tokenizer = train(type, TEXTS)
    assert (BLANK_ID, PAD_ID, SOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3, 4)
    assert tokenizer.tokens[:5] == ("<blank>", "<pad>", "<sos>", "<eos>", "<unk>")
    assert len(tokenizer) == len(set(tokenizer.tokens))
    ids = tokenizer.encode("the cat")
    assert min(ids) > UNK_ID and min(tokenizer.encode(" ".join(SPECIAL_TOKENS))) >= UNK_ID
    assert tokenizer.decode([SOS_ID, BLANK_ID, *ids, PAD_ID, EOS_ID, PAD_ID]) == "the cat"
    assert tokenizer.decode(np.array(ids)) == "the cat"
    assert tokenizer.decode([UNK_ID]) == UNKNOWN_MARK == "⁇"
    with pytest.raises(UserError, match=f"token {len(tokenizer)}: expected 0 to {len(tokenizer) - 1}"):
        tokenizer.decode([*ids, len(tokenizer)])
    assert tokenizer.decode([]) == tokenizer.decode([BLANK_ID]) == ""


@pytest.mark.parametrize("type", TYPES)
def test_files_and_copies_are_equal(type: TokenizerType, tmp_path: Path) -> None:
    tokenizer = train(type, [*TEXTS, 'наш ส์ 👍 \\ " \u200b'])
    path = tmp_path / "new folder" / "tokenizer.json"
    tokenizer.save(path)
    tokenizer.save(path)
    assert os.listdir(path.parent) == ["tokenizer.json"]
    for other in (Tokenizer.load(path), pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert other == tokenizer and other.decode(other.encode("the cat")) == "the cat"


def test_the_tokenizer_of_a_family_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "find_families", list)
    with pytest.raises(UserError, match=r"tokenizer\.type = whisper: not to be had here"):
        Tokenizer("whisper", ("a",) * 9)


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
        ("words", {"format": "other"}, "format = 'other'"),
        ("words", {"format": ...}, "format is missing"),
        ("words", {"version": 2}, "version = 2"),
        ("words", {"type": "syllables"}, "type = 'syllables'"),
        ("words", {"news": 1}, "unknown key news"),
        ("words", {"tokens": "abc"}, "tokens = 'abc'"),
        ("words", {"tokens": [*SPECIAL, 1]}, "tokens.5 = 1"),
        ("words", {"tokens": [*SPECIAL[::-1], "a"]}, "the first tokens must be <blank>, <pad>"),
        ("words", {"tokens": [*SPECIAL, "<pad>"]}, "token '<pad>' is there twice"),
        ("characters", {"tokens": [*SPECIAL, "\ud800"]}, "Invalid JSON"),
        ("bpe", {"model": "?"}, "model"),
        ("bpe", {"model": "YWJj"}, "model differs from model_sha256"),
        ("bpe", {"model": ..., "model_sha256": ...}, "the sentencepiece model has 0 bytes"),
        ("bpe", as_model(b"abc"), "sentencepiece refuses its model"),
        ("bpe", as_model(b"a" * 5000), "the sentencepiece model has 5,000 bytes"),
        ("unigram", as_model(train("unigram", ["ab"]).model), "the pieces of the sentencepiece model are not"),
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


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b"\xff\xfe", b"\0" * 9, b"[" * 100_000, b"{}"])
def test_load_refuses_what_is_no_record(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer.json: not a tokenizer of `asr train`: .{5,300}$"):
        Tokenizer.load(path)


def test_huge_missing_and_special_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"none.json: cannot read the file"):
        Tokenizer.load(tmp_path / "none.json")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UserError, match="not a file"):
            Tokenizer.load(path)
    train("words", TEXTS).save(tmp_path / "tokenizer.json")
    monkeypatch.setattr(tokenizer_module, "MAX_FILE_BYTES", 100)
    with pytest.raises(UserError, match="over 100 bytes"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_load_refuses_a_model_that_rewrites_texts(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type="bpe", vocab_size=20, minloglevel=2
    )  # with the table of NFKC
    write_record(tmp_path / "tokenizer.json", "bpe", as_model(model.getvalue()))
    with pytest.raises(UserError, match=r"the sentencepiece model has .* bytes; expected 1 to"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("type", PIECE_TYPES)
@settings(max_examples=80)
@given(data=st.data())
def test_damaged_models_are_refused(type: TokenizerType, data: st.DataObject) -> None:
    tokenizer = train_pieces(type)
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


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_files_are_refused_or_sound(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    train_pieces("bpe").save(path)
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    content[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    try:
        loaded = Tokenizer.load(path)
    except UserError:
        return
    assert loaded == train_pieces("bpe")  # only white space, or an escape for the same character
