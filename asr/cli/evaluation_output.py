"""Output of `asr evaluate`: a table of error rates, the confusions of labels, or one JSON object."""

from __future__ import annotations

import json
from typing import Any

from asr.cli.options import plural
from asr.evaluation.classification import LabelledSplit
from asr.evaluation.mixtures import MultiSpeakerSplit
from asr.evaluation.speech import DecodedSplit, EvaluatedSplit
from asr.scoring.confusion import LabelScore, format_label_table
from asr.scoring.counting import Score
from asr.scoring.result import without_infinity
from asr.scoring.tables import percent, show_interval, text_table


def print_table(split: EvaluatedSplit, scores: dict[str, Score], checks: str) -> None:
    any_score = next(iter(scores.values()))
    any_setup = next(iter(split.setups.values()))
    speakers = f" of {plural(len(set(any_score.speakers)), 'speaker')}" if any_score.speakers else ""
    print(
        f"{plural(len(any_score), 'utterance')}{speakers}, "
        f"{plural(any_score.counts.reference_length, 'word')}, {any_setup.audio_seconds:.1f} s of audio, "
        f"checks: {checks}\n"
    )
    rows: list[tuple[str, ...]] = [
        (
            *("decoding", "WER %", "95 % interval", "CER %", "95 % interval"),
            *("real-time factor", "rejected"),
        )
    ]
    rows += [_describe_row(name, scores[name], split.setups[name]) for name in scores]
    print("\n".join(text_table(rows)))


def _describe_row(name: str, score: Score, decoded: DecodedSplit) -> tuple[str, ...]:
    return (
        name,
        percent(score.error_rate),
        show_interval(score.interval, unknown="-"),
        percent(score.character_error_rate),
        show_interval(score.character_interval, unknown="-"),
        f"{decoded.real_time_factor:.4f}",
        str(len(decoded.warnings)),
    )


def print_speakers(split: MultiSpeakerSplit, score: Score) -> None:
    print(
        f"{plural(len(split.texts), 'utterance')} of several speakers, "
        f"{plural(score.counts.reference_length, 'word')}, {split.audio_seconds:.1f} s of audio, "
        f"real-time factor {split.real_time_factor:.4f}\n"
        f"speakers are assigned with the fewest errors\n\n{score}"
    )


def print_labels(split: LabelledSplit, score: LabelScore, kind: str) -> None:
    bounds = show_interval(score.interval, ", 95 % interval {} to {}")
    print(
        f"{plural(len(split.predicted), 'utterance')}, {plural(score.count, 'label')}, "
        f"{split.audio_seconds:.1f} s of audio, "
        f"real-time factor {split.real_time_factor:.4f}\n"
        f"{kind}accuracy {percent(score.accuracy)} %{bounds}\n\n{format_label_table(score)}"
    )


def describe_setups(split: EvaluatedSplit, scores: dict[str, Score], config: str) -> dict[str, Any]:
    """`config`: the field of a request that its settings are in."""
    return {
        name: {
            "score": score.to_dict(),
            "real_time_factor": split.setups[name].real_time_factor,
            "seconds": split.setups[name].seconds,
            "audio_seconds": split.setups[name].audio_seconds,
            "decoding": getattr(split.setups[name].request, config).model_dump(mode="json"),
            "rejected": split.setups[name].warnings,
        }
        for name, score in scores.items()
    }


def print_json(record: dict[str, Any]) -> None:
    print(json.dumps(without_infinity(record), ensure_ascii=False, indent=2, allow_nan=False))
