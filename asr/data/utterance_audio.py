"""Audio of utterances: files, or parts of tar files (shards), of which several are fetched together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from asr.audio import reading as audio_files
from asr.data.manifest import Utterance
from asr.data.storage import ByteRange, read_ranges
from asr.errors import UserError

INDEX_NAME = "index.jsonl"  # of a folder of shards
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
