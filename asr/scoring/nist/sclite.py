"""Read texts (case, alternatives, optional words, fragments) and align them as NIST sclite does."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from asr.errors import UserError, shorten
from asr.scoring.alignments import DELETION, INSERTION, SUBSTITUTION, Edits

# sclite's costs in thousandths. The null word, @, stands for an alternative without words.
NULL = "@"
GAP_COST, SUBSTITUTION_COST, NULL_GAP_COST, OPTIONAL_GAP_COST = 3000, 4000, 1, 2000
MAX_CELLS = 4_000_000
"""Maximum table size of a pair with alternatives: about 2,000 words per side, which take seconds."""

_TO_LOWER = {letter: letter + 32 for letter in range(ord("A"), ord("Z") + 1)}
_MARKS = re.compile(r"[;*\\{}@]")
_ALTERNATIVES = re.compile("[{}@]")
_TAGS = re.compile(r"(?<!\\);.*")
_FRAGMENT = re.compile(r"(?<![^\s{}/(])-|-(?![^\s{}/);*])")
_OPTIONAL = re.compile(r"\(.*\)")
_TOKEN = re.compile(r"\s*([{}]|[^\s{}]+)")
_TOKEN_IN_BRACES = re.compile(r"\s*([{}/]|[^\s{}/]+)")


class _Network(NamedTuple):
    """Words of a text with alternatives, each after all words that it may follow."""

    words: list[str]
    """The first one, "", is the beginning of the text."""
    previous: list[list[int]]
    """Indices of the words that may precede each word."""
    last: list[int]
    """The words that may end the text."""
    optional: set[int]
    """The words that may be missing on the other side."""


def read_as_sclite(
    reference: str, hypothesis: str, *, has_optional_words: bool = False, has_fragments: bool = False
) -> tuple[str, str]:
    """The words of both sides that `sclite` without options compares; with optional words, its option -D,
    with fragments -F.

    A to Z become lower case. Of alternatives, `{ a / b c / @ }`, those stay that make the alignment
    cheapest; @ is no word. Tags (`word;tag`), backslashes and a star at the end of a word are left out.
    An optional word, `(uh)`, may be missing in the hypothesis: it is then put into it, with its brackets.
    A fragment, `ab-` or `-bc`, is the same as a word that begins or ends with it: the hypothesis then has
    the word of the reference.
    """
    both = f"{reference} {hypothesis}"
    if both.isascii():  # much faster
        reference, hypothesis = reference.lower(), hypothesis.lower()
    else:
        reference, hypothesis = reference.translate(_TO_LOWER), hypothesis.translate(_TO_LOWER)
    has_fragments = has_fragments and _FRAGMENT.search(both) is not None
    is_marked = _MARKS.search(both) is not None
    if not (
        has_fragments or (has_optional_words and "(" in both) or (is_marked and _ALTERNATIVES.search(both))
    ):
        if is_marked:
            texts = reference.split(), hypothesis.split()
            reference, hypothesis = (" ".join(map(_strip_marks, words)) for words in texts)
        return reference, hypothesis
    ref, hyp = (_build_network(text, has_optional_words) for text in (reference, hypothesis))
    first, second = _choose_words(ref, hyp, _is_same_by_fragments if has_fragments else _is_same)
    return " ".join(first), " ".join(second)


def _build_network(text: str, has_optional_words: bool) -> _Network:
    network = _Network([""], [[]], [0], set())
    ends = network.last  # of all that precedes the next word
    # What precedes each open brace, and the ends of its alternatives.
    open_braces: list[tuple[list[int], list[int]]] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        match = (_TOKEN_IN_BRACES if open_braces else _TOKEN).match(text, position)
        assert match is not None
        token, before_token, position = match[1], text[: match.start(1)][-1:], match.end()
        if token == "{" and (not before_token or before_token.isspace() or before_token in "{}/"):
            open_braces.append((ends, []))
        elif token in "{}" and not open_braces:
            raise _bad_braces(text)
        elif token not in "{}/" or not open_braces:
            word, index = _strip_marks(token), len(network.words)
            if has_optional_words and _OPTIONAL.fullmatch(word):
                network.optional.add(index)
                word = word[1:-1] or word  # brackets around nothing count as a word
            network.words.append(word)
            network.previous.append(ends)
            ends = [index]
        else:
            start, alternatives = open_braces[-1]
            if ends is not start:  # sclite passes over an alternative of nothing at all
                alternatives += ends
            ends = start
            if token == "}":
                open_braces.pop()
                ends = alternatives
                if not alternatives:
                    raise _bad_braces(text)
    if open_braces:
        raise _bad_braces(text)
    return network._replace(last=ends)


def _strip_marks(word: str) -> str:
    stripped = _TAGS.sub("", word).replace("\\", "") or word
    return stripped[:-1] if len(stripped) > 1 and stripped.endswith("*") else stripped


def _bad_braces(text: str) -> UserError:
    return UserError(
        f"{shorten(text)}: expected alternatives as in sclite's `{{ a / b c / @ }}`, each brace with its "
        "partner and a space before it, and @ for no word; correct the text, or use align levenshtein"
    )


def _choose_words(
    reference: _Network, hypothesis: _Network, is_same: Callable[[str, str, bool, bool], bool]
) -> tuple[list[str], list[str]]:
    """The words on the cheapest path through both; of equal ones sclite's: pairs first, then insertions.

    An unpaired optional word is inserted on the other side too, so that it counts as correct.
    """
    if sum(map(len, reference.previous)) * sum(map(len, hypothesis.previous)) > MAX_CELLS:
        raise UserError(
            f"{len(reference.words):,} words against {len(hypothesis.words):,}, with alternatives, are too "
            "long to align; cut the utterance, or use align levenshtein"
        )
    costs: list[list[int]] = []
    steps: list[list[tuple[int, int]]] = []  # the cell that each one is reached from
    for i, ref in enumerate(reference.words):
        costs.append([])
        steps.append([])
        ref_is_optional = i in reference.optional
        deletion_cost = _gap_cost(ref, ref_is_optional)
        for j, hyp in enumerate(hypothesis.words):
            # min takes the first of equal ones.
            options = []
            if i and j:
                are_same = is_same(ref, hyp, ref_is_optional, j in hypothesis.optional)
                pair_cost = SUBSTITUTION_COST * (not are_same)
                pair_cost = 2 * GAP_COST if NULL in (ref, hyp) else pair_cost
                cells = [(a, b) for a in reference.previous[i] for b in hypothesis.previous[j]]
                options.append(min((costs[a][b] + pair_cost, (a, b)) for a, b in cells))
            if j:
                gap = _gap_cost(hyp, j in hypothesis.optional)
                options.append(min((costs[i][b] + gap, (i, b)) for b in hypothesis.previous[j]))
            if i:
                options.append(min((costs[a][j] + deletion_cost, (a, j)) for a in reference.previous[i]))
            cost, step = min(options, key=lambda option: option[0]) if options else (0, (0, 0))
            costs[i].append(cost)
            steps[i].append(step)
    _, (i, j) = min((costs[a][b], (a, b)) for a in reference.last for b in hypothesis.last)
    ref_words, hyp_words = [], []
    while i or j:
        a, b = steps[i][j]
        if (b == j and i in reference.optional) or (a == i and j in hypothesis.optional):
            word = f"({reference.words[i] if b == j else hypothesis.words[j]})"
            ref_words.append(word)
            hyp_words.append(word)
        else:
            ref = reference.words[i] if a != i else NULL
            hyp = hypothesis.words[j] if b != j else NULL
            ref_words += [ref] * (ref != NULL)
            optional = i in reference.optional, j in hypothesis.optional
            is_pair = NULL not in (ref, hyp) and is_same(ref, hyp, *optional)
            hyp_words += [ref if is_pair else hyp] * (hyp != NULL)
        i, j = a, b
    return ref_words[::-1], hyp_words[::-1]


def _is_same(ref: str, hyp: str, ref_is_optional: bool, hyp_is_optional: bool) -> bool:
    return ref == hyp


def _is_same_by_fragments(ref: str, hyp: str, ref_is_optional: bool, hyp_is_optional: bool) -> bool:
    """Compare as sclite -F does, which looks at the hypothesis only where the reference is no fragment.

    An optional word, whose brackets are gone here, may be the beginning of a word but not its end.
    """
    for fragment, word, is_optional in ((ref, hyp, ref_is_optional), (hyp, ref, hyp_is_optional)):
        if len(fragment) > 1 and fragment.startswith("-") and not is_optional:
            return word.endswith(fragment[1:])
        if len(fragment) > 1 and fragment.endswith("-"):
            return word.startswith(fragment[:-1])
    return ref == hyp


def _gap_cost(word: str, is_optional: bool) -> int:
    """Cost of an unpaired word."""
    return NULL_GAP_COST if word == NULL else OPTIONAL_GAP_COST if is_optional else GAP_COST


# --- alignment of plain words -------------------------------------------------------------------

# Shapes: P pairs, R units of a reference, H units of a hypothesis.
GAP, PAIR = 3, 4  # of an insertion or a deletion, and of a substitution
DIAGONAL = 0  # the third kind of move through the table, next to DELETION and INSERTION
MAX_BATCH = 2_000_000  # of one byte, and rows of four
MAX_TABLE = 1_000_000_000
"""Cells of one pair: 31,000 words on each side, three hours of speech."""


def find_cheapest_edits(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Edits:
    """Find the alignment of least cost that sclite chooses: see _compute_moves."""
    different, units, lengths = list[int](), list[str](), list[int]()
    for pair, (reference, hypothesis) in enumerate(pairs):
        if reference != hypothesis:
            different.append(pair)
            for side in (reference, hypothesis):
                units += side
                lengths.append(len(side))
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    coded_U = np.fromiter(map(numbers.__getitem__, units), np.int32, len(units))
    lengths_P2 = np.array(lengths, np.int64).reshape(-1, 2)
    starts_P2 = np.cumsum(lengths_P2).reshape(-1, 2) - lengths_P2
    numbers_P = np.array(different, np.int64)
    parts = [
        _align_batch(numbers_P[rows], coded_U, starts_P2[rows], lengths_P2[rows])
        for rows in _make_batches(numbers_P, lengths_P2)
    ]
    columns = np.concatenate(parts, axis=1) if parts else np.empty((4, 0), np.int64)
    # The batches mix the pairs; within a pair the order is right already.
    return Edits(*columns[:, np.argsort(columns[0], kind="stable")])


def _make_batches(numbers_P: np.ndarray, lengths_P2: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of pairs of about the same size, padded to MAX_BATCH at most."""
    order_P = np.lexsort(lengths_P2.T[::-1])
    sizes_P2 = lengths_P2[order_P] + 1
    too_long = order_P[sizes_P2.prod(axis=1) > MAX_TABLE]
    if len(too_long):
        number = numbers_P[too_long[0]] + 1
        lengths = "{:,} units against {:,}".format(*lengths_P2[too_long[0]])
        raise UserError(f"utterance {number}: {lengths} are too long; cut it, or use align levenshtein")
    while len(order_P):
        most = max(1, MAX_BATCH // int(sizes_P2[0].prod()))  # more would not fit if all were as small
        largest_P2 = np.maximum.accumulate(sizes_P2[:most])
        padded_P = largest_P2.prod(axis=1) * np.arange(1, len(largest_P2) + 1)
        count = max(1, int(np.searchsorted(padded_P, MAX_BATCH, side="right")))
        yield order_P[:count]
        order_P, sizes_P2 = order_P[count:], sizes_P2[count:]


def _align_batch(
    numbers_P: np.ndarray, coded_U: np.ndarray, starts_P2: np.ndarray, lengths_P2: np.ndarray
) -> np.ndarray:
    """The four columns of Edits, as rows."""
    references_PR, hypotheses_PH = (
        _pad(coded_U, starts_P2[:, side], lengths_P2[:, side], -1 - side) for side in (0, 1)
    )
    moves_RPH = _compute_moves(references_PR, hypotheses_PH)
    pair = np.arange(len(numbers_P))
    i, j = lengths_P2.T
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


def _pad(coded_U: np.ndarray, starts_P: np.ndarray, lengths_P: np.ndarray, value: int) -> np.ndarray:
    places_L = np.arange(lengths_P.max())
    is_own_PL = places_L < lengths_P[:, None]
    padded_PL = np.full(is_own_PL.shape, value, np.int32)
    padded_PL[is_own_PL] = coded_U[(starts_P[:, None] + places_L)[is_own_PL]]
    return padded_PL


def _compute_moves(references_PR: np.ndarray, hypotheses_PH: np.ndarray) -> np.ndarray:
    """The last step of the cheapest way to each cell; of equal ones a pair of units, then an insertion.

    The cost of a cell is the least of what three neighbors offer. Two of them lie in the row above; the one
    to the left is put in afterwards, for the whole row at once: insertions cost GAP from column to
    column, so that the least cost without that slope is a running minimum.
    """
    num_pairs, num_rows = references_PR.shape
    num_columns = hypotheses_PH.shape[1]
    moves_RPH = np.empty((num_rows + 1, num_pairs, num_columns + 1), np.uint8)
    moves_RPH[0] = INSERTION
    moves_RPH[:, :, 0] = DELETION
    dtype = np.int16 if PAIR * (num_rows + num_columns) < np.iinfo(np.int16).max else np.int32
    slope_H = GAP * np.arange(num_columns + 1, dtype=dtype)
    costs_PH = np.tile(slope_H, (num_pairs, 1))
    for row in range(num_rows):
        differ_PH = hypotheses_PH != references_PR[:, row, None]
        diagonal_PH = costs_PH[:, :-1] + PAIR * differ_PH.astype(dtype)
        costs_PH = costs_PH + GAP
        np.minimum(costs_PH[:, 1:], diagonal_PH, out=costs_PH[:, 1:])
        costs_PH -= slope_H
        np.minimum.accumulate(costs_PH, axis=1, out=costs_PH)
        costs_PH += slope_H
        moves_PH = moves_RPH[row + 1, :, 1:]
        is_insertion_PH = costs_PH[:, :-1] + GAP == costs_PH[:, 1:]
        moves_PH[:] = DELETION
        moves_PH[is_insertion_PH] = INSERTION
        moves_PH[diagonal_PH == costs_PH[:, 1:]] = DIAGONAL
    return moves_RPH
