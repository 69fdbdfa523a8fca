"""A corpus as its publisher lays it out: find its folder, check that nothing is missing or altered."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from asr.audio.reading import read
from asr.errors import UserError

_MAX_LISTED = 8


def find_corpus(corpus_dir: Path | None, landmark: str) -> Path:
    """The folder that holds `landmark`: the given one, the only such one directly inside, or its parent."""
    if corpus_dir is None:
        raise UserError("this corpus is not made here; pass --corpus-dir FOLDER, or download it first")
    if corpus_dir.is_file():
        raise UserError(f"{corpus_dir}: a file; unpack it and pass the folder as --corpus-dir")
    try:
        inner = sorted(path for path in corpus_dir.iterdir() if path.is_dir())
    except OSError as error:
        raise UserError(f"{corpus_dir}: cannot read this folder of a corpus ({error.strerror})") from None
    if (corpus_dir / landmark).exists():
        return corpus_dir
    found = [path for path in inner if (path / landmark).exists()]
    if len(found) > 1:
        raise UserError(
            f"{corpus_dir}: {_list(path.name for path in found)} each hold {landmark}; "
            "pass the one that is meant as --corpus-dir"
        )
    parent = Path(os.path.abspath(corpus_dir)).parent
    if not found and (parent / landmark).exists():
        return parent
    if not found:
        raise UserError(
            f"{corpus_dir}: {landmark} is neither here nor in a folder directly inside; found "
            f"{_list(os.listdir(corpus_dir))}. --corpus-dir must point at the folder that contains {landmark}"
        )
    return found[0]


def require_count(folder: Path, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise UserError(
            f"{folder}: found {found:,} {what}, expected {expected:,}: a part of the corpus, or another "
            "version of it; get a complete copy and pass its folder as --corpus-dir"
        )


def require_fingerprint(folder: Path, names: Iterable[str], sample_rate: int, expected: str) -> None:
    """Check that the audio files `names` below `folder` hold exactly the published samples."""
    names = sorted(names)
    found = compute_fingerprint(folder, names, sample_rate)
    if found != expected:
        raise UserError(
            f"{folder}: the content of its {len(names):,} audio files differs from the published corpus "
            f"(fingerprint {found[:16]}, expected {expected[:16]}): a sample, a name or the length of at "
            "least one file is another; get an unaltered copy and pass its folder as --corpus-dir"
        )


def compute_fingerprint(folder: Path, names: Iterable[str], sample_rate: int) -> str:
    """SHA-256 over the sorted names, each with the SHA-256 of its 16-bit samples.

    Archives are packed anew now and then, with other bytes around the same content; this stays the same.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        audio = read(folder / name, sample_rate, allow_silence=True)
        samples = np.rint(audio * 32768).astype("<i2")
        digest.update(f"{name} {hashlib.sha256(samples.tobytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _list(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _MAX_LISTED:,} more" if len(shown) > _MAX_LISTED else ""
    return (", ".join(shown[:_MAX_LISTED]) or "nothing") + more
