"""Read byte ranges of files, here or at an address such as s3://, https:// or hf://: retried, timed, cached.

What is fetched from an address is kept in a folder of bounded size, the least recently used leave it first:
`~/.cache/asr`, or ASR_CACHE in the environment; ASR_CACHE_GB sets its size (0: keep nothing).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from asr.errors import UserError

logger = logging.getLogger(__name__)

ATTEMPTS = 7
FIRST_WAIT_SECONDS = 0.5  # before the second attempt; twice as long before each further one
LONGEST_WAIT_SECONDS = 20.0
TIMEOUT_SECONDS = 60.0  # of one attempt
CONCURRENT_RANGES = 16  # of one process at a time
DEFAULT_CACHE_GB = 10.0
# Of the properties that file systems tell, those that are others when a file is.
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "created")
# How much a process adds to the cache before it looks at its size again, as a share of that size.
_UNCHECKED_SHARE = 0.05
_WRITING_SECONDS = 600.0  # a file that is older and not yet renamed is of a process that has died


class MissingFileError(UserError):
    """There is no such file."""


class ByteRange(NamedTuple):
    """A part of a file that is not expected to change."""

    address: str
    offset: int
    size: int
    version: str = ""
    """A hash of the whole file: the range of another version is another one."""

    def __call__(self) -> bytes:
        return read_range(self)


def is_address(path: str | os.PathLike[str]) -> bool:
    """Tell an address for fsspec from a local path."""
    return "://" in str(path)


def join_address(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def find_file(address: str) -> ByteRange:
    """The whole of a file at an address."""
    filesystem, path = _find_filesystem(address)
    return _whole_file(address, _retry(address, lambda: filesystem.info(path)))


def list_files(folder: str) -> list[ByteRange]:
    """All files below a folder at an address, in the order of their names.

    What the names are is up to those who write there: one that would lead out of the folder is left out.
    """
    filesystem, path = _find_filesystem(f"{folder.rstrip('/')}/")
    found = _retry(folder, lambda: filesystem.find(path.rstrip("/"), detail=True))
    files = []
    for name, info in sorted(found.items()):
        parts = name.removeprefix(path.rstrip("/")).strip("/").split("/")
        if {"", ".", ".."} & set(parts) or not name.startswith(path.rstrip("/") + "/"):
            logger.warning("%s: %r is left out, which is no name below it", folder, name)
        elif not isinstance(info.get("size"), int):
            logger.warning("%s: %r is left out, whose size is unknown", folder, name)
        else:
            files.append(_whole_file("/".join([folder.rstrip("/"), *parts]), info))
    return files


def _whole_file(address: str, info: Mapping[str, Any]) -> ByteRange:
    if info.get("type") == "directory" or not isinstance(info.get("size"), int):
        raise UserError(f"{address}: not a file whose size is known; give the address of a file or folder")
    version = next((info[name] for name in _VERSIONS if info.get(name) is not None), "")
    if isinstance(version, datetime):  # some file systems list it as a number
        version = version.timestamp()
    return ByteRange(address, 0, info["size"], str(version))


def read_start(address: str, max_bytes: int) -> bytes:
    """Read a whole file of unknown size, of which more than `max_bytes` are refused. Never cached."""
    if is_address(address):
        filesystem, path = _find_filesystem(address)
        content = _retry(address, lambda: _cat(filesystem, path, 0, max_bytes + 1))
    else:
        content = _read_local(address, 0, max_bytes + 1)
    if len(content) > max_bytes:
        raise UserError(f"{address}: larger than the {max_bytes:,} bytes that such a file may have")
    return content


def read_range(wanted: ByteRange) -> bytes:
    """Read one range."""
    [content] = read_ranges([wanted])
    if isinstance(content, UserError):
        raise content
    return content


def read_ranges(wanted: Sequence[ByteRange]) -> list[bytes | UserError]:
    """Read ranges, those at addresses at the same time. A fault costs its range alone."""
    if sum(is_address(one.address) for one in wanted) <= 1:
        return [_read_or_error(one) for one in wanted]
    for one in wanted:  # here, so that all threads share the connections of one file system
        if is_address(one.address):
            with contextlib.suppress(UserError):
                _find_filesystem(one.address)
    return list(_find_pool(os.getpid()).map(_read_or_error, wanted))


@functools.lru_cache(maxsize=1)
def _find_pool(process_id: int) -> ThreadPoolExecutor:
    """The threads of this process: a forked worker has none of those of its parent."""
    return ThreadPoolExecutor(CONCURRENT_RANGES, thread_name_prefix="asr-storage")


def _read_or_error(wanted: ByteRange) -> bytes | UserError:
    try:
        if not is_address(wanted.address):
            content = _read_local(wanted.address, wanted.offset, wanted.size)
            if len(content) < wanted.size:
                raise UserError(_describe_short(wanted, len(content)))
            return content
        return _read_remote(wanted)
    except UserError as error:
        return error


def _describe_short(wanted: ByteRange, found: int) -> str:
    return (
        f"{wanted.address}: {wanted.size:,} bytes are wanted from byte {wanted.offset:,} on, but only "
        f"{found:,} are there; the file is cut short, or not the one that its index describes: copy it again"
    )


def _read_local(path: str, offset: int, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else UserError
        raise kind(f"{path}: cannot read the file ({error.strerror})") from None


# --- addresses ----------------------------------------------------------------------------------


def _read_remote(wanted: ByteRange) -> bytes:
    cache = _find_cache()
    if cache is not None and (kept := cache.get(wanted)) is not None:
        return kept
    filesystem, path = _find_filesystem(wanted.address)

    def fetch() -> bytes:
        content = _cat(filesystem, path, wanted.offset, wanted.offset + wanted.size)
        if len(content) > wanted.size:
            raise UserError(f"{wanted.address}: the server sends the whole file where a range is asked for; "
                            "take one that knows the header Range")  # fmt: skip
        if len(content) < wanted.size:
            raise EOFError(_describe_short(wanted, len(content)))
        return content

    content = _retry(wanted.address, fetch)
    if cache is not None:
        cache.put(wanted, content)
    return content


def _find_filesystem(address: str) -> tuple[Any, str]:
    protocol = address.partition("://")[0]
    filesystem, path = _open_filesystem(os.getpid(), address.rpartition("/")[0], protocol)
    name = address.rpartition("/")[2]
    return filesystem, f"{path.rstrip('/')}/{name}"


@functools.lru_cache(maxsize=64)
def _open_filesystem(process_id: int, folder: str, protocol: str) -> tuple[Any, str]:
    """By process: the connections of a parent are of no use to a forked worker."""
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(folder)
    except ImportError as error:
        raise UserError(
            f"{folder}: {protocol}:// needs another package ({error}); "
            "`pip install 'asr-toolkit[remote]'` brings those for s3:// and https://"
        ) from None
    except (ValueError, OSError) as error:
        raise UserError(f"{folder}: not an address that can be read ({error})") from None
    return filesystem, str(path)


def _cat(filesystem: Any, path: str, start: int, end: int) -> bytes:
    if filesystem.async_impl:
        from fsspec.asyn import sync

        return bytes(
            sync(
                filesystem.loop, filesystem._cat_file, path, start=start, end=end, timeout=TIMEOUT_SECONDS
            )
        )  # fmt: skip
    return bytes(filesystem.cat_file(path, start=start, end=end))  # these have time-outs of their own


def _retry(address: str, attempt: Any) -> Any:
    """Call until it succeeds; what another attempt would meet again is told at once."""
    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except UserError:
            raise
        except Exception as error:  # each file system has its own
            fault = _describe(error)
            if _is_final(error):
                kind = MissingFileError if isinstance(error, FileNotFoundError) else UserError
                raise kind(f"{address}: cannot be read ({fault})") from None
            if number == ATTEMPTS:
                raise UserError(
                    f"{address}: cannot be read, after {ATTEMPTS} attempts ({fault}); is the server there?"
                ) from None
            wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (number - 1))
            wait *= random.uniform(0.5, 1.0)  # so that a thousand processes do not come back all at once
            logger.info("%s: %s; trying again in %.1f s", address, fault, wait)
            time.sleep(wait)
    raise AssertionError


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


def _is_final(error: Exception) -> bool:
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return 400 <= status < 500 and status not in (408, 425, 429)
    kinds = (
        FileNotFoundError,
        IsADirectoryError,
        PermissionError,
        ImportError,
        NotImplementedError,
        TypeError,
    )
    return isinstance(error, kinds)


# --- cache --------------------------------------------------------------------------------------


def _find_cache() -> _Cache | None:
    folder = os.environ.get("ASR_CACHE") or os.path.join(Path.home(), ".cache", "asr")
    given = os.environ.get("ASR_CACHE_GB") or str(DEFAULT_CACHE_GB)
    return _open_cache(os.path.join(folder, "ranges"), given)


@functools.lru_cache(maxsize=4)
def _open_cache(folder: str, gigabytes: str) -> _Cache | None:
    try:
        max_bytes = float(gigabytes) * 1e9
    except ValueError:
        max_bytes = -1.0
    if not 0 <= max_bytes < 1e18:
        raise UserError(f"ASR_CACHE_GB={gigabytes} in the environment: expected gigabytes, 0 or more")
    return _Cache(Path(folder), int(max_bytes)) if max_bytes else None


class _Cache:
    """One file for each range, shared by all processes of the machine; a full disk only costs the cache."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._unchecked = max_bytes  # looks at the size before it first writes
        self._is_broken = False

    def _locate(self, wanted: ByteRange) -> Path:
        name = hashlib.sha256("\n".join(map(str, wanted)).encode()).hexdigest()
        return self._folder / name[:2] / name[2:]

    def get(self, wanted: ByteRange) -> bytes | None:
        path = self._locate(wanted)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # its turn to leave is put off
        return content if len(content) == wanted.size else None

    def put(self, wanted: ByteRange, content: bytes) -> None:
        if len(content) > self._max_bytes or self._is_broken:
            return
        path = self._locate(wanted)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{random.getrandbits(32):08x}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._unchecked += len(content)
            if self._unchecked > _UNCHECKED_SHARE * self._max_bytes:
                self._unchecked = 0
                self._shrink(len(content))
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except OSError as error:
            self._is_broken = True
            logger.warning(
                "%s: cannot keep what is fetched (%s); going on without", path.parent, error.strerror
            )
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _shrink(self, coming: int) -> None:
        """Make room for what is coming and for what is added unchecked."""
        files = []
        for entry in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):  # another process has removed it
                status = entry.stat()
                if entry.name.startswith(".") and time.time() - status.st_mtime < _WRITING_SECONDS:
                    continue
                files.append((status.st_mtime_ns, status.st_size, entry))
        left = sum(size for _, size, _ in files)
        for _, size, entry in sorted(files, key=lambda file: file[:2]):
            if left + coming <= (1 - _UNCHECKED_SHARE) * self._max_bytes:
                return
            with contextlib.suppress(OSError):
                entry.unlink()
            left -= size
