"""Combine the texts of several systems by voting on each word, as NIST's ROVER does.

The words of the first system are slots of one word each. Each further text is aligned with the slots: a word
that a slot already has costs nothing there, another word 4, and 1 if a system has no word in that slot. A new
slot for a word costs 3, and so does a slot without a word of this text, or 0.001 if another system has none
there either. Then each slot elects a word or none. Fiscus (1997), "A post-processing system to yield reduced
word error rates: Recognizer Output Voting Error Reduction (ROVER)".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asr.errors import UserError
from asr.scoring.counting import score
from asr.scoring.scored_files import describe_formatting, find_ids, match_transcripts, name_systems
from asr.transcripts.readers import read_transcripts

NO_WORD = ""
# Costs are added in single precision, as NIST's rover does: how they round decides between equal ones.
SUBSTITUTION, GAP, BESIDE_NO_WORD, GAP_AT_NO_WORD = map(np.float32, (4, 3, 1, 0.001))
Slot = tuple[str, ...]  # the word of each system so far, or NO_WORD; the word that made the slot comes first


class _Row(NamedTuple):
    """The cheapest alignments that end at one word of a slot, for each number of words of the new text."""

    costs: list[np.float32]
    steps: list[tuple[int, int, int]]
    """Slots and words of the text that the last step takes, and the row of the slot that it comes from."""


def combine_files(paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Combine files of hypotheses: texts by the ids of the first, and notes for the user."""
    if len(paths) < 3:
        raise UserError(f"{len(paths)} files; expected 3: of two, the first wins every vote")
    name_systems(paths)  # rejects duplicates
    files = [read_transcripts(path, "hypothesis") for path in paths]
    first, others = find_ids(files[0], files[1:])
    votes = {id: [entry.text] for id, entry in first.entries.items() if entry.text is not None}
    notes = [f"{first.path}: {note}" for note in first.notes]
    for file in others:
        matched, more = match_transcripts(first, file, "are missing and have a vote less")
        notes += [f"{file.path}: {note}" for note in (*file.notes, *more)]
        texts = {id: entry.text or "" for id, entry in matched.items()}
        if describe_formatting(score({id: votes[id][0] or "" for id in texts}, texts, resamples=0)):
            notes.append(
                f"{file.path}: differs from {first.path} mostly in case or punctuation, so the same word "
                "counts as two; write both alike first"
            )
        for id, text in texts.items():
            votes[id].append(text)
    return {id: combine(texts) for id, texts in votes.items()}, notes


def combine(texts: Sequence[str]) -> str:
    """Vote on the words of one utterance, as `rover -s -m meth1 -a 1 -c 0` does without times.

    Of words with as many votes, the one of the earliest system wins. Where a later system has inserted a
    word, it also wins against as many systems without one.
    """
    if len(set(texts)) == 1:  # most are, of good systems
        return " ".join(texts[0].split())
    slots: list[Slot] = [(word,) for word in texts[0].split()]
    for number, text in enumerate(texts[1:], start=1):
        slots = _align(slots, text.split(), number)
    elected = [Counter(slot).most_common(1)[0][0] for slot in slots]  # of equals, the one that came first
    return " ".join(word for word in elected if word != NO_WORD)


def _align(slots: Sequence[Slot], words: Sequence[str], num_systems: int) -> list[Slot]:
    """Add the words of one more system to the slots of the first `num_systems`."""
    columns = range(len(words) + 1)
    rows = [_Row([column * GAP for column in columns], [(0, 1, 0)] * len(columns))]
    table = [rows]
    for slot in slots:
        best = [min((row.costs[column], number) for number, row in enumerate(rows)) for column in columns]
        rows = [_fill_row(number, word, words, best) for number, word in enumerate(dict.fromkeys(slot))]
        table.append(rows)
    _, number = min((row.costs[-1], number) for number, row in enumerate(rows))
    aligned: list[Slot] = []
    i, j = len(slots), len(words)
    while i or j:
        from_slot, from_text, number = table[i][number].steps[j]
        i, j = i - from_slot, j - from_text
        if from_slot:
            aligned.append((*slots[i], words[j] if from_text else NO_WORD))
        else:
            aligned.append((words[j], *[NO_WORD] * num_systems))
    return aligned[::-1]


def _fill_row(number: int, own: str, words: Sequence[str], best: Sequence[tuple[np.float32, int]]) -> _Row:
    """Extend the best alignments of the slot before by the word `own`. Of equal costs, a pair comes first."""
    gap, other = (GAP, SUBSTITUTION) if own != NO_WORD else (GAP_AT_NO_WORD, BESIDE_NO_WORD)
    row = _Row([best[0][0] + gap], [(1, 0, best[0][1])])
    for column, word in enumerate(words, start=1):
        pair = best[column - 1][0] + (np.float32(0) if word == own else other)
        deletion, insertion = best[column][0] + gap, row.costs[-1] + GAP
        if pair <= min(deletion, insertion):
            step = (1, 1, best[column - 1][1])
        else:
            step = (1, 0, best[column][1]) if deletion < insertion else (0, 1, number)
        row.costs.append(min(pair, deletion, insertion))
        row.steps.append(step)
    return row
