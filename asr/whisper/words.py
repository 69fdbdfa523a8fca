"""Words of decoded tokens, and their times."""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class TimedWord:
    text: str
    token: int
    """Place of its first one."""
    start: float
    """Seconds from the start of the window."""
    end: float
    confidence: float
    """Geometric mean of the tokens' probabilities."""


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
    spans: Sequence[WordSpan], firsts: Sequence[int], probabilities: Sequence[float]
) -> list[TimedWord]:
    """Words with times; `firsts` are the first steps of the tokens, and of the end."""
    words = []
    for span in spans:
        own = [max(probability, 1e-10) for probability in probabilities[slice(*span.tokens)]]
        confidence = math.exp(sum(math.log(probability) for probability in own) / len(own))
        start, end = firsts[span.first] * SECONDS_PER_STEP, firsts[span.past] * SECONDS_PER_STEP
        words.append(TimedWord(span.text, span.tokens[0], start, end, confidence))
    return words


def _find_first(ends: Sequence[int], place: int) -> int:
    """The token with the first byte of a character; those before it are over where it begins."""
    if place == 0:
        return 0
    index = next(index for index, end in enumerate(ends) if end >= place)
    return index if ends[index] > place else min(index + 1, len(ends) - 1)


def _is_punctuation(piece: str) -> bool:
    """Whether this is nothing but punctuation and spaces; a part of a character is none."""
    stripped = piece.strip()
    return bool(stripped) and all(unicodedata.category(sign).startswith("P") for sign in stripped)
