"""Example sentences of WordNet, spoken by espeak-ng: English of many words, to start a training from.

WordNet shows how its words are used: "WE GOT UP BEFORE DAWN". Of the short ones the recipe makes its own
recordings, the same samples on each run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from asr.data import read_lines, write_manifest
from asr.recipe import EspeakVoices, Recipe, find_corpus, require_count, speak_split

PARTS = ("noun", "verb", "adj", "adv")
NUM_SENTENCES = 35_801  # short sentences in WordNet 3.0
NUM_UTTERANCES = {"dev": 200, "test": 200, "train": 12_000}
NUM_WORDS = (3, 10)
RATES = (90, 190)  # words per minute; slow, as learners speak


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Synthesize speech to audio/ and write train.jsonl, dev.jsonl and test.jsonl with disjoint sentences."""
    root = find_corpus(corpus_dir, "data.noun")
    sentences = {sentence for part in PARTS for sentence in read_sentences(root / f"data.{part}")}
    require_count(root, "sentences of three to ten words", len(sentences), NUM_SENTENCES)
    shuffled = iter(sorted(sentences, key=lambda sentence: hashlib.sha256(sentence.encode()).digest()))

    def say(_generator: np.random.Generator) -> tuple[list[str], str]:
        sentence = next(shuffled)
        return sentence.split(), sentence.lower()

    for split, count in NUM_UTTERANCES.items():
        spoken = speak_split(split, count, output_dir / "audio" / split, "wordnet", say, EspeakVoices(RATES))
        write_manifest(output_dir / f"{split}.jsonl", spoken)


def read_sentences(path: Path) -> Iterator[str]:
    """Read quoted texts, in upper case without punctuation, such as in `02121620 05 n 01 cat | "a cat"`.

    One with a digit, a hyphen or an abbreviation is left out: how it is spoken is not how it is written.
    """
    for _, _, line in read_lines(path):
        if line.startswith(b"  "):  # the license at the top
            continue
        gloss = line.decode("ascii", errors="replace").partition("|")[2]
        for quoted in re.findall(r'"([^"]+)"', gloss):
            words = re.sub(r"[,;.!?]", " ", quoted).upper().split()
            is_short = NUM_WORDS[0] <= len(words) <= NUM_WORDS[1]
            if is_short and all(re.fullmatch(r"[A-Z]+('[A-Z]+)?", word) for word in words):
                yield " ".join(words)


RECIPE = Recipe(
    license="WordNet's: any use, with its notice; nobody's recording is in it (espeak-ng is under GPL 3)",
    hours=9.8,
    prepare=prepare,
    source="get WNdb-3.0.tar.gz of https://wordnet.princeton.edu and unpack it (or Debian's wordnet-base)",
)
