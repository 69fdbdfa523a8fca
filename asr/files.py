"""Write files as a whole, hash them, find what comes along, claim a folder; families of pretrained models."""

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
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from asr.errors import UserError, suggest

logger = logging.getLogger(__name__)

LOCK = ".lock"
MAX_CONNECT_SECONDS, MAX_SLOW_SECONDS = 0.9, 10.0
# gzip packs text to a tenth, seldom to a hundredth; a bomb has a thousand times its size.
MAX_EXPANSION = 200
MAX_FREE_EXPANSION = 10_000_000  # bytes that any gzip file may unpack to
MAX_UNPACKED_PIPE = 1_000_000_000  # bytes that a pipe, whose size nobody knows, may unpack to


def unpack(file: IO[bytes], name: str | Path, max_bytes: int | None = None) -> io.BufferedReader:
    """The same file, or what gzip packed into it, read piece by piece, up to a limit that no text reaches."""
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, file))
    if buffered.peek(2)[:2] != b"\x1f\x8b":
        return buffered
    if max_bytes is None:
        max_bytes = MAX_UNPACKED_PIPE
        with contextlib.suppress(OSError):  # not a file of the system
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
            raise UserError(f"{self._name}: damaged gzip file ({error}); get or pack it again") from None
        self._left -= len(data)
        if self._left < 0:
            raise UserError(
                f"{self._name}: unpacks to more than {self._max_bytes:,} bytes, too much for its size; "
                "unpack it by gunzip if you trust it"
            )
        buffer[: len(data)] = data
        return len(data)


def require_local(path: str | Path) -> None:
    """Refuse to write to an address such as s3://bucket, which would become a folder named `s3:`."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise UserError(f"{path}: outputs are written to this machine; give a path, and copy it there after")


def make_folder(path: str | Path) -> None:
    require_local(path)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot make this folder ({error.strerror}); give another one") from None


@contextlib.contextmanager
def replace_file(path: str | Path, *, flush: bool = True) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` at the end. After an error, `path` is as it was.

    `flush`: wait for the disk, so that a power cut leaves it whole too; too slow for thousands of files.
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
    except OSError as error:  # of this file, or of one that is read within
        name = f": {error.filename}" if error.filename else ""
        raise UserError(f"{path}: cannot write the file ({error.strerror}{name})") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Give what a library writes there the mode that the umask asks for: those of safetensors are private."""
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def read_limited(path: str | Path, max_bytes: int, reason: str) -> bytes:
    """The whole content. A file of more bytes is refused, for this reason, and never held in memory."""
    try:
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror})") from None
    if len(content) > max_bytes:
        raise UserError(f"{path}: over {max_bytes:,} bytes, {reason}")
    return content


def hash_file(path: str | Path) -> str:
    """SHA-256 of the content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


CHECKOUT = Path(__file__).resolve().parent.parent
SHIPPED = Path(__file__).resolve().parent / "shipped"
"""Folder of `recipes` and `conf` in an installed package; in a checkout they lie beside the package."""


def find_shipped(path: str | Path) -> Path:
    """The path, else what comes along under this name, such as `recipes/an4/pretrained`."""
    path = Path(path)
    if os.path.exists(path) or path.parts[:1] not in (("conf",), ("recipes",)) or ".." in path.parts:
        return path
    return next((root / path for root in (CHECKOUT, SHIPPED) if os.path.exists(root / path)), path)


_claims: set[tuple[int, str]] = set()
"""Process and lock file of each claim: to open a file that this process has locked and close it would end the
lock. A child process starts with a copy, and without the locks."""


def fetch_model(
    name: str,
    patterns: Sequence[str],
    is_complete: Callable[[Path], bool],
    announce: Callable[[], None],
    hint: str,
) -> Path:
    """The folder of a model on the hub: that in the cache, or fetched there, which `announce` logs before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(name, allow_patterns=[*patterns], local_files_only=True))
            if is_complete(folder):
                return folder
        if problem := find_network_problem():
            raise UserError(f"{name}: no such file or folder, nor in the cache, and {problem}{hint}")
        announce()
        return Path(snapshot_download(name, allow_patterns=[*patterns]))
    except UserError:
        raise
    except Exception as error:  # network, hub and disk fail in many ways
        reason = str(error).split("\n")[0][:200]
        raise UserError(
            f"{name}: no such file or folder, nor in the cache, and the hub does not have it "
            f"({type(error).__name__}: {reason}){hint}"
        ) from None


def find_network_problem() -> str:
    """Say within a second why the hub cannot be reached; "" if it can, or is only slow to answer."""
    import socket
    import threading
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so nothing is fetched"
    hub = urlsplit(constants.ENDPOINT)
    if getproxies() or hub.hostname is None:  # a proxy may reach what this machine cannot
        return ""
    address = hub.hostname, hub.port or (80 if hub.scheme == "http" else 443)
    failures: list[OSError] = []

    def connect() -> None:
        try:
            socket.create_connection(address, MAX_SLOW_SECONDS).close()
        except OSError as error:
            failures.append(error)

    # Looking a name up has no limit of its own, so it runs in a thread that nobody waits for.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(MAX_CONNECT_SECONDS)
    return f"there is no network: {hub.hostname} cannot be reached" if failures else ""


@contextlib.contextmanager
def claim_folder(folder: str | Path) -> Iterator[None]:
    """Refuse any other claim of the folder. A claim ends with its process, however that ends."""
    require_local(folder)
    path = Path(folder) / LOCK
    taken = UserError(f"{folder}: another process is writing there; wait, stop it, or take another folder")
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
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike that of flock, no child inherits it
        except BlockingIOError:
            raise taken from None
        except OSError as error:  # a file system without locks
            logger.warning("%s: not claimed (%s)", folder, error.strerror)
        _claims.add(claim)
        try:
            yield
        finally:
            _claims.discard(claim)


# --- families of pretrained models, such as Whisper: the one place where the core imports them ------

# A family is a folder of `asr` and a line in FAMILIES. If the folder is deleted, the core still transcribes
# with native models and trains them. `asr/whisper/__init__.pyi` shows what a family offers.

Family: TypeAlias = Any  # a package that offers what asr/whisper does, and imports its modules when asked


def _import_whisper() -> Family:
    import asr.whisper  # `from asr import whisper` would ask asr/__init__.py first

    return asr.whisper


FAMILIES = {"whisper": _import_whisper}


def find_families() -> list[Family]:
    """Import the families whose folders are there."""
    return [load() for name, load in FAMILIES.items() if find_spec(f"asr.{name}")]


def find_family(source: str | Path, *, as_run: bool = False) -> Family:
    """The family of a model, by its path or name; None for a native model.

    A run that fine-tuned a model of a family is of that family too, unless it is asked for `as_run`.
    """
    folder = find_shipped(source)
    for config in (folder / "config.yaml", folder / "model" / "config.yaml"):
        if os.path.isfile(config) and not any(
            f"type: {name}" in config.read_text("utf-8", "replace") for name in FAMILIES
        ):
            return None
    return next((family for family in find_families() if family.matches(source, as_run)), None)


def find_default_model() -> str:
    """The model that is used where none is named."""
    return os.environ.get("ASR_MODEL") or "whisper-base"


def find_checkpoints(output_dir: Path) -> list[Path]:
    """Find the checkpoints of a training, the oldest first."""
    return sorted((output_dir / "checkpoints").glob("step-*"))


def find_model(path: str | Path) -> Path:
    """The folder to load for a run (its final model, else its last checkpoint) or for a checkpoint itself."""
    path = find_shipped(path)
    for folder in (path, path / "model"):
        if os.path.isfile(folder / "model.safetensors"):
            return folder
    if checkpoints := find_checkpoints(path):
        return checkpoints[-1]
    expected = "give the output_dir of a training or one of its checkpoints"
    for family in find_families():
        expected = suggest(str(path), family.model_names, f"{expected}, or the name of a {family.name} model")
    raise UserError(f"{path}: no model here; {expected}{describe_missing()}")


def describe_missing() -> str:
    """Name the folders of models that are not there, for the message about an unknown one; "" if all are."""
    missing = [
        f"asr.{name}" for name in (*FAMILIES, "research", "speakers") if find_spec(f"asr.{name}") is None
    ]
    return f"; {' and '.join(missing)}, which may have it, is not installed" if missing else ""
