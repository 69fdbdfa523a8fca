"""Reading shards: random access, from any address, and never outside their folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from shard_examples import RATE, pack_noise

from asr.audio import reading as audio_files
from asr.data import Manifest, fetch, is_shards, read_audio, read_data
from asr.errors import UserError
from asr.shards.shard_loader import ShardWindow
from asr.shards.shards import ShardFolder


@pytest.fixture
def folder(manifest: Manifest, tmp_path: Path) -> Path:
    pack_noise(manifest, tmp_path / "shards", 3)
    return tmp_path / "shards"


def change_row(folder: Path, **fields: Any) -> None:
    """Change the first utterance of the first shard, and the hash of its index so that it fits."""
    path = folder / "shard-000000.jsonl"
    first, *others = path.read_text().splitlines()
    content = "".join(f"{line}\n" for line in (json.dumps(json.loads(first) | fields), *others)).encode()
    path.write_bytes(content)
    change_shard(folder, index_size=len(content), index_sha256=hashlib.sha256(content).hexdigest())


def change_shard(folder: Path, **fields: Any) -> None:
    path = folder / "index.jsonl"
    header, first, *others = path.read_text().splitlines()
    lines = (header, json.dumps(json.loads(first) | fields), *others)
    path.write_text("".join(f"{line}\n" for line in lines))


def test_a_window_finds_each_utterance(manifest: Manifest, folder: Path) -> None:
    window = ShardWindow(ShardFolder(folder).shards[:2])
    items = list(window)
    assert len(items) == len(window) > 4
    assert [window[position] for position in range(len(window))] == items


def test_shards_are_read_from_an_address(manifest: Manifest, folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/bucket/shards", recursive=True)
    here, there = list(read_data(folder)), list(read_data("memory://bucket/shards/"))
    assert len(here) == 12 and [item.id for item in here] == [item.id for item in there]
    assert ShardFolder(folder).sha256 == ShardFolder("memory://bucket/shards").sha256
    for item, other, content in zip(here, there, fetch(there), strict=True):
        assert other.audio.startswith("bucket/shards/shard-")
        assert np.array_equal(read_audio(item, RATE), read_audio(other, RATE, content))
    memory.rm("/bucket", recursive=True)


def test_recognizing_a_folder_of_shards(folder: Path, manifest: Manifest) -> None:
    assert is_shards(folder) and is_shards(folder / "index.jsonl") and is_shards("s3://bucket/x")
    assert not is_shards(manifest.paths[0])
    assert [item.id for item in read_data(folder / "index.jsonl")] == [item.id for item in read_data(folder)]
    with pytest.raises(UserError, match=r"contains no index\.jsonl.*asr manifest pack"):
        list(read_data(folder.parent))


def test_a_sample_is_the_beginning(folder: Path) -> None:
    assert list(read_data(folder, max_packed=7)) == list(read_data(folder))[:7]
    assert len(list(read_data(folder, max_packed=100))) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: change_shard(folder, name="../other.tar"), "name"),
        (lambda folder: change_shard(folder, name="/etc/passwd"), "name"),
        (lambda folder: change_shard(folder, name="https://host/a.tar"), "name"),
        (lambda folder: change_shard(folder, name="a/../../b.tar"), "name"),
        (lambda folder: change_shard(folder, index="..\\b.jsonl"), "index"),
        (lambda folder: change_shard(folder, index_size=1 << 40), "index_size"),
        (lambda folder: change_shard(folder, size=-1), "size"),
        (lambda folder: change_shard(folder, utterances=1 << 60), "utterances"),
        (lambda folder: change_shard(folder, utterances=3000), "another number of lines"),
        (lambda folder: change_shard(folder, name="shard-000001.tar"), "named twice"),
        (lambda folder: change_shard(folder, seconds="many"), "seconds"),
        (lambda folder: change_row(folder, offset=1 << 40), "ends after the"),
        (lambda folder: change_row(folder, offset=-5), "offset"),
        (lambda folder: change_row(folder, size=1 << 45), "size"),
        (lambda folder: change_row(folder, color="red"), "color"),
        (lambda folder: (folder / "shard-000000.jsonl").write_bytes(b"{}\n"), "truncated or does not match"),
        (lambda folder: (folder / "shard-000000.jsonl").unlink(), "cannot read the file"),
        (lambda folder: (folder / "index.jsonl").write_bytes(b"\x80\x04pickle\n"), "not an index of shards"),
        (lambda folder: (folder / "index.jsonl").write_bytes(b""), "empty"),
    ],
)  # fmt: skip
def test_hostile_and_damaged_indexes_are_refused(
    folder: Path, change: Callable[[Path], object], message: str
) -> None:
    change(folder)
    with pytest.raises(UserError, match=message):
        list(read_data(folder))


def test_an_index_opens_only_its_shard(manifest: Manifest, folder: Path) -> None:
    """Neither the path of the audio nor fields that only the reader sets can change that."""
    change_row(folder, audio="/etc/passwd", shard="https://evil.example/x.tar", version="f")
    item = next(iter(read_data(folder)))
    assert item.shard == str(folder / "shard-000000.tar") and item.version != "f"  # type: ignore[attr-defined]
    expected = next(other for other in manifest if other.id == item.id)
    assert np.array_equal(read_audio(item, RATE), audio_files.read(expected.audio, RATE))


def test_a_range_that_is_no_audio_is_a_fault_of_its_utterance(folder: Path) -> None:
    change_row(folder, offset=0, size=40)
    items = list(read_data(folder))
    with pytest.raises(UserError, match=r"shard-000000\.tar/.*flac: "):
        read_audio(items[0], RATE)
    assert len(read_audio(items[1], RATE))
