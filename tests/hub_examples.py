"""A hub on this machine, with faults: as much of its protocol as downloads and uploads use."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}  # of each model, by path
        self.sizes: dict[str, int] = {}  # claimed for a path
        self.faults: dict[str, Any] = {}  # by a part of the request's path: a status, "cut" or "damaged"
        self.is_private = False
        self.requests: list[str] = []

    def list_files(self, name: str) -> list[dict[str, Any]]:
        listed = []
        for path, content in self.files[name].items():
            size = self.sizes.get(path, len(content))
            file = {"rfilename": path, "path": path, "type": "file", "size": size}
            file["oid"] = file["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if path.endswith(".safetensors"):
                sha256 = hashlib.sha256(content).hexdigest()
                file["lfs"] = {"oid": sha256, "sha256": sha256, "size": size, "pointerSize": 130}
            listed.append(file)
        return listed


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        self.server.requests.append("/".join(parts))
        fault = next((how for part, how in self.server.faults.items() if part in self.path), None)
        own = parts[2:] if parts[0] == "api" else parts
        name = "/".join(own[:2])
        if isinstance(fault, int):
            self.answer(b"", fault)
        elif name not in self.server.files:
            self.answer(b"", 404, **{"X-Error-Code": "RepoNotFound"})
        elif len(own) > 3 and own[3] not in ("main", "v1", "v1.0", COMMIT):
            self.answer(b"", 404, **{"X-Error-Code": "RevisionNotFound"})
        elif own[2:3] == ["tree"]:
            self.answer(self.server.list_files(name))
        elif parts[0] == "api":
            listed = self.server.list_files(name)
            self.answer({"id": name, "sha": COMMIT, "private": self.server.is_private, "siblings": listed})
        else:
            content = self.server.files[name]["/".join(own[4:])]
            (listed,) = (file for file in self.server.list_files(name) if file["path"] == "/".join(own[4:]))
            etag = listed["lfs"]["oid"] if "lfs" in listed else listed["oid"]
            if fault == "damaged":
                content = content[:-1] + b"?"
            self.answer(content, cut=fault == "cut", ETag=f'"{etag}"', **{"X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(self.path)
        parts = self.path.strip("/").split("/")
        name = "/".join(parts[2:4])
        fault = next((how for part, how in self.server.faults.items() if part in self.path), None)
        if self.headers["Authorization"] != "Bearer hf_ours" or fault:
            self.answer(b"", fault or 401)
        elif parts[1:3] == ["repos", "create"]:
            asked = json.loads(body)
            created = f"{asked['organization']}/{asked['name']}"
            self.server.is_private = (
                asked.get("private", False) if created not in self.server.files else self.server.is_private
            )
            self.server.files.setdefault(created, {})
            self.answer({"url": f"{constants.ENDPOINT}/{created}"})
        elif parts[-2:-1] == ["preupload"]:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif parts[-2:-1] == ["commit"]:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[name][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del self.server.files[name][value["path"]]
            self.answer({"commitOid": COMMIT, "commitUrl": f"{constants.ENDPOINT}/{name}/commit/{COMMIT}"})
        else:
            self.answer({"warnings": [], "errors": []})

    def answer(self, body: Any, status: int = 200, cut: bool = False, **headers: str) -> None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(name="hub")
def start_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub without models, and an empty cache."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Hub() as running:
        endpoint = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_ours")
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
