"""Byte ranges from anywhere: retried where useful, cached in a bounded folder, with clear errors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest

from asr.data import ByteRange, read_range, read_ranges, read_start, storage
from asr.errors import UserError

CONTENT = bytes(range(256)) * 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FIRST_WAIT_SECONDS", 0.001)


@pytest.fixture
def address() -> str:
    fsspec.filesystem("memory").pipe("/bucket/a.tar", CONTENT)
    return "memory://bucket/a.tar"


class Broken:
    """The memory file system, which fails in each of the first calls."""

    async_impl = False

    def __init__(self, *problems: Exception | bytes) -> None:
        self.problems = list(problems)
        self.calls = 0

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.calls += 1
        if self.problems:
            problem = self.problems.pop(0)
            if isinstance(problem, Exception):
                raise problem
            return problem
        return CONTENT[start:end]


def use(monkeypatch: pytest.MonkeyPatch, filesystem: Any) -> None:
    monkeypatch.setattr(storage, "_find_filesystem", lambda address: (filesystem, address))


def test_local_and_remote_ranges_are_equal(tmp_path: Path, address: str) -> None:
    (tmp_path / "a.tar").write_bytes(CONTENT)
    for place in (str(tmp_path / "a.tar"), address):
        assert read_range(ByteRange(place, 100, 300)) == CONTENT[100:400]
        assert read_start(place, 5000) == CONTENT
        with pytest.raises(UserError, match=r"a\.tar: larger than the 1,000 bytes"):
            read_start(place, 1000)
        found = read_ranges([ByteRange(place, 10 * n, 10) for n in range(50)])
        assert found == [CONTENT[10 * n : 10 * n + 10] for n in range(50)]


def test_an_error_affects_only_its_range(tmp_path: Path, address: str) -> None:
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
    assert isinstance(short, UserError) and "requested 9 bytes from byte 1,020 on, but received 4" in str(
        short
    )


@pytest.mark.parametrize(
    "problem", [ConnectionError("reset"), TimeoutError(), OSError("SlowDown"), CONTENT[:2]]
)
def test_transient_errors_are_retried(monkeypatch: pytest.MonkeyPatch, problem: Any) -> None:
    filesystem = Broken(*[problem] * (storage.ATTEMPTS - 1))
    use(monkeypatch, filesystem)
    assert read_range(ByteRange("s3://bucket/a.tar", 8, 8)) == CONTENT[8:16]
    assert filesystem.calls == storage.ATTEMPTS
    use(monkeypatch, Broken(*[problem] * storage.ATTEMPTS))
    message = f"s3://bucket/a.tar: cannot be read after {storage.ATTEMPTS} attempts"
    with pytest.raises(UserError, match=message):
        read_range(ByteRange("s3://bucket/a.tar", 8, 8))


@pytest.mark.parametrize("problem", [FileNotFoundError("a.tar"), PermissionError("Forbidden")])
def test_permanent_errors_are_reported_at_once(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    filesystem = Broken(problem)
    use(monkeypatch, filesystem)
    with pytest.raises(UserError, match=r"s3://bucket/a\.tar: cannot be read \("):
        read_range(ByteRange("s3://bucket/a.tar", 8, 8))
    assert filesystem.calls == 1


def test_a_server_without_ranges_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Broken(CONTENT))
    with pytest.raises(UserError, match=r"host/a\.tar: .*does not support ranges"):
        read_range(ByteRange("https://host/a.tar", 8, 8))


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UserError, match=r"gs://bucket: .*gcsfs|not an address"):
        read_range(ByteRange("gs://bucket/a.tar", 8, 8))


def test_ranges_are_fetched_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Together(Broken):
        barrier = threading.Barrier(16)

        def cat_file(self, path: str, start: int, end: int) -> bytes:
            self.barrier.wait(timeout=60)  # fails unless all are requested at once
            return super().cat_file(path, start, end)

    use(monkeypatch, Together())
    found = read_ranges([ByteRange("s3://a", n, 4) for n in range(16)])
    assert found == [CONTENT[n : n + 4] for n in range(16)]
