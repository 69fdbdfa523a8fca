"""Archives of corpora: download with resume and checksum, unpack without trust."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import re
import shutil
import ssl
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from asr.errors import UserError, shorten
from asr.files import hash_file, unpack

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # at each address
BACKOFF_SECONDS = 1.0  # before the second attempt; twice as long before each further one
TIMEOUT_SECONDS = 30.0  # without a byte
MAX_HEADER_BYTES = 100_000_000  # of a tar file, in which each member has a header and padding
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
    """Fetch `target` from the first address that has it; a file that is already there is kept.

    With a checksum, an interrupted download is continued, here and in a later run, and `target` appears only
    when its content is the expected one. Without one, nothing would say that two halves belong together:
    each attempt starts from the beginning.
    """
    for url in urls:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise UserError(f"{url}: expected an address that begins with http:// or https://")
    if target.exists():
        if sha256 is not None and hash_file(target) != sha256:
            raise UserError(
                f"{target}: not the expected file (its SHA-256 is not {sha256}); delete it and run this again"
            )
        logger.info("%s is already there", target)
        return
    part = target.with_name(target.name + ".part")
    faults = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            fault = _fetch(url, part, sha256, max_bytes)
            if fault is None:
                os.replace(part, target)
                return
            logger.warning("%s: %s", url, fault)
            faults.append(f"  {url}\n    {fault}")
    except OSError as error:
        raise UserError(f"{error.filename or part}: cannot write the download ({error.strerror})") from None
    raise UserError(
        f"cannot download {target.name}; looked at:\n"
        + "\n".join(faults)
        + "\nGet the archive from one of these addresses on another machine, or find a copy of the corpus "
        "elsewhere; unpack it and pass --corpus-dir FOLDER"
    )


class _FetchError(Exception):
    """A fault at one address; `is_final` if another attempt there would meet the same."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


def _fetch(url: str, part: Path, sha256: str | None, max_bytes: int) -> str | None:
    """Complete `part`, or return what was wrong with the last attempt."""
    fault = None
    for attempt in range(ATTEMPTS):
        if attempt:
            logger.info("%s: %s; trying again", url, fault)
            time.sleep(BACKOFF_SECONDS * 2 ** (attempt - 1))
        offset = part.stat().st_size if sha256 is not None and part.exists() else 0
        try:
            _transfer(url, part, offset, max_bytes)
            _require_checksum(part, sha256, offset > 0)
            return None
        except _FetchError as error:
            fault = str(error)
            if error.is_final:
                break
        except urllib.error.HTTPError as error:
            fault = f"the server answers {error.code} {error.reason}"
            if error.code == 416:  # nothing follows what is there: it is complete, or another file
                part.unlink()
            elif error.code < 500 and error.code not in (408, 429):  # time-out, too many
                break
        except _NETWORK_ERRORS as error:
            fault = f"cannot be reached, or broke off ({error or type(error).__name__})"
    return fault


def _transfer(url: str, part: Path, offset: int, max_bytes: int) -> None:
    """Append what follows `offset` to `part`, or write it anew where the server cannot resume."""
    headers = {"User-Agent": "asr", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS
    ) as response:
        received = offset if response.status == 206 else 0
        length = response.headers.get("Content-Length") or ""
        total = received + int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
        if total is not None and total > max_bytes:
            raise _FetchError(f"{total:,} bytes, but at most {max_bytes:,} were expected", is_final=True)
        shown: dict[str, Any] = {
            "total": total,
            "initial": received,
            "unit": "B",
            "unit_scale": True,
            "leave": False,
        }
        with (
            tqdm(desc=part.stem, disable=None, **shown) as bar,
            open(part, "ab" if received else "wb") as file,
        ):
            while block := response.read(_BLOCK_BYTES):
                received += len(block)
                if received > max_bytes:
                    file.truncate(0)
                    raise _FetchError(f"more than the {max_bytes:,} bytes that were expected", is_final=True)
                file.write(block)
                bar.update(len(block))
    if total is not None and received < total:
        raise _FetchError(f"the connection ended after {received:,} of {total:,} bytes")


def _require_checksum(part: Path, sha256: str | None, was_begun: bool) -> None:
    """Drop a wrong file. One that was begun earlier gets another attempt: the older half may be to blame."""
    if sha256 is None or (found := hash_file(part)) == sha256:
        return
    with open(part, "rb") as file:
        is_page = file.read(100).lstrip()[:1] == b"<"
    what = f"{part.stat().st_size:,} bytes, " + ("a web page" if is_page else f"SHA-256 {found}")
    part.unlink()
    raise _FetchError(f"sent another file: {what}, but SHA-256 {sha256} was expected", is_final=not was_begun)


# --- unpacking ----------------------------------------------------------------------------------


def extract(archive: Path, target: Path, *, max_bytes: int) -> None:
    """Unpack a .tar.gz or .zip into the folder `target`, which appears when complete.

    A `target` that is already there is kept. Names and links that lead out of the folder are refused by the
    data filter of tarfile, and made harmless by zipfile. More than `max_bytes` are refused.
    """
    if target.is_dir():
        logger.info("%s is already there", target)
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        with _explain_damage(archive), open(archive, "rb") as file:
            if file.read(2) == b"PK":
                with zipfile.ZipFile(archive) as opened:
                    _limit_size(archive, sum(info.file_size for info in opened.infolist()), max_bytes)
                    opened.extractall(temporary)
            else:
                file.seek(0)
                with unpack(file, archive, max_bytes + MAX_HEADER_BYTES) as unpacked:
                    _extract_tar(archive, unpacked, temporary, max_bytes)
        os.rename(temporary, target)
    except OSError as error:
        raise UserError(f"{error.filename or archive}: cannot unpack ({error.strerror or error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _explain_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except tarfile.FilterError as error:
        raise UserError(f"{archive}: not unpacked: {shorten(str(error))}") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(
            f"{archive}: damaged, or neither .tar.gz nor .zip ({error}); delete it and get it again"
        ) from None
    except (NotImplementedError, RuntimeError) as error:  # of zipfile: unknown compression, a password
        raise UserError(f"{archive}: cannot be unpacked ({error})") from None


def _extract_tar(archive: Path, unpacked: IO[bytes], folder: Path, max_bytes: int) -> None:
    size = 0

    def admit(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
        nonlocal size
        size += member.size
        _limit_size(archive, size, max_bytes)
        mode = 0o755 if member.isdir() else 0o644  # no program comes out
        return tarfile.data_filter(member, path).replace(mode=mode, deep=False)

    with tarfile.open(fileobj=unpacked, mode="r|") as tar:
        tar.extractall(folder, filter=admit)
    while unpacked.read(_BLOCK_BYTES):
        pass  # the checksum of gzip follows the end of the tar


def _limit_size(archive: Path, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise UserError(
            f"{archive}: unpacks to more than the {max_bytes:,} bytes that were expected; not unpacked"
        )
