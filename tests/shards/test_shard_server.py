"""Shards from a slow, failing server: nothing lost or duplicated, and the same bits as from disk."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from shard_examples import load_shards, pack_noise, write_noise
from test_batches import assert_equal

from asr.data import read_data, storage
from asr.errors import UserError
from asr.shards.shards import ShardFolder

pytestmark = pytest.mark.slow
TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.syspath_prepend(str(TOOLS))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_faulty_server_changes_nothing(tmp_path: Path, num_workers: int) -> None:
    pytest.importorskip("aiohttp", reason="reads https://")
    from faulty_server import serve

    here = pack_noise(write_noise(tmp_path, 120), tmp_path / "shards", 8)
    with serve(tmp_path / "shards", problems=0.25, delay=0.005) as server:
        there = ShardFolder(f"http://127.0.0.1:{server.server_port}")
        assert ShardFolder(there.address).sha256 == ShardFolder(here.address).sha256
        for epoch in (0, 1):
            expected = load_shards(here, num_workers=0).epoch_batches(epoch)
            assert_equal(load_shards(there, num_workers=num_workers).epoch_batches(epoch), expected)
        assert all(server.counts[problem] for problem in ("503", "500", "429", "broken", "short"))


def test_only_necessary_ranges_are_read(tmp_path: Path) -> None:
    """A batch reads its audio and the indexes of two windows."""
    pytest.importorskip("aiohttp", reason="reads https://")
    from faulty_server import serve

    here = pack_noise(write_noise(tmp_path, 120), tmp_path / "shards", 8)
    with serve(tmp_path / "shards") as server:
        there = ShardFolder(f"http://127.0.0.1:{server.server_port}")
        server.counts.clear()
        batches = load_shards(there, num_workers=0).epoch_batches(0)
        next(batches)
        batches.close()
        total = sum(shard.info.size for shard in here.shards)
        indexes = sum(shard.info.index_size for shard in here.shards)
        assert 0 < server.counts["bytes"] < indexes + 0.1 * total


def test_a_missing_server_or_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp", reason="reads https://")
    from faulty_server import serve

    monkeypatch.setattr(storage, "ATTEMPTS", 2)
    monkeypatch.setattr(storage, "TIMEOUT_SECONDS", 0.3)
    with serve(tmp_path) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(UserError, match=r"contains no index\.jsonl"):
            list(read_data(f"{address}/shards"))
        with pytest.raises(UserError, match=r"a\.tar: cannot be read \("):
            storage.read_range(storage.ByteRange(f"{address}/a.tar", 0, 10))
    with pytest.raises(UserError, match="cannot be read after 2 attempts"):
        storage.read_range(storage.ByteRange(f"{address}/a.tar", 0, 10))
    silent = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=silent.accept, daemon=True).start()
    with pytest.raises(UserError, match="cannot be read after 2 attempts"):
        storage.read_range(storage.ByteRange(f"http://127.0.0.1:{silent.getsockname()[1]}/a.tar", 0, 10))
    silent.close()


def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moto.server", reason="a local S3")
    pytest.importorskip("s3fs", reason="reads s3://")
    from faulty_server import serve_s3

    here = pack_noise(write_noise(tmp_path, 120), tmp_path / "shards", 8)
    with serve_s3(tmp_path / "shards", problems=0.25, delay=0.005) as (variables, counts):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        there = ShardFolder("s3://corpus")
        for epoch in (0, 1):
            assert_equal(
                load_shards(there, num_workers=2).epoch_batches(epoch),
                load_shards(here, num_workers=0).epoch_batches(epoch),
            )
        assert all(counts[problem] for problem in ("503 Slow Down", "500 Error", "short"))
        with pytest.raises(UserError, match=r"s3://corpus/none: contains no index\.jsonl"):
            ShardFolder("s3://corpus/none")
