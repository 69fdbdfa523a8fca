"""TED-LIUM, release 3: English talks, 452 hours, cut into segments; dev and test as in release 2."""

from __future__ import annotations

from pathlib import Path

from asr.recipe import Recipe, find_corpus, load_recipe, share_systems

NUM_TALKS = {"train": 2_351, "dev": 8, "test": 11}
NUM_UTTERANCES = {"train": 268_263, "dev": 507, "test": 1_155}


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl from `legacy`, with dev and test of release 2."""
    root = find_corpus(corpus_dir, "legacy/test/stm")
    tedlium2 = load_recipe("tedlium2", Path(__file__).absolute().parents[1])
    tedlium2.prepare(root / "legacy", output_dir, num_talks=NUM_TALKS, num_utterances=NUM_UTTERANCES)


RECIPE = Recipe(
    license="CC BY-NC-ND 3.0 (openslr.org/51)",
    hours=452.0,
    prepare=prepare,
    # No download: legacy/train has symbolic links, which untrusted archives may not contain.
    source="unpack https://www.openslr.org/resources/51/TEDLIUM_release-3.tgz with tar, 50 GB",
    systems=share_systems(__file__, "tokenizer.type=bpe", "tokenizer.vocab_size=500"),
)
