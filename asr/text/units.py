"""Units of text: characters, words, labels, or pieces of words that sentencepiece learns."""

from __future__ import annotations

import collections
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import pydantic

from asr.config import Config
from asr.errors import UserError

# The same for each type of tokenizer, so that a model can rely on them.
BLANK_ID, PAD_ID, SOS_ID, EOS_ID, UNK_ID = range(5)
SPECIAL_TOKENS = ("<blank>", "<pad>", "<sos>", "<eos>", "<unk>")
UNKNOWN_MARK = "⁇"  # what UNK_ID looks like in decoded text

TokenizerType = Literal["characters", "bpe", "unigram", "words", "labels", "phones", "whisper"]


class TokenizerConfig(Config):
    """Units that a model reads and writes."""

    type: TokenizerType = "characters"
    """characters: one token per Unicode code point, for small data and for scripts without spaces.
    bpe, unigram: pieces of words, learnt by sentencepiece. words: whole words, others are unknown.
    labels: what a model of labels says; each is one token. phones: those of the words, by a dictionary.
    whisper: the pieces of the Whisper model that start_from names."""

    vocab_size: int | None = pydantic.Field(default=None, gt=len(SPECIAL_TOKENS))
    """Number of tokens with the five reserved ones. Needed for bpe and unigram; for words an upper limit, by
    which the rarest words become unknown; not for the others, which are as many as there are."""

    pronunciations: str | None = None
    """Dictionary for phones: lines of a word and its phones, as CMUdict and Kaldi have them. The first
    pronunciation of a word counts, without stress. Words that it lacks can be neither learnt nor found. With
    `start_from` it adds words to those of the texts there, which keep their spelling, in the same phones."""

    @pydantic.model_validator(mode="after")
    def _settings_fit_type(self) -> TokenizerConfig:
        for name, value, takers in (
            ("vocab_size", self.vocab_size, ("bpe", "unigram", "words")),
            ("pronunciations", self.pronunciations, ("phones",)),
        ):
            if value is None and self.type in takers and self.type != "words":
                raise ValueError(f"type = {self.type} needs {name}; set it")
            if value is not None and self.type not in takers:
                raise ValueError(f"type = {self.type} takes no {name}; remove it, or choose {takers[0]}")
        return self


# What a text may not hold, with the reason and the remedy.
Refusals = tuple[tuple[re.Pattern[str], str], ...]

_NO_CHARACTER = re.compile("[\ud800-\udfff]"), "half of a surrogate pair; write the text anew, as UTF-8"
_ODD_SPACE = re.compile(r"\A\s|[^\S ]|\s\s|\s\Z")
_SPECIAL = re.compile("|".join(SPECIAL_TOKENS))
_SPECIAL_WORD = re.compile(rf"(?<!\S)(?:{_SPECIAL.pattern})(?!\S)")
_SPECIAL_LABEL = re.compile(rf"\A(?:{_SPECIAL.pattern})\Z")


class Units:
    """The tokens of one type of tokenizer: learnt from texts, found in a text, joined to a text.

    These are characters; words and labels differ in `split` and `separator`.
    """

    refused: ClassVar[Refusals] = (_NO_CHARACTER,)
    separator = ""

    @staticmethod
    def split(text: str) -> list[str]:
        return list(text)

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        # Without the special tokens: text that spells <eos> must not become one.
        self._ids = {token: id for id, token in enumerate(tokens) if id > UNK_ID}

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        """The tokens but for the special ones, and a model if there is more to store than tokens."""
        counts: collections.Counter[str] = collections.Counter()
        for text in check_texts(texts, cls.refused):
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


class Words(Units):
    refused = (
        _NO_CHARACTER,
        (_ODD_SPACE, "white space other than one space between words; the rule collapse_spaces mends that"),
        (_SPECIAL_WORD, "a reserved token as a word; the rule strip_brackets removes it"),
    )
    separator = " "

    @staticmethod
    def split(text: str) -> list[str]:
        return text.split()


class LabelUnits(Units):
    refused = (_NO_CHARACTER, (_SPECIAL_LABEL, "a reserved token as a label; give it another name"))
    separator = " "

    @staticmethod
    def split(text: str) -> list[str]:
        return [text]


_SPACE_PIECE = "\u2581"  # sentencepiece writes ▁ for a space, and puts one before each text
_STAND_IN = "\uffff"  # not a character, says Unicode: never in a vocabulary, so it is encoded as unknown
_NEEDS_STAND_IN = re.compile(f"[{_SPACE_PIECE}\ud800-\udfff]")


class Pieces(Units):
    """Pieces of words. Sentencepiece has no special token but its unknown piece, id 0, which is `UNK_ID`."""

    refused = (
        _NO_CHARACTER,
        (re.compile("[\u2581\u2585]"), "reserved for sentencepiece; the rule strip_symbols removes it"),
        (re.compile(r"[^\S ]"), "white space other than a space; the rule collapse_spaces mends that"),
        (re.compile("\0"), "a zero byte; the rule strip_invisible removes it"),
        (re.compile(_STAND_IN), "U+FFFF, which is not a character; remove it"),
        (_SPECIAL, "a reserved token; the rule strip_brackets removes it"),
    )

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        # A piece takes at most 16 bytes beside its text, and ours is a model of pieces alone. The other thing
        # that a model may hold is a table that rewrites texts before they are cut, from 1,024 bytes on. A
        # hostile one turns a letter into megabytes.
        largest = 1000 + sum(len(token.encode()) + 16 for token in tokens)
        if not 0 < len(model) <= largest:
            raise UserError(f"the sentencepiece model has {len(model):,} bytes; expected 1 to {largest:,}")
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
                for text in check_texts(texts, cls.refused):
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
        return _load_model(model)[1][1:], model

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
    if (config.vocab_size or 0) < smallest:
        return UserError(f"{asked}: expected at least {smallest}, for the characters and reserved tokens")
    if found := re.search(r"value <= (\d+)", str(error)):
        return UserError(f"{asked}: these texts allow only {smallest} to {int(found[1]) + UNK_ID}")
    return UserError(f"sentencepiece cannot train on these texts ({error})")


def _load_model(model: bytes) -> tuple[Any, tuple[str, ...]]:
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = tuple(processor.id_to_piece(id) for id in range(processor.get_piece_size()))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise UserError(f"sentencepiece refuses its model ({error})") from None
    return processor, pieces
