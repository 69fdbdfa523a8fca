"""Labels in a manifest, either one for a recording or one at each time, and their token ids."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asr.data.manifest import Utterance
from asr.errors import UserError, shorten
from asr.text.normalization import TextConfig, normalize
from asr.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# T encoded steps, K labeled spans

SILENCE = "<silence>"
"""Label at times without any other."""
RECORDING_FIELDS = r"^(speaker|language|text|extras\..+)$"
TIMED_FIELDS = r"^extras\..+$"

_STRETCH = re.compile(r"(\S+):(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class RecordingLabels:
    """One label for the whole recording, from a field of the manifest."""

    unit: ClassVar[str] = ""

    field: str  # speaker, language, text, or extras.NAME
    text: TextConfig  # normalization rules if the field is text; other fields are used unchanged

    def names(self, utterance: Utterance) -> list[str]:
        value = _read_field(utterance, self.field)
        if self.field == "text":
            value = normalize(str(value), self.text.training)
        if value == "":
            raise UserError(f"utterance {utterance.id}: {self.field} is empty; expected the name of a label")
        return [str(value)]

    def at(self, utterance: Utterance, times_T: np.ndarray) -> list[str]:
        return self.names(utterance)


@dataclass(frozen=True)
class FrameLabels:
    """One label for each encoded step: the label at the middle of the step, or silence."""

    unit: ClassVar[str] = "frame"

    field: str  # extras.NAME, with spans as LABEL:BEGIN-END, in seconds from the start of the utterance

    def names(self, utterance: Utterance) -> list[str]:
        return [SILENCE, *read_spans(utterance, self.field).labels]

    def at(self, utterance: Utterance, times_T: np.ndarray) -> list[str]:
        return read_spans(utterance, self.field).at(times_T)


Labels = RecordingLabels | FrameLabels


def encode_labels(names: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Return the token id of each label, or the unknown token if the label did not occur in training."""
    ids = {name: tokenizer.encode(name)[0] for name in set(names)}
    return [ids[name] for name in names]


def find_unseen_labels(
    place: str, utterances: Iterable[Utterance], labels: Labels, tokenizer: Tokenizer
) -> list[str]:
    """Return labels that did not occur in training, and warn. Raises UserError if a label is missing."""
    unseen = sorted({name for item in utterances for name in labels.names(item)}.difference(tokenizer.tokens))
    if unseen:
        logger.warning(
            "%s: %d labels did not occur in training, so they count as errors: %s",
            place, len(unseen), ", ".join(unseen[:5]) + (", ..." if len(unseen) > 5 else ""),
        )  # fmt: skip
    return unseen


# --- spans ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelSpans:
    """Labeled spans of an utterance, ordered by start and without overlap."""

    labels: tuple[str, ...]
    begins_K: np.ndarray
    ends_K: np.ndarray

    def at(self, times_T: np.ndarray) -> list[str]:
        """Return the label at each time. A span includes its start but not its end."""
        last_T = np.searchsorted(self.begins_K, times_T, side="right") - 1
        is_covered_T = (last_T >= 0) & (times_T < np.append(self.ends_K, 0.0)[last_T])
        return [
            self.labels[index] if is_covered else SILENCE
            for index, is_covered in zip(last_T.tolist(), is_covered_T.tolist(), strict=True)
        ]


def read_spans(utterance: Utterance, field: str) -> LabelSpans:
    text = _read_field(utterance, field)
    place = f"utterance {utterance.id}, {field}"
    labels: list[str] = []
    begins: list[float] = []
    ends: list[float] = []
    for word in str(text).split():
        found = _STRETCH.fullmatch(word)
        if found is None:
            raise UserError(f"{place}: {shorten(word)}; expected LABEL:BEGIN-END in seconds, as SIX:0.25-0.5")
        begin, end = float(found[2]), float(found[3])
        if begin > end or (ends and begin < ends[-1]):
            raise UserError(
                f"{place}: {shorten(word)} ends before it begins, or begins before the previous span ends; "
                "expected spans in order, without overlap"
            )
        labels.append(found[1])
        begins.append(begin)
        ends.append(end)
    return LabelSpans(tuple(labels), np.array(begins), np.array(ends))


def _read_field(utterance: Utterance, field: str) -> str | int | float | bool:
    section, _, name = field.partition(".")
    value = utterance.extras.get(name) if section == "extras" else getattr(utterance, field)
    if value is None:
        raise UserError(
            f"utterance {utterance.id} has no {field}, which should contain the label; "
            "add it, or set model.label to another field"
        )
    return value
