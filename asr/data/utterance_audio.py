"""Read the audio of utterances from files, or from tar files (shards), several at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from asr.audio import reading as audio_files
from asr.data.manifest import Utterance
from asr.data.storage import ByteRange, read_ranges
from asr.errors import UserError

INDEX_NAME = "index.jsonl"  # index file in a folder of shards
MAX_SHARD_BYTES = 1 << 46
MAX_MEMBER_BYTES = 1_000_000_000


class PackedUtterance(Utterance):
    """An utterance whose audio is part of a tar file; `audio` is then only a name for messages."""

    offset: int = Field(ge=0, le=MAX_SHARD_BYTES)
    """Offset of its audio file in the shard, in bytes."""
    size: int = Field(gt=0, le=MAX_MEMBER_BYTES)
    """Size of its audio file in bytes."""
    shard: str = ""
    """Path or URL of the shard. The reader sets it; it is never read from an index."""
    version: str = ""
    """Hash of the shard."""

    @property
    def byte_range(self) -> ByteRange:
        return ByteRange(self.shard, self.offset, self.size, self.version)


Content = bytes | UserError | None
"""Content of an utterance's audio file in a shard, or why it cannot be read; None if it is a file on disk."""


def fetch(utterances: Sequence[Utterance]) -> list[Content]:
    """Fetch the audio files of utterances in shards together; None for utterances with a file on disk."""
    packed = [item for item in utterances if isinstance(item, PackedUtterance)]
    contents = iter(read_ranges([item.byte_range for item in packed]))
    return [next(contents) if isinstance(item, PackedUtterance) else None for item in utterances]


def read_audio(utterance: Utterance, sample_rate: int, content: Content = None) -> np.ndarray:
    """Read the samples of an utterance, with `asr.audio.reading.read`. `content`: the result of `fetch`."""
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
