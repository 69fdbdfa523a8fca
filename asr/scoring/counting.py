"""Count the errors of hypotheses against their references, in words or in characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapidfuzz.distance import Levenshtein

from asr.errors import UserError, shorten
from asr.scoring.alignments import Method, load_nist, split_units
from asr.scoring.intervals import RESAMPLES
from asr.scoring.options import Align, Normalization, Unit, check_options
from asr.scoring.result import Score, count_pairs, divide
from asr.text.normalization import Rule, normalize as normalize_text, normalize_english

# In the order of asr.text.normalization.RULES. Tags such as [noise] were never spoken.
BASIC_RULES: tuple[Rule, ...] = (
    *("strip_invisible", "nfkc", "strip_brackets", "lowercase", "plain_apostrophes"),
    *("strip_symbols", "strip_punctuation", "collapse_spaces"),
)


@dataclass(frozen=True)
class ErrorCount:
    """Least number of edits that turn hypotheses into references, and the length of the references."""

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
    align: Align = "jiwer",
    unit: Unit = "words",
    resamples: int = RESAMPLES,
) -> Score:
    """Compare reference texts with recognized texts; `score_files` reads them from files.

    Lists are matched by position, dicts by ID. A hypothesis that is None, or whose ID is absent, is
    missing: its words count as deleted, and `Score.missing` names it. Intervals go by speakers, where they
    are known, or by `recordings`, the recording of each ID.

    `alternatives` are other texts of a reference that are right too, by id: each hypothesis is compared with
    the one that gives the fewest errors, of equals the first; character errors are those against it.

    `normalize` is none (but for white space), basic, english, or a function from text to text. `align` says
    how errors are told apart: by the fewest edits, as jiwer does, or as NIST sclite does without options: by
    its costs, without regard to case, with the best of alternatives such as `{ a / b }`. With sclite-D, words
    in brackets such as `(uh)` may be missing; with sclite-F, `ab-` counts as any word that begins so and
    `-bc` as any that ends so; sclite-FD does both.
    """
    check_options(align=align, unit=unit, normalize=normalize, resamples=resamples)
    _check_texts("references", references)
    _check_texts("hypotheses", hypotheses, may_be_missing=True)
    if not isinstance(alternatives or {}, Mapping):
        raise UserError(f"alternatives = {shorten(alternatives)}: expected a dict from ID to a list of texts")
    for id, texts in (alternatives or {}).items():
        _check_texts(f"alternatives of {id}", texts)
    method: Method = "jiwer" if align == "jiwer" else "sclite"
    settings: dict[str, Any] = {"align": method, "unit": unit, "resamples": resamples}
    marks = {"has_optional_words": "D" in align, "has_fragments": "F" in align}
    refs, hyps, others = _by_id(references), _by_id(hypotheses), dict(alternatives or {})
    speaker_of = _find_keys("speakers", speakers, refs)
    recording_of = _find_keys("recordings", recordings, refs)
    if isinstance(references, Mapping) != isinstance(hypotheses, Mapping):
        raise UserError("texts by ID on one side, a list on the other; expected two dicts or two lists")
    if unknown := [id for id in (*hyps, *others) if id not in refs]:
        raise UserError(f"text of {unknown[0]} (and {len(unknown) - 1:,} others), which no reference has")
    if len(hypotheses) < len(references) and not isinstance(hypotheses, Mapping):
        raise UserError(f"{len(hypotheses):,} hypotheses for {len(references):,} references")
    if not refs:
        raise UserError("no references; expected one text or more")
    change = choose_normalization(normalize)
    # Candidates: each reference of each utterance, with its hypothesis; C of them.
    candidates = [(id, text) for id, first in refs.items() for text in (first, *others.get(id, ()))]
    texts_C = [change(text) for _, text in candidates]
    pairs_C: list[tuple[str, str | None]] = []
    read = load_nist().read_as_sclite if method == "sclite" else None
    for (id, raw), text in zip(candidates, texts_C, strict=True):
        hypothesis = hyps.get(id)
        hyp = None if hypothesis is None else change(hypothesis)
        if read is not None:
            if (normalize != "none" or unit != "words") and "{" in f"{raw} {hypothesis}":
                raise UserError(
                    f"utterance {id}: alternatives in braces need unit words, and no normalization"
                )
            try:
                text, read_hyp = read(text, hyp or "", **marks)
            except UserError as error:
                raise UserError(f"utterance {id}: {error}") from None
            hyp = None if hyp is None else read_hyp
        pairs_C.append((text, hyp))
    split = ((split_units(text, unit), split_units(hyp or "", unit)) for text, hyp in pairs_C)
    counts_C4 = count_pairs(split, method)
    errors_C = counts_C4[:, 1:].sum(axis=1)
    starts, start = [], 0
    for id in refs:
        starts.append(start)
        start += 1 + len(others.get(id, ()))
    spans = list(zip(starts, [*starts[1:], start], strict=True))
    chosen = [first + int(errors_C[first:end].argmin()) for first, end in spans]
    return Score(
        ids=tuple(refs),
        references=tuple(pairs_C[number][0] for number in chosen),
        all_references=tuple(tuple(texts_C[first:end]) for first, end in spans),
        hypotheses=tuple(pairs_C[number][1] for number in chosen),
        speakers=speaker_of,
        recordings=recording_of,
        counts_P4=counts_C4[chosen],
        **settings,
    )


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
    """Refuse what is no text: the repr of another value would count as its words."""
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
    """The speaker, or the recording, of each reference."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, (Sequence, Mapping)):
        raise UserError(f"{name} = {shorten(given)}: expected a list, or a dict from ID")
    keys = _by_id(given)
    if missing := [id for id in refs if (key := keys.get(id)) is None or key != key]:  # NaN is not itself
        raise UserError(
            f"{name}: {len(missing):,} of {len(refs):,} references have none, such as {missing[0]}; "
            "expected one for each reference, or leave them out"
        )
    if len(keys) > len(refs) and not isinstance(given, Mapping):
        raise UserError(f"{name}: {len(keys):,} for {len(refs):,} references; expected one for each")
    return tuple(str(keys[id]) for id in refs)


def _by_id(values: Sequence[Any] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Values by id; those of a list are numbered from 1."""
    return values if isinstance(values, Mapping) else {str(n): value for n, value in enumerate(values, 1)}
