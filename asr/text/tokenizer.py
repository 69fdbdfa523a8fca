"""Text to token ids and back, by units of ours or Whisper's own, and the file that holds a tokenizer."""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic

from asr.config import Config
from asr.errors import UserError
from asr.families import find_families
from asr.files import replace_file
from asr.text.phones import SPACE, Phones, add_words, read_dictionary
from asr.text.units import (
    BLANK_ID,
    EOS_ID,
    PAD_ID,
    SOS_ID,
    SPECIAL_TOKENS,
    UNK_ID,
    UNKNOWN_MARK,
    Characters,
    LabelUnits,
    Pieces,
    TokenizerConfig,
    TokenizerType,
    Units,
    Words,
)

FORMAT_VERSION = 1
MAX_FILE_BYTES = 20_000_000  # a vocabulary of a million words has some 15 MB

# By type of tokenizer; families of models have more.
UNITS: dict[TokenizerType, type[Units]] = {
    "characters": Characters,
    "bpe": Pieces,
    "unigram": Pieces,
    "words": Words,
    "labels": LabelUnits,
    "phones": Phones,
}


def find_units(type: TokenizerType) -> type[Units]:
    """The units of a type of tokenizer, of ours or of a family of models."""
    for family in find_families() if type not in UNITS else ():
        if family.section == type:
            UNITS[type] = family.load_units()
    if type not in UNITS:
        raise UserError(f"tokenizer.type = {type}: not to be had here; expected one of {', '.join(UNITS)}")
    return UNITS[type]


@dataclasses.dataclass
class Tokenizer:
    """Made by `Tokenizer.train` or `Tokenizer.load`. Encoding adds no <sos> or <eos>: the model does."""

    type: TokenizerType
    tokens: tuple[str, ...] = dataclasses.field(repr=False)  # by id, special ones first
    model: bytes = dataclasses.field(default=b"", repr=False)  # what sentencepiece trained, or pronunciations
    fingerprint: str = dataclasses.field(default="", repr=False, compare=False)
    """`compute_fingerprint` of what it was learnt from; empty where that is not known."""

    blank_id = BLANK_ID
    pad_id = PAD_ID
    sos_id = SOS_ID
    eos_id = EOS_ID
    unk_id = UNK_ID

    def __post_init__(self) -> None:
        self._units = find_units(self.type)(self.tokens, self.model)

    @property
    def space_id(self) -> int | None:
        """The token between words, if one of its own stands there."""
        has_space = self.type in ("characters", "phones") and SPACE in self.tokens
        return self.tokens.index(SPACE) if has_space else None

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        """Learn the vocabulary of `texts`, which are read once. The same texts give the same tokenizer."""
        digest = _start_digest(config)
        tokens, model = find_units(config.type).train(config, _hash_along(texts, digest))
        if not tokens:
            raise UserError("a tokenizer learns from texts, but there are none, or all of them are empty")
        return cls(config.type, SPECIAL_TOKENS + tokens, model, digest.hexdigest())

    def with_words_of(self, other: Tokenizer) -> Tokenizer:
        """The same tokens and spellings, and the words that only another tokenizer of phones has."""
        return dataclasses.replace(other, tokens=self.tokens, model=add_words(self.model, other.model))

    def encode(self, text: str) -> list[int]:
        """Ids of a normalised text; `UNK_ID` for each character (or word, or phone) without a token."""
        return self._units.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without blank, padding, start and end; the unknown shows as `UNKNOWN_MARK`."""
        ids = list(ids)
        if wrong := [id for id in ids if not 0 <= id < len(self.tokens)]:
            raise UserError(
                f"token id {wrong[0]} is outside of this tokenizer's 0 to {len(self) - 1}; "
                f"use the tokenizer that the model was trained with"
            )
        kept = [id for id in ids if id >= UNK_ID]
        return self._units.join([UNKNOWN_MARK if id == UNK_ID else self.tokens[id] for id in kept])

    def find_unknown(self, text: str) -> list[str]:
        """The characters (of type words and phones: words) of `text` without a token, each once."""
        return self._units.find_unknown(text)

    def count_unknown(self, texts: Iterable[str]) -> tuple[int, int]:
        """Count the unknown tokens of all texts, and all tokens."""
        unknown = total = 0
        for text in texts:
            ids = self.encode(text)
            unknown += ids.count(UNK_ID)
            total += len(ids)
        return unknown, total

    def __len__(self) -> int:
        return len(self.tokens)

    def save(self, path: str | Path) -> None:
        """Write one JSON file with all that `Tokenizer.load` needs; an interruption leaves no half of it."""
        path = Path(path)
        record: dict[str, Any] = {
            "format": "asr tokenizer",
            "version": FORMAT_VERSION,
            "type": self.type,
            "tokens": self.tokens,
        }
        if self.model:
            record["model"] = base64.b64encode(self.model).decode()
            record["model_sha256"] = hashlib.sha256(self.model).hexdigest()
        if self.fingerprint:
            record["fingerprint"] = self.fingerprint
        content = json.dumps(record, ensure_ascii=False, indent=1).encode() + b"\n"
        if len(content) > MAX_FILE_BYTES:
            raise UserError(f"{path}: a tokenizer of over {MAX_FILE_BYTES:,} bytes; give a lower vocab_size")
        with replace_file(path) as file:
            file.write(content)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read what `save` wrote; any other file is a UserError."""
        path = Path(path)
        try:
            return _parse(_read(path))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


def compute_fingerprint(config: TokenizerConfig, texts: Iterable[str]) -> str:
    """Hash the settings and the texts, in their order, that a tokenizer is learnt from."""
    digest = _start_digest(config)
    for _ in _hash_along(texts, digest):
        pass
    return digest.hexdigest()


def _start_digest(config: TokenizerConfig) -> hashlib._Hash:
    # Without defaults: a setting that is new in the code changes no fingerprint of before.
    digest = hashlib.sha256(config.model_dump_json(exclude_defaults=True).encode())
    if config.pronunciations is not None:
        digest.update(repr(read_dictionary(config.pronunciations)).encode(errors="surrogatepass"))
    return digest


def _hash_along(texts: Iterable[str], digest: hashlib._Hash) -> Iterator[str]:
    for text in texts:
        digest.update(text.encode(errors="surrogatepass") + b"\n")
        yield text


# --- tokenizer.json -----------------------------------------------------------------------------


class _Header(pydantic.BaseModel):
    format: Literal["asr tokenizer"]
    version: int = pydantic.Field(ge=1)


class _Record(Config):
    format: str
    version: int
    type: TokenizerType
    tokens: tuple[str, ...]
    model: str = ""
    model_sha256: str = hashlib.sha256(b"").hexdigest()
    fingerprint: str = ""


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise UserError("not a file; expected a tokenizer.json")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read this tokenizer ({error.strerror})") from None
    if len(content) > MAX_FILE_BYTES:
        raise UserError(f"over {MAX_FILE_BYTES:,} bytes; a tokenizer is smaller")
    return content


def _parse(content: bytes) -> Tokenizer:
    try:
        version = _Header.model_validate_json(content).version
        if version > FORMAT_VERSION:
            raise UserError(
                f"version {version} of the format, but this program knows only {FORMAT_VERSION}; update it"
            )
        record = _Record.model_validate_json(content)
    except pydantic.ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        problem = f"{where}: {fault['msg']}" if where else fault["msg"]
        raise UserError(f"not a tokenizer as `asr tokenizer` writes it ({problem})") from None
    _check_tokens(record.type, record.tokens)
    return Tokenizer(record.type, record.tokens, _decode_model(record), record.fingerprint)


def _check_tokens(type: TokenizerType, tokens: tuple[str, ...]) -> None:
    if tokens[: len(SPECIAL_TOKENS)] != SPECIAL_TOKENS:
        raise UserError(f"the first tokens must be {', '.join(SPECIAL_TOKENS)}")
    if len(set(tokens)) < len(tokens):
        repeated = next(token for token, count in collections.Counter(tokens).items() if count > 1)
        raise UserError(f"token {repeated!r} is there twice")
    for token in tokens[len(SPECIAL_TOKENS) :]:
        if not find_units(type).token_pattern.fullmatch(token):
            raise UserError(f"{token[:40]!r} cannot be a token of type {type}")


def _decode_model(record: _Record) -> bytes:
    try:
        model = base64.b64decode(record.model, validate=True)
    except ValueError:
        raise UserError("model is not base64, so the file is damaged") from None
    if hashlib.sha256(model).hexdigest() != record.model_sha256:
        raise UserError("model differs from model_sha256, so the file is damaged; train it again")
    if model and not find_units(record.type).has_model:
        raise UserError(f"type {record.type} has no model; remove it")
    return model
