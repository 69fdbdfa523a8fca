"""WSJ: people read sentences of the Wall Street Journal; 81 hours to train on (si284), tested on eval92."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.data import Utterance, read_decoded, write_manifest
from asr.data.manifest import shorten
from asr.errors import UserError
from asr.recipe import (
    WITHOUT_TAGS,
    Recipe,
    build_whole,
    check_counts,
    index_wsj,
    normalize_prompt,
    read_prompts,
    share_systems,
)

logger = logging.getLogger(__name__)

SETS = {"train": "train_si284", "train_si84": "train_si84", "dev": "dev93", "test": "eval92"}
INDICES = {
    "train_si84": ("wsj0/doc/indices/train/tr_s_wv1.ndx",),
    "train_si284": ("wsj0/doc/indices/train/tr_s_wv1.ndx", "wsj1/doc/indices/si_tr_s.ndx"),
    "dev93": ("wsj1/doc/indices/h1_p0.ndx",),
    "eval92": ("wsj0/doc/indices/test/nvp/si_et_20.ndx",),
}
COUNTS = {"train": 37_416, "train_si84": 7_138, "dev": 503, "test": 333}


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl (si284), train_si84.jsonl, dev.jsonl (dev93) and test.jsonl (eval92)."""
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER with WSJ0 and WSJ1")
    index = index_wsj(corpus_dir, ".wv1")
    sets = {name: list(_read_set(corpus_dir, index, of)) for name, of in SETS.items()}
    check_counts(corpus_dir, {name: len(utterances) for name, utterances in sets.items()}, COUNTS)
    for name, utterances in sets.items():
        write_manifest(output_dir / f"{name}.jsonl", utterances)


def _read_set(root: Path, index: Mapping[str, Path], name: str) -> Iterator[Utterance]:
    """Build the existing utterances of a set of INDICES, in the order of its index."""
    files = {}
    for key in _read_indices(root, index, name):
        files[Path(key).stem] = (key, index.get(key))
    if missing := [key for key, path in files.values() if path is None]:
        shown = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
        logger.warning("%s: %s lacks %s files: %s", root, name, f"{len(missing):,}", shown)
    there = {id: path for id, (_, path) in files.items() if path is not None}
    texts = read_prompts(root, index, there)
    for id, path in there.items():
        yield build_whole(path, id=id, text=normalize_prompt(texts[id]), speaker=id[:3], language="en")


def _read_indices(root: Path, index: Mapping[str, Path], name: str) -> Iterator[str]:
    for key in INDICES[name]:
        if key not in index:
            raise UserError(f"{root}: {key}, the list of {name}, is missing; is a disc of WSJ missing?")
        for number, line in read_decoded(index[key], "latin-1"):
            if line.startswith(";"):
                continue
            match = re.fullmatch(r"\d+_\d+_\d+\s*:\s*(\S+?)(\.wv1)?", line.lower())
            if match is None:
                raise UserError(
                    f"{index[key]}:{number}: expected a disc and a file, such as "
                    f"11_1_1:wsj0/si_tr_s/01i/01ic0201.wv1, found {shorten(line)}"
                )
            if not match[1].startswith("wsj0/si_tr_s/401/"):  # a withdrawn speaker
                yield f"{match[1].lstrip('/')}.wv1"


RECIPE = Recipe(
    license="of the Linguistic Data Consortium",
    hours=82.5,
    prepare=prepare,
    source="license LDC93S6A or B and LDC94S13A or B at https://catalog.ldc.upenn.edu",
    systems=share_systems(__file__, WITHOUT_TAGS),
)
