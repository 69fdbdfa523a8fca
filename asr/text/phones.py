"""Words as phones, by a pronunciation dictionary: units for spellings that hide how words sound."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Mapping

from asr.errors import UserError
from asr.files import read_limited
from asr.text.units import UNK_ID, UNKNOWN_MARK, TokenizerConfig, Units, Words, check_texts

SPACE = " "
MAX_DICTIONARY_BYTES = 20_000_000  # CMUdict has 4 MB
_COMMENT = re.compile(r"\A;;;.*|\s#.*")  # of CMUdict's two formats
_VARIANT = re.compile(r"\(\d+\)\Z")  # CMUdict: READ(2)
_STRESSED = re.compile(r"\A([A-Z]{2})[0-2]\Z")  # ARPAbet's vowels: AH0; a1 is a tone
_PHONE = re.compile(r"[^\s<>#/]+")
_NUMBER = re.compile(r"[\d.eE+-]*\d[\d.eE+-]*")

_OTHERS = b";;; not in the training texts\n"  # in a model, between its words

Spelling = tuple[str, ...]


class Phones(Units):
    """The phones of each word, and the space between words.

    Words that sound alike differ in a mark at their end, #1 for the second most frequent of the training
    texts and so on: so each spelling is one word, n-grams tell TWO from TOO, and no search needs to know of
    pronunciations.
    """

    def __init__(self, tokens: tuple[str, ...], model: bytes):
        super().__init__(tokens, model)
        if SPACE not in self._ids:
            raise UserError("a tokenizer of phones has a space among its tokens, and this one has none")
        self._spellings = _mark_homophones(_parse_dictionary(model, "the tokenizer"))
        self._words = {spelling: word for word, spelling in self._spellings.items()}

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> tuple[tuple[str, ...], bytes]:
        """Take the phones of the texts' words, and all of the dictionary, the most frequent words first."""
        assert config.pronunciations is not None
        path = config.pronunciations
        dictionary = read_dictionary(path)
        counts: collections.Counter[str] = collections.Counter()
        for text in check_texts(texts, Words.refused):
            counts.update(text.split())
        if missing := sorted(counts.keys() - dictionary.keys()):
            raise UserError(
                f"{path}: no pronunciation of {len(missing):,} words of the training texts, {missing[0]!r} "
                "for one; expected for each a line WORD PHONE PHONE, and texts in the case of the dictionary"
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
        """The words; phones that are no word of the dictionary stand between slashes."""
        groups = itertools.groupby(tokens, lambda token: token == SPACE)
        return " ".join(self._name(tuple(group)) for is_space, group in groups if not is_space)

    def find_unknown(self, text: str) -> list[str]:
        return [word for word in dict.fromkeys(text.split()) if UNK_ID in self.encode(word)]

    def _name(self, spelling: Spelling) -> str:
        if spelling == (UNKNOWN_MARK,):
            return UNKNOWN_MARK
        return self._words.get(spelling) or f"/{'-'.join(spelling)}/"


def read_dictionary(path: str) -> dict[str, Spelling]:
    """The first pronunciation of each word of a file in the format of CMUdict and Kaldi, without stress.

    Each line has a word and its phones; further pronunciations of a word, `READ(2)` or simply on further
    lines, are not used.
    """
    content = read_limited(path, MAX_DICTIONARY_BYTES, "which a pronunciation dictionary never has")
    return _parse_dictionary(content, path)


def add_words(model: bytes, other: bytes) -> bytes:
    """Add the words of another model behind those of the texts of the first, which keep their spelling."""
    learnt = model.partition(_OTHERS)[0]
    known = {line.partition(b" ")[0] for line in learnt.splitlines()}
    lines = other.splitlines(keepends=True)
    return learnt + b"".join(line for line in lines if line.partition(b" ")[0] not in known)


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
                "without probabilities and without <, >, # and / in phones"
            )
        dictionary.setdefault(_VARIANT.sub("", word), tuple(_STRESSED.sub(r"\1", phone) for phone in phones))
    if not dictionary:
        raise UserError(f"{source}: no pronunciations; expected lines of the form WORD PHONE PHONE")
    return dictionary


def _mark_homophones(dictionary: Mapping[str, Spelling]) -> dict[str, Spelling]:
    """Add marks that tell words apart that sound alike: the first stays as it is."""
    counts: collections.Counter[Spelling] = collections.Counter()
    marked = {}
    for word, phones in dictionary.items():
        marked[word] = phones if not counts[phones] else (*phones, f"#{counts[phones]}")
        counts[phones] += 1
    return marked
