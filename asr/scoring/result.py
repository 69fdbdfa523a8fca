"""Results as plain text and Markdown: tables, alignments, rates and their intervals in percent."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from asr.errors import UserError, import_extra, plural
from asr.scoring.alignments import (
    Edits,
    Kind,
    Method,
    Operation,
    Unit,
    align,
    count_operations,
    find_edits,
    split_units,
)
from asr.scoring.intervals import (
    CONFIDENCE,
    MIN_FOR_INTERVAL,
    Interval,
    find_rate_interval,
    number_groups,
    sum_groups,
)
from asr.transcripts.subtitles import measure_width

Rows = Sequence[Sequence[str]]
"""Headings, followed by the rows."""
LETTERS: dict[Kind, str] = {"correct": "C", "substitution": "S", "deletion": "D", "insertion": "I"}


def percent(rate: float, digits: int = 2) -> str:
    """Format a rate in percent; "-" for nan, the rate of an empty reference."""
    return "-" if math.isnan(rate) else f"{100 * rate:.{digits}f}"


def show_interval(
    interval: Interval | Sequence[float] | None, form: str = "{} to {}", unknown: str = ""
) -> str:
    """Format both ends in percent with `form`."""
    if interval is None:
        return unknown
    low, high = (interval.low, interval.high) if isinstance(interval, Interval) else interval
    return form.format(percent(low), percent(high))


def text_table(rows: Rows) -> list[str]:
    """Align the columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded] if widths[0] else padded).rstrip())
    return lines


def markdown_table(rows: Rows) -> str:
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows]
    return "".join([lines[0], "|" + "---|" * len(rows[0]) + "\n", *lines[1:]])


def align_lines(operations: Iterable[Operation]) -> list[str]:
    """Show an alignment in three lines, with errors in upper case and stars for missing words.

    Words that differ only in case stay unchanged, because they would be equal in upper case.
    """
    top, bottom, marks = "REF:  ", "HYP:  ", "Eval: "
    for operation in operations:
        kind, reference, hypothesis = operation
        first, second = reference or "", hypothesis or ""
        if kind != "correct" and not operation.is_case_only:
            first, second = first.upper(), second.upper()
        width = max(measure_width(first), measure_width(second))
        top += _pad(first or "*" * width, width)
        bottom += _pad(second or "*" * width, width)
        marks += _pad("" if kind == "correct" else LETTERS[kind], width)
    return [top, bottom, marks]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - measure_width(text) + 1)


# Shapes: P utterances, G groups of utterances that are resampled together.

RATE_NAMES: dict[Unit, str] = {"words": "WER", "characters": "CER", "mixed": "WER of mixed units"}


@dataclass(frozen=True)
class Counts:
    """Counts of paired units."""

    correct: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def reference_length(self) -> int:
        return self.correct + self.substitutions + self.deletions

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def error_rate(self) -> float:
        return divide(self.errors, self.reference_length)


@dataclass(frozen=True)
class UtteranceScore:
    """A reference and its hypothesis."""

    id: str
    speaker: str | None
    reference: str
    hypothesis: str  # empty if it is missing
    is_missing: bool
    counts: Counts
    align: Method
    unit: Unit

    @property
    def operations(self) -> list[Operation]:
        """The alignment as a list of steps, computed on each access."""
        reference, hypothesis = (split_units(text, self.unit) for text in (self.reference, self.hypothesis))
        return align(reference, hypothesis, self.align)


@dataclass(frozen=True, eq=False, repr=False)
class Score:
    """Result of `score`. Print it for a table; slow properties are computed on first use."""

    ids: tuple[str, ...]
    references: tuple[str, ...]
    """The reference of each utterance with the fewest errors, the first of equals."""
    all_references: tuple[tuple[str, ...], ...]
    """All references of each utterance, before the choice among alternatives in braces."""
    hypotheses: tuple[str | None, ...]
    """Hypotheses. None means missing, so the complete reference counts as deleted."""
    speakers: tuple[str, ...] | None
    recordings: tuple[str, ...] | None
    """Recording of each text in a meeting; the texts of a recording are resampled together."""
    counts_P4: np.ndarray  # correct, substituted, deleted and inserted units of each utterance
    align: Method
    unit: Unit
    resamples: int

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def counts(self) -> Counts:
        """Total counts of all utterances, in units."""
        return Counts(*self.counts_P4.sum(axis=0).tolist())

    @cached_property
    def characters(self) -> Score:
        """Score of the same texts in characters, with fewest edits; a space between words counts."""
        counts_P4 = count_pairs(self._pairs("characters"), "levenshtein")
        return dataclasses.replace(self, counts_P4=counts_P4, unit="characters", align="levenshtein")

    @property
    def error_rate(self) -> float:
        """WER, or the rate that RATE_NAMES names for other units."""
        return self.counts.error_rate

    @property
    def wer(self) -> float:
        """Word error rate as a fraction of the reference words; nan if the score counts other units."""
        return self.error_rate if self.unit == "words" else math.nan

    @property
    def cer(self) -> float:
        """Character error rate as a fraction of the reference characters."""
        return self.characters.error_rate

    @cached_property
    def errors_P(self) -> np.ndarray:
        return self.counts_P4[:, 1:].sum(axis=1)

    @cached_property
    def lengths_P(self) -> np.ndarray:
        """Number of units in each reference."""
        return self.counts_P4[:, :3].sum(axis=1)

    @property
    def sentence_errors(self) -> int:
        """Number of utterances with at least one error."""
        return int(np.count_nonzero(self.errors_P))

    @property
    def sentence_error_rate(self) -> float:
        return self.sentence_errors / len(self)

    @property
    def missing(self) -> tuple[str, ...]:
        """IDs without a hypothesis."""
        return tuple(id for id, text in zip(self.ids, self.hypotheses, strict=True) if text is None)

    @property
    def num_references(self) -> int:
        """Largest number of references of an utterance."""
        return max(map(len, self.all_references))

    @cached_property
    def groups_P(self) -> np.ndarray:
        """Group number of each utterance; utterances of a group are resampled together."""
        return number_groups(self.recordings or self.speakers, len(self))

    @property
    def resampled_by(self) -> str:
        """Resampled unit: speakers if two or more are known, recordings in meetings, else utterances."""
        if self.recordings is not None:
            return "recording" if len(set(self.recordings)) > 1 else "utterance"
        return "speaker" if len(set(self.speakers or ())) > 1 else "utterance"

    @cached_property
    def interval(self) -> Interval | None:
        """Interval of the error rate; None with resamples=0, or for too few speakers or utterances."""
        if not self.resamples:
            return None
        sums_G2 = sum_groups(np.stack([self.errors_P, self.lengths_P], axis=1), self.groups_P)
        return find_rate_interval(sums_G2, self.resamples)

    @property
    def why_no_interval(self) -> str:
        """Note on too few speakers or utterances; "" if there is an interval or none was asked for."""
        number = len(np.unique(self.groups_P))
        if not self.resamples or number >= MIN_FOR_INTERVAL:
            return ""
        return f"no interval: {plural(number, self.resampled_by)}, at least {MIN_FOR_INTERVAL} are needed"

    @cached_property
    def utterances(self) -> tuple[UtteranceScore, ...]:
        speakers = self.speakers or [None] * len(self)
        columns = (self.ids, speakers, self.references, self.hypotheses, self.counts_P4.tolist())
        return tuple(
            UtteranceScore(id, who, first, second or "", second is None, Counts(*row), self.align, self.unit)
            for id, who, first, second, row in zip(*columns, strict=True)
        )

    def worst(self, limit: int = 10) -> list[UtteranceScore]:
        """Utterances with errors, most errors first; among equals, shorter ones first."""
        order = np.lexsort([self.lengths_P, -self.errors_P])[:limit]
        return [self.utterances[number] for number in order if self.errors_P[number]]

    def select(self, numbers: Sequence[int]) -> Score:
        """Return the score of the utterances at these positions."""
        picked: dict[str, Any] = {"counts_P4": self.counts_P4[list(numbers)]}
        for name in ("ids", "references", "all_references", "hypotheses", "speakers", "recordings"):
            if (column := getattr(self, name)) is not None:
                picked[name] = tuple(column[number] for number in numbers)
        return dataclasses.replace(self, **picked)

    def group(self, keys: Sequence[Hashable]) -> dict[Any, Score]:
        """Return a score for each key, in order of first appearance; each utterance has a key."""
        if len(keys) != len(self):
            raise UserError(f"{len(keys):,} keys for {len(self):,} utterances; expected one for each")
        members: dict[Hashable, list[int]] = {}
        for number, key in enumerate(keys):
            members.setdefault(key, []).append(number)
        return {key: self.select(numbers) for key, numbers in members.items()}

    @cached_property
    def edits(self) -> Edits:
        """Every error with its position; pairs are numbered in the order of IDs."""
        return find_edits(self._pairs(self.unit), self.align)

    @cached_property
    def error_counts(self) -> dict[str, Counter[Any]]:
        """Counts of confused pairs (reference unit, hypothesis unit), deletions and insertions."""
        counts = {"confusions": Counter[Any](), "deletions": Counter[Any](), "insertions": Counter[Any]()}
        for number in np.flatnonzero(self.errors_P):
            for kind, reference, hypothesis in self.utterances[number].operations:
                if kind == "substitution":
                    counts["confusions"][reference, hypothesis] += 1
                elif kind != "correct":
                    counts[f"{kind}s"][reference or hypothesis] += 1
        return counts

    def _pairs(self, unit: Unit) -> Iterator[tuple[list[str], list[str]]]:
        for reference, hypothesis in zip(self.references, self.hypotheses, strict=True):
            yield split_units(reference, unit), split_units(hypothesis or "", unit)

    def bleu(self) -> float:
        """Corpus BLEU, 0 to 100, with sacrebleu's defaults and all references of each utterance."""
        if self.num_references > 1 and self.align == "sclite":
            raise UserError("BLEU with several references takes unchanged texts; expected align levenshtein")
        sacrebleu = import_extra("sacrebleu", "BLEU", "bleu")
        references = self.all_references if self.num_references > 1 else [(text,) for text in self.references]
        texts = [hypothesis or "" for hypothesis in self.hypotheses]
        return float(sacrebleu.corpus_bleu(texts, list(itertools.zip_longest(*references))).score)

    def to_dict(self, show: int | None = None) -> dict[str, Any]:
        """Return the numbers in types that JSON has; None for an infinite rate.

        `show` adds this many of the most frequent errors of each kind and of the worst utterances.
        """
        characters = self.characters.interval
        record: dict[str, Any] = {
            "utterances": len(self),
            "speakers": None if self.speakers is None else len(set(self.speakers)),
            "missing_hypotheses": len(self.missing),
            "references": self.num_references,
            "unit": self.unit,
            "align": self.align,
            **dataclasses.asdict(self.counts),
            "reference_length": self.counts.reference_length,
            "errors": self.counts.errors,
            "error_rate": without_infinity(self.error_rate),
            "interval": self.interval and [self.interval.low, self.interval.high],
            "confidence": CONFIDENCE,
            "resamples": self.resamples,
            "resampled_by": self.resampled_by,
            "character_error_rate": without_infinity(self.cer),
            "character_interval": characters and [characters.low, characters.high],
            "sentence_errors": self.sentence_errors,
            "sentence_error_rate": self.sentence_error_rate,
        }
        if show is None:
            return record
        for kind, counter in self.error_counts.items():
            top = most_common(counter, show)
            record[f"top_{kind}"] = [[*([key] if isinstance(key, str) else key), n] for key, n in top]
        record["worst"] = [
            {
                "id": utterance.id,
                "speaker": utterance.speaker,
                "missing": utterance.is_missing,
                **dataclasses.asdict(utterance.counts),
                "alignment": [list(step) for step in utterance.operations],
            }
            for utterance in self.worst(show)
        ]
        return record

    def __str__(self) -> str:
        return format_table({"": self})

    def __repr__(self) -> str:
        counts = f"{plural(self.counts.errors, 'error')} in {self.counts.reference_length:,} {self.unit}"
        return f"Score({RATE_NAMES[self.unit]} {percent(self.error_rate)} %, {counts})"


def format_table(scores: Mapping[Any, Score], title: str = "") -> str:
    """Format a row for each score: its name, counts, rates in percent, and the interval of the first rate."""
    return "\n".join(text_table(tabulate((title,), [((str(name),), own) for name, own in scores.items()])))


def tabulate(titles: Sequence[str], scores: Sequence[tuple[Sequence[str], Score]]) -> list[list[str]]:
    """The headings, then a row for each score, after its names."""
    first = scores[0][1]
    rate = RATE_NAMES[first.unit]
    headings = [*titles, "utterances", first.unit, "correct", "sub", "del", "ins", f"{rate} %"]
    headings += [f"{100 * CONFIDENCE:g} % interval"]
    rows = [headings + (["SER %"] if rate == "CER" else ["CER %", "SER %"])]
    for names, score in scores:
        counts = (len(score), score.counts.reference_length, *dataclasses.astuple(score.counts))
        row = [*names, *(f"{count:,}" for count in counts), percent(score.error_rate)]
        row += [show_interval(score.interval)]
        row += [] if rate == "CER" else [percent(score.cer)]
        rows.append([*row, percent(score.sentence_error_rate)])
    return rows


def most_common(counter: Counter[Any], limit: int | None = None) -> list[tuple[Any, int]]:
    """Sort by count, then by the alphabet: the same list at every call."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:limit]


def without_infinity(value: Any) -> Any:
    """Turn infinity and nan, such as the error rate of empty references, into None: JSON has neither."""
    if isinstance(value, dict):
        return {str(key): without_infinity(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_infinity(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def count_pairs(pairs: Iterable[tuple[list[str], list[str]]], method: Method) -> np.ndarray:
    """A row for each pair: correct, substituted, deleted and inserted units."""
    lengths: list[int] = []

    def record_lengths() -> Iterator[tuple[list[str], list[str]]]:  # lists of all words would take long
        for reference, hypothesis in pairs:
            lengths.append(len(reference))
            yield reference, hypothesis

    return count_operations(find_edits(record_lengths(), method), lengths)


def divide(errors: float, length: float) -> float:
    """The rate; of nothing, 0 without errors and infinite with some."""
    if length == 0:
        return 0.0 if errors == 0 else math.inf
    return errors / length
