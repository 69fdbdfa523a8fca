"""Alignments against a table filled cell by cell, and against jiwer's."""

from __future__ import annotations

import jiwer
import numpy as np
import pytest
from hypothesis import given, strategies as st

from asr.errors import UserError
from asr.scoring.alignments import KINDS, align, count_operations, find_edits, split_units
from asr.scoring.nist import sclite

few_words = st.lists(st.sampled_from(["a", "b", "cc", "ü"]), max_size=9)
COSTS = {"levenshtein": (1, 1), "sclite": (4, 3)}


def fill_table(reference: list[str], hypothesis: list[str], substitution: int, gap: int) -> np.ndarray:
    costs = np.zeros((len(reference) + 1, len(hypothesis) + 1), int)
    costs[:, 0] = gap * np.arange(len(reference) + 1)
    costs[0] = gap * np.arange(len(hypothesis) + 1)
    for i, said in enumerate(reference):
        for j, heard in enumerate(hypothesis):
            pair = costs[i, j] + (0 if said == heard else substitution)
            costs[i + 1, j + 1] = min(pair, costs[i, j + 1] + gap, costs[i + 1, j] + gap)
    return costs


def trace_as_sclite(reference: list[str], hypothesis: list[str]) -> list[str]:
    """From the end: a pair if it is as cheap as anything, else an insertion if it is as cheap as a deletion."""
    costs = fill_table(reference, hypothesis, 4, 3)
    i, j = len(reference), len(hypothesis)
    kinds = []
    while i or j:
        same = i and j and reference[i - 1] == hypothesis[j - 1]
        if i and j and costs[i, j] == costs[i - 1, j - 1] + (0 if same else 4):
            kinds.append("correct" if same else "substitution")
            i, j = i - 1, j - 1
        elif j and costs[i, j] == costs[i, j - 1] + 3:
            kinds.append("insertion")
            j -= 1
        else:
            kinds.append("deletion")
            i -= 1
    return kinds[::-1]


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
@given(reference=few_words, hypothesis=few_words)
def test_alignment_spells_both_texts_at_least_cost(method, reference, hypothesis) -> None:
    operations = align(reference, hypothesis, method)
    assert [step.reference for step in operations if step.reference is not None] == reference
    assert [step.hypothesis for step in operations if step.hypothesis is not None] == hypothesis
    substitution, gap = COSTS[method]
    prices = {"correct": 0, "substitution": substitution, "deletion": gap, "insertion": gap}
    for kind, said, heard in operations:
        paired = "correct" if said == heard else "substitution"
        assert kind == ("insertion" if said is None else "deletion" if heard is None else paired)
    cost = fill_table(reference, hypothesis, substitution, gap)[-1, -1]
    assert sum(prices[step.kind] for step in operations) == cost


@given(few_words, few_words)
def test_sclite_breaks_ties_in_its_order(reference, hypothesis) -> None:
    assert [step.kind for step in align(reference, hypothesis, "sclite")] == trace_as_sclite(
        reference, hypothesis
    )


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
@given(pairs=st.lists(st.tuples(few_words, few_words), max_size=12), cells=st.sampled_from([1, 60, 10**6]))
def test_many_pairs_are_aligned_as_each_alone(method, pairs, cells) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sclite, "MAX_BATCH", cells)
        together = find_edits(pairs, method)
    for number, pair in enumerate(pairs):
        alone = find_edits([pair], method)
        of_pair = together.pair_E == number
        for column in ("kind_E", "reference_E", "hypothesis_E"):
            assert getattr(together, column)[of_pair].tolist() == getattr(alone, column).tolist()
    counts = count_operations(together, [len(reference) for reference, _ in pairs])
    for row, pair in zip(counts, pairs, strict=True):
        kinds = [step.kind for step in align(*pair, method)]
        assert row.tolist() == [kinds.count(kind) for kind in KINDS]


@given(few_words.filter(bool), few_words)
def test_default_takes_the_same_steps_as_jiwer(reference, hypothesis) -> None:
    theirs = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    names = {"equal": "correct", "substitute": "substitution", "delete": "deletion", "insert": "insertion"}
    kinds = [
        names[chunk.type]
        for chunk in theirs.alignments[0]
        for _ in range(max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx))
    ]
    assert [step.kind for step in align(reference, hypothesis)] == kinds


def test_long_pair_is_refused_by_sclite_with_the_way_out(monkeypatch) -> None:
    monkeypatch.setattr(sclite, "MAX_TABLE", 99)
    with pytest.raises(UserError, match=r"utterance 2: 10 units against 10 .* use align levenshtein"):
        find_edits([(["a"], ["b"]), (list("abcdefghij"), list("klmnopqrst"))], "sclite")


@pytest.mark.parametrize(
    ("text", "unit", "units"),
    [
        ("  the\tcat \n", "words", ["the", "cat"]),
        ("", "words", []),
        (" a  bc ", "characters", ["a", " ", "b", "c"]),
        ("e\u0301t", "characters", ["e", "\u0301", "t"]),
        ("我用Python写code 3 次", "mixed", ["我", "用", "Python", "写", "code", "3", "次"]),
        ("カタカナーと한국어 말", "mixed", ["カ", "タ", "カ", "ナ", "ー", "と", "한국어", "말"]),
        ("שלום עולם", "words", ["שלום", "עולם"]),
    ],
)
def test_units(text, unit, units) -> None:
    assert split_units(text, unit) == units
