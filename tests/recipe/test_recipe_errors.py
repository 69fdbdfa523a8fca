"""What `asr recipe run` says when the corpus is not what it should be, or cannot be fetched."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.cli import main
from asr.recipe import archives, compute_fingerprint

ROOT = Path(__file__).resolve().parents[2]
NAMES = [f"waves_yesno/{'_'.join(f'{n * 21:08b}')}.wav" for n in range(12)]
URLS = 'URLS = ("http://www.openslr.org/resources/1/waves_yesno.tar.gz",)'


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """A corpus of twelve recordings in the layout of yesno: its archive and its fingerprint."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "waves_yesno").mkdir()
    for number, name in enumerate(NAMES):
        samples = np.random.default_rng(number).integers(-2000, 2000, 4000).astype(np.int16)
        soundfile.write(folder / name, samples, 8_000, subtype="PCM_16")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder / "waves_yesno", "waves_yesno")
    return buffer.getvalue(), compute_fingerprint(folder, NAMES, 8_000)


class Server(ThreadingHTTPServer):
    """Serves `content`; after `cut` bytes the connection ends."""

    daemon_threads = True
    content = b""
    cut: int | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.ranges.append(wanted)
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        body = self.server.content[begin:]
        self.send_response(206 if wanted else 200)
        if wanted:
            last = len(self.server.content) - 1
            self.send_header("Content-Range", f"bytes {begin}-{last}/{len(self.server.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.server.cut is None else body[: max(0, self.server.cut - begin)])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(archive: tuple[bytes, str]) -> Iterator[Server]:
    with Server() as server:
        server.content = archive[0]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def run(
    server: Server,
    archive: tuple[bytes, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Runs the recipe of yesno, whose archive is at our server; returns exit status and message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(archives, "BACKOFF_SECONDS", 0.0)
    content, fingerprint = archive
    source = (ROOT / "recipes" / "yesno" / "recipe.py").read_text()
    (tmp_path / "recipes" / "yesno").mkdir(parents=True)

    def run(*arguments: str, url: str = f"http://127.0.0.1:{server.server_port}/waves") -> tuple[int, str]:
        values = {"SHA256": hashlib.sha256(content).hexdigest(), "FINGERPRINT": fingerprint, "NUM_FILES": 12}
        assert URLS in source
        text = source.replace(URLS, f"URLS = ({url!r},)")
        for name, value in values.items():
            start = text.index(f"\n{name} = ") + 1
            text = text[:start] + f"{name} = {value!r}" + text[text.index("\n", start) :]
        (tmp_path / "recipes" / "yesno" / "recipe.py").write_text(text)
        capsys.readouterr()
        status = main(["recipe", "run", "yesno", "--recipes-dir", "recipes", *arguments])
        message = capsys.readouterr().err
        assert "Traceback" not in message
        return status, message

    return run


Run = Callable[..., tuple[int, str]]


def test_the_whole_corpus_is_fetched_and_prepared(run: Run) -> None:
    assert run() == (0, "")
    assert len(Path("data/yesno/test.jsonl").read_text().splitlines()) == 6


def test_an_interrupted_download_goes_on(run: Run, server: Server) -> None:
    server.cut = len(server.content) // 2
    status, message = run()
    assert status == 2
    half, whole = len(server.content) // 2, len(server.content)
    assert f"the connection ended after {half:,} of {whole:,} bytes" in message
    server.cut = None
    server.ranges.clear()
    assert run() == (0, "")
    assert server.ranges == [f"bytes={half}-"], "what had come is not fetched again"


def test_no_space_for_the_manifests(
    run: Run, archive: tuple[bytes, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--stage", "download") == (0, "")

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        status, message = run("--stage", "prepare")
    assert status == 2 and "train.jsonl: cannot write the file (No space left on device)" in message
    assert not list(Path("data/yesno").glob("*.jsonl"))
    assert run() == (0, ""), "with room, the same command goes on"
