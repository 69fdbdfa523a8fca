"""Error counts against jiwer, and what happens to ids, missing texts and wrong input."""

from __future__ import annotations

import math

import jiwer
import numpy as np
import pytest
from hypothesis import given, strategies as st

from asr.errors import UserError
from asr.scoring.counting import count_character_errors, count_word_errors, score
from asr.scoring.result import Counts

words = st.sampled_from(["a", "b", "cat", "dog", "naïve", "e\u0301", "שלום", "猫"])
references = st.lists(words, min_size=1, max_size=8).map(" ".join)
hypotheses = st.lists(words, max_size=8).map(" ".join)
pairs = st.lists(st.tuples(references, hypotheses), min_size=1, max_size=8)


@given(pairs)
def test_rates_are_jiwers(pairs) -> None:
    said, heard = map(list, zip(*pairs, strict=True))
    found = score(said, heard)
    theirs = jiwer.process_words(said, heard)
    assert found.counts == Counts(theirs.hits, theirs.substitutions, theirs.deletions, theirs.insertions)
    assert found.error_rate == pytest.approx(theirs.wer)
    characters = jiwer.process_characters(said, heard)
    assert found.cer == pytest.approx(characters.cer)
    assert found.characters.counts == Counts(
        characters.hits, characters.substitutions, characters.deletions, characters.insertions
    )
    assert score(said, heard, unit="characters").counts == found.characters.counts


@given(pairs)
def test_training_counts_are_the_same(pairs) -> None:
    found = score(*zip(*pairs, strict=True))
    word_errors = count_word_errors(pairs)
    assert (word_errors.errors, word_errors.length) == (found.counts.errors, found.counts.reference_length)
    assert count_character_errors(pairs).errors == found.characters.counts.errors


@pytest.mark.parametrize(
    ("reference", "hypothesis", "counts", "rate"),
    [
        ("the cat sat", "the cat sat", (3, 0, 0, 0), 0),
        ("the cat sat", "the dog sat", (2, 1, 0, 0), 1 / 3),
        ("the cat sat", "the sat", (2, 0, 1, 0), 1 / 3),
        ("the cat sat", "the cat sat down", (3, 0, 0, 1), 1 / 3),
        ("the cat sat", "", (0, 0, 3, 0), 1),
        ("", "the cat", (0, 0, 0, 2), math.inf),
        ("", "", (0, 0, 0, 0), 0),
        ("a\tb\u00a0c", " a  b c\n", (3, 0, 0, 0), 0),
        ("a b", "c d e f g", (0, 2, 0, 3), 2.5),
        ("Cat", "cat", (0, 1, 0, 0), 1),  # nothing is normalized in silence
    ],
)
def test_one_utterance(reference, hypothesis, counts, rate) -> None:
    found = score([reference], [hypothesis])
    assert found.counts == Counts(*counts)
    assert found.error_rate == rate
    errors = 0 if reference == "Cat" else sum(counts[1:])  # sclite does not look at case
    assert score([reference], [hypothesis], align="sclite").counts.errors == errors


several = st.lists(
    st.tuples(st.lists(references, min_size=1, max_size=3), hypotheses), min_size=1, max_size=6
)


@given(several)
def test_of_several_references_the_one_with_the_fewest_errors_counts(triples) -> None:
    said = {str(number): texts[0] for number, (texts, _) in enumerate(triples)}
    others = {str(number): texts[1:] for number, (texts, _) in enumerate(triples) if len(texts) > 1}
    heard = {str(number): text for number, (_, text) in enumerate(triples)}
    found = score(said, heard, alternatives=others)
    errors, lengths = [], []
    for (texts, hypothesis), chosen in zip(triples, found.references, strict=True):
        each = [jiwer.process_words(text, hypothesis) for text in texts]
        counts = [one.substitutions + one.deletions + one.insertions for one in each]
        assert chosen == texts[counts.index(min(counts))]
        errors.append(min(counts))
        lengths.append(len(chosen.split()))
    assert (found.errors_P.tolist(), found.lengths_P.tolist()) == (errors, lengths)
    assert found.num_references == max(len(texts) for texts, _ in triples)
    assert found.cer == pytest.approx(jiwer.cer(list(found.references), list(heard.values())))
    assert all(group.num_references <= found.num_references for group in found.group(list(said)).values())


def test_alternatives_are_normalized_and_read_as_sclite_does() -> None:
    said, heard, others = {"a": "one two"}, {"a": "Three uh."}, {"a": ["{ four / three } (uh)"]}
    found = score(said, {"a": "two three"}, alternatives={"a": ["Two, three"]}, normalize="basic")
    assert found.error_rate == 0
    found = score(said, {"a": "THREE"}, alternatives=others, align="sclite-D")
    assert found.counts.errors == 0 and found.references == ("three (uh)",)
    with pytest.raises(UserError, match="alternatives in braces"):
        score(said, heard, alternatives=others, align="sclite", normalize="basic")


def test_mixed_units_count_characters_of_some_scripts_and_words_of_others() -> None:
    found = score(["我用 Python 写"], ["我 用 python 写 了"], unit="mixed")
    assert found.counts == Counts(correct=3, substitutions=1, insertions=1)


def test_dicts_belong_together_by_id() -> None:
    found = score({"a": "x y", "b": "z"}, {"b": "z", "a": "x w"}, speakers={"b": "q", "a": "p"})
    assert found.ids == ("a", "b")
    assert found.hypotheses == ("x w", "z")
    assert found.speakers == ("p", "q")
    assert found.counts == Counts(correct=2, substitutions=1)


@pytest.mark.parametrize("hypotheses", [{"2": "z"}, {"1": None, "2": "z"}, [None, "z"]])
def test_missing_hypotheses_are_deleted_and_named(hypotheses) -> None:
    found = score({"1": "x y", "2": "z"} if isinstance(hypotheses, dict) else ["x y", "z"], hypotheses)
    assert found.missing == ("1",)
    assert found.counts == Counts(correct=1, deletions=2)
    assert found.utterances[0].is_missing
    assert not score(["x"], [""]).missing  # an empty hypothesis is there


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((["a", "b"], ["a"]), {}, r"1 hypotheses for 2 references"),
        (({"a": "x"}, ["x"]), {}, "texts by ID on one side"),
        (({"a": "x"}, {"b": "x", "c": "x", "a": "y"}), {}, r"text of b \(and 1 others\)"),
        (([], []), {}, r"no references"),
        (({"a": "x"}, {"a": "x"}), {"alternatives": {"c": ["x"]}}, "text of c"),
    ],
)
def test_wrong_input_is_explained(arguments, options, message) -> None:
    with pytest.raises(UserError, match=message):
        score(*arguments, **options)


def test_hostile_texts() -> None:
    """NUL bytes, half of a surrogate pair, texts from right to left, a hundred thousand words on a line."""
    assert score(["a\0b c"], ["a\0b c"]).error_rate == 0
    assert score(["\ud800 a"], ["\ud800 b"]).counts == Counts(correct=1, substitutions=1)
    rng = np.random.default_rng(0)
    line = rng.choice(["one", "two", "three"], 100_000).tolist()
    heard = [*line[:50_000], "more", *line[50_001:]]
    found = score([" ".join(line)], [" ".join(heard)])
    assert found.counts == Counts(correct=99_999, substitutions=1)
