"""A hub on this machine, with failures: as much of its protocol as downloads and uploads use."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", "v1", "v1.0", COMMIT)


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}  # of each model, by path
        self.private: set[str] = set()
        self.failures: dict[str, Any] = {}  # by a part of the request's path: a status, "cut" or "damaged"
        self.requests: list[str] = []


def describe(path: str, content: bytes) -> dict[str, Any]:
    """As the hub's two kinds of listing do."""
    sha1, sha256 = hashlib.sha1(b"blob %d\0" % len(content) + content), hashlib.sha256(content)
    file = {"type": "file", "path": path, "rfilename": path, "size": len(content)}
    file |= {"oid": sha1.hexdigest(), "blobId": sha1.hexdigest()}
    lfs = {"oid": sha256.hexdigest(), "sha256": sha256.hexdigest(), "size": len(content), "pointerSize": 130}
    return file | ({"lfs": lfs} if path.endswith(".safetensors") else {})


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        url = unquote(self.path.partition("?")[0]).removeprefix("/api/models").strip("/")
        user, model, *rest = url.split("/", 4)
        name, files = f"{user}/{model}", self.server.files.get(f"{user}/{model}")
        failure = self.find_failure()
        if isinstance(failure, int):
            self.answer(b"", failure)
        elif files is None or (rest and rest[1] not in REVISIONS):
            self.answer(b"", 404, {"X-Error-Code": "RepoNotFound" if files is None else "RevisionNotFound"})
        elif rest[:1] == ["resolve"]:
            content, listed = files[rest[2]], describe(rest[2], files[rest[2]])
            headers = {"ETag": f'"{listed.get("lfs", listed)["oid"]}"', "X-Repo-Commit": COMMIT}
            self.answer(content[:-1] + b"?" if failure == "damaged" else content, 200, headers)
        else:
            listing = [describe(*file) for file in files.items()]
            about = {"id": name, "sha": COMMIT, "private": name in self.server.private, "siblings": listing}
            self.answer(listing if rest[:1] == ["tree"] else about)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body, failure = self.rfile.read(int(self.headers["Content-Length"])), self.find_failure()
        name = "/".join(self.path.split("/")[3:5])
        if self.headers["Authorization"] != "Bearer hf_ours" or failure:
            self.answer(b"", failure or 401)
        elif self.path.endswith("/create"):
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name not in self.server.files and asked.get("private"):
                self.server.private.add(name)
            self.server.files.setdefault(name, {})
            self.answer({"url": f"{constants.ENDPOINT}/{name}"})
        elif "/preupload/" in self.path:
            files = [
                own | {"uploadMode": "regular", "shouldIgnore": False} for own in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif "/commit/" in self.path:
            for own in map(json.loads, body.splitlines()):
                if own["key"] == "file":
                    self.server.files[name][own["value"]["path"]] = base64.b64decode(own["value"]["content"])
                elif own["key"] == "deletedFile":
                    del self.server.files[name][own["value"]["path"]]
            self.answer({"commitOid": COMMIT, "commitUrl": f"{constants.ENDPOINT}/{name}/commit/{COMMIT}"})
        else:  # checks of the card
            self.answer({"warnings": [], "errors": []})

    def find_failure(self) -> Any:
        self.server.requests.append(unquote(self.path))
        return next((failure for part, failure in self.server.failures.items() if part in self.path), None)

    def answer(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in ((headers or {}) | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        is_cut = "cut" in self.server.failures.values() and "safetensors" in self.path
        self.wfile.write(b"" if self.command == "HEAD" else body[: len(body) // 2] if is_cut else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(name="hub")
def start_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub without models, and an empty cache."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_ours")
    monkeypatch.setattr(
        "huggingface_hub.utils._http.time.sleep", lambda seconds: None
    )  # before it tries again
    with Hub() as running:
        address = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        threading.Thread(target=running.serve_forever, args=[0.01], daemon=True).start()
        yield running
        running.shutdown()
