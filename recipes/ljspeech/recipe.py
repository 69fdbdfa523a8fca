"""LJ Speech: one woman reads 13,100 passages of seven non-fiction books, 24 hours.

The publisher has no splits; these are ours.
"""

from __future__ import annotations

from pathlib import Path

from asr.data import read_texts, write_manifest
from asr.errors import UserError
from asr.recipe import Recipe, build_whole, check_counts, find_corpus, share_systems

COUNTS = {"train": 12_600, "dev": 250, "test": 250}
TEXT_RULES = "[strip_invisible, nfc, lowercase, plain_apostrophes, strip_punctuation, collapse_spaces]"


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write test.jsonl (the last 250 IDs), dev.jsonl (the 250 before them) and train.jsonl (all others)."""
    root = find_corpus(corpus_dir, "metadata.csv")
    texts = {}
    for id, cells in read_texts(
        root / "metadata.csv", "|"
    ).items():  # LJ001-0007|in 1455.|in fourteen fifty-five.
        _, separator, texts[id] = cells.partition("|")
        if not separator or not texts[id] or "|" in texts[id]:
            raise UserError(
                f"{root / 'metadata.csv'}: {id}: expected an ID, a text and the text in words, separated by |"
            )
    ids = sorted(texts)
    num_held_out = COUNTS["dev"] + COUNTS["test"]
    splits = {
        "train": ids[:-num_held_out],
        "dev": ids[-num_held_out : -COUNTS["test"]],
        "test": ids[-COUNTS["test"] :],
    }
    check_counts(root, {split: len(found) for split, found in splits.items()}, COUNTS)
    utterances = {
        id: build_whole(root / "wavs" / f"{id}.wav", id=id, text=texts[id], speaker="LJ", language="en")
        for id in ids
    }
    for split, found in splits.items():
        write_manifest(output_dir / f"{split}.jsonl", [utterances[id] for id in found])


RECIPE = Recipe(
    license="public domain, texts and recordings",
    hours=23.9,
    prepare=prepare,
    source="get LJSpeech-1.1.tar.bz2 from https://keithito.com/LJ-Speech-Dataset/ and unpack it",
    systems=share_systems(__file__, f"text.training={TEXT_RULES}", f"text.scoring={TEXT_RULES}"),
)
