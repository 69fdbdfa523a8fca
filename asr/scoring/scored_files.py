"""Score hypothesis files against a reference file, matched by ID, by order or by time, with notes."""

from __future__ import annotations

import bisect
import functools
import itertools
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asr.data.manifest import find_more_references
from asr.errors import UserError, shorten
from asr.scoring.alignments import load_nist, split_units
from asr.scoring.counting import choose_normalization, score
from asr.scoring.intervals import RESAMPLES
from asr.scoring.options import MEETING_METRICS, Align, Metric, Normalization, Unit, check_options
from asr.scoring.result import Score
from asr.scoring.significance import Comparison, compare_scores
from asr.transcripts.readers import Entry, TranscriptFile, read_transcripts, split_format
from asr.transcripts.transcript import Word

logger = logging.getLogger(__name__)

MAX_EXAMPLES = 3
FORMATTING_SAMPLE = 100  # utterances with errors
MIN_FORMATTING = 5  # errors; fewer say little about a system


Texts = Sequence[str | None] | Mapping[str, str | None]


@dataclass(frozen=True)
class ScoredFile:
    """A hypothesis file and its score."""

    name: str
    path: str
    format: str
    score: Score
    entries: Mapping[str, Entry]  # hypotheses by reference ID


def score_files(
    reference: str | Path,
    hypothesis: str | Path,
    *,
    normalize: Normalization | Callable[[str], str] = "none",
    align: Align = "levenshtein",
    unit: Unit = "words",
    glm: str | None = None,
    metric: Metric = "wer",
    collar: float = 5.0,
    resamples: int = RESAMPLES,
) -> Score:
    """Score a hypothesis file, such as hyp.trn or kaldi:data/text, against a reference file.

    Files are read and matched as in `asr score`, and its notes are logged as warnings. The options are
    explained in `score`, or in `score_systems` (`glm`, `metric`, `collar`).
    """
    _, (system,), notes = score_systems(
        str(reference), [str(hypothesis)], normalize=normalize, align=align, unit=unit,
        glm=glm, metric=metric, collar=collar, resamples=resamples,
    )  # fmt: skip
    for note in notes:
        logger.warning("%s", note)
    return system.score


def compare(
    reference: str | Path | Texts,
    first: str | Path | Texts,
    second: str | Path | Texts,
    *,
    names: tuple[str, str] | None = None,
    **options: Any,
) -> Comparison:
    """Compare two systems on the same references, as `asr score` does; print the result for the verdict.

    All three are files, with the options of `score_files`, or texts, with the options of `score`.
    """
    if isinstance(reference, (str, Path)):
        paths = [str(path) for path in (first, second)]
        _, systems, notes = score_systems(str(reference), paths, **options)
        for note in notes:
            logger.warning("%s", note)
        scores = [system.score for system in systems]
        names = names or (systems[0].name, systems[1].name)
    else:
        scores = [score(reference, texts, **options) for texts in (first, second)]  # type: ignore[arg-type]
    return compare_scores(scores[0], scores[1], names or ("first", "second"))


def score_systems(
    reference_path: str,
    hypothesis_paths: Sequence[str],
    *,
    more_references: Sequence[str] = (),
    normalize: Normalization | Callable[[str], str] = "none",
    glm: str | None = None,
    metric: Metric = "wer",
    collar: float = 5.0,
    **options: Any,
) -> tuple[TranscriptFile, list[ScoredFile], list[str]]:
    """Return the references, each hypothesis file with its score, and notes for the user.

    A hypothesis path that is not a file may name a field of the references: a system's column in a table.
    `more_references` and the fields reference_2, reference_3 and so on are further correct texts; the one
    with the fewest errors counts. `glm` is a global mapping file, whose rules rewrite both sides first.
    `metric` cer counts characters; for cpwer, tcpwer and orcwer, `asr.speakers.meeting_scores` finds the
    words of each utterance. All other options are described in `score`.
    """
    defaults: dict[str, Any] = {"align": "levenshtein", "unit": "words", "resamples": RESAMPLES}
    options = defaults | options | ({"unit": "characters"} if metric == "cer" else {})
    check_options(normalize=normalize, metric=metric, collar=collar, **options)
    is_meeting = metric in MEETING_METRICS
    files = _read_files(reference_path, hypothesis_paths, more_references, metric if is_meeting else "")
    if glm is not None:
        files = _apply_mapping(glm, files, options["align"])
    reference, change = files.reference, choose_normalization(normalize)
    notes = [f"{reference.path}: {note}" for note in (*reference.notes, *describe_reference(reference))]
    recordings: dict[str, Any] | None = None
    if is_meeting:
        from asr.speakers.meeting_scores import pair_speakers

        reference, paired = pair_speakers(
            metric, reference, files.systems, lambda text: split_units(change(text), options["unit"]), collar
        )
        files = files._replace(systems=paired)
        recordings = {id: reference.entries[id].recording for id in scored_ids(reference)}
    texts = {id: reference.entries[id].text or "" for id in scored_ids(reference)}
    speakers = _find_speakers(reference, list(texts), notes)
    if emptied := sum(bool(text.split()) and not change(text).split() for text in texts.values()):
        notes.append(f"{reference.path}: {emptied:,} references are empty after --normalize {normalize}")
    offered = sum(map(_offers_alternatives, texts.values())) if options["align"] == "levenshtein" else 0
    if offered:
        as_words = f"{offered:,} references offer alternatives, {{ a / b }}, all of which count as words"
        notes.append(f"{reference.path}: {as_words}; --align sclite chooses among them")
    alternatives = _find_alternatives(reference, files.others, notes)
    # Braces, and the @ of tcpWER, would count as punctuation.
    is_raw = normalize == "none" and options["align"] == "levenshtein" and metric != "tcpwer" and not offered
    systems = []
    for name, file in zip(files.names, files.systems, strict=True):
        matched, more = match_transcripts(reference, file)
        hypotheses = {id: entry.text or "" for id, entry in matched.items()}
        scored = score(
            texts, hypotheses, speakers=speakers, recordings=recordings, alternatives=alternatives,
            normalize=normalize, **options,
        )  # fmt: skip
        systems.append(ScoredFile(name, file.path, file.format, scored, matched))
        notes += [f"{file.path}: {note}" for note in (*file.notes, *more)]
        if is_raw and (note := describe_formatting(scored)):
            notes.append(f"{file.path}: {note}")
    if systems and (why := systems[0].score.why_no_interval):
        notes.append(why)
    return reference, systems, notes


class _Files(NamedTuple):
    reference: TranscriptFile
    others: list[TranscriptFile]
    """Other references."""
    systems: list[TranscriptFile]
    names: list[str]
    """Names of the systems."""


def _read_files(
    reference_path: str, hypothesis_paths: Sequence[str], more_references: Sequence[str], meeting_metric: str
) -> _Files:
    """Read all files; the IDs at the start of lines are recognized with the help of the other files."""
    read: Callable[..., TranscriptFile] = read_transcripts
    if meeting_metric:
        from asr.speakers.meeting_scores import read_meeting

        read = read_meeting
        if more_references:
            raise UserError(f"metric {meeting_metric}: expected a single reference")
    reference = read(reference_path)
    columns = {field for entry in reference.entries.values() for field in entry.fields}
    given, rest = zip(*(split_name(path, columns) for path in hypothesis_paths), strict=True)
    paths = [
        f"{reference_path}#{path}" if path in columns and not os.path.exists(path) else path for path in rest
    ]
    names = name_systems(paths, given)
    known_ids = () if reference.format == "plain" else reference.entries
    others = [read_transcripts(path, "reference", known_ids) for path in more_references]
    systems = [read(path, "hypothesis", known_ids) for path in paths]
    reference, found = find_ids(reference, [*others, *systems])
    count = len(others)
    return _Files(reference, [*_split_fields(reference), *found[:count]], found[count:], names)


def _apply_mapping(glm: str, files: _Files, align: str) -> _Files:
    if not align.startswith("sclite"):
        raise UserError(f"{glm}: its rules may offer alternatives, {{ a / b }}; expected align sclite")
    nist = load_nist()
    mapping = nist.read_mapping(glm)
    apply = functools.partial(nist.apply_mapping, mapping)
    reference, others, systems, names = files
    return _Files(apply(reference), list(map(apply, others)), list(map(apply, systems)), names)


def _find_alternatives(
    reference: TranscriptFile, others: Sequence[TranscriptFile], notes: list[str]
) -> dict[str, list[str]]:
    """Return the texts of the other references, by the IDs of the first one."""
    alternatives: dict[str, list[str]] = defaultdict(list)
    for file in others:
        matched, more = match_transcripts(reference, file, "have no text; their other references count")
        for id, entry in matched.items():
            alternatives[id].append(entry.text or "")
        notes += [f"{file.path}: {note}" for note in (*file.notes, *more)]
    return alternatives


def _offers_alternatives(text: str) -> bool:
    return re.search(r"\{.*/.*\}", text) is not None


def describe_formatting(scored: Score) -> str:
    """Note that most errors are formatting and not recognition; "" if they are not, or are few.

    A sample is checked first, because normalizing all texts takes as long as scoring.
    """
    wrong = np.flatnonzero(scored.errors_P)
    if not len(wrong):
        return ""
    for numbers in (wrong[:: max(1, len(wrong) // FORMATTING_SAMPLE)], wrong):
        part = scored.select(numbers.tolist())
        hypotheses = dict(zip(part.ids, part.hypotheses, strict=True))
        texts = dict(zip(part.ids, part.references, strict=True))
        left = score(texts, hypotheses, normalize="basic", unit=part.unit, resamples=0).counts.errors
        errors = part.counts.errors
        if errors < MIN_FORMATTING or errors - left < errors / 2:
            return ""
    counted = f"{errors - left:,} of {errors:,} errors"
    return f"{counted} are case, punctuation or [tags], which --normalize basic removes"


def _split_fields(reference: TranscriptFile) -> list[TranscriptFile]:
    """Return the fields reference_2, reference_3 and so on as separate files."""
    fields: dict[str, dict[str, Entry]] = {}
    for id, entry in reference.entries.items():
        for name, text in find_more_references(entry.fields).items():
            fields.setdefault(name, {})[id] = Entry(text)
    return [
        TranscriptFile(f"{reference.path}: {name}", reference.format, own)
        for name, own in find_more_references(fields).items()
    ]


def split_name(path: str, fields: Container[str] = ()) -> tuple[str, str]:
    """Split `NAME=FILE`, unless a file or field has that name; without a name it is ""."""
    name, equals, rest = path.partition("=")
    if not (equals and name and rest) or os.path.exists(path) or path in fields or "/" in name:
        return "", path
    return name, rest


def name_systems(paths: Sequence[str], given: Sequence[str] | None = None) -> list[str]:
    """Name systems as given, else by file, starting at the first folder that differs; else by whole path.

    Folders are needed because `asr evaluate` names its files after the method, such as ctc_beam.
    """
    split = [split_format(path) for path in paths]
    whole = [f"{path}#{field}" if field else path for _, path, field in split]
    if len(set(whole)) < len(whole):
        raise UserError(f"{', '.join(whole)}: the same file is given twice; give it once")
    files = [Path(os.path.abspath(path)) for _, path, _ in split]
    common = os.path.commonpath([file.parent for file in files])
    stems = [str(file.relative_to(common).with_suffix("")) for file in files]
    given = given or [""] * len(paths)
    names = [own or field or stem for own, (_, _, field), stem in zip(given, split, stems, strict=True)]
    if len(set(names)) < len(names):
        names = [own or path for own, path in zip(given, whole, strict=True)]
    if len(set(names)) < len(names):
        raise UserError(f"{', '.join(names)}: two systems have the same name; give NAME=FILE")
    return names


def _find_speakers(reference: TranscriptFile, ids: Sequence[str], notes: list[str]) -> dict[str, str] | None:
    """Find the speakers of all utterances, or none, because intervals over speakers need all."""
    speakers = {id: speaker for id in ids if (speaker := reference.entries[id].speaker) is not None}
    if speakers and len(speakers) < len(ids):
        unknown = f"{len(ids) - len(speakers):,} of {len(ids):,} utterances have no speaker"
        notes.append(f"{reference.path}: {unknown}, so the interval is over utterances")
    return speakers if len(speakers) == len(ids) else None


# --- ids in plain text --------------------------------------------------------------------------


def find_ids(
    reference: TranscriptFile, hypotheses: Sequence[TranscriptFile]
) -> tuple[TranscriptFile, list[TranscriptFile]]:
    """Read the first words of plain text as IDs if the other side shows that they are.

    If the first words of both sides may be IDs, nothing is guessed.
    """
    files = [reference, *hypotheses]
    known = {id for file in files if file.format != "plain" for id in file.entries}
    ours = _find_first_words(reference)
    # A file that is plain text for sure has no IDs, so the others need none either.
    needs_none = any(file.format == "plain" and not file.is_guess for file in files)
    for number, file in enumerate(files):
        words = _find_first_words(file)
        if len(words.keys() & known) > len(words) / 2:
            split = ((entry.text or "").split(maxsplit=1) for entry in file.entries.values())
            entries = {parts[0]: Entry("".join(parts[1:])) for parts in split if parts}
            files[number] = TranscriptFile(file.path, "kaldi", entries)
            continue
        # Numbers where the other side has IDs or the same numbers, or its first words in another order.
        are_numbers = len(words) > 1 and all(re.fullmatch(r"[\d.,:]+", word) for word in words)
        is_similar = file is not reference and len(words.keys() & ours.keys()) > len(words) / 2
        is_shuffled = len(words) > 2 and words.keys() == ours.keys() and list(words) != list(ours)
        if not needs_none and ((are_numbers and (known or is_similar)) or (is_shuffled and not known)):
            raise UserError(
                f"{file.path}: each line starts with another word ({list_examples(list(words))}); if these "
                "are IDs, write kaldi: before the path; if they belong to the texts, write plain:"
            )
    return files[0], files[1:]


def _find_first_words(file: TranscriptFile) -> dict[str, None]:
    """List the first words of a guessed file in order; none if a word repeats, as IDs never do."""
    texts = [entry.text for entry in file.entries.values()] if file.is_guess else []
    words = [text.split(maxsplit=1)[0] for text in texts if text]
    unique = dict.fromkeys(words)
    return unique if len(unique) == len(words) else {}


# --- matching -----------------------------------------------------------------------------------


def match_transcripts(
    reference: TranscriptFile,
    hypothesis: TranscriptFile,
    if_missing: str = "have no hypothesis; all their words count as deletions",
) -> tuple[dict[str, Entry], list[str]]:
    """Return the hypotheses in the order of their references, and notes on missing or unknown IDs.

    Raise an error if they belong to another corpus. `if_missing` is the note on utterances without one.
    """
    notes: list[str] = []
    hypotheses = hypothesis.entries
    if "plain" in (reference.format, hypothesis.format):
        if len(reference.entries) != len(hypotheses):
            raise UserError(
                f"{hypothesis.path} has {len(hypotheses):,} utterances, {reference.path} "
                f"{len(reference.entries):,}; without ids on both sides, line N is compared with line N: add "
                "ids, or the missing lines"
            )
        if reference.format != hypothesis.format:
            notes.append("only one of the two files has ids: utterance N is compared with utterance N")
        hypotheses = dict(zip(reference.entries, hypotheses.values(), strict=True))
    elif reference.format == hypothesis.format == "stm" and (
        other := _find_other_times(reference, hypothesis)
    ):
        raise UserError(
            f"{hypothesis.path}: segments such as {other} have other times than in {reference.path}, "
            "and words without times cannot be matched; expected the same segments, or a CTM, which has word "
            "times. To score whole recordings, try --metric cpwer"
        )
    elif not hypotheses.keys() & reference.entries.keys():
        hypotheses = _match_by_time(reference, hypothesis, notes)
    scored = scored_ids(reference)
    entries = {id: hypotheses[id] for id in scored if id in hypotheses and hypotheses[id].text is not None}
    if not entries:
        ours, theirs = (list_examples(list(file.entries)) for file in (reference, hypothesis))
        raise UserError(
            f"{hypothesis.path} has no utterance of {reference.path}. Its first IDs are {theirs} (read "
            f"as {hypothesis.format}), those in the reference {ours} (read as {reference.format}). Is it "
            "another corpus, another case, or the wrong format? A prefix such as kaldi: sets it"
        )
    if missing := [id for id in scored if id not in entries]:
        notes.append(f"{len(missing):,} of {len(scored):,} utterances {if_missing}: {list_examples(missing)}")
    if unknown := [id for id in hypotheses if id not in reference.entries]:
        left_out = f"{len(unknown):,} IDs are not in {reference.path} and are left out"
        notes.append(f"{left_out}: {list_examples(unknown)}")
    return entries, notes


def _find_other_times(reference: TranscriptFile, hypothesis: TranscriptFile) -> str:
    """Find a hypothesis segment that overlaps an unmatched reference segment at other times."""
    spans: dict[_Key, list[tuple[float, float]]] = defaultdict(list)
    for id in reference.entries.keys() - hypothesis.entries.keys():
        key, span = _locate(id, reference.entries[id])
        spans[key].append(span)
    starts = {key: [start for start, _ in sorted(own)] for key, own in spans.items()}
    # The latest end so far: a segment overlaps another if it starts before its end and ends after its start.
    ends = {
        key: list(itertools.accumulate((end for _, end in sorted(own)), max)) for key, own in spans.items()
    }
    for id, entry in hypothesis.entries.items():
        key, (start, end) = _locate(id, entry)
        number = bisect.bisect_left(starts.get(key, ()), end)
        if number and id not in reference.entries and ends[key][number - 1] > start:
            return id
    return ""


def _locate(id: str, entry: Entry) -> tuple[_Key, tuple[float, float]]:
    start = entry.start or 0.0
    return (entry.recording or id, entry.channel), (start, start + (entry.duration or 0.0))


def scored_ids(reference: TranscriptFile) -> list[str]:
    """List the utterances that have a transcript."""
    return [id for id, entry in reference.entries.items() if entry.text is not None]


def describe_reference(reference: TranscriptFile) -> list[str]:
    """Note the utterances of a reference without a text."""
    texts = {id: entry.text for id, entry in reference.entries.items()}
    unwritten = [id for id, text in texts.items() if text is None]
    empty = [id for id, text in texts.items() if text is not None and not text.split()]
    if len(unwritten) == len(texts):
        raise UserError(f"{reference.path}: no utterance has a text; expected transcripts, to compare with")
    notes = [f"{len(unwritten):,} utterances have no text and are not scored: {list_examples(unwritten)}"]
    insertions = "references are empty; all words of their hypotheses count as insertions"
    return notes * bool(unwritten) + [f"{len(empty):,} {insertions}: {list_examples(empty)}"] * bool(empty)


def list_examples(ids: Sequence[str]) -> str:
    """Show the first few, for a message."""
    shown = ", ".join(shorten(id)[1:-1] for id in ids[:MAX_EXAMPLES])
    return shown + (", ..." if len(ids) > MAX_EXAMPLES else "")


# --- by time ------------------------------------------------------------------------------------

_Key = tuple[str, str | None]  # recording and channel


def _match_by_time(
    reference: TranscriptFile, hypothesis: TranscriptFile, notes: list[str]
) -> dict[str, Entry]:
    """Assign the words of whole recordings to reference segments, as sclite does.

    A word belongs to the first segment that ends after the word's middle, or to the last segment of the
    recording. So words between two segments are insertions in the later one.
    """
    segments: dict[_Key, list[tuple[float, float, str]]] = defaultdict(list)
    for id, entry in reference.entries.items():
        if entry.recording is not None and entry.start is not None and entry.duration is not None:
            part = (entry.start + entry.duration, entry.start, id)
            segments[entry.recording, entry.channel].append(part)
    by_recording: dict[str, list[_Key]] = defaultdict(list)
    for key, parts in segments.items():
        parts.sort()
        by_recording[key[0]].append(key)
    words: dict[str, list[Word]] = defaultdict(list)
    covered: set[str] = set()
    unmatched: dict[str, Entry] = {}
    for id, entry in hypothesis.entries.items():
        matched_key = _find_recording(by_recording, id, entry)
        if matched_key is None or not (entry.words or entry.text == ""):
            unmatched[id] = entry
            continue
        parts = segments[matched_key]
        covered.update(id for _, _, id in parts)
        for word in entry.words:
            position = bisect.bisect_right(parts, word.middle, key=lambda part: part[0])
            words[parts[min(position, len(parts) - 1)][2]].append(word)
    if covered:
        notes.append("words are assigned to the segments of the reference by the middle of their time")
    matched = {id: words[id] for id in reference.entries if id in covered}
    texts = {id: Entry(" ".join(word.text for word in own), words=tuple(own)) for id, own in matched.items()}
    return texts | unmatched


def _find_recording(by_recording: Mapping[str, list[_Key]], id: str, entry: Entry) -> _Key | None:
    for recording in (entry.recording or id, id):
        keys = by_recording.get(recording, [])
        if (recording, entry.channel) in keys:
            return recording, entry.channel
        if len(keys) == 1:  # files with one channel call it 1, A or nothing
            return keys[0]
    return None
