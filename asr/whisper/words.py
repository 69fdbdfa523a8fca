"""Words of decoded tokens and their times; spans of text between tokens of time."""

from __future__ import annotations

import codecs
import itertools
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from asr.transcripts.transcript import Word
from asr.whisper.decoding import SECONDS_PER_STEP
from asr.whisper.whisper_tokenizer import WhisperTokenizer

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})


@dataclass(frozen=True)
class WordSpan:
    """A word, and those of its tokens that are no mere punctuation at its edges."""

    text: str
    first: int
    past: int
    tokens: tuple[int, int]
    """First and past the last of all its tokens."""


def split_words(tokenizer: WhisperTokenizer, tokens: Sequence[int], language: str) -> list[WordSpan]:
    """Split at spaces; without them each character is a word, with the punctuation at it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [decoder.decode(tokenizer.decode_bytes([token])) for token in tokens]
    text, ends = "", []
    for piece in pieces:
        text += piece
        ends.append(len(text))
    text += decoder.decode(b"", final=True)
    spans = []
    for found in re.finditer(r"\S\W*" if language in WITHOUT_SPACES else r"\S+", text):
        first = _find_first(ends, found.start())
        past = next((index for index, end in enumerate(ends) if end >= found.end()), len(ends) - 1) + 1
        begin, stop = first, past
        while begin < stop and _is_punctuation(pieces[begin]):
            begin += 1
        while stop > begin and _is_punctuation(pieces[stop - 1]):
            stop -= 1
        inner = (begin, stop) if begin < stop else (first, past)
        spans.append(WordSpan(found[0].strip(), *inner, (first, past)))
    return spans


def time_words(
    spans: Sequence[WordSpan], firsts: Sequence[int], probabilities: Sequence[float], offset: float = 0.0
) -> list[Word]:
    """Words with times and the geometric mean of their tokens' probabilities.

    `firsts` are the first steps of the tokens, and of the end; `offset` is the window's start in seconds.
    """
    words = []
    for span in spans:
        own = [max(probability, 1e-10) for probability in probabilities[slice(*span.tokens)]]
        confidence = math.exp(sum(math.log(probability) for probability in own) / len(own))
        start, end = firsts[span.first] * SECONDS_PER_STEP, firsts[span.past] * SECONDS_PER_STEP
        words.append(Word(span.text, offset + start, offset + end, confidence))
    return words


def _find_first(ends: Sequence[int], place: int) -> int:
    """The token with the first byte of a character; those before it are over where it begins."""
    if place == 0:
        return 0
    index = next(index for index, end in enumerate(ends) if end >= place)
    return index if ends[index] > place else min(index + 1, len(ends) - 1)


def _is_punctuation(piece: str) -> bool:
    """Check for nothing but punctuation and spaces; a part of a character is neither."""
    stripped = piece.strip()
    return bool(stripped) and all(unicodedata.category(sign).startswith("P") for sign in stripped)


# --- spans between tokens of time -------------------------------------------------------------------


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
