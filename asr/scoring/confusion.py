"""Classification scores: accuracy with its interval, confusions, precision and recall of each label."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr.scoring.intervals import Interval, find_rate_interval, number_groups, sum_groups
from asr.scoring.tables import percent, text_table

# P utterances, L labels

MAX_TABLE_LABELS = 20  # a wider table cannot be read
SHOWN_CONFUSIONS = 20


@dataclass(frozen=True)
class LabelScore:
    """Expected and predicted labels, counted."""

    labels: tuple[str, ...]
    """All that were expected or said, in alphabetical order."""
    confusions_LL: np.ndarray
    """How often the label of the row was expected, and that of the column said."""
    interval: Interval | None
    """Of the accuracy, with 95 % confidence; None where one group of utterances cannot tell."""

    @property
    def count(self) -> int:
        return int(self.confusions_LL.sum())

    @property
    def accuracy(self) -> float:
        return _divide(np.trace(self.confusions_LL), self.count)

    def precision(self, index: int) -> float:
        """The share of its predictions that are right; nan if it was never predicted."""
        return _divide(self.confusions_LL[index, index], self.confusions_LL[:, index].sum())

    def recall(self, index: int) -> float:
        """The share of its occurrences that are found; nan if it never occurs."""
        return _divide(self.confusions_LL[index, index], self.confusions_LL[index].sum())

    @property
    def most_confused(self) -> list[tuple[int, str, str]]:
        """(count, expected, said) of all errors, the most frequent first."""
        pairs = itertools.permutations(range(len(self.labels)), 2)
        found = [(int(self.confusions_LL[i, j]), self.labels[i], self.labels[j]) for i, j in pairs]
        return sorted((item for item in found if item[0]), key=lambda item: (-item[0], *item[1:]))

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain types that JSON has, but for nan."""
        labels = {label: self._describe(index) for index, label in enumerate(self.labels)}
        return {
            "accuracy": self.accuracy,
            "interval": None if self.interval is None else [self.interval.low, self.interval.high],
            "count": self.count,
            "labels": labels,
            "confusions": self.confusions_LL.tolist(),
        }

    def _describe(self, index: int) -> dict[str, Any]:
        count = int(self.confusions_LL[index].sum())
        return {"count": count, "precision": self.precision(index), "recall": self.recall(index)}


def score_labels(
    expected: Mapping[str, Sequence[str]],
    said: Mapping[str, Sequence[str]],
    speakers: Sequence[Hashable] | None = None,
) -> LabelScore:
    """Compare the labels of utterances, by id: as many of each as are expected.

    For the interval, utterances are drawn as wholes, or speakers where these are given: the labels within
    one are alike.
    """
    labels = sorted({label for side in (expected, said) for names in side.values() for label in names})
    index = {label: number for number, label in enumerate(labels)}
    confusions_LL = np.zeros((len(labels), len(labels)), dtype=np.int64)
    columns_P2 = np.zeros((len(expected), 2))  # errors, labels
    for row, (name, names) in enumerate(expected.items()):
        for left, right in zip(names, said[name], strict=True):
            confusions_LL[index[left], index[right]] += 1
            columns_P2[row] += left != right, 1
    sums_G2 = sum_groups(columns_P2, number_groups(speakers, len(expected)))
    errors = find_rate_interval(sums_G2, resamples=1000, confidence=0.95, seed=0)
    interval = None if errors is None else Interval(max(0.0, 1 - errors.high), 1 - errors.low)
    return LabelScore(tuple(labels), confusions_LL, interval)


def format_label_table(score: LabelScore) -> str:
    """Precision and recall of each label, then what was said in its place."""
    rows = [["label", "count", "precision %", "recall %"]]
    for label, found in score.to_dict()["labels"].items():
        rows.append([label, str(found["count"]), percent(found["precision"], 1), percent(found["recall"], 1)])
    if len(score.labels) <= MAX_TABLE_LABELS:
        title = "expected below each other, said side by side:"
        confusions = [["", *score.labels]]
        for label, counts_L in zip(score.labels, score.confusions_LL.tolist(), strict=True):
            confusions.append([label, *(str(count or ".") for count in counts_L)])
    else:
        most = score.most_confused[:SHOWN_CONFUSIONS]
        title = f"the {len(most)} most frequent confusions (--json has all):"
        confusions = [["expected", "said", "count"], *([left, right, str(n)] for n, left, right in most)]
    return "\n".join([*text_table(rows), "", title, *text_table(confusions)])


def _divide(count: float, total: float) -> float:
    return float(count / total) if total else float("nan")
