"""Evaluate a model of simultaneous speakers: decode all heads, and score their best assignment to texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from asr.data.manifest import Utterance
from asr.decoding.hypothesis import find_best_paths
from asr.errors import plural
from asr.evaluation.speech import make_normalizer
from asr.files import replace_file
from asr.research.classification import ReadSplit, read_split
from asr.research.multi_speaker import MultiSpeakerModel
from asr.scoring.counting import score
from asr.scoring.result import Score
from asr.system.system import System
from asr.transcripts.transcript import Segment, Transcript
from asr.transcripts.writers import format_transcript

# B utterances of a batch, S speakers, T encoded steps, F features, V vocabulary


class SpeakersAtOnce:
    """A model that transcribes simultaneous speakers, and the utterances to evaluate it on."""

    def __init__(
        self, system: System[MultiSpeakerModel], place: str, utterances: Sequence[Utterance]
    ) -> None:
        self._system, self.utterances = system, utterances
        self._normalize = make_normalizer(system.config.text)
        self.about: dict[str, Any] = {}
        for utterance in utterances:
            utterance.find_texts(system.config.model.num_texts)

    @torch.inference_mode()
    def decode(
        self, device: torch.device, batch_size: int, report: Callable[[float], None] = lambda seconds: None
    ) -> ReadSplit:
        """Decode the best path of each head."""
        model, tokenizer = self._system.model.to(device).eval(), self._system.tokenizer

        def find_texts(features_BTF: Tensor, lengths_B: Tensor) -> list[list[str]]:
            log_probabilities_BSTV, lengths_B = model.ctc_log_probabilities(features_BTF, lengths_B)
            heads = [find_best_paths(head, lengths_B).texts() for head in log_probabilities_BSTV.unbind(1)]
            return [[tokenizer.decode(tokens) for tokens in own] for own in zip(*heads, strict=True)]

        return read_split(find_texts, self._system.front_end, self.utterances, device, batch_size, report)

    def score(self, split: ReadSplit) -> Score:
        """Score each text of an utterance with the head assigned to it. The interval resamples whole
        utterances."""
        references: dict[str, str] = {}
        hypotheses: dict[str, str] = {}
        recordings: dict[str, str] = {}
        for item, refs, hyps in self._pair_texts(split):
            ids = [f"{item.id}:{number}" for number in range(1, len(refs) + 1)]
            references |= dict(zip(ids, refs, strict=True))
            rows = assign_texts(refs, hyps)
            hypotheses |= {ids[row]: text for row, text in zip(rows, hyps, strict=True)}
            recordings |= dict.fromkeys(ids, item.id)
        return score(references, hypotheses, recordings=recordings)

    def _pair_texts(self, split: ReadSplit) -> Iterator[tuple[Utterance, list[str], list[str]]]:
        """Yield utterances with normalized references and hypotheses. If an utterance could not be decoded,
        its hypotheses are empty, so its words count as deleted."""
        count = self._system.config.model.num_texts
        for item in self.utterances:
            texts = split.results.get(item.id) or [""] * count
            refs, hyps = (
                [self._normalize(text, None) for text in side] for side in (item.find_texts(count), texts)
            )
            yield item, refs, hyps

    def write(self, folder: str | Path, split: ReadSplit) -> None:
        """Write reference.stm and hypothesis.stm, with each text in its own channel.

        `asr score --metric cpwer reference.stm hypothesis.stm` finds the same rate.
        """
        for side, name in enumerate(("reference", "hypothesis")):
            with replace_file(Path(folder) / f"{name}.stm") as file:
                for item, *sides in self._pair_texts(split):
                    segments = tuple(
                        Segment(0.0, item.duration, text, channel=number)
                        for number, text in enumerate(sides[side], 1)
                    )
                    transcript = Transcript(item.id, item.audio, item.duration, segments)
                    file.write(format_transcript("stm", transcript).encode())

    def describe(self, split: ReadSplit, score: Score) -> dict[str, Any]:
        return {"score": score.to_dict(), **split.describe_time()}

    def format(self, split: ReadSplit, score: Score) -> str:
        return (
            f"{plural(len(split.results), 'utterance')} of several speakers, "
            f"{plural(score.counts.reference_length, 'word')}, {split.audio_seconds:.1f} s of audio, "
            f"real-time factor {split.real_time_factor:.4f}\n"
            f"texts are assigned to speakers with the fewest errors\n\n{score}"
        )


def assign_texts(references: Sequence[str], hypotheses: Sequence[str]) -> list[int]:
    """Assign hypotheses to references with the fewest total errors, and return the indexes of these.

    There are at least as many references as hypotheses. References left over count as deleted.
    """
    from scipy.optimize import linear_sum_assignment

    refs = [text.split() for text in references]
    hyps = [text.split() for text in (*hypotheses, *[""] * (len(references) - len(hypotheses)))]
    errors_HR = np.array([[Levenshtein.distance(ours, theirs) for ours in refs] for theirs in hyps])
    assigned: list[int] = linear_sum_assignment(errors_HR)[1].tolist()
    return assigned[: len(hypotheses)]
