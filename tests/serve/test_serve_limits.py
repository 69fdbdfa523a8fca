"""Keys and limits of the server: who is admitted, and what is too large, too long or too much."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import select
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import uvicorn
from hostile_audio import encode_media
from serve_examples import (
    RATE,
    at_a_port,
    connect,
    encode,
    fail_once,
    load_tiny,
    make_app,
    make_body,
    speak,
    wait_until,
)
from speaker_examples import MODELS
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from asr.errors import UserError
from asr.serve.app import DrainingServer
from asr.serve.service import Keys
from asr.speakers import speaker_models

URL = "/v1/audio/transcriptions"
AUDIO = encode(speak(4.0))
KEYS = Keys({"ann": hashlib.sha256(b"open sesame").hexdigest()})


class Gated:
    """The tiny model, which waits for a signal before each batch."""

    def __init__(self) -> None:
        self.model = load_tiny()
        self.gate = threading.Semaphore(0)
        self.num_batches = 0
        recognize = self.model.recognize

        def wait(segments: Any, request: Any) -> Any:
            self.num_batches += 1
            self.gate.acquire()
            return recognize(segments, request)

        self.model.recognize = wait  # type: ignore[method-assign]


@pytest.fixture
def gated() -> Iterator[Gated]:
    gated = Gated()
    yield gated
    gated.gate.release(10_000)


def post(client: TestClient, content: bytes = AUDIO, headers: Any = None, **fields: Any) -> Any:
    file = {"file": ("a.wav", content)}
    return client.post(URL, files=file, data={"model": "tiny"} | fields, headers=headers)


@contextlib.contextmanager
def busy(
    gated: Gated, keys: Keys | None = None, headers: Any = None, **settings: Any
) -> Iterator[TestClient]:
    """A server with one request in the middle of its batch, which is answered at the end."""
    answers: list[Any] = []
    with TestClient(make_app(keys, gated.model, **settings)) as client:
        thread = threading.Thread(target=lambda: answers.append(post(client, headers=headers)), daemon=True)
        thread.start()
        wait_until(lambda: gated.num_batches)
        yield client
        gated.gate.release(1000)
        thread.join(10)
        assert answers[0].status_code == 200


def test_labels_of_a_short_file_do_not_wait_for_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate, diarized = threading.Event(), threading.Event(), {"response_format": "diarized_json"}

    def segment(windows_BS: Any) -> Any:
        if len(windows_BS) > 1:
            begun.set()
            assert gate.wait(10)
        return MODELS.segment(windows_BS)

    models = SimpleNamespace(segment=segment, embed=MODELS.embed)
    monkeypatch.setattr(speaker_models, "load_speaker_models", lambda path, device: models)
    with TestClient(make_app()) as client, ThreadPoolExecutor() as pool:
        long = pool.submit(post, client, encode(speak(13.0)), **diarized)
        assert begun.wait(20) and post(client, **diarized).status_code == 200
        gate.set()
        assert long.result(20).status_code == 200


def test_wrong_speaker_models_are_reported_at_start() -> None:
    with pytest.raises(UserError, match=r"absent\.pt: no such file"):
        make_app(speaker_model="absent.pt")


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", "Basic open sesame", "Bearer öpen"])
def test_without_the_key_nothing_is_served(given: str | None) -> None:
    with TestClient(make_app(KEYS)) as client:
        headers = {} if given is None else {"authorization": given.encode()}
        for answer in (post(client, headers=headers), client.get("/v1/models", headers=headers)):
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["x-should-retry"] == "false"
        assert client.get("/health").status_code == 200
        assert post(client, headers={"authorization": "Bearer open sesame"}).status_code == 200


@pytest.mark.parametrize(
    "line", ["ann", "ann:abc", "a nn:" + 64 * "0", ":" + 64 * "0", "ann:" + 64 * "G", "# none yet"]
)
def test_an_invalid_key_file_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(f"# comment\n\n{line}\n")
    with pytest.raises(UserError, match=r"keys\.txt"):
        Keys.load(path)


def test_pages_from_other_hosts_are_refused_unless_listed() -> None:
    with TestClient(make_app(origins=("https://good.example",))) as client:
        assert post(client, headers={"origin": "https://evil.example"}).status_code == 403
        for wrong in ("null", "http://[", "http://testserver.evil.example", "http://testserver:1"):
            assert post(client, headers={"origin": wrong}).status_code == 403
        assert post(client, headers={"origin": "https://good.example"}).status_code == 200
        assert post(client, headers={"origin": "http://testserver"}).status_code == 200


def test_foreign_host_names_are_refused_without_keys() -> None:
    """A web page can rebind its name to this machine."""
    with TestClient(make_app(hosts=("asr.example",))) as client:
        for host in ("evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "", "["):
            headers = {"host": host, "origin": f"http://{host}"}
            assert client.get("/v1/models", headers=headers).status_code == 403
            with pytest.raises(WebSocketDisconnect), client.websocket_connect(URL, headers=headers) as link:
                link.receive_json()
        for host in ("127.0.0.1:8000", "LOCALHOST", "[::1]:8000", "192.168.0.7", "asr.example:80"):
            assert client.get("/v1/models", headers={"host": host}).status_code == 200
    with TestClient(make_app(KEYS)) as client:
        headers = {"host": "any.example", "authorization": "Bearer open sesame"}
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_too_many_bytes_are_refused() -> None:
    with TestClient(make_app(max_upload_mb=0.1)) as client:
        answer = post(client)
        assert answer.status_code == 413 and answer.headers["x-should-retry"] == "false"


def test_too_many_bytes_are_refused_while_they_arrive() -> None:
    """An endless body without a length, over a real socket, is answered while it is being sent."""
    with at_a_port(make_app(max_upload_mb=0.1)) as address, connect(address) as link:
        send_head(link, "transfer-encoding: chunked")
        for _ in range(1000):
            link.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            if select.select([link], [], [], 0.0005)[0]:
                break
        assert link.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_body_that_never_ends_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.serve.app.MAX_UPLOAD_SECONDS", 0.2)
    with at_a_port(make_app()) as address, connect(address) as link:
        send_head(link, "content-length: 1000")
        assert b" 408 " in link.recv(4096)


def send_head(link: socket.socket, header: str) -> None:
    """The headers of an upload, and the headers of its file."""
    kind = "content-type: multipart/form-data; boundary=b"
    link.sendall(f"POST {URL} HTTP/1.1\r\nhost: x\r\n{kind}\r\n{header}\r\n\r\n".encode())
    part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    link.sendall(b"%x\r\n%s\r\n" % (len(part), part) if "chunked" in header else part)


def test_a_long_file_is_refused_by_its_header_or_while_it_is_read() -> None:
    """Raw MP3 frames, whose duration is known only after decoding."""
    silent = encode_media(np.zeros(60 * RATE, np.float32), RATE, "mp3", "libmp3lame", write_xing="0")
    with TestClient(make_app(max_audio_seconds=3.0)) as client:
        for content in (AUDIO, silent):
            answer = post(client, content)
            assert answer.status_code == 413 and "3 s of audio" in answer.json()["error"]["message"]


def test_large_text_fields_are_refused() -> None:
    with TestClient(make_app()) as client:
        assert post(client, prompt="x" * 100_000).status_code == 400
        assert post(client, **{f"field{number}": "x" for number in range(200)}).status_code == 400


def test_a_busy_server_says_when_to_retry(gated: Gated) -> None:
    with busy(gated, max_waiting_seconds=5.0) as client:
        refused = post(client)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "overloaded"
        assert 1 <= int(refused.headers["retry-after"]) <= 60 and refused.headers["x-should-retry"] == "true"


def test_each_key_has_its_own_limit(gated: Gated) -> None:
    keys = Keys({name: hashlib.sha256(name.encode()).hexdigest() for name in ("ann", "bob")})
    as_ann, as_bob = ({"authorization": f"Bearer {name}"} for name in ("ann", "bob"))
    with busy(gated, keys, as_ann, max_key_seconds=5.0) as client:
        assert post(client, headers=as_ann).status_code == 429
        gated.gate.release(1000)
        assert post(client, headers=as_bob).status_code == 200


def test_the_number_of_requests_is_limited(gated: Gated) -> None:
    with busy(gated, max_requests=1) as client:
        assert post(client).status_code == 503 and client.get("/health").status_code == 200


def make_upload(stream: bool) -> bytes:
    """A request as sent over the wire."""
    body = make_body({"model": "tiny", "stream": "true" if stream else "false"}, AUDIO)
    head = f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {len(body)}"
    return f"POST {URL} HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode() + body


@pytest.mark.parametrize("stream", [False, True])
def test_the_work_of_a_disconnected_client_is_dropped(gated: Gated, stream: bool) -> None:
    app = make_app(recognizer=gated.model)
    service = app.state.service
    with at_a_port(app) as address:
        with connect(address) as link:
            link.sendall(make_upload(stream))
            wait_until(lambda: gated.num_batches)
            assert service.num_requests == 1 and service.waiting_seconds() > 0
        wait_until(lambda: not service.num_requests and not service.clients)
        gated.gate.release(1000)
        assert gated.num_batches == 1


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_model_error_fails_only_its_request(stream: str, caplog: pytest.LogCaptureFixture) -> None:
    with TestClient(make_app(recognizer=fail_once())) as client:
        answer = post(client, encode(speak(2.0)), stream=stream)
        assert "internal_error" in answer.text and "secret" not in answer.text
        assert answer.status_code == (500 if stream == "false" else 200)
        assert any(record.exc_info for record in caplog.records), "the log has what the answer hides"
        assert post(client).status_code == 200


def test_a_full_disk_is_not_blamed_on_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", full)
    with TestClient(make_app()) as client:
        answer = post(client)
        assert answer.status_code == 503 and "No space left" in answer.json()["error"]["message"]


def test_a_request_is_one_line_of_json_without_texts_and_names(caplog: pytest.LogCaptureFixture) -> None:
    with TestClient(make_app()) as client, caplog.at_level(logging.INFO, "asr.serve.app"):
        secret = {"file": ("secret.wav", AUDIO)}
        answer = client.post(URL, files=secret, data={"model": "tiny", "prompt": "ab"})
    (record,) = [record for record in caplog.records if record.getMessage().startswith("request ")]
    line = json.loads(record.getMessage().removeprefix("request "))
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["status"], line["model"], line["audio_seconds"]) == (200, "tiny", 4.0)
    assert "secret" not in str(line) and answer.json()["text"] not in str(line)


def test_without_inference_thread_the_server_is_not_ready_and_answers_at_once() -> None:
    model = load_tiny()
    model.recognize = Mock(side_effect=SystemExit)  # type: ignore[method-assign]
    with TestClient(make_app(recognizer=model)) as client:
        assert client.get("/ready").status_code == 200
        assert post(client).json()["error"]["code"] == "unavailable"
        ready = client.get("/ready")
        assert ready.status_code == 503 and "tiny" in ready.text and client.get("/health").status_code == 200
        refused = post(client)
        assert refused.status_code == 503 and "no longer works" in refused.json()["error"]["message"]
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
            pass


def test_during_shutdown_files_are_finished_and_new_ones_get_503(gated: Gated) -> None:
    """The port stays open meanwhile, so that a proxy learns about it from /ready."""
    server = DrainingServer(uvicorn.Config(app := make_app(recognizer=gated.model)), app.state.service, 60.0)

    def ends() -> bool:
        return asyncio.run(server.on_tick(1))

    with TestClient(app) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(post, client)
        wait_until(lambda: gated.num_batches)
        server.handle_exit(signal.SIGTERM, None)
        assert client.get("/ready").status_code == 503 and not ends()
        assert "shutting down" in post(client).json()["error"]["message"]
        gated.gate.release(1000)
        assert first.result(10).status_code == 200 and ends()


def test_a_second_signal_or_one_to_an_idle_server_ends_it(gated: Gated) -> None:
    for signals, num_requests in ((1, 0), (2, 1)):
        service = make_app(recognizer=gated.model).state.service
        service.num_requests = num_requests
        server = DrainingServer(uvicorn.Config(None), service, 60.0)  # type: ignore[arg-type]
        for _ in range(signals):
            assert not server.should_exit
            server.handle_exit(signal.SIGTERM, None)
        assert server.should_exit


def test_draining_ends_after_its_time(gated: Gated) -> None:
    service = make_app(recognizer=gated.model).state.service
    service.num_requests = 1
    server = DrainingServer(uvicorn.Config(None), service, drain_seconds=0.0)  # type: ignore[arg-type]
    assert not asyncio.run(server.on_tick(1))
    server.handle_exit(signal.SIGTERM, None)
    assert asyncio.run(server.on_tick(1)) and not server.should_exit
