"""Words of decoded tokens, their times and their confidence.

A head gives the encoded step near which a token was recognized but not its duration: CTC gives a token one
or two steps and calls the rest blank. So the head decides between which moments a word begins and ends, and
the energy of the audio decides where: at the pause in between, or at the quietest frame without a pause.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asr.audio.segmentation import FRAMES_PER_SECOND, find_runs, measure_energies
from asr.features.filters import FrameTimes
from asr.text.tokenizer import Tokenizer
from asr.transcripts.transcript import Word

# S samples, T frames of 10 ms

_PAUSE_SECONDS = 0.04  # a shorter dip belongs to a sound
_PAUSE_DB = 6.0  # above the quietest moment; noise in a pause varies by this much
_REACH_SECONDS = 1.0  # maximum distance of the first start and the last end from their tokens

_CONTEXT = 4  # tokens; a character has up to four bytes, each of which may be a token


@dataclass(frozen=True)
class TokenTime:
    """First and last encoded step of a recognized token, and its probability there."""

    first: float
    last: float
    probability: float


@dataclass(frozen=True)
class TokenSpan:
    """A word with its tokens."""

    text: str
    first: int
    past: int


def has_spaces(tokenizer: Tokenizer) -> bool:
    """Check whether texts have spaces between words; otherwise each character counts as a word."""
    return tokenizer.type == "words" or any(" " in token or "▁" in token for token in tokenizer.tokens)


def split_words(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[TokenSpan]:
    """List the words of the decoded text."""
    if tokenizer.space_id is not None:
        return _split_at_spaces(tokenizer, tokens, tokenizer.space_id)
    text = tokenizer.decode(tokens)
    ends = [*find_ends(tokenizer, tokens)[:-1], len(text)]
    spans = []
    for match in re.finditer(r"\S+" if has_spaces(tokenizer) else r"\S", text):
        first, past = bisect.bisect_right(ends, match.start()), bisect.bisect_left(ends, match.end()) + 1
        spans.append(TokenSpan(match[0], first, past))
    return spans


def _split_at_spaces(tokenizer: Tokenizer, tokens: Sequence[int], space_id: int) -> list[TokenSpan]:
    edges = [-1, *(position for position, id in enumerate(tokens) if id == space_id), len(tokens)]
    spans = [(before + 1, past) for before, past in itertools.pairwise(edges) if before + 1 < past]
    return [TokenSpan(tokenizer.decode(tokens[first:past]), first, past) for first, past in spans]


def find_ends(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """Measure the decoded text before and after each token.

    What a token adds depends on only a few tokens before it: a separator, or the first bytes of a character.
    """
    ends, end = [], 0
    for position in range(len(tokens)):
        context = tokens[max(0, position - _CONTEXT) : position + 1]
        end += len(tokenizer.decode(context)) - len(tokenizer.decode(context[:-1]))
        ends.append(end)
    return ends


def time_words(
    spans: Sequence[TokenSpan],
    token_times: Sequence[TokenTime],
    frame_times: FrameTimes,
    audio_S: np.ndarray,
    sample_rate: int,
) -> list[Word]:
    """Time the words of a segment from its start; confidence is a geometric mean over tokens."""
    if not spans:
        return []
    duration = len(audio_S) / sample_rate
    energies_T = measure_energies(audio_S, sample_rate)
    begins = [min(frame_times.time(token_times[span.first].first), duration) for span in spans]
    ends = [min(frame_times.time(token_times[span.past - 1].last), duration) for span in spans]
    ends = [max(begin, end) for begin, end in zip(begins, ends, strict=True)]
    starts = [find_boundary(energies_T, max(0.0, begins[0] - _REACH_SECONDS), begins[0])[1]]
    stops = []
    for end, begin in zip(ends, begins[1:], strict=False):
        stop, start = find_boundary(energies_T, end, max(begin, end))
        stops.append(stop)
        starts.append(start)
    stops.append(find_boundary(energies_T, ends[-1], min(duration, ends[-1] + _REACH_SECONDS))[0])
    words = []
    for span, start, stop in zip(spans, starts, stops, strict=True):
        confidence = average([token.probability for token in token_times[span.first : span.past]])
        words.append(Word(span.text, start, max(start, stop), confidence))
    return words


def average(probabilities: Sequence[float]) -> float:
    """Compute the confidence of a word: the geometric mean of its token probabilities."""
    return float(np.exp(np.mean(np.log(np.maximum(probabilities, 1e-10)))))


def find_boundary(energies_T: np.ndarray, begin: float, end: float) -> tuple[float, float]:
    """Find where the sound after one moment ends and the sound before another begins, in seconds."""
    first, past = int(begin * FRAMES_PER_SECOND), min(int(end * FRAMES_PER_SECOND) + 1, len(energies_T))
    if past - first < 2:
        return (begin + end) / 2, (begin + end) / 2
    span_T = energies_T[first:past]
    pauses = find_runs(span_T <= span_T.min() + _PAUSE_DB)
    stop, start = max(pauses, key=lambda pause: pause[1] - pause[0])
    edges = np.array([stop, start])
    if start - stop < _PAUSE_SECONDS * FRAMES_PER_SECOND:
        edges = np.full(2, np.argmin(span_T) + 0.5)
    # The first and the last frame may extend beyond the two moments.
    stop_second, start_second = np.clip((first + edges) / FRAMES_PER_SECOND, begin, end).tolist()
    return stop_second, start_second
