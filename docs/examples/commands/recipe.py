"""Spoken commands: recordings of our own, listed in texts.csv, as docs/extend.md describes.

There is nothing to download: the folder comes by --corpus-dir.
"""

from __future__ import annotations

from pathlib import Path

from asr.data import write_manifest
from asr.formats.foreign_manifests import read_utterances
from asr.recipe import Recipe, find_corpus

SPEAKERS = {"dev": {"en-us+f4"}, "test": {"en-us+m4", "en-us+f1"}}  # all others are in train


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl, with no speaker in two of them."""
    utterances = list(read_utterances(find_corpus(corpus_dir, "texts.csv") / "texts.csv", "csv"))
    held_out = set().union(*SPEAKERS.values())
    write_manifest(output_dir / "train.jsonl", [u for u in utterances if u.speaker not in held_out])
    for split, speakers in SPEAKERS.items():
        write_manifest(output_dir / f"{split}.jsonl", [u for u in utterances if u.speaker in speakers])


RECIPE = Recipe(license="ours, not to be passed on", hours=0.06, prepare=prepare)
