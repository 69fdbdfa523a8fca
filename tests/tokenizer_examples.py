"""Tokenizers of each type, trained on a few texts."""

from __future__ import annotations

import functools
import random

from asr.text.tokenizer import SPECIAL_TOKENS, Tokenizer, TokenizerConfig, TokenizerType

TEXTS = ["the cat sat on the mat", "the dog sat", "a cat"]
TYPES: tuple[TokenizerType, ...] = ("characters", "bpe", "unigram", "words")
PIECE_TYPES: tuple[TokenizerType, ...] = ("bpe", "unigram")


def train(type: TokenizerType, texts: list[str], vocab_size: int | None = None) -> Tokenizer:
    """With the smallest vocabulary that has every character, unless one is given."""
    if type in PIECE_TYPES and vocab_size is None:
        vocab_size = len(SPECIAL_TOKENS) + len({" ", *"".join(texts)})
    return Tokenizer.train(TokenizerConfig(type=type, vocab_size=vocab_size), texts)


def random_words(seed: int, alphabet: str = "abcdefghijklmnop") -> list[str]:
    draw = random.Random(seed)
    words = ["".join(draw.choices(alphabet, k=draw.randint(1, 7))) for _ in range(200)]
    return [" ".join(draw.choices(words, k=12)) for _ in range(200)]


@functools.cache
def train_pieces(type: TokenizerType) -> Tokenizer:
    return train(type, random_words(3), vocab_size=80)
