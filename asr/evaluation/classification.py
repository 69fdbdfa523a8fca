"""Classify a split: predicted and expected labels, how good and how fast the classifier is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from asr.data.labels import Labels
from asr.data.manifest import Utterance
from asr.decoding.core import Stopwatch
from asr.evaluation.speech import batch_utterances, encode_batch, read_batch
from asr.files import replace_file
from asr.models import LabelModel
from asr.models.encoder import make_clock
from asr.models.label_model import FIRST_LABEL_ID
from asr.scoring.confusion import LabelScore, score_labels
from asr.system.checkpoint import System

# B utterances of a batch, S samples, N labels of an utterance, L all labels there are


@dataclass
class LabelledSplit:
    """The labels of the utterances that could be read, and the faults of the others."""

    expected: dict[str, list[str]] = field(default_factory=dict)
    """id to labels: one, or one for each encoded step."""
    predicted: dict[str, list[str]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """id to message."""
    seconds: float = 0.0
    """Of computing: features and model, without reading files."""
    audio_seconds: float = 0.0

    @property
    def real_time_factor(self) -> float:
        """Seconds of computing for a second of audio."""
        return self.seconds / self.audio_seconds if self.audio_seconds else math.nan


@torch.inference_mode()
def label_utterances(
    system: System[LabelModel],
    labels: Labels,
    utterances: Sequence[Utterance],
    *,
    device: torch.device,
    batch_size: int = 8,
    report: Callable[[float], None] = lambda seconds: None,
) -> LabelledSplit:
    """Classify each utterance as it stands in the manifest.

    A file that cannot be read, is shorter than a frame or too long for the model, is a fault of its
    utterances, not of the rest.
    `report` is told the seconds of audio of each batch that is done.
    """
    model, front_end = system.model.to(device).eval(), system.front_end.to(device)
    clock = make_clock(system.config.features, model.encoder)
    sample_rate = front_end.config.sample_rate
    split = LabelledSplit()
    for batch in batch_utterances(utterances, batch_size):
        read = []
        for item, audio in read_batch(batch, sample_rate, split.faults):
            if front_end.num_frames(len(audio)) > 0:
                read.append((item, audio))
            else:
                split.faults[item.id] = f"{item.audio}: {len(audio)} samples are too short for one frame"
        stopwatch = Stopwatch(device)
        read, labelled = encode_batch(model.label, front_end, read, device, split.faults)
        if labelled is not None:
            scores_BNL, counts_B = labelled
            ids_BN = (scores_BNL.argmax(-1) + FIRST_LABEL_ID).tolist()
            split.seconds += stopwatch.read()
            for (item, _), ids, count in zip(read, ids_BN, counts_B.tolist(), strict=True):
                split.predicted[item.id] = [system.tokenizer.tokens[id] for id in ids[:count]]
                split.expected[item.id] = labels.at(item, clock.times(count))
        seconds = sum(len(audio) for _, audio in read) / sample_rate
        split.audio_seconds += seconds
        report(seconds)
    return split


def score_split(split: LabelledSplit, utterances: Sequence[Utterance], label: str) -> LabelScore:
    """Score those that could be read. Where the speaker is the label, utterances are drawn for the interval,
    else speakers, if all are known."""
    speakers = {item.id: item.speaker for item in utterances}
    known = [speakers[name] for name in split.expected]
    are_drawn = label != "speaker" and None not in known
    return score_labels(split.expected, split.predicted, known if are_drawn else None)


def write_labels(folder: str | Path, split: LabelledSplit) -> Path:
    """Write labels.jsonl: the labels of each utterance, expected and predicted."""
    path = Path(folder) / "labels.jsonl"
    with replace_file(path) as file:
        for name, expected in split.expected.items():
            record = {"id": name, "expected": expected, "said": split.predicted[name]}
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return path
