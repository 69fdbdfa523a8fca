"""Byte ranges from anywhere: retried where that helps, kept in a bounded folder, and each fault told plainly."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from asr.data import ByteRange, read_range, read_ranges, read_start, storage
from asr.errors import UserError

CONTENT = bytes(range(256)) * 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storage, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setenv("ASR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ASR_CACHE_GB", "0")


@pytest.fixture
def address() -> str:
    fsspec.filesystem("memory").pipe("/bucket/a.tar", CONTENT)
    return "memory://bucket/a.tar"


class Faulty:
    """The memory file system, with a fault in each of the first calls."""

    async_impl = False

    def __init__(self, *faults: Exception | bytes) -> None:
        self.faults = list(faults)
        self.calls = 0

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.calls += 1
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        return CONTENT[start:end]


def use(monkeypatch: pytest.MonkeyPatch, filesystem: Any) -> None:
    monkeypatch.setattr(storage, "_find_filesystem", lambda address: (filesystem, address))


def test_ranges_here_and_elsewhere_are_the_same(tmp_path: Path, address: str) -> None:
    (tmp_path / "a.tar").write_bytes(CONTENT)
    for place in (str(tmp_path / "a.tar"), address):
        assert read_range(ByteRange(place, 100, 300)) == CONTENT[100:400]
        assert read_start(place, 5000) == CONTENT
        with pytest.raises(UserError, match=r"a\.tar: larger than the 1,000 bytes"):
            read_start(place, 1000)
        found = read_ranges([ByteRange(place, 10 * n, 10) for n in range(50)])
        assert found == [CONTENT[10 * n : 10 * n + 10] for n in range(50)]


def test_a_fault_costs_its_range_alone(tmp_path: Path, address: str) -> None:
    """And a file that is shorter than its index tells is not read as if it were whole."""
    (tmp_path / "a.tar").write_bytes(CONTENT)
    good, missing, short = read_ranges(
        [
            ByteRange(address, 0, 4),
            ByteRange("memory://bucket/b.tar", 0, 4),
            ByteRange(str(tmp_path / "a.tar"), 1020, 9),
        ]
    )
    assert good == CONTENT[:4]
    assert isinstance(missing, UserError) and "memory://bucket/b.tar: cannot be read" in str(missing)
    assert isinstance(short, UserError) and "9 bytes are wanted from byte 1,020 on, but only 4" in str(short)


@pytest.mark.parametrize(
    "fault", [ConnectionError("reset"), TimeoutError(), OSError("SlowDown"), CONTENT[:2]]
)
def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    filesystem = Faulty(*[fault] * (storage.ATTEMPTS - 1))
    use(monkeypatch, filesystem)
    assert read_range(ByteRange("s3://bucket/a.tar", 8, 8)) == CONTENT[8:16]
    assert filesystem.calls == storage.ATTEMPTS
    use(monkeypatch, Faulty(*[fault] * storage.ATTEMPTS))
    with pytest.raises(
        UserError, match=f"s3://bucket/a.tar: cannot be read, after {storage.ATTEMPTS} attempts"
    ):
        read_range(ByteRange("s3://bucket/a.tar", 8, 8))


@pytest.mark.parametrize("fault", [FileNotFoundError("a.tar"), PermissionError("Forbidden")])
def test_what_does_not_pass_is_told_at_once(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    filesystem = Faulty(fault)
    use(monkeypatch, filesystem)
    with pytest.raises(UserError, match=r"s3://bucket/a\.tar: cannot be read \("):
        read_range(ByteRange("s3://bucket/a.tar", 8, 8))
    assert filesystem.calls == 1


def test_a_server_without_ranges_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Faulty(CONTENT))
    with pytest.raises(UserError, match="sends the whole file where a range is asked for"):
        read_range(ByteRange("https://host/a.tar", 8, 8))


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UserError, match=r"pip install 'asr-toolkit\[remote\]'|not an address"):
        read_range(ByteRange("gs://bucket/a.tar", 8, 8))


def test_what_was_fetched_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASR_CACHE_GB", "0.001")
    filesystem = Faulty()
    use(monkeypatch, filesystem)
    for _ in range(3):
        assert read_range(ByteRange("s3://bucket/a.tar", 8, 8, "v1")) == CONTENT[8:16]
    assert filesystem.calls == 1
    for other in (ByteRange("s3://bucket/a.tar", 8, 8, "v2"), ByteRange("s3://bucket/b.tar", 8, 8, "v1")):
        read_range(other)
    assert filesystem.calls == 3


def test_the_cache_is_bounded_and_drops_the_least_recently_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = storage._Cache(tmp_path / "cache", 10_000)
    for number in range(100):
        cache.put(ByteRange("s3://a", number, 500), bytes(500))
        os.utime(cache._locate(ByteRange("s3://a", number, 500)), ns=(number, number))
        assert cache.get(ByteRange("s3://a", 0, 500)) is not None  # again and again: it stays
        size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
        assert size <= 10_000
    assert cache.get(ByteRange("s3://a", 99, 500)) is not None
    assert cache.get(ByteRange("s3://a", 50, 500)) is None


def test_a_disk_that_cannot_be_written_costs_the_cache_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder belongs")
    monkeypatch.setenv("ASR_CACHE_GB", "1.5")
    assert read_range(ByteRange(address, 0, 4)) == CONTENT[:4]
    assert "cannot keep what is fetched" in caplog.text


def test_nonsense_in_the_environment(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("ASR_CACHE_GB", "lots")
    with pytest.raises(UserError, match="ASR_CACHE_GB=lots in the environment: expected gigabytes"):
        read_range(ByteRange(address, 0, 4))


def test_ranges_are_fetched_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Faulty):
        def cat_file(self, path: str, start: int, end: int) -> bytes:
            time.sleep(0.02)
            return super().cat_file(path, start, end)

    use(monkeypatch, Slow())
    begin = time.monotonic()
    read_ranges([ByteRange("s3://a", n, 4) for n in range(16)])
    assert time.monotonic() - begin < 16 * 0.02 / 2
