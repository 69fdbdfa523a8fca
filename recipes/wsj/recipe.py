"""WSJ: people read sentences of the Wall Street Journal; 81 hours to train on (si284), tested on eval92."""

from __future__ import annotations

from pathlib import Path

from asr.data import write_manifest
from asr.errors import UserError
from asr.recipe import WITHOUT_TAGS, Recipe, check_counts, index_wsj, read_wsj, share_systems

SETS = {"train": "train_si284", "train_si84": "train_si84", "dev": "dev93", "test": "eval92"}
COUNTS = {"train": 37_416, "train_si84": 7_138, "dev": 503, "test": 333}


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl (si284), train_si84.jsonl, dev.jsonl (dev93) and test.jsonl (eval92)."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER, with WSJ0 and WSJ1 in it")
    index = index_wsj(corpus_dir, ".wv1")
    sets = {name: list(read_wsj(corpus_dir, index, of)) for name, of in SETS.items()}
    check_counts(corpus_dir, {name: len(utterances) for name, utterances in sets.items()}, COUNTS)
    for name, utterances in sets.items():
        write_manifest(output_dir / f"{name}.jsonl", utterances)


RECIPE = Recipe(
    licence="of the Linguistic Data Consortium",
    hours=82.5,
    prepare=prepare,
    source="license LDC93S6A or B and LDC94S13A or B at https://catalog.ldc.upenn.edu",
    systems=share_systems(__file__, WITHOUT_TAGS),
)
