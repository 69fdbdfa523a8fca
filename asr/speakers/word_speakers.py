"""Assign speakers to words, and split segments where the speaker changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asr.transcripts.subtitles import CLOSING, SENTENCE_ENDS
from asr.transcripts.transcript import Segment, Transcript, Word, replace_words

SWITCH_COST = 1.0  # cost of a speaker change; a word outside its speaker's turns also costs 1
PAUSE_COST = 0.2  # cost of a change after a pause or the end of a sentence
PAUSE_SECONDS = 0.3
FAR_SECONDS = 2.0  # a word costs 1 more if its speaker's turns are this far away


def label_speakers(transcript: Transcript, turns: Sequence[Any]) -> Transcript:
    """Return the same words in segments with one speaker each. Turns have a start, an end and a speaker."""
    timed = [[(segment, word) for word in _time_words(segment)] for segment in transcript.segments]
    speakers = iter(assign_speakers([word for own in timed for _, word in own], turns))
    labeled = [[(*pair, next(speakers)) for pair in own] for own in timed] if turns else []
    segments: list[Segment] = []
    for _, group in itertools.groupby(itertools.chain(*labeled), lambda own: (id(own[0]), own[2])):
        (segment, _, speaker), *_ = spoken = list(group)
        words = [word for _, word, _ in spoken]
        if len(words) < len(_time_words(segment)):
            kept = replace_words(segment, transcript.separator.join(word.text for word in words), words)
            segment = kept if segment.words else replace(kept, words=())
        segments.append(replace(segment, diarized=speaker))
    return replace(transcript, segments=tuple(segments)) if segments else transcript


def _time_words(segment: Segment) -> Sequence[Word]:
    """Return a segment's words; without word times, each gets an equal share of its time."""
    texts = segment.text.split() or [""]
    times = np.linspace(segment.start, segment.end, len(texts) + 1).tolist()
    shares = zip(texts, times, times[1:], strict=False)
    return segment.words or [Word(*share, segment.confidence) for share in shares]


def assign_speakers(words: Sequence[Word], turns: Sequence[Any]) -> list[str]:
    """Find the cheapest speaker sequence (Viterbi); words outside their speaker's turns and changes cost."""
    names = sorted({turn.speaker for turn in turns})
    if not names or not words:
        return []
    starts_N, ends_N = np.array([[word.start, max(word.end, word.start + 0.01)] for word in words]).T
    costs_NS = np.zeros((len(words), len(names)))  # N words, S speakers
    for row, name in enumerate(names):
        edges = np.array(sorted((own.start, own.end) for own in turns if own.speaker == name)).reshape(-1)
        spoken = np.append(0, np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0)))
        inside_N = np.interp(ends_N, edges, spoken) - np.interp(starts_N, edges, spoken)
        later_N = np.append(edges[::2], np.inf)[np.searchsorted(edges[1::2], starts_N)] - ends_N
        earlier_N = starts_N - np.append(-np.inf, edges[1::2])[np.searchsorted(edges[::2], ends_N)]
        far_N = np.clip(np.minimum(later_N, earlier_N), 0, FAR_SECONDS)
        costs_NS[:, row] = 1 - inside_N / (ends_N - starts_N) + far_N / FAR_SECONDS
    sums_S, origins = costs_NS[0], []
    for (word, later), costs_S in zip(itertools.pairwise(words), costs_NS[1:], strict=True):
        is_end = later.start - word.end >= PAUSE_SECONDS or word.text.rstrip(CLOSING).endswith(SENTENCE_ENDS)
        best = int(sums_S.argmin())
        changed = sums_S[best] + (PAUSE_COST if is_end else SWITCH_COST)
        origins.append(np.where(sums_S <= changed, np.arange(len(names)), best))
        sums_S = np.minimum(sums_S, changed) + costs_S
    path = [int(sums_S.argmin())]
    for origin_S in reversed(origins):
        path.append(int(origin_S[path[-1]]))
    return [names[row] for row in reversed(path)]
