"""TED-LIUM, release 3: English talks, 452 hours, cut into segments; dev and test are those of release 2."""

from __future__ import annotations

from pathlib import Path

from asr.recipe import Recipe, find_corpus, load_recipe, share_systems

NUM_TALKS = {"train": 2_351, "dev": 8, "test": 11}
NUM_UTTERANCES = {"train": 268_263, "dev": 507, "test": 1_155}


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl of `legacy`, whose dev and test are those of release 2."""
    root = find_corpus(corpus_dir, "legacy/test/stm")
    tedlium2 = load_recipe("tedlium2", Path(__file__).absolute().parents[1])
    tedlium2.prepare(root / "legacy", output_dir, num_talks=NUM_TALKS, num_utterances=NUM_UTTERANCES)


RECIPE = Recipe(
    license="CC BY-NC-ND 3.0 (openslr.org/51)",
    hours=452.0,
    prepare=prepare,
    # Not downloaded here: legacy/train is made of symbolic links, which archives of strangers may not bring.
    source="unpack https://www.openslr.org/resources/51/TEDLIUM_release-3.tgz with tar, 50 GB",
    systems=share_systems(__file__, "tokenizer.type=bpe", "tokenizer.vocab_size=500"),
)
