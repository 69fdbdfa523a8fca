"""Write an HTML report: tables, and utterances to search and play."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from asr.files import replace_file
from asr.scoring.result import Score, tabulate, without_infinity
from asr.scoring.scored_files import ScoredFile
from asr.scoring.significance import Comparison
from asr.transcripts.readers import TranscriptFile

MAX_UTTERANCES = 5000  # a browser searches this many without a noticeable delay
PLAYABLE = (".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".mp4", ".webm", ".aac")


@dataclass(frozen=True)
class Report:
    """Everything that `asr score` prints and the HTML report shows."""

    reference: TranscriptFile
    systems: tuple[ScoredFile, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, str]
    by: Mapping[str, Sequence[Mapping[str, Score]]]  # score by field (such as speaker), system and value


def write_report(path: str, report: Report) -> None:
    """Write the report as one file; only the audio is linked, where it is."""
    with replace_file(path) as file:
        file.writelines(part.encode() for part in build_page(report, os.path.dirname(os.path.abspath(path))))


def build_page(report: Report, folder: str) -> Iterator[str]:
    """Yield the parts of the page for `folder`; the script in page.html draws the records."""
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    head, rest = template.split("@report@")
    between, end = rest.split("@records@")
    total = len(report.systems[0].score)
    errors = np.sum([system.score.errors_P for system in report.systems], axis=0)
    order = sorted(range(total), key=lambda number: (-int(errors[number]), number))[:MAX_UTTERANCES]
    yield head + _to_script(_describe(report)) + between + "["
    for place, number in enumerate(order):
        yield (",\n" if place else "\n") + _to_script(_build_record(report, number, folder))
    yield "\n]" + end


def _to_script(value: Any) -> str:
    dumped = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return dumped.replace("<", "\\u003c")  # a script must not contain </script> or <!--


def _describe(report: Report) -> dict[str, Any]:
    """Describe everything above the utterances: texts, and tables as rows of cells."""
    names, scores = zip(*((system.name, system.score) for system in report.systems), strict=True)
    total = len(scores[0])
    shown = "" if total <= MAX_UTTERANCES else f", the {MAX_UTTERANCES:,} with most errors"
    settings = {"reference": report.reference.path, **report.settings, "intervals by": scores[0].resampled_by}
    return {
        "title": f"{os.path.basename(report.reference.path)}: {', '.join(names)}",
        "names": names,
        "settings": ", ".join(f"{name}: {value}" for name, value in settings.items()),
        "notes": report.notes,
        "verdicts": [str(comparison) for comparison in report.comparisons],
        "summary": tabulate(("system",), [((own.name,), own.score) for own in report.systems]),
        "rates": [_find_rates(score) for score in scores],
        "by": [[field, _compare(by_system)] for field, by_system in report.by.items()],
        "utterances": f"Utterances: {total:,}{shown}",
    }


def _find_rates(score: Score) -> list[float | None]:
    """Return the rate and its interval as fractions; null if unknown or infinite."""
    ends = [score.interval.low, score.interval.high] if score.interval else [None, None]
    found: list[float | None] = without_infinity([score.error_rate, *ends])
    return found


def _compare(by_system: Sequence[Mapping[str, Score]]) -> list[list[Any]]:
    """Return [value, utterances, units, rates of each system] for each value."""
    rows = (
        (value, own, [_find_rates(other[value]) for other in by_system])
        for value, own in by_system[0].items()
    )
    return [[value, len(own), own.counts.reference_length, rates] for value, own, rates in rows]


def _build_record(report: Report, number: int, folder: str) -> list[Any]:
    """Return [id, speaker, errors, length, audio or null, [start, end], alignments by system]."""
    utterances = [system.score.utterances[number] for system in report.systems]
    first = utterances[0]
    entry = report.reference.entries[first.id]
    path, audio = entry.audio or "", None
    if path.lower().endswith(PLAYABLE) and os.path.isfile(path):
        audio = quote(os.path.relpath(path, folder).replace(os.sep, "/"))
    end = None if entry.start is None or entry.duration is None else entry.start + entry.duration
    alignments = [  # steps are [letter, reference, hypothesis]; x: only case differs
        [["x" if step.is_case_only else step.kind[0], *step[1:]] for step in own.operations]
        for own in utterances
    ]
    errors, length = sum(own.counts.errors for own in utterances), first.counts.reference_length
    return [first.id, entry.speaker or "", errors, length, audio, [entry.start or 0, end], alignments]
