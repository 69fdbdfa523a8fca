"""Output of `asr evaluate`: a table of error rates, the confusions of labels, or one JSON object."""

from __future__ import annotations

import json
from typing import Any

from asr.cli.options import plural
from asr.config import Config
from asr.evaluation.classification import LabelledSplit
from asr.evaluation.speech import Decoded, DecodedSplit
from asr.scoring.confusion import LabelScore, format_label_table
from asr.scoring.counting import Score
from asr.scoring.result import without_infinity
from asr.scoring.tables import percent, show_interval, text_table


def print_table(split: DecodedSplit[Config], scores: dict[str, Score]) -> None:
    any_score = next(iter(scores.values()))
    any_way = next(iter(split.ways.values()))
    speakers = f" of {plural(len(set(any_score.speakers)), 'speaker')}" if any_score.speakers else ""
    print(
        f"{plural(len(any_score), 'utterance')}{speakers}, "
        f"{plural(any_score.counts.reference_length, 'word')}, {any_way.audio_seconds:.1f} s of audio\n"
    )
    rows: list[tuple[str, ...]] = [("decoding", "WER %", "95 % interval", "CER %", "real-time factor")]
    rows += [_describe_row(name, scores[name], split.ways[name]) for name in scores]
    print("\n".join(text_table(rows)))


def _describe_row(name: str, score: Score, decoded: Decoded[Config]) -> tuple[str, ...]:
    return (
        name,
        percent(score.error_rate),
        show_interval(score.interval, unknown="-"),
        percent(score.character_error_rate),
        f"{decoded.real_time_factor:.4f}",
    )


def print_labels(split: LabelledSplit, score: LabelScore, kind: str) -> None:
    bounds = show_interval(score.interval, ", 95 % interval {} to {}")
    print(
        f"{plural(len(split.said), 'utterance')}, {plural(score.count, 'label')}, "
        f"{split.audio_seconds:.1f} s of audio, "
        f"real-time factor {split.real_time_factor:.4f}\n"
        f"{kind}accuracy {percent(score.accuracy)} %{bounds}\n\n{format_label_table(score)}"
    )


def describe_ways(split: DecodedSplit[Config], scores: dict[str, Score]) -> dict[str, Any]:
    return {
        name: {
            "score": score.to_dict(),
            "real_time_factor": split.ways[name].real_time_factor,
            "seconds": split.ways[name].seconds,
            "audio_seconds": split.ways[name].audio_seconds,
            "decoding": split.ways[name].config.model_dump(mode="json"),
        }
        for name, score in scores.items()
    }


def print_json(record: dict[str, Any]) -> None:
    print(json.dumps(without_infinity(record), ensure_ascii=False, indent=2, allow_nan=False))
