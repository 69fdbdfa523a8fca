"""Files of hypotheses scored against a file of references: read, matched, and with notes on what is odd."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asr.data.manifest import find_more_references
from asr.errors import UserError
from asr.scoring.alignments import split_units
from asr.scoring.counting import Normalization, choose_normalization, score
from asr.scoring.glm import apply_mapping
from asr.scoring.matching import (
    compare_styles,
    describe_reference,
    find_ids,
    match_transcripts,
    scored_ids,
)
from asr.scoring.result import RATE_NAMES, Score
from asr.scoring.speakers import pair_speakers
from asr.transcripts.line_formats import Entry
from asr.transcripts.readers import TranscriptFile, read_transcripts, split_format

_ALTERNATIVES = re.compile(r"(^|\s)\{.*/.*\}(\s|$)")


@dataclass(frozen=True)
class ScoredFile:
    """One file of hypotheses, and how well they did."""

    name: str
    path: str
    format: str
    score: Score
    entries: Mapping[str, Entry]
    """Hypotheses by the ids of the references."""


def score_files(
    reference_path: str,
    hypothesis_paths: Sequence[str],
    *,
    more_references: Sequence[str] = (),
    normalize: Normalization | Callable[[str], str] = "none",
    glm: str | None = None,
    speakers_at_once: bool = False,
    **options: Any,
) -> tuple[TranscriptFile, list[ScoredFile], list[str]]:
    """The references, each file of hypotheses with its score, and what a person should know about them.

    A hypothesis path that is no file may name a field of the references: the column of a system in a table.
    `more_references` are files of other references, which are right too, as are the fields reference_2,
    reference_3 and so on of the first; of each utterance the one with the fewest errors counts.
    `glm` is a global mapping file, whose rules rewrite both sides first. With `speakers_at_once`, all that a
    speaker says in a recording is one utterance, and hypotheses are assigned to speakers by `pair_speakers`.
    Options are those of `score`.
    """
    change = choose_normalization(normalize)
    if [reference_path, *more_references, *hypothesis_paths].count("-") > 1:
        raise UserError("standard input can be read once only; give files for the others")
    reference = read_transcripts(reference_path)
    columns = {field for entry in reference.entries.values() for field in entry.fields}
    hypothesis_paths = [
        f"{reference_path}#{path}" if path in columns and not os.path.exists(path) else path
        for path in hypothesis_paths
    ]
    names = name_systems(hypothesis_paths)
    known_ids = () if reference.format == "plain" else reference.entries
    others = [read_transcripts(path, "reference", known_ids) for path in more_references]
    files = [read_transcripts(path, "hypothesis", known_ids) for path in hypothesis_paths]
    reference, files = find_ids(reference, [*others, *files])
    others, files = [*_split_fields(reference), *files[: len(others)]], files[len(others) :]
    if glm is not None:
        if options.get("align") != "sclite":
            raise UserError(f"{glm}: its rules may offer alternatives, {{ a / b }}; expected align sclite")
        reference = apply_mapping(glm, reference, "reference")
        others = [apply_mapping(glm, file, "reference") for file in others]
        files = [apply_mapping(glm, file, "hypothesis") for file in files]
    notes = [f"{reference.path}: {note}" for note in (*reference.notes, *describe_reference(reference))]
    if speakers_at_once:
        if options.get("align", "jiwer") != "jiwer":
            raise UserError(
                "several speakers at once are assigned by the fewest errors; expected align jiwer"
            )
        if others:
            raise UserError(
                f"{others[0].path}: of several speakers at once, only one reference is read; leave it out"
            )
        unit = options.get("unit", "words")
        reference, files = pair_speakers(reference, files, lambda text: split_units(change(text), unit))
    ids = scored_ids(reference)
    texts = {id: reference.entries[id].text or "" for id in ids}
    speakers = _find_speakers(reference, ids, notes)
    if speakers_at_once:
        options["recordings"] = {id: reference.entries[id].recording for id in ids}
    if options.get("align") != "sclite" and (
        count := sum(map(bool, map(_ALTERNATIVES.search, texts.values())))
    ):
        notes.append(
            f"{reference.path}: {count:,} texts offer alternatives, {{ a / b }}, which are compared as they "
            "stand; --align sclite chooses among them"
        )
    alternatives = _match_alternatives(reference, others, notes)
    systems = []
    for name, file in zip(names, files, strict=True):
        matched = match_transcripts(reference, file)
        hypotheses = {id: entry.text or "" for id, entry in matched.entries.items()}
        found = score(
            texts, hypotheses, speakers=speakers, alternatives=alternatives, normalize=normalize, **options
        )
        systems.append(ScoredFile(name, file.path, file.format, found, matched.entries))
        own = [*file.notes, *matched.notes, *_describe_styles(found, is_normalized=normalize != "none")]
        notes += [f"{file.path}: {note}" for note in own]
    if emptied := sum(bool(text.split()) and not change(text) for text in texts.values()):
        notes.append(f"{reference.path}: {emptied:,} references are empty after --normalize {normalize}")
    return reference, systems, notes


def _split_fields(reference: TranscriptFile) -> list[TranscriptFile]:
    """The fields reference_2, reference_3 and so on as files of their own."""
    found: dict[str, dict[str, Entry]] = {}
    for id, entry in reference.entries.items():
        for name, text in find_more_references(entry.fields).items():
            found.setdefault(name, {})[id] = Entry(text)
    ordered = find_more_references(found)
    return [TranscriptFile(f"{reference.path}: {n}", reference.format, own) for n, own in ordered.items()]


def _match_alternatives(
    reference: TranscriptFile, others: Sequence[TranscriptFile], notes: list[str]
) -> dict[str, list[str]]:
    """Further references by id."""
    found: dict[str, list[str]] = {}
    for file in others:
        matched = match_transcripts(reference, file, "have no text; their other references count")
        for id, entry in matched.entries.items():
            found.setdefault(id, []).append(entry.text or "")
        notes += [f"{file.path}: {note}" for note in (*file.notes, *matched.notes)]
    return found


def name_systems(paths: Sequence[str]) -> list[str]:
    """The names of the files; where they are alike, as in */hyp.trn, the whole paths."""
    split = [split_format(path) for path in paths]
    plain = [f"{path}#{field}" if field else path for _, path, field in split]
    stems = [
        field or os.path.splitext(os.path.basename(os.path.normpath(path)))[0] for _, path, field in split
    ]
    names = stems if len(set(stems)) == len(stems) else plain
    if len(set(names)) < len(names):
        raise UserError(
            f"{next(name for name in names if names.count(name) > 1)} is given twice; once is enough"
        )
    return names


def _find_speakers(reference: TranscriptFile, ids: Sequence[str], notes: list[str]) -> dict[str, str] | None:
    """Find the speakers of all utterances or of none: intervals by speaker need to know every one."""
    found = {id: speaker for id in ids if (speaker := reference.entries[id].speaker) is not None}
    if found and len(found) < len(ids):
        notes.append(
            f"{reference.path}: {len(ids) - len(found):,} of {len(ids):,} utterances have no speaker, so the "
            f"interval goes by utterance"
        )
    return found if len(found) == len(ids) else None


def _describe_styles(found: Score, is_normalized: bool) -> list[str]:
    notes = []
    pairs = [pair for pair in zip(found.references, found.hypotheses, strict=True) if pair[1]]
    if styles := compare_styles((first for first, _ in pairs), (second or "" for _, second in pairs)):
        advice = "" if is_normalized else "; is that wanted? --normalize makes texts alike"
        notes.append("; ".join(styles) + advice)
    by_case = sum(n for (a, b), n in found.confusions.items() if a.casefold() == b.casefold())
    if by_case:
        rate = (found.counts.errors - by_case) / found.counts.reference_length
        notes.append(
            f"{by_case:,} of {found.counts.errors:,} errors vanish when case is ignored "
            f"({RATE_NAMES[found.unit]} {100 * rate:.2f} %); --normalize basic ignores it"
        )
    return notes
