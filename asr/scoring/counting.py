"""Counts the errors of hypotheses against their references, in words or in characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein

from asr.errors import UserError
from asr.scoring.alignments import Method, Operation, Unit, split_units
from asr.scoring.alternatives import read_as_sclite
from asr.scoring.intervals import Interval
from asr.scoring.result import Counts, Score, UtteranceScore, count_pairs, divide, format_table

__all__ = [
    "Counts",
    "ErrorCount",
    "Interval",
    "Operation",
    "Score",
    "UtteranceScore",
    "count_character_errors",
    "count_word_errors",
    "format_table",
    "score",
]

SHOWN_IDS = 5


@dataclass(frozen=True)
class ErrorCount:
    """Least number of edits that turn hypotheses into references, and the length of the references."""

    errors: int
    length: int

    @property
    def rate(self) -> float:
        """Errors per unit of the references; of empty ones, 0 without errors and infinite with some."""
        return divide(self.errors, self.length)


def count_word_errors(pairs: Iterable[tuple[str, str]]) -> ErrorCount:
    """Of (reference, hypothesis) pairs; words are separated by white space."""
    return _count((reference.split(), hypothesis.split()) for reference, hypothesis in pairs)


def count_character_errors(pairs: Iterable[tuple[str, str]]) -> ErrorCount:
    """Of (reference, hypothesis) pairs; a space is a character too."""
    return _count((list(reference), list(hypothesis)) for reference, hypothesis in pairs)


def _count(pairs: Iterable[tuple[list[str], list[str]]]) -> ErrorCount:
    errors = length = 0
    for reference, hypothesis in pairs:
        errors += Levenshtein.distance(reference, hypothesis)
        length += len(reference)
    return ErrorCount(errors, length)


def score(
    references: str | Sequence[str] | Mapping[str, str],
    hypotheses: str | Sequence[str | None] | Mapping[str, str | None],
    *,
    ids: Sequence[str] | None = None,
    speakers: Sequence[str] | Mapping[str, str] | None = None,
    align: Method = "jiwer",
    unit: Unit = "words",
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Score:
    """Compare texts with what was recognised; nothing is normalised but white space.

    Lists belong together by place, dicts by id. A hypothesis that is None, or whose id is lacking, is
    missing: its words count as deleted, and `Score.missing` names it. `align` says how errors are told
    apart: by the fewest edits, as jiwer does, or as NIST sclite does without options: by its costs, without
    regard to case, with the best of alternatives such as `{ a / b }`.
    """
    if not 0 < confidence < 1 or resamples < 0:
        raise UserError(f"confidence {confidence}, resamples {resamples}; expected 0 to 1, and 0 or more")
    names, said, heard = _match(references, hypotheses, ids)
    who = [speakers.get(name) for name in names] if isinstance(speakers, Mapping) else speakers
    if who is not None:
        _check_lengths("speakers", len(who), len(names))
        nameless = [name for name, speaker in zip(names, who, strict=True) if speaker is None]
        if nameless:
            raise UserError(
                f"no speaker for {_list_ids(nameless)}; name one for each utterance, or none at all"
            )
    given = said
    if align == "sclite":
        said, heard = _read_all_as_sclite(names, said, heard, unit)
    pairs = (
        (split_units(reference, unit), split_units(hypothesis or "", unit))
        for reference, hypothesis in zip(said, heard, strict=True)
    )
    return Score(
        ids=names,
        given_references=given,
        references=said,
        hypotheses=heard,
        speakers=None if who is None else tuple(str(speaker) for speaker in who),
        counts_P4=count_pairs(pairs, align),
        align=align,
        unit=unit,
        resamples=resamples,
        confidence=confidence,
        seed=seed,
    )


def _read_all_as_sclite(
    names: tuple[str, ...], said: tuple[str, ...], heard: tuple[str | None, ...], unit: Unit
) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    pairs = []
    for name, reference, hypothesis in zip(names, said, heard, strict=True):
        try:
            first, second = read_as_sclite(reference, hypothesis or "")
        except UserError as error:
            raise UserError(f"utterance {name}: {error}") from None
        if unit != "words" and "{" in reference + (hypothesis or ""):
            raise UserError(f"utterance {name}: alternatives are chosen by words only; expected unit words")
        pairs.append((first, None if hypothesis is None else second))
    return tuple(first for first, _ in pairs), tuple(second for _, second in pairs)


def _match(
    references: str | Sequence[str] | Mapping[str, str],
    hypotheses: str | Sequence[str | None] | Mapping[str, str | None],
    ids: Sequence[str] | None,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str | None, ...]]:
    """Ids, references and hypotheses in the order of the references."""
    if isinstance(references, Mapping) and isinstance(hypotheses, Mapping):
        if ids is not None:
            raise UserError("ids were given besides texts by id; leave them out")
        names = tuple(references)
        unknown = [name for name in hypotheses if name not in references]
        if unknown:
            raise UserError(
                f"hypotheses for {_list_ids(unknown)}, which no reference has; "
                f"the references hold {_list_ids(names)}. Remove them, or score against their own references"
            )
        said, heard = tuple(references.values()), tuple(hypotheses.get(name) for name in names)
    elif isinstance(references, Mapping) or isinstance(hypotheses, Mapping):
        raise UserError("texts by id on one side, a list on the other; give both by id, or both as lists")
    else:
        said = (references,) if isinstance(references, str) else tuple(references)
        heard = (hypotheses,) if isinstance(hypotheses, str) else tuple(hypotheses)
        _check_lengths("hypotheses", len(heard), len(said))
        names = tuple(map(str, ids)) if ids is not None else tuple(str(n + 1) for n in range(len(said)))
        _check_lengths("ids", len(names), len(said))
        if len(set(names)) < len(names):
            raise UserError(
                f"the same id twice: {_list_ids([n for n, c in Counter(names).items() if c > 1])}"
            )
    if not names:
        raise UserError("no references; there is nothing to score")
    for name, reference, hypothesis in zip(names, said, heard, strict=True):
        if not isinstance(reference, str):
            raise UserError(f"reference {name}: {reference!r}; expected a text")
        if not isinstance(hypothesis, str | None):
            raise UserError(
                f"hypothesis {name}: {hypothesis!r}; expected a text, or None where it is missing"
            )
    return names, said, heard


def _check_lengths(what: str, came: int, expected: int) -> None:
    if came != expected:
        raise UserError(f"{came:,} {what} for {expected:,} references; expected one for each")


def _list_ids(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN_IDS])
    return f"{shown} and {len(names) - SHOWN_IDS:,} more" if len(names) > SHOWN_IDS else shown
