"""Combine the texts of several systems by vote, word by word, as NIST's ROVER does.

The text of the first system is a row of slots of one word each. Each further text is aligned with the
slots: a word that a slot has already costs nothing there, another one 4; a word without a slot, which gets a
new one, or a slot without a word costs 3. Then the systems vote in each slot, and may vote for no word at
all. Fiscus (1997), "A post-processing system to yield reduced word error rates: Recognizer Output Voting
Error Reduction (ROVER)".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from asr.errors import UserError
from asr.scoring.matching import compare_styles, find_ids, match_transcripts
from asr.scoring.scored_files import name_systems
from asr.transcripts.readers import read_transcripts

LEAST_SYSTEMS = 3
NO_WORD = ""
SUBSTITUTION, GAP = 4, 3  # costs, as NIST has them
Slot = tuple[str, ...]  # the word of each system so far, or NO_WORD


def combine_files(paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Combine files of hypotheses: texts by the ids of the first, and what a person should know."""
    if len(paths) < LEAST_SYSTEMS:
        raise UserError(
            f"{len(paths)} files of hypotheses; expected {LEAST_SYSTEMS} or more: "
            "of two, the first wins every vote"
        )
    name_systems(paths)  # refuses what is given twice
    files = [read_transcripts(path, "hypothesis") for path in paths]
    first, others = find_ids(files[0], files[1:])
    votes = {id: [entry.text] for id, entry in first.entries.items() if entry.text is not None}
    notes = [f"{first.path}: {note}" for note in first.notes]
    for file in others:
        matched = match_transcripts(first, file, "are missing and have a vote less")
        notes += [f"{file.path}: {note}" for note in (*file.notes, *matched.notes)]
        found = {id: entry.text or "" for id, entry in matched.entries.items()}
        if compare_styles((votes[id][0] for id in found), found.values()):
            notes.append(
                f"{file.path}: not written like {first.path} (case, punctuation, digits or accents), so that "
                "the same word counts as two; write both alike first"
            )
        for id, text in found.items():
            votes[id].append(text)
    return {id: combine(texts) for id, texts in votes.items()}, notes


def combine(texts: Sequence[str]) -> str:
    """Vote on the words of one utterance. Of words with as many votes, that of the earliest system wins."""
    if len(set(texts)) == 1:  # most are, of good systems
        return " ".join(texts[0].split())
    slots: list[Slot] = [(word,) for word in texts[0].split()]
    for number, text in enumerate(texts[1:], start=1):
        slots = _align(slots, text.split(), number)
    elected = [Counter(slot).most_common(1)[0][0] for slot in slots]  # of equals, the one that came first
    return " ".join(word for word in elected if word != NO_WORD)


def _align(slots: Sequence[Slot], words: Sequence[str], num_systems: int) -> list[Slot]:
    """Add the words of one more system to the slots of the first `num_systems`."""
    costs = [[GAP * column for column in range(len(words) + 1)]]
    for slot in slots:
        above, skip = costs[-1], _cost(slot, NO_WORD)
        row = [above[0] + skip]
        for column, word in enumerate(words):
            row.append(min(above[column] + _cost(slot, word), above[column + 1] + skip, row[column] + GAP))
        costs.append(row)
    aligned: list[Slot] = []
    row_number, column = len(slots), len(words)
    while row_number or column:
        cost = costs[row_number][column]
        slot = slots[row_number - 1] if row_number else ()
        if (
            row_number
            and column
            and cost == costs[row_number - 1][column - 1] + _cost(slot, words[column - 1])
        ):
            row_number, column = row_number - 1, column - 1
            aligned.append((*slot, words[column]))
        elif row_number and cost == costs[row_number - 1][column] + _cost(slot, NO_WORD):
            row_number -= 1
            aligned.append((*slot, NO_WORD))
        else:
            column -= 1
            aligned.append((*[NO_WORD] * num_systems, words[column]))
    return aligned[::-1]


def _cost(slot: Slot, word: str) -> int:
    """Cost of a word, or of none, in a slot."""
    if word in slot:
        return 0
    return GAP if word == NO_WORD else SUBSTITUTION
