"""Read byte ranges of local and remote files (s3://, https://, hf:// ...), with retries and timeouts."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, NamedTuple

from asr.errors import UserError

logger = logging.getLogger(__name__)

ATTEMPTS = 7
FIRST_WAIT_SECONDS = 0.5  # before the second attempt; twice as long before each further one
LONGEST_WAIT_SECONDS = 20.0
TIMEOUT_SECONDS = 60.0  # per attempt
CONCURRENT_RANGES = 16  # ranges fetched at once per process
# File properties, as reported by file systems, that change when the file does.
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "created")
# Errors that a retry would hit again.
_FINAL = (FileNotFoundError, IsADirectoryError, PermissionError, ImportError, NotImplementedError, TypeError)


class MissingFileError(UserError):
    """The file does not exist."""


class ByteRange(NamedTuple):
    """A part of a file that is not expected to change."""

    address: str
    offset: int
    size: int
    version: str = ""
    """A hash of the whole file, so that ranges of different versions are not equal."""

    def __call__(self) -> bytes:
        return read_range(self)


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL for fsspec instead of a local path."""
    return "://" in str(path)


def join_address(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def find_file(address: str) -> ByteRange:
    """Return the byte range of a whole file at a URL."""
    filesystem, path = _find_filesystem(address)
    return _whole_file(address, retry(address, lambda: filesystem.info(path)))


def list_files(folder: str) -> list[ByteRange]:
    """List all files below a folder at a URL, sorted by name.

    Names are untrusted, so one that would lead out of the folder is left out.
    """
    filesystem, path = _find_filesystem(f"{folder.rstrip('/')}/")
    found = retry(folder, lambda: filesystem.find(path.rstrip("/"), detail=True))
    files = []
    for name, info in sorted(found.items()):
        parts = name.removeprefix(path.rstrip("/")).strip("/").split("/")
        is_below = name.startswith(path.rstrip("/") + "/") and not {"", ".", ".."} & set(parts)
        if is_below and isinstance(info.get("size"), int):
            files.append(_whole_file("/".join([folder.rstrip("/"), *parts]), info))
        else:
            logger.warning("%s: skipping %r, which is outside the folder or of unknown size", folder, name)
    return files


def _whole_file(address: str, info: Mapping[str, Any]) -> ByteRange:
    if info.get("type") == "directory" or not isinstance(info.get("size"), int):
        raise UserError(f"{address}: not a file of known size; give the URL of a file or folder")
    version = next((info[name] for name in _VERSIONS if info.get(name) is not None), "")
    if isinstance(version, datetime):  # some file systems return it as a number
        version = version.timestamp()
    return ByteRange(address, 0, info["size"], str(version))


def read_start(address: str, max_bytes: int) -> bytes:
    """Read a whole file of unknown size; one larger than `max_bytes` is refused."""
    content = _read(address, 0, max_bytes + 1, least=0)
    if len(content) > max_bytes:
        raise UserError(f"{address}: larger than the {max_bytes:,} bytes that such a file may have")
    return content


def read_range(request: ByteRange) -> bytes:
    """Read one range."""
    address, offset, size, _ = request
    content = _read(address, offset, size, least=size)
    if len(content) != size:
        raise UserError(
            f"{address}: requested {size:,} bytes from byte {offset:,} on, but received {len(content):,}; "
            "the file is truncated or does not match its index, or the server does not support ranges"
        )
    return content


def read_ranges(requests: Sequence[ByteRange]) -> list[bytes | UserError]:
    """Read ranges, remote ones concurrently. A failed range is returned as its error."""
    if sum(is_address(one.address) for one in requests) <= 1:
        return [_read_or_error(one) for one in requests]
    for one in requests:  # opened here, so that all threads share the file system's connections
        if is_address(one.address):
            with contextlib.suppress(UserError):
                _find_filesystem(one.address)
    with ThreadPoolExecutor(CONCURRENT_RANGES, thread_name_prefix="asr-storage") as pool:
        return list(pool.map(_read_or_error, requests))


def _read_or_error(request: ByteRange) -> bytes | UserError:
    try:
        return read_range(request)
    except UserError as error:
        return error


def _read(address: str, offset: int, size: int, least: int) -> bytes:
    """Read up to `size` bytes. If a remote file returns fewer than `least`, it is tried again."""
    if is_address(address):
        filesystem, path = _find_filesystem(address)

        def fetch() -> bytes:
            content = _cat(filesystem, path, offset, offset + size)
            if len(content) < least:
                raise EOFError(f"received {len(content):,} of {size:,} bytes")
            return content

        return bytes(retry(address, fetch))
    try:
        with open(address, "rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else UserError
        raise kind(f"{address}: cannot read the file ({error.strerror})") from None


# --- addresses ----------------------------------------------------------------------------------


def _find_filesystem(address: str) -> tuple[Any, str]:
    folder, _, name = address.rpartition("/")
    filesystem, path = _open_filesystem(os.getpid(), folder)
    return filesystem, f"{path.rstrip('/')}/{name}"


@functools.lru_cache(maxsize=64)
def _open_filesystem(process_id: int, folder: str) -> tuple[Any, str]:
    """Open a file system for this process, because a forked worker cannot use its parent's connections."""
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(folder)
    except ImportError as error:
        raise UserError(f"{folder}: {error}") from None  # fsspec names the package to install
    except (ValueError, OSError) as error:
        raise UserError(f"{folder}: not a URL that can be read ({error})") from None
    return filesystem, str(path)


def _cat(filesystem: Any, path: str, start: int, end: int) -> bytes:
    if not filesystem.async_impl:  # synchronous ones have timeouts of their own
        return bytes(filesystem.cat_file(path, start=start, end=end))
    from fsspec.asyn import sync

    span = {"start": start, "end": end, "timeout": TIMEOUT_SECONDS}
    return bytes(sync(filesystem.loop, filesystem._cat_file, path, **span))


def retry(
    address: str,
    attempt: Callable[[], Any],
    attempts: int | None = None,
    passing: tuple[type[Exception], ...] = (Exception,),  # each file system has its own
) -> Any:
    """Call `attempt`, and retry after transient errors; permanent errors are raised at once."""
    attempts = attempts or ATTEMPTS
    for number in range(1, attempts + 1):
        try:
            return attempt()
        except UserError:
            raise
        except passing as error:
            problem = str(error) or type(error).__name__
            status = getattr(error, "status", None)  # HTTP status
            is_final = isinstance(error, _FINAL) if not isinstance(status, int) else status // 100 == 4
            if is_final and status not in (408, 425, 429):
                kind = MissingFileError if isinstance(error, FileNotFoundError) else UserError
                raise kind(f"{address}: cannot be read ({problem})") from None
            if number == attempts:
                raise UserError(f"{address}: cannot be read after {attempts} attempts ({problem})") from None
            wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (number - 1))
            wait *= random.uniform(0.5, 1.0)  # jitter, so that processes do not all retry at once
            logger.info("%s: %s; trying again in %.1f s", address, problem, wait)
            time.sleep(wait)
    raise AssertionError
