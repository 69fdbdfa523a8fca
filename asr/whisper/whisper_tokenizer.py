"""Whisper's tokens: pieces of UTF-8 by byte-level BPE, then its languages, tasks and times."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import regex

from asr.errors import UserError, suggest

_TABLE = """
en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, pt portuguese,
tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian, id indonesian, hi hindi,
fi finnish, vi vietnamese, he hebrew, uk ukrainian, el greek, ms malay, cs czech, ro romanian, da danish,
hu hungarian, ta tamil, no norwegian, th thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin,
mi maori, ml malayalam, cy welsh, sk slovak, te telugu, fa persian, lv latvian, bn bengali, sr serbian,
az azerbaijani, sl slovenian, kn kannada, et estonian, mk macedonian, br breton, eu basque, is icelandic,
hy armenian, ne nepali, mn mongolian, bs bosnian, kk kazakh, sq albanian, sw swahili, gl galician, mr marathi,
pa punjabi, si sinhala, km khmer, sn shona, yo yoruba, so somali, af afrikaans, oc occitan, ka georgian,
be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic, yi yiddish, lo lao, uz uzbek, fo faroese,
ht haitian creole, ps pashto, tk turkmen, nn nynorsk, mt maltese, sa sanskrit, lb luxembourgish, my myanmar,
bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian, ln lingala, ha hausa, ba bashkir,
jw javanese, su sundanese, yue cantonese
"""

LANGUAGES: dict[str, str] = {}
"""Code to name. The first checkpoints have 99 of them; Cantonese came with large-v3."""
for _entry in _TABLE.replace("\n", " ").split(","):
    _code, _, _name = _entry.strip().partition(" ")
    LANGUAGES[_code] = _name


def find_language(language: str) -> str:
    """The code of a language given by code or name, in any case."""
    wanted = language.strip().lower()
    codes = {name: code for code, name in LANGUAGES.items()} | {code: code for code in LANGUAGES}
    if wanted not in codes:
        others = "give a code such as en, de or zh, or its English name"
        raise UserError(f"language {language!r} is none that Whisper knows; {suggest(wanted, codes, others)}")
    return codes[wanted]


Task = Literal["transcribe", "translate"]

NUM_TIMES = 1501
NUM_TASKS = 6  # <|translate|> to <|notimestamps|>
MAX_CACHED_WORDS = 100_000

# How text falls apart before bytes are merged: short endings, then letters, digits or other signs with the
# space before them, then other spaces. It is part of the vocabulary that OpenAI made for GPT-2.
WORDS = regex.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", regex.VERSION1
)

# Suppressed tokens: brackets, music and the like, which stand for sounds and for who speaks.
_SIGNS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("']
_SIGNS += ["((", "))", "(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"]
_MUSIC = "♩♪♫♬♭♮♯"


@dataclass(frozen=True)
class WhisperTokenizer:
    """The ids of the special tokens follow those of the text in a fixed order."""

    vocabulary: tuple[bytes, ...] = field(repr=False)
    """Bytes of each token of text, by id. A lower id was merged earlier."""
    num_languages: int
    is_multilingual: bool
    """English-only models have the tokens of languages and tasks too, but never learnt them."""

    def __post_init__(self) -> None:
        if missing := [byte for byte in range(256) if bytes([byte]) not in self._ids]:
            raise UserError(f"a vocabulary without the byte {missing[0]}; expected all 256, is it Whisper's?")

    @classmethod
    def of_size(cls, vocabulary: tuple[bytes, ...], vocab_size: int) -> WhisperTokenizer:
        """Tokenizer of a model with so many tokens in all."""
        num_languages = vocab_size - len(vocabulary) - 2 - NUM_TASKS - NUM_TIMES
        expected = 99 if vocab_size <= 51_865 else 100  # Cantonese came with large-v3
        if num_languages != expected:
            raise UserError(
                f"{len(vocabulary):,} tokens of text leave {num_languages} for languages, where this model "
                f"has {expected}; the vocabulary is that of another model (one off: English-only or not)"
            )
        return cls(vocabulary, num_languages, is_multilingual=vocab_size >= 51_865)

    # --- special tokens ---------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """<|endoftext|>, the first id that is no text."""
        return len(self.vocabulary)

    @property
    def start(self) -> int:
        """<|startoftranscript|>"""
        return self.end + 1

    @property
    def languages(self) -> dict[str, int]:
        """Code of a language to its token."""
        codes = list(LANGUAGES)[: self.num_languages]
        return {code: self.start + 1 + index for index, code in enumerate(codes)}

    @property
    def tasks(self) -> dict[Task, int]:
        first = self.start + 1 + self.num_languages
        return {"translate": first, "transcribe": first + 1}

    @property
    def start_of_language_model(self) -> int:
        return self.start + self.num_languages + 3

    @property
    def start_of_previous(self) -> int:
        """The token before the text that came before."""
        return self.start + self.num_languages + 4

    @property
    def no_speech(self) -> int:
        return self.start + self.num_languages + 5

    @property
    def no_times(self) -> int:
        """<|notimestamps|>"""
        return self.start + self.num_languages + 6

    @property
    def first_time(self) -> int:
        """<|0.00|>; each later token is 20 ms later."""
        return self.no_times + 1

    def __len__(self) -> int:
        return self.first_time + NUM_TIMES

    def prompt(
        self, language: str | None = None, task: Task = "transcribe", times: bool = False
    ) -> list[int]:
        """Tokens that the decoder begins with. English-only models take neither a language nor a task."""
        end = [] if times else [self.no_times]
        if not self.is_multilingual:
            require_english(language, task)
            return [self.start, *end]
        if language is None:
            raise UserError("this model knows many languages; name the one that is spoken, such as en")
        code = find_language(language)
        if code not in self.languages:
            raise UserError(f"language {code} has no token in this model; take large-v3 or turbo")
        return [self.start, self.languages[code], self.tasks[task], *end]

    @functools.cached_property
    def suppressed(self) -> list[int]:
        """Tokens that no text may hold: signs of sounds and speakers, and the special ones of a prompt."""
        # A hyphen and a quote may stand in a word, but not before it.
        ids = {self.encode(" -")[0], self.encode(" '")[0]}
        for sign in _SIGNS:
            ids |= {
                encoded[0] for encoded in (self.encode(sign), self.encode(" " + sign)) if len(encoded) == 1
            }
        for sign in _MUSIC:  # the first token, where there are several, stands for no letter
            ids |= {self.encode(sign)[0], self.encode(" " + sign)[0]}
        ids |= {self.start, *self.tasks.values(), self.start_of_language_model, self.start_of_previous}
        return sorted(ids | {self.no_speech})

    # --- text -------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of a text. What looks like a special token is text too."""
        ids: list[int] = []
        for word in WORDS.findall(text):
            try:
                ids += self._encode_word(word.encode())
            except UnicodeEncodeError:
                raise UserError(
                    f"{word!r} holds half of a surrogate pair; write the text anew, as UTF-8"
                ) from None
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens. Bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        ids = list(ids)
        if wrong := [id for id in ids if not 0 <= id < len(self)]:
            raise UserError(f"token id {wrong[0]} is outside of this tokenizer's 0 to {len(self) - 1}")
        return b"".join(self.vocabulary[id] for id in ids if id < self.end)

    @functools.cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token: id for id, token in enumerate(self.vocabulary)}

    @functools.cached_property
    def _encode_word(self) -> functools._lru_cache_wrapper[tuple[int, ...]]:
        return functools.lru_cache(MAX_CACHED_WORDS)(self._merge)

    def _merge(self, word: bytes) -> tuple[int, ...]:
        """Merge the neighbours whose union has the lowest id, until none has an id."""
        if word in self._ids:
            return (self._ids[word],)
        parts = [word[place : place + 1] for place in range(len(word))]
        none = len(self.vocabulary)
        while len(parts) > 1:
            unions = [self._ids.get(left + right, none) for left, right in itertools.pairwise(parts)]
            lowest = min(unions)
            if lowest == none:
                break
            place = unions.index(lowest)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return tuple(self._ids[part] for part in parts)


def require_english(language: str | None, task: Task) -> None:
    """Refuse other languages and tasks for an English-only model."""
    if (language is not None and find_language(language) != "en") or task != "transcribe":
        raise UserError(
            f"language {language}, task {task}: this model knows English, and no translation; "
            "take one without .en in its name"
        )
