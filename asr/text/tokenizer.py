"""Tokenizers: characters, words, phones, labels, or pieces of words that sentencepiece learns."""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic

from asr.config import Config, describe_error
from asr.errors import UserError
from asr.families import FAMILIES, find_families, require_trainable
from asr.files import read_limited, replace_file

# Equal in all types of tokenizers, so that models can rely on them.
BLANK_ID, PAD_ID, SOS_ID, EOS_ID, UNK_ID = range(5)
SPECIAL_TOKENS = ("<blank>", "<pad>", "<sos>", "<eos>", "<unk>")
UNKNOWN_MARK = "⁇"  # what UNK_ID looks like in decoded text

if TYPE_CHECKING:
    TokenizerType = str
else:
    TokenizerType = Literal[("characters", "bpe", "unigram", "words", "labels", "phones", *FAMILIES)]


class TokenizerConfig(Config):
    """Tokens that a model reads and writes."""

    type: TokenizerType = "characters"
    """characters: one token per Unicode code point, for small data and for scripts without spaces.
    bpe, unigram: pieces of words, learned by sentencepiece. words: whole words, others are unknown.
    labels: the output of a classifier; each label is one token. phones: from a pronunciation lexicon.
    The name of a family of models: the pieces of the one that start_from names."""

    vocab_size: int | None = pydantic.Field(default=None, gt=len(SPECIAL_TOKENS))
    """Number of tokens including the five reserved ones; for bpe and unigram only."""

    lexicon: str | None = None
    """Pronunciation lexicon for phones: a word and its phones on each line, as in CMUdict and Kaldi. The
    first pronunciation of a word is used, without stress. Words that are missing from it can be neither
    learned nor recognized. With `start_from` it adds words to that run's, with the same phones."""

    @pydantic.model_validator(mode="after")
    def _settings_fit_type(self) -> TokenizerConfig:
        for name, takers in (("vocab_size", ("bpe", "unigram")), ("lexicon", ("phones",))):
            is_given = getattr(self, name) is not None
            if is_given != (self.type in takers):
                needs, remedy = ("takes no", "remove") if is_given else ("needs", "set")
                raise ValueError(f"type = {self.type} {needs} {name}; {remedy} it")
        return self


# Patterns that a text must not contain, with the reason and the remedy.
Refusals = tuple[tuple[re.Pattern[str], str], ...]

_SPECIAL = re.compile("|".join(SPECIAL_TOKENS))
_SPECIAL_WORD = re.compile(rf"(?<!\S)(?:{_SPECIAL.pattern})(?!\S)")


class Units:
    """Tokens of one type: learn them, find them in a text, join them. Characters here; subclasses differ."""

    refused: ClassVar[Refusals] = ()
    separator = ""

    @staticmethod
    def split(text: str) -> list[str]:
        return list(text)

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        # Special tokens are left out, because a text that spells <eos> must not become one.
        self._ids = {token: id for id, token in enumerate(tokens) if id > UNK_ID}

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        """Return the tokens without the special ones, and a model if more than tokens is stored."""
        counts: collections.Counter[str] = collections.Counter()
        for text in check_texts(texts, cls.refused):
            counts.update(cls.split(text))
        return tuple(sorted(counts, key=lambda unit: (-counts[unit], unit))), b""

    def encode(self, text: str) -> list[int]:
        get = self._ids.get
        return [get(unit, UNK_ID) for unit in self.split(text)]

    def join(self, tokens: list[str]) -> str:
        return self.separator.join(tokens)

    def find_unknown(self, text: str) -> list[str]:
        return [unit for unit in dict.fromkeys(self.split(text)) if unit not in self._ids]


class Words(Units):
    refused = ((_SPECIAL_WORD, "a reserved token as a word; the rule strip_brackets removes it"),)
    separator = " "

    @staticmethod
    def split(text: str) -> list[str]:
        return text.split()


class LabelUnits(Units):
    separator = " "

    @staticmethod
    def split(text: str) -> list[str]:
        return [text]


_SPACE_PIECE = "\u2581"  # sentencepiece writes ▁ for a space, and puts one before each text
_STAND_IN = "\uffff"  # a Unicode noncharacter, in no vocabulary, so it is encoded as unknown
_NEEDS_STAND_IN = re.compile(f"[{_SPACE_PIECE}\ud800-\udfff]")


class Pieces(Units):
    """Pieces of words. The only special token of sentencepiece is the unknown piece, ID 0, our `UNK_ID`."""

    refused = (
        (re.compile("[\u2581\u2585]"), "reserved for sentencepiece; the rule strip_symbols removes it"),
        (re.compile(r"[^\S ]"), "white space other than a space; the rule collapse_spaces replaces it"),
        (re.compile("\0"), "a zero byte; the rule strip_invisible removes it"),
        (re.compile(_STAND_IN), "U+FFFF, which is not a character; remove it"),
        (_SPECIAL, "a reserved token; the rule strip_brackets removes it"),
    )

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        # A piece takes at most 16 bytes in addition to its text. A larger model may contain a table that
        # rewrites texts, with which a hostile file could turn a letter into megabytes.
        largest = 1000 + sum(len(token.encode()) + 16 for token in tokens)
        if not 0 < len(model) <= largest:
            raise UserError(f"the sentencepiece model has {len(model):,} bytes; expected 1 to {largest:,}")
        self._processor, pieces = _load_model(model)
        if pieces != tokens[UNK_ID:]:
            raise UserError("the pieces of the sentencepiece model are not the tokens of the file")
        self._characters = {token.replace(_SPACE_PIECE, " ") for token in tokens if len(token) == 1}

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        texts = [*check_texts(texts, cls.refused)]
        characters = {" "}.union(*texts)
        if characters == {" "}:
            return (), b""
        try:
            model = _train_model(config, iter(texts))
        except RuntimeError as error:
            least, limit = len(SPECIAL_TOKENS) + len(characters), re.search(r"value <= (\d+)", str(error))
            most = f"to {int(limit[1]) + UNK_ID}" if limit else f"or more ({error})"
            message = f"vocab_size = {config.vocab_size}: these texts allow {least} {most}"
            raise UserError(message) from None
        return _load_model(model)[1][1:], model

    def encode(self, text: str) -> list[int]:
        text = _NEEDS_STAND_IN.sub(_STAND_IN, text)
        ids = self._processor.encode(text)
        if 0 in ids:  # 0 stands for a whole run of unknown characters
            pieces = self._processor.encode(text, out_type=str)
            counts = [1 if id else len(piece) for id, piece in zip(ids, pieces, strict=True)]
            ids = [id for id, count in zip(ids, counts, strict=True) for _ in range(count)]
        return [id + UNK_ID for id in ids]

    def join(self, tokens: list[str]) -> str:
        return "".join(tokens).replace(_SPACE_PIECE, " ").removeprefix(" ")

    def find_unknown(self, text: str) -> list[str]:
        return [character for character in dict.fromkeys(text) if character not in self._characters]


def check_texts(texts: Iterable[str], refused: Refusals) -> Iterator[str]:
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
        # Texts are normalized already; the defaults apply NFKC, merge spaces and drop rare characters.
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=1.0,
        max_sentence_length=2**30,  # bytes; longer texts would be skipped silently
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,  # sums in unigram training depend on their order
        minloglevel=2,  # errors are raised as exceptions
    )
    return model.getvalue()


def _load_model(model: bytes) -> tuple[Any, tuple[str, ...]]:
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = tuple(processor.id_to_piece(id) for id in range(processor.get_piece_size()))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise UserError(f"sentencepiece refuses its model ({error})") from None
    return processor, pieces


SPACE = " "
MAX_DICTIONARY_BYTES = 20_000_000  # CMUdict has 4 MB
_COMMENT = re.compile(r"\A;;;.*|\s#.*")  # of CMUdict's two formats
_VARIANT = re.compile(r"\(\d+\)\Z")  # CMUdict: READ(2)
_STRESSED = re.compile(r"\A([A-Z]{2})[0-2]\Z")  # ARPAbet's vowels: AH0; a1 is a tone
_PHONE = re.compile(r"[^\s<>#/]+")
_NUMBER = re.compile(r"[\d.eE+-]*\d[\d.eE+-]*")

_OTHERS = b";;; not in the training texts\n"  # separates the words of a model

Spelling = tuple[str, ...]


class Phones(Units):
    """Phones of words, and the space between words.

    Homophones get a mark at their end (#1 for the second most frequent in training, and so on), so that each
    phone sequence is one word: n-grams distinguish TWO from TOO, and searches need no pronunciations.
    """

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        super().__init__(tokens, model)
        if SPACE not in self._ids:
            raise UserError("a tokenizer of phones has a space among its tokens, and this one has none")
        self._spellings = _mark_homophones(_parse_dictionary(model, "the tokenizer"))
        self._words = {spelling: word for word, spelling in self._spellings.items()}

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        """Take the phones of the texts' words and the whole lexicon, most frequent words first."""
        assert config.lexicon is not None
        path = config.lexicon
        dictionary = read_dictionary(path)
        counts: collections.Counter[str] = collections.Counter()
        for text in check_texts(texts, Words.refused):
            counts.update(text.split())
        if missing := sorted(counts.keys() - dictionary.keys()):
            raise UserError(
                f"{path}: no pronunciation of {len(missing):,} words of the training texts, {missing[0]!r} "
                "for one; expected for each a line WORD PHONE PHONE, and texts in the case of the lexicon"
            )
        words = sorted(dictionary, key=lambda word: (-counts[word], word))
        spellings = _mark_homophones({word: dictionary[word] for word in words})
        units: collections.Counter[str] = collections.Counter()
        for word, count in counts.items():
            units.update(dict.fromkeys(spellings[word], count))
        tokens = (SPACE, *sorted(units, key=lambda unit: (-units[unit], unit))) if units else ()
        lines = [f"{word} {' '.join(dictionary[word])}\n".encode() for word in words]
        return tokens, b"".join([*lines[: len(counts)], _OTHERS, *lines[len(counts) :]])

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for place, word in enumerate(text.split()):
            if place:
                ids.append(self._ids[SPACE])
            ids += [self._ids.get(phone, UNK_ID) for phone in self._spellings.get(word, (UNKNOWN_MARK,))]
        return ids

    def join(self, tokens: list[str]) -> str:
        """Return the words; phones that form no word of the lexicon are written between slashes."""
        groups = itertools.groupby(tokens, lambda token: token == SPACE)
        return " ".join(self._name(tuple(group)) for is_space, group in groups if not is_space)

    def find_unknown(self, text: str) -> list[str]:
        return [word for word in dict.fromkeys(text.split()) if UNK_ID in self.encode(word)]

    def _name(self, spelling: Spelling) -> str:
        if spelling == (UNKNOWN_MARK,):
            return UNKNOWN_MARK
        return self._words.get(spelling) or f"/{'-'.join(spelling)}/"


def read_dictionary(path: str) -> dict[str, Spelling]:
    """Read the first pronunciation, without stress, of each word in a file in CMUdict or Kaldi format.

    Further pronunciations, marked as `READ(2)` or on further lines, are ignored.
    """
    content = read_limited(path, MAX_DICTIONARY_BYTES, "more than a pronunciation lexicon ever has")
    return _parse_dictionary(content, path)


def add_words(model: bytes, other: bytes) -> bytes:
    """Append another model's words to the training words of the first, which keep their phones."""
    learned = model.partition(_OTHERS)[0]
    known = {line.partition(b" ")[0] for line in learned.splitlines()}
    lines = other.splitlines(keepends=True)
    return learned + b"".join(line for line in lines if line.partition(b" ")[0] not in known)


def _parse_dictionary(content: bytes, source: str) -> dict[str, Spelling]:
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: not UTF-8 (byte {error.start + 1}); convert it, as by iconv") from None
    dictionary: dict[str, Spelling] = {}
    for number, line in enumerate(lines, start=1):
        word, *phones = _COMMENT.sub("", line).split() or [""]
        if not word:
            continue
        if not phones or not all(map(_PHONE.fullmatch, phones)) or _NUMBER.fullmatch(phones[0]):
            raise UserError(
                f"{source}, line {number}: {line[:60]!r}; expected a word and its phones, WORD PHONE PHONE, "
                "without probabilities and without <, >, # and / in phones; lists of words are for --words"
            )
        dictionary.setdefault(_VARIANT.sub("", word), tuple(_STRESSED.sub(r"\1", phone) for phone in phones))
    if not dictionary:
        raise UserError(f"{source}: no pronunciations; expected lines of the form WORD PHONE PHONE")
    return dictionary


def _mark_homophones(dictionary: Mapping[str, Spelling]) -> dict[str, Spelling]:
    """Mark homophones so that they differ; the first stays unchanged."""
    counts: collections.Counter[Spelling] = collections.Counter()
    marked = {}
    for word, phones in dictionary.items():
        marked[word] = phones if not counts[phones] else (*phones, f"#{counts[phones]}")
        counts[phones] += 1
    return marked


MAX_FILE_BYTES = 20_000_000  # a vocabulary of a million words has about 15 MB

# By type of tokenizer; model families add more.
UNITS: dict[TokenizerType, type[Units]] = {
    "characters": Units,
    "bpe": Pieces,
    "unigram": Pieces,
    "words": Words,
    "labels": LabelUnits,
    "phones": Phones,
}


def find_units(type: TokenizerType) -> type[Units]:
    """Find the units of a type of tokenizer, native or from a family of models."""
    if type in UNITS:
        return UNITS[type]
    for family in find_families():
        if family.section == type:
            return require_trainable(family).TokenizerUnits
    raise UserError(f"tokenizer.type = {type}: not to be had here; expected one of {', '.join(UNITS)}")


@dataclasses.dataclass
class Tokenizer:
    """Made by `Tokenizer.train` or `Tokenizer.load`. The model, not `encode`, adds <sos> and <eos>."""

    type: TokenizerType
    tokens: tuple[str, ...] = dataclasses.field(repr=False)  # by ID, special tokens first
    model: bytes = dataclasses.field(default=b"", repr=False)  # a sentencepiece model or a lexicon
    fingerprint: str = dataclasses.field(default="", repr=False, compare=False)
    """`compute_fingerprint` of its training texts and settings; empty if unknown."""

    pad_id, sos_id = PAD_ID, SOS_ID

    def __post_init__(self) -> None:
        self.units = find_units(self.type)(self.tokens, self.model)

    @property
    def space_id(self) -> int | None:
        """The token between words, if there is one."""
        has_space = self.type in ("characters", "phones") and SPACE in self.tokens
        return self.tokens.index(SPACE) if has_space else None

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        """Learn the vocabulary of `texts`, which are read once. Equal texts give equal tokenizers."""
        digest = _start_digest(config)
        tokens, model = find_units(config.type).train(config, _hash_along(texts, digest))
        if not tokens:
            raise UserError("a tokenizer learns from texts, but there are none, or all of them are empty")
        return cls(config.type, SPECIAL_TOKENS + tokens, model, digest.hexdigest())

    def with_words_of(self, other: Tokenizer) -> Tokenizer:
        """Return the same tokens and words, plus the words that only the other phone tokenizer has."""
        return dataclasses.replace(other, tokens=self.tokens, model=add_words(self.model, other.model))

    def encode(self, text: str) -> list[int]:
        """Return the IDs of a normalized text; units without a token become `UNK_ID`."""
        return self.units.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of IDs without blank, padding, start and end; unknown is `UNKNOWN_MARK`."""
        kept = [id for id in ids if not 0 <= id < UNK_ID]
        if wrong := [id for id in kept if not 0 <= id < len(self)]:
            raise UserError(f"token {wrong[0]}: expected 0 to {len(self) - 1}; take the model's tokenizer")
        return self.units.join([UNKNOWN_MARK if id == UNK_ID else self.tokens[id] for id in kept])

    def find_unknown(self, text: str) -> list[str]:
        """List the characters of `text` (for words and phones: the words) that have no token, each once."""
        return self.units.find_unknown(text)

    def count_unknown(self, texts: Iterable[str]) -> tuple[int, int]:
        """Count the unknown tokens and all tokens of the texts."""
        unknown = total = 0
        for text in texts:
            ids = self.encode(text)
            unknown += ids.count(UNK_ID)
            total += len(ids)
        return unknown, total

    def __len__(self) -> int:
        return len(self.tokens)

    def save(self, path: str | Path) -> None:
        """Write a JSON file atomically, with everything that `Tokenizer.load` needs."""
        record = TokenizerFile(
            format="asr tokenizer",
            version=1,
            type=self.type,
            tokens=self.tokens,
            model=base64.b64encode(self.model),
            model_sha256=hashlib.sha256(self.model).hexdigest(),
            fingerprint=self.fingerprint,
        )
        with replace_file(path) as file:
            file.write(record.model_dump_json(indent=1, exclude_defaults=True).encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a file from `save`; any other file raises a UserError."""
        if Path(path).exists() and not Path(path).is_file():  # a pipe, for example, might never end
            raise UserError(f"{path}: not a file; expected a tokenizer.json")
        content = read_limited(path, MAX_FILE_BYTES, "which a tokenizer never has")
        try:
            record = TokenizerFile.model_validate_json(content)
            if hashlib.sha256(record.model).hexdigest() != record.model_sha256:
                raise UserError("model differs from model_sha256, so the file is damaged; train it again")
            return cls(record.type, record.tokens, record.model, record.fingerprint)
        except pydantic.ValidationError as error:
            raise UserError(f"{path}: not a tokenizer of `asr train`: {describe_error(error)}") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


def compute_fingerprint(config: TokenizerConfig, texts: Iterable[str]) -> str:
    """Hash the settings and the ordered texts that a tokenizer is learned from."""
    digest = _start_digest(config)
    for _ in _hash_along(texts, digest):
        pass
    return digest.hexdigest()


def _start_digest(config: TokenizerConfig) -> hashlib._Hash:
    # Without defaults, so that new settings do not change earlier fingerprints.
    digest = hashlib.sha256(config.model_dump_json(exclude_defaults=True).encode())
    if config.lexicon is not None:
        digest.update(repr(read_dictionary(config.lexicon)).encode(errors="surrogatepass"))
    return digest


def _hash_along(texts: Iterable[str], digest: hashlib._Hash) -> Iterator[str]:
    for text in texts:
        digest.update(text.encode(errors="surrogatepass") + b"\n")
        yield text


class TokenizerFile(Config):
    """Content of a tokenizer.json."""

    format: Literal["asr tokenizer"]
    version: Literal[1]
    type: TokenizerType
    tokens: tuple[str, ...]
    model: pydantic.Base64Bytes = b""
    model_sha256: str = hashlib.sha256(b"").hexdigest()
    fingerprint: str = ""

    @pydantic.field_validator("tokens")
    @classmethod
    def _tokens_are_distinct(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if tokens[: len(SPECIAL_TOKENS)] != SPECIAL_TOKENS:
            raise ValueError(f"the first tokens must be {', '.join(SPECIAL_TOKENS)}")
        if repeated := [token for token, count in collections.Counter(tokens).items() if count > 1]:
            raise ValueError(f"token {repeated[0]!r} is there twice")
        return tokens
