"""LibriSpeech: 960 hours of read English audiobooks, by 2,484 readers.

Prepares whatever folders of it are there. With all of them train is the 960 hours; dev and test are clean and
other together, and each by itself too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from asr.data import REST, Utterance, assign_units, read_texts, write_manifest
from asr.errors import UserError
from asr.recipe import (
    Recipe,
    build_whole,
    check_counts,
    download as download_archive,
    extract,
    find_files,
    share_systems,
    warn_of_shortfall,
)

logger = logging.getLogger(__name__)

COUNTS = {
    "train-clean-100": 28_539,
    "train-clean-360": 104_014,
    "train-other-500": 148_688,
    "dev-clean": 2_703,
    "dev-other": 2_864,
    "test-clean": 2_620,
    "test-other": 2_939,
}
URLS = tuple(f"https://www.openslr.org/resources/12/{part}.tar.gz" for part in COUNTS)
MAX_ARCHIVE_BYTES = 40_000_000_000

Line = tuple[Path, str, str]  # audio, ID and text


def download(target_dir: Path) -> Path:
    """Fetch and unpack all parts, 60 GB; return their parent folder."""
    for url in URLS:
        name = url.rpartition("/")[2]
        download_archive((url,), target_dir / name, None, max_bytes=MAX_ARCHIVE_BYTES)
        extract(target_dir / name, target_dir / name.removesuffix(".tar.gz"), max_bytes=MAX_ARCHIVE_BYTES)
    return target_dir


def prepare(corpus_dir: Path | None, output_dir: Path) -> None:
    """Write train.jsonl, dev.jsonl, test.jsonl, and one manifest for each part of dev and test.

    Transcripts are read twice, to count and to write: memory holds a line at a time.
    """
    if corpus_dir is None:
        raise UserError("pass --corpus-dir FOLDER: LibriSpeech, or any of its parts such as dev-clean")
    parts = _find_parts(corpus_dir)
    readers = {name: Counter(_reader(id) for _, id, _ in _read_part(path)) for name, path in parts.items()}
    counts = {name: own.total() for name, own in readers.items()}
    check_counts(corpus_dir, counts, {name: COUNTS[name] for name in parts})
    roles = {role: [name for name in parts if name.startswith(role)] for role in ("train", "dev", "test")}
    for role, names in roles.items():
        logger.info("%s: %s", role, ", ".join(f"{n} ({counts[n]:,} utterances)" for n in names) or "nothing")
    if missing := [name for name in COUNTS if name not in parts]:
        warn_of_shortfall(corpus_dir, f"without {', '.join(missing)}")
    largest, role_of = _share_readers(
        {role: sum((readers[name] for name in names), Counter()) for role, names in roles.items()}
    )
    for role, names in roles.items():
        is_shared = role_of and (role == largest or not names)
        manifests = {role: roles[largest] if is_shared else names}
        if role != "train":
            manifests |= {name.replace("-", "_"): [name] for name in names}
        for manifest, sources in manifests.items():
            lines = (line for name in sources for line in _read_part(parts[name]))
            if is_shared:  # readers of train must not occur in dev or test
                lines = (line for line in lines if role_of[_reader(line[1])] == role)
            write_manifest(output_dir / f"{manifest}.jsonl", map(_build_utterance, lines))


def _find_parts(corpus_dir: Path) -> dict[str, Path]:
    """Find the folders of the parts: the given one, or folders up to three levels below."""
    if corpus_dir.name in COUNTS:
        return {corpus_dir.name: corpus_dir}
    found = {}
    for name in COUNTS:
        folders = [f for depth in ("", "*/", "*/*/") for f in corpus_dir.glob(depth + name) if _is_part(f)]
        if len(folders) > 1:
            raise UserError(f"{corpus_dir}: found {name} twice, as {folders[0]} and {folders[1]}; remove one")
        if folders:
            found[name] = folders[0]
    if not found:
        raise UserError(
            f"{corpus_dir}: contains none of {', '.join(COUNTS)}; expected such a folder with "
            "READER/CHAPTER/READER-CHAPTER.trans.txt in it. Unpack the archives, and pass the folder above"
        )
    return found


def _is_part(folder: Path) -> bool:
    return next(folder.glob("*/*/*.trans.txt"), None) is not None


def _read_part(folder: Path) -> Iterator[Line]:
    for path in find_files(folder, ".trans.txt"):
        for id, text in read_texts(path).items():
            yield path.parent / f"{id}.flac", id, text


def _share_readers(readers: dict[str, Counter[str]]) -> tuple[str, dict[str, str]]:
    """Reassign readers of the largest split to splits that have no part.

    Returns that split, and which split each of its readers goes to; no reader where no split is empty.
    """
    largest = max(readers, key=lambda role: readers[role].total())
    empty = [role for role, own in readers.items() if not own]
    if not empty:
        return largest, {}
    shares: dict[str, float | int | str] = {
        role: REST if role == "train" else 0.1 for role in readers if role in (*empty, largest)
    }
    if len(shares) > len(readers[largest]):
        raise UserError(
            f"{len(readers[largest])} readers cannot fill {', '.join(shares)}; add parts of LibriSpeech"
        )
    logger.warning(
        "no part for %s: the readers of %s are shared out, a tenth of its utterances to each of dev and test",
        " and ".join(empty),
        largest,
    )
    return largest, assign_units(readers[largest], shares, seed=0)


def _reader(id: str) -> str:
    return id.partition("-")[0]


def _build_utterance(line: Line) -> Utterance:
    audio, id, text = line
    reader = _reader(id)
    part = audio.parents[2].name
    return build_whole(audio, id=id, text=text, speaker=reader, language="en", extras={"part": part})


RECIPE = Recipe(
    license="CC BY 4.0 (openslr.org/12)",
    hours=982.0,
    prepare=prepare,
    urls=URLS,
    download=download,
    download_mb=60_000,
    systems=share_systems(
        __file__,
        "tokenizer.type=bpe",
        "tokenizer.vocab_size=5000",
        "batches.max_utterance_seconds=30",
        sizes=(  # larger models, as in the published comparison
            "model.encoder.dim=512",
            "model.encoder.num_heads=8",
            "model.decoder.dim=512",
            "model.decoder.num_heads=8",
        ),
    ),
)
