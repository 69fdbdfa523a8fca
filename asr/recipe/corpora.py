"""A corpus as its publisher lays it out: find its folder, check that nothing is missing or altered."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from asr.audio.reading import measure_seconds, read, write
from asr.data.manifest import Utterance
from asr.errors import UserError
from asr.recipe.archives import extract
from asr.recipe.beamforming import beamform_files

logger = logging.getLogger(__name__)

_MAX_LISTED = 8
_ARCHIVES = (".tar.gz", ".tgz")


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


_SHORTFALLS: ContextVar[tuple[bool, list[str]] | None] = ContextVar("shortfalls", default=None)


@contextlib.contextmanager
def note_shortfalls(is_partial: bool) -> Iterator[list[str]]:
    """Note in the list what a corpus lacks; of dev and test that is an error unless `is_partial`.

    A recipe that prepares another one within has its list.
    """
    was_partial, found = _SHORTFALLS.get() or (False, [])
    token = _SHORTFALLS.set((is_partial or was_partial, found))
    try:
        yield found
    finally:
        _SHORTFALLS.reset(token)


def require_count(folder: Path, what: str, found: int, expected: int) -> None:
    _note_shortfall(folder, what, found, expected, may_be_partial=False)


def check_counts(
    folder: Path, found: Mapping[str, int], published: Mapping[str, int], what: str = "utterances"
) -> None:
    """Hold the utterances of each set against the published ones.

    Of train... a part will do, with a warning; the others must be whole, since results are compared by them.
    """
    for name, expected in published.items():
        is_train = name.startswith("train")
        _note_shortfall(folder, f"{what} of {name}", found.get(name, 0), expected, may_be_partial=is_train)


def _note_shortfall(folder: Path, what: str, found: int, expected: int, *, may_be_partial: bool) -> None:
    if found == expected:
        return
    is_partial = (_SHORTFALLS.get() or (False,))[0]
    if not may_be_partial and not (is_partial and 0 < found < expected):
        hint = "; pass --partial to prepare it as a part" if 0 < found < expected else ""
        raise UserError(
            f"{folder}: found {found:,} {what}, expected {expected:,}: a part of the corpus, or another "
            f"version of it; get a complete copy and pass its folder as --corpus-dir{hint}"
        )
    note_shortfall(folder, f"{found:,} of {expected:,} {what}")


def note_shortfall(folder: Path, what: str) -> None:
    """Warn that the corpus is a part; manifests, results and pages of it will say so."""
    if (noted := _SHORTFALLS.get()) is not None:
        noted[1].append(what)
    logger.warning("%s: %s: results do not compare with those on the whole corpus", folder, what)


def require_fingerprint(folder: Path, names: Iterable[str], sample_rate: int, expected: str) -> None:
    """Check that the audio files `names` below `folder` hold exactly the published samples; of a part of the
    corpus, nothing is published."""
    if (noted := _SHORTFALLS.get()) is not None and noted[1]:
        return
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


# --- files --------------------------------------------------------------------------------------


def find_files(folder: Path, *suffixes: str) -> Iterator[Path]:
    """All files below whose name ends so, in any case; links are followed, folders read in order."""
    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # links in a circle
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(suffixes) and not name.startswith("."):
                yield Path(parent, name)


def find_folder(root: Path, *paths: str) -> Path | None:
    """The first of the relative paths that is a folder below `root`, in any case; None if there is none."""
    for path in paths:
        found = [root]
        for part in Path(path).parts:
            below = (inner for folder in found for inner in sorted(folder.iterdir()))
            found = [inner for inner in below if inner.name.lower() == part.lower() and inner.is_dir()]
        if found:
            return found[0]
    return None


def unpack_inner(folder: Path, max_bytes: int) -> None:
    """Unpack each archive below `folder` into a folder of its name beside it."""
    for archive in _find_packed(folder):
        extract(archive, archive.with_name(_name_of(archive)), max_bytes=max_bytes)


def require_unpacked(folder: Path) -> None:
    """Refuse archives inside a corpus of which nothing has been unpacked."""
    if packed := _find_packed(folder):
        raise UserError(
            f"{folder}: holds {len(packed):,} archives that are still packed, such as "
            f"{packed[0].relative_to(folder)}; unpack each in its folder, as by "
            "`find . -name '*.tar.gz' -execdir tar -xzf {} ';'`"
        )


def _find_packed(folder: Path) -> list[Path]:
    names = {os.path.basename(parent) for parent, _, _ in os.walk(folder)}
    return [path for path in find_files(folder, *_ARCHIVES) if _name_of(path) not in names]


def _name_of(archive: Path) -> str:
    return archive.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")


def build_whole(path: Path, **fields: Any) -> Utterance:
    """The utterance that is all of an audio file."""
    return Utterance(audio=str(path), duration=measure_seconds(path), **fields)


def build_read(paths: Iterable[Path], texts: Mapping[str, str], language: str) -> Iterator[Utterance]:
    """Utterances that are files, in the folder of their speaker, named by the id of their text."""
    for path in paths:
        yield build_whole(
            path, id=path.stem, text=texts[path.stem], speaker=path.parent.name, language=language
        )


def write_beamformed(
    channels: Mapping[str, Sequence[Path]], folder: Path, sample_rate: int = 16_000
) -> dict[str, Path]:
    """Write id.wav of each utterance, the delay and sum of the files of its channels; what is there already,
    and newer than they are, stays. Returns the files by id."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for id, paths in tqdm(channels.items(), desc=folder.name, unit=" utterances", disable=None, leave=False):
        written[id] = folder / f"{id}.wav"
        if missing := [path for path in paths if not path.is_file()]:
            raise UserError(f"{missing[0]}: a channel of {id} is missing; get a complete copy")
        newest = max(path.stat().st_mtime_ns for path in paths)
        if not written[id].exists() or written[id].stat().st_mtime_ns < newest:
            write(written[id], beamform_files(paths, sample_rate), sample_rate)
    return written


# --- texts --------------------------------------------------------------------------------------


def limit_repeats(utterances: Iterable[Utterance], limit: int = 300) -> list[Utterance]:
    """Keep about `limit` of the utterances with one text, such as "yeah", in the order of their ids.

    The draw is that of Kaldi's remove_dup_utts.sh, whose choice of utterances is that of published results.
    """
    in_order = sorted(utterances, key=lambda utterance: utterance.id)
    counts = Counter(utterance.text for utterance in in_order)
    kept, state = [], 0
    for utterance in in_order:
        if counts[utterance.text] >= limit:
            state = (state + 103_349) % 71_147
            if state / 71_147 >= limit / counts[utterance.text]:
                continue
        kept.append(utterance)
    return kept


def widen(
    spans: Iterable[tuple[float, float]], before: float, after: float, seconds: float
) -> list[tuple[float, float]]:
    """Widen the spans of one speaker, within the recording; two that would overlap meet in the middle."""
    found = [[max(0.0, start - before), min(seconds, end + after)] for start, end in spans]
    for one, other in itertools.pairwise(sorted(found, key=sum)):
        if one[1] > other[0]:
            one[1] = other[0] = (one[1] + other[0]) / 2
    return [(round(start, 6), round(end, 6)) for start, end in found]
