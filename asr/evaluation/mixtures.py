"""Decode a split in which several speak at once: the texts of all heads, scored in the best assignment."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from asr.data.manifest import Utterance
from asr.decoding.core import Stopwatch
from asr.decoding.hypothesis import find_best_paths
from asr.evaluation.speech import Normalizer, batch_utterances, encode_batch, read_batch
from asr.files import replace_file
from asr.models import MultiSpeakerModel
from asr.scoring.counting import Score, score
from asr.scoring.speakers import assign_texts
from asr.system.checkpoint import System
from asr.transcripts.transcript import Segment, Transcript
from asr.transcripts.writers import format_transcript

# B utterances of a batch, S speakers, T encoded steps, V vocabulary


@dataclass
class MultiSpeakerSplit:
    """The texts of the utterances that could be read, and the faults of the others."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    """id to the text of each head, as the model wrote it."""
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
def decode_speakers(
    system: System[MultiSpeakerModel],
    utterances: Sequence[Utterance],
    *,
    device: torch.device,
    batch_size: int = 8,
    report: Callable[[float], None] = lambda seconds: None,
) -> MultiSpeakerSplit:
    """Decode the best path of each head. A file that cannot be read is a fault of its utterances alone.

    `report` is told the seconds of audio of each batch that is done.
    """
    model, front_end = system.model.to(device).eval(), system.front_end.to(device)
    sample_rate = front_end.config.sample_rate
    split = MultiSpeakerSplit()
    for batch in batch_utterances(utterances, batch_size):
        read = read_batch(batch, sample_rate, split.faults)
        stopwatch = Stopwatch(device)
        read, output = encode_batch(model.ctc_log_probabilities, front_end, read, device, split.faults)
        if output is not None:
            log_probabilities_BSTV, lengths_B = output
            heads = [find_best_paths(head, lengths_B).texts() for head in log_probabilities_BSTV.unbind(1)]
            split.seconds += stopwatch.read()
            for (item, _), *texts in zip(read, *heads, strict=True):
                split.texts[item.id] = [system.tokenizer.decode(tokens) for tokens in texts]
        seconds = sum(len(audio) for _, audio in read) / sample_rate
        split.audio_seconds += seconds
        report(seconds)
    return split


def score_speakers(
    split: MultiSpeakerSplit, utterances: Sequence[Utterance], normalizer: Normalizer
) -> Score:
    """Score each text of an utterance against that of the head that is assigned to it; an utterance is drawn
    as a whole."""
    references: dict[str, str] = {}
    hypotheses: dict[str, str] = {}
    recordings: dict[str, str] = {}
    for item in utterances:
        if item.id not in split.texts:
            continue
        heard = [normalizer(text) for text in split.texts[item.id]]
        said = [normalizer(text) for text in item.find_texts(len(heard))]
        ids = [f"{item.id}:{number}" for number in range(1, len(said) + 1)]
        references |= dict(zip(ids, said, strict=True))
        rows = assign_texts(said, heard, str.split)
        hypotheses |= {ids[row]: text for row, text in zip(rows, heard, strict=True)}
        recordings |= dict.fromkeys(ids, item.id)
    return score(references, hypotheses, recordings=recordings)


def write_speakers(
    folder: str | Path, split: MultiSpeakerSplit, utterances: Sequence[Utterance], normalizer: Normalizer
) -> None:
    """Write reference.stm and hypothesis.stm, each text in a channel of its own.

    `asr score --align speakers reference.stm hypothesis.stm` finds the same rate.
    """
    known = [item for item in utterances if item.id in split.texts]
    sides = {
        "reference": [(item, item.find_texts(len(split.texts[item.id]))) for item in known],
        "hypothesis": [(item, split.texts[item.id]) for item in known],
    }
    for name, rows in sides.items():
        with replace_file(Path(folder) / f"{name}.stm") as file:
            for item, texts in rows:
                segments = tuple(
                    Segment(0.0, item.duration, normalizer(text), channel=number)
                    for number, text in enumerate(texts, 1)
                )
                transcript = Transcript(item.id, item.audio, item.duration, segments)
                file.write(format_transcript("stm", transcript).encode())
