"""Pack the audio of a manifest into tar shards. An interrupted run continues, because shards are atomic.

shard-000000.tar contains <id>.flac followed by <id>.json, the record, which is how webdataset reads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from asr.audio import reading as audio_files
from asr.audio.reading import TOLERANCE_SECONDS
from asr.batches.order import hash_names
from asr.data.manifest import Manifest, Utterance
from asr.data.utterance_audio import INDEX_NAME, MAX_MEMBER_BYTES, PackedUtterance
from asr.errors import UserError
from asr.files import claim_folder, hash_file, replace_file
from asr.shards.shards import Failure, FolderInfo, ShardInfo, parse_folder_index

Encoding = Literal["flac", "copy"]
FORMAT = "asr shards 1"  # part of the hash of a shard's sources
MAX_KEY_LENGTH = 90  # so that a name with its suffix fits the 100 bytes of a plain tar header
Report = Callable[[float], None]  # called with the seconds of audio just packed


@dataclass(frozen=True)
class PackSettings:
    """Settings for packing shards."""

    encoding: Encoding = "flac"
    hours: float = 8.0  # hours of audio in a shard; 8 make about 450 MB of FLAC at 16 kHz
    seed: int = 0
    """Seed of the random order in which utterances are distributed to shards, so that each is a mixture."""


def pack(
    manifest: Manifest, folder: Path, settings: PackSettings, report: Report = lambda seconds: None
) -> tuple[list[ShardInfo], int]:
    """Write the missing shards and the index of the folder; return all shards and how many already existed.

    An utterance whose audio cannot be read is left out and listed in the index. The result depends only on
    manifest and settings, not on where an earlier run was stopped.
    """
    require_distinct_ids(manifest)
    dealt = deal(manifest.durations, settings)
    with claim_folder(folder):
        for remains in folder.glob(".*.tmp"):  # left by a killed process
            with contextlib.suppress(OSError):
                remains.unlink()
        sources = [_hash_source(manifest, number, own, settings) for number, own in enumerate(dealt)]
        infos = _find_kept(folder, sources)
        num_kept = len(infos)
        write_folder_index(folder, infos.values(), len(dealt))
        with open(folder / INDEX_NAME, "ab") as index:
            for number, positions in enumerate(dealt):
                if number in infos:
                    report(float(manifest.durations[positions].sum()))
                    continue
                utterances = (manifest[position] for position in positions.tolist())
                infos[number] = write_shard(folder, settings, number, sources[number], utterances, report)
                index.write(_to_line(infos[number]))
                index.flush()
        shards = [infos[number] for number in range(len(dealt))]
        write_folder_index(folder, shards, len(shards))
    if not any(shard.utterances for shard in shards):
        first = shards[0].failed[0].message
        raise UserError(f"{manifest.name}: none of its {len(manifest)} utterances could be packed; {first}")
    return shards, num_kept


def _hash_source(manifest: Manifest, number: int, positions: np.ndarray, settings: PackSettings) -> str:
    """Hash everything that determines a shard: its utterances and the settings."""
    source = hashlib.sha256(f"{FORMAT} {number} {settings.encoding} webdataset\n".encode())
    for position in positions.tolist():
        source.update(manifest[position].model_dump_json().encode() + b"\n")
    return source.hexdigest()


def require_distinct_ids(manifest: Manifest) -> None:
    """Refuse duplicate ids, because ids become file names. Uses 8 bytes of memory for each utterance."""
    if not len(manifest):
        raise UserError(f"{manifest.name}: contains no utterances, so there is nothing to pack")
    hashes, firsts, counts = np.unique(
        hash_names(item.id for item in manifest), return_index=True, return_counts=True
    )
    if len(hashes) < len(manifest):
        name = manifest[int(firsts[counts.argmax()])].id
        raise UserError(f"{manifest.name}: duplicate id {name}; give every utterance an id of its own")


def deal(durations: np.ndarray, settings: PackSettings) -> list[np.ndarray]:
    """Shuffle the utterances and split them into shards of the set hours; return positions by shard."""
    order = np.random.Generator(np.random.PCG64(settings.seed)).permutation(len(durations))
    numbers = (np.cumsum(durations[order]) - durations[order]) // (settings.hours * 3600)
    return np.split(order, np.flatnonzero(np.diff(numbers)) + 1)


# --- the index of the folder ----------------------------------------------------------------------


def _find_kept(folder: Path, sources: Sequence[str]) -> dict[int, ShardInfo]:
    """Return the shards that an earlier run finished, by number. Refuse a folder that holds other shards.

    Those would be overwritten, or stay next to the new ones, where webdataset and lhotse read them too.
    """
    index = folder / INDEX_NAME
    infos: list[ShardInfo] = []
    own: set[str] = set()
    if index.exists():
        _, infos = parse_folder_index(str(index), index.read_bytes())
        own = {name_shard(number) for number in range(len(sources))}  # may not be in the index yet
    there = {info.source: info for info in infos if _is_there(folder, info)}
    others = {path.name for path in folder.glob("*.tar")} - own
    others |= {there[source].name for source in there.keys() - set(sources)}
    if others:
        raise UserError(
            f"{folder}: contains other shards, such as {min(others)}; delete them or choose another folder"
        )
    return {number: there[source] for number, source in enumerate(sources) if source in there}


def _is_there(folder: Path, info: ShardInfo) -> bool:
    sizes = {folder / info.name: info.size, folder / info.index: info.index_size}
    return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


def write_folder_index(folder: Path, infos: Iterable[ShardInfo], num_shards: int) -> None:
    """Write the index of a folder, which is complete once it has `num_shards` shards."""
    with replace_file(folder / INDEX_NAME) as file:
        file.write(FolderInfo(shards=num_shards).model_dump_json().encode() + b"\n")
        file.writelines(map(_to_line, infos))


def _to_line(item: ShardInfo | PackedUtterance) -> bytes:
    return item.model_dump_json(exclude_defaults=True).encode() + b"\n"


# --- shards ---------------------------------------------------------------------------------------


def name_shard(number: int) -> str:
    return f"shard-{number:06d}.tar"


def write_shard(
    folder: Path,
    settings: PackSettings,
    number: int,
    source: str,
    utterances: Iterable[Utterance],
    report: Report,
) -> ShardInfo:
    """Write one shard and its index."""
    path = folder / name_shard(number)
    rows: list[PackedUtterance] = []
    failed: list[Failure] = []
    with replace_file(path) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for utterance in utterances:
            report(utterance.duration)
            try:
                content, suffix, channel = encode_audio(utterance, settings.encoding)
            except UserError as error:
                failed.append(Failure(id=utterance.id, message=str(error)))
                continue
            key = make_key(utterance.id)
            own = {"audio": f"{key}.{suffix}", "start": 0.0, "channel": channel}
            record = utterance.model_copy(update=own)
            offset = add_member(tar, record.audio, content)
            described = json.dumps(record.model_dump(exclude_defaults=True), ensure_ascii=False)
            add_member(tar, f"{key}.json", described.encode())
            rows.append(PackedUtterance(**record.model_dump(), offset=offset, size=len(content)))
    index = path.with_suffix(".jsonl")
    lines = b"".join(_to_line(row) for row in rows)
    with replace_file(index) as file:
        file.write(lines)
    return ShardInfo(
        name=path.name,
        index=index.name,
        utterances=len(rows),
        seconds=sum(row.duration for row in rows),
        longest=max((row.duration for row in rows), default=0.0),
        size=path.stat().st_size,
        sha256=hash_file(path),
        index_size=len(lines),
        index_sha256=hashlib.sha256(lines).hexdigest(),
        source=source,
        failed=tuple(failed),
    )


def make_key(name: str) -> str:
    """Make a file name of an id: URL-escape dots, where webdataset splits names, and path separators."""
    key = urllib.parse.quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(key) > MAX_KEY_LENGTH:
        key = f"{key[: MAX_KEY_LENGTH - 17]}-{hash_names([name])[0]:016x}"
    return key


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Add a file without time and owner, so that shards are reproducible; return its content's offset."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    return tar.offset - len(content) - (-len(content) % tarfile.BLOCKSIZE)


# --- audio ----------------------------------------------------------------------------------------


def encode_audio(utterance: Utterance, encoding: Encoding) -> tuple[bytes, str, int | None]:
    """Return an utterance as an audio file, with its suffix, and its channel if the file is a copy.

    Encoded audio is mono at the original sampling rate; `copy` copies a file that holds just this utterance.
    """
    info = audio_files.read_info(utterance.audio)
    audio_S = audio_files.read(
        utterance.audio,
        info.sample_rate,
        start=utterance.start,
        duration=utterance.duration,
        channel=utterance.channel_index,
    )
    is_whole = utterance.start == 0 and abs((info.seconds or 0.0) - utterance.duration) <= TOLERANCE_SECONDS
    if encoding == "copy" and is_whole:
        content = Path(utterance.audio).read_bytes()
        if len(content) > MAX_MEMBER_BYTES:
            raise UserError(f"{utterance.audio}: larger than {MAX_MEMBER_BYTES:,} bytes; split it")
        suffix = re.sub(r"[^a-z0-9]", "", Path(utterance.audio).suffix.lower()) or info.container
        return content, suffix, utterance.channel
    return encode_flac(audio_S, info.sample_rate), "flac", None


def encode_flac(audio_S: np.ndarray, sample_rate: int) -> bytes:
    """Encode 16-bit FLAC, which is lossless for 16-bit samples."""
    import soundfile

    samples = np.clip(np.rint(audio_S * 32768), -32768, 32767).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, sample_rate, "PCM_16", format="FLAC")
    return file.getvalue()
