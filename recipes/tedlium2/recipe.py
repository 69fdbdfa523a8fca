"""TED-LIUM, release 2: English talks, 207 hours, cut into segments."""

from __future__ import annotations

from pathlib import Path

from asr.recipe import (
    Recipe,
    download as download_archive,
    extract,
    find_corpus,
    prepare_talks,
    share_systems,
)

URLS = (
    "https://www.openslr.org/resources/19/TEDLIUM_release2.tar.gz",
    "https://openslr.elda.org/resources/19/TEDLIUM_release2.tar.gz",
)
MAX_ARCHIVE_BYTES = 60_000_000_000

NUM_TALKS = {"train": 1_495, "dev": 8, "test": 11}
NUM_UTTERANCES = {"dev": 507, "test": 1_155}


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive; returns the folder of the corpus."""
    archive = target_dir / "TEDLIUM_release2.tar.gz"
    download_archive(URLS, archive, None, max_bytes=MAX_ARCHIVE_BYTES)  # the publisher names no SHA-256
    extract(archive, target_dir / "tedlium2", max_bytes=MAX_ARCHIVE_BYTES)
    return target_dir / "tedlium2"


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl; the audio stays."""
    prepare_talks(find_corpus(corpus_dir, "test/stm"), output_dir, NUM_TALKS, NUM_UTTERANCES)


RECIPE = Recipe(
    licence="CC BY-NC-ND 3.0 (openslr.org/19)",
    hours=207.0,
    prepare=prepare,
    urls=URLS,
    download=download,
    systems=share_systems(__file__, "tokenizer.type=bpe", "tokenizer.vocab_size=500"),
)
