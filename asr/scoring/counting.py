"""Count the errors of hypotheses against their references, in words or in characters."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rapidfuzz.distance import Levenshtein

from asr.errors import UserError, shorten
from asr.scoring.alignments import Method, Operation, Unit, split_units
from asr.scoring.alternatives import read_as_sclite
from asr.scoring.intervals import Interval
from asr.scoring.result import Counts, Score, UtteranceScore, count_pairs, divide, format_table
from asr.text.normalization import Rule, normalize as normalize_text, normalize_english
from asr.transcripts.readers import FORMATS, split_format

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

logger = logging.getLogger(__name__)

Normalization = Literal["none", "basic", "english"]
# In the order of asr.text.normalization.RULES. Tags such as [noise] were never spoken.
BASIC_RULES: tuple[Rule, ...] = (
    *("strip_invisible", "nfkc", "strip_brackets", "lowercase", "plain_apostrophes"),
    *("strip_symbols", "strip_punctuation", "collapse_spaces"),
)
SHOWN_IDS = 5
_FILE_NAME = re.compile(rf"\S+\.({'|'.join({*FORMATS, 'json', 'txt'})})(\.gz)?(#\S+)?")
MAX_PATH = 4096


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
    """Count the word errors of (reference, hypothesis) pairs; words are separated by white space."""
    return _count((reference.split(), hypothesis.split()) for reference, hypothesis in pairs)


def count_character_errors(pairs: Iterable[tuple[str, str]]) -> ErrorCount:
    """Count the character errors of (reference, hypothesis) pairs; a space is a character too."""
    return _count((list(reference), list(hypothesis)) for reference, hypothesis in pairs)


def _count(pairs: Iterable[tuple[list[str], list[str]]]) -> ErrorCount:
    errors = length = 0
    for reference, hypothesis in pairs:
        errors += Levenshtein.distance(reference, hypothesis)
        length += len(reference)
    return ErrorCount(errors, length)


def score(
    references: str | Path | Sequence[str] | Mapping[str, str],
    hypotheses: str | Path | Sequence[str | None] | Mapping[str, str | None],
    *,
    ids: Sequence[str] | None = None,
    speakers: Sequence[str] | Mapping[str, str] | None = None,
    recordings: Mapping[str, str] | None = None,
    alternatives: Mapping[str, Sequence[str]] | None = None,
    normalize: Normalization | Callable[[str], str] = "none",
    align: Method = "jiwer",
    unit: Unit = "words",
    has_optional_words: bool = False,
    has_fragments: bool = False,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Score:
    """Compare texts with what was recognised.

    Lists belong together by place, dicts by id. A hypothesis that is None, or whose id is lacking, is
    missing: its words count as deleted, and `Score.missing` names it. Intervals go by speakers, where they
    are known, or by `recordings`, the recording of each id. Two paths, or two strings that both
    name existing files, such as ref.trn or kaldi:data/text, are read as `asr score` reads them.

    `alternatives` are other texts of a reference that are right too, by id: each hypothesis is compared with
    the one that gives the fewest errors, of equals the first; character errors are those against it.

    `normalize` is none (but for white space), basic, english, or a function from text to text. `align` says
    how errors are told apart: by the fewest edits, as jiwer does, or as NIST sclite does without options: by
    its costs, without regard to case, with the best of alternatives such as `{ a / b }`; if the references
    `has_optional_words`, such as `(uh)`, they may be missing, as with its option -D; with `has_fragments`,
    `ab-` counts as any word that begins so and `-bc` as any that ends so, as with its option -F.
    """
    if not 0 < confidence < 1 or resamples < 0:
        raise UserError(f"confidence {confidence}, resamples {resamples}; expected 0 to 1, and 0 or more")
    if are_files(references, hypotheses):
        from asr.scoring.scored_files import score_files  # which scores texts by this function

        if any(given is not None for given in (ids, speakers, recordings, alternatives)):
            raise UserError(
                "ids, speakers or recordings besides files, which tell them, or alternatives; leave them out"
            )
        options: dict[str, Any] = {"normalize": normalize, "align": align, "unit": unit}
        options |= {"has_optional_words": has_optional_words, "has_fragments": has_fragments}
        options |= {"resamples": resamples, "confidence": confidence, "seed": seed}
        _, systems, notes = score_files(str(references), [str(hypotheses)], **options)
        for note in notes:
            logger.warning("%s", note)
        return systems[0].score
    assert not isinstance(references, Path) and not isinstance(hypotheses, Path)
    names, said, heard = _match(references, hypotheses, ids)
    who = [speakers.get(name) for name in names] if isinstance(speakers, Mapping) else speakers
    if who is not None:
        _check_lengths("speakers", len(who), len(names))
        nameless = [name for name, speaker in zip(names, who, strict=True) if speaker is None]
        if nameless:
            raise UserError(
                f"no speaker for {_list_ids(nameless)}; name one for each utterance, or none at all"
            )
    marks = {"has_optional_words": has_optional_words, "has_fragments": has_fragments}
    if any(marks.values()) and (align != "sclite" or normalize != "none" or unit != "words"):
        raise UserError(
            "optional words in brackets, or fragments: expected align sclite, unit words and no normalization"
        )
    change = choose_normalization(normalize)
    others = _match_alternatives(alternatives or {}, names)
    # Candidates: each reference of each utterance, with its hypothesis; C of them.
    rows_C = [row for row, own in enumerate(others) for _ in range(1 + len(own))]
    names_C = tuple(names[row] for row in rows_C)
    said_C = tuple(text for first, own in zip(said, others, strict=True) for text in (first, *own))
    heard_C = tuple(heard[row] for row in rows_C)
    if align == "sclite" and normalize != "none":
        for name, text in zip(names_C * 2, said_C + heard_C, strict=True):
            if "{" in (text or ""):
                raise UserError(
                    f"utterance {name}: normalised, alternatives in braces would be read as words; "
                    "choose them without, or align as jiwer does"
                )
    said_C = tuple(change(text) for text in said_C)
    heard_C = tuple(None if text is None else change(text) for text in heard_C)
    given_C = said_C
    if align == "sclite":
        said_C, heard_C = _read_all_as_sclite(names_C, said_C, heard_C, unit, marks)
    pairs = (
        (split_units(reference, unit), split_units(hypothesis or "", unit))
        for reference, hypothesis in zip(said_C, heard_C, strict=True)
    )
    counts_C4 = count_pairs(pairs, align)
    firsts = [number for number, row in enumerate(rows_C) if number == 0 or row != rows_C[number - 1]]
    ends = [*firsts[1:], len(rows_C)]
    errors_C = counts_C4[:, 1:].sum(axis=1)
    chosen = [a + int(errors_C[a:b].argmin()) for a, b in zip(firsts, ends, strict=True)]
    return Score(
        ids=names,
        given_references=tuple(given_C[number] for number in firsts),
        references=tuple(said_C[number] for number in chosen),
        given_alternatives=tuple(given_C[a + 1 : b] for a, b in zip(firsts, ends, strict=True)),
        hypotheses=tuple(heard_C[number] for number in chosen),
        speakers=None if who is None else tuple(str(speaker) for speaker in who),
        recordings=None if recordings is None else tuple(recordings[name] for name in names),
        counts_P4=counts_C4[chosen],
        align=align,
        unit=unit,
        resamples=resamples,
        confidence=confidence,
        seed=seed,
    )


def describe_choice(num_references: int) -> str:
    """Say how one of several references is chosen."""
    return f"up to {num_references} of an utterance, compared with the one that gives the fewest errors"


def are_files(references: object, hypotheses: object) -> bool:
    """Tell files from texts; one of each is an error, since a name is seldom what somebody said, and so are
    names of files that are not there."""
    both = (references, hypotheses)
    if not all(isinstance(side, (str, Path)) for side in both):
        return False
    found = [isinstance(side, Path) or _is_path(str(side)) for side in both]
    if not all(found) and (any(found) or all(_FILE_NAME.fullmatch(str(side)) for side in both)):
        other = str(both[found.index(False)])
        raise UserError(
            f"{shorten(other)}: no such file, and the other is a file's name; give two files or two lists"
        )
    return all(found)


def _is_path(text: str) -> bool:
    """An existing file or folder with a suffix or in a folder: "yes" is a text, whatever lies beside."""
    if not ("." in text or os.sep in text):
        return False
    return (
        len(text) < MAX_PATH
        and "\n" not in text
        and "\0" not in text
        and os.path.exists(split_format(text)[1])
    )


def choose_normalization(normalize: Normalization | Callable[[str], str]) -> Callable[[str], str]:
    if callable(normalize):
        return normalize
    if normalize == "none":
        return lambda text: text
    if normalize == "basic":
        return lambda text: normalize_text(text, BASIC_RULES)
    if normalize == "english":
        return normalize_english
    raise UserError(
        f"normalize {normalize!r}; expected one of {', '.join(get_args(Normalization))}, or a function"
    )


def _read_all_as_sclite(
    names: tuple[str, ...],
    said: tuple[str, ...],
    heard: tuple[str | None, ...],
    unit: Unit,
    marks: Mapping[str, bool],
) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    pairs = []
    for name, reference, hypothesis in zip(names, said, heard, strict=True):
        try:
            first, second = read_as_sclite(reference, hypothesis or "", **marks)
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


def _match_alternatives(
    alternatives: Mapping[str, Sequence[str]], names: Sequence[str]
) -> list[tuple[str, ...]]:
    """Other references of each utterance, in the order of the names."""
    if unknown := list(alternatives.keys() - set(names)):
        raise UserError(f"alternatives for {_list_ids(unknown)}, which no reference has; remove them")
    for name, texts in alternatives.items():
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"alternatives of {name}: {texts!r}; expected a list of texts")
    return [tuple(alternatives.get(name, ())) for name in names]


def _check_lengths(what: str, came: int, expected: int) -> None:
    if came != expected:
        raise UserError(f"{came:,} {what} for {expected:,} references; expected one for each")


def _list_ids(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN_IDS])
    return f"{shown} and {len(names) - SHOWN_IDS:,} more" if len(names) > SHOWN_IDS else shown
