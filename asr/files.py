"""Write files as a whole, unpack and hash them, find what comes along, claim a folder."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import logging
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from asr.errors import UserError

logger = logging.getLogger(__name__)

LOCK = ".lock"
# gzip shrinks text tenfold, rarely a hundredfold; a decompression bomb expands about a thousandfold.
MAX_EXPANSION = 200
MAX_FREE_EXPANSION = 10_000_000  # bytes that any gzip file may unpack to, however small it is
MAX_UNPACKED_PIPE = 1_000_000_000  # bytes that a pipe may unpack to, because its size is unknown


def unpack(file: IO[bytes], name: str | Path, max_bytes: int | None = None) -> io.BufferedReader:
    """Return the file itself, or a stream that unpacks it if it is gzipped, up to a limit no text reaches."""
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, file))
    if buffered.peek(2)[:2] != b"\x1f\x8b":
        return buffered
    if max_bytes is None:
        max_bytes = MAX_UNPACKED_PIPE
        with contextlib.suppress(OSError):  # not a file on disk
            status = os.fstat(buffered.fileno())
            if stat.S_ISREG(status.st_mode):
                max_bytes = MAX_FREE_EXPANSION + MAX_EXPANSION * status.st_size
    return io.BufferedReader(_Gunzip(buffered, name, max_bytes))


class _Gunzip(io.RawIOBase):
    def __init__(self, file: IO[bytes], name: str | Path, max_bytes: int) -> None:
        self._unpacked = gzip.GzipFile(fileobj=file)
        self._name = name
        self._left = self._max_bytes = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._unpacked.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self._name}: damaged gzip file ({error}); download it again") from None
        self._left -= len(data)
        if self._left < 0:
            raise UserError(
                f"{self._name}: unpacks to more than {self._max_bytes:,} bytes, too much for its size; "
                "unpack it with gunzip if you trust it"
            )
        buffer[: len(data)] = data
        return len(data)


def require_local(path: str | Path) -> None:
    """Refuse to write to a URL such as s3://bucket, which would create a folder named `s3:`."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise UserError(f"{path}: outputs are written to local files; give a local path, and upload it later")


def make_folder(path: str | Path) -> None:
    require_local(path)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot create this folder ({error.strerror}); give another one") from None


@contextlib.contextmanager
def replace_file(path: str | Path, *, flush: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` at the end. After an error, `path` is unchanged.

    `flush`: wait for the disk, so that the file survives a power cut; too slow for thousands of files.
    """
    require_local(path)
    target = Path(os.path.realpath(path))  # a symbolic link stays one
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.exists() and not target.is_file():
            raise UserError(f"{path}: not a regular file; give the path of a file to write")
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if flush:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:  # from this file, or from a file that is read inside the `with`
        name = f": {error.filename}" if error.filename else ""
        raise UserError(f"{path}: cannot write the file ({error.strerror}{name})") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Give a file that a library writes the mode set by the umask; safetensors makes its files private."""
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def read_limited(path: str | Path, max_bytes: int, reason: str) -> bytes:
    """Return the whole content. A larger file is refused with this reason and never held in memory."""
    try:
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror})") from None
    if len(content) > max_bytes:
        raise UserError(f"{path}: over {max_bytes:,} bytes, {reason}")
    return content


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of the content in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


CHECKOUT = Path(__file__).resolve().parent.parent
SHIPPED = Path(__file__).resolve().parent / "shipped"
"""Folder of `recipes` and `conf` in an installed package; in a checkout they are next to the package."""


def find_shipped(path: str | Path) -> Path:
    """Return the path if it exists, else the file or folder shipped under it (`recipes/an4/pretrained`)."""
    path = Path(path)
    if os.path.exists(path) or path.parts[:1] not in (("conf",), ("recipes",)) or ".." in path.parts:
        return path
    return next((root / path for root in (CHECKOUT, SHIPPED) if os.path.exists(root / path)), path)


_claims: set[tuple[int, str]] = set()
"""Process ID and lock file of each claim. To open and close a file that this process has locked would release
the lock. A child process inherits this set but not the locks, hence the process ID."""


@contextlib.contextmanager
def claim_folder(folder: str | Path) -> Iterator[None]:
    """Lock the folder against other claims. A claim ends with its process, however the process ends."""
    require_local(folder)
    path = Path(folder) / LOCK
    taken = UserError(f"{folder}: another process is writing there; wait, stop it, or use another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = os.getpid(), os.path.realpath(path)
        file = None if claim in _claims else open(path, "ab")  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise UserError(f"{str(folder)!r}: cannot write there ({error})") from None
    if file is None:
        raise taken
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock's, not inherited by children
        except BlockingIOError:
            raise taken from None
        except OSError as error:  # a file system without locks
            logger.warning("%s: cannot be locked (%s)", folder, error.strerror)
        _claims.add(claim)
        try:
            yield
        finally:
            _claims.discard(claim)
