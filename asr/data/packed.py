"""Utterances of manifests and folders of shards, with their audio; sentences of these and of text files.

The only place in which the core imports asr/shards and asr/formats: manifests work without these folders.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from asr.audio import reading as audio_files
from asr.data.manifest import Utterance, read_manifest
from asr.data.storage import ByteRange, is_address, read_ranges
from asr.data.text_lines import parse_json, read_text_lines
from asr.errors import UserError
from asr.files import hash_file
from asr.text.normalization import TextConfig, normalize

if TYPE_CHECKING:
    from asr.shards.shards import ShardFolder

logger = logging.getLogger(__name__)

INDEX_NAME = "index.jsonl"
MAX_SHARD_BYTES = 1 << 46
MAX_MEMBER_BYTES = 1_000_000_000


class PackedUtterance(Utterance):
    """An utterance whose audio is a part of a tar file. `audio` is a name for messages and opens nothing."""

    offset: int = Field(ge=0, le=MAX_SHARD_BYTES)
    """The first byte of its audio file in the shard."""
    size: int = Field(gt=0, le=MAX_MEMBER_BYTES)
    """Bytes of its audio file."""
    shard: str = ""
    """Path or address of the shard. Never read from an index: the reader sets it."""
    version: str = ""
    """Hash of the shard."""

    @property
    def byte_range(self) -> ByteRange:
        return ByteRange(self.shard, self.offset, self.size, self.version)


Content = bytes | UserError | None
"""The audio file of an utterance: its bytes, why there are none, or None where it is a file of its own."""


def is_shards(path: str | os.PathLike[str]) -> bool:
    """Tell a folder of shards from a manifest; any address is one."""
    return is_address(path) or Path(path).is_dir() or Path(path).name == INDEX_NAME


def open_shards(path: str | os.PathLike[str]) -> ShardFolder:
    """Read the index of a folder of shards."""
    from asr.shards.shards import ShardFolder

    return ShardFolder(path)


def hash_file_or_shards(path: str | Path) -> str:
    """SHA-256 of a manifest, or of the index of a folder of shards, which has the hash of each shard."""
    return open_shards(path).sha256 if is_shards(path) else hash_file(path)


def read_data(*paths: str | Path, max_packed: int | None = None) -> Iterator[Utterance]:
    """The utterances of manifests and of folders of shards, one after the other.

    `max_packed`: no more than so many of each folder, whose shards are mixtures of the corpus.
    """
    for path in paths:
        if not is_shards(path):
            yield from read_manifest(path)
            continue
        folder = open_shards(path)
        if max_packed is not None and max_packed < len(folder):
            logger.info("%s: the first %d of %d utterances are looked at", path, max_packed, len(folder))
        packed = itertools.chain.from_iterable(shard.utterances() for shard in folder.shards)
        yield from itertools.islice(packed, max_packed)


def is_manifest(path: str | Path) -> bool:
    """Tell a manifest from files of other toolkits, by its name and its first record."""
    if not str(path).lower().removesuffix(".gz").endswith((".jsonl", ".json")) or not os.path.isfile(path):
        return False
    first = next((parse_json(line) for _, line in read_text_lines(path)), None)
    return isinstance(first, dict) and {"id", "audio", "duration"} <= first.keys()


def read_any(path: str | Path) -> Iterator[Utterance]:
    """The utterances of a manifest, or of a file or folder of another toolkit."""
    if is_manifest(path):
        return read_manifest(path)
    from asr.formats.interchange import guess_source_kind, read_utterances

    return read_utterances(path, guess_source_kind(path))


def fetch(utterances: Sequence[Utterance]) -> list[Content]:
    """The audio files of utterances in shards, fetched together; None for those with a file of their own."""
    packed = [item for item in utterances if isinstance(item, PackedUtterance)]
    contents = iter(read_ranges([item.byte_range for item in packed]))
    return [next(contents) if isinstance(item, PackedUtterance) else None for item in utterances]


def read_audio(utterance: Utterance, sample_rate: int, content: Content = None) -> np.ndarray:
    """The samples of an utterance, as `asr.audio.reading.read` has them. `content`: of `fetch`."""
    if content is None and isinstance(utterance, PackedUtterance):
        [content] = fetch([utterance])
    if isinstance(content, UserError):
        raise content
    return audio_files.read(
        utterance.audio,
        sample_rate,
        start=utterance.start,
        duration=utterance.duration,
        channel=utterance.channel_index,
        content=content,
    )


# --- sentences to learn from ----------------------------------------------------------------------


def read_sentences(
    path: str | Path, config: TextConfig, max_packed: int | None = None, num_texts: int = 1
) -> Iterator[str]:
    """Read a manifest, a folder of shards, of which `max_packed` utterances suffice, or a file named .txt.

    Each utterance has `num_texts` texts.
    """
    if Path(path).suffix == ".txt":
        return read_text_file(path, config)
    texts = (
        (f"text of utterance {utterance.id}", text)
        for utterance in read_data(path, max_packed=max_packed)
        for text in (utterance.find_texts(num_texts) if num_texts > 1 else [utterance.text])
    )
    return _normalize(texts, config)


def read_text_file(path: str | Path, config: TextConfig) -> Iterator[str]:
    """Yield each line of text that is not blank."""
    return _normalize(read_text_lines(path), config)


def _normalize(texts: Iterable[tuple[str, str | None]], config: TextConfig) -> Iterator[str]:
    """Normalize as for training; texts that are empty then are left out."""
    for place, text in texts:
        try:
            sentence = normalize(text or "", config.training)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        if sentence:
            yield sentence
