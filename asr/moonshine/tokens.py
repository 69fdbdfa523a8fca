"""Moonshine's tokens: sentencepiece BPE pieces, in the order in which they were merged."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Sequence

from torch import Tensor

from asr.errors import UserError
from asr.text.tokenizer import SPECIAL_TOKENS, TokenizerConfig, Units

SPACE = "\u2581"
FIRST_BYTE, PAST_BYTES = 3, 259  # Moonshine's IDs of the 256 bytes
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
WITHOUT_TEXT = re.compile(r"<<\w+>>")  # <<ST_0>>, and rows without a piece
UNSPOKEN = dict.fromkeys(map(ord, "\u2669\u266a\u266b\u266c\ufffd"))  # music signs, incomplete characters
# Unused rows at the end, which our blank and padding tokens take.
NUM_SPARE = 2


def name_tokens(pieces: Sequence[bytes], vocab_size: int) -> tuple[str, ...]:
    """Convert pieces in the order of Moonshine's IDs to tokens in the order of ours."""
    if not PAST_BYTES < len(pieces) <= vocab_size:
        raise UserError(
            f"{len(pieces):,} pieces for {vocab_size:,} rows of weights; do they match the model?"
        )
    names = [f"<<{id}>>" for id in range(vocab_size)]
    for id, piece in enumerate(pieces):
        if FIRST_BYTE <= id < PAST_BYTES:
            names[id] = f"<0x{id - FIRST_BYTE:02X}>"
        elif piece:
            names[id] = piece.decode("utf-8", "backslashreplace")
    return SPECIAL_TOKENS + tuple(names[FIRST_BYTE:-NUM_SPARE])


def order_rows(table_VD: Tensor) -> Tensor:
    """Reorder rows from Moonshine's IDs to ours."""
    last = len(table_VD) - 1
    return table_VD[[last, last - 1, 1, 2, 0, *range(FIRST_BYTE, last - 1)]]


class TokenizerUnits(Units):
    """Pieces of words; characters without a piece are spelled as bytes."""

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        super().__init__(tokens, model)
        self._bytes = {
            token: bytes([int(found[1], 16)]) for token in tokens if (found := BYTE.fullmatch(token))
        }
        if len(self._bytes) != 256:
            raise UserError(
                f"a tokenizer of type moonshine has 256 bytes among its tokens, not {len(self._bytes)}"
            )
        self._id_of_byte = {byte[0]: self._ids.pop(token) for token, byte in self._bytes.items()}
        self._ids = {token: id for token, id in self._ids.items() if not WITHOUT_TEXT.fullmatch(token)}
        self._split = functools.lru_cache(100_000)(self._merge)

    @classmethod
    def train(cls, config: TokenizerConfig, texts: object) -> tuple[tuple[str, ...], bytes]:
        raise UserError(
            "tokenizer.type = moonshine is not trained: it comes with a Moonshine model; set start_from, and "
            "leave keep_tokenizer as it is"
        )

    def encode(self, text: str) -> list[int]:
        words = text.split(" ") if text else []
        return [id for word in words for id in self._split(SPACE + word)]

    def _merge(self, word: str) -> tuple[int, ...]:
        """Merge adjacent parts that form a piece, in the order of the merges in training."""
        parts, ids = list(word), self._ids
        while len(parts) > 1:
            ranks = [ids.get(left + right, math.inf) for left, right in itertools.pairwise(parts)]
            if (best := min(ranks)) == math.inf:
                break
            place = ranks.index(best)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        found: list[int] = []
        for part in parts:
            found += [ids[part]] if part in ids else [self._id_of_byte[byte] for byte in part.encode()]
        return tuple(found)

    def join(self, tokens: list[str]) -> str:
        kept = (token for token in tokens if not WITHOUT_TEXT.fullmatch(token))
        spelled = b"".join(self._bytes.get(token, token.encode()) for token in kept)
        text = spelled.decode("utf-8", "replace").replace(SPACE, " ").translate(UNSPOKEN)
        return " ".join(text.split())

    def find_unknown(self, text: str) -> list[str]:
        """Return none, because characters without a piece are spelled as bytes."""
        return []
