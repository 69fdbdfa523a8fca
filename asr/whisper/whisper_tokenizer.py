"""Whisper's tokens: pieces of UTF-8 by byte-level BPE, then its languages, tasks and times; its files.

The package tiktoken, which OpenAI uses too, splits and merges.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tiktoken

from asr.data.text_lines import parse_json
from asr.errors import UserError
from asr.files import read_limited
from asr.text.tokenizer import Units
from asr.whisper.language_names import Task, find_language, languages
from asr.whisper.sizes import FIRST_MULTILINGUAL, WhisperSizes

Vocabulary = tuple[bytes, ...]

NUM_TIMES = 1501

# How text is split before bytes are merged: a part of the vocabulary that OpenAI made for GPT-2.
WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Suppressed tokens: brackets, music and the like, which stand for sounds and for who speaks.
_SIGNS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("']
_SIGNS += ["((", "))", "(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"]
_MUSIC = "♩♪♫♬♭♮♯"
END = "<|endoftext|>"


class SpecialTokens:
    """Ids of the special tokens, which follow those of the text in a fixed order."""

    def __init__(self, end: int, num_languages: int, is_multilingual: bool) -> None:
        """`end`: the first id that is no text. `is_multilingual`: English-only models have the tokens of
        languages and tasks too, but were never trained on them."""
        self.end, self.is_multilingual = end, is_multilingual
        codes = list(languages)[:num_languages]
        names = [END, "<|startoftranscript|>", *(f"<|{code}|>" for code in codes)]
        names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"]
        names += ["<|notimestamps|>", *(f"<|{place / 50:.2f}|>" for place in range(NUM_TIMES))]
        self.names = dict(enumerate(names, end))
        """OpenAI's names of the special tokens, by id."""
        ids = {name: id for id, name in self.names.items()}
        self.languages = {code: ids[f"<|{code}|>"] for code in codes}
        self.tasks = {task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")}
        self.start, self.start_of_language_model = ids["<|startoftranscript|>"], ids["<|startoflm|>"]
        self.start_of_previous, self.no_speech = ids["<|startofprev|>"], ids["<|nospeech|>"]
        self.no_times, self.first_time = ids["<|notimestamps|>"], ids["<|0.00|>"]

    @classmethod
    def of_size(cls, vocab_size: int) -> SpecialTokens:
        """The special tokens of a model with so many tokens in all."""
        num_languages = 99 if vocab_size <= FIRST_MULTILINGUAL else 100  # Cantonese came with large-v3
        end = vocab_size - len(SpecialTokens(0, num_languages, True))
        return SpecialTokens(end, num_languages, vocab_size >= FIRST_MULTILINGUAL)

    def __len__(self) -> int:
        return self.end + len(self.names)

    def prompt(self, language: str | None = None, task: Task = "transcribe") -> list[int]:
        """Tokens that the decoder begins with. English-only models take neither a language nor a task."""
        if not self.is_multilingual:
            if task != "transcribe" or find_language(language or "en") != "en":
                raise UserError(
                    f"language {language}, task {task}: this model transcribes English only; take one "
                    "without .en in its name"
                )
            return [self.start, self.no_times]
        if language is None:
            raise UserError("this model is multilingual; give the language that is spoken, such as en")
        code = find_language(language)
        if code not in self.languages:
            raise UserError(f"language {code} has no token in this model; take large-v3 or turbo")
        return [self.start, self.languages[code], self.tasks[task], self.no_times]


class WhisperTokenizer(SpecialTokens):
    """Text to ids and back. `vocabulary`: bytes of each token of text; a lower id was merged earlier."""

    def __init__(self, vocabulary: Vocabulary, num_languages: int, is_multilingual: bool) -> None:
        super().__init__(len(vocabulary), num_languages, is_multilingual)
        self.vocabulary = vocabulary

    @classmethod
    def of(cls, vocabulary: Vocabulary, vocab_size: int) -> WhisperTokenizer:
        """Tokenizer of a model with so many tokens in all."""
        special = SpecialTokens.of_size(vocab_size)
        if len(vocabulary) != special.end:
            raise UserError(
                f"{len(vocabulary):,} tokens of text, but this model has {special.end:,}; the vocabulary is "
                "that of another model (one off: English-only or not)"
            )
        if missing := set(range(256)) - {token[0] for token in vocabulary if len(token) == 1}:
            raise UserError(f"a vocabulary without byte {min(missing)}; expected all 256, is it Whisper's?")
        return cls(vocabulary, len(special.languages), special.is_multilingual)

    @functools.cached_property
    def suppressed(self) -> list[int]:
        """Tokens that no text may hold: signs of sounds and speakers, and the special ones of a prompt."""
        # A hyphen and a quote may stand in a word, but not before it.
        ids = {self.encode(" -")[0], self.encode(" '")[0]}
        for encoded in (self.encode(spelled) for sign in _SIGNS for spelled in (sign, f" {sign}")):
            if len(encoded) == 1:
                ids.add(encoded[0])
        for sign in _MUSIC:  # the first token, where there are several, stands for no letter
            ids |= {self.encode(sign)[0], self.encode(f" {sign}")[0]}
        ids |= {self.start, *self.tasks.values(), self.start_of_language_model, self.start_of_previous}
        return sorted(ids | {self.no_speech})

    def encode(self, text: str) -> list[int]:
        """Ids of a text. What looks like a special token is text too."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"{text[:40]!r} holds half of a surrogate pair; write the text again, as UTF-8")
        return self._encoding.encode_ordinary(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens. Bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.vocabulary[id] for id in ids if id < self.end).decode("utf-8", "replace")

    @functools.cached_property
    def _encoding(self) -> tiktoken.Encoding:
        ranks = {token: id for id, token in enumerate(self.vocabulary)}
        return tiktoken.Encoding("whisper", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})


# --- as a tokenizer of a run ------------------------------------------------------------------------

NUM_RESERVED = 5
FIRST_SPECIAL = "<|en|>"  # the first token after those of text
# Each byte is a character that can be seen: itself, ▁ for a space, or one from U+0100 on.
_NAMES = [
    chr(byte) if 0x20 < byte < 0x7F else "▁" if byte == 0x20 else chr(0x100 + byte) for byte in range(256)
]
_BYTES = {name: byte for byte, name in enumerate(_NAMES)}


def order_tokens(whisper: SpecialTokens) -> list[int]:
    """Whisper's id of each id in a run, whose reserved tokens come first.

    They take the place of Whisper's start and end, and of three that it never predicts after a prompt.
    """
    blank, padding, unknown = whisper.no_speech, whisper.start_of_previous, whisper.start_of_language_model
    reserved = [blank, padding, whisper.start, whisper.end, unknown]
    return reserved + sorted(set(range(len(whisper))).difference(reserved))


def find_prompt(sizes: WhisperSizes, language: str | None) -> tuple[int, ...]:
    """Find the tokens of the prompt behind the start, by their ids in a run."""
    special = SpecialTokens.of_size(sizes.vocab_size)
    try:
        prompt = special.prompt(language)
    except UserError as error:
        raise UserError(f"model.decoder.language: {error}") from None
    return tuple(map(order_tokens(special).index, prompt[1:]))


def name_tokens(whisper: WhisperTokenizer) -> tuple[str, ...]:
    """A name for each id in a run but the reserved ones."""
    return tuple(
        whisper.names[id] if id in whisper.names else "".join(_NAMES[byte] for byte in whisper.vocabulary[id])
        for id in order_tokens(whisper)[NUM_RESERVED:]
    )


def read_names(tokens: Sequence[str]) -> WhisperTokenizer:
    """Whisper's tokenizer, of the tokens of a run."""
    if FIRST_SPECIAL not in tokens:
        raise UserError(f"no token {FIRST_SPECIAL}; expected the vocabulary of a Whisper model")
    names = tokens[NUM_RESERVED : tokens.index(FIRST_SPECIAL)]
    if strange := {*"".join(names)}.difference(_NAMES):
        raise UserError(f"{min(strange)!r} stands for no byte; expected the vocabulary of a Whisper model")
    vocabulary = tuple(bytes(map(_BYTES.__getitem__, name)) for name in names)
    return WhisperTokenizer.of(vocabulary, len(tokens))


class TokenizerUnits(Units):
    """Units of a tokenizer of type whisper; as Whisper, it puts a space before each text."""

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        self._whisper = read_names(tokens)
        self._bytes = dict.fromkeys(tokens[NUM_RESERVED:], b"")
        self._bytes |= zip(tokens[NUM_RESERVED:], self._whisper.vocabulary, strict=False)

    @classmethod
    def train(cls, config: Any, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        raise UserError(
            "a tokenizer of type whisper is not learned from texts: it comes with the Whisper model that "
            "start_from names"
        )

    def encode(self, text: str) -> list[int]:
        return [id + NUM_RESERVED for id in self._whisper.encode(f" {text}")] if text else []

    def join(self, tokens: list[str]) -> str:
        spelled = b"".join(self._bytes.get(token, token.encode()) for token in tokens)
        return spelled.decode("utf-8", errors="replace").removeprefix(" ")

    def find_unknown(self, text: str) -> list[str]:
        """Return none: what has no token of its own is split into bytes."""
        return []


# --- files ------------------------------------------------------------------------------------------

MAX_BYTES = 20_000_000  # Whisper's own have 0.8 MB, and 2.5 MB as JSON
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


def write_huggingface_vocabulary(folder: Path, tokenizer: WhisperTokenizer) -> None:
    """Write vocab.json, merges.txt and added_tokens.json."""
    names = ["".join(SHOWN[byte] for byte in token) for token in tokenizer.vocabulary]
    ranks = {token: id for id, token in enumerate(tokenizer.vocabulary)}
    pairs = [split_once(ranks, token) for token in tokenizer.vocabulary if len(token) > 1]
    merges = [" ".join(names[ranks[part]] for part in pair) + "\n" for pair in pairs]
    special = {name: id for id, name in tokenizer.names.items()}
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
    tree = parse_json(read_small(path))
    if not isinstance(tree, dict):
        raise UserError(f"{path}: no JSON object, or nested too deep; download it again")
    return tree


def read_small(path: Path) -> bytes:
    """Read a file of a vocabulary or of settings."""
    return read_limited(path, MAX_BYTES, "which this file of a Whisper model never has")


def check_order(ids: Mapping[int, bytes], path: Path) -> Vocabulary:
    """Put the tokens into the order of their ids; refuse gaps and doubles."""
    if sorted(ids) != list(range(len(ids))) or len(set(ids.values())) != len(ids) or not ids:
        raise UserError(
            f"{path}: {len(ids):,} tokens, but their ids are not 0, 1, 2 ..., or a token has two; "
            "is it complete?"
        )
    return tuple(ids[id] for id in range(len(ids)))
