"""Output of `asr evaluate`: a table of error rates, the confusions of labels, or one JSON object."""

from __future__ import annotations

import json
from typing import Any

from asr.errors import plural
from asr.evaluation.speech import DecodedSplit, EvaluatedSplit
from asr.scoring.counting import Score, describe_choice
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
    if any_score.num_references > 1:
        print(f"references: {describe_choice(any_score.num_references)}\n")
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


def describe_setups(split: EvaluatedSplit, scores: dict[str, Score], config: str) -> dict[str, Any]:
    """`config`: the field of a request that its settings are in."""
    return {
        name: {
            "score": score.to_dict(),
            **split.setups[name].describe_time(),
            "decoding": getattr(split.setups[name].request, config).model_dump(mode="json"),
            "rejected": split.setups[name].warnings,
        }
        for name, score in scores.items()
    }


def print_json(record: dict[str, Any]) -> None:
    print(json.dumps(without_infinity(record), ensure_ascii=False, indent=2, allow_nan=False))
