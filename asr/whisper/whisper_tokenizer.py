"""Whisper's tokenizer and its files: byte-level BPE, then tokens for languages, tasks and times.

The package tiktoken, which OpenAI also uses, splits and merges.
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
# Our special tokens take the IDs of Whisper's start and end, and of three tokens never predicted in a text.
RESERVED = {
    BLANK_ID: "<|nospeech|>",
    PAD_ID: "<|startofprev|>",
    SOS_ID: "<|startoftranscript|>",
    EOS_ID: "<|endoftext|>",
    UNK_ID: "<|startoflm|>",
}
END = RESERVED[EOS_ID]
LAST = (UNK_ID, PAD_ID, BLANK_ID)  # in OpenAI's order, between tasks and times
NUM_TIMES = 1501

# Splits text before bytes are merged; part of OpenAI's vocabulary for GPT-2.
WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Suppressed tokens: brackets, music signs and the like, which denote sounds and speakers.
_SIGNS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("']
_SIGNS += ["((", "))", "(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"]
_MUSIC = "♩♪♫♬♭♮♯"

# In a token's name, each byte is a visible character: itself, ▁ for a space, or one from U+0100 on.
NAMES = {byte: chr(byte) if 0x20 < byte < 0x7F else chr(0x100 + byte) for byte in range(256)} | {0x20: "▁"}
BYTES = dict.fromkeys(range(256), 0x100) | {ord(name): byte for byte, name in NAMES.items()}  # 0x100: no byte


class SpecialTokens:
    """IDs of the special tokens, which follow the text tokens, in a model with this vocabulary size."""

    def __init__(self, vocab_size: int) -> None:
        # English-only models also have tokens for languages and tasks, but were never trained on them.
        self.is_multilingual = vocab_size >= FIRST_MULTILINGUAL
        codes = list(languages)[: 99 if vocab_size <= FIRST_MULTILINGUAL else 100]  # large-v3 has Cantonese
        asked = [*(f"<|{code}|>" for code in codes), "<|translate|>", "<|transcribe|>"]
        times = ["<|notimestamps|>", *(f"<|{place / 50:.2f}|>" for place in range(NUM_TIMES))]
        self.names = (*asked, *times)
        self.their_names = (END, RESERVED[SOS_ID], *asked, *(RESERVED[id] for id in LAST), *times)
        """Names of all tokens after the text tokens, in OpenAI's order."""
        self.first = vocab_size - len(self.names)
        ids = dict(zip(self.names, range(self.first, vocab_size), strict=True))
        self.languages = {code: ids[f"<|{code}|>"] for code in codes}
        self.tasks = {task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")}
        self.no_times = ids["<|notimestamps|>"]

    def order(self) -> list[int]:
        """Return OpenAI's ID for each of our IDs."""
        num_texts = self.first - NUM_RESERVED
        ids = {name: id for id, name in enumerate(self.their_names, num_texts)}
        reserved = [ids[RESERVED[id]] for id in range(NUM_RESERVED)]
        return [*reserved, *range(num_texts), *(ids[name] for name in self.names)]

    def prompt(self, language: str | None = None, task: Task = "transcribe") -> list[int]:
        """Return the tokens that start decoding. English-only models have neither a language nor a task."""
        if not self.is_multilingual:
            if task != "transcribe" or find_language(language or "en") != "en":
                raise UserError(
                    f"language {language}, task {task}: this model transcribes English only; use one "
                    "without .en in its name"
                )
            return [SOS_ID, self.no_times]
        if language is None:
            raise UserError("this model is multilingual; give the spoken language, such as en")
        code = find_language(language)
        if code not in self.languages:
            raise UserError(f"language {code} has no token in this model; use large-v3 or turbo")
        return [SOS_ID, self.languages[code], self.tasks[task], self.no_times]


class TokenizerUnits(Units):
    """Pieces of bytes; lower IDs were merged earlier. Like Whisper, it puts a space before a text."""

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
        """Bytes of each token, by ID."""
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
        """Return the IDs of a part of a text; names of special tokens are treated as text."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"{text[:40]!r} contains half of a surrogate pair; save the text as UTF-8 again")
        return [id + NUM_RESERVED for id in self._encoding.encode_ordinary(text)]

    def join(self, tokens: list[str]) -> str:
        """Return the text; invalid UTF-8 becomes U+FFFD."""
        spelled = b"".join(self._bytes.get(token, token.encode()) for token in tokens)
        return spelled.decode("utf-8", errors="replace").removeprefix(" ")

    def find_unknown(self, text: str) -> list[str]:
        """Return none, because characters without a token are split into bytes."""
        return []

    def find_suppressed(self) -> list[int]:
        """Return tokens that never occur in a text: signs for sounds and speakers, and special tokens."""
        # A hyphen and a quote may occur within a word, but not before it.
        ids = {self.encode_piece(" -")[0], self.encode_piece(" '")[0]}
        for encoded in (self.encode_piece(spelled) for sign in _SIGNS for spelled in (sign, f" {sign}")):
            if len(encoded) == 1:
                ids.add(encoded[0])
        for sign in _MUSIC:  # if there are several tokens, the first one is not part of any letter
            ids |= {self.encode_piece(sign)[0], self.encode_piece(f" {sign}")[0]}
        return sorted(ids | {BLANK_ID, PAD_ID, SOS_ID, UNK_ID, *self.special.tasks.values()})

    @functools.cached_property
    def _encoding(self) -> tiktoken.Encoding:
        ranks = {token: id for id, token in enumerate(self.vocabulary)}
        return tiktoken.Encoding("whisper", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})


def make_tokenizer(vocabulary: Vocabulary, vocab_size: int) -> Tokenizer:
    """Build the tokenizer of a model with this vocabulary size."""
    special = SpecialTokens(vocab_size)
    if (num_texts := special.first - NUM_RESERVED) != len(vocabulary):
        raise UserError(
            f"{len(vocabulary):,} tokens of text, but this model has {num_texts:,}; the vocabulary belongs "
            "to another model (one off: English-only or not)"
        )
    names = (token.decode("latin-1").translate(NAMES) for token in vocabulary)
    return Tokenizer("whisper", (*SPECIAL_TOKENS, *names, *special.names))


def units_of(tokenizer: Tokenizer) -> TokenizerUnits:
    """Return the Whisper units of a tokenizer."""
    assert isinstance(tokenizer.units, TokenizerUnits)
    return tokenizer.units


# --- files ------------------------------------------------------------------------------------------

MAX_BYTES = 20_000_000  # Whisper's own vocabularies have 0.8 MB, or 2.5 MB as JSON
TOO_LARGE = "which this file of a Whisper model never has"
# The character for each byte in GPT-2's files: itself if it is visible, else one from U+0100 on.
SHOWN = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and byte != 0x20}
SHOWN |= {byte: chr(0x100 + place) for place, byte in enumerate(b for b in range(256) if b not in SHOWN)}
MEANT = dict.fromkeys(range(256), 0x100) | {ord(sign): byte for byte, sign in SHOWN.items()}  # 0x100: no byte


def read_huggingface_vocabulary(folder: Path) -> Vocabulary:
    """Read vocab.json, or else tokenizer.json, whose IDs are in the order of the merges."""
    path = folder / "vocab.json"
    path = path if path.is_file() else folder / "tokenizer.json"
    tokens = read_json(path)
    try:
        if path.name == "tokenizer.json":  # the end token is among the tokens or the added ones
            added = {one["content"]: one["id"] for one in tokens.get("added_tokens", ())}
            tokens = tokens["model"]["vocab"] | added
        end = tokens[END]
        ids = {id: name.translate(MEANT).encode("latin-1") for name, id in tokens.items() if id < end}
        ids.setdefault(end - 1, b"")  # some files leave out the multilingual vocabulary's empty token
    except (KeyError, TypeError, UnicodeEncodeError):
        raise UserError(
            f"{path}: not Whisper's vocabulary; expected tokens of bytes with their IDs, and {END} after them"
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
    """Return the two tokens that this one was merged from; merges are in the order of the IDs."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        unions = [ranks.get(left + right, len(ranks)) for left, right in itertools.pairwise(parts)]
        place = unions.index(min(unions))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def read_json(path: Path) -> dict[str, Any]:
    """Read a small file that is a JSON object."""
    return read_object(path, MAX_BYTES, TOO_LARGE)


def read_small(path: Path) -> bytes:
    """Read a vocabulary or settings file."""
    return read_limited(path, MAX_BYTES, TOO_LARGE)


def check_order(ids: Mapping[int, bytes], path: Path) -> Vocabulary:
    """Sort the tokens by ID; refuse gaps and duplicates."""
    if sorted(ids) != list(range(len(ids))) or len(set(ids.values())) != len(ids) or not ids:
        raise UserError(
            f"{path}: {len(ids):,} tokens, but their ids are not 0, 1, 2 ..., or a token has two; "
            "is it complete?"
        )
    return tuple(ids[id] for id in range(len(ids)))
