"""Count the errors of hypotheses against their references, in words or in characters."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rapidfuzz.distance import Levenshtein

from asr.errors import UserError, shorten
from asr.scoring.alignments import Method, Unit, load_nist, split_units
from asr.scoring.result import Score, count_pairs, divide
from asr.text.normalization import Rule, normalize as normalize_text, normalize_english
from asr.transcripts.readers import FORMATS, split_format

logger = logging.getLogger(__name__)

Normalization = Literal["none", "basic", "english"]
# In the order of asr.text.normalization.RULES. Tags such as [noise] were never spoken.
BASIC_RULES: tuple[Rule, ...] = (
    *("strip_invisible", "nfkc", "strip_brackets", "lowercase", "plain_apostrophes"),
    *("strip_symbols", "strip_punctuation", "collapse_spaces"),
)
SHOWN_IDS = 5
MAX_PATH = 4096
_FILE_NAME = re.compile(rf"\S+\.({'|'.join({*FORMATS, 'json', 'txt'})})(\.gz)?(#\S+)?")


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
    """Compare texts with what was recognized.

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
    marks = {"has_optional_words": has_optional_words, "has_fragments": has_fragments}
    if any(marks.values()) and (align != "sclite" or normalize != "none" or unit != "words"):
        raise UserError(
            "optional words in brackets, or fragments: expected align sclite, unit words and no normalization"
        )
    settings: dict[str, Any] = {"align": align, "unit": unit, "resamples": resamples}
    settings |= {"confidence": confidence, "seed": seed}
    if are_files(references, hypotheses):
        from asr.scoring.scored_files import score_files  # which scores texts by this function

        if any(given is not None for given in (speakers, recordings, alternatives)):
            raise UserError("files tell speakers, recordings and alternatives themselves; leave these out")
        options = {"normalize": normalize, **settings, **marks}
        _, systems, notes = score_files(str(references), [str(hypotheses)], **options)
        for note in notes:
            logger.warning("%s", note)
        return systems[0].score
    assert not isinstance(references, Path) and not isinstance(hypotheses, Path)
    names, said, heard = _match(references, hypotheses)
    who = _match_speakers(speakers, names)
    others = _match_alternatives(alternatives or {}, names)
    change = choose_normalization(normalize)
    # Candidates: each reference of each utterance, with its hypothesis; C of them.
    rows_C = [row for row, own in enumerate(others) for _ in range(1 + len(own))]
    pairs_C = [(text, heard[row]) for row, first in enumerate(said) for text in (first, *others[row])]
    if align == "sclite" and normalize != "none":
        for row, pair in zip(rows_C, pairs_C, strict=True):
            if "{" in pair[0] + (pair[1] or ""):
                raise UserError(
                    f"utterance {names[row]}: normalized, alternatives in braces would be read as words; "
                    "choose them without, or align as jiwer does"
                )
    pairs_C = [(change(text), None if found is None else change(found)) for text, found in pairs_C]
    given_C = [text for text, _ in pairs_C]
    if align == "sclite":
        pairs_C = [
            _read_as_sclite(names[row], *pair, unit, marks) for row, pair in zip(rows_C, pairs_C, strict=True)
        ]
    split = ((split_units(text, unit), split_units(found or "", unit)) for text, found in pairs_C)
    counts_C4 = count_pairs(split, align)
    errors_C = counts_C4[:, 1:].sum(axis=1)
    starts = [number for number, row in enumerate(rows_C) if number == 0 or row != rows_C[number - 1]]
    spans = list(zip(starts, [*starts[1:], len(rows_C)], strict=True))
    chosen = [start + int(errors_C[start:end].argmin()) for start, end in spans]
    return Score(
        ids=names,
        references=tuple(pairs_C[number][0] for number in chosen),
        all_references=tuple(tuple(given_C[start:end]) for start, end in spans),
        hypotheses=tuple(pairs_C[number][1] for number in chosen),
        speakers=who,
        recordings=None if recordings is None else tuple(recordings[name] for name in names),
        counts_P4=counts_C4[chosen],
        **settings,
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
    if not ("." in text or os.sep in text) or len(text) >= MAX_PATH or "\n" in text or "\0" in text:
        return False
    return os.path.exists(split_format(text)[1])


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


def _read_as_sclite(
    name: str, reference: str, hypothesis: str | None, unit: Unit, marks: Mapping[str, bool]
) -> tuple[str, str | None]:
    if unit != "words" and "{" in reference + (hypothesis or ""):
        raise UserError(f"utterance {name}: alternatives are chosen by words only; expected unit words")
    try:
        said, heard = load_nist().read_as_sclite(reference, hypothesis or "", **marks)
    except UserError as error:
        raise UserError(f"utterance {name}: {error}") from None
    return said, None if hypothesis is None else heard


def _match(
    references: str | Sequence[str] | Mapping[str, str],
    hypotheses: str | Sequence[str | None] | Mapping[str, str | None],
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str | None, ...]]:
    """Ids, references and hypotheses in the order of the references."""
    if isinstance(references, Mapping) != isinstance(hypotheses, Mapping):
        raise UserError("texts by id on one side, a list on the other; give both by id, or both as lists")
    if isinstance(references, Mapping) and isinstance(hypotheses, Mapping):
        names = tuple(references)
        if unknown := [name for name in hypotheses if name not in references]:
            raise UserError(
                f"hypotheses for {_list_ids(unknown)}, which no reference has; "
                f"the references hold {_list_ids(names)}. Remove them, or score against their own references"
            )
        said, heard = tuple(references.values()), tuple(hypotheses.get(name) for name in names)
    else:
        said = (references,) if isinstance(references, str) else tuple(references)
        heard = (hypotheses,) if isinstance(hypotheses, str) else tuple(hypotheses)
        _check_lengths("hypotheses", len(heard), len(said))
        names = tuple(str(number + 1) for number in range(len(said)))
    if not names:
        raise UserError("no references; there is nothing to score")
    for name, reference, hypothesis in zip(names, said, heard, strict=True):
        if not isinstance(reference, str) or not isinstance(hypothesis, str | None):
            raise UserError(
                f"utterance {name}: {reference!r} and {hypothesis!r}; expected texts, or None for a "
                "hypothesis that is missing"
            )
    return names, said, heard


def _match_speakers(
    speakers: Sequence[str] | Mapping[str, str] | None, names: Sequence[str]
) -> tuple[str, ...] | None:
    if speakers is None:
        return None
    found = [speakers.get(name) for name in names] if isinstance(speakers, Mapping) else speakers
    _check_lengths("speakers", len(found), len(names))
    if nameless := [name for name, speaker in zip(names, found, strict=True) if speaker is None]:
        raise UserError(f"no speaker for {_list_ids(nameless)}; name one for each utterance, or none at all")
    return tuple(map(str, found))


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
