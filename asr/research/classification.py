"""Evaluate a classifier on a data set: predicted and expected labels, accuracy and speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.data.manifest import Utterance
from asr.decoding.decode import pad_audio, read_clock
from asr.errors import UserError, plural
from asr.evaluation.speech import ComputingTime, ReadAudio, decode_split
from asr.features.front_end import FrontEnd
from asr.files import replace_file
from asr.models.encoders import make_frame_times
from asr.research.classifiers import FIRST_LABEL_ID, LabelModel
from asr.research.labels import find_unseen_labels
from asr.scoring.intervals import Interval, find_rate_interval, number_groups, sum_groups
from asr.scoring.result import percent, show_interval, text_table
from asr.system.system import System

# B utterances of a batch, T frames, F features, P utterances of all, L labels

MAX_TABLE_LABELS = 20  # a wider confusion matrix is unreadable in a terminal


@dataclass(kw_only=True)
class ReadSplit(ComputingTime):
    """Results of the utterances that could be read, and messages about the others."""

    results: dict[str, list[str]] = field(default_factory=dict)
    """Results by id: one label, a label for each encoded step, or the text of each speaker."""
    problems: dict[str, str] = field(default_factory=dict)  # error messages by id


def read_split(
    compute: Callable[[Tensor, Tensor], Sequence[list[str]]],
    front_end: FrontEnd,
    utterances: Sequence[Utterance],
    device: torch.device,
    batch_size: int,
    report: Callable[[float], None],
) -> ReadSplit:
    """Compute results from the features and lengths of each batch, and measure the time it takes."""
    split, front_end = ReadSplit(), front_end.to(device)

    def decode(batch: Sequence[ReadAudio]) -> None:
        audio = [samples for _, samples in batch]
        if not all(front_end.num_frames(len(samples)) for samples in audio):
            raise UserError(f"{min(map(len, audio))} samples are too short for one frame")
        began = read_clock(device)
        results = compute(*front_end(*pad_audio(audio, device)))
        split.seconds += read_clock(device) - began
        split.audio_seconds += sum(map(len, audio)) / front_end.config.sample_rate
        split.results |= {item.id: own for (item, _), own in zip(batch, results, strict=True)}

    decode_split(utterances, front_end.config.sample_rate, batch_size, decode, split.problems, report)
    return split


class Classification:
    """A classifier and the utterances to evaluate it on."""

    def __init__(self, system: System[LabelModel], place: str, utterances: Sequence[Utterance]) -> None:
        """`place` is the manifest that contains the utterances, for messages."""
        self._system, self.utterances = system, utterances
        self._labels = system.model.config.find_labels(system.config.text)
        self._label = system.model.config.label
        unseen = find_unseen_labels(place, utterances, self._labels, system.tokenizer)
        self.about: dict[str, Any] = {"unseen": unseen, "label": self._label}

    @torch.inference_mode()
    def decode(
        self, device: torch.device, batch_size: int, report: Callable[[float], None] = lambda seconds: None
    ) -> ReadSplit:
        """Classify each utterance of the manifest that is at least one frame long."""
        model, tokens = self._system.model.to(device).eval(), self._system.tokenizer.tokens

        def predict(features_BTF: Tensor, lengths_B: Tensor) -> list[list[str]]:
            scores_BNL, counts_B = model.label(features_BTF, lengths_B)
            ids_BN = (scores_BNL.argmax(-1) + FIRST_LABEL_ID).tolist()
            counted = zip(ids_BN, counts_B.tolist(), strict=True)
            return [[tokens[id] for id in ids[:count]] for ids, count in counted]

        return read_split(predict, self._system.front_end, self.utterances, device, batch_size, report)

    def find_expected(self, split: ReadSplit) -> dict[str, list[str]]:
        """Return the labels of the manifest for each label that the model predicted."""
        frame_times = make_frame_times(self._system.config.features, self._system.model.encoder)
        items = {item.id: item for item in self.utterances}
        return {
            name: self._labels.at(items[name], frame_times.times(len(labels)))
            for name, labels in split.results.items()
        }

    def score(self, split: ReadSplit) -> LabelScore:
        """Score the utterances that could be read. The interval is a bootstrap over speakers, or over
        utterances if the label is the speaker or some speakers are unknown."""
        speakers = {item.id: item.speaker for item in self.utterances}
        known = [speakers[name] for name in split.results]
        are_drawn = self._label != "speaker" and None not in known
        return score_labels(self.find_expected(split), split.results, known if are_drawn else None)

    def write(self, folder: str | Path, split: ReadSplit) -> None:
        """Write labels.jsonl: the labels of each utterance, expected and predicted."""
        with replace_file(Path(folder) / "labels.jsonl") as file:
            for name, expected in self.find_expected(split).items():
                record = {"id": name, "expected": expected, "predicted": split.results[name]}
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")

    def describe(self, split: ReadSplit, score: LabelScore) -> dict[str, Any]:
        return {"score": score.to_dict(), **split.describe_time()}

    def format(self, split: ReadSplit, score: LabelScore) -> str:
        name = f"{self._labels.unit} accuracy".strip()
        bounds = show_interval(score.interval, ", 95 % interval {} to {}")
        return (
            f"{plural(len(split.results), 'utterance')}, {plural(score.count, 'label')}, "
            f"{split.audio_seconds:.1f} s of audio, real-time factor {split.real_time_factor:.4f}\n"
            f"{name} {percent(score.accuracy)} %{bounds}\n\n{format_label_table(score)}"
        )


# --- scores of labels ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelScore:
    """Counts of expected and predicted labels."""

    labels: tuple[str, ...]  # all expected or predicted labels, in alphabetical order
    confusions_LL: np.ndarray
    """Confusion matrix with a row for each expected label and a column for each predicted one."""
    interval: Interval | None
    """95 % confidence interval of the accuracy; None if there is only one group of utterances."""

    @property
    def count(self) -> int:
        return int(self.confusions_LL.sum())

    @property
    def accuracy(self) -> float:
        return _divide(np.trace(self.confusions_LL), self.count)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types, except for NaN if a label never occurs or is never predicted."""
        hits_L, counts_L = self.confusions_LL.diagonal(), self.confusions_LL.sum(1)
        return {
            "accuracy": self.accuracy,
            "interval": None if self.interval is None else [self.interval.low, self.interval.high],
            "count": self.count,
            "labels": {
                label: {"count": int(count), "precision": _divide(hit, total), "recall": _divide(hit, count)}
                for label, hit, count, total in zip(
                    self.labels, hits_L, counts_L, self.confusions_LL.sum(0), strict=True
                )
            },
            "confusions": self.confusions_LL.tolist(),
        }


def score_labels(
    expected: Mapping[str, Sequence[str]],
    predicted: Mapping[str, Sequence[str]],
    speakers: Sequence[Hashable] | None = None,
) -> LabelScore:
    """Compare the labels of utterances by id. Both sides need equally many labels of each utterance.

    The interval resamples whole utterances, or speakers if given, because labels within one are correlated.
    """
    labels = sorted({label for side in (expected, predicted) for names in side.values() for label in names})
    index = {label: number for number, label in enumerate(labels)}
    confusions_LL = np.zeros((len(labels), len(labels)), dtype=np.int64)
    columns_P2 = np.zeros((len(expected), 2))  # errors, labels
    for row, (name, names) in enumerate(expected.items()):
        for left, right in zip(names, predicted[name], strict=True):
            confusions_LL[index[left], index[right]] += 1
            columns_P2[row] += left != right, 1
    sums_G2 = sum_groups(columns_P2, number_groups(speakers, len(expected)))
    errors = find_rate_interval(sums_G2)
    interval = None if errors is None else Interval(max(0.0, 1 - errors.high), 1 - errors.low)
    return LabelScore(tuple(labels), confusions_LL, interval)


def format_label_table(score: LabelScore) -> str:
    """Format precision and recall of each label, and then the confusion matrix."""
    rows = [["label", "count", "precision %", "recall %"]]
    for label, scores in score.to_dict()["labels"].items():
        rows.append(
            [label, str(scores["count"]), percent(scores["precision"], 1), percent(scores["recall"], 1)]
        )
    if len(score.labels) > MAX_TABLE_LABELS:
        return "\n".join([*text_table(rows), "", "--json has the confusion matrix"])
    confusions = [["", *score.labels]]
    for label, counts_L in zip(score.labels, score.confusions_LL.tolist(), strict=True):
        confusions.append([label, *(str(count or ".") for count in counts_L)])
    title = "rows: expected labels, columns: predicted labels"
    return "\n".join([*text_table(rows), "", title, *text_table(confusions)])


def _divide(count: float, total: float) -> float:
    return float(count / total) if total else float("nan")
