"""AISHELL-1: 400 people read Mandarin into a microphone in a quiet room, 178 hours.

Texts come without the blanks between words: error rates count characters.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from asr.data import read_texts, write_manifest
from asr.recipe import (
    Recipe,
    build_read,
    check_counts,
    download as download_archive,
    extract,
    find_corpus,
    find_files,
    require_unpacked,
    share_systems,
    unpack_inner,
)

URLS = (
    "https://www.openslr.org/resources/33/data_aishell.tgz",
    "https://openslr.elda.org/resources/33/data_aishell.tgz",
)
MAX_ARCHIVE_BYTES = 15_582_913_665  # as published
MAX_CORPUS_BYTES = 40_000_000_000

COUNTS = {"train": 120_098, "dev": 14_326, "test": 7_176}
TRANSCRIPT = "transcript/aishell_transcript_v0.8.txt"


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive and its speaker archives; return the corpus folder."""
    archive = target_dir / "data_aishell.tgz"
    download_archive(URLS, archive, None, max_bytes=MAX_ARCHIVE_BYTES)  # the publisher gives no SHA-256
    extract(archive, target_dir / "aishell", max_bytes=MAX_CORPUS_BYTES)
    unpack_inner(target_dir / "aishell", MAX_CORPUS_BYTES)
    return target_dir / "aishell"


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl; 325 recordings without a transcript are left out."""
    root = find_corpus(corpus_dir, TRANSCRIPT)
    require_unpacked(root / "wav")
    texts = {id: "".join(text.split()) for id, text in read_texts(root / TRANSCRIPT).items()}
    found = defaultdict(list)
    for path in find_files(root / "wav", ".wav"):  # wav/train/S0002/BAC009S0002W0122.wav
        if path.stem in texts:
            found[path.parents[1].name].append(path)
    check_counts(root, {split: len(paths) for split, paths in found.items()}, COUNTS)
    for split in COUNTS:
        write_manifest(output_dir / f"{split}.jsonl", build_read(found[split], texts, "zh"))


RECIPE = Recipe(
    license="Apache 2.0, as far as known (openslr.org/33)",
    hours=178.0,
    prepare=prepare,
    urls=URLS,
    download=download,
    download_mb=15_583,
    chosen_by="cer",
    systems=share_systems(__file__, "train.select_by=cer"),
)
