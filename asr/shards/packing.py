"""Pack the audio of a manifest into tar shards: each written aside, then renamed; a second run goes on.

Layouts: `webdataset` puts <id>.flac and <id>.json, the record, one after the other into shard-000000.tar;
`shar` writes lhotse's Shar, shar/recording.000000.tar and shar/cuts.000000.jsonl.gz.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import multiprocessing
import re
import tarfile
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from asr.data.manifest import Manifest, Utterance
from asr.data.packed import INDEX_NAME, PackedUtterance
from asr.errors import UserError
from asr.files import claim_folder, replace_file
from asr.shards.encoding import EncodedFile, Encoding, encode_audio
from asr.shards.shards import Failure, FolderInfo, ShardInfo, parse_folder_index

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


class ShardPlan(Sequence[tuple[int, Utterance]]):
    """The utterances of one shard, each with the number of the shard; read from the manifest one by one."""

    def __init__(self, manifest: Manifest, number: int, positions: np.ndarray) -> None:
        self.number = number
        self.seconds = float(manifest.durations[positions].sum())
        self._manifest = manifest
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> tuple[int, Utterance]:  # type: ignore[override]
        return self.number, self._manifest[int(self._positions[index])]

    def hash(self, settings: PackSettings) -> str:
        """Hash what the shard is made of: utterances and settings."""
        source = hashlib.sha256(f"{FORMAT} {self.number} {settings.encoding} {settings.layout}\n".encode())
        for _, utterance in self:
            source.update(utterance.model_dump_json().encode() + b"\n")
        return source.hexdigest()


Write = Callable[[int, Sequence[Utterance], Report], ShardInfo]
"""Writes the shard of a number."""
Engine = Callable[[Sequence[ShardPlan], Write, Report], Iterator[tuple[int, ShardInfo]]]
"""Has all shards written, in any order, and gives each with its number."""


def write_here(plans: Sequence[ShardPlan], write: Write, report: Report) -> Iterator[tuple[int, ShardInfo]]:
    """Write one shard after the other."""
    for plan in plans:
        yield plan.number, write(plan.number, [utterance for _, utterance in plan], report)


def pack(
    manifest: Manifest,
    folder: Path,
    settings: PackSettings,
    *,
    engine: Engine = write_here,
    report: Report = lambda seconds: None,
) -> PackReport:
    """Write the shards that are not there yet, and the index of the folder.
    An utterance whose audio cannot be read is left out and named in the index. What is written depends on
    manifest and settings alone, not on `engine` or on where an earlier run was stopped.
    """
    require_distinct_ids(manifest)
    dealt = deal(manifest.durations, settings)
    plans = [ShardPlan(manifest, number, positions) for number, positions in enumerate(dealt)]
    with claim_folder(folder):
        _remove_remains(folder)
        sources = [plan.hash(settings) for plan in plans]
        kept = _find_kept(folder, sources, settings)
        left = [plan for plan in plans if plan.number not in kept]
        report(sum(plans[number].seconds for number in kept))
        done = dict(kept)
        write_folder_index(folder, list(kept.values()), len(plans))
        with open(folder / INDEX_NAME, "ab") as index:
            for number, info in engine(left, partial(write_shard, folder, settings), report):
                done[number] = info.model_copy(update={"source": sources[number]})
                index.write(done[number].model_dump_json(exclude_defaults=True).encode() + b"\n")
                index.flush()
        infos = tuple(done[plan.number] for plan in plans)
        write_folder_index(folder, infos)
        _remove_remains(folder)
    if not any(info.utterances for info in infos):
        first = infos[0].failed[0].message
        raise UserError(f"{manifest.name}: none of its {len(manifest)} utterances could be packed; {first}")
    return PackReport(infos, len(kept))


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


def _find_kept(folder: Path, sources: Sequence[str], settings: PackSettings) -> dict[int, ShardInfo]:
    """The shards that an earlier run finished, by number; refuse a folder that holds any others.

    They would stay beside the new ones, where webdataset and lhotse find them, or be written over.
    """
    place = folder / INDEX_NAME
    infos: list[ShardInfo] = []
    own: set[str] = set()
    if place.exists():
        _, infos = parse_folder_index(str(place), place.read_bytes())
        own = {name_shard(number, settings) for number in range(len(sources))}  # perhaps not in the index yet
    there = {info.source: info for info in infos if _is_there(folder, info)}
    tars = [path for pattern in ("*.tar", "shar/*.tar") for path in folder.glob(pattern)]
    others = {path.relative_to(folder).as_posix() for path in tars} - own
    others |= {there[source].name for source in there.keys() - set(sources)}
    if others:
        raise UserError(
            f"{folder}: holds other shards, such as {min(others)}, of another manifest, other settings or "
            "another program; give another folder, or delete what is there to pack it anew"
        )
    return {number: there[source] for number, source in enumerate(sources) if source in there}


def _remove_remains(folder: Path) -> None:
    """Remove what killed processes have left half written."""
    for pattern in (".*.tmp", "shar/.*.tmp"):
        for remains in folder.glob(pattern):
            with contextlib.suppress(OSError):
                remains.unlink()


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


def write_in_processes(jobs: int) -> Engine:
    """Have shards written by so many processes of this machine."""

    def write_all(
        plans: Sequence[ShardPlan], write: Write, report: Report
    ) -> Iterator[tuple[int, ShardInfo]]:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_receive, initargs=(plans, write)
        ) as pool:
            futures = {pool.submit(_write_in_worker, index): plan for index, plan in enumerate(plans)}
            try:
                for future in as_completed(futures):
                    yield futures[future].number, future.result()
                    report(futures[future].seconds)
            except BrokenProcessPool:
                raise UserError(
                    "a process has died that packed audio, for want of memory or by a file that its decoder "
                    "cannot bear; the same command goes on, with --engine ray such a file is left out"
                ) from None
            finally:
                pool.shutdown(cancel_futures=True)

    return write_all


_received: tuple[Sequence[ShardPlan], Write]


def _receive(plans: Sequence[ShardPlan], write: Write) -> None:
    """Once in each worker, since a manifest may be large."""
    global _received
    _received = plans, write


def _write_in_worker(index: int) -> ShardInfo:
    plans, write = _received
    [(_, info)] = write_here([plans[index]], write, lambda seconds: None)
    return info


def name_shard(number: int, settings: PackSettings) -> str:
    return f"shar/recording.{number:06d}.tar" if settings.layout == "shar" else f"shard-{number:06d}.tar"


def write_shard(
    folder: Path, settings: PackSettings, number: int, utterances: Sequence[Utterance], report: Report
) -> ShardInfo:
    """Write one shard and its index."""
    is_shar = settings.layout == "shar"
    name = name_shard(number, settings)
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
    return finish_shard(folder, name, rows, failed, index_name, tar.size, tar.digest.hexdigest())


def finish_shard(
    folder: Path,
    name: str,
    rows: Sequence[PackedUtterance],
    failed: Sequence[Failure],
    index_name: str,
    size: int,
    sha256: str,
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
        source="",
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
