"""Score and compare the systems of a report.

All rates in results.json follow from the table next to it, test.jsonl.gz, which has a line for each utterance
with its reference and the hypothesis of each run. Anyone can compute the rates again, as tests do.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.data.manifest import find_more_references
from asr.errors import UserError
from asr.files import replace_file
from asr.scoring.counting import score
from asr.scoring.intervals import Interval
from asr.scoring.result import Score
from asr.scoring.significance import compare_scores

References = dict[str, dict[str, str]]
"""The text of each ID and, if known, its speaker and further references (reference_2 and so on)."""
Texts = dict[str, str]  # text by ID
Record = Mapping[str, Any]  # summary.json of a run, with its rates


# --- tables -------------------------------------------------------------------------------------


def write_table(path: Path, references: References, hypotheses: Mapping[str, Texts]) -> None:
    """Write a line for each utterance with ID, reference, speaker, and the text of each system."""
    with replace_file(path) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        for id, fields in references.items():
            texts = {name: own[id] for name, own in hypotheses.items() if id in own}
            packed.write(json.dumps({"id": id, **fields, **texts}, ensure_ascii=False).encode() + b"\n")


def read_table(path: Path) -> tuple[References, dict[str, Texts]]:
    """Read the references, and the hypotheses of each system by name."""
    references: References = {}
    hypotheses: dict[str, Texts] = {}
    try:
        records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        for fields in records:
            id = fields.pop("id")
            own = {"text", "speaker", *find_more_references(fields)}
            references[id] = {name: text for name, text in fields.items() if name in own}
            for name in fields.keys() - own:
                hypotheses.setdefault(name, {})[id] = fields[name]
    except (OSError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); run the stage evaluate again") from None
    return references, hypotheses


def setup_name(run: str, setup: str) -> str:
    """Name the column of a run decoded with one setup."""
    return f"{run}.{setup}"


# --- figures ------------------------------------------------------------------------------------


def score_runs(table: Path, baseline: str, runs: Sequence[Record]) -> dict[str, Any]:
    """Compute the rates of results.json from the table and add them to the runs."""
    references, columns = read_table(table)
    hypotheses = {run["name"]: columns[setup_name(run["name"], run["decoding"])] for run in runs}
    systems: dict[str, dict[Any, Record]] = {}  # runs of each system, by seed and left-out speaker
    for run in runs:
        systems.setdefault(run["variant"], {})[run["seed"], run["left_out"]] = run
    # The score of a system with a single run is the score of that run, so compute it once.
    pooled = functools.cache(lambda *own: pool([r for r in runs if r["name"] in own], references, hypotheses))
    scores = {name: pooled(*(run["name"] for run in own.values())) for name, own in systems.items()}
    comparisons = []
    for name, own in systems.items():
        others = systems.get(baseline, {})
        shared = [key for key in own if key in others]  # seeds and folds that both have
        if name != baseline and shared:
            first, second = (pooled(*(side[key]["name"] for key in shared)) for side in (own, others))
            comparisons.append(_compare(name, baseline, first, second))
    first = next(iter(scores.values()))
    return {
        "test": {
            "utterances": len(references),
            "words": sum(len(fields["text"].split()) for fields in references.values()),
            "resampled_by": first.resampled_by,
            **({"references": first.num_references} if first.num_references > 1 else {}),
        },
        "runs": [{**run, **_score_alone(run, references, columns, pooled(run["name"]))} for run in runs],
        "systems": [{"name": name, **_describe_both(found)} for name, found in scores.items()],
        "comparisons": comparisons,
    }


def pool(runs: Sequence[Record], references: References, hypotheses: Mapping[str, Texts]) -> Score:
    """Score all runs as if their utterances were one test set; a fold counts only its left-out speaker."""
    tested = [(run, choose_tested(run, references)) for run in runs]
    return score_texts(
        {f"{run['seed']} {id}": fields for run, own in tested for id, fields in own.items()},
        {f"{run['seed']} {id}": hypotheses[run["name"]][id] for run, own in tested for id in own},
    )


def choose_tested(run: Record, references: References) -> References:
    """Choose the test utterances of a run: its left-out speaker if it has one, else all."""
    left_out = run["left_out"]
    return {id: f for id, f in references.items() if left_out is None or f["speaker"] == left_out}


def score_texts(references: References, hypotheses: Texts, **options: Any) -> Score:
    """Score the texts against the references; the interval resamples speakers if all are known."""
    speakers = {id: fields["speaker"] for id, fields in references.items() if "speaker" in fields}
    return score(
        {id: fields["text"] for id, fields in references.items()},
        {id: hypotheses[id] for id in references},
        speakers=speakers if len(speakers) == len(references) else None,
        alternatives={id: list(find_more_references(fields).values()) for id, fields in references.items()},
        **options,
    )


def round_figures(tree: Any) -> Any:
    """Round to nine decimals as JSON values, because further digits depend on processor and numpy."""
    return json.loads(json.dumps(tree), parse_float=lambda text: round(float(text), 9))


def _score_alone(run: Record, references: References, columns: Mapping[str, Texts], pooled: Score) -> Record:
    """Score one run: its chosen setup, its other setups, and the speakers in its training data."""
    tested = choose_tested(run, references)
    setups = {}
    for setup, before in run["methods"]["test"].items():
        own = columns.get(setup_name(run["name"], setup))
        if own is None:
            setups[setup] = before
            continue
        fresh = pooled if setup == run["decoding"] else score_texts(tested, own, resamples=0)
        setups[setup] = {**before, "wer": fresh.error_rate, "cer": fresh.cer}
    figures = _describe_both(pooled) | {"methods": {**run["methods"], "test": setups}}
    if run["left_out"] is not None:
        known = {id: fields for id, fields in references.items() if id not in tested}
        texts = columns[setup_name(run["name"], run["decoding"])]
        figures["known_speakers"] = describe_score(score_texts(known, texts))
    return figures


def describe_score(score: Score) -> dict[str, Any]:
    """Describe WER and its interval as numbers."""
    return {
        "wer": score.error_rate,
        "interval": _describe_interval(score.interval),
        "errors": score.counts.errors,
        "words": score.counts.reference_length,
    }


def _describe_both(score: Score) -> dict[str, Any]:
    """Describe WER and CER with their intervals."""
    interval = _describe_interval(score.characters.interval)
    return describe_score(score) | {"cer": score.cer, "cer_interval": interval}


def _describe_interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def _compare(name: str, baseline: str, first: Score, second: Score) -> dict[str, Any]:
    """Compare two systems; the difference and its interval are the first minus the second."""
    result = compare_scores(first, second, (name, baseline))
    return {
        "system": name,
        "baseline": baseline,
        "difference": result.difference,
        "interval": _describe_interval(None if result.bootstrap is None else result.bootstrap.interval),
        "p": result.p,
        "verdict": result.verdict,
    }
