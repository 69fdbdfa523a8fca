"""Serve a folder over HTTP with byte ranges, slowly and with problems: errors, broken and short answers.

python tools/faulty_server.py FOLDER --problems 0.1 --delay 0.02

With --s3, it serves the folder as the S3 bucket `corpus`, which moto imitates (`pip install 'moto[server]'
s3fs`). The printed variables configure its clients.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=float, default=0.1, help="share of the answers (default: 0.1)")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds before an answer (default: 0.02)")
    parser.add_argument("--s3", action="store_true", help="serve as s3://corpus")
    arguments = parser.parse_args()
    given = arguments.folder, arguments.problems, arguments.delay
    if arguments.s3:
        with serve_s3(*given) as (variables, _):
            print(*(f"export {name}={value}" for name, value in variables.items()), sep="\n", flush=True)
            threading.Event().wait()
    with serve(*given) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        threading.Event().wait()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, problems: float, delay: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.problems, self.delay = folder, problems, delay
        self.counts: Counter[str] = Counter()
        self.random = random.Random(0)
        self.lock = threading.Lock()

    def draw_problems(self) -> str | None:
        with self.lock:
            if self.random.random() >= self.problems:
                return None
            problem = self.random.choice(["503", "500", "429", "broken", "short"])
            self.counts[problem] += 1
            return problem


@contextlib.contextmanager
def serve(folder: Path, problems: float = 0.0, delay: float = 0.0) -> Iterator[Server]:
    """Serve in a thread; the port is `server_port`, and `counts` counts the problems."""
    server = Server(folder, problems, delay)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def serve_s3(
    folder: Path, problems: float = 0.0, delay: float = 0.0
) -> Iterator[tuple[dict[str, str], Counter[str]]]:
    """Imitate S3 with the folder as bucket `corpus`; yield the environment for clients, and counts."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from s3fs import S3FileSystem
    from werkzeug.serving import make_server

    store = DomainDispatcherApplication(create_backend_app)
    chance, lock = random.Random(0), threading.Lock()
    counts: Counter[str] = Counter()
    is_filled = False

    def answer(environ: Any, start_response: Any) -> Any:
        if not is_filled:
            return store(environ, start_response)
        time.sleep(delay)
        with lock:
            kind = (
                chance.choice(["503 Slow Down", "500 Error", "short"]) if chance.random() < problems else ""
            )
            counts[kind] += 1
        if kind and kind != "short":
            start_response(kind, [("Content-Length", "0")])
            return []
        content = b"".join(store(environ, start_response))
        return [content[: len(content) // 2] if kind else content]  # the promised length never comes

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        files = S3FileSystem(key="x", secret="x", endpoint_url=variables["AWS_ENDPOINT_URL"])
        files.put(f"{folder}/", "corpus", recursive=True)
        is_filled = True
        yield variables, counts
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, has_body: bool) -> None:
        path = self.server.folder / self.path.lstrip("/")
        if ".." in path.parts or not path.is_file():
            self.send_error(404)
            return
        time.sleep(self.server.delay)
        problem = self.server.draw_problems()
        if problem is not None and problem.isdigit():
            self.send_error(int(problem))
            return
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, past = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(past - begin))
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{past - 1}/{size}")
        self.end_headers()
        if not has_body:
            return
        with open(path, "rb") as file:
            file.seek(begin)
            content = file.read(past - begin)
        self.server.counts["bytes"] += len(content)
        if problem is not None:  # the promised length never comes
            content = content[: len(content) // 2]
            self.close_connection = True
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)
            if problem == "broken":
                self.connection.close()


if __name__ == "__main__":
    main()
