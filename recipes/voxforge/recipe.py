"""VoxForge, Italian: sentences that volunteers have read into their own microphones, some 20 hours.

The split is ours, by the text: no sentence is in two of train, dev and test, but speakers are.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from asr.data import Utterance, read_lines, write_manifest
from asr.errors import UserError
from asr.recipe import (
    Recipe,
    build_whole,
    download as download_archive,
    extract,
    find_files,
    require_unpacked,
    share_systems,
)

logger = logging.getLogger(__name__)

LANGUAGE = "it"
URLS = (f"http://www.repository.voxforge1.org/downloads/{LANGUAGE}/Trunk/Audio/Main/16kHz_16bit/",)
MAX_BYTES = 1_000_000_000  # per archive, which is one visit of a speaker


def download(target_dir: Path) -> Path:
    """Fetch and unpack every archive in the publisher's current list; return their folder."""
    index = target_dir / "index.html"
    download_archive(URLS, index, None, max_bytes=MAX_BYTES)
    for name in sorted(set(re.findall(r'href="([\w.-]+)\.tgz"', index.read_text(errors="replace")))):
        archive = target_dir / "tgz" / f"{name}.tgz"
        download_archive((f"{URLS[0]}{name}.tgz",), archive, None, max_bytes=MAX_BYTES)
        extract(archive, target_dir / "extracted" / name, max_bytes=MAX_BYTES)
    return target_dir


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl; unusable utterances are counted and left out."""
    if corpus_dir is None or not corpus_dir.is_dir():
        raise UserError(f"{corpus_dir}: --corpus-dir must be a folder with folders such as ana-20080725-dey")
    require_unpacked(corpus_dir)
    dropped: Counter[str] = Counter()
    splits = defaultdict(list)
    for path in find_files(corpus_dir, "prompts"):  # ana-20080725-dey/etc/PROMPTS
        folder = path.parents[1]
        if path.parent.name != "etc" or not re.fullmatch(r"[^-]+-\d{8,10}.*", folder.name):
            continue
        if not (path.parent / "README").exists():
            dropped["folders without etc/README"] += 1
            continue
        for utterance in _read_folder(folder, dropped):
            splits[_choose_split(utterance.text or "")].append(utterance)
    for reason, count in sorted(dropped.items()):
        logger.warning("%s: left out %s %s", corpus_dir, f"{count:,}", reason)
    if missing := {"train", "dev", "test"} - splits.keys():
        raise UserError(
            f"{corpus_dir}: no utterance for {', '.join(sorted(missing))}; expected folders such as "
            "ana-20080725-dey with etc/PROMPTS, etc/README and wav or flac"
        )
    for split, utterances in splits.items():
        write_manifest(output_dir / f"{split}.jsonl", utterances)


def _read_folder(folder: Path, dropped: Counter[str]) -> Iterator[Utterance]:
    name, _, _ = folder.name.partition("-")
    for _, _, raw in read_lines(folder / "etc" / "PROMPTS"):
        try:
            line = raw.decode()
        except UnicodeDecodeError:
            line = raw.decode("cp1252", "replace")
        key, _, text = line.strip().partition(" ")
        text = " ".join(text.replace("-", " ").upper().split())
        stem = key.rpartition("/")[2]
        if not text or not all(character.isalnum() or character in "' " for character in text):
            dropped["texts with other than letters, digits and apostrophes"] += 1
            continue
        candidates = (folder / kind / f"{stem}.{kind}" for kind in ("wav", "flac"))
        audio = next((path for path in candidates if path.exists()), None)
        if audio is None or not audio.stat().st_size:
            dropped["lines whose audio is missing or empty"] += 1
            continue
        try:
            yield build_whole(
                audio,
                id=f"{folder.name}_{stem}",
                text=text,
                speaker=folder.name if name.lower() == "anonymous" else name,
                language=LANGUAGE,
            )
        except UserError as error:
            logger.warning("%s", error)
            dropped["lines whose audio cannot be read"] += 1


def _choose_split(text: str) -> str:
    """Assign a tenth of the texts each to dev and test, by the SHA-256 of the text."""
    share = hashlib.sha256(text.encode()).digest()[0] / 256
    return "dev" if share < 0.1 else "test" if share < 0.2 else "train"


RECIPE = Recipe(
    license="GNU GPL version 3 (voxforge.org)",
    hours=20.0,
    prepare=prepare,
    urls=URLS,
    download=download,
    chosen_by="cer",
    systems=share_systems(__file__, "train.select_by=cer"),
)
