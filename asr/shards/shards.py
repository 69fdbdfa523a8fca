"""Utterances in tar shards: the index of a folder and of each shard, and audio as byte ranges.

A folder of shards, local or at an address, contains

    index.jsonl               one line for the folder, then one for each shard (`ShardInfo`)
    shard-000000.tar          audio files, in the layout of webdataset and lhotse
    shard-000000.jsonl        one line for each utterance (`PackedUtterance`): where its audio is

The address comes from the user and is trusted, but the content of the folder is not: file names in an index
cannot leave its folder, and sizes and offsets have to stay within their shard.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from asr.config import Config, describe_error
from asr.data.manifest import MAX_SECONDS
from asr.data.storage import ByteRange, MissingFileError, is_address, join_address, read_range, read_start
from asr.data.utterance_audio import INDEX_NAME, MAX_SHARD_BYTES, PackedUtterance
from asr.errors import UserError

MAX_FOLDER_INDEX_BYTES = 1_000_000_000  # enough for 3 million shards
MAX_INDEX_BYTES = 500_000_000  # index of one shard; enough for a million utterances
BLOCK_BYTES = 1 << 24

# Plain characters only, and no leading dot, so that a name cannot point outside its folder.
SafeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=250)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=1 << 40)]


class Failure(Config):
    """An utterance that could not be packed, and the reason."""

    id: str
    message: str


class FolderInfo(Config):
    """The first line of the index of a folder."""

    format: Literal["asr shards 1"] = "asr shards 1"
    shards: Count
    """Number of shards once the folder is complete."""


class ShardInfo(Config):
    """One shard, as described in the index of its folder."""

    name: SafeName
    index: SafeName
    utterances: Count
    seconds: float = Field(ge=0)
    longest: float = Field(ge=0, le=MAX_SECONDS)
    """Duration of its longest utterance, in seconds."""
    size: int = Field(ge=0, le=MAX_SHARD_BYTES)
    sha256: Digest
    index_size: int = Field(ge=0, le=MAX_INDEX_BYTES)
    index_sha256: Digest
    source: str = Field(max_length=100)
    """Hash of the records and settings that it was packed from."""
    failed: tuple[Failure, ...] = ()
    """Utterances that are missing because they could not be packed."""


class TarShard:
    """One shard of a folder."""

    def __init__(self, folder: str, info: ShardInfo) -> None:
        self.info = info
        self.address = join_address(folder, info.name)
        self.index = ByteRange(join_address(folder, info.index), 0, info.index_size, info.index_sha256)

    def check_index(self, content: bytes) -> bytes:
        """Return the content of its index, after comparing it with the hash in the folder's index."""
        if hashlib.sha256(content).hexdigest() != self.info.index_sha256:
            raise UserError(
                f"{self.index.address}: differs from what {INDEX_NAME} describes; copy or pack it again"
            )
        if content.count(b"\n") != self.info.utterances:
            raise UserError(f"{self.index.address}: {INDEX_NAME} has another number of lines; pack it again")
        return content

    def check_content(self) -> None:
        """Read the whole shard, and raise an error if its SHA-256 differs from the folder's index."""
        digest = hashlib.sha256()
        for start in range(0, self.info.size, BLOCK_BYTES):
            size = min(BLOCK_BYTES, self.info.size - start)
            digest.update(read_range(ByteRange(self.address, start, size, self.info.sha256)))
        if digest.hexdigest() != self.info.sha256:
            raise UserError(
                f"{self.address}: its SHA-256 has changed since it was packed; copy or pack it again"
            )

    def utterances(self) -> Iterator[PackedUtterance]:
        """Read the utterances from its index."""
        return map(self.parse, self.check_index(read_range(self.index)).splitlines())

    def parse(self, line: bytes) -> PackedUtterance:
        """Parse one line of the index."""
        try:
            item = PackedUtterance.model_validate_json(line)
        except pydantic.ValidationError as error:
            raise UserError(f"{self.index.address}: {describe_error(error)}; pack it again") from None
        if item.offset + item.size > self.info.size:
            raise UserError(f"{self.index.address}: {item.id} ends after the end of its shard; pack it again")
        place = f"{self.address.partition('://')[2] or self.address}/{item.audio}"
        return item.model_copy(update={"audio": place, "shard": self.address, "version": self.info.sha256})


class ShardFolder:
    """The shards of a folder, local or at an address. Each takes about 2 KB of memory."""

    def __init__(self, address: str | os.PathLike[str]) -> None:
        """Read the index of the folder."""
        self.address = str(address)
        folder = self.address.removesuffix(INDEX_NAME)
        folder = folder.rstrip("/") if is_address(folder) else os.path.abspath(folder)
        index = join_address(folder, INDEX_NAME)
        try:
            content = read_start(index, MAX_FOLDER_INDEX_BYTES)
        except MissingFileError:
            raise MissingFileError(
                f"{address}: contains no {INDEX_NAME}; write it with `asr manifest pack`"
            ) from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        """Hash of the folder's index, which in turn contains the hash of each shard."""
        header, infos = parse_folder_index(index, content)
        if len(infos) != header.shards:
            raise UserError(
                f"{index}: {len(infos):,} of {header.shards:,} shards exist; `asr manifest pack` continues"
            )
        self.shards = [TarShard(folder, info) for info in sorted(infos, key=lambda info: info.name)]

    def __len__(self) -> int:
        return sum(shard.info.utterances for shard in self.shards)

    @property
    def longest_seconds(self) -> float:
        return max((shard.info.longest for shard in self.shards), default=0.0)


def parse_folder_index(place: str, content: bytes) -> tuple[FolderInfo, list[ShardInfo]]:
    """Parse the index of a folder, ignoring an incomplete last line from an interrupted run."""
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise UserError(f"{place}: empty; write it with `asr manifest pack`")
    try:
        header = FolderInfo.model_validate_json(lines[0])
        infos = [ShardInfo.model_validate_json(line) for line in lines[1:]]
    except pydantic.ValidationError as error:
        raise UserError(f"{place}: not an index of shards ({describe_error(error)}); pack it again") from None
    names = {info.name for info in infos} | {info.index for info in infos}
    if len(names) < 2 * len(infos):
        raise UserError(f"{place}: a file is named twice; pack it again")
    return header, infos
