"""Pack the audio of a manifest into tar shards: each written aside, then renamed; a second run goes on.

Layouts: `webdataset` puts <id>.flac and <id>.json, the record, one after the other into shard-000000.tar;
`shar` writes lhotse's Shar, shar/recording.000000.tar and shar/cuts.000000.jsonl.gz.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import re
import tarfile
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from asr.data.encoding import EncodedFile, Encoding, encode_audio
from asr.data.manifest import Manifest, Utterance
from asr.data.shards import (
    INDEX_NAME,
    Failure,
    FolderInfo,
    PackedUtterance,
    ShardInfo,
    parse_folder_index,
)
from asr.errors import UserError
from asr.files import claim_folder, replace_file

Layout = Literal["webdataset", "shar"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
FORMAT = "asr shards 1"  # part of the hash of what a shard is packed from
MAX_KEY_LENGTH = 90  # so that a name fits the 100 bytes of a plain tar header
Report = Callable[[float], None]  # gets seconds of audio that are done

_BLOCK = 512  # bytes, of tar
_PLAIN_ID = re.compile(r"\w[\w.\-]{0,80}", re.ASCII)


@dataclass(frozen=True)
class PackSettings:
    """Settings of packing."""

    encoding: Encoding = "flac"
    layout: Layout = "webdataset"
    hours: float = 8.0
    """Hours of audio in a shard: some 450 MB of FLAC at 16 kHz, 90 MB of Opus."""
    seed: int = 0
    """Seed of the order in which utterances are dealt to shards, so that each is a mixture of all."""


@dataclass(frozen=True)
class PackReport:
    """Result of packing."""

    shards: tuple[ShardInfo, ...]
    kept: int
    """Shards of an earlier run."""

    @property
    def failures(self) -> list[Failure]:
        return [failure for shard in self.shards for failure in shard.failed]


def pack(
    manifest: Manifest,
    folder: Path,
    settings: PackSettings,
    *,
    jobs: int = 1,
    report: Report = lambda seconds: None,
) -> PackReport:
    """Write the shards that are not there yet, and the index of the folder.
    An utterance whose audio cannot be read is left out and named in the index. What is written depends on
    manifest and settings alone, not on `jobs` or on where an earlier run was stopped.
    """
    require_distinct_ids(manifest)
    plans = deal(manifest.durations, settings)
    with claim_folder(folder):
        job = _Job(manifest, folder, settings, _find_kept(folder))
        write_folder_index(folder, list(job.kept.values()), len(plans))
        done = []
        with open(folder / INDEX_NAME, "ab") as index:
            for info, is_new in job.write_all(plans, jobs, report):
                done.append((info, is_new))
                if is_new:
                    index.write(info.model_dump_json(exclude_defaults=True).encode() + b"\n")
                    index.flush()
    done.sort(key=lambda pair: pair[0].name)
    infos = tuple(info for info, _ in done)
    write_folder_index(folder, infos)
    if not any(info.utterances for info in infos):
        first = infos[0].failed[0].message
        raise UserError(f"{manifest.name}: none of its {len(manifest)} utterances could be packed; {first}")
    return PackReport(infos, sum(not is_new for _, is_new in done))


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


def _find_kept(folder: Path) -> dict[str, ShardInfo]:
    """The shards that an earlier run finished, by the hash of what they were packed from."""
    place = folder / INDEX_NAME
    if not place.exists():
        return {}
    _, infos = parse_folder_index(str(place), place.read_bytes())
    return {info.source: info for info in infos if _is_there(folder, info)}


def _is_there(folder: Path, info: ShardInfo) -> bool:
    try:
        sizes = (folder / info.name).stat().st_size, (folder / info.index).stat().st_size
    except OSError:
        return False
    return sizes == (info.size, info.index_size)


def write_folder_index(folder: Path, infos: Sequence[ShardInfo], num_shards: int | None = None) -> None:
    """Write the index of a folder, complete unless it is told a greater number of shards."""
    header = FolderInfo(shards=len(infos) if num_shards is None else num_shards)
    with replace_file(folder / INDEX_NAME) as file:
        file.write(header.model_dump_json().encode() + b"\n")
        for info in infos:
            file.write(info.model_dump_json(exclude_defaults=True).encode() + b"\n")


# --- shards ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """All that the shards of a manifest are written from."""

    manifest: Manifest
    folder: Path
    settings: PackSettings
    kept: dict[str, ShardInfo]
    """Shards of an earlier run, by the hash of what they were packed from."""

    def write_all(
        self, plans: Sequence[np.ndarray], jobs: int, report: Report
    ) -> Iterator[tuple[ShardInfo, bool]]:
        """Each shard as it is done, and whether it is new."""
        if jobs == 1:
            for number, positions in enumerate(plans):
                yield self.write_or_keep(number, positions, report)
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, initializer=_receive, initargs=(self,)) as pool:
            futures = {
                pool.submit(_write_in_worker, number, positions): positions
                for number, positions in enumerate(plans)
            }
            try:
                for future in as_completed(futures):
                    report(float(self.manifest.durations[futures[future]].sum()))
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def write_or_keep(self, number: int, positions: np.ndarray, report: Report) -> tuple[ShardInfo, bool]:
        utterances = [self.manifest[int(position)] for position in positions]
        settings = self.settings
        source = hashlib.sha256(f"{FORMAT} {number} {settings.encoding} {settings.layout}\n".encode())
        for utterance in utterances:
            source.update(utterance.model_dump_json().encode() + b"\n")
        if (info := self.kept.get(source.hexdigest())) is not None:
            report(sum(utterance.duration for utterance in utterances))
            return info, False
        return write_shard(utterances, self.folder, number, settings, source.hexdigest(), report), True


_received: _Job


def _receive(job: _Job) -> None:
    """Once in each worker, since a manifest may be large."""
    global _received
    _received = job


def _write_in_worker(number: int, positions: np.ndarray) -> tuple[ShardInfo, bool]:
    return _received.write_or_keep(number, positions, lambda seconds: None)


def write_shard(
    utterances: Sequence[Utterance],
    folder: Path,
    number: int,
    settings: PackSettings,
    source: str,
    report: Report,
) -> ShardInfo:
    """Write one shard and its index."""
    is_shar = settings.layout == "shar"
    name = f"shar/recording.{number:06d}.tar" if is_shar else f"shard-{number:06d}.tar"
    index_name = f"shard-{number:06d}.jsonl"
    rows: list[PackedUtterance] = []
    cuts: list[dict[str, Any]] = []
    failed: list[Failure] = []
    with replace_file(folder / name) as file:
        tar = TarWriter(file)
        for utterance in utterances:
            report(utterance.duration)
            try:
                audio = encode_audio(utterance, settings.encoding)
            except UserError as error:
                failed.append(Failure(id=utterance.id, message=str(error)))
                continue
            key = make_key(utterance.id)
            if is_shar and _PLAIN_ID.fullmatch(utterance.id):  # there a dot cuts nothing off
                key = utterance.id
            member = f"{key}.{audio.suffix}"
            record = utterance.model_copy(
                update={"audio": member, "start": 0.0, "channel": audio.channel}
            )  # fmt: skip
            offset = tar.add(member, audio.content)
            if is_shar:
                cuts.append(_describe_cut(key, record, audio))
                described: Any = _describe_recording(key, audio)
            else:
                described = record.model_dump(exclude_defaults=True)
            tar.add(f"{key}.json", json.dumps(described, ensure_ascii=False).encode())
            rows.append(PackedUtterance(**record.model_dump(), offset=offset, size=len(audio.content)))
        tar.finish()
    if is_shar:
        with replace_file(folder / f"shar/cuts.{number:06d}.jsonl.gz") as file:
            content = "".join(json.dumps(cut, ensure_ascii=False) + "\n" for cut in cuts).encode()
            file.write(gzip.compress(content, mtime=0))
    return finish_shard(folder, name, rows, failed, index_name, tar.size, tar.digest.hexdigest(), source)


def finish_shard(
    folder: Path,
    name: str,
    rows: Sequence[PackedUtterance],
    failed: Sequence[Failure],
    index_name: str,
    size: int,
    sha256: str,
    source: str = "",
) -> ShardInfo:
    """Write the index of a shard, and describe both."""
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
        size=size,
        sha256=sha256,
        index_size=len(content),
        index_sha256=hashlib.sha256(content).hexdigest(),
        source=source,
        failed=tuple(failed),
    )


def make_key(name: str) -> str:
    """A name for files: what webdataset would split or what leads elsewhere is escaped, as in URLs."""
    key = urllib.parse.quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(key) > MAX_KEY_LENGTH:
        key = f"{key[: MAX_KEY_LENGTH - 17]}-{hash_id(name):016x}"
    return key


class TarWriter:
    """A plain tar file, of which each byte depends on its members alone."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self.digest = hashlib.sha256()

    def add(self, name: str, content: bytes) -> int:
        """Add a file; returns where its content begins."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o644
        self._write(member.tobuf(tarfile.PAX_FORMAT))
        offset = self.size
        self._write(content + bytes(-len(content) % _BLOCK))
        return offset

    def finish(self) -> None:
        self._write(bytes(2 * _BLOCK))
        self._write(bytes(-self.size % tarfile.RECORDSIZE))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)


# --- lhotse ---------------------------------------------------------------------------------------


def _describe_recording(key: str, audio: EncodedFile) -> dict[str, Any]:
    channels = list(range(audio.num_channels))
    return {
        "id": key,
        "sources": [{"type": "shar", "channels": channels, "source": ""}],
        "sampling_rate": audio.sample_rate,
        "num_samples": audio.num_samples,
        "duration": audio.num_samples / audio.sample_rate,
        "channel_ids": channels,
    }


def _describe_cut(key: str, record: Utterance, audio: EncodedFile) -> dict[str, Any]:
    channel = 0 if audio.channel is None else audio.channel - 1
    duration = audio.num_samples / audio.sample_rate
    supervision = {
        "id": record.id,
        "recording_id": key,
        "start": 0.0,
        "duration": duration,
        "channel": channel,
        "text": record.text,
        "language": record.language,
        "speaker": record.speaker,
        "custom": record.extras or None,
    }
    supervision = {name: value for name, value in supervision.items() if value is not None}
    return {
        "id": key,
        "start": 0.0,
        "duration": duration,
        "channel": channel,
        "supervisions": [supervision],
        "type": "MonoCut",
    }
