"""Strings of one to seven English digits by espeak-ng: 68 voices, in rooms with noise.

Needs no corpus: the recipe makes its own, the same samples on each run. The 12 voices of test and the 8 of
dev have other timbres than the 48 of train, in the same accents.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from asr.audio import write
from asr.manifest import Utterance, write_manifest
from asr.synthetic_speech import SAMPLE_RATE, choose_voice, record

LICENCE = "none needed: nobody's recording is in it (espeak-ng itself is under GPL 3)"
HOURS = 0.98
URLS = ()

WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
NUM_UTTERANCES = {"train": 1_500, "dev": 200, "test": 200}
SMOKE = {"NUM_UTTERANCES": {"train": 32, "dev": 8, "test": 8}}
STRING_LENGTHS = (1, 7)  # digits, least and most


def download(target_dir: Path) -> Path:
    """Nothing to fetch."""
    return target_dir


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Speak into audio/ and write train.jsonl, dev.jsonl and test.jsonl."""
    for split in NUM_UTTERANCES:
        write_manifest(output_dir / f"{split}.jsonl", _speak_split(split, output_dir / "audio" / split))


def _speak_split(split: str, folder: Path) -> Iterator[Utterance]:
    folder.mkdir(parents=True, exist_ok=True)
    for index in tqdm(range(NUM_UTTERANCES[split]), desc=split, disable=None, leave=False):
        # A generator for each utterance: its samples depend on nothing before it.
        generator = np.random.default_rng([index, *split.encode()])
        voice = choose_voice(split, generator)
        length = generator.integers(*STRING_LENGTHS, endpoint=True)
        words = [WORDS[digit] for digit in generator.integers(len(WORDS), size=length)]
        audio = record(" ".join(words).lower(), voice, generator)
        path = folder / f"digits-{split}-{index:04d}.wav"
        write(path, audio, SAMPLE_RATE)
        yield Utterance(
            id=path.stem,
            audio=str(path),
            duration=len(audio) / SAMPLE_RATE,
            text=" ".join(words),
            speaker=voice,
            language="en",
        )
