"""Score who speaks when: diarization error rate (DER) by NIST's rules, and Jaccard error rate (JER)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr.errors import UserError
from asr.scoring.intervals import CONFIDENCE, RESAMPLES, Interval, find_rate_interval
from asr.scoring.result import divide, percent, show_interval, text_table, without_infinity
from asr.scoring.scored_files import list_examples, name_systems, split_name
from asr.scoring.significance import Comparison, compute_matched_pairs, resample_pairs
from asr.speakers.turns import Spans, Turn, read_rttm, read_uem

# Shapes: M recordings, K sums, R reference speakers, H hypothesis speakers, I time spans between events.

SUMS = (
    *("speech_seconds", "missed_seconds", "false_alarm_seconds", "confusion_seconds"),
    *("jaccard_errors", "reference_speakers", "hypothesis_speakers"),
)
MAX_CELLS = 50_000_000  # speakers times events in a recording


@dataclass(frozen=True, eq=False)
class TurnScore:
    """The result of `score_turns`."""

    recordings: tuple[str, ...]
    sums_MK: np.ndarray
    """The sums named in SUMS for each recording. Speech is summed over all reference speakers."""

    @property
    def error_rate(self) -> float:
        """DER: missed speech, false alarms and confusion, divided by speech."""
        return divide(*reversed(self.sums_M2.sum(axis=0)))

    @property
    def sums_M2(self) -> np.ndarray:
        """Seconds of speech and of errors."""
        return np.stack([self.sums_MK[:, 0], self.sums_MK[:, 1:4].sum(axis=1)], axis=1)

    @property
    def interval(self) -> Interval | None:
        """Confidence interval of the DER, resampled by recording; None for a single recording."""
        return find_rate_interval(self.sums_M2[:, ::-1]) if len(self.recordings) > 1 else None

    @property
    def jaccard_error_rate(self) -> float:
        """JER: the mean over all reference speakers; NaN if there are none."""
        errors, count = self.sums_MK[:, 4:6].sum(axis=0)
        return float(errors / count) if count else float("nan")

    def split(self) -> dict[str, TurnScore]:
        """Return the score of each recording."""
        rows = zip(self.recordings, self.sums_MK, strict=True)
        return {name: TurnScore((name,), row[None]) for name, row in rows}

    def to_dict(self) -> dict[str, Any]:
        rates = {"error_rate": self.error_rate, "jaccard_error_rate": self.jaccard_error_rate}
        interval = self.interval and [self.interval.low, self.interval.high]
        sums = dict(zip(SUMS, self.sums_MK.sum(axis=0).tolist(), strict=True))
        sums |= {name: int(sums[name]) for name in SUMS[5:]}
        return dict(without_infinity(rates | {"interval": interval} | sums))


def score_turns(
    reference: Iterable[Turn],
    hypothesis: Iterable[Turn],
    *,
    collar: float = 0.0,
    skip_overlap: bool = False,
    uem: Spans | None = None,
) -> TurnScore:
    """Score the parts of recordings in `uem`; without it, the whole of each recording of the reference.

    Hypothesis speakers are mapped to reference speakers so that they share the most time. Only DER, not the
    mapping or JER, leaves out `collar` seconds before and after each start and end of a reference turn, and
    with `skip_overlap` the time in which several reference speakers talk.
    """
    sides: list[dict[str, list[Turn]]] = [defaultdict(list), defaultdict(list)]
    for side, turns in zip(sides, (reference, hypothesis), strict=True):
        for turn in turns:
            side[turn.recording].append(turn)
    names = tuple(sides[0] if uem is None else uem)
    rows = []
    for name in names:
        refs, hyps = (side.get(name, []) for side in sides)
        spans = [(0.0, max(turn.end for turn in [*refs, *hyps]))] if uem is None else uem[name]
        rows.append(_score_recording(refs, hyps, spans, collar, skip_overlap))
    return TurnScore(names, np.array(rows).reshape(len(rows), len(SUMS)))


def _score_recording(
    refs: list[Turn], hyps: list[Turn], spans: Sequence[tuple[float, float]], collar: float, skip: bool
) -> list[float]:
    """Return the columns of SUMS. Times are not rounded; between two events, the speakers do not change."""
    from scipy.optimize import linear_sum_assignment  # heavy to import

    edges = [edge for turn in refs for edge in (turn.start, turn.end) if collar]
    collars = [(edge - collar, edge + collar) for edge in edges]
    spoken = [[(turn.start, turn.end) for turn in side] for side in (refs, hyps)]
    times = np.unique([*itertools.chain(*spans, *collars, *spoken[0], *spoken[1])])

    def mark(places: Sequence[tuple[float, float]], names: Sequence[str]) -> np.ndarray:
        """Return a row for each name, sorted: whether any of its places covers each span."""
        known = {name: row for row, name in enumerate(sorted(set(names)))}
        if len(known) * len(times) > MAX_CELLS:
            count = f"{len(known):,} speakers in {len(names):,} turns"
            recording = [*refs, *hyps][0].recording
            raise UserError(f"{recording}: {count}. Expected the speakers of one recording.")
        changes = np.zeros((len(known), len(times)), np.int32)
        if places:
            rows, (starts, ends) = [known[name] for name in names], np.searchsorted(times, places).T
            np.add.at(changes, (rows, starts), 1)
            np.add.at(changes, (rows, ends), -1)
        return changes.cumsum(axis=1)[:, :-1] > 0

    ref_RI = mark(spoken[0], [turn.speaker for turn in refs])
    hyp_HI = mark(spoken[1], [turn.speaker for turn in hyps])
    seconds_I = np.diff(times) * mark(spans, [""] * len(spans)).any(axis=0)
    ref_R, hyp_H, shared_RH = ref_RI @ seconds_I, hyp_HI @ seconds_I, (ref_RI * seconds_I) @ hyp_HI.T
    rows, columns = linear_sum_assignment(shared_RH, maximize=True)
    is_mapped = shared_RH[rows, columns] > 0
    rows, columns = rows[is_mapped], columns[is_mapped]
    shared = shared_RH[rows, columns]
    counts = [np.count_nonzero(ref_R), np.count_nonzero(hyp_H)]
    jaccard_errors = counts[0] - (shared / (ref_R[rows] + hyp_H[columns] - shared)).sum()

    ref_I, hyp_I = ref_RI.sum(axis=0), hyp_HI.sum(axis=0)
    scored_I = seconds_I * ~mark(collars, [""] * len(collars)).any(axis=0) * (ref_I <= (1 if skip else ref_I))
    confused_I = np.minimum(ref_I, hyp_I) - (ref_RI[rows] & hyp_HI[columns]).sum(axis=0)
    parts = ref_I, np.maximum(ref_I - hyp_I, 0), np.maximum(hyp_I - ref_I, 0), confused_I
    return [float(value) for value in (*(part_I @ scored_I for part_I in parts), jaccard_errors, *counts)]


def compare_turns(first: TurnScore, second: TurnScore, names: tuple[str, str]) -> Comparison:
    """Test whether two systems differ on the same reference, paired by recording."""
    (speech_M, ours_M), (_, theirs_M) = first.sums_M2.T, second.sums_M2.T
    centiseconds = (np.round(100 * errors_M).astype(np.int64) for errors_M in (ours_M, theirs_M))
    matched = compute_matched_pairs(*centiseconds)
    return Comparison(
        names=names,
        error_rates=(first.error_rate, second.error_rate),
        rate_name="DER",
        matched_pairs=matched | {"mean_difference": matched["mean_difference"] / 100},  # seconds
        has_speakers=True,
        bootstrap=resample_pairs(
            ours_M - theirs_M, speech_M, np.arange(len(speech_M)), RESAMPLES, "recording"
        ),
    )


def report_turns(
    reference_path: str, paths: Sequence[str], uem: str | None, collar: float, skip_overlap: bool
) -> tuple[str, dict[str, Any]]:
    """Score turn files and compare them in pairs; returns tables as text, and the same for JSON."""
    given, paths = zip(*map(split_name, paths), strict=True)
    names, reference = name_systems(paths, given), read_rttm(reference_path)
    spans = None if uem is None else read_uem(uem)
    scored = list(dict.fromkeys(turn.recording for turn in reference) if spans is None else spans)
    if not scored:
        raise UserError(f"{reference_path}: no turns. Expected turns of at least one recording.")
    notes, scores = [], {}
    for name, path in zip(names, paths, strict=True):
        hypothesis = read_rttm(path)
        found = {turn.recording for turn in hypothesis}
        if missing := [recording for recording in scored if recording not in found]:
            notes.append(f"{path}: no turns in {len(missing):,} recordings: {list_examples(missing)}")
        if unknown := sorted(found.difference(scored)):
            notes.append(f"{path}: {len(unknown):,} other recordings are skipped: {list_examples(unknown)}")
        scores[name] = score_turns(reference, hypothesis, collar=collar, skip_overlap=skip_overlap, uem=spans)
    comparisons = [compare_turns(scores[a], scores[b], (a, b)) for a, b in itertools.combinations(names, 2)]
    settings = {"uem": uem, "collar": collar, "overlap": "skipped" if skip_overlap else "scored"}
    lines = [f"{reference_path} (rttm) against {', '.join(paths)}"]
    lines += [", ".join(f"{name}: {value}" for name, value in settings.items() if value is not None), ""]
    lines += [*tabulate_turns("system", scores), *([""] if comparisons else []), *map(str, comparisons)]
    for name, score in scores.items():
        lines += ["", f"{name}: by recording", *tabulate_turns("recording", score.split())]
    systems = [
        {"name": name, "path": path, **score.to_dict()}
        | {"recordings": {recording: own.to_dict() for recording, own in score.split().items()}}
        for path, (name, score) in zip(paths, scores.items(), strict=True)
    ]
    record: dict[str, Any] = {"reference": {"path": reference_path, "format": "rttm"}, **settings}
    record |= {"notes": notes, "systems": systems, "comparisons": [own.to_dict() for own in comparisons]}
    return "\n".join(lines), record


def tabulate_turns(title: str, scores: Mapping[str, TurnScore]) -> list[str]:
    """Return the lines of a table with a row for each score: rates in percent, and speaker counts."""
    heading = [title, "speech s", "missed %", "false alarm %", "confusion %", "DER %"]
    rows = [[*heading, f"{100 * CONFIDENCE:g} % interval", "JER %", "ref speakers", "hyp speakers"]]
    for name, score in scores.items():
        speech, *parts = score.sums_MK.sum(axis=0).tolist()
        rates = map(percent, [*(divide(part, speech) for part in parts[:3]), score.error_rate])
        counts = [f"{part:.0f}" for part in parts[4:]]
        jaccard = percent(score.jaccard_error_rate)
        rows.append([name, f"{speech:,.1f}", *rates, show_interval(score.interval), jaccard, *counts])
    return text_table(rows)
