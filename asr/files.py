"""Write a file as a whole, so that an error leaves the old one; hash it; claim a folder for one writer."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from asr.errors import UserError

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 20


@contextlib.contextmanager
def replace_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` at the end. After an error, `path` is as it was."""
    target = Path(os.path.realpath(path))  # a symbolic link stays one
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.exists() and not target.is_file():
            raise UserError(f"{path}: not a regular file; give the path of a file to write")
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        raise UserError(f"{path}: cannot write the file ({error.strerror}{place})") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def hash_file(path: str | Path) -> str:
    """SHA-256 of the content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def claim_folder(folder: str | Path) -> Iterator[None]:
    """Within, another process that claims it is refused. A claim ends with its process, however that ends."""
    path = Path(folder) / ".lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab")  # noqa: SIM115
    except ValueError:
        raise UserError(f"{str(folder)!r}: a path holds no null character; correct it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error.strerror})") from None
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike that of flock, no child inherits it
        except BlockingIOError:
            raise UserError(
                f"{folder}: another process is writing there; wait for it, stop it, or take another folder"
            ) from None
        except OSError as error:
            logger.warning(
                "%s: not claimed, since this file system has no locks (%s)", folder, error.strerror
            )
        yield
