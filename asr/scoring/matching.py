"""Match the hypotheses of one file with the utterances of another: by id, by order of lines, or by time."""

from __future__ import annotations

import bisect
import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asr.errors import UserError, shorten
from asr.transcripts.line_formats import Entry
from asr.transcripts.readers import TranscriptFile
from asr.transcripts.transcript import Word

MAX_EXAMPLES = 3
STYLE_SAMPLE = 2000  # texts that are looked at to tell how a file writes
_PUNCTUATION = re.compile(r"[.,?!;:\u3002\uff0c\uff1f\u061f\u060c\u0964](?=\s|$)")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Matched:
    """Hypotheses by the ids of the references."""

    entries: dict[str, Entry]
    """In the order of the references; what is missing there was not in the file, or had no text."""
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    """What a person should know, such as which ids are missing or unknown."""


def find_ids(
    reference: TranscriptFile, hypotheses: Sequence[TranscriptFile]
) -> tuple[TranscriptFile, list[TranscriptFile]]:
    """The same files, with the first words of plain text as ids where the other side shows that they are.

    Where the first words of both sides may be ids, nothing is guessed.
    """
    files = [reference, *hypotheses]
    known = {id for file in files if file.format != "plain" for id in file.entries}
    words_of = {file.path: words for file in files if file.is_guess and (words := _find_first_words(file))}
    with_ids = {path for path, words in words_of.items() if len(words.keys() & known) > len(words) / 2}
    # What is said to be plain text has no ids, so that nothing else needs any.
    doubtful = (
        []
        if any(file.format == "plain" and not file.is_guess for file in files)
        else [
            path
            for path, words in words_of.items()
            if path not in with_ids and _may_be_ids(words, words_of.get(reference.path, {}), bool(known))
        ]
    )
    if doubtful:
        raise UserError(
            f"{', '.join(doubtful)}: each line begins with another word, as "
            f"{list_examples(list(words_of[doubtful[0]]))}; if these are ids, put kaldi: before the "
            "path, and if they belong to the texts, plain:"
        )
    files = [_split_ids(file) if file.path in with_ids else file for file in files]
    return files[0], files[1:]


def _find_first_words(file: TranscriptFile) -> dict[str, None] | None:
    """List the first words in their order; None if a word is there twice, which no id is."""
    words = [text.split(maxsplit=1)[0] for entry in file.entries.values() if (text := entry.text)]
    found = dict.fromkeys(words)
    return found if words and len(found) == len(words) else None


def _may_be_ids(words: dict[str, None], ours: dict[str, None], are_others_known: bool) -> bool:
    """Numbers where the other side has ids, or the same numbers; or its first words in another order."""
    are_numbers = len(words) > 1 and all(re.fullmatch(r"[\d.,:]+", word) for word in words)
    if are_others_known:
        return are_numbers
    if words is ours:
        return False  # said of the other side, or of none
    if are_numbers:
        return len(words.keys() & ours.keys()) > len(words) / 2
    return len(words) > 2 and words.keys() == ours.keys() and list(words) != list(ours)


def _split_ids(file: TranscriptFile) -> TranscriptFile:
    """Plain text as the Kaldi text that it turned out to be."""
    entries = {}
    for entry in file.entries.values():
        name, *text = (entry.text or "").split(maxsplit=1) or [""]
        if name:
            entries[name] = Entry(text[0] if text else "")
    return TranscriptFile(file.path, "kaldi", entries)


def match_transcripts(
    reference: TranscriptFile,
    hypothesis: TranscriptFile,
    if_missing: str = "have no hypothesis; all their words count as deletions",
) -> Matched:
    """The hypotheses of the utterances that have a reference; an error if they are of another corpus.

    They may be other references or systems too; `if_missing` says in the notes what becomes of those that
    are missing.
    """
    notes: list[str] = []
    found = hypothesis.entries
    if (reference.format == "plain") != (hypothesis.format == "plain"):
        found = _match_by_order(reference, hypothesis, notes)
    elif reference.format == "plain":
        _require_as_many(reference, hypothesis)
    elif not found.keys() & reference.entries.keys() and _are_subtitles_of_one(reference, hypothesis):
        found = dict(zip(reference.entries, found.values(), strict=True))
        notes.append("one recording on each side: compared whatever their names")
    elif not found.keys() & reference.entries.keys():
        found = _match_by_time(reference, hypothesis, notes)
    scored = scored_ids(reference)
    entries = {id: found[id] for id in scored if id in found and found[id].text is not None}
    if not entries:
        raise UserError(_explain_strangers(reference, hypothesis))
    missing = tuple(id for id in scored if id not in entries)
    if missing:
        notes.append(f"{len(missing):,} of {len(scored):,} utterances {if_missing}: {list_examples(missing)}")
    if unknown := [id for id in found if id not in reference.entries]:
        notes.append(
            f"{len(unknown):,} ids are not in {reference.path} and are left out: {list_examples(unknown)}"
        )
    return Matched(entries, missing, tuple(notes))


def _are_subtitles_of_one(reference: TranscriptFile, hypothesis: TranscriptFile) -> bool:
    """Check for one recording on each side, named on one side by the name of a file of subtitles."""
    is_alone = len(reference.entries) == len(hypothesis.entries) == 1
    return is_alone and bool({reference.format, hypothesis.format} & {"srt", "vtt"})


def scored_ids(reference: TranscriptFile) -> list[str]:
    """The utterances that somebody has written down."""
    return [id for id, entry in reference.entries.items() if entry.text is not None]


def describe_reference(reference: TranscriptFile) -> list[str]:
    """Note the utterances of a reference without a text."""
    notes = []
    unwritten = [id for id, entry in reference.entries.items() if entry.text is None]
    if len(unwritten) == len(reference.entries):
        raise UserError(f"{reference.path}: no utterance has a text; expected what is said, to compare with")
    if unwritten:
        notes.append(
            f"{len(unwritten):,} utterances have no text and are not scored: {list_examples(unwritten)}"
        )
    if empty := [
        id for id, entry in reference.entries.items() if entry.text is not None and not entry.text.split()
    ]:
        notes.append(
            f"{len(empty):,} references are empty; whatever was recognised there counts as insertions: "
            f"{list_examples(empty)}"
        )
    return notes


def list_examples(ids: Sequence[str]) -> str:
    """The first few, for a message."""
    shown = ", ".join(shorten(id)[1:-1] for id in ids[:MAX_EXAMPLES])
    return shown + (", ..." if len(ids) > MAX_EXAMPLES else "")


def _explain_strangers(reference: TranscriptFile, hypothesis: TranscriptFile) -> str:
    ours, theirs = list(reference.entries), list(hypothesis.entries)
    if {id.casefold() for id in ours} & {id.casefold() for id in theirs}:
        hint = "they differ in upper and lower case: write them alike"
    elif {re.split(r"[/\\]", id)[-1].rsplit(".", 1)[0] for id in theirs} & set(ours):
        hint = "they are paths of files: keep the names only"
    else:
        hint = (
            "is it of another corpus, or read as the wrong format? (a prefix such as kaldi: says the format)"
        )
    return (
        f"{hypothesis.path} has no utterance of {reference.path}; its first ids are {list_examples(theirs)} "
        f"(read as {hypothesis.format}), and there {list_examples(ours)} (read as {reference.format}); {hint}"
    )


# --- by order -----------------------------------------------------------------------------------


def _match_by_order(
    reference: TranscriptFile, hypothesis: TranscriptFile, notes: list[str]
) -> dict[str, Entry]:
    _require_as_many(reference, hypothesis)
    notes.append("only one of the two files has ids: utterance N is compared with utterance N")
    return dict(zip(reference.entries, hypothesis.entries.values(), strict=True))


def _require_as_many(reference: TranscriptFile, hypothesis: TranscriptFile) -> None:
    if len(reference.entries) != len(hypothesis.entries):
        raise UserError(
            f"{hypothesis.path} has {len(hypothesis.entries):,} utterances ({hypothesis.format}), "
            f"{reference.path} {len(reference.entries):,} ({reference.format}); without ids on both sides, "
            f"line N is compared with line N, so expected as many: add ids, or the missing lines"
        )


# --- by time ------------------------------------------------------------------------------------

_Key = tuple[str, str | None]  # recording and channel


def _match_by_time(
    reference: TranscriptFile, hypothesis: TranscriptFile, notes: list[str]
) -> dict[str, Entry]:
    """Words of whole recordings go to the segments of the reference, as sclite does it.

    A word belongs to the first segment that ends after the middle of the word; what comes after the last
    segment of a recording, to the last one. So words between two segments are insertions in the later one.
    """
    segments = _segments_by_recording(reference)
    by_recording: dict[str, list[_Key]] = defaultdict(list)
    for recording, channel in segments:
        by_recording[recording].append((recording, channel))
    words: dict[str, list[Word]] = defaultdict(list)
    covered: set[str] = set()
    strangers: dict[str, Entry] = {}
    for id, entry in hypothesis.entries.items():
        key = _find_recording(by_recording, id, entry)
        if key is None or not (entry.words or entry.text == ""):
            strangers[id] = entry
            continue
        ids, ends = segments[key]
        covered.update(ids)
        for word in entry.words:
            position = bisect.bisect_right(ends, word.middle)
            words[ids[min(position, len(ids) - 1)]].append(word)
    if not covered:
        return strangers
    notes.append("words are given to the segments of the reference by the middle of their time")
    matched = {
        id: Entry(" ".join(word.text for word in words[id]), words=tuple(words[id]))
        for id in reference.entries
        if id in covered
    }
    return matched | strangers


def _segments_by_recording(reference: TranscriptFile) -> dict[_Key, tuple[list[str], list[float]]]:
    """Ids and ends of the segments of each recording, in order of time."""
    found: dict[_Key, list[tuple[float, float, str]]] = defaultdict(list)
    for id, entry in reference.entries.items():
        if entry.recording is not None and entry.start is not None and entry.duration is not None:
            found[entry.recording, entry.channel].append((entry.start + entry.duration, entry.start, id))
    return {
        key: ([id for _, _, id in sorted(parts)], [end for end, _, _ in sorted(parts)])
        for key, parts in found.items()
    }


def _find_recording(by_recording: dict[str, list[_Key]], id: str, entry: Entry) -> _Key | None:
    for recording in (entry.recording, id):
        keys = by_recording.get(recording, []) if recording is not None else []
        if (recording, entry.channel) in keys:
            return keys[keys.index((str(recording), entry.channel))]
        # A file with one channel may call it 1 or A, or not at all.
        if len(keys) == 1:
            return keys[0]
    return None


# --- style --------------------------------------------------------------------------------------


def compare_styles(references: Iterable[str], hypotheses: Iterable[str]) -> list[str]:
    """Differences of writing that would be counted as errors of recognition."""
    ours, theirs = (
        "\n".join(text[:1000] for text in itertools.islice(texts, STYLE_SAMPLE))
        for texts in (references, hypotheses)
    )
    if not any(map(str.isalpha, ours)) or not any(map(str.isalpha, theirs)):
        return []
    notes = []
    cases = _describe_case(ours), _describe_case(theirs)
    if all(cases) and cases[0] != cases[1]:
        notes.append(f"the references are {cases[0]} and the hypotheses {cases[1]}")
    for what, sign in (("punctuation", _PUNCTUATION), ("digits", _DIGITS)):
        first, second = (len(sign.findall(text)) / len(text.split()) for text in (ours, theirs))
        if min(first, second) < 0.001 and max(first, second) > 0.02:
            notes.append(f"only the {'references' if first > second else 'hypotheses'} have {what}")
    are_composed = [unicodedata.is_normalized("NFC", text) for text in (ours, theirs)]
    has_accents = all(_has_accents(text) for text in (ours, theirs))
    if has_accents and are_composed[0] != are_composed[1]:
        notes.append("accents are written as parts of letters (NFC) in one and as marks (NFD) in the other")
    return notes


def _has_accents(text: str) -> bool:
    return unicodedata.normalize("NFC", text) != unicodedata.normalize("NFD", text)


def _describe_case(text: str) -> str:
    upper, lower = sum(map(str.isupper, text)), sum(map(str.islower, text))
    if upper + lower < 10:
        return ""
    if upper > 0.98 * (upper + lower):
        return "in upper case"
    return "in lower case" if lower > 0.995 * (upper + lower) else "in mixed case"
