"""Archives of corpora: download with resume and checksum, unpack without trust."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import logging
import os
import re
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from tqdm import tqdm

from asr.errors import UserError
from asr.files import hash_file

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # at each address
BACKOFF_SECONDS = 1.0  # before the second attempt; twice as long before each further one
TIMEOUT_SECONDS = 30.0  # without a byte
MAX_MEMBERS = 100_000
MAX_NAME_CHARACTERS = 1_000
_BLOCK_BYTES = 1 << 18

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
    """What went wrong at one address; `is_final` if another attempt there would meet the same."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


def _fetch(url: str, part: Path, sha256: str | None, max_bytes: int) -> str | None:
    """Complete `part`, or say what was wrong with the last attempt."""
    fault = None
    for attempt in range(ATTEMPTS):
        if attempt:
            logger.info("%s: %s; trying again", url, fault)
            time.sleep(BACKOFF_SECONDS * 2 ** (attempt - 1))
        was_begun = part.exists()
        try:
            _transfer(url, part, sha256 is not None, max_bytes)
            _require_checksum(part, sha256, was_begun)
            return None
        except _FetchError as error:
            fault = str(error)
            if error.is_final:
                break
    return fault


def _transfer(url: str, part: Path, may_resume: bool, max_bytes: int) -> None:
    """One attempt: append what is missing to `part`, or write it anew where the server cannot resume."""
    offset = part.stat().st_size if may_resume and part.exists() else 0
    with _open_url(url, offset) as response:
        content_range = response.headers.get("Content-Range") or ""
        if response.status == 416 and content_range == f"bytes */{offset}":
            return  # nothing is missing
        if response.status == 416 or (
            response.status == 206 and not content_range.startswith(f"bytes {offset}-")
        ):
            part.unlink()
            raise _FetchError(f"the server cannot go on after {offset:,} bytes")
        if response.status != 206:
            offset = 0
        length = response.headers.get("Content-Length") or ""
        total = offset + int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
        if total is not None and total > max_bytes:
            raise _FetchError(f"{total:,} bytes, but at most {max_bytes:,} were expected", is_final=True)
        received = _copy_response(response, part, offset, total, max_bytes)
    if total is not None and received < total:
        raise _FetchError(f"the connection ended after {received:,} of {total:,} bytes")


def _open_url(url: str, offset: int) -> Any:
    """The response: all from `offset` on (206), the whole file (200), or none where that is its end (416)."""
    headers = {"User-Agent": "asr", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    opener = urllib.request.build_opener(_Redirects)
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and offset:
            return error
        may_pass = error.code >= 500 or error.code in (408, 429)  # the server's trouble, time-out, too many
        raise _FetchError(f"the server answers {error.code} {error.reason}", is_final=not may_pass) from None
    except urllib.error.URLError as error:
        raise _FetchError(f"cannot be reached ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        raise _FetchError(_broken(error)) from None


def _copy_response(response: Any, part: Path, offset: int, total: int | None, max_bytes: int) -> int:
    """Write from `offset` on, with a progress bar on a terminal; returns the size reached."""
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - offset > free:
        raise UserError(f"{part.parent}: {total - offset:,} bytes are to come, but {free:,} are free there")
    bar = tqdm(
        total=total, initial=offset, unit="B", unit_scale=True, desc=part.stem, disable=None, leave=False
    )
    with bar, open(part, "ab" if offset else "wb") as file:
        received = offset
        while block := _read_block(response):
            received += len(block)
            if received > max_bytes:
                file.truncate(0)
                raise _FetchError(f"more than the {max_bytes:,} bytes that were expected", is_final=True)
            file.write(block)
            bar.update(len(block))
    return received


def _read_block(response: Any) -> bytes:
    try:
        return response.read(_BLOCK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _FetchError(_broken(error)) from None


def _broken(error: Exception) -> str:
    return f"the connection broke ({str(error) or type(error).__name__})"


def _require_checksum(part: Path, sha256: str | None, was_begun: bool) -> None:
    """Drop a wrong file. One that was begun earlier gets another attempt: the older half may be to blame."""
    if sha256 is None or (found := hash_file(part)) == sha256:
        return
    with open(part, "rb") as file:
        is_page = file.read(100).lstrip()[:1] == b"<"
    what = f"{part.stat().st_size:,} bytes, " + ("a web page" if is_page else f"SHA-256 {found}")
    part.unlink()
    raise _FetchError(f"sent another file: {what}, but SHA-256 {sha256} was expected", is_final=not was_begun)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise _FetchError(f"redirects to {newurl}, which is not on the web", is_final=True)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


# --- unpacking ----------------------------------------------------------------------------------


class _Member(NamedTuple):
    name: str
    content: IO[bytes] | None  # None for a folder


def extract(archive: Path, target: Path, *, max_bytes: int) -> None:
    """Unpack a .tar.gz or .zip into the folder `target`, which appears when complete.

    A `target` that is already there is kept. Only plain files and folders come out: a link, a device, or a
    name that leads elsewhere makes the whole archive refused, and so does a size above `max_bytes`.
    """
    if target.is_dir():
        logger.info("%s is already there", target)
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        with _open_archive(archive, max_bytes) as members:
            _write_members(archive, members, temporary, max_bytes)
        os.rename(temporary, target)
    except OSError as error:
        raise UserError(f"{error.filename or archive}: cannot unpack ({error.strerror or error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_members(archive: Path, members: Iterator[_Member], folder: Path, max_bytes: int) -> None:
    room = max_bytes
    for count, (name, content) in enumerate(members, start=1):
        if count > MAX_MEMBERS:
            raise UserError(f"{archive}: more than {MAX_MEMBERS:,} files; not unpacked")
        path = folder / _relative_path(archive, name)
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            while block := content.read(_BLOCK_BYTES):
                room -= len(block)
                if room < 0:
                    raise UserError(_too_large(archive, max_bytes))
                file.write(block)


def _relative_path(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    is_foreign = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name
    if is_foreign or len(name) > MAX_NAME_CHARACTERS:
        raise UserError(f"{archive}: holds {name[:100]!r}, which would leave its folder; not unpacked")
    return path


def _too_large(archive: Path, max_bytes: int) -> str:
    return f"{archive}: unpacks to more than the {max_bytes:,} bytes that were expected; not unpacked"


@contextlib.contextmanager
def _open_archive(archive: Path, max_bytes: int) -> Iterator[Iterator[_Member]]:
    """The members, one after the other; what the formats call damage becomes a `UserError`."""
    try:
        with open(archive, "rb") as file:
            if file.read(2) == b"PK":
                with zipfile.ZipFile(file) as opened:
                    yield _zip_members(archive, opened)
            else:
                file.seek(0)
                bounded = _BoundedReader(archive, gzip.GzipFile(fileobj=file), max_bytes)
                with tarfile.open(fileobj=bounded, mode="r|") as tar:  # type: ignore[call-overload]
                    yield _tar_members(archive, tar)
                while bounded.read(_BLOCK_BYTES):
                    pass  # behind the end of the tar comes the checksum of gzip
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise UserError(
            f"{archive}: damaged, or neither .tar.gz nor .zip ({error}); delete it and get it again"
        ) from None
    except (NotImplementedError, RuntimeError) as error:  # of zipfile: unknown compression, a password
        raise UserError(f"{archive}: cannot be unpacked ({error})") from None


class _BoundedReader:
    """Bounds also what tarfile reads for itself: a header may claim to be gigabytes long."""

    def __init__(self, archive: Path, source: gzip.GzipFile, max_bytes: int) -> None:
        self._archive, self._source, self._max_bytes = archive, source, max_bytes
        # A header and padding for each file; by far enough for what people pack.
        self._room = max_bytes + 2 * tarfile.BLOCKSIZE * MAX_MEMBERS

    def read(self, size: int) -> bytes:
        block = self._source.read(size)
        self._room -= len(block)
        if self._room < 0:
            raise UserError(_too_large(self._archive, self._max_bytes))
        return block


def _tar_members(archive: Path, tar: tarfile.TarFile) -> Iterator[_Member]:
    for member in tar:
        if member.isdir():
            yield _Member(member.name, None)
        elif member.isreg() and not member.issparse():
            yield _Member(member.name, tar.extractfile(member))
        else:
            raise UserError(_not_plain(archive, member.name))


def _zip_members(archive: Path, opened: zipfile.ZipFile) -> Iterator[_Member]:
    for info in opened.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.is_dir():
            yield _Member(info.filename, None)
        elif kind in (0, stat.S_IFREG):
            with opened.open(info) as content:
                yield _Member(info.filename, content)
        else:
            raise UserError(_not_plain(archive, info.filename))


def _not_plain(archive: Path, name: str) -> str:
    return f"{archive}: holds {name[:100]!r}, which is neither a plain file nor a folder; not unpacked"
