"""N-grams: estimates equal KenLM's lmplz, and scores equal a plain walk through the file."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding_examples import ctc_losses, search_beams
from hypothesis import given, strategies as st
from torch import Tensor

from asr.cli import main
from asr.decoding.beam import score_texts
from asr.decoding.hypothesis import DecodingConfig, FusionModel
from asr.errors import UserError
from asr.language_models import ngram
from asr.language_models.fusion import ShallowFusion
from asr.language_models.ngram import (
    NO_PROBABILITY,
    Arpa,
    Ngram,
    NgramModel,
    WordList,
    WordNgramModel,
    estimate_ngrams,
    read_arpa,
    read_word_list,
    token_vocabulary,
    write_arpa,
)
from asr.system.decoding_resources import DecodingResources, load_language_model
from asr.system.run_config import RunConfig
from asr.text.normalization import TextConfig
from asr.text.tokenizer import BLANK_ID, EOS_ID, PAD_ID, SOS_ID, Tokenizer, TokenizerConfig

FOUR = [text.split() for text in ("A AB", "AB", "BA AB", "A A")]


def make_sentences() -> list[list[str]]:
    """200 sentences of the words a to l, the first ones likelier, drawn with Park and Miller's generator."""
    number, sentences = 1, []
    for length in range(200):
        words = []
        for _ in range(length % 5 + 1):
            number = number * 16807 % 2147483647
            words.append("abcdefghijkl"[int(12 * (number / 2147483647) ** 2)])
        sentences.append(words)
    return sentences


# Printed by `lmplz -o 2 --discount_fallback` for FOUR; its discounts of order 1 are 0.2, 1.7 and 3.
LMPLZ_FOUR = {
    ("<unk>",): (-0.782516, 0), ("</s>",): (-0.69357497, 0), ("A",): (-0.69357497, -0.30103),
    ("AB",): (-0.782516, -0.30103), ("BA",): (-0.5767541, -0.30103), ("A", "</s>"): (-0.57200027, 0),
    ("AB", "</s>"): (-0.22094493, 0), ("<s>", "A"): (-0.45438367, 0), ("A", "A"): (-0.57200027, 0),
    ("<s>", "AB"): (-0.68298185, 0), ("A", "AB"): (-0.6035101, 0), ("BA", "AB"): (-0.23470409, 0),
    ("<s>", "BA"): (-0.5892228, 0),
}  # fmt: skip
# Some lines of `lmplz -o 3 --discount_fallback` for make_sentences(). Discounts of order 1 are fallbacks; of
# order 2 they are 0.471698, 1.24191, 1.61635, and of order 3 0.661808, 0.904594, 1.84184.
LMPLZ_MANY = {
    ("<unk>",): (-1.992814, 0), ("</s>",): (-1.0614344, 0), ("g",): (-1.0995787, -0.34161723),
    ("d",): (-1.0614344, -0.39599878), ("k",): (-1.1876793, -0.3140379), ("h",): (-1.1413988, -0.37957957),
    ("a", "</s>"): (-0.7096045, 0), ("j", "a"): (-0.72315043, -0.1792683), ("b", "f"): (-1.3462975, -0.1792683),
    ("<s>", "j"): (-1.3573247, -0.27921122), ("<s>", "a", "</s>"): (-0.5983799, 0), ("a", "d", "a"): (-0.48495507, 0),
    ("a", "a", "c"): (-1.319502, 0), ("f", "b", "i"): (-1.1258969, 0), ("c", "i", "h"): (-0.9365825, 0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("sentences", "expected", "counts"),
    [(FOUR, LMPLZ_FOUR, [6, 8]), (make_sentences(), LMPLZ_MANY, [15, 137, 345])],
)
def test_estimates_equal_those_of_lmplz(
    sentences: list[list[str]], expected: dict[Ngram, tuple[float, float]], counts: list[int]
) -> None:
    arpa = estimate_ngrams(sentences, order=len(counts))
    assert [len(order) for order in arpa.orders] == counts
    for words, (log_probability, back_off) in expected.items():
        ours = arpa.orders[len(words) - 1][words]
        assert ours == pytest.approx((log_probability, back_off), abs=3e-7), words


sentence_lists = st.lists(st.lists(st.sampled_from("xyz"), max_size=6), min_size=1, max_size=8)


@given(sentence_lists, st.integers(1, 4), st.lists(st.sampled_from("xyz"), max_size=4))
def test_what_may_follow_sums_to_one(sentences: list[list[str]], order: int, context: list[str]) -> None:
    vocabulary = ["<s>", "</s>", "<unk>", *"wxyz"]
    model = NgramModel(estimate_ngrams(sentences, order, list("wxyz")), vocabulary)
    state = model.start(1, torch.device("cpu"))
    for word in ["<s>", *context]:
        scores_RV = state.score(torch.tensor([vocabulary.index(word)]))
    assert float(scores_RV.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert float(scores_RV[0, 0]) == -math.inf, "a start is never said"


def walk(arpa: Arpa, words: Ngram) -> float:
    """log10 of the last word after those before, as the definition of ARPA has it."""
    words = words[-len(arpa.orders) :]
    entry = arpa.orders[len(words) - 1].get(words)
    if entry is not None:
        return entry[0]
    if len(words) == 1:
        return arpa.orders[0].get(("<unk>",), (NO_PROBABILITY, 0))[0]
    return arpa.orders[len(words) - 2].get(words[:-1], (0.0, 0.0))[1] + walk(arpa, words[1:])


def without_some(arpa: Arpa) -> Arpa:
    """As if pruned: every third n-gram of the highest order is gone."""
    kept = {words: v for index, (words, v) in enumerate(arpa.orders[-1].items()) if index % 3}
    return Arpa([*arpa.orders[:-1], kept])


@pytest.mark.parametrize("max_dense", [ngram.MAX_DENSE, 0])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_scores_equal_a_plain_walk(order: int, max_dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rows are reordered, as a beam does it; "w" is unknown to the file."""
    monkeypatch.setattr(ngram, "MAX_DENSE", max_dense)
    arpa = without_some(estimate_ngrams(make_sentences(), order))
    vocabulary = ["<s>", "</s>", "<unk>", *"abcdefghijklw"]
    state = NgramModel(arpa, vocabulary).start(5, torch.device("cpu"))
    random = torch.Generator().manual_seed(order)
    tokens_R = torch.zeros(5, dtype=torch.long)
    texts: list[Ngram] = [()] * 5
    for _ in range(12):
        scores_RV = state.score(tokens_R)
        texts = [(*text, vocabulary[token]) for text, token in zip(texts, tokens_R.tolist(), strict=True)]
        for text, scores_V in zip(texts, scores_RV, strict=True):
            expected = [walk(arpa, (*text, word)) * math.log(10) for word in vocabulary[1:]]
            assert scores_V[1:].tolist() == pytest.approx(expected, abs=1e-5)
        rows = torch.randint(5, (5,), generator=random)
        state.select(rows)
        texts = [texts[row] for row in rows]
        tokens_R = torch.randint(2, len(vocabulary), (5,), generator=random)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_text_is_as_likely_as_its_words(order: int) -> None:
    """And <unk> is spelled by one of 4 symbols at a time: A, B, the unknown token, or the end of the word."""
    tokenizer = Tokenizer.train(TokenizerConfig(), ["A B"])
    arpa = estimate_ngrams(FOUR, order)
    model = WordNgramModel(arpa, tokenizer)
    for text in ("A AB", "AB", "BA A AB BA", "B", "A ABBA AB", "BB B"):
        tokens = torch.tensor([tokenizer.encode(text)])
        ours = float(score_texts(model, tokens, torch.tensor([tokens.size(1)]), SOS_ID, EOS_ID))
        expected, history = 0.0, ("<s>",)
        for word in text.split():
            known = word if (word,) in arpa.orders[0] else "<unk>"
            unknown = 10 ** walk(arpa, (*history, "<unk>")) * 4.0 ** -(len(word) + 1)
            share = 10 ** walk(arpa, (*history, word)) if known == word else 0.0
            expected += math.log(share + unknown)
            history = (*history, known)
        expected += walk(arpa, (*history, "</s>")) * math.log(10)
        assert ours == pytest.approx(expected, rel=1e-4), text


@given(st.text(alphabet="AB ", max_size=8), st.integers(1, 3))
def test_characters_that_may_follow_sum_to_one(text: str, order: int) -> None:
    """After any text: with unknown words, double spaces, and reordered rows."""
    tokenizer = Tokenizer.train(TokenizerConfig(), ["A B"])
    state = WordNgramModel(estimate_ngrams(FOUR, order), tokenizer).start(2, torch.device("cpu"))
    for step, token in enumerate([SOS_ID, *tokenizer.encode(text)]):
        other = token if step == 0 else tokenizer.tokens.index("A")
        scores_RV = state.score(torch.tensor([other, token]))
        assert scores_RV.exp().sum(1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
        assert scores_RV.max() <= 0
        state.select(torch.tensor([1, 1]))


def test_words_as_characters_need_characters(tmp_path: Path) -> None:
    write_arpa(tmp_path / "words.arpa", estimate_ngrams(FOUR, 2))
    characters = Tokenizer.train(TokenizerConfig(), ["A B"])
    assert isinstance(load_language_model(tmp_path / "words.arpa", characters), WordNgramModel)
    write_arpa(tmp_path / "letters.arpa", estimate_ngrams([["A", "B"], ["B"]], 2))
    assert isinstance(load_language_model(tmp_path / "letters.arpa", characters), WordNgramModel), "no space"
    pieces = Tokenizer.train(TokenizerConfig(type="words"), ["X Y"])
    with pytest.raises(UserError, match="a tokenizer of characters or phones and a space, not words"):
        load_language_model(tmp_path / "words.arpa", pieces)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    arpa = estimate_ngrams([list("A B"), list("B\u00a0A")], 3)  # characters: a space, a no-break space
    write_arpa(tmp_path / "a.arpa", arpa)
    again = read_arpa(tmp_path / "a.arpa")
    assert [list(order) for order in again.orders] == [list(order) for order in arpa.orders]
    for ours, theirs in zip(arpa.orders, again.orders, strict=True):
        for words in ours:
            assert theirs[words] == pytest.approx(ours[words], abs=1e-6)


WHOLE = "\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\n-1\t<s>\t-0.5\n-1\t</s>\n-0.2 A -0.1\n\n\\2-grams:\n-0.3\tA </s>\n\n\\end\\\n"
DEFECTS = {
    "empty": ("", "complete"),
    "cut": (WHOLE[:-8], "complete"),
    "wrong count": (WHOLE.replace("ngram 1=3", "ngram 1=4"), "damaged"),
    "no number": (WHOLE.replace("-0.2", "x"), ":8: 'x A -0.1'"),
    "above one": (WHOLE.replace("-0.2", "0.2"), ":8: '0.2 A -0.1'"),
    "nan": (WHOLE.replace("-0.2", "nan"), ":8: 'nan A -0.1'"),
    "too many words": (WHOLE.replace("A </s>", "A A A </s>"), ":11"),
    "bad count": (WHOLE.replace("=3", "=many"), "ngram 1=1000"),
    "order left out": (WHOLE.replace("\\2-grams:", "\\3-grams:"), ":10"),
    "no beginning": (WHOLE.replace("A </s>", "B </s>"), "not its prefix, 'B'"),
    "words": (WHOLE.replace("A", "HELLO"), "tokenizer of characters or phones and a space"),
    "binary": (WHOLE.replace("A -0.1", "\udcff"), "KenLM's binary ones are not read"),
}
TOKENIZER = Tokenizer.train(TokenizerConfig(), ["AB"])


@pytest.mark.parametrize("name", DEFECTS)
def test_damage_is_said(name: str, tmp_path: Path) -> None:
    content, message = DEFECTS[name]
    (tmp_path / "lm.arpa").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_language_model(tmp_path / "lm.arpa", TOKENIZER)
    assert str(caught.value).count(str(tmp_path / "lm.arpa")) == 1


def test_a_file_scores_the_tokens_of_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(WHOLE)
    model = load_language_model(tmp_path / "lm.arpa", TOKENIZER)
    a_id = TOKENIZER.tokens.index("A")
    scores = model.start(1, torch.device("cpu")).score(torch.tensor([SOS_ID]))[0]
    log10 = math.log(10)
    assert float(scores[a_id]) == pytest.approx((-0.5 - 0.2) * log10), "backs off from the start"
    total = score_texts(model, torch.tensor([[a_id]]), torch.tensor([1]), SOS_ID, EOS_ID)
    assert float(total) == pytest.approx((-0.5 - 0.2 - 0.3) * log10)
    assert scores[[BLANK_ID, PAD_ID, SOS_ID]].tolist() == [-math.inf] * 3
    assert float(scores[TOKENIZER.tokens.index("B")]) == -math.inf, "neither B nor <unk> is in the file"
    assert token_vocabulary(TOKENIZER.tokens)[2:5] == ["<s>", "</s>", "<unk>"]


@pytest.mark.parametrize(("units", "order"), [("tokens", 4), ("words", 2)])
def test_command(
    tiny_run: Callable[..., RunConfig],
    tmp_path: Path,
    units: str,
    order: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, output = tiny_run(), tmp_path / "new" / "lm.arpa"

    def run(*arguments: str) -> list[float]:
        assert main(["ngram", str(tmp_path / "run.yaml"), "--unit", units, *arguments]) == 0
        shown = capsys.readouterr().out
        found = re.search(r"perplexity ([\d.]+) a .*, ([\d.]+) a word; (\d+) unknown", shown)
        assert found
        return [float(number) for number in found.groups()]

    result, arpa = run(f"--order={order}", f"--output={output}"), read_arpa(output)
    assert len(arpa.orders) == order
    records = [json.loads(line) for line in Path(config.data.dev).read_text().splitlines()]
    texts = [record["text"] for record in records]
    rows = [("<s>", *(list(text) if units == "tokens" else text.split()), "</s>") for text in texts]
    total = sum(walk(arpa, row[: end + 1]) for row in rows for end in range(1, len(row))) * math.log(10)
    num_tokens, num_words = sum(len(row) - 1 for row in rows), sum(len(text.split()) + 1 for text in texts)
    expected = math.exp(-total / num_tokens), math.exp(-total / num_words), 0
    assert result == pytest.approx(expected, abs=0.01)
    records[0]["text"] += " Q" if units == "tokens" else " QQ"
    dev = tmp_path / "dev.jsonl"
    dev.write_text("".join(json.dumps(record | {"audio": "a.wav"}) + "\n" for record in records))
    assert run(f"data.dev={dev}")[2] == 1
    if units == "tokens":
        load_language_model(output, Tokenizer.load(tmp_path / "run" / "tokenizer.json"))


CHARACTERS = Tokenizer.train(TokenizerConfig(), ["A B"])


class Talker(torch.nn.Module):
    """A CTC head of given scores and no decoder, as far as a beam asks."""

    decoder = None
    window_width = None

    def __init__(self, scores_TV: Tensor) -> None:
        super().__init__()
        self.scores_BTV = scores_TV[None]

    def ctc_log_probabilities(self, encoded_BTD: Tensor) -> Tensor:
        return self.scores_BTV

    def limit_tokens(self, lengths_B: Tensor) -> Tensor:
        return lengths_B


def accepts(lexicon: WordList, tokens: list[int]) -> bool:
    score = score_texts(lexicon, torch.tensor([tokens]).long(), torch.tensor([len(tokens)]), SOS_ID, EOS_ID)
    assert score.item() in (0.0, -math.inf)
    return score.item() == 0.0


@given(st.lists(st.sampled_from("AB "), max_size=9).map("".join))
def test_texts_of_known_words_with_single_spaces_and_no_others(text: str) -> None:
    words = {"A", "AB", "BBA"}
    is_known = text == "" or all(word in words for word in text.split(" "))
    assert accepts(WordList(CHARACTERS, words), CHARACTERS.encode(text)) == is_known


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_a_wide_beam_finds_the_likeliest_text_of_known_words(seed: int, weight: float) -> None:
    random = torch.Generator().manual_seed(seed)
    scores_TV = torch.randn(6, len(CHARACTERS), generator=random).log_softmax(-1)
    words = ["A", "AB", "BBA"]
    texts = [" ".join(text) for count in range(4) for text in itertools.product(words, repeat=count)]
    short = [text for text in texts if len(text) <= 6]
    losses = ctc_losses(scores_TV, [tuple(CHARACTERS.encode(text)) for text in short])
    expected = {text: -loss for text, loss in zip(short, losses, strict=True)}
    lexicon = WordList(CHARACTERS, words)
    fusion = lexicon
    if weight:
        arpa = estimate_ngrams([["A", "AB"], ["AB"], ["BBA", "AB"], ["A", "A"]], 2, [])
        ngrams = WordNgramModel(arpa, CHARACTERS)
        fusion = ShallowFusion([ngrams, lexicon])
        for text in expected:
            tokens_RU = torch.tensor([CHARACTERS.encode(text)]).long()
            lengths_R = torch.tensor([tokens_RU.size(1)])
            expected[text] += weight * score_texts(ngrams, tokens_RU, lengths_R, SOS_ID, EOS_ID).item()
    config = DecodingConfig(method="ctc_beam", beam=400, nbest=3, language_model_weight=weight or 1.0)
    arguments = (torch.zeros(1, 6, 1), torch.tensor([6]), config, fusion)
    (found,) = search_beams(Talker(scores_TV), *arguments, ctc_weight=1.0)
    best = sorted(expected, key=lambda text: -expected[text])[:3]
    assert [CHARACTERS.decode(hypothesis.tokens) for hypothesis in found] == best
    assert [hypothesis.score for hypothesis in found] == pytest.approx(
        [expected[text] for text in best], abs=1e-4
    )


def test_words_without_a_spelling_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lexicon = WordList(CHARACTERS, ["A", "ÄB", "C"])
    assert accepts(lexicon, CHARACTERS.encode("A"))
    said = "2 of its 3 words (67 %) cannot be spelled with the model's tokens, such as 'C', 'ÄB'"
    assert said in caplog.text
    with pytest.raises(UserError, match=r"none of its 1 words \('C'\) can be spelled"):
        WordList(CHARACTERS, ["C"])
    with pytest.raises(UserError, match=r"a word list needs .* a space, not words"):
        WordList(Tokenizer.train(TokenizerConfig(type="words"), ["A"]), ["A"])


# --- words in another case, of other letters, and pronunciations ------------------------------------


def score(model: FusionModel, tokenizer: Tokenizer, text: str) -> float:
    tokens_1U = torch.tensor([tokenizer.encode(text)])
    return score_texts(model, tokens_1U, torch.tensor([tokens_1U.size(1)]), SOS_ID, EOS_ID).item()


@pytest.mark.parametrize(("fold", "case"), [(str.upper, "upper"), (str.lower, "lower")])
def test_words_in_the_other_case_count_as_the_model_spells_them(
    fold: Callable[[str], str], case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The same probabilities as from texts in the right case."""
    tokenizer = Tokenizer.train(TokenizerConfig(), [fold("a b")])
    other = estimate_ngrams([[fold(word).swapcase() for word in text] for text in FOUR], 3)
    right = estimate_ngrams([[fold(word) for word in text] for text in FOUR], 3)
    models = [WordNgramModel(arpa, tokenizer) for arpa in (other, right)]
    for text in ("A AB", "BA A AB", "ABBA"):
        found, expected = (score(model, tokenizer, fold(text)) for model in models)
        assert found == pytest.approx(expected, abs=1e-5)
    words = f"words converted to {case} case to match the model's tokens"
    assert caplog.messages == [f"language model: {words}"]
    assert accepts(WordList(tokenizer, [fold("ab").swapcase()]), tokenizer.encode(fold("ab")))
    assert caplog.messages[1:] == [f"word list: {words}"]


def test_of_words_that_differ_in_case_alone_the_likeliest_counts(caplog: pytest.LogCaptureFixture) -> None:
    texts = [["ab", "a"], ["ab", "Ab"], ["Ab", "a"], ["Ba", "ab"]]
    model = WordNgramModel(estimate_ngrams(texts, 2), CHARACTERS)
    state = model.start(1, torch.device("cpu"))
    for token in [SOS_ID, *CHARACTERS.encode("AB A")]:
        assert state.score(torch.tensor([token])).exp().sum() == pytest.approx(1.0, abs=1e-5)
    best, second, third = (score(model, CHARACTERS, text) for text in ("AB A", "BA A", "BB A"))
    assert best > second > third
    caplog.clear()
    cased = Tokenizer.train(TokenizerConfig(), ["A a B b"])  # no reason to fold: each word has its spelling
    WordNgramModel(estimate_ngrams(texts, 2), cased)
    assert not caplog.messages


def test_a_share_that_cannot_be_spelled_is_said(caplog: pytest.LogCaptureFixture) -> None:
    known = ["A" * count for count in range(1, 20)]
    WordNgramModel(estimate_ngrams([[*known, "C"]], 2), CHARACTERS)
    assert not caplog.messages, "one of 20"
    WordNgramModel(estimate_ngrams([[*known, "C", "D", "E", "F", "G", "H"]], 2), CHARACTERS)
    (message,) = caplog.messages
    assert "6 of its 25 words (24 %) cannot be spelled" in message and message.endswith("'C', 'D', 'E'")


def test_words_of_other_letters_are_refused(tmp_path: Path) -> None:
    for sentence in ("ЗДРАВО", "СВЕТЕ"), ("c", "D"):
        write_arpa(tmp_path / "lm.arpa", estimate_ngrams([sentence], 2))
        with pytest.raises(UserError) as caught:
            load_language_model(tmp_path / "lm.arpa", CHARACTERS)
        assert str(caught.value).startswith(f"{tmp_path / 'lm.arpa'}: language model: none of its 2 words (")
        assert all(repr(word) in str(caught.value) for word in (*sentence, "A"))


def test_tokens_that_the_model_lacks_are_no_words(tmp_path: Path) -> None:
    for letters in "A C", "a b":
        write_arpa(tmp_path / "lm.arpa", estimate_ngrams([list(letters)], 2))
        with pytest.raises(UserError, match=rf"has no token .*'{letters[2]}'.*asr ngram --unit tokens"):
            load_language_model(tmp_path / "lm.arpa", CHARACTERS)


CMUDICT = "ONE  W AH1 N\nTWO  T UW1\nA(2)  EY1\nSIX\tS IH1 K S\n"
KALDI = "!SIL SIL\n<UNK> SPN\none w ah n\none hh w ah n\ntwo t uw\n"
SYLLABLES = "".join(
    f"{a}{b}{c} {a} {b} {c} _1\n" for a, b, c in itertools.product(("sh", "k", "t", "m"), "aeiou", "lrn")
)
LISTS = ["", "go to it\nbe me\nb d\n", "A B L E\nC O D E\n", "SIZE S M L\nPLAN B\n", "LIGHTS ON\nOFF\nA\n"]
LISTS += ["two words\n" * 99, "turn the lights on\n" * 9]
LISTS += ["".join(f"w{n} a b c d e\n" for n in range(20))]
LISTS += ["".join(f"w{n} one two six ten\n" for n in range(60))]


@pytest.mark.parametrize("content", [CMUDICT, KALDI, SYLLABLES])
def test_pronunciations_are_no_list_of_words(content: str, tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text(content)
    system: Any = SimpleNamespace(tokenizer=CHARACTERS, config=SimpleNamespace(text=TextConfig()))
    message = r"lexicon\.txt: a pronunciation lexicon, .* a list of words, .* tokenizer.lexicon"
    with pytest.raises(UserError, match=message):
        DecodingResources(words=str(path)).load(system.tokenizer, system.config.text, torch.device("cpu"))


@pytest.mark.parametrize("content", LISTS)
def test_a_list_may_have_several_words_on_a_line(content: str) -> None:
    assert read_word_list("words.txt", iter(content.splitlines())) == sorted({*content.split()})


def test_a_long_list_is_read_to_its_end() -> None:
    assert len(read_word_list("words.txt", (f"w{number} x" for number in range(2500)))) == 2501
