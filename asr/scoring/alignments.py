"""Align the units of a reference with those of a hypothesis: as jiwer does, or as NIST sclite does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from rapidfuzz.distance import Levenshtein

from asr.errors import UserError

# Shapes: E edits of all pairs together, P pairs, R units of a reference, H units of a hypothesis.

Method = Literal["jiwer", "sclite"]
"""jiwer: fewest edits. sclite: least cost, where a substitution costs 4, a deletion or an insertion 3."""
Unit = Literal["words", "characters", "mixed"]
Kind = Literal["correct", "substitution", "deletion", "insertion"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of the columns of counts."""
SUBSTITUTION, DELETION, INSERTION = 1, 2, 3

SUBSTITUTION_COST, GAP_COST = 4, 3
DIAGONAL = 0  # the third kind of move through the table, besides DELETION and INSERTION
CELLS_OF_BATCH = 2_000_000  # of one byte, and rows of four
MAX_CELLS = 1_000_000_000
"""Of one pair in the table of sclite's search: 31,000 words on each side, three hours of speech."""
MAX_CELLS_OF_BITS = 10**12
"""Of one pair in the search for fewest edits: a million units on each side, a quarter of an hour."""

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
    """The unit of the reference; None of an insertion."""
    hypothesis: str | None
    """The unit of the hypothesis; None of a deletion."""

    @property
    def is_case_only(self) -> bool:
        """A substitution that ignoring case would make correct."""
        if self.kind != "substitution" or self.reference is None or self.hypothesis is None:
            return False
        return self.reference.casefold() == self.hypothesis.casefold()


@dataclass(frozen=True)
class Edits:
    """Differences of hypotheses from their references: pair after pair, each in the order of its text."""

    pair_E: np.ndarray
    kind_E: np.ndarray
    """SUBSTITUTION, DELETION or INSERTION."""
    reference_E: np.ndarray
    """Index of the unit that was substituted or deleted, or before which one was inserted."""
    hypothesis_E: np.ndarray
    """Index of the unit that stands instead or inserted, or before which one is missing."""

    def __len__(self) -> int:
        return len(self.pair_E)


def split_units(text: str, unit: Unit) -> list[str]:
    """The units that errors are counted in.

    words: between white space. characters: code points, with one space between words, as jiwer counts them.
    mixed: characters of scripts written without spaces (Chinese, Japanese, Thai ...), words of the others.
    """
    if unit == "words":
        return text.split()
    if unit == "characters":
        return list(" ".join(text.split()))
    if unit == "mixed":
        return MIXED_UNITS.findall(text)
    raise UserError(f"unit {unit!r}; expected one of {', '.join(get_args(Unit))}")


def align(reference: Sequence[str], hypothesis: Sequence[str], method: Method = "jiwer") -> list[Operation]:
    """All steps of the best alignment, in the order of the text."""
    edits = find_edits([(reference, hypothesis)], method)
    operations: list[Operation] = []
    i = j = 0
    for kind, stop in zip(edits.kind_E.tolist(), edits.reference_E.tolist(), strict=True):
        operations += [
            Operation("correct", *pair)
            for pair in zip(reference[i:stop], hypothesis[j : j + stop - i], strict=True)
        ]
        j, i = j + stop - i, stop
        said = None if kind == INSERTION else reference[i]
        heard = None if kind == DELETION else hypothesis[j]
        operations.append(Operation(KINDS[kind], said, heard))
        i += kind != INSERTION
        j += kind != DELETION
    return operations + [
        Operation("correct", *pair) for pair in zip(reference[i:], hypothesis[j:], strict=True)
    ]


def find_edits(pairs: Iterable[tuple[Sequence[str], Sequence[str]]], method: Method = "jiwer") -> Edits:
    """The differences of many (reference, hypothesis) pairs, each a sequence of units."""
    if method == "jiwer":
        return _find_fewest_edits(pairs)
    if method == "sclite":
        return _find_cheapest_edits(pairs)
    raise UserError(f"alignment {method!r}; expected one of {', '.join(get_args(Method))}")


def count_operations(edits: Edits, reference_lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """A row for each pair, with a column for each of KINDS."""
    num_pairs = len(reference_lengths)
    cells = np.bincount(edits.pair_E * len(KINDS) + edits.kind_E, minlength=num_pairs * len(KINDS))
    counts = cells.reshape(num_pairs, len(KINDS)).astype(np.int64)
    counts[:, 0] = reference_lengths - counts[:, SUBSTITUTION] - counts[:, DELETION]
    return counts


def _find_fewest_edits(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Edits:
    codes = {"replace": SUBSTITUTION, "delete": DELETION, "insert": INSERTION}
    numbers: list[int] = []
    rows: list[Any] = []
    for number, (reference, hypothesis) in enumerate(pairs):
        if reference != hypothesis:
            if len(reference) * len(hypothesis) > MAX_CELLS_OF_BITS:
                raise _too_long(number, reference, hypothesis, "cut the utterance at the same places in both")
            found = Levenshtein.editops(reference, hypothesis).as_list()
            rows += found
            numbers += [number] * len(found)
    kinds, references, hypotheses = zip(*rows, strict=True) if rows else ((), (), ())
    return Edits(
        np.array(numbers, np.int64),
        np.array([codes[kind] for kind in kinds], np.int64),
        np.array(references, np.int64),
        np.array(hypotheses, np.int64),
    )


def _find_cheapest_edits(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Edits:
    """Among alignments of the same least cost, the one that sclite takes: see _compute_moves."""
    numbers: dict[str, int] = {}
    kept: list[tuple[int, np.ndarray, np.ndarray]] = []
    for pair, (reference, hypothesis) in enumerate(pairs):
        if reference != hypothesis:
            # From the end, an equal pair costs nothing, so that sclite always takes it.
            same = 0
            for said, heard in zip(reversed(reference), reversed(hypothesis), strict=False):
                if said != heard:
                    break
                same += 1
            reference_R, hypothesis_H = (
                np.array(
                    [numbers.setdefault(unit, len(numbers)) for unit in units[: len(units) - same]], np.int32
                )
                for units in (reference, hypothesis)
            )
            kept.append((pair, reference_R, hypothesis_H))
    found = [_align_batch(batch) for batch in _make_batches(kept)]
    columns = np.concatenate(found, axis=1) if found else np.empty((4, 0), np.int64)
    # The batches mix the pairs; within a pair the order is right already.
    return Edits(*columns[:, np.argsort(columns[0], kind="stable")])


Coded = tuple[int, np.ndarray, np.ndarray]
"""Number of a pair, its reference and its hypothesis with a number for each unit."""


def _make_batches(pairs: list[Coded]) -> Iterator[list[Coded]]:
    """Pairs of about the same size, padded to CELLS_OF_BATCH at most."""
    batch: list[Coded] = []
    rows = columns = 0
    for pair in sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[2]))):
        num_rows, num_columns = len(pair[1]) + 1, len(pair[2]) + 1
        if num_rows * num_columns > MAX_CELLS:
            raise _too_long(*pair, "cut the utterance, or align as jiwer does")
        rows, columns = max(rows, num_rows), max(columns, num_columns)
        if batch and (len(batch) + 1) * rows * columns > CELLS_OF_BATCH:
            yield batch
            batch, rows, columns = [], num_rows, num_columns
        batch.append(pair)
    if batch:
        yield batch


def _too_long(pair: int, reference: Sized, hypothesis: Sized, remedy: str) -> UserError:
    lengths = f"{len(reference):,} units against {len(hypothesis):,}"
    return UserError(f"utterance number {pair + 1}: {lengths} are too long to align; {remedy}")


def _align_batch(batch: list[Coded]) -> np.ndarray:
    """The four columns of Edits, as rows."""
    numbers_P = np.array([pair for pair, _, _ in batch])
    references_PR = _pad([reference for _, reference, _ in batch], -1)
    hypotheses_PH = _pad([hypothesis for _, _, hypothesis in batch], -2)
    moves_RPH = _compute_moves(references_PR, hypotheses_PH)
    pair = np.arange(len(batch))
    i = np.array([len(reference) for _, reference, _ in batch])
    j = np.array([len(hypothesis) for _, _, hypothesis in batch])
    steps = []
    while len(pair):
        move = moves_RPH[i, pair, j].astype(np.int64)
        i = i - (move != INSERTION)
        j = j - (move != DELETION)
        differ = move != DIAGONAL
        diagonal = np.flatnonzero(~differ)
        differ[diagonal] = (
            references_PR[pair[diagonal], i[diagonal]] != hypotheses_PH[pair[diagonal], j[diagonal]]
        )
        kind = np.where(move == DIAGONAL, SUBSTITUTION, move)
        steps.append(np.stack([numbers_P[pair], kind, i, j])[:, differ])
        left = (i > 0) | (j > 0)
        pair, i, j = pair[left], i[left], j[left]
    return np.concatenate(steps[::-1], axis=1)


def _pad(rows: list[np.ndarray], value: int) -> np.ndarray:
    lengths = np.array([len(row) for row in rows])
    padded = np.full((len(rows), lengths.max()), value, np.int32)
    padded[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(rows)
    return padded


def _compute_moves(references_PR: np.ndarray, hypotheses_PH: np.ndarray) -> np.ndarray:
    """The last step of the cheapest way to each cell; of equal ones a pair of units, then an insertion.

    The cost of a cell is the least of what three neighbours offer. Two of them lie in the row above; the one
    to the left is put in afterwards, for the whole row at once: insertions cost GAP_COST from column to
    column, so that the least cost without that slope is a running minimum.
    """
    num_pairs, num_rows = references_PR.shape
    num_columns = hypotheses_PH.shape[1]
    moves_RPH = np.empty((num_rows + 1, num_pairs, num_columns + 1), np.uint8)
    moves_RPH[0] = INSERTION
    moves_RPH[:, :, 0] = DELETION
    slope_H = GAP_COST * np.arange(num_columns + 1, dtype=np.int32)
    costs_PH = np.tile(slope_H, (num_pairs, 1))
    for row in range(num_rows):
        differ_PH = hypotheses_PH != references_PR[:, row, None]
        diagonal_PH = costs_PH[:, :-1] + SUBSTITUTION_COST * differ_PH.astype(np.int32)
        costs_PH = costs_PH + GAP_COST
        np.minimum(costs_PH[:, 1:], diagonal_PH, out=costs_PH[:, 1:])
        costs_PH -= slope_H
        np.minimum.accumulate(costs_PH, axis=1, out=costs_PH)
        costs_PH += slope_H
        moves_PH = moves_RPH[row + 1, :, 1:]
        is_insertion_PH = costs_PH[:, :-1] + GAP_COST == costs_PH[:, 1:]
        moves_PH[:] = DELETION
        moves_PH[is_insertion_PH] = INSERTION
        moves_PH[diagonal_PH == costs_PH[:, 1:]] = DIAGONAL
    return moves_RPH
