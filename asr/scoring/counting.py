"""Count the word or character errors of hypotheses against their references."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rapidfuzz.distance import Levenshtein

from asr.errors import UserError, shorten
from asr.scoring.alignments import Method, load_nist, split_units
from asr.scoring.intervals import RESAMPLES
from asr.scoring.options import Align, Normalization, Unit, check_options
from asr.scoring.result import Score, count_pairs, divide
from asr.text.normalization import Rule, normalize as normalize_text, normalize_english

# In the order of asr.text.normalization.RULES. Tags such as [noise] are not speech.
BASIC_RULES: tuple[Rule, ...] = (
    *("strip_invisible", "nfkc", "strip_brackets", "lowercase", "plain_apostrophes"),
    *("strip_symbols", "strip_punctuation", "collapse_spaces"),
)


@dataclass(frozen=True)
class ErrorCount:
    """Smallest number of edits between hypotheses and references, and the reference length."""

    errors: int
    length: int

    @property
    def rate(self) -> float:
        return divide(self.errors, self.length)


def count_word_errors(pairs: Iterable[tuple[str, str]]) -> ErrorCount:
    """Count the word errors of (reference, hypothesis) pairs; words are separated by white space."""
    return _count(pairs, str.split)


def count_character_errors(pairs: Iterable[tuple[str, str]]) -> ErrorCount:
    """Count the character errors of (reference, hypothesis) pairs; a space is a character too."""
    return _count(pairs, list)


def _count(pairs: Iterable[tuple[str, str]], split: Callable[[str], Sequence[str]]) -> ErrorCount:
    errors = length = 0
    for reference, hypothesis in pairs:
        units = split(reference)
        errors += Levenshtein.distance(units, split(hypothesis))
        length += len(units)
    return ErrorCount(errors, length)


def score(
    references: Sequence[str] | Mapping[str, str],
    hypotheses: Sequence[str | None] | Mapping[str, str | None],
    *,
    speakers: Sequence[str] | Mapping[str, str] | None = None,
    recordings: Mapping[str, str] | None = None,
    alternatives: Mapping[str, Sequence[str]] | None = None,
    normalize: Normalization | Callable[[str], str] = "none",
    align: Align = "levenshtein",
    unit: Unit = "words",
    resamples: int = RESAMPLES,
) -> Score:
    """Compare reference texts with recognized texts; `score_files` reads them from files.

    Lists are matched by position, dicts by ID. A hypothesis that is None or whose ID is absent is missing:
    its words count as deleted, and `Score.missing` names it. If speakers are known, intervals are computed
    over speakers, or over `recordings`, which maps each ID to its recording.

    `alternatives` maps an ID to other correct texts of its reference. Each hypothesis is compared with the
    text that gives the fewest errors (the first of equals), which character errors are counted against too.

    `normalize` is none (only white space is unified), basic, english, or a function from text to text.
    `align` levenshtein takes the fewest edits. sclite aligns as NIST sclite does without options: with its
    costs, ignoring case, with the best of alternatives such as `{ a / b }`. In addition, sclite-D makes words
    in brackets such as `(uh)` optional, with sclite-F `ab-` matches any word that begins with ab and `-bc`
    any word that ends with bc, and sclite-FD does both.
    """
    check_options(align=align, unit=unit, normalize=normalize, resamples=resamples)
    refs, hyps, others = _match_texts(references, hypotheses, alternatives or {})
    speaker_of = _find_keys("speakers", speakers, refs)
    recording_of = _find_keys("recordings", recordings, refs)
    if align != "levenshtein" and (normalize != "none" or unit != "words"):
        _refuse_braces(refs, hyps, others)
    change = choose_normalization(normalize)
    all_references = [tuple(map(change, (text, *others.get(id, ())))) for id, text in refs.items()]
    recognized = [None if (text := hyps.get(id)) is None else change(text) for id in refs]
    # The C candidates are all references of all utterances, each with its hypothesis.
    pairs_C = [(text, hyp) for texts, hyp in zip(all_references, recognized, strict=True) for text in texts]
    sizes = [len(texts) for texts in all_references]
    method: Method = "levenshtein"
    if align != "levenshtein":
        method = "sclite"
        ids_C = [id for id, size in zip(refs, sizes, strict=True) for _ in range(size)]
        pairs_C = _read_as_sclite(ids_C, pairs_C, align)
    split = ((split_units(text, unit), split_units(hyp or "", unit)) for text, hyp in pairs_C)
    counts_C4 = count_pairs(split, method)
    chosen = _choose_candidates(counts_C4[:, 1:].sum(axis=1), sizes)
    return Score(
        ids=tuple(refs),
        references=tuple(pairs_C[number][0] for number in chosen),
        all_references=tuple(all_references),
        hypotheses=tuple(pairs_C[number][1] for number in chosen),
        speakers=speaker_of,
        recordings=recording_of,
        counts_P4=counts_C4[chosen],
        align=method,
        unit=unit,
        resamples=resamples,
    )


def _match_texts(
    references: Sequence[str] | Mapping[str, str],
    hypotheses: Sequence[str | None] | Mapping[str, str | None],
    alternatives: Mapping[str, Sequence[str]],
) -> tuple[Mapping[str, str], Mapping[str, str | None], Mapping[str, Sequence[str]]]:
    """Return all three by ID; raise an error if they do not belong together."""
    _check_texts("references", references)
    _check_texts("hypotheses", hypotheses, may_be_missing=True)
    if not isinstance(alternatives, Mapping):
        raise UserError(f"alternatives = {shorten(alternatives)}: expected a dict from ID to a list of texts")
    for id, texts in alternatives.items():
        _check_texts(f"alternatives of {id}", texts)
    if isinstance(references, Mapping) != isinstance(hypotheses, Mapping):
        raise UserError("texts by ID on one side, a list on the other; expected two dicts or two lists")
    refs, hyps = _by_id(references), _by_id(hypotheses)
    if unknown := [id for id in (*hyps, *alternatives) if id not in refs]:
        raise UserError(f"text of {unknown[0]} (and {len(unknown) - 1:,} others), which no reference has")
    if len(hypotheses) < len(references) and not isinstance(hypotheses, Mapping):
        raise UserError(f"{len(hypotheses):,} hypotheses for {len(references):,} references")
    if not refs:
        raise UserError("no references; expected one text or more")
    return refs, hyps, alternatives


def _refuse_braces(
    refs: Mapping[str, str], hyps: Mapping[str, str | None], others: Mapping[str, Sequence[str]]
) -> None:
    for id, text in refs.items():
        if any("{" in (each or "") for each in (text, hyps.get(id), *others.get(id, ()))):
            raise UserError(f"utterance {id}: alternatives in braces need unit words, and no normalization")


def _read_as_sclite(
    ids: Sequence[str], pairs: Sequence[tuple[str, str | None]], align: Align
) -> list[tuple[str, str | None]]:
    """Prepare the words of each pair as sclite compares them."""
    read = load_nist().read_as_sclite
    marks = {"has_optional_words": "D" in align, "has_fragments": "F" in align}
    found: list[tuple[str, str | None]] = []
    for id, (reference, hypothesis) in zip(ids, pairs, strict=True):
        try:
            ref, hyp = read(reference, hypothesis or "", **marks)
        except UserError as error:
            raise UserError(f"utterance {id}: {error}") from None
        found.append((ref, None if hypothesis is None else hyp))
    return found


def _choose_candidates(errors_C: np.ndarray, sizes: Sequence[int]) -> list[int]:
    """Choose the candidate with the fewest errors for each utterance, the first of equals."""
    ends = list(itertools.accumulate(sizes))
    return [
        end - size + int(errors_C[end - size : end].argmin()) for end, size in zip(ends, sizes, strict=True)
    ]


def describe_choice(num_references: int) -> str:
    """Describe how one of several references is chosen."""
    return f"up to {num_references} of an utterance, compared with the one that gives the fewest errors"


def choose_normalization(normalize: Normalization | Callable[[str], str]) -> Callable[[str], str]:
    if callable(normalize):
        return normalize
    known: dict[str, Callable[[str], str]] = {
        "none": str,
        "basic": lambda text: normalize_text(text, BASIC_RULES),
        "english": normalize_english,
    }
    return known[normalize]


def _check_texts(name: str, texts: object, may_be_missing: bool = False) -> None:
    """Refuse values that are not texts, because their repr would be scored as words."""
    if isinstance(texts, (str, bytes, Path)) or not isinstance(texts, (Sequence, Mapping)):
        raise UserError(
            f"{name}: got {shorten(texts)}. Expected a list of texts, or a dict from ID to text. "
            "Try score([reference], [hypothesis]) for one text, score_files(reference, hypothesis) for files"
        )
    for id, text in _by_id(texts).items():
        if not isinstance(text, str) and not (may_be_missing and text is None):
            expected = "a text, or None where it is missing" if may_be_missing else "a text"
            raise UserError(f"{name}, {id}: got {shorten(text)}, {type(text).__name__}; expected {expected}")


def _find_keys(name: str, given: object, refs: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the speaker or the recording of each reference."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, (Sequence, Mapping)):
        raise UserError(f"{name} = {shorten(given)}: expected a list, or a dict from ID")
    keys = _by_id(given)
    if missing := [id for id in refs if (key := keys.get(id)) is None or key != key]:  # NaN != NaN
        raise UserError(
            f"{name}: {len(missing):,} of {len(refs):,} references have none, such as {missing[0]}; "
            "expected one for each reference, or leave them out"
        )
    if len(keys) > len(refs) and not isinstance(given, Mapping):
        raise UserError(f"{name}: {len(keys):,} for {len(refs):,} references; expected one for each")
    return tuple(str(keys[id]) for id in refs)


def _by_id(values: Sequence[Any] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values by ID; the items of a list are numbered from 1."""
    return values if isinstance(values, Mapping) else {str(n): value for n, value in enumerate(values, 1)}
