"""Downloads from a server of our own, well-behaved or not; archives, honest or hostile."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from asr.data import storage
from asr.errors import UserError
from asr.recipe import archives, download, extract

CONTENT = np.random.default_rng(0).bytes(700_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MEBIBYTE = 1 << 20

# --- download -----------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Serves CONTENT at any path; a path's last part says how."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []  # (how, Range)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has seen enough and hangs up is part of the tests."""

    def url(self, how: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{how}"

    @property
    def ranges(self) -> list[str | None]:
        return [range_ for _, range_ in self.requests]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        how, range_ = self.path.lstrip("/"), self.headers["Range"]
        is_first = how not in [name for name, _ in self.server.requests]
        self.server.requests.append((how, range_))
        match = re.fullmatch(r"bytes=(\d+)-", range_ or "")
        begin = int(match[1]) if match and "no-range" not in how else 0
        if how.startswith("status-"):
            self.send_error(int(how.split("-")[1]))
        elif how.startswith("to:"):
            self.send_response(302)
            self.send_header("Location", how[3:])
            self.end_headers()
        elif how == "page":
            self.answer(b"<!DOCTYPE html><title>Moved</title>")
        elif begin and begin >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.end_headers()
        elif how == "endless":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(CONTENT)
        elif how == "other-place" and begin:
            self.answer(CONTENT[7:], begin=7)
        else:
            cut = how.startswith("cut") and (is_first or how == "cut-always")
            self.answer(CONTENT[begin:], begin, cut)

    def answer(self, body: bytes, begin: int = 0, cut: bool = False) -> None:
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body)))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(storage, "FIRST_WAIT_SECONDS", 0.001)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "corpus.tar.gz"


def fetch(server: Server, target: Path, *how: str, sha256: str | None = SHA256) -> None:
    download([server.url(name) for name in how], target, sha256, max_bytes=MEBIBYTE)


HALF = len(CONTENT) // 2


@pytest.mark.parametrize(
    ("how", "ranges"),
    [
        ("plain", [None]),
        ("cut", [None, f"bytes={HALF}-"]),  # continues where the connection ended
        ("cut-no-range", [None, f"bytes={HALF}-"]),  # the server sends all again
        ("to:/plain", [None, None]),
    ],
)
def test_download_gets_the_file(server: Server, target: Path, how: str, ranges: list[str | None]) -> None:
    fetch(server, target, how)
    assert target.read_bytes() == CONTENT
    assert server.ranges == ranges
    assert os.listdir(target.parent) == [target.name]


def test_a_later_run_goes_on(server: Server, target: Path) -> None:
    target.parent.mkdir()
    (target.parent / "corpus.tar.gz.part").write_bytes(CONTENT[:1000])
    fetch(server, target, "plain")
    assert target.read_bytes() == CONTENT and server.ranges == ["bytes=1000-"]


@pytest.mark.parametrize(
    ("how", "left_over"),
    [
        ("plain", b"something else"),  # the end fits, the checksum does not
        ("plain", CONTENT + b"more"),  # longer than the file
        ("other-place", CONTENT[:1000]),
        ("plain", CONTENT),  # complete, only not renamed
    ],
)
def test_a_wrong_part_is_fetched_anew(server: Server, target: Path, how: str, left_over: bytes) -> None:
    target.parent.mkdir()
    (target.parent / "corpus.tar.gz.part").write_bytes(left_over)
    fetch(server, target, how)
    assert target.read_bytes() == CONTENT


def test_without_a_checksum_no_part_is_trusted(server: Server, target: Path) -> None:
    target.parent.mkdir()
    (target.parent / "corpus.tar.gz.part").write_bytes(b"something else")
    fetch(server, target, "cut", sha256=None)
    assert target.read_bytes() == CONTENT and server.ranges == [None, None]


def test_the_next_address_is_tried(server: Server, target: Path) -> None:
    fetch(server, target, "status-404", "page", "plain")
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("how", "problem", "num_requests"),
    [
        ("status-404", "cannot be read (HTTP Error 404: Not Found)", 1),
        ("status-503", "cannot be read after 3 attempts (HTTP Error 503: ", archives.ATTEMPTS),
        ("cut-always", "cannot be read after 3 attempts (the connection ended after", archives.ATTEMPTS),
        ("page", "sent another file: 35 bytes, SHA-256 ", 1),
        ("to:file:///etc/passwd", "cannot be read after 3 attempts (HTTP Error 302: ", archives.ATTEMPTS),
        ("endless", "more than the 1,048,576 bytes that were expected", 1),
    ],
)
def test_a_failure_says_where_and_why(
    server: Server, target: Path, how: str, problem: str, num_requests: int
) -> None:
    with pytest.raises(UserError) as error:
        fetch(server, target, how)
    assert f"  {server.url(how)}: {problem}" in str(error.value)
    assert "pass --corpus-dir FOLDER" in str(error.value)
    assert len(server.requests) == num_requests
    assert not target.exists()


def test_what_is_there_is_kept(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    fetch(server, target, "plain")
    assert server.requests == []
    target.write_bytes(b"changed")
    with pytest.raises(UserError, match=r"corpus\.tar\.gz: not the expected file.*delete it"):
        fetch(server, target, "plain")


# --- unpacking ----------------------------------------------------------------------------------


def add_file(
    tar: tarfile.TarFile, name: str, content: bytes = b"text", kind: bytes = tarfile.REGTYPE
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, len(content) if kind == tarfile.REGTYPE else 0
    member.linkname, member.mode = "/etc/passwd", 0o4777
    tar.addfile(member, io.BytesIO(content) if member.size else None)


def make_tar(path: Path, fill: Callable[[tarfile.TarFile], object]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        fill(tar)
    return path


def make_zip(path: Path, *names: str, mode: int = stat.S_IFREG | 0o644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            opened.writestr(info, b"text")
    return path


def fill_honestly(tar: tarfile.TarFile) -> None:
    add_file(tar, "./inner/folder", kind=tarfile.DIRTYPE)
    add_file(tar, "inner/a.txt")
    add_file(tar, "inner/folder/ä.txt")
    add_file(tar, "inner/empty.txt", b"")


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_extract(tmp_path: Path, kind: str) -> None:
    if kind == "zip":
        archive = make_zip(tmp_path / "x.zip", "inner/a.txt", "inner/folder/ä.txt")
    else:
        archive = make_tar(tmp_path / "x.tar.gz", fill_honestly)
    target = tmp_path / "deep" / "corpus"
    extract(archive, target, max_bytes=1000)
    assert (target / "inner/a.txt").read_bytes() == b"text"
    assert (target / "inner/folder/ä.txt").read_bytes() == b"text"
    assert not (target / "inner/a.txt").stat().st_mode & 0o7111  # no program, whatever the archive says
    assert os.listdir(target.parent) == ["corpus"]
    archive.unlink()
    extract(archive, target, max_bytes=1000)  # already there


@pytest.mark.parametrize(
    ("fill", "problem"),
    [
        (lambda tar: add_file(tar, "a/../../evil"), "evil"),
        (lambda tar: add_file(tar, "link", kind=tarfile.SYMTYPE), "link"),
        (lambda tar: add_file(tar, "link", kind=tarfile.LNKTYPE), "link"),
        (lambda tar: add_file(tar, "pipe", kind=tarfile.FIFOTYPE), "pipe"),
        (lambda tar: add_file(tar, "disk", kind=tarfile.BLKTYPE), "disk"),
        (lambda tar: add_file(tar, "zeros", bytes(10 * MEBIBYTE)), "more than the 1,048,576 bytes"),
        (lambda tar: [add_file(tar, "a"), add_file(tar, "a/b")], "cannot unpack"),
        (lambda tar: add_file(tar, "a" * 300), "cannot unpack (File name too long)"),
    ],
)
def test_hostile_tars(tmp_path: Path, fill: Callable[[tarfile.TarFile], object], problem: str) -> None:
    archive = make_tar(tmp_path / "x.tar.gz", fill)
    with pytest.raises(UserError, match=re.escape(problem)):
        extract(archive, tmp_path / "corpus", max_bytes=MEBIBYTE)
    assert os.listdir(tmp_path) == ["x.tar.gz"]


def test_names_and_links_that_lead_elsewhere_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    tar = make_tar(tmp_path / "in" / "x.tar.gz", lambda tar: add_file(tar, f"{tmp_path}/evil"))
    extract(tar, tmp_path / "in" / "tar", max_bytes=MEBIBYTE)
    archive = make_zip(tmp_path / "in" / "x.zip", "../../evil", "/evil", "link", mode=stat.S_IFLNK | 0o777)
    extract(archive, tmp_path / "in" / "zip", max_bytes=MEBIBYTE)
    assert os.listdir(tmp_path) == ["in"]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_too_many_bytes_or_too_old_a_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make_zip(tmp_path / "x.zip", "a", "b", "c")
    for message in ("more than the 10 bytes", "this Python checks no names"):
        with pytest.raises(UserError, match=message):
            extract(archive, tmp_path / "corpus", max_bytes=10)
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    assert os.listdir(tmp_path) == ["x.zip"]


def test_a_bomb_inside_a_tar_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_HEADER_BYTES", 10)
    header = tarfile.TarInfo("././@LongLink")  # a long name, which tarfile itself reads into memory
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 50 * MEBIBYTE
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(50 * MEBIBYTE), 1))
    with pytest.raises(UserError, match="unpacks to more than 1,048,586 bytes"):
        extract(archive, tmp_path / "corpus", max_bytes=MEBIBYTE)


@pytest.mark.parametrize("kept", [0, 1, 20, 100, -1])
def test_damaged_archives(tmp_path: Path, kept: int) -> None:
    archive = make_tar(tmp_path / "x.tar.gz", lambda tar: add_file(tar, "noise", CONTENT))
    archive.write_bytes(archive.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"x\.tar\.gz: (damaged, or neither|damaged gzip file)"):
        extract(archive, tmp_path / "corpus", max_bytes=MEBIBYTE)
    assert os.listdir(tmp_path) == ["x.tar.gz"]
