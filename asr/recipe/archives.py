"""Corpus archives: download with resume and checksum; unpack untrusted archives safely."""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from tqdm import tqdm

from asr.data.storage import retry
from asr.errors import UserError, shorten
from asr.files import hash_file, unpack

ATTEMPTS = 3  # per URL
TIMEOUT_SECONDS = 30.0  # without receiving a byte
MAX_HEADER_BYTES = 100_000_000  # headers and padding of all members of a tar file
_BLOCK_BYTES = 1 << 18
_NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)

# --- download -----------------------------------------------------------------------------------


def download(urls: Sequence[str], target: Path, sha256: str | None, *, max_bytes: int) -> None:
    """Fetch `target` from the first URL that has it; an existing file is kept.

    With a checksum, interrupted downloads are resumed, also by a later run, and `target` appears only when
    its content is as expected. Without a checksum, each attempt starts from the beginning, because nothing
    would show whether two halves belong together.
    """
    if target.exists():
        if sha256 is not None and hash_file(target) != sha256:
            raise UserError(
                f"{target}: not the expected file (its SHA-256 is not {sha256}); delete it and run this again"
            )
        return
    part = target.with_name(target.name + ".part")
    problems = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            try:
                retry(url, partial(_fetch, url, part, sha256, max_bytes), ATTEMPTS, _NETWORK_ERRORS)
            except UserError as error:
                problems += f"  {error}\n"
                continue
            os.replace(part, target)
            return
    except OSError as error:
        raise UserError(f"{error.filename or part}: cannot write the download ({error.strerror})") from None
    raise UserError(
        f"cannot download {target.name}; looked at:\n{problems}Get it on another machine, or find a copy "
        "of the corpus elsewhere; unpack it and pass --corpus-dir FOLDER"
    )


def _fetch(url: str, part: Path, sha256: str | None, max_bytes: int) -> None:
    """Append the missing bytes to `part`, or rewrite it if the server cannot resume; then verify it."""
    offset = part.stat().st_size if sha256 is not None and part.exists() else 0
    headers = {"User-Agent": "asr", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={offset}-"} if offset else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.unlink()  # the server has no further bytes: the part is complete, or of another file
        raise ConnectionError(str(error)) from None
    with response:
        received = offset if response.status == 206 else 0
        total = None if response.length is None else received + response.length
        with (
            tqdm(
                desc=part.stem, total=total, initial=received, unit="B", unit_scale=True, disable=None
            ) as bar,
            open(part, "ab" if received else "wb") as file,
        ):
            while block := response.read(_BLOCK_BYTES):
                received += len(block)
                if received > max_bytes:
                    file.truncate(0)
                    raise UserError(f"{url}: more than the {max_bytes:,} bytes that were expected")
                file.write(block)
                bar.update(len(block))
    if total is not None and received < total:
        raise ConnectionError(f"the connection ended after {received:,} of {total:,} bytes")
    if sha256 is not None and (found := hash_file(part)) != sha256:
        problem = f"sent another file: {received:,} bytes, SHA-256 {found}, but {sha256} was expected"
        part.unlink()
        # The half from an earlier run may be the wrong one, so try again from the start.
        raise ConnectionError(problem) if offset else UserError(f"{url}: {problem}")


# --- unpacking ----------------------------------------------------------------------------------


def extract(archive: Path, target: Path, *, max_bytes: int) -> None:
    """Unpack a .tar.gz or .zip into the folder `target`, which appears when complete.

    An existing `target` is kept. The data filter of tarfile refuses names and links that lead out of the
    folder, and zipfile makes them harmless. More than `max_bytes` are refused.
    """
    if target.is_dir():
        return
    if not hasattr(tarfile, "data_filter"):
        raise UserError(f"{archive}: this Python checks no names in archives; use 3.10.12, 3.11.4 or later")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        with open(archive, "rb") as file:
            if file.read(2) == b"PK":
                with zipfile.ZipFile(archive) as opened:
                    _limit_size(archive, sum(info.file_size for info in opened.infolist()), max_bytes)
                    opened.extractall(temporary)
            else:
                file.seek(0)
                with unpack(file, archive, max_bytes + MAX_HEADER_BYTES) as unpacked:
                    _extract_tar(archive, unpacked, temporary, max_bytes)
        os.rename(temporary, target)
    except tarfile.FilterError as error:
        raise UserError(f"{archive}: not unpacked: {shorten(str(error))}") from None
    except OSError as error:
        raise UserError(f"{error.filename or archive}: cannot unpack ({error.strerror or error})") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(
            f"{archive}: damaged, or neither .tar.gz nor a plain .zip ({error}); delete it and get it again"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract_tar(archive: Path, unpacked: IO[bytes], folder: Path, max_bytes: int) -> None:
    size = 0

    def admit(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
        nonlocal size
        size += member.size
        _limit_size(archive, size, max_bytes)
        mode = 0o755 if member.isdir() else 0o644  # nothing is executable
        return tarfile.data_filter(member, path).replace(mode=mode, deep=False)

    with tarfile.open(fileobj=unpacked, mode="r|") as tar:
        tar.extractall(folder, filter=admit)
    while unpacked.read(_BLOCK_BYTES):
        pass  # read to the end, because gzip verifies its checksum there


def _limit_size(archive: Path, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise UserError(
            f"{archive}: unpacks to more than the {max_bytes:,} bytes that were expected; not unpacked"
        )
