"""Sentences as in AN4, spoken by espeak-ng: spelled names, numbers, dates and control words.

Needs no corpus: the recipe makes its own, the same samples on each run. To start the training for AN4 from;
neither its recordings nor its transcripts are read, only its words and kinds of sentences are known.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from asr.data import write_manifest
from asr.recipe import EspeakVoices, Recipe, speak_split

NUM_UTTERANCES = {"train": 5_000, "dev": 200, "test": 200}
# Relative frequency of each kind of sentence.
KINDS = {"spelling": 0.4, "digits": 0.2, "number": 0.1, "code": 0.2, "date": 0.05, "control": 0.05}
# Words separated by spaces.
DIGITS = "ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE"
DIGITS_AND_ZERO = f"ZERO OH {DIGITS}"
TEENS = "TEN ELEVEN TWELVE THIRTEEN FOURTEEN FIFTEEN SIXTEEN SEVENTEEN EIGHTEEN NINETEEN"
TENS = "TWENTY THIRTY FORTY FIFTY SIXTY SEVENTY EIGHTY NINETY"
ORDINALS = "FIRST SECOND THIRD FOURTH FIFTH SIXTH SEVENTH EIGHTH NINTH"
LATER_ORDINALS = (
    "TENTH ELEVENTH TWELFTH THIRTEENTH FOURTEENTH FIFTEENTH SIXTEENTH SEVENTEENTH EIGHTEENTH NINETEENTH "
    "TWENTIETH THIRTIETH"
)
MONTHS = "JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER"
CONTROL = "YES NO GO HELP STOP START REPEAT ERASE RUBOUT ENTER"
NAMES = (
    "ADAMS ALICE ANDREW ANNA BAKER BARBARA BOSTON BRIDGE BROWN CARTER CHARLES CHICAGO CLARK DAVID "
    "DAWSON DENVER DRIVE EDWARD ELLIOTT EVANS FELIX FISHER FOREST FRANK GARDEN GEORGE GREGORY HARVEY HELEN "
    "HILL HOWARD IRENE ISAAC JACKSON JAMES JENNIFER JOSEPH JUDITH KAREN KELLY KENNEDY KEVIN LAKE LAURA "
    "LEWIS LINCOLN LOUISE MARGARET MARTIN MAXWELL MICHAEL MONROE MURPHY NANCY NELSON OLIVER OXFORD PATRICK "
    "PEARSON PHILIP QUEEN QUINCY RACHEL RICHARD RIVER ROGERS RUTH SAMUEL SCHMIDT SQUARE STEPHEN STREET SUSAN "
    "THOMPSON TOWER TYLER VALLEY VICTOR VINCENT WALKER WALTER WEST WILLIAM WRIGHT XAVIER YORK YOUNG ZACHARY "
    "ZIMMERMAN AVENUE ROAD COURT PLACE LANE"
)
LETTERS = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"
RATES = (80, 180)  # words per minute; each letter is one
PAUSES = 0.3  # share of sentences with a pause after each word
# Spellings for words that the synthesizer, or one of its accents, would mispronounce; it reads `ay` as I.
SAID = {"A": "eigh", "Z": "zee", "OH": "oh", "RUBOUT": "rub out"}


def prepare(
    corpus_dir: Path | None, output_dir: Path, num_utterances: dict[str, int] = NUM_UTTERANCES
) -> None:
    """Synthesize speech to audio/ and write train.jsonl, dev.jsonl and test.jsonl."""
    for split, count in num_utterances.items():
        spoken = speak_split(
            split, count, output_dir / "audio" / split, "an4-synthetic", _say, EspeakVoices(RATES)
        )
        write_manifest(output_dir / f"{split}.jsonl", spoken)


def _say(generator: np.random.Generator) -> tuple[list[str], str]:
    """Compose a sentence and its spoken form."""
    words = _say_something(generator)
    pause = ", " if generator.random() < PAUSES else " "
    return words, pause.join(SAID.get(word, word.lower()) for word in words)


def _say_something(generator: np.random.Generator) -> list[str]:
    """Return the words of a sentence, with letters as words."""

    def some(words: str, least: int, most: int) -> list[str]:
        choices = words.split()
        count = generator.integers(least, most, endpoint=True)
        return [choices[generator.integers(len(choices))] for _ in range(count)]

    def below_hundred() -> list[str]:
        return some(TEENS, 1, 1) if generator.random() < 1 / 3 else some(TENS, 1, 1) + some(DIGITS, 0, 1)

    kind = generator.choice(list(KINDS), p=list(KINDS.values()))
    if kind == "spelling":
        is_name = generator.random() < 0.6
        return list("".join(some(NAMES, 1, 2))) if is_name else some(LETTERS, 2, 10)
    if kind == "digits":
        return some(DIGITS_AND_ZERO, 1, 10)
    if kind == "number":
        heads = (below_hundred(), [*some(DIGITS, 1, 1), "HUNDRED"], [*below_hundred(), "THOUSAND"])
        return [*heads[generator.integers(3)], *some("AND", 0, 1), *below_hundred()]
    if kind == "code":
        number = below_hundred() if generator.random() < 0.5 else some(DIGITS_AND_ZERO, 1, 4)
        return [*some("RUBOUT ENTER", 0, 1), *some(LETTERS, 0, 6), *number]
    if kind == "date":
        is_early = generator.random() < 0.6
        day = some("TWENTY", 0, 1) + some(ORDINALS, 1, 1) if is_early else some(LATER_ORDINALS, 1, 1)
        return [*some(MONTHS, 1, 1), *day, "NINETEEN", *below_hundred()]
    return some(CONTROL, 1, 1)


RECIPE = Recipe(
    license="none needed: nobody's recording is in it (espeak-ng itself is under GPL 3)",
    hours=5.0,
    prepare=prepare,
    prepare_smoke=partial(prepare, num_utterances={"train": 32, "dev": 8, "test": 8}),
    synthetic=True,
)
