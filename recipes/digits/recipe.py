"""Strings of one to seven English digits by espeak-ng: 68 voices, in rooms with noise.

Needs no corpus: the recipe makes its own, the same samples on each run. The 12 voices of test and the 8 of
dev have other timbres than the 48 of train, in the same accents.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from asr.data import write_manifest
from asr.recipe import EspeakVoices, Recipe, speak_split

WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
NUM_UTTERANCES = {"train": 1_500, "dev": 200, "test": 200}
STRING_LENGTHS = (1, 7)  # fewest and most digits


def prepare(
    corpus_dir: Path | None, output_dir: Path, num_utterances: dict[str, int] = NUM_UTTERANCES
) -> None:
    """Synthesize speech to audio/ and write train.jsonl, dev.jsonl and test.jsonl."""
    for split, count in num_utterances.items():
        spoken = speak_split(split, count, output_dir / "audio" / split, "digits", _say, EspeakVoices())
        write_manifest(output_dir / f"{split}.jsonl", spoken)


def _say(generator: np.random.Generator) -> tuple[list[str], str]:
    """Compose digits and their spoken form."""
    length = generator.integers(*STRING_LENGTHS, endpoint=True)
    words = [WORDS[digit] for digit in generator.integers(len(WORDS), size=length)]
    return words, " ".join(words).lower()


RECIPE = Recipe(
    license="none needed: nobody's recording is in it (espeak-ng itself is under GPL 3)",
    hours=0.98,
    has_results=True,
    prepare=prepare,
    prepare_smoke=partial(prepare, num_utterances={"train": 32, "dev": 8, "test": 8}),
    synthetic=True,
)
