"""Align reference units with hypothesis units: by the fewest edits, or as NIST sclite does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from rapidfuzz.distance import Levenshtein

from asr.errors import UserError
from asr.scoring.options import Unit

# Shapes: E edits of all pairs together, P pairs.

Method = Literal["levenshtein", "sclite"]
"""levenshtein: fewest edits. sclite: least cost; a substitution costs 4, a deletion or an insertion 3."""
Kind = Literal["correct", "substitution", "deletion", "insertion"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of edits, in the order of the columns of counts."""
SUBSTITUTION, DELETION, INSERTION = 1, 2, 3
_CODES = {"replace": SUBSTITUTION, "delete": DELETION, "insert": INSERTION}

# Scripts written without spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
MIXED_UNITS = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


class Operation(NamedTuple):
    """One step of an alignment."""

    kind: Kind
    reference: str | None
    """The unit of the reference; None for an insertion."""
    hypothesis: str | None
    """The unit of the hypothesis; None for a deletion."""

    @property
    def is_case_only(self) -> bool:
        """True if the two units of a substitution differ in case only."""
        pair = self.reference or "", self.hypothesis or ""
        return self.kind == "substitution" and pair[0].casefold() == pair[1].casefold()


@dataclass(frozen=True)
class Edits:
    """Differences between hypotheses and references, pair after pair, in text order."""

    pair_E: np.ndarray
    kind_E: np.ndarray  # SUBSTITUTION, DELETION or INSERTION
    reference_E: np.ndarray
    """Index of the unit that was substituted or deleted, or before which one was inserted."""
    hypothesis_E: np.ndarray
    """Index of the unit that was substituted or inserted, or before which one is missing."""

    def __len__(self) -> int:
        return len(self.pair_E)


def load_nist() -> ModuleType:
    """Import asr.scoring.nist, an optional folder, in this one place."""
    try:
        from asr.scoring import nist
    except ImportError:
        raise UserError("sclite and mapping files: asr/scoring/nist is not installed") from None
    return nist


def split_units(text: str, unit: Unit) -> list[str]:
    """Split a text into the units that errors are counted in.

    words: separated by white space. characters: code points, with one space between words, as in jiwer.
    mixed: characters of scripts written without spaces (Chinese, Japanese, Thai ...), words of all others.
    """
    if unit == "words":
        return text.split()
    if unit == "characters":
        return list(" ".join(text.split()))
    return MIXED_UNITS.findall(text)


def align(
    reference: Sequence[str], hypothesis: Sequence[str], method: Method = "levenshtein"
) -> list[Operation]:
    """Return all steps of the best alignment, in text order."""
    edits = find_edits([(reference, hypothesis)], method)
    operations: list[Operation] = []
    i = j = 0
    for kind, stop in [
        *zip(edits.kind_E.tolist(), edits.reference_E.tolist(), strict=True),
        (0, len(reference)),
    ]:
        operations += [
            Operation("correct", *pair) for pair in zip(reference[i:stop], hypothesis[j:], strict=False)
        ]
        i, j = stop, j + stop - i
        if kind:
            ref = None if kind == INSERTION else reference[i]
            hyp = None if kind == DELETION else hypothesis[j]
            operations.append(Operation(KINDS[kind], ref, hyp))
            i += kind != INSERTION
            j += kind != DELETION
    return operations


def find_edits(pairs: Iterable[tuple[Sequence[str], Sequence[str]]], method: Method = "levenshtein") -> Edits:
    """Find the differences in many (reference, hypothesis) pairs of unit sequences."""
    if method == "sclite":
        return load_nist().find_cheapest_edits(pairs)
    cells: list[int] = []
    for number, (reference, hypothesis) in enumerate(pairs):
        if reference != hypothesis:
            edits: Any = Levenshtein.editops(reference, hypothesis).as_list()
            for kind, i, j in edits:
                cells += (number, _CODES[kind], i, j)
    return Edits(*np.array(cells, np.int64).reshape(-1, 4).T)


def count_operations(edits: Edits, reference_lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return a row for each pair, with a column for each of KINDS."""
    num_pairs = len(reference_lengths)
    cells = np.bincount(edits.pair_E * len(KINDS) + edits.kind_E, minlength=num_pairs * len(KINDS))
    counts = cells.reshape(num_pairs, len(KINDS)).astype(np.int64)
    counts[:, 0] = reference_lengths - counts[:, SUBSTITUTION] - counts[:, DELETION]
    return counts
