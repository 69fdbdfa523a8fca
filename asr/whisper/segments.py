"""Split the tokens of a window at its timestamps: spans of text, and where the next window begins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from asr.whisper.decoding import SECONDS_PER_STEP
from asr.whisper.whisper_tokenizer import WhisperTokenizer


@dataclass(frozen=True)
class TimedSpan:
    """Text between two tokens of time."""

    start: float
    """Seconds from the start of the window."""
    end: float
    tokens: tuple[int, ...]
    """Of text alone."""
    timed_tokens: tuple[int, ...]
    """Those with the tokens of time around them."""


def split_spans(
    tokenizer: WhisperTokenizer, tokens: Sequence[int], seconds: float
) -> tuple[list[TimedSpan], float]:
    """Split a window with so many seconds of audio; also says after how many the next window begins.

    Where the text goes on past the window, that is the end of the last span that is whole.
    """
    is_time = [token >= tokenizer.first_time for token in tokens]
    pairs = [place for place in range(1, len(tokens)) if is_time[place - 1] and is_time[place]]

    def time_of(token: int) -> float:
        return min((token - tokenizer.first_time) * SECONDS_PER_STEP, seconds)

    def build(own: Sequence[int], start: float, end: float) -> TimedSpan:
        return TimedSpan(start, end, tuple(token for token in own if token < tokenizer.end), tuple(own))

    is_over = is_time[-2:] == [False, True]  # a time, and nothing after it: the rest is silence
    if not pairs:
        times = [time_of(token) for token in tokens if token >= tokenizer.first_time]
        start = times[0] if tokens and is_time[0] else 0.0
        end = times[-1] if times and times[-1] > start else seconds
        return [build(tokens, start, end)], seconds
    edges = [0, *pairs, *([len(tokens)] if is_over else [])]
    spans = []
    for first, past in itertools.pairwise(edges):
        own = tokens[first:past]
        spans.append(build(own, time_of(own[0]), time_of(own[-1])))
    going_on = time_of(tokens[edges[-1] - 1])
    return spans, seconds if is_over or going_on == 0 else going_on
