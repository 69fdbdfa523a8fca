"""Whisper's tokens: pieces of UTF-8 by byte-level BPE, then its languages, tasks and times; its files.

The package tiktoken, which OpenAI uses too, splits and merges.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tiktoken

from asr.data.text_lines import read_object
from asr.errors import UserError
from asr.files import read_limited
from asr.text.tokenizer import BLANK_ID, EOS_ID, PAD_ID, SOS_ID, SPECIAL_TOKENS, UNK_ID, Tokenizer, Units
from asr.whisper.language_names import find_language, languages
from asr.whisper.sizes import FIRST_MULTILINGUAL, Task

Vocabulary = tuple[bytes, ...]

NUM_RESERVED = len(SPECIAL_TOKENS)
# Whisper's start and end, and three tokens that it never predicts after a prompt, have the ids of ours.
RESERVED = {
    BLANK_ID: "<|nospeech|>",
    PAD_ID: "<|startofprev|>",
    SOS_ID: "<|startoftranscript|>",
    EOS_ID: "<|endoftext|>",
    UNK_ID: "<|startoflm|>",
}
END = RESERVED[EOS_ID]
LAST = (UNK_ID, PAD_ID, BLANK_ID)  # as OpenAI orders them, between tasks and times
NUM_TIMES = 1501

# How text is split before bytes are merged: a part of the vocabulary that OpenAI made for GPT-2.
WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Suppressed tokens: brackets, music and the like, which stand for sounds and for who speaks.
_SIGNS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("']
_SIGNS += ["((", "))", "(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"]
_MUSIC = "♩♪♫♬♭♮♯"

# In the name of a token, each byte is a character that shows: itself, ▁ for a space, or one from U+0100 on.
NAMES = {byte: chr(byte) if 0x20 < byte < 0x7F else chr(0x100 + byte) for byte in range(256)} | {0x20: "▁"}
BYTES = dict.fromkeys(range(256), 0x100) | {ord(name): byte for byte, name in NAMES.items()}  # 0x100: no byte


class SpecialTokens:
    """Ids of the special tokens that follow those of text in a model of so many tokens in all."""

    def __init__(self, vocab_size: int) -> None:
        # English-only models have the tokens of languages and tasks too, but were never trained on them.
        self.is_multilingual = vocab_size >= FIRST_MULTILINGUAL
        codes = list(languages)[: 99 if vocab_size <= FIRST_MULTILINGUAL else 100]  # large-v3 has Cantonese
        asked = [*(f"<|{code}|>" for code in codes), "<|translate|>", "<|transcribe|>"]
        times = ["<|notimestamps|>", *(f"<|{place / 50:.2f}|>" for place in range(NUM_TIMES))]
        self.names = (*asked, *times)
        self.their_names = (END, RESERVED[SOS_ID], *asked, *(RESERVED[id] for id in LAST), *times)
        """Names of all that follow the text in OpenAI's order."""
        self.first = vocab_size - len(self.names)
        ids = dict(zip(self.names, range(self.first, vocab_size), strict=True))
        self.languages = {code: ids[f"<|{code}|>"] for code in codes}
        self.tasks = {task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")}
        self.no_times = ids["<|notimestamps|>"]

    def order(self) -> list[int]:
        """OpenAI's id of each of our ids."""
        num_texts = self.first - NUM_RESERVED
        ids = {name: id for id, name in enumerate(self.their_names, num_texts)}
        reserved = [ids[RESERVED[id]] for id in range(NUM_RESERVED)]
        return [*reserved, *range(num_texts), *(ids[name] for name in self.names)]

    def prompt(self, language: str | None = None, task: Task = "transcribe") -> list[int]:
        """Tokens that the decoder begins with. English-only models take neither a language nor a task."""
        if not self.is_multilingual:
            if task != "transcribe" or find_language(language or "en") != "en":
                raise UserError(
                    f"language {language}, task {task}: this model transcribes English only; take one "
                    "without .en in its name"
                )
            return [SOS_ID, self.no_times]
        if language is None:
            raise UserError("this model is multilingual; give the language that is spoken, such as en")
        code = find_language(language)
        if code not in self.languages:
            raise UserError(f"language {code} has no token in this model; take large-v3 or turbo")
        return [SOS_ID, self.languages[code], self.tasks[task], self.no_times]


class TokenizerUnits(Units):
    """Pieces of bytes; a lower id was merged earlier. As Whisper, it puts a space before a text."""

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        self.special = special = SpecialTokens(len(tokens))
        if tokens[special.first :] != special.names:
            raise UserError("the last tokens are not Whisper's; expected the vocabulary of a Whisper model")
        names = tokens[NUM_RESERVED : special.first]
        try:
            self.vocabulary = tuple(name.translate(BYTES).encode("latin-1") for name in names)
        except UnicodeEncodeError:
            strange = min({*"".join(names)}.difference(NAMES.values()))
            raise UserError(
                f"{strange!r} stands for no byte; expected the vocabulary of a Whisper model"
            ) from None
        if missing := set(range(256)) - {token[0] for token in self.vocabulary if len(token) == 1}:
            raise UserError(f"a vocabulary without byte {min(missing)}; expected all 256, is it Whisper's?")
        self.pieces = (*[b""] * NUM_RESERVED, *self.vocabulary, *[b""] * len(special.names))
        """Bytes of each token by its id."""
        self._bytes = dict(zip(tokens, self.pieces, strict=True))

    @classmethod
    def train(cls, config: Any, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        raise UserError(
            "a tokenizer of type whisper is not learned from texts: it comes with the Whisper model that "
            "start_from names"
        )

    def encode(self, text: str) -> list[int]:
        return self.encode_piece(f" {text}") if text else []

    def encode_piece(self, text: str) -> list[int]:
        """Ids of a part of a text. What looks like a special token is text too."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"{text[:40]!r} holds half of a surrogate pair; write the text again, as UTF-8")
        return [id + NUM_RESERVED for id in self._encoding.encode_ordinary(text)]

    def join(self, tokens: list[str]) -> str:
        """The text, in which bytes that are no UTF-8 become U+FFFD."""
        spelled = b"".join(self._bytes.get(token, token.encode()) for token in tokens)
        return spelled.decode("utf-8", errors="replace").removeprefix(" ")

    def find_unknown(self, text: str) -> list[str]:
        """Return none: what has no token of its own is split into bytes."""
        return []

    def find_suppressed(self) -> list[int]:
        """Tokens that no text may hold: signs of sounds and speakers, and the special ones of a prompt."""
        # A hyphen and a quote may stand in a word, but not before it.
        ids = {self.encode_piece(" -")[0], self.encode_piece(" '")[0]}
        for encoded in (self.encode_piece(spelled) for sign in _SIGNS for spelled in (sign, f" {sign}")):
            if len(encoded) == 1:
                ids.add(encoded[0])
        for sign in _MUSIC:  # the first token, where there are several, stands for no letter
            ids |= {self.encode_piece(sign)[0], self.encode_piece(f" {sign}")[0]}
        return sorted(ids | {BLANK_ID, PAD_ID, SOS_ID, UNK_ID, *self.special.tasks.values()})

    @functools.cached_property
    def _encoding(self) -> tiktoken.Encoding:
        ranks = {token: id for id, token in enumerate(self.vocabulary)}
        return tiktoken.Encoding("whisper", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})


def make_tokenizer(vocabulary: Vocabulary, vocab_size: int) -> Tokenizer:
    """The tokenizer of a model with so many tokens in all."""
    special = SpecialTokens(vocab_size)
    if (num_texts := special.first - NUM_RESERVED) != len(vocabulary):
        raise UserError(
            f"{len(vocabulary):,} tokens of text, but this model has {num_texts:,}; the vocabulary is "
            "that of another model (one off: English-only or not)"
        )
    names = (token.decode("latin-1").translate(NAMES) for token in vocabulary)
    return Tokenizer("whisper", (*SPECIAL_TOKENS, *names, *special.names))


def units_of(tokenizer: Tokenizer) -> TokenizerUnits:
    """Whisper's part of a tokenizer."""
    assert isinstance(tokenizer.units, TokenizerUnits)
    return tokenizer.units


# --- files ------------------------------------------------------------------------------------------

MAX_BYTES = 20_000_000  # Whisper's own have 0.8 MB, and 2.5 MB as JSON
TOO_LARGE = "which this file of a Whisper model never has"
# The character that stands for each byte in GPT-2's files: itself, if it shows, else one from U+0100 on.
SHOWN = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and byte != 0x20}
SHOWN |= {byte: chr(0x100 + place) for place, byte in enumerate(b for b in range(256) if b not in SHOWN)}
MEANT = dict.fromkeys(range(256), 0x100) | {ord(sign): byte for byte, sign in SHOWN.items()}  # 0x100: no byte


def read_huggingface_vocabulary(folder: Path) -> Vocabulary:
    """Read vocab.json, or else tokenizer.json, whose ids are in the order of the merges."""
    path = folder / "vocab.json"
    path = path if path.is_file() else folder / "tokenizer.json"
    tokens = read_json(path)
    try:
        if path.name == "tokenizer.json":  # the end of the text is either among the tokens or added to them
            added = {one["content"]: one["id"] for one in tokens.get("added_tokens", ())}
            tokens = tokens["model"]["vocab"] | added
        end = tokens[END]
        ids = {id: name.translate(MEANT).encode("latin-1") for name, id in tokens.items() if id < end}
        ids.setdefault(end - 1, b"")  # the empty token of the multilingual vocabulary, where it is left out
    except (KeyError, TypeError, UnicodeEncodeError):
        raise UserError(
            f"{path}: no vocabulary of Whisper; expected tokens of bytes with their ids, and {END} after them"
        ) from None
    return check_order(ids, path)


def write_huggingface_vocabulary(folder: Path, tokenizer: Tokenizer) -> None:
    """Write vocab.json, merges.txt and added_tokens.json."""
    units = units_of(tokenizer)
    names = ["".join(SHOWN[byte] for byte in token) for token in units.vocabulary]
    ranks = {token: id for id, token in enumerate(units.vocabulary)}
    pairs = [split_once(ranks, token) for token in units.vocabulary if len(token) > 1]
    merges = [" ".join(names[ranks[part]] for part in pair) + "\n" for pair in pairs]
    special = {name: id for id, name in enumerate(units.special.their_names, len(names))}
    tokens = {name: id for id, name in enumerate(names)} | {END: special.pop(END)}
    (folder / "merges.txt").write_text("".join(["#version: 0.2\n", *merges]), encoding="utf-8")
    for file, tree in (("vocab.json", tokens), ("added_tokens.json", special)):
        (folder / file).write_text(json.dumps(tree, ensure_ascii=False), encoding="utf-8")


def split_once(ranks: Mapping[bytes, int], token: bytes) -> list[bytes]:
    """The two tokens that this one was merged from: merges are in the order of the ids."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        unions = [ranks.get(left + right, len(ranks)) for left, right in itertools.pairwise(parts)]
        place = unions.index(min(unions))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def read_json(path: Path) -> dict[str, Any]:
    """An object of JSON, small and whole."""
    return read_object(path, MAX_BYTES, TOO_LARGE)


def read_small(path: Path) -> bytes:
    """Read a file of a vocabulary or of settings."""
    return read_limited(path, MAX_BYTES, TOO_LARGE)


def check_order(ids: Mapping[int, bytes], path: Path) -> Vocabulary:
    """Put the tokens into the order of their ids; refuse gaps and doubles."""
    if sorted(ids) != list(range(len(ids))) or len(set(ids.values())) != len(ids) or not ids:
        raise UserError(
            f"{path}: {len(ids):,} tokens, but their ids are not 0, 1, 2 ..., or a token has two; "
            "is it complete?"
        )
    return tuple(ids[id] for id in range(len(ids)))
