"""Writing a file as a whole: after an interruption or an error, the old one is still there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from asr.errors import UserError


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
