"""Label scores: counts, shares, intervals of known width, and tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from asr.research.classification import LabelScore, format_label_table, score_labels

pairs = st.lists(
    st.lists(st.tuples(*[st.sampled_from("abcd")] * 2), min_size=1, max_size=8), min_size=1, max_size=8
)


def score_pairs(utterances: list[list[tuple[str, str]]], speakers: list[str] | None = None) -> LabelScore:
    expected = {f"u{number}": [left for left, _ in found] for number, found in enumerate(utterances)}
    said = {f"u{number}": [right for _, right in found] for number, found in enumerate(utterances)}
    return score_labels(expected, said, speakers)


@given(pairs)
def test_counts_by_hand(utterances: list[list[tuple[str, str]]]) -> None:
    score = score_pairs(utterances)
    flat = [pair for found in utterances for pair in found]
    assert score.labels == tuple(sorted({label for pair in flat for label in pair}))
    for row, left in enumerate(score.labels):
        for column, right in enumerate(score.labels):
            assert score.confusions_LL[row, column] == flat.count((left, right))
        hits = sum(pair == (left, left) for pair in flat)
        num_expected = sum(expected == left for expected, _ in flat)
        num_said = sum(said == left for _, said in flat)
        found = score.to_dict()["labels"][left]
        nan = math.nan
        assert found["recall"] == pytest.approx(hits / num_expected if num_expected else nan, nan_ok=True)
        assert found["precision"] == pytest.approx(hits / num_said if num_said else nan, nan_ok=True)
    described = score.to_dict()
    assert described["count"] == score.count == len(flat)
    assert described["accuracy"] == pytest.approx(sum(left == right for left, right in flat) / len(flat))
    assert list(described["labels"]) == list(score.labels)


def test_intervals() -> None:
    """Of one utterance none. Poisson: with none seen, up to 3.689 in 95 of 100 cases, as the rule of three has it one-sided."""
    assert score_pairs([[("a", "a"), ("a", "b")]]).interval is None
    interval = score_pairs([[("a", "a")]] * 300).interval
    assert interval is not None and interval.high == 1.0
    assert interval.low == pytest.approx(1 - 3.689 / 300, abs=1e-5)


def test_labels_of_one_utterance_or_speaker_are_resampled_together() -> None:
    """Ten utterances, each all right or all wrong, carry as much evidence as ten labels, not a thousand."""
    wrong = {1, 4, 5, 8}
    whole = [[("a", "b" if number in wrong else "a")] * 100 for number in range(10)]
    single = [[found[0]] for found in whole for _ in range(100)]
    together, apart = score_pairs(whole).interval, score_pairs(single).interval
    by_speaker = score_pairs(single, [f"s{number // 100}" for number in range(1000)]).interval
    assert together is not None and apart is not None
    assert together.high - together.low > 5 * (apart.high - apart.low)
    assert by_speaker == together


def test_table() -> None:
    table = format_label_table(score_pairs([[("one", "one"), ("one", "two"), ("three", "three")]]))
    assert table.splitlines() == [
        "label  count  precision %  recall %",
        "one        2        100.0      50.0",
        "three      1        100.0     100.0",
        "two        0          0.0         -",
        "",
        "rows: expected labels, columns: predicted labels",
        "       one  three  two",
        "one      1      .    1",
        "three    .      1    .",
        "two      .      .    .",
    ]
