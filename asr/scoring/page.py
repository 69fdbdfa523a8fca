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
from asr.transcripts.line_formats import Entry
from asr.transcripts.readers import TranscriptFile

MAX_UTTERANCES = 5000  # in the page; a browser searches so many without a pause
HEAT_MAP_UNITS = 20
PLAYABLE = (".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".mp4", ".webm", ".aac")


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
    title = f"{report.reference.path}: {', '.join(system.name for system in report.systems)}"
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{html.escape(title)}</title>\n<style>\n{_read_part('css')}</style></head>\n"
    yield f"<body>\n<h1>{html.escape(title)}</h1>\n"
    settings = ", ".join(f"{name}: {value}" for name, value in report.settings.items())
    yield f'<p class="quiet">{html.escape(settings)}</p>\n'
    if report.notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in report.notes)
        yield f'<ul class="notes">{items}</ul>\n'
    scores = [((system.name,), system.score) for system in report.systems]
    yield "<h2>Summary</h2>\n" + html_table(tabulate(("system",), scores))
    for comparison in report.comparisons:
        yield f'<p class="verdict">{html.escape(str(comparison))}</p>\n'
    yield _draw_intervals(report)
    for field in report.by:
        yield _draw_groups(report, field)
    for system in report.systems:
        yield _draw_heat_map(system)
    yield from _draw_utterances(report, folder)
    yield "</body></html>\n"


def _read_part(suffix: str) -> str:
    """Style and script, which stand beside this file."""
    return Path(__file__).with_suffix(f".{suffix}").read_text(encoding="utf-8")


def _draw_groups(report: Report, field: str) -> str:
    """The table of each system for one field, below each other."""
    scores = [
        ((system.name, value), score)
        for system, groups in zip(report.systems, report.by[field], strict=True)
        for value, score in groups.items()
    ]
    return f"<h2>By {html.escape(field)}</h2>\n" + html_table(tabulate(("system", field), scores))


def _draw_intervals(report: Report) -> str:
    """A line from low to high for each system, and a dot for what was measured."""
    scores = [system.score for system in report.systems]
    if any(score.interval is None for score in scores):
        return ""
    ends = [end for score in scores if score.interval for end in (score.interval.high, score.error_rate)]
    top = max([end for end in ends if end < float("inf")], default=0) or 0.01
    left, width, row = 180, 560, 28
    parts = []
    for number, system in enumerate(report.systems):
        interval, rate = system.score.interval, min(system.score.error_rate, top)
        assert interval is not None
        y = 20 + row * number
        low, high, middle = (left + width * min(x, top) / top for x in (interval.low, interval.high, rate))
        label = f"{percent(rate)} {show_interval(interval, '[{}, {}]')}"
        parts.append(
            f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{html.escape(system.name[-24:])}</text>'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" class="interval"/>'
            f'<circle cx="{middle:.1f}" cy="{y}" r="5"><title>{html.escape(label)}</title></circle>'
        )
    y = 20 + row * len(report.systems)
    for step in range(5):
        x, value = left + width * step / 4, top * step / 4
        parts.append(
            f'<text x="{x:.0f}" y="{y + 12}" text-anchor="middle" class="tick">{100 * value:.1f}</text>'
        )
    name, drawn = RATE_NAMES[scores[0].unit], scores[0].resampled_by
    size = f'width="{left + width + 40}" height="{y + 20}"'
    return (
        f"<h2>{name} in percent, with its {100 * scores[0].confidence:g} % interval by {drawn}</h2>\n"
        f'<svg {size} id="intervals">{"".join(parts)}</svg>\n'
    )


def _draw_heat_map(system: ScoredFile) -> str:
    """The units that are confused most often; a darker cell is a more frequent one."""
    confusions = system.score.confusions
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
    top = max(shown.values())
    head = "".join(f"<th><span>{_text(unit)}</span></th>" for unit in columns)
    lines = [f"<tr><th>reference \\ hypothesis</th>{head}</tr>"]
    for row in rows:
        cells = []
        for column in columns:
            count = shown[row, column]
            cells.append(f"<td{_shade(count / top) if count else ''}>{count or ''}</td>")
        lines.append(f"<tr><th>{_text(row)}</th>{''.join(cells)}</tr>")
    return (
        f"<h2>{html.escape(system.name)}: confusions, {len(rows)} of {len(substituted):,} substituted units"
        f'</h2>\n<table class="heat">{"".join(lines)}</table>\n'
    )


def _shade(share: float) -> str:
    """A red that darkens with the share, and black or white for the number: whichever can be read."""
    opacity = 0.15 + 0.85 * share
    background = [round(255 + (part - 255) * opacity) for part in (190, 30, 45)]
    # Relative luminance, and where both have the same contrast, by the Web Content Accessibility Guidelines.
    linear = [(part / 255 + 0.055) ** 2.4 / 1.055**2.4 for part in background]
    luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    ink = "#fff" if luminance < 0.179 else "#000"
    return f' style="background: rgb({" ".join(map(str, background))}); color: {ink}"'


def _text(unit: str) -> str:
    return f"<bdi>{html.escape(unit) if unit.strip() else '(space)'}</bdi>"


def _draw_utterances(report: Report, folder: str) -> Iterator[str]:
    """A table that the script of the page fills from the records, which follow one by one."""
    total = len(report.systems[0].score)
    errors = np.sum([system.score.errors_P for system in report.systems], axis=0)
    order = sorted(range(total), key=lambda number: (-int(errors[number]), number))[:MAX_UTTERANCES]
    shown = "" if total <= MAX_UTTERANCES else f", the {MAX_UTTERANCES:,} with most errors"
    yield f"<h2>Utterances: {total:,}{shown}</h2>\n"
    yield (
        '<p><input id="search" type="search" placeholder="search in ids, speakers, texts" size="40">\n'
        '<label><input id="wrong" type="checkbox"> with errors only</label> <span id="found"></span></p>\n'
        '<p class="quiet">A click on a word plays it, where the file of hypotheses tells its time; else the '
        'utterance. <span class="sub">substituted</span> '
        '<span class="case">other case only</span> <span class="del">deleted</span> '
        '<span class="ins">inserted</span></p>\n<p><audio id="player" controls></audio></p>\n'
        '<table><thead><tr><th data-key="0">id</th><th data-key="1">speaker</th><th data-key="2">errors</th>'
        '<th data-key="3">length</th><th>alignment</th></tr></thead><tbody id="utterances"></tbody></table>\n'
    )
    names = _to_script([system.name for system in report.systems])
    yield f'<script type="application/json" id="names">{names}</script>\n'
    yield '<script type="application/json" id="records">['
    for place, number in enumerate(order):
        yield (",\n" if place else "\n") + _to_script(_build_record(report, number, folder))
    yield f"\n]</script>\n<script>\n{_read_part('js')}</script>\n"


def _to_script(value: Any) -> str:
    # No </script>, nor <!--, may stand inside a script.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )


def _build_record(report: Report, number: int, folder: str) -> list[Any]:
    """[id, speaker, errors, length, audio or null, [start, end], one alignment for each system]."""
    utterances = [system.score.utterances[number] for system in report.systems]
    first = utterances[0]
    entry = report.reference.entries[first.id]
    entries = [system.entries.get(first.id) for system in report.systems]
    audio = _find_audio([entry, *(own for own in entries if own is not None)], folder)
    end = None if entry.start is None or entry.duration is None else entry.start + entry.duration
    pairs = zip(utterances, entries, strict=True)
    alignments = [_build_alignment(own, hypothesis) for own, hypothesis in pairs]
    errors = sum(utterance.counts.errors for utterance in utterances)
    span = [entry.start or 0, end]
    return [first.id, entry.speaker or "", errors, first.counts.reference_length, audio, span, alignments]


def _find_audio(entries: Sequence[Entry], folder: str) -> str | None:
    """The address of the file as seen from the page, if it is there and a browser can play it."""
    for entry in entries:
        if entry.audio and entry.audio.lower().endswith(PLAYABLE) and os.path.isfile(entry.audio):
            return quote(os.path.relpath(entry.audio, folder).replace(os.sep, "/"))
    return None


def _build_alignment(utterance: UtteranceScore, entry: Entry | None) -> list[list[Any]]:
    """[letter, reference, hypothesis, its start in seconds or null] for each step; x: only case differs."""
    times = _find_times(utterance, entry)
    steps: list[list[Any]] = []
    position = 0
    for operation in utterance.operations:
        kind, reference, hypothesis = operation
        letter = "x" if operation.is_case_only else kind[0]
        steps.append([letter, reference, hypothesis, times[min(position, len(times) - 1)] if times else None])
        position += hypothesis is not None
    return steps


def _find_times(utterance: UtteranceScore, entry: Entry | None) -> list[float]:
    """The start of each word of the hypothesis, if the words of the file are those that were scored."""
    if entry is None or utterance.unit != "words" or len(entry.words) != len(utterance.hypothesis.split()):
        return []
    return [round(word.start, 3) for word in entry.words]
