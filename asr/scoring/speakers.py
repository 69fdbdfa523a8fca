"""Several speakers at once: the texts of each joined, hypotheses assigned with the fewest errors (cpWER)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from rapidfuzz.distance import Levenshtein

from asr.errors import UserError
from asr.transcripts.line_formats import Entry
from asr.transcripts.readers import TranscriptFile

NOBODY = "(nobody)"
"""Speaker of an empty reference, to which a speaker is assigned whom a hypothesis has too many."""

Splitter = Callable[[str], Sequence[str]]


def pair_speakers(
    reference: TranscriptFile, hypotheses: Sequence[TranscriptFile], split: Splitter
) -> tuple[TranscriptFile, list[TranscriptFile]]:
    """The same files with one entry for each speaker of a recording, paired by their ids.

    In each recording the speakers of a hypothesis are assigned to those of the reference so that the errors,
    counted in the units that `split` makes, are fewest in all.
    """
    said, found = _join_texts(reference), [_join_texts(file) for file in hypotheses]
    references: dict[str, Entry] = {}
    paired: list[dict[str, Entry]] = [{} for _ in hypotheses]
    for recording, texts in said.items():
        own = [by_recording.pop(recording, {}) for by_recording in found]
        too_many = max(0, *(len(one) - len(texts) for one in own))
        names = [*texts, *(f"{NOBODY}-{number + 1}" for number in range(too_many))]
        ids = [f"{recording}:{name}" for name in names]
        for id, name in zip(ids, names, strict=True):
            speaker = name if name in texts else NOBODY
            references[id] = Entry(texts.get(name, ""), speaker=speaker, recording=recording)
        for entries, one in zip(paired, own, strict=True):
            rows = assign_texts([references[id].text or "" for id in ids], list(one.values()), split)
            for row, (name, text) in sorted(zip(rows, one.items(), strict=True)):
                entries[ids[row]] = Entry(text, speaker=name, recording=recording)
    for entries, rest in zip(paired, found, strict=True):  # recordings that the reference does not know
        entries |= {f"{name}:{who}": Entry(text) for name, own in rest.items() for who, text in own.items()}
    files = [replace(file, entries=own) for file, own in zip(hypotheses, paired, strict=True)]
    return replace(reference, entries=references), files


def assign_texts(references: Sequence[str], hypotheses: Sequence[str], split: Splitter) -> list[int]:
    """For each hypothesis the index of its reference: together with the fewest errors of all assignments.

    There are at least as many references. What is left of them counts as deleted.
    """
    from scipy.optimize import linear_sum_assignment

    said = [split(text) for text in references]
    heard = [split(text) for text in (*hypotheses, *[""] * (len(references) - len(hypotheses)))]
    errors_HR = np.array([[Levenshtein.distance(ours, theirs) for ours in said] for theirs in heard])
    _, rows = linear_sum_assignment(errors_HR)
    assigned: list[int] = rows.tolist()
    return assigned[: len(hypotheses)]


def _join_texts(file: TranscriptFile) -> dict[str, dict[str, str]]:
    """Recording to speaker to all that he says, in the order of time."""
    texts: dict[str, dict[str, str]] = {}
    for id, entry in sorted(file.entries.items(), key=lambda item: item[1].start or 0.0):
        if entry.recording is None or entry.speaker is None:
            raise UserError(
                f"{file.path}: utterance {id} has no "
                f"{'recording' if entry.recording is None else 'speaker'}; to score several speakers at "
                "once, give stm, or JSON Lines with audio and speaker"
            )
        if entry.text is not None:
            own = texts.setdefault(entry.recording, {})
            own[entry.speaker] = f"{own.get(entry.speaker, '')} {entry.text}".strip()
    return texts
