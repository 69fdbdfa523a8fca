"""One man says yes or no in Hebrew, eight times in each of 60 files.

Recorded for the Kaldi project, so that its scripts can be tried in a minute; 8 kHz.
"""

from __future__ import annotations

import re
from pathlib import Path

from asr.audio import read_info
from asr.data import Utterance, write_manifest
from asr.recipe import (
    Recipe,
    download as download_archive,
    extract,
    find_corpus,
    require_count,
    require_fingerprint,
)

URLS = ("http://www.openslr.org/resources/1/waves_yesno.tar.gz",)
SHA256 = "c3f49e0cca421f96b75b41640749167b52118f232498667ca7a5f9416aef8e73"
MAX_ARCHIVE_BYTES = 20_000_000
MAX_CORPUS_BYTES = 40_000_000

SAMPLE_RATE = 8_000
NUM_FILES = 60
FINGERPRINT = "3f71eca45bd576948e260f106ddf6b46d50190b12ba432110063fbe29c31d5e0"
WORDS = {"0": "NO", "1": "YES"}


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive; return the corpus folder."""
    archive = target_dir / "waves_yesno.tar.gz"
    download_archive(URLS, archive, SHA256, max_bytes=MAX_ARCHIVE_BYTES)
    extract(archive, target_dir / "yesno", max_bytes=MAX_CORPUS_BYTES)
    return target_dir / "yesno"


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl; the audio stays where it is."""
    root = find_corpus(corpus_dir, "waves_yesno")
    paths = sorted(
        p for p in (root / "waves_yesno").iterdir() if re.fullmatch(r"[01](_[01]){7}\.wav", p.name)
    )
    require_count(
        root, "files named after eight words, such as waves_yesno/0_1_0_1_1_1_0_0.wav,", len(paths), NUM_FILES
    )
    require_fingerprint(root, [f"waves_yesno/{path.name}" for path in paths], SAMPLE_RATE, FINGERPRINT)
    utterances = [_build_utterance(path) for path in paths]
    rest = utterances[::2]
    write_manifest(output_dir / "train.jsonl", [u for i, u in enumerate(rest) if i % 5 != 4])
    write_manifest(output_dir / "dev.jsonl", rest[4::5])
    write_manifest(output_dir / "test.jsonl", utterances[1::2])


def _build_utterance(path: Path) -> Utterance:
    return Utterance(
        id=path.stem,
        audio=str(path),
        duration=read_info(path).seconds,
        text=" ".join(WORDS[digit] for digit in path.stem.split("_")),
        speaker="yesno",
        language="he",
    )


RECIPE = Recipe(
    license="not stated in the archive; see https://www.openslr.org/1/",
    hours=0.10,
    has_results=True,
    prepare=prepare,
    urls=URLS,
    download=download,
    download_mb=5,
)
