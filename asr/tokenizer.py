"""Text to token ids and back: characters, words, labels, pieces of sentencepiece, or Whisper's own."""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic

from asr.config import Config
from asr.errors import UserError
from asr.files import replace_file
from asr.whisper.units import WhisperUnits

# The same for each type of tokenizer, so that a model can rely on them.
BLANK_ID, PAD_ID, SOS_ID, EOS_ID, UNK_ID = range(5)
SPECIAL_TOKENS = ("<blank>", "<pad>", "<sos>", "<eos>", "<unk>")
UNKNOWN_MARK = "⁇"  # what UNK_ID looks like in decoded text

FORMAT_VERSION = 1
MAX_FILE_BYTES = 20_000_000  # a vocabulary of a million words has some 15 MB

TokenizerType = Literal["characters", "bpe", "unigram", "words", "labels", "whisper"]


class TokenizerConfig(Config):
    """Which units a model reads and writes."""

    type: TokenizerType = "characters"
    """characters: one token per Unicode code point, for small data and for scripts without spaces.
    bpe, unigram: pieces of words, learnt by sentencepiece. words: whole words, others are unknown.
    labels: what a model of labels says; each is one token. whisper: the pieces of the Whisper model that
    start_from names."""

    vocab_size: int | None = pydantic.Field(default=None, gt=len(SPECIAL_TOKENS))
    """Number of tokens with the five reserved ones. Needed for bpe and unigram; for words an upper limit, by
    which the rarest words become unknown; not for the others, which are as many as there are."""

    @pydantic.model_validator(mode="after")
    def _vocab_size_fits_type(self) -> TokenizerConfig:
        if self.type in ("bpe", "unigram") and self.vocab_size is None:
            raise ValueError(f"type = {self.type} needs vocab_size, for example vocab_size: 500")
        if self.type in ("characters", "labels", "whisper") and self.vocab_size is not None:
            raise ValueError(f"type = {self.type} takes no vocab_size; remove vocab_size or choose type: bpe")
        return self


@dataclasses.dataclass
class Tokenizer:
    """Made by `Tokenizer.train` or `Tokenizer.load`. Encoding adds no <sos> or <eos>: the model does."""

    type: TokenizerType
    tokens: tuple[str, ...] = dataclasses.field(repr=False)  # by id, special ones first
    model: bytes = dataclasses.field(default=b"", repr=False)  # what sentencepiece trained

    blank_id = BLANK_ID
    pad_id = PAD_ID
    sos_id = SOS_ID
    eos_id = EOS_ID
    unk_id = UNK_ID

    def __post_init__(self) -> None:
        self._units = UNITS[self.type](self.tokens, self.model)

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        """Learn the vocabulary of `texts`, which are read once. The same texts give the same tokenizer."""
        tokens, model = UNITS[config.type].train(config, texts)
        if not tokens:
            raise UserError("a tokenizer learns from texts, but there are none, or all of them are empty")
        return cls(config.type, SPECIAL_TOKENS + tokens, model)

    def encode(self, text: str) -> list[int]:
        """Ids of a normalised text; `UNK_ID` for each character (of type words: word) without a token."""
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
        """The characters (of type words: words) of `text` without a token, each once."""
        return self._units.find_unknown(text)

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


# --- units: how text falls into tokens ----------------------------------------------------------

# What a text may not hold, with the reason and the remedy.
Refusals = tuple[tuple[re.Pattern[str], str], ...]

_NO_CHARACTER = re.compile("[\ud800-\udfff]"), "half of a surrogate pair; write the text anew, as UTF-8"
_ODD_SPACE = re.compile(r"\A\s|[^\S ]|\s\s|\s\Z")
_SPECIAL = re.compile("|".join(SPECIAL_TOKENS))
_SPECIAL_WORD = re.compile(rf"(?<!\S)(?:{_SPECIAL.pattern})(?!\S)")
_SPECIAL_LABEL = re.compile(rf"\A(?:{_SPECIAL.pattern})\Z")


class _Characters:
    """Units that are looked up in a table; `split` and `separator` say which."""

    refused: Refusals = (_NO_CHARACTER,)
    token_pattern = re.compile("(?s:.)")
    separator = ""

    @staticmethod
    def split(text: str) -> list[str]:
        return list(text)

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        assert not model
        # Without the special tokens: text that spells <eos> must not become one.
        self._ids = {token: id for id, token in enumerate(tokens) if id > UNK_ID}

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        counts: collections.Counter[str] = collections.Counter()
        for text in _check_texts(texts, cls.refused):
            counts.update(cls.split(text))
        units = sorted(counts, key=lambda unit: (-counts[unit], unit))
        if config.vocab_size is not None:
            units = units[: config.vocab_size - len(SPECIAL_TOKENS)]
        return tuple(units), b""

    def encode(self, text: str) -> list[int]:
        get = self._ids.get
        return [get(unit, UNK_ID) for unit in self.split(text)]

    def join(self, tokens: list[str]) -> str:
        return self.separator.join(tokens)

    def find_unknown(self, text: str) -> list[str]:
        return [unit for unit in dict.fromkeys(self.split(text)) if unit not in self._ids]


class _Words(_Characters):
    refused = (
        _NO_CHARACTER,
        (_ODD_SPACE, "white space other than one space between words; the rule collapse_spaces mends that"),
        (_SPECIAL_WORD, "a reserved token as a word; the rule strip_brackets removes it"),
    )
    token_pattern = re.compile(r"\S+")
    separator = " "

    @staticmethod
    def split(text: str) -> list[str]:
        return text.split()


class _Labels(_Characters):
    refused = (_NO_CHARACTER, (_SPECIAL_LABEL, "a reserved token as a label; give it another name"))
    token_pattern = re.compile("(?s:.+)")
    separator = " "

    @staticmethod
    def split(text: str) -> list[str]:
        return [text]


_SPACE_PIECE = "\u2581"  # sentencepiece writes ▁ for a space, and puts one before each text
_STAND_IN = "\uffff"  # not a character, says Unicode: never in a vocabulary, so it is encoded as unknown
_NEEDS_STAND_IN = re.compile(f"[{_SPACE_PIECE}\ud800-\udfff]")


class _Pieces:
    """Sentencepiece knows no special token but its unknown piece, id 0, which here is `UNK_ID`."""

    refused: Refusals = (
        _NO_CHARACTER,
        (re.compile("[\u2581\u2585]"), "reserved for sentencepiece; the rule strip_symbols removes it"),
        (re.compile(r"[^\S ]"), "white space other than a space; the rule collapse_spaces mends that"),
        (re.compile("\0"), "a zero byte; the rule strip_invisible removes it"),
        (re.compile(_STAND_IN), "U+FFFF, which is not a character; remove it"),
        (_SPECIAL, "a reserved token; the rule strip_brackets removes it"),
    )
    token_pattern = re.compile("(?s:.+)")

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        _check_size(model, tokens)
        self._processor, pieces = _load_model(model)
        if pieces != tokens[UNK_ID:]:
            raise UserError("the pieces of the sentencepiece model are not the tokens of the file")
        self._characters = {token.replace(_SPACE_PIECE, " ") for token in tokens if len(token) == 1}

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        characters = {" "}
        failures: list[BaseException] = []

        def spool() -> Iterator[str]:
            try:
                for text in _check_texts(texts, cls.refused):
                    characters.update(text)
                    yield text
            except BaseException as error:
                failures.append(error)  # sentencepiece replaces it by an error of its own
                raise

        try:
            model = _train_model(config, spool())
        except RuntimeError as error:
            if failures:
                raise failures[0] from None
            if characters == {" "}:
                return (), b""
            raise _explain(error, config, len(characters)) from None
        tokens = _load_model(model)[1][1:]
        lost = characters - {token.replace(_SPACE_PIECE, " ") for token in tokens}
        assert not lost, f"sentencepiece left out {sorted(lost)}"
        return tokens, model

    def encode(self, text: str) -> list[int]:
        text = _NEEDS_STAND_IN.sub(_STAND_IN, text)
        ids = self._processor.encode(text)
        if 0 in ids:  # one for a whole run of unknown characters
            pieces = self._processor.encode(text, out_type=str)
            counts = [1 if id else len(piece) for id, piece in zip(ids, pieces, strict=True)]
            ids = [id for id, count in zip(ids, counts, strict=True) for _ in range(count)]
        return [id + UNK_ID for id in ids]

    def join(self, tokens: list[str]) -> str:
        return "".join(tokens).replace(_SPACE_PIECE, " ").removeprefix(" ")

    def find_unknown(self, text: str) -> list[str]:
        return [character for character in dict.fromkeys(text) if character not in self._characters]


UNITS: dict[TokenizerType, type[_Characters] | type[_Pieces] | type[WhisperUnits]] = {
    "characters": _Characters,
    "bpe": _Pieces,
    "unigram": _Pieces,
    "words": _Words,
    "labels": _Labels,
    "whisper": WhisperUnits,
}


def _check_texts(texts: Iterable[str], refused: Refusals) -> Iterator[str]:
    for number, text in enumerate(texts, start=1):
        for pattern, problem in refused:
            if found := pattern.search(text):
                shown = ascii(text[max(0, found.start() - 20) : found.end() + 20])
                raise UserError(f"text {number}, character {found.start() + 1}, near {shown}: {problem}")
        yield text


# --- sentencepiece ------------------------------------------------------------------------------


def _train_model(config: TokenizerConfig, texts: Iterator[str]) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_writer=model,
        model_type=config.type,
        vocab_size=(config.vocab_size or 0) - UNK_ID,
        # Texts come normalised. The defaults would apply NFKC, squeeze spaces, leave out rare characters.
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=1.0,
        max_sentence_length=2**30,  # bytes; longer texts would be left out without a word
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,  # the sums of unigram depend on their order
        minloglevel=2,  # errors come as exceptions
    )
    return model.getvalue()


def _explain(error: RuntimeError, config: TokenizerConfig, num_characters: int) -> UserError:
    smallest = len(SPECIAL_TOKENS) + num_characters
    asked = f"vocab_size = {config.vocab_size} with type = {config.type}"
    if config.vocab_size is not None and config.vocab_size < smallest:
        return UserError(
            f"{asked}: expected at least {smallest}, as the texts have {num_characters} different "
            f"characters (with the space) and {len(SPECIAL_TOKENS)} tokens are reserved"
        )
    if found := re.search(r"value <= (\d+)", str(error)):
        largest = int(found[1]) + UNK_ID
        return UserError(f"{asked}: these texts allow only {smallest} to {largest}; choose vocab_size there")
    return UserError(f"sentencepiece cannot train on these texts ({error})")


def _load_model(model: bytes) -> tuple[Any, tuple[str, ...]]:
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = tuple(processor.id_to_piece(id) for id in range(processor.get_piece_size()))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise UserError(f"sentencepiece refuses its model ({error})") from None
    return processor, pieces


def _check_size(model: bytes, tokens: tuple[str, ...]) -> None:
    """A piece takes at most 16 bytes beside its text, and ours is a model of pieces alone.

    The other thing that a model may hold is a table that rewrites texts before they are cut, from 1,024 bytes
    on. A hostile one turns a letter into megabytes.
    """
    largest = 1000 + sum(len(token.encode()) + 16 for token in tokens)
    if not 0 < len(model) <= largest:
        raise UserError(f"the sentencepiece model has {len(model):,} bytes; expected 1 to {largest:,}")


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
    return Tokenizer(record.type, record.tokens, _decode_model(record))


def _check_tokens(type: TokenizerType, tokens: tuple[str, ...]) -> None:
    if tokens[: len(SPECIAL_TOKENS)] != SPECIAL_TOKENS:
        raise UserError(f"the first tokens must be {', '.join(SPECIAL_TOKENS)}")
    if len(set(tokens)) < len(tokens):
        repeated = next(token for token, count in collections.Counter(tokens).items() if count > 1)
        raise UserError(f"token {repeated!r} is there twice")
    for token in tokens[len(SPECIAL_TOKENS) :]:
        if not UNITS[type].token_pattern.fullmatch(token):
            raise UserError(f"{token[:40]!r} cannot be a token of type {type}")


def _decode_model(record: _Record) -> bytes:
    try:
        model = base64.b64decode(record.model, validate=True)
    except ValueError:
        raise UserError("model is not base64, so the file is damaged") from None
    if hashlib.sha256(model).hexdigest() != record.model_sha256:
        raise UserError("model differs from model_sha256, so the file is damaged; train it again")
    if model and UNITS[record.type] is not _Pieces:
        raise UserError(f"type {record.type} has no model; remove it")
    return model
