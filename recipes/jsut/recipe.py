"""JSUT: one woman reads 7,696 Japanese sentences in a studio, 10 hours.

The publisher has no splits; these are ESPnet's. Its error rates are of characters, punctuation included.
"""

from __future__ import annotations

from pathlib import Path

from asr.data import read_texts, write_manifest
from asr.recipe import (
    Recipe,
    build_whole,
    check_counts,
    download as download_archive,
    extract,
    find_corpus,
    share_systems,
)

URLS = ("http://ss-takashi.sakura.ne.jp/corpus/jsut_ver1.1.zip",)
MAX_ARCHIVE_BYTES = 4_000_000_000
MAX_CORPUS_BYTES = 6_000_000_000

COUNTS = {"train": 7_196, "dev": 250, "test": 250}


def download(target_dir: Path) -> Path:
    """Fetch and unpack the archive; return the corpus folder."""
    archive = target_dir / "jsut_ver1.1.zip"
    download_archive(URLS, archive, None, max_bytes=MAX_ARCHIVE_BYTES)  # the publisher gives no checksum
    extract(archive, target_dir / "jsut", max_bytes=MAX_CORPUS_BYTES)
    return target_dir / "jsut"


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write test.jsonl (the first 250 IDs), dev.jsonl (the next 250) and train.jsonl (all others)."""
    root = find_corpus(corpus_dir, "basic5000/transcript_utf8.txt")
    lines = {}
    for path in sorted(root.glob("*/transcript_utf8.txt")):
        for id, text in read_texts(path, ":").items():  # BASIC5000_0001:駅前で友だちを待っています。
            lines[id] = (path.parent / "wav" / f"{id}.wav", text)
    ids = sorted(lines)
    num_test, num_dev = COUNTS["test"], COUNTS["dev"]
    splits = {
        "test": ids[:num_test],
        "dev": ids[num_test : num_test + num_dev],
        "train": ids[num_test + num_dev :],
    }
    check_counts(root, {split: len(found) for split, found in splits.items()}, COUNTS)
    for split, found in splits.items():
        utterances = (
            build_whole(lines[id][0], id=id, text=lines[id][1], speaker="JS", language="ja") for id in found
        )
        write_manifest(output_dir / f"{split}.jsonl", utterances)


RECIPE = Recipe(
    license="free for research, the texts by CC BY-SA 4.0, as far as known; see LICENCE in the corpus",
    hours=10.0,
    prepare=prepare,
    urls=URLS,
    download=download,
    chosen_by="cer",
    systems=share_systems(__file__, "train.select_by=cer"),
)
