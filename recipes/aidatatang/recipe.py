"""Aidatatang_200zh: 600 people read Mandarin into telephones in quiet rooms, 200 hours.

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
    "https://www.openslr.org/resources/62/aidatatang_200zh.tgz",
    "https://openslr.elda.org/resources/62/aidatatang_200zh.tgz",
)
MAX_ARCHIVE_BYTES = 18_756_983_399  # as published
MAX_CORPUS_BYTES = 60_000_000_000

COUNTS = {"train": 164_905, "dev": 24_216, "test": 48_144}
TRANSCRIPT = "transcript/aidatatang_200_zh_transcript.txt"


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive and its speaker archives; return the corpus folder."""
    archive = target_dir / "aidatatang_200zh.tgz"
    download_archive(URLS, archive, None, max_bytes=MAX_ARCHIVE_BYTES)  # the publisher gives no SHA-256
    extract(archive, target_dir / "aidatatang", max_bytes=MAX_CORPUS_BYTES)
    unpack_inner(target_dir / "aidatatang", MAX_CORPUS_BYTES)
    return target_dir / "aidatatang"


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl; recordings without a transcript are left out."""
    root = find_corpus(corpus_dir, TRANSCRIPT)
    require_unpacked(root / "corpus")
    texts = {id: "".join(text.split()) for id, text in read_texts(root / TRANSCRIPT).items()}
    found = defaultdict(list)
    for path in find_files(root / "corpus", ".wav"):  # corpus/train/G0013/T0055G0013S0001.wav
        if path.stem in texts:
            found[path.relative_to(root / "corpus").parts[0]].append(path)
    check_counts(root, {split: len(paths) for split, paths in found.items()}, COUNTS)
    for split in COUNTS:
        write_manifest(output_dir / f"{split}.jsonl", build_read(found[split], texts, "zh"))


RECIPE = Recipe(
    license="CC BY-NC-ND 4.0 (openslr.org/62)",
    hours=200.0,
    prepare=prepare,
    urls=URLS,
    download=download,
    download_mb=18_757,
    chosen_by="cer",
    systems=share_systems(__file__, "train.select_by=cer"),
)
