"""Paired tests against scipy, against all cases counted, and against sc_stats' way through an alignment."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy
from hypothesis import given, strategies as st

from asr.errors import UserError
from asr.scoring.alignments import align, find_edits
from asr.scoring.counting import score
from asr.scoring.intervals import Interval
from asr.scoring.result import Score
from asr.scoring.significance import (
    compare_scores,
    compute_matched_pairs,
    compute_sign_flip_p,
    count_segment_errors,
)

few_words = st.lists(st.sampled_from("ab"), max_size=8)


def walk_segments(reference: list[str], first: list[str], second: list[str]) -> list[tuple[int, int]]:
    """Word by word: a segment opens at an error and closes after two words that both systems have right."""
    columns = []  # for each word of the reference, and the end: errors of either system, insertions before it
    for hypothesis in (first, second):
        errors, inserted, column = [], 0, []
        for kind, *_ in align(reference, hypothesis, "sclite"):
            if kind == "insertion":
                inserted += 1
            else:
                column.append((inserted, int(kind != "correct")))
                inserted = 0
        columns.append([*column, (inserted, 0)])
    segments, good = [], 0
    errors = [0, 0]
    for place, ((before_1, wrong_1), (before_2, wrong_2)) in enumerate(zip(*columns, strict=True)):
        errors = [errors[0] + before_1, errors[1] + before_2]
        if before_1 or before_2:
            good = 0
        errors = [errors[0] + wrong_1, errors[1] + wrong_2]
        good = 0 if wrong_1 or wrong_2 else good + 1
        if any(errors) and (good == 2 or place == len(reference)):
            segments.append(tuple(errors))
            errors = [0, 0]
    return segments


@given(st.lists(st.tuples(few_words, few_words, few_words), max_size=5))
def test_segments_are_parted_by_two_good_words(triples) -> None:
    found = count_segment_errors(
        find_edits([(reference, first) for reference, first, _ in triples], "sclite"),
        find_edits([(reference, second) for reference, _, second in triples], "sclite"),
    )
    expected = [segment for triple in triples for segment in walk_segments(*triple)]
    assert list(zip(*(errors.tolist() for errors in found), strict=True)) == expected


def test_matched_pairs_by_the_normal_distribution() -> None:
    rng = np.random.default_rng(0)
    first_M, second_M = rng.poisson(1.0, 80), rng.poisson(1.4, 80)
    found = compute_matched_pairs(first_M, second_M)
    expected = scipy.stats.ttest_rel(first_M, second_M)
    assert found["z"] == pytest.approx(expected.statistic)
    assert found["p"] == pytest.approx(2 * scipy.stats.norm.sf(abs(expected.statistic)))
    assert (found["segments"], found["mean_difference"]) == (80, pytest.approx((first_M - second_M).mean()))


@given(st.lists(st.integers(-4, 4), max_size=9))
def test_sign_flips_are_all_counted(values) -> None:
    sums = [
        sum(s * v for s, v in zip(signs, values, strict=True))
        for signs in itertools.product([1, -1], repeat=len(values))
    ]
    expected = np.mean([abs(total) >= abs(sum(values)) for total in sums])
    assert compute_sign_flip_p(np.array(values, int)) == pytest.approx(expected)


def test_always_the_same_difference_is_no_chance() -> None:
    """Without spread a z of sc_stats is 0, and it sees no difference between 0 and 60 errors."""
    found = compute_matched_pairs(np.ones(60, int), np.zeros(60, int))
    assert found["p"] == pytest.approx(2 * 0.5**60)
    assert compute_matched_pairs(np.ones(3, int), np.zeros(3, int))["p"] == pytest.approx(0.25)
    assert compute_matched_pairs(np.zeros(0, int), np.zeros(0, int))["p"] == 1


def make_scores(
    rates: tuple[float, float], num_utterances: int = 300, speakers: bool = True
) -> tuple[Score, Score]:
    rng = np.random.default_rng(0)
    references = {f"u{n}": " ".join(rng.choice(list("abcdefgh"), 8)) for n in range(num_utterances)}
    who = {id: f"s{n % 10}" for n, id in enumerate(references)} if speakers else None
    return tuple(
        score(
            references,
            {
                id: " ".join("x" if rng.random() < rate else word for word in text.split())
                for id, text in references.items()
            },
            speakers=who,
        )
        for rate in rates
    )


def test_better_system_is_named_first() -> None:
    better, worse = make_scores((0.05, 0.1))
    comparison = compare_scores(better, worse, ("transformer", "ctc_lstm"))
    assert comparison.verdict == "better"
    assert comparison.bootstrap.probability_of_improvement == 1
    points = 100 * comparison.difference
    assert str(comparison).startswith(f"transformer is better than ctc_lstm: {points:.1f} points WER [-")
    assert str(comparison).endswith("], p < 0.0001")
    for p in (0.0501, 0.12):
        unlikely = replace(comparison, matched_pairs=comparison.matched_pairs | {"p": p})
        assert unlikely.verdict == "undecided" and ", as p and the interval disagree: " in str(unlikely)
    likely = replace(comparison, matched_pairs=comparison.matched_pairs | {"p": 0.0499})
    assert likely.verdict == "better"
    reverse = compare_scores(worse, better, ("ctc_lstm", "transformer"))
    assert reverse.verdict == "worse"
    assert str(reverse).startswith(f"transformer is better than ctc_lstm: {points:.1f} points WER [-")
    assert reverse.difference == pytest.approx(-comparison.difference)
    assert reverse.p == pytest.approx(comparison.p)
    assert reverse.bootstrap.probability_of_improvement == 0


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.0), (0.0, 0.1)])
def test_an_interval_that_ends_at_zero_decides_nothing(low: float, high: float) -> None:
    comparison = compare_scores(*make_scores((0.05, 0.1)))
    bootstrap = replace(comparison.bootstrap, interval=Interval(low, high))
    for has_speakers in (True, False):
        assert replace(comparison, bootstrap=bootstrap, has_speakers=has_speakers).verdict == "undecided"


def test_equal_rates_stay_undecided() -> None:
    one, other = make_scores((0.08, 0.08))
    itself = compare_scores(one, one)
    assert (itself.verdict, itself.p, itself.difference) == ("undecided", 1, 0)
    assert itself.bootstrap.probability_of_improvement == 0.5
    comparison = compare_scores(one, other, ("a", "b"))
    assert comparison.verdict == "undecided"
    assert str(comparison).startswith("no significant difference between a and b: ")
    assert 0.05 < comparison.bootstrap.probability_of_improvement < 0.95
    assert comparison.bootstrap.interval.low < 0 < comparison.bootstrap.interval.high


def test_without_speakers_or_resamples_the_parts_are_left_out() -> None:
    one, other = make_scores((0.05, 0.1), 40, speakers=False)
    comparison = compare_scores(one, other)
    assert not comparison.has_speakers and comparison.bootstrap.resampled_by == "utterance"
    plain = compare_scores(*(score(each.references, each.hypotheses, resamples=0) for each in (one, other)))
    assert plain.bootstrap is None and "[" not in str(plain)
    assert (plain.verdict, replace(plain, has_speakers=True).verdict) == ("better", "undecided")


@pytest.mark.parametrize("num_utterances", [40, 1500])
def test_the_order_of_two_systems_is_of_no_matter(num_utterances: int) -> None:
    """Neither that of utterances in a file: 1,500 of different lengths are drawn one by one."""
    rng = np.random.default_rng(0)
    said = {str(n): " ".join(rng.choice(list("abcdef"), rng.integers(3, 100))) for n in range(num_utterances)}
    heard = [
        {id: " ".join(w for w in text.split() if rng.random() > rate) for id, text in said.items()}
        for rate in (0.1, 0.11)
    ]
    backwards = dict(reversed(list(said.items())))
    first, second = score(said, heard[0]), score(backwards, heard[1])
    there, back = compare_scores(first, second), compare_scores(second, first)
    assert there.difference == -back.difference != 0
    assert there.bootstrap.interval.low == pytest.approx(-back.bootstrap.interval.high, abs=1e-12)
    assert there.bootstrap.interval.high == pytest.approx(-back.bootstrap.interval.low, abs=1e-12)
    assert there.bootstrap.probability_of_improvement + back.bootstrap.probability_of_improvement == 1


def test_scores_of_different_texts_are_refused() -> None:
    one = score({"a": "x y", "b": "z"}, {"a": "x", "b": "z"})
    for other in (score({"a": "x y"}, {"a": "x"}), score({"a": "X Y", "b": "z"}, {"a": "x"})):
        with pytest.raises(UserError, match="paired tests need the same references in both"):
            compare_scores(one, other)
    with pytest.raises(UserError, match="different units or alignments"):
        compare_scores(one, score({"a": "x y", "b": "z"}, {"a": "x"}, align="sclite"))


# --- systems that differ by speaker -------------------------------------------------------------


def simulate(num_speakers: int, mean_difference: float, rng: np.random.Generator) -> tuple[Score, Score]:
    """Two systems whose rates differ from speaker to speaker; on average over all people by so much."""
    rates_S2 = np.clip(0.12 + rng.normal(0, 0.06, (num_speakers, 2)), 0.01, 0.5)
    rates_S2[:, 0] += mean_difference
    references = {f"{s} {n}": "a b c d e f g h" for s in range(num_speakers) for n in range(15)}
    speakers = {id: id.split()[0] for id in references}

    def hear(system: int) -> dict[str, str]:
        wrong = rng.random((len(references), 8)) < np.repeat(rates_S2[:, system], 15)[:, None]
        return {
            id: " ".join(np.where(row, "x", list("abcdefgh")))
            for id, row in zip(references, wrong, strict=True)
        }

    one, other = (score(references, hear(system), speakers=speakers, resamples=400) for system in (0, 1))
    return one, other


def count_verdicts(num_speakers: int, number: int, mean_difference: float = 0.0) -> tuple[float, float]:
    """Shares of test sets on which the verdict, and the matched pairs alone, tell the systems apart."""
    rng = np.random.default_rng(num_speakers)
    found = [compare_scores(*simulate(num_speakers, mean_difference, rng)) for _ in range(number)]
    verdicts = [comparison.verdict != "undecided" for comparison in found]
    return float(np.mean(verdicts)), float(np.mean([comparison.p < 0.05 for comparison in found]))


def test_verdicts_are_seldom_wrong_where_systems_differ_by_speaker() -> None:
    """No difference over all people: 5 % of 40 verdicts may be wrong; more than 7 has a chance of 1 in 1,000."""
    wrong, wrong_by_errors = count_verdicts(10, 40)
    assert wrong <= 7 / 40
    assert wrong_by_errors > 0.25  # the matched pairs alone


@pytest.mark.slow
@pytest.mark.parametrize("num_speakers", [3, 6, 10, 30])
def test_verdicts_over_many_test_sets(num_speakers: int) -> None:
    """400 of each: more than 8 % has a chance of 1 in 200 at a true 5 %. And a true difference is found."""
    wrong, wrong_by_errors = count_verdicts(num_speakers, 400)
    assert wrong < 0.08 and wrong_by_errors > 0.25
    found, _ = count_verdicts(num_speakers, 50, mean_difference=0.2)
    assert found > (0.9 if num_speakers >= 10 else 0.3)


def test_a_difference_that_depends_on_the_speakers_is_said_to() -> None:
    rng = np.random.default_rng(0)
    found = (compare_scores(*simulate(10, 0.0, rng), ("new", "old")) for _ in range(30))
    comparison = next(one for one in found if one.p < 0.01 and one.verdict == "undecided")
    interval = comparison.bootstrap.interval
    assert interval.low < 0 < interval.high
    assert str(comparison).startswith(
        "no significant difference between new and old, as it depends on the speakers: "
    )
    # Without speakers there are only the errors to go by.
    one, other = simulate(10, 0.3, np.random.default_rng(0))
    assert compare_scores(one, other).verdict == "worse"
    nameless = [score(each.references, each.hypotheses) for each in (one, other)]
    assert compare_scores(*nameless).verdict == "worse"
