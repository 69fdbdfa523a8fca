"""asr/text/tokenizer.py: how texts fall into units of each type, what training refuses, and what is unknown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings, strategies as st
from tokenizer_examples import PIECE_TYPES, TEXTS, TYPES, random_words, train

from asr.config import load_config
from asr.errors import UserError
from asr.text.normalization import Rule, TextConfig, normalize
from asr.text.tokenizer import SPECIAL_TOKENS, UNK_ID, Tokenizer, TokenizerConfig, TokenizerType


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
    assert tokenizer.find_unknown("a bird and a bird <pad>") == ["bird", "and", "<pad>"]


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


# Letters that meet often, so that there are pieces to learn; then everything that Unicode has.
characters = st.one_of(
    st.sampled_from("aab  "),
    st.sampled_from("\t\n\r\0\x1f\x85▁▅<>⁇\u3000\u00a0\u2028\ufeff\u200b\uffff\ufffd👩\u200d\u0301ก\u0e33"),
    st.characters(exclude_categories=["Cs"]),
)
corpora = st.lists(st.text(characters, max_size=25), min_size=1, max_size=6)


@pytest.mark.parametrize("type", TYPES)
@settings(max_examples=100)
@given(texts=corpora, is_normalized=st.booleans(), num_pieces=st.integers(0, 20))
def test_a_text_comes_back_or_is_refused(
    type: TokenizerType, texts: list[str], is_normalized: bool, num_pieces: int
) -> None:
    if is_normalized:
        texts = [normalize(text, TextConfig().training) for text in texts]
    vocab_size = len(SPECIAL_TOKENS) + len({" ", *"".join(texts)}) + num_pieces
    try:
        tokenizer = train(type, texts, vocab_size if type in PIECE_TYPES else None)
    except UserError as error:
        assert type != "characters" or not any(texts)
        # Of normalized texts, only those with signs that sentencepiece needs for itself may be refused.
        reason = r"these texts allow|all of them are empty|reserved|U\+FFFF"
        assert not is_normalized or re.search(reason, str(error))
        return
    if type == "words":
        texts = [" ".join(text.split()) for text in texts]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    assert all(UNK_ID not in tokenizer.encode(text) and not tokenizer.find_unknown(text) for text in texts)


@pytest.mark.parametrize("type", PIECE_TYPES)
def test_the_range_in_the_error_is_right(type: TokenizerType) -> None:
    texts = ["abc aab", "caab b"]
    smallest = len(SPECIAL_TOKENS) + 4
    with pytest.raises(UserError, match=rf"vocab_size = 1000: these texts allow {smallest} to \d+") as raised:
        train(type, texts, 1000)
    largest = int(re.findall(r" to (\d+)", str(raised.value))[0])
    for vocab_size in (smallest, largest):
        assert len(train(type, texts, vocab_size)) == vocab_size
    for vocab_size in (smallest - 1, largest + 1):
        with pytest.raises(UserError, match=f"vocab_size = {vocab_size}.* {smallest}"):
            train(type, texts, vocab_size)


REFUSED: list[tuple[TokenizerType, str, Rule]] = [
    *(("words", text, "strip_brackets") for text in ("a <unk> b", "<eos>")),
    *(("unigram", text, "collapse_spaces") for text in ("a\nb", "a\x1fb")),
    ("bpe", "a\0b", "strip_invisible"),
    *(("bpe", text, "strip_symbols") for text in ("a▁b", "a▅b")),
    *(("unigram", text, "strip_brackets") for text in ("a<unk>b", "a<blank>b")),
]


@pytest.mark.parametrize(("type", "text", "rule"), REFUSED)
def test_refused_text_is_named_with_the_rule_that_mends_it(
    type: TokenizerType, text: str, rule: Rule
) -> None:
    with pytest.raises(UserError, match=rf"text 2, character \d+, near '.*': .*{rule}"):
        train(type, ["x y", text])
    rules: list[Rule] = [rule] if type != "words" else [rule, "collapse_spaces"]
    repaired = normalize(text, rules)
    tokenizer = train(type, ["x y", repaired])
    assert tokenizer.decode(tokenizer.encode(repaired)) == repaired


def test_what_is_no_character_is_refused() -> None:
    for type in PIECE_TYPES:
        with pytest.raises(UserError, match=r"text 1, character 2, near .*U\+FFFF"):
            train(type, ["a\uffff"])


@pytest.mark.parametrize("type", TYPES)
def test_no_text_is_refused(type: TokenizerType) -> None:
    for texts in ([], ["", ""]):
        with pytest.raises(UserError, match="texts, but there are none"):
            train(type, texts)


@pytest.mark.parametrize("type", TYPES)
def test_training_is_deterministic_and_takes_an_iterator(type: TokenizerType, tmp_path: Path) -> None:
    texts = random_words(4)
    config = TokenizerConfig(type=type, vocab_size=100 if type in PIECE_TYPES else None)
    Tokenizer.train(config, texts).save(tmp_path / "one.json")
    Tokenizer.train(config, (text for text in texts)).save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


@pytest.mark.parametrize("type", PIECE_TYPES)
def test_no_text_is_too_long_and_no_character_too_rare(type: TokenizerType) -> None:
    # Limits of sentencepiece itself: 4,192 bytes, 99.95 % of the characters.
    texts = ["ab " * 3_000 + "ω", *["ab ba"] * 20_000, "ж"]
    tokenizer = train(type, texts)
    assert not tokenizer.find_unknown("".join(texts))
    assert tokenizer.decode(tokenizer.encode(texts[0])) == texts[0]


@pytest.mark.parametrize("type", ["characters", "bpe", "unigram"])
def test_unknown_characters(type: TokenizerType) -> None:
    tokenizer = train(type, TEXTS)
    for text, shown, unknown in (
        ("zzz", "⁇⁇⁇", ["z"]),
        ("q cat zq", "⁇ cat ⁇⁇", ["q", "z"]),
        ("a▁cat", "a⁇cat", ["▁"]),
        ("a\ud800\uffff\0", "a⁇⁇⁇", ["\ud800", "\uffff", "\0"]),
        ("a\tcat", "a⁇cat", ["\t"]),
        (" a  cat ", " a  cat ", []),
        ("", "", []),
    ):
        assert tokenizer.find_unknown(text) == unknown
        assert tokenizer.decode(tokenizer.encode(text)) == shown


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("type: bpe", "type = bpe needs vocab_size"),
        ("type: characters\nvocab_size: 30", "type = characters takes no vocab_size"),
        ("type: bpe\nvocab_size: 5", "run.yaml:2: vocab_size = 5: expected greater than 5"),
        ("type: syllables", "type = 'syllables': expected 'characters', 'bpe', 'unigram'"),
        ("type: phones", "type = phones needs lexicon"),
        ("lexicon: words.dict", "type = characters takes no lexicon"),
        ("pronunciations: words.dict", "unknown key pronunciations .*; it is now lexicon"),
    ],
)
def test_wrong_settings(yaml: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml)
    with pytest.raises(UserError, match=message):
        load_config(TokenizerConfig, path)
