"""Pack the audio of a manifest into tar shards: each written aside, then renamed; a second run continues.

shard-000000.tar has <id>.flac and <id>.json, the record, one after the other, as webdataset reads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from asr.audio import reading as audio_files
from asr.audio.reading import TOLERANCE_SECONDS
from asr.data.manifest import Manifest, Utterance
from asr.data.packed import INDEX_NAME, MAX_MEMBER_BYTES, PackedUtterance
from asr.errors import UserError
from asr.files import claim_folder, hash_file, replace_file
from asr.shards.shards import Failure, FolderInfo, ShardInfo, parse_folder_index

Encoding = Literal["flac", "copy"]
FORMAT = "asr shards 1"  # part of the hash of what a shard is packed from
MAX_KEY_LENGTH = 90  # so that a name fits the 100 bytes of a plain tar header
Report = Callable[[float], None]  # gets seconds of audio that are done


@dataclass(frozen=True)
class PackSettings:
    """Settings of packing."""

    encoding: Encoding = "flac"
    hours: float = 8.0  # hours of audio in a shard: some 450 MB of FLAC at 16 kHz
    seed: int = 0
    """Seed of the order in which utterances are dealt to shards, so that each is a mixture of all."""


def pack(
    manifest: Manifest, folder: Path, settings: PackSettings, report: Report = lambda seconds: None
) -> tuple[list[ShardInfo], int]:
    """Write the missing shards and the index of the folder; return all shards and how many were there.

    An utterance whose audio cannot be read is left out and named in the index. What is written depends on
    manifest and settings alone, not on where an earlier run was stopped.
    """
    require_distinct_ids(manifest)
    dealt = deal(manifest.durations, settings)
    with claim_folder(folder):
        for remains in folder.glob(".*.tmp"):  # of a killed process
            with contextlib.suppress(OSError):
                remains.unlink()
        sources = [_hash_source(manifest, number, own, settings) for number, own in enumerate(dealt)]
        kept = _find_kept(folder, sources)
        infos = []
        write_folder_index(folder, list(kept.values()), len(dealt))
        with open(folder / INDEX_NAME, "ab") as index:
            for number, positions in enumerate(dealt):
                if number in kept:
                    report(float(manifest.durations[positions].sum()))
                    infos.append(kept[number])
                    continue
                info = write_shard(folder, settings, number, _select(manifest, positions), report)
                infos.append(info.model_copy(update={"source": sources[number]}))
                index.write(infos[-1].model_dump_json(exclude_defaults=True).encode() + b"\n")
                index.flush()
        write_folder_index(folder, infos)
    if not any(info.utterances for info in infos):
        first = infos[0].failed[0].message
        raise UserError(f"{manifest.name}: none of its {len(manifest)} utterances could be packed; {first}")
    return infos, len(kept)


def _select(manifest: Manifest, positions: np.ndarray) -> Iterator[Utterance]:
    return (manifest[position] for position in positions.tolist())


def _hash_source(manifest: Manifest, number: int, positions: np.ndarray, settings: PackSettings) -> str:
    """Hash what a shard is made of: utterances and settings."""
    source = hashlib.sha256(f"{FORMAT} {number} {settings.encoding} webdataset\n".encode())
    for utterance in _select(manifest, positions):
        source.update(utterance.model_dump_json().encode() + b"\n")
    return source.hexdigest()


def require_distinct_ids(manifest: Manifest) -> None:
    """Refuse a manifest in which two utterances have one id, which names their files. 8 bytes for each."""
    hashes = np.fromiter((hash_id(item.id) for item in manifest), dtype=np.uint64, count=len(manifest))
    if not len(hashes):
        raise UserError(f"{manifest.name}: no utterance in it; give a manifest with some")
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        name = manifest[int(np.argmax(hashes == repeated[0]))].id
        raise UserError(f"{manifest.name}: the id {name} stands there twice; each needs its own")


def hash_id(name: str) -> int:
    """64 bits for a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def deal(durations: np.ndarray, settings: PackSettings) -> list[np.ndarray]:
    """Positions in the manifest of each shard: all in random order, cut where a shard has its hours."""
    order = np.random.Generator(np.random.PCG64(settings.seed)).permutation(len(durations))
    numbers = ((np.cumsum(durations[order]) - durations[order]) // (settings.hours * 3600)).astype(np.int64)
    return [part for part in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(part)]


# --- the index of the folder ----------------------------------------------------------------------


def _find_kept(folder: Path, sources: Sequence[str]) -> dict[int, ShardInfo]:
    """The shards that an earlier run finished, by number; refuse a folder that holds any others.

    They would stay beside the new ones, where webdataset and lhotse find them, or be written over.
    """
    place = folder / INDEX_NAME
    infos: list[ShardInfo] = []
    own: set[str] = set()
    if place.exists():
        _, infos = parse_folder_index(str(place), place.read_bytes())
        own = {name_shard(number) for number in range(len(sources))}  # perhaps not in the index yet
    there = {info.source: info for info in infos if _is_there(folder, info)}
    others = {path.name for path in folder.glob("*.tar")} - own
    others |= {there[source].name for source in there.keys() - set(sources)}
    if others:
        raise UserError(
            f"{folder}: holds other shards, such as {min(others)}; delete them, or give another folder"
        )
    return {number: there[source] for number, source in enumerate(sources) if source in there}


def _is_there(folder: Path, info: ShardInfo) -> bool:
    sizes = {folder / info.name: info.size, folder / info.index: info.index_size}
    return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


def write_folder_index(folder: Path, infos: Sequence[ShardInfo], num_shards: int | None = None) -> None:
    """Write the index of a folder, complete unless it is told a greater number of shards."""
    header = FolderInfo(shards=len(infos) if num_shards is None else num_shards)
    with replace_file(folder / INDEX_NAME) as file:
        file.write(header.model_dump_json().encode() + b"\n")
        for info in infos:
            file.write(info.model_dump_json(exclude_defaults=True).encode() + b"\n")


# --- shards ---------------------------------------------------------------------------------------


def name_shard(number: int) -> str:
    return f"shard-{number:06d}.tar"


def write_shard(
    folder: Path, settings: PackSettings, number: int, utterances: Iterable[Utterance], report: Report
) -> ShardInfo:
    """Write one shard and its index."""
    name = name_shard(number)
    rows: list[PackedUtterance] = []
    failed: list[Failure] = []
    with replace_file(folder / name) as file, tarfile.open(fileobj=file, mode="w") as tar:
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
    index_name = f"shard-{number:06d}.jsonl"
    exclude = {"shard", "version"}
    lines = [row.model_dump_json(exclude_defaults=True, exclude=exclude).encode() + b"\n" for row in rows]
    content = b"".join(lines)
    with replace_file(folder / index_name) as file:
        file.write(content)
    return ShardInfo(
        name=name,
        index=index_name,
        utterances=len(rows),
        seconds=sum(row.duration for row in rows),
        longest=max((row.duration for row in rows), default=0.0),
        size=(folder / name).stat().st_size,
        sha256=hash_file(folder / name),
        index_size=len(content),
        index_sha256=hashlib.sha256(content).hexdigest(),
        source="",
        failed=tuple(failed),
    )


def make_key(name: str) -> str:
    """A name for files: what webdataset would split or what leads elsewhere is escaped, as in URLs."""
    key = urllib.parse.quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(key) > MAX_KEY_LENGTH:
        key = f"{key[: MAX_KEY_LENGTH - 17]}-{hash_id(name):016x}"
    return key


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Add a file, whose bytes depend on name and content alone; returns where its content begins."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    return tar.offset - len(content) - (-len(content) % tarfile.BLOCKSIZE)


# --- audio ----------------------------------------------------------------------------------------


def encode_audio(utterance: Utterance, encoding: Encoding) -> tuple[bytes, str, int | None]:
    """The audio of an utterance as a file of its own, its suffix, and its channel in a file that is copied.

    It is mono, at the sample rate of its file; `copy` keeps whole files.
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
            raise UserError(f"{utterance.audio}: more than {MAX_MEMBER_BYTES:,} bytes; cut it")
        suffix = re.sub(r"[^a-z0-9]", "", Path(utterance.audio).suffix.lower()) or info.container
        return content, suffix, utterance.channel
    return encode_flac(audio_S, info.sample_rate), "flac", None


def encode_flac(audio_S: np.ndarray, sample_rate: int) -> bytes:
    """16-bit FLAC: no loss where the samples were of 16 bits."""
    import soundfile

    samples = np.clip(np.rint(audio_S * 32768), -32768, 32767).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, sample_rate, "PCM_16", format="FLAC")
    return file.getvalue()
