"""Paired significance tests of two systems on the same utterances, and the verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from asr.errors import UserError
from asr.scoring.alignments import INSERTION, Edits
from asr.scoring.intervals import CONFIDENCE, SEED, Interval, find_ratio_interval, resample, sum_groups
from asr.scoring.result import RATE_NAMES, Score, without_infinity

# Shapes: E errors, M segments, P utterances, G groups of them that are drawn together in a resample.

GOOD_UNITS_BETWEEN = 2
"""Units correct in both systems that separate two segments of MAPSSWE, as in NIST sc_stats."""
MIN_NORMAL = 50
"""Segments needed for the normal distribution; with fewer, all cases are counted."""


@dataclass(frozen=True)
class PairedBootstrap:
    """Both systems on the same resampled utterances or speakers."""

    resamples: int
    resampled_by: str
    interval: Interval | None
    """Interval of the difference in error rate, first minus second; None for a single group."""
    probability_of_improvement: float
    """Fraction of resamples in which the first system has fewer errors; ties count half."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of two systems; print it for the verdict."""

    names: tuple[str, str]
    error_rates: tuple[float, float]
    rate_name: str
    matched_pairs: dict[str, float]
    """MAPSSWE: segments, mean_difference (first minus second, in errors per segment), z and p."""
    has_speakers: bool
    """True if two or more speakers are known; errors of one speaker are not independent."""
    bootstrap: PairedBootstrap | None
    """Paired bootstrap; None with resamples=0, and then no system with known speakers is called better."""

    @property
    def difference(self) -> float:
        """Difference in error rate, first minus second; negative if the first is better."""
        return self.error_rates[0] - self.error_rates[1]

    @property
    def p(self) -> float:
        """p of the matched pairs, the test that uses every error."""
        return self.matched_pairs["p"]

    @property
    def verdict(self) -> Literal["better", "worse", "undecided"]:
        """Verdict on the first system: better or worse only if matched pairs and interval agree.

        Matched pairs treat the errors of one speaker as independent. When systems differed by speaker, they
        alone gave the wrong verdict on 4 of 10 simulated test sets.
        """
        agrees = not self.has_speakers if self._excludes_zero is None else self._excludes_zero
        if self.p >= 1 - CONFIDENCE or not self.difference or not agrees:
            return "undecided"
        return "better" if self.difference < 0 else "worse"

    @property
    def _excludes_zero(self) -> bool | None:
        """Check whether the interval excludes 0; None without an interval."""
        interval = None if self.bootstrap is None else self.bootstrap.interval
        return None if interval is None else not interval.low <= 0 <= interval.high

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain types that JSON has."""
        derived = {"difference": self.difference, "p": self.p, "verdict": self.verdict, "summary": str(self)}
        derived["confidence"] = CONFIDENCE
        record: dict[str, Any] = without_infinity(dataclasses.asdict(self) | derived)
        return record

    def __str__(self) -> str:
        sign = -1 if self.verdict == "worse" else 1
        first, second = self.names[::sign]
        numbers = f"{100 * sign * self.difference:+.1f} points {self.rate_name}"
        if self.bootstrap is not None and (interval := self.bootstrap.interval) is not None:
            ends = sorted(100 * sign * end for end in (interval.low, interval.high))
            numbers += " [{:+.1f}, {:+.1f}]".format(*ends)
        digits = 4 if self.p < 0.001 else 3
        numbers += ", p < 0.0001" if self.p < 0.0001 else f", p = {self.p:.{digits}f}"
        if self.verdict == "undecided":
            kind = "speaker" if self.bootstrap is None else self.bootstrap.resampled_by
            why = ", as p and the interval disagree" if self._excludes_zero else ""
            why = f", as it depends on the {kind}s" if self.p < 1 - CONFIDENCE else why
            return f"no significant difference between {first} and {second}{why}: {numbers}"
        return f"{first} is better than {second}: {numbers}"


def compare_scores(first: Score, second: Score, names: tuple[str, str] = ("first", "second")) -> Comparison:
    """Test whether two systems differ on the same references; the first score has the settings."""
    second = _match(first, second, names)
    # Different alternatives were chosen, so positions in the two references do not correspond.
    pairs = zip(first.references, second.references, strict=True)
    unlike = [number for number, (ours, theirs) in enumerate(pairs) if ours != theirs]
    differences_P = first.errors_P - second.errors_P
    return Comparison(
        names=names,
        error_rates=(first.error_rate, second.error_rate),
        rate_name=RATE_NAMES[first.unit],
        matched_pairs=compute_matched_pairs(*count_segment_errors(first.edits, second.edits, unlike)),
        has_speakers=len(set(first.speakers or ())) > 1,
        bootstrap=resample_pairs(
            differences_P, first.lengths_P, first.groups_P, first.resamples, first.resampled_by
        ),
    )


def _match(first: Score, second: Score, names: tuple[str, str]) -> Score:
    """Return the second score with its utterances in the order of the first."""
    if (first.unit, first.align) != (second.unit, second.align):
        raise UserError(
            f"{names[0]} and {names[1]}: different units or alignments; score both in the same way"
        )
    ours, theirs = (dict(zip(score.ids, score.all_references, strict=True)) for score in (first, second))
    if unlike := [id for id in {**ours, **theirs} if ours.get(id) != theirs.get(id)]:
        raise UserError(
            f"utterance {unlike[0]}: {ours.get(unlike[0])} of {names[0]} and {theirs.get(unlike[0])} of "
            f"{names[1]}; paired tests need the same references in both"
        )
    if first.ids == second.ids:  # keeps what the second has computed
        return second
    positions = {id: number for number, id in enumerate(second.ids)}
    return second.select([positions[id] for id in first.ids])


def count_segment_errors(
    first: Edits, second: Edits, unsplit: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Count the errors of each system in the segments between GOOD_UNITS_BETWEEN correct units.

    The errors of both are sorted along each reference, insertions before the unit that follows. Neighbors are
    in one segment unless enough correct units lie between them. Each of the pairs `unsplit` is one segment.
    """
    system_E = np.repeat([0, 1], [len(first), len(second)])
    pair_E = np.concatenate([first.pair_E, second.pair_E])
    unit_E = np.concatenate([first.reference_E, second.reference_E])
    is_insertion_E = np.concatenate([first.kind_E, second.kind_E]) == INSERTION
    order = np.lexsort([2 * unit_E + ~is_insertion_E, pair_E])
    pair_E, unit_E, is_insertion_E, system_E = (
        column[order] for column in (pair_E, unit_E, is_insertion_E, system_E)
    )
    # The unit after an insertion may be correct.
    good_between = unit_E[1:] - (unit_E + ~is_insertion_E)[:-1]
    starts_E = np.ones(len(order), bool)
    is_parted = (good_between >= GOOD_UNITS_BETWEEN) & ~np.isin(pair_E[1:], unsplit)
    starts_E[1:] = (pair_E[1:] != pair_E[:-1]) | is_parted
    segment_E = np.cumsum(starts_E) - 1
    num_segments = int(starts_E.sum())
    errors_M = [np.bincount(segment_E[system_E == system], minlength=num_segments) for system in (0, 1)]
    return errors_M[0], errors_M[1]


def compute_matched_pairs(first_M: np.ndarray, second_M: np.ndarray) -> dict[str, float]:
    """Test the errors of both systems in each segment, two-sided.

    and for equal differences, the test is exact: how often would random signs give a sum as large?
    and for equal differences, the test is exact: how often would random signs give as large a sum?
    """
    difference_M = first_M - second_M
    num_segments = len(difference_M)
    mean = float(difference_M.mean()) if num_segments else 0.0
    spread = float(difference_M.std(ddof=1)) if num_segments > 1 else 0.0
    if not spread:
        z = math.copysign(math.inf, mean) if mean else 0.0
    else:
        z = mean / spread * math.sqrt(num_segments)
    is_normal = num_segments >= MIN_NORMAL and spread
    p = math.erfc(abs(z) / math.sqrt(2)) if is_normal else compute_sign_flip_p(difference_M)
    return {"segments": num_segments, "mean_difference": mean, "z": z, "p": p}


def compute_sign_flip_p(values: np.ndarray) -> float:
    """Compute how likely random signs move the sum of whole numbers this far from zero."""
    weights = np.abs(values)
    total = int(weights.sum())
    below = int(weights[values < 0].sum())
    # The probability of each sum of the numbers with a negative sign.
    probabilities = np.zeros(total + 1)
    probabilities[0] = 1
    for weight in weights[weights > 0].tolist():
        shifted = np.zeros_like(probabilities)
        shifted[weight:] = probabilities[:-weight]
        probabilities = (probabilities + shifted) / 2
    return min(1.0, 2 * float(probabilities[: min(below, total - below) + 1].sum()))


def resample_pairs(
    differences_P: np.ndarray, lengths_P: np.ndarray, groups_P: np.ndarray, resamples: int, resampled_by: str
) -> PairedBootstrap | None:
    """Resample the differences in errors of both systems; None without resamples."""
    if not resamples:
        return None
    sums_G2 = sum_groups(np.stack([differences_P, lengths_P], axis=1), groups_P)
    # Resampling draws by the numbers in their order: with the better system always first, both orders of two
    # systems have the same interval.
    total = sums_G2[:, 0].sum()
    is_first = total < 0 if total else sorted(sums_G2.tolist()) <= sorted((sums_G2 * (-1, 1)).tolist())
    sign = 1 if is_first else -1
    sums_G2[:, 0] *= sign
    difference_S = resample(sums_G2, resamples, SEED)[:, 0]
    better = float(np.mean(difference_S < 0) + np.mean(difference_S == 0) / 2)
    interval = find_ratio_interval(sums_G2, resamples)
    if sign < 0:
        better, interval = 1 - better, interval and Interval(-interval.high, -interval.low)
    return PairedBootstrap(resamples, resampled_by, interval, better)
