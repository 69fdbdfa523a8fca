"""Read utterances from manifests, folders of shards, and manifests of other toolkits.

Only here does the core import asr/shards and asr/formats; manifests work without these folders.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from asr.data.manifest import Utterance, is_manifest, read_manifest
from asr.data.storage import is_address
from asr.data.utterance_audio import INDEX_NAME
from asr.files import hash_file

if TYPE_CHECKING:
    from asr.shards.shards import ShardFolder

logger = logging.getLogger(__name__)


def is_shards(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder of shards instead of a manifest; any URL counts as one."""
    return is_address(path) or Path(path).is_dir() or Path(path).name == INDEX_NAME


def open_shards(path: str | os.PathLike[str]) -> ShardFolder:
    """Read the index of a folder of shards."""
    from asr.shards.shards import ShardFolder

    return ShardFolder(path)


def hash_file_or_shards(path: str | Path) -> str:
    """Return the SHA-256 of a manifest, or of a shard folder's index, which contains the shards' hashes."""
    return open_shards(path).sha256 if is_shards(path) else hash_file(path)


def read_data(*paths: str | Path, max_packed: int | None = None) -> Iterator[Utterance]:
    """Yield the utterances of manifests and folders of shards, one after another.

    `max_packed`: read at most this many from each folder, which suffices because shards are shuffled.
    """
    for path in paths:
        if not is_shards(path):
            yield from read_manifest(path)
            continue
        folder = open_shards(path)
        if max_packed is not None and max_packed < len(folder):
            logger.info("%s: only the first %d of %d utterances are used", path, max_packed, len(folder))
        packed = itertools.chain.from_iterable(shard.utterances() for shard in folder.shards)
        yield from itertools.islice(packed, max_packed)


def read_any(path: str | Path) -> Iterator[Utterance]:
    """Yield the utterances of a manifest, or of another toolkit's file or folder."""
    if is_manifest(path):
        return read_manifest(path)
    from asr.formats.foreign_manifests import guess_source_kind, read_utterances

    return read_utterances(path, guess_source_kind(path))
