"""Whisper's tokens in the order of our tokenizers: the reserved ones first, then all others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from asr.errors import UserError
from asr.whisper.whisper_tokenizer import WhisperTokenizer

NUM_RESERVED = 5
FIRST_SPECIAL = "<|en|>"  # the first token after those of text
SPACE = "▁"


def order_tokens(whisper: WhisperTokenizer) -> list[int]:
    """Whisper's id of each of our ids.

    Our reserved tokens take the place of Whisper's own: its start and end, and for those that no text has
    (blank, padding and unknown) three that it never says after a prompt.
    """
    blank, padding, unknown = whisper.no_speech, whisper.start_of_previous, whisper.start_of_language_model
    reserved = [blank, padding, whisper.start, whisper.end, unknown]
    return reserved + sorted(set(range(len(whisper))).difference(reserved))


def name_tokens(whisper: WhisperTokenizer) -> tuple[str, ...]:
    """A name for each of our ids but the reserved ones."""
    special = {id: f"<|{code}|>" for code, id in whisper.languages.items()}
    special |= {id: f"<|{task}|>" for task, id in whisper.tasks.items()}
    special |= {whisper.no_times: "<|notimestamps|>"}
    special |= {
        id: f"<|{(id - whisper.first_time) / 50:.2f}|>" for id in range(whisper.first_time, len(whisper))
    }
    return tuple(
        _to_name(whisper.vocabulary[id]) if id < whisper.end else special[id]
        for id in order_tokens(whisper)[NUM_RESERVED:]
    )


class WhisperUnits:
    """Units of a tokenizer of type whisper; as Whisper, it puts a space before each text."""

    token_pattern = re.compile("(?s:.*)")  # the multilingual vocabulary has an empty token
    has_model = False

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        assert not model
        if FIRST_SPECIAL not in tokens:
            raise UserError(f"no token {FIRST_SPECIAL}; expected the vocabulary of a Whisper model")
        past_text = tokens.index(FIRST_SPECIAL)
        vocabulary = tuple(_to_bytes(name) for name in tokens[NUM_RESERVED:past_text])
        self._whisper = WhisperTokenizer.of_size(vocabulary, len(tokens))
        self._bytes = dict(zip(tokens[NUM_RESERVED:past_text], vocabulary, strict=True))
        self._bytes |= dict.fromkeys(tokens[past_text:], b"")

    @classmethod
    def train(cls, config: Any, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        raise UserError(
            "a tokenizer of type whisper is not learnt from texts: it comes with the Whisper model that "
            "start_from names"
        )

    def encode(self, text: str) -> list[int]:
        return [id + NUM_RESERVED for id in self._whisper.encode(f" {text}")] if text else []

    def join(self, tokens: list[str]) -> str:
        spelled = b"".join(self._bytes.get(token, token.encode()) for token in tokens)
        return spelled.decode("utf-8", errors="replace").removeprefix(" ")

    def find_unknown(self, text: str) -> list[str]:
        """Return none: what has no token of its own falls into bytes."""
        return []


# Each byte is a character that can be seen: itself, ▁ for a space, or one from U+0100 on.
_NAMES = [
    chr(byte) if 0x20 < byte < 0x7F else SPACE if byte == 0x20 else chr(0x100 + byte) for byte in range(256)
]
_BYTES = {name: byte for byte, name in enumerate(_NAMES)}


def _to_name(token: bytes) -> str:
    return "".join(_NAMES[byte] for byte in token)


def _to_bytes(name: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in name)
    except KeyError:
        raise UserError(f"{name[:40]!r} cannot be a token of type whisper") from None


UNITS = {"whisper": WhisperUnits}
