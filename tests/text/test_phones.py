"""Words as phones and back, dictionaries of others, and what a search makes of them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asr.decoding.beam import score_texts
from asr.decoding.word_spans import split_words
from asr.errors import UserError
from asr.language_models.ngram import WordNgramModel, estimate_ngrams
from asr.text.tokenizer import (
    EOS_ID,
    SOS_ID,
    UNK_ID,
    UNKNOWN_MARK,
    Tokenizer,
    TokenizerConfig,
    compute_fingerprint,
    read_dictionary,
)

DIGITS = """ONE W AH1 N
WON W AH1 N
TWO T UW1
TO T UW1
TO(2) T AH0
TOO T UW1
FOUR F AO1 R
TOAST T OW S T
"""
TEXTS = ["ONE TWO TO TWO", "FOUR TO TWO ONE", "TWO TO TOO WON"]


def write(folder: Path, content: str = DIGITS) -> TokenizerConfig:
    path = folder / "words.dict"
    path.write_text(content, encoding="utf-8")
    return TokenizerConfig(type="phones", lexicon=str(path))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.train(write(tmp_path_factory.mktemp("digits")), TEXTS)


def spell(tokenizer: Tokenizer, text: str) -> str:
    return "|".join(tokenizer.tokens[id] for id in tokenizer.encode(text))


def test_words_that_sound_alike_differ_in_a_mark_the_most_frequent_has_none(digits: Tokenizer) -> None:
    assert spell(digits, "ONE TWO TO TOO") == "W|AH|N| |T|UW| |T|UW|#1| |T|UW|#2"
    assert spell(digits, "WON FOUR") == "W|AH|N|#1| |F|AO|R"
    assert digits.tokens[5:8] == (" ", "T", "UW"), "the space, then the most frequent"


PHONES = st.lists(st.sampled_from(["AA", "B", "k", "ŋ", "a1"]), min_size=1, max_size=3)
NAMES = st.text("aABü'-", min_size=1, max_size=3)


@settings(max_examples=40)
@given(st.dictionaries(NAMES, PHONES, min_size=1, max_size=12), st.data())
def test_each_text_of_the_dictionarys_words_comes_back(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, list[str]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("phones")
    config = write(folder, "".join(f"{word}\t{' '.join(phones)}\n" for word, phones in entries.items()))
    texts = data.draw(
        st.lists(st.lists(st.sampled_from(sorted(entries)), min_size=1).map(" ".join), min_size=1)
    )
    tokenizer = Tokenizer.train(config, texts)
    tokenizer.save(folder / "tokenizer.json")
    loaded = Tokenizer.load(folder / "tokenizer.json")
    assert loaded == tokenizer
    for text in texts:
        ids = loaded.encode(text)
        assert UNK_ID not in ids and loaded.decode(ids) == text
        assert not loaded.find_unknown(text)
        spans = split_words(loaded, ids)
        assert [span.text for span in spans] == text.split()
        assert [ids[span.first : span.past] for span in spans] == [
            loaded.encode(word) for word in text.split()
        ]
    spelled = {tuple(loaded.encode(word)) for text in texts for word in text.split()}
    assert len(spelled) == len({word for text in texts for word in text.split()})


def test_what_is_no_word(digits: Tokenizer) -> None:
    ids = [digits.tokens.index(phone) for phone in ("N", "AO", " ", "T", "UW", " ", " ", "#1")]
    assert digits.decode(ids) == "/N-AO/ TWO /#1/"
    assert digits.decode([UNK_ID]) == UNKNOWN_MARK
    assert digits.encode("FIVE TWO")[0] == UNK_ID, "no pronunciation"
    assert UNK_ID in digits.encode("TOAST"), "phones that no text of the training has"
    assert digits.find_unknown("FIVE TWO TOAST FIVE") == ["FIVE", "TOAST"]
    assert digits.count_unknown(["FIVE TWO"]) == (1, 4)


def test_dictionaries_of_cmu_and_kaldi(tmp_path: Path) -> None:
    cmu = ";;; CMUdict\nA  AH0\nA(2)  EY1\nTWO  T UW1  # digit\n\nDON'T  D OW1 N T\n"
    assert read_dictionary(str(write(tmp_path, cmu).lexicon)) == {
        "A": ("AH",),
        "TWO": ("T", "UW"),
        "DON'T": ("D", "OW", "N", "T"),
    }
    kaldi = "\ufeff你好\tn i2 h ao3\r\nab AH0_B\n<unk> spn\nTWO T UW\nTWO T AH\n"
    assert read_dictionary(str(write(tmp_path, kaldi).lexicon)) == {
        "你好": ("n", "i2", "h", "ao3"),
        "ab": ("AH0_B",),
        "<unk>": ("spn",),
        "TWO": ("T", "UW"),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (";;; nothing\n", "words.dict: no pronunciations"),
        ("ONE W AH N\nTWO\n", "words.dict, line 2: 'TWO'.* lists of words are for --words"),
        ("ONE 0.5 W AH N\n", "line 1: 'ONE 0.5 W AH N'"),
        ("ONE W <eos>\n", "without <, >, # and / in phones"),
        ("ONE #1\n", "line 1"),
        ("one W AH N\n", "no pronunciation of 6 words of the training texts, 'FOUR'"),
    ],
)
def test_dictionaries_that_do_not_do(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tokenizer.train(write(tmp_path, content), TEXTS)


def test_files_that_are_no_dictionaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latin").write_bytes("ÜBER y b ER".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin: not UTF-8 \(byte 1\)"):
        read_dictionary(str(tmp_path / "latin"))
    monkeypatch.setattr("asr.text.tokenizer.MAX_DICTIONARY_BYTES", 10)
    with pytest.raises(UserError, match="over 10 bytes"):
        Tokenizer.train(write(tmp_path), TEXTS)


def test_another_dictionary_is_another_tokenizer(tmp_path: Path) -> None:
    config = write(tmp_path)
    tokenizer = Tokenizer.train(config, TEXTS)
    assert tokenizer.fingerprint == compute_fingerprint(config, TEXTS)
    write(tmp_path, DIGITS.replace("F AO1 R", "F OW1 R"))
    assert tokenizer.fingerprint != compute_fingerprint(config, TEXTS)


def test_a_file_whose_dictionary_was_cut_out_is_refused(digits: Tokenizer) -> None:
    with pytest.raises(UserError, match="no pronunciations"):
        Tokenizer("phones", digits.tokens)
    with pytest.raises(UserError, match="has a space among its tokens"):
        Tokenizer("phones", digits.tokens[:5] + digits.tokens[6:], digits.model)


def test_ngrams_tell_words_apart_that_sound_alike(digits: Tokenizer) -> None:
    """The probability of a text is that of its words; what unknown words get is beyond the tolerance."""
    arpa = estimate_ngrams([text.split() for text in TEXTS * 50], 2)
    model = WordNgramModel(arpa, digits)

    def score(text: str) -> float:
        ids = torch.tensor([digits.encode(text)])
        return float(score_texts(model, ids, torch.tensor([ids.size(1)]), SOS_ID, EOS_ID))

    for text in ("ONE TWO TO TWO", "FOUR TO TWO ONE", "TWO TO TOO WON"):
        words = ["<s>", *text.split(), "</s>"]
        expected = sum(arpa.orders[1][pair][0] for pair in itertools.pairwise(words)) * math.log(10)
        assert score(text) == pytest.approx(expected, abs=0.02)
    assert score("FOUR TO TWO ONE") > score("FOUR TOO TWO ONE") + 1
