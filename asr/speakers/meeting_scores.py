"""Pair the utterances of meetings with hypothesis words by speaker: cpWER, tcpWER and ORC-WER."""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from rapidfuzz.distance import Levenshtein

from asr.data.text_lines import open_lines
from asr.errors import UserError
from asr.speakers.turns import Turn, read_rttm, read_seglst
from asr.transcripts.readers import Entry, Role, TranscriptFile, read_transcripts

# Shapes: N reference words, M hypothesis words; 3: index of the word in the vocabulary, start, end.
# An alignment gains 2 for a correct word and 1 for a substitution, so errors are N + M minus the gain.

NOBODY = "(nobody)"
"""Speaker of an empty reference, which gets the words of extra hypothesis speakers."""
MAX_ORC_STATES = 100_000_000  # states times words; above this, a local search replaces the exact one
BLOCK = 32  # reference words aligned at once with a part of the hypothesis
MAX_TRACED = 500_000  # cells of an alignment kept in memory at once

Split = Callable[[str], Sequence[str]]
Utterance = tuple[str, str, np.ndarray]
"""ID, speaker and words_N3."""


def read_meeting(path: str, role: Role = "reference", known_ids: Container[str] = ()) -> TranscriptFile:
    """Read SegLST, any format with speakers, or words and turns such as hyp.ctm,hyp.rttm."""
    ctm, _, rttm = path.partition(",")
    if rttm and not os.path.exists(path):
        turns = list(_give_words(read_transcripts(ctm, role), read_rttm(rttm)))
    elif _is_seglst(path):
        turns = read_seglst(path)
    else:
        return read_transcripts(path, role, known_ids)
    entries: dict[str, Entry] = {}
    count: Counter[str] = Counter()
    for turn in turns:
        id = f"{turn.recording}-{turn.speaker}-{turn.start * 1000:07.0f}-{turn.end * 1000:07.0f}"
        count[id] += 1
        entry = Entry(turn.text, turn.speaker, turn.start, turn.end - turn.start, recording=turn.recording)
        entries[id if count[id] == 1 else f"{id}-{count[id]}"] = entry
    return TranscriptFile(path, "ctm" if rttm else "jsonl", entries)


def _is_seglst(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open_lines(path) as lines:
        head = "".join(line for _, line in itertools.islice(lines.numbered, 9))
    return head.lstrip().startswith("[") and '"session_id"' in head


def _give_words(file: TranscriptFile, turns: Iterable[Turn]) -> Iterator[Turn]:
    """Assign each word to the turn that shares the most time with it, or else to the nearest turn."""
    spans: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        spans[turn.recording].append(turn)
    for id, entry in file.entries.items():
        own = spans.get(entry.recording or id, [])
        starts, ends = np.array([(turn.start, turn.end) for turn in own]).reshape(-1, 2).T
        for word in entry.words:
            shared = np.minimum(ends, word.end) - np.maximum(starts, word.start)  # below 0: the distance
            speaker = own[int(shared.argmax())].speaker if own else NOBODY
            yield Turn(entry.recording or id, word.start, word.end, speaker, word.text)


def pair_speakers(
    metric: str, reference: TranscriptFile, files: Sequence[TranscriptFile], split: Split, collar: float
) -> tuple[TranscriptFile, list[TranscriptFile]]:
    """Return the reference utterances and, under the same IDs, each hypothesis's words for them.

    Words are assigned with the fewest errors that `metric` allows. cpwer: each hypothesis speaker is one
    reference speaker. tcpwer: likewise, and aligned words must overlap in time, with `collar` seconds added.
    orcwer: each utterance may belong to any hypothesis speaker. Remaining words are insertions by nobody.
    """
    for file in (reference, *files):
        if metric == "tcpwer" and any(entry.duration is None for entry in file.entries.values()):
            raise UserError(f"{file.path}: utterances without times. Expected them, or --metric cpwer.")
    limit, vocabulary = collar if metric == "tcpwer" else None, dict[str, int]()
    refs, paired = _group(reference, split, vocabulary), []
    for file in files:
        found, words = _group(file, split, vocabulary), list(vocabulary)
        texts, notes = dict[str, Entry](), list(file.notes)
        for recording, utterances in refs.items():
            if recording in found:  # or else its utterances are missing
                texts |= {id: Entry("", recording=recording) for id, _, _ in utterances}
            spoken = _join(found.pop(recording, []))
            streams = {name: hyp_M3 for name, hyp_M3 in spoken.items() if len(hyp_M3)}
            places = _assign(utterances, streams, limit)
            if metric == "orcwer" and streams and not _search(utterances, list(streams.values()), places):
                notes.append(f"{recording} is long: its ORC-WER is from a local search, and may be too high")
            rest = []
            for place, (name, hyp_M3) in enumerate(streams.items()):
                own = [one for one, chosen in zip(utterances, places, strict=True) if chosen == place]
                for id, hyps in _cut(own, hyp_M3, words, limit):
                    if id:
                        texts[id] = Entry(" ".join(hyps), name, recording=recording)
                    else:
                        rest += hyps
            if rest:
                texts[f"{recording}:{NOBODY}"] = Entry(" ".join(rest), NOBODY, recording=recording)
        for recording, unknown in found.items():
            texts |= {f"{recording}:{speaker}": Entry("") for _, speaker, _ in unknown}
        paired.append(replace(file, entries=texts, notes=tuple(notes)))
    entries = {id: reference.entries[id] for utterances in refs.values() for id, _, _ in utterances}
    nobody = {f"{recording}:{NOBODY}": Entry("", NOBODY, recording=recording) for recording in refs}
    used = {id: entry for id, entry in nobody.items() if any(id in file.entries for file in paired)}
    paired = [replace(file, entries=used | file.entries) for file in paired]
    return replace(reference, entries=entries | used), paired


def _group(file: TranscriptFile, split: Split, vocabulary: dict[str, int]) -> dict[str, list[Utterance]]:
    """Return each recording's utterances by time; word times are estimated from the numbers of letters."""
    groups: dict[str, list[Utterance]] = {}
    for id, entry in sorted(file.entries.items(), key=lambda item: item[1].start or 0.0):
        if entry.recording is None or entry.speaker is None:
            raise UserError(
                f"{file.path}: utterance {id} has no recording or no speaker. Expected stm, SegLST, JSON "
                "Lines with audio and speaker, or WORDS.ctm,TURNS.rttm."
            )
        if entry.text is not None:
            words = split(entry.text)
            numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in words]
            parts = np.cumsum([0, *map(len, words)]) / max(sum(map(len, words)), 1)
            times = (entry.start or 0.0) + (entry.duration or 0.0) * parts
            words_N3 = np.stack([numbers, times[:-1], times[1:]], axis=1)
            groups.setdefault(entry.recording, []).append((id, entry.speaker, words_N3))
    return groups


def _join(utterances: Iterable[Utterance]) -> dict[str, np.ndarray]:
    """Return all words of each speaker."""
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for _, speaker, words_N3 in utterances:
        parts[speaker].append(words_N3)
    return {speaker: np.concatenate(own) for speaker, own in parts.items()}


def _assign(own: Sequence[Utterance], streams: dict[str, np.ndarray], collar: float | None) -> list[int]:
    """Return the index of each utterance's hypothesis speaker; -1 if there is none."""
    from scipy.optimize import linear_sum_assignment  # heavy to import

    speakers = _join(own)
    gains = [[_gain(refs, hyps, collar) for hyps in streams.values()] for refs in speakers.values()]
    rows, columns = linear_sum_assignment(np.reshape(gains, (len(speakers), len(streams))), maximize=True)
    names = list(speakers)
    places = {names[row]: place for row, place in zip(rows, columns.tolist(), strict=True)}
    return [places.get(speaker, -1) for _, speaker, _ in own]


def _gain(ref_N3: np.ndarray, hyp_M3: np.ndarray, collar: float | None) -> int:
    if collar is not None:
        return int(_extend_near(ref_N3, hyp_M3, collar)[-1])
    return len(ref_N3) + len(hyp_M3) - Levenshtein.distance(ref_N3[:, 0].tolist(), hyp_M3[:, 0].tolist())


def _weigh(ref_N3: np.ndarray, hyp_M3: np.ndarray, collar: float = np.inf) -> np.ndarray:
    """Return the gains of aligning reference words (rows) with hypothesis words (columns)."""
    middles_M, (words_N1, starts_N1, ends_N1) = hyp_M3[:, 1:].mean(axis=1), ref_N3.T[:, :, None]
    is_near_NM = (middles_M + collar > starts_N1) & (middles_M - collar < ends_N1)
    return is_near_NM * (1 + (hyp_M3[:, 0] == words_N1)).astype(np.int32)


def _extend(gains: np.ndarray, weights: Iterable[np.ndarray]) -> np.ndarray:
    """Extend the best gains by more reference words; the last axis is the number of hypothesis words."""
    for weight in weights:
        new = np.maximum(gains[..., 1:], gains[..., :-1] + weight)
        gains = np.maximum.accumulate(np.concatenate([gains[..., :1], new], axis=-1), axis=-1)
    return gains


def _extend_near(ref_N3: np.ndarray, hyp_M3: np.ndarray, collar: float) -> np.ndarray:
    """Like `_extend` from the start, but with a collar, so each block only covers nearby words."""
    gains, middles_M = np.zeros(len(hyp_M3) + 1, np.int32), hyp_M3[:, 1:].mean(axis=1)
    for start in range(0, len(ref_N3), BLOCK):
        block = ref_N3[start : start + BLOCK]
        is_near_M = (middles_M + collar > block[:, 1].min()) & (middles_M - collar < block[:, 2].max())
        if is_near_M.any():
            low, high = np.flatnonzero(is_near_M)[[0, -1]] + (0, 1)
            gains[low : high + 1] = _extend(gains[low : high + 1], _weigh(block, hyp_M3[low:high], collar))
            np.maximum(gains[high:], gains[high], out=gains[high:])
    return gains


def _match(ref_N3: np.ndarray, hyp_M3: np.ndarray, collar: float | None) -> np.ndarray:
    """Return the index of the hypothesis word aligned with each reference word, correct or not; else -1."""
    match_N = np.full(len(ref_N3), -1)
    if collar is None:
        for code in Levenshtein.opcodes(ref_N3[:, 0].tolist(), hyp_M3[:, 0].tolist()):
            if code.tag in ("equal", "replace"):
                match_N[code.src_start : code.src_end] = np.arange(code.dest_start, code.dest_end)
        return match_N
    half = len(ref_N3) // 2
    if half and len(ref_N3) * len(hyp_M3) > MAX_TRACED:  # halves, each in its part of the hypothesis
        before = _extend_near(ref_N3[:half], hyp_M3, collar)
        after = _extend_near(ref_N3[half:][::-1], hyp_M3[::-1], collar)[::-1]
        cut = int((before + after).argmax())
        first = _match(ref_N3[:half], hyp_M3[:cut], collar)
        rest = _match(ref_N3[half:], hyp_M3[cut:], collar)
        return np.concatenate([first, np.where(rest < 0, -1, rest + cut)])
    rows = [np.zeros(len(hyp_M3) + 1, np.int32)]
    for weight in _weigh(ref_N3, hyp_M3, collar):
        rows.append(_extend(rows[-1], [weight]))
    i, j = len(ref_N3), len(hyp_M3)
    while i and j:
        if rows[i][j] == rows[i - 1][j]:
            i -= 1
        elif rows[i][j] == rows[i][j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            match_N[i] = j
    return match_N


def _cut(
    utterances: Sequence[Utterance], hyp_M3: np.ndarray, words: Sequence[str], collar: float | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield a hypothesis speaker's words for each utterance's ID, and the remaining words for "".

    An inserted word belongs to the utterance of the next aligned word. If only times prevent an alignment,
    the texts must not be aligned either: inserted words then remain, and substituted ones get an @.
    """
    hyps = [words[int(number)] for number in hyp_M3[:, 0]]
    if not utterances:
        yield "", hyps
        return
    ref_N3 = np.concatenate([own for _, _, own in utterances])
    owners_N = np.repeat(np.arange(len(utterances)), [len(own) for _, _, own in utterances])
    match_N = _match(ref_N3, hyp_M3, collar)
    aligned_N = np.flatnonzero(match_N >= 0)
    partner = dict(zip(match_N[aligned_N].tolist(), ref_N3[aligned_N, 0].tolist(), strict=True))
    following_M = np.searchsorted(match_N[aligned_N], np.arange(len(hyps))).clip(max=len(aligned_N) - 1)
    owners_M = owners_N[aligned_N[following_M]] if len(aligned_N) else np.zeros(len(hyps), int)
    for number, (id, _, own_N3) in enumerate(utterances):
        places = np.flatnonzero(owners_M == number).tolist()
        right = {place: hyp_M3[place, 0] == partner[place] for place in places if place in partner}
        errors = len(own_N3) + len(places) - len(right) - sum(right.values())
        numbers = own_N3[:, 0].tolist(), hyp_M3[places, 0].tolist()
        if collar is not None and Levenshtein.distance(*numbers) < errors:
            yield "", [hyps[place] for place in places if place not in right]
            yield id, [hyps[place] + "@" * (not is_right) for place, is_right in right.items()]
        else:
            yield id, [hyps[place] for place in places]


def _search(utterances: Sequence[Utterance], streams: Sequence[np.ndarray], places: list[int]) -> bool:
    """Assign utterances to hypothesis speakers with the fewest errors; False if the search was not exact."""
    refs = [own for _, _, own in utterances]
    shape = [len(hyps) + 1 for hyps in streams]
    if np.prod([float(size) for size in shape]) * (sum(map(len, refs)) + len(refs)) > MAX_ORC_STATES:
        _search_nearby(refs, streams, places)
        return False
    # The best gains after each utterance, for every number of words consumed from each stream.
    tables = [np.zeros(shape, np.int32)]
    for own in refs:
        options = [
            np.moveaxis(_extend(np.moveaxis(tables[-1], axis, -1), _weigh(own, hyps)), -1, axis)
            for axis, hyps in enumerate(streams)
        ]
        tables.append(np.max(options, axis=0))
    state = [size - 1 for size in shape]
    for number in reversed(range(len(refs))):
        for place, hyps in enumerate(streams):
            line: list[int | slice] = [*state]
            line[place] = slice(state[place] + 1)
            used_M3, zero = hyps[: state[place]], np.zeros(state[place] + 1, np.int32)
            after = _extend(zero, _weigh(refs[number][::-1], used_M3[::-1]))[::-1]
            gains = tables[number][tuple(line)] + after
            if gains.max() == tables[number + 1][tuple(state)]:
                places[number], state[place] = place, int(gains.argmax())
                break
    return True


def _search_nearby(refs: Sequence[np.ndarray], streams: Sequence[np.ndarray], places: list[int]) -> None:
    """Starting from the cpWER assignment, move one utterance at a time as long as that reduces errors."""
    # A character represents each word, because strings compare fast (unique up to a million words).
    texts, hyps = (
        ["".join(chr(int(word) % 0x110000) for word in words_N3[:, 0]) for words_N3 in side]
        for side in (refs, streams)
    )

    def count(place: int) -> int:
        own = "".join(text for text, chosen in zip(texts, places, strict=True) if chosen == place)
        return Levenshtein.distance(own, hyps[place] if place >= 0 else "")

    errors = {place: count(place) for place in range(-1, len(hyps))}
    is_better = True
    while is_better:
        is_better = False
        for number, place in itertools.product(range(len(texts)), range(len(hyps))):
            old, places[number] = places[number], place
            new = {old: count(old), place: count(place)} if place != old else {}
            if new and sum(new.values()) < errors[old] + errors[place]:
                errors, is_better = errors | new, True
            else:
                places[number] = old
