"""One HTML page about a score: intervals, confusions, error by length, and utterances to search and play."""

from __future__ import annotations

import html
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from asr.files import replace_file
from asr.scoring.result import RATE_NAMES, Score, UtteranceScore, most_common, tabulate
from asr.scoring.scored_files import ScoredFile
from asr.scoring.significance import Comparison
from asr.scoring.tables import html_table, percent, show_interval
from asr.transcripts.readers import Entry, TranscriptFile

MAX_UTTERANCES = 5000  # in the page; a browser searches so many without a pause
HEAT_MAP_UNITS = 20
PLAYABLE = (".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".mp4", ".webm", ".aac")

# The script of the page fills this table from the records, which follow one by one.
UTTERANCES = """\
<p><input id="search" type="search" placeholder="search in ids, speakers, texts" size="40">
<label><input id="wrong" type="checkbox"> with errors only</label> <span id="found"></span></p>
<p class="quiet">A click on a word plays it, where the file of hypotheses tells its time; else the
utterance. <span class="sub">substituted</span> <span class="case">other case only</span>
<span class="del">deleted</span> <span class="ins">inserted</span></p>
<p><audio id="player" controls></audio></p>
<table><thead><tr><th data-key="0">id</th><th data-key="1">speaker</th><th data-key="2">errors</th>
<th data-key="3">length</th><th>alignment</th></tr></thead><tbody id="utterances"></tbody></table>
"""


@dataclass(frozen=True)
class Report:
    """Everything that `asr score` prints, and shows on the page."""

    reference: TranscriptFile
    systems: tuple[ScoredFile, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    settings: Mapping[str, str]
    by: Mapping[str, Sequence[Mapping[str, Score]]]
    """For each field, such as speaker or length, and each system: a score for each value."""


def write_report(path: str, report: Report) -> None:
    """Write the page; it needs no other file, but for the audio, which stays where it is."""
    with replace_file(path) as file:
        for part in build_page(report, os.path.dirname(os.path.abspath(path))):
            file.write(part.encode())


def build_page(report: Report, folder: str) -> Iterator[str]:
    """The parts of the page, which will lie in `folder`."""
    title = _text(f"{report.reference.path}: {', '.join(system.name for system in report.systems)}")
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{title}</title>\n<style>\n{_read_part('css')}</style></head>\n<body>\n<h1>{title}</h1>\n"
    settings = ", ".join(f"{name}: {value}" for name, value in report.settings.items())
    yield f'<p class="quiet">{_text(settings)}</p>\n'
    notes = "".join(f"<li>{_text(note)}</li>" for note in report.notes)
    yield f'<ul class="notes">{notes}</ul>\n' if notes else ""
    scores = [((system.name,), system.score) for system in report.systems]
    yield "<h2>Summary</h2>\n" + html_table(tabulate(("system",), scores))
    for comparison in report.comparisons:
        yield f'<p class="verdict">{_text(str(comparison))}</p>\n'
    yield _draw_intervals(report.systems)
    for field, groups in report.by.items():
        rows = [
            ((system.name, value), score)
            for system, own in zip(report.systems, groups, strict=True)
            for value, score in own.items()
        ]
        yield f"<h2>By {_text(field)}</h2>\n" + html_table(tabulate(("system", field), rows))
    for system in report.systems:
        yield _draw_heat_map(system)
    yield from _draw_utterances(report, folder)
    yield "</body></html>\n"


def _text(text: str) -> str:
    return html.escape(text)


def _read_part(suffix: str) -> str:
    """Style and script, which stand beside this file."""
    return Path(__file__).with_suffix(f".{suffix}").read_text(encoding="utf-8")


def _draw_intervals(systems: Sequence[ScoredFile]) -> str:
    """A bar from low to high for each system, and a dot for what was measured, on one scale."""
    scores = [system.score for system in systems]
    intervals = [score.interval for score in scores if score.interval is not None]
    if len(intervals) < len(scores):
        return ""
    ends = [*(score.error_rate for score in scores), *(interval.high for interval in intervals)]
    top = max([end for end in ends if end < float("inf")], default=0) or 0.01
    rows = []
    for system, interval in zip(systems, intervals, strict=True):
        low, high, dot = (
            100 * min(x, top) / top for x in (interval.low, interval.high, system.score.error_rate)
        )
        label = f"{percent(system.score.error_rate)} {show_interval(interval, '[{}, {}]')}"
        rows.append(
            f'<tr><td>{_text(system.name)}</td><td class="scale" title="{label}">'
            f'<i style="left: {low:.2f}%; right: {100 - high:.2f}%"></i>'
            f'<b style="left: {dot:.2f}%"></b></td></tr>\n'
        )
    name, first = RATE_NAMES[scores[0].unit], scores[0]
    title = f"{name} from 0 to {percent(top)} %, with its {100 * first.confidence:g} % interval"
    title += f" by {first.resampled_by}"
    return f'<h2>{title}</h2>\n<table id="intervals">{"".join(rows)}</table>\n'


def _draw_heat_map(system: ScoredFile) -> str:
    """The units that are confused most often; a darker cell is a more frequent one."""
    confusions = system.score.error_counts["confusions"]
    if not confusions:
        return ""
    substituted, predicted = Counter[str](), Counter[str]()
    for (first, _), count in confusions.items():
        substituted[first] += count
    rows = [unit for unit, _ in most_common(substituted, HEAT_MAP_UNITS)]
    shown = Counter({pair: count for pair, count in confusions.items() if pair[0] in set(rows)})
    for (_, second), count in shown.items():
        predicted[second] += count
    columns = [unit for unit, _ in most_common(predicted, HEAT_MAP_UNITS)]
    head = "".join(f"<th><span>{_name_unit(unit)}</span></th>" for unit in columns)
    lines = [f"<tr><th>reference \\ hypothesis</th>{head}</tr>"]
    for row in rows:
        cells = []
        for column in columns:
            # Light enough for black numbers: contrast of 7 and more.
            shade = (
                f' style="background: rgb(190 30 45 / {0.5 * shown[row, column] / max(shown.values()):.2f})"'
            )
            count = shown[row, column]
            cells.append(f"<td{shade if count else ''}>{count or ''}</td>")
        lines.append(f"<tr><th>{_name_unit(row)}</th>{''.join(cells)}</tr>")
    title = f"{_text(system.name)}: confusions, {len(rows)} of {len(substituted):,} substituted units"
    return f'<h2>{title}</h2>\n<table class="heat">{"".join(lines)}</table>\n'


def _name_unit(unit: str) -> str:
    return f"<bdi>{_text(unit) if unit.strip() else '(space)'}</bdi>"


def _draw_utterances(report: Report, folder: str) -> Iterator[str]:
    total = len(report.systems[0].score)
    errors = np.sum([system.score.errors_P for system in report.systems], axis=0)
    order = sorted(range(total), key=lambda number: (-int(errors[number]), number))[:MAX_UTTERANCES]
    shown = "" if total <= MAX_UTTERANCES else f", the {MAX_UTTERANCES:,} with most errors"
    yield f"<h2>Utterances: {total:,}{shown}</h2>\n{UTTERANCES}"
    names = _to_script([system.name for system in report.systems])
    yield f'<script type="application/json" id="names">{names}</script>\n'
    yield '<script type="application/json" id="records">['
    for place, number in enumerate(order):
        yield (",\n" if place else "\n") + _to_script(_build_record(report, number, folder))
    yield f"\n]</script>\n<script>\n{_read_part('js')}</script>\n"


def _to_script(value: Any) -> str:
    dumped = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return dumped.replace("<", "\\u003c")  # no </script>, nor <!--, may stand inside a script


def _build_record(report: Report, number: int, folder: str) -> list[Any]:
    """[id, speaker, errors, length, audio or null, [start, end], one alignment for each system]."""
    utterances = [system.score.utterances[number] for system in report.systems]
    first = utterances[0]
    entry = report.reference.entries[first.id]
    entries = [system.entries.get(first.id) for system in report.systems]
    audio = None
    for own in (entry, *entries):
        if (
            audio is None
            and own
            and own.audio
            and own.audio.lower().endswith(PLAYABLE)
            and os.path.isfile(own.audio)
        ):
            audio = quote(os.path.relpath(own.audio, folder).replace(os.sep, "/"))
    end = None if entry.start is None or entry.duration is None else entry.start + entry.duration
    alignments = [_build_alignment(*pair) for pair in zip(utterances, entries, strict=True)]
    errors, length = sum(own.counts.errors for own in utterances), first.counts.reference_length
    return [first.id, entry.speaker or "", errors, length, audio, [entry.start or 0, end], alignments]


def _build_alignment(utterance: UtteranceScore, entry: Entry | None) -> list[list[Any]]:
    """[letter, reference, hypothesis, its start in seconds or null] for each step; x: only case differs.

    Starts are known if the words of the file are those that were scored.
    """
    words = () if entry is None or utterance.unit != "words" else entry.words
    times = (
        [round(word.start, 3) for word in words] if len(words) == len(utterance.hypothesis.split()) else []
    )
    steps: list[list[Any]] = []
    position = 0
    for operation in utterance.operations:
        kind, reference, hypothesis = operation
        letter = "x" if operation.is_case_only else kind[0]
        steps.append([letter, reference, hypothesis, times[min(position, len(times) - 1)] if times else None])
        position += hypothesis is not None
    return steps
