"""Hostile requests: malformed bodies and frames, paths as names, files that reference other files and URLs."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from serve_examples import RATE, at_a_port, connect, encode, make_app, make_body, speak, wait_until
from starlette.testclient import TestClient
from test_audio_decoders import PLAYLISTS

from asr.serve.api import ServerVad
from asr.serve.realtime import AudioFormat, InputOptions, Session, SessionOptions, SessionTranscription
from asr.serve.scheduler import Client, WithdrawnError

URL = "/v1/audio/transcriptions"
TYPE = {"content-type": "multipart/form-data; boundary=b"}
AUDIO = encode(speak(1.0))
FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def app() -> Any:
    return make_app()


@pytest.fixture(scope="module")
def client(app: Any) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


# Silence, which is read and segmented but needs no model.
BODY = make_body(
    {"model": "tiny", "response_format": "verbose_json", "timestamp_granularities[]": "word"},
    encode(np.zeros(800, np.float32)),
)

# --- bodies ---------------------------------------------------------------------------------------


@st.composite
def broken_bodies(draw: st.DrawFn) -> bytes:
    """A valid body with some bytes removed, duplicated or replaced, mostly in its headers."""
    body = BODY
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, min(len(body), 600)) | st.integers(0, len(body)))
        past = min(len(body), place + draw(st.integers(0, 40)))
        body = body[:place] + draw(st.binary(max_size=20) | st.just(body[place:past] * 2)) + body[past:]
    return body


@FEW
@given(body=broken_bodies() | st.binary(max_size=300))
def test_broken_bodies_are_answered(client: TestClient, body: bytes) -> None:
    answer = client.post(URL, content=body, headers=TYPE)
    assert answer.status_code in (200, 400, 404, 413), answer.text
    assert answer.status_code == 200 or answer.json()["error"]["message"]


EDITED = {"id": "a", "audio": "a.wav", "duration": 1.0, "segments": [{"start": 0, "end": 1, "text": "a  b"}]}


@pytest.mark.parametrize(
    "body, status",
    [
        ({"format": "srt", "transcript": EDITED}, 200),
        ({"format": "ctm", "transcript": EDITED}, 400),
        ({"format": "srt", "transcript": EDITED | {"duration": 1e300}}, 400),
        ({"format": "srt", "transcript": EDITED | {"duration": float("nan")}}, 400),
        ({"format": "srt", "transcript": EDITED | {"segments": [{"start": 2, "end": 1, "text": "a"}]}}, 400),
        ({"format": "srt", "transcript": EDITED | {"more": 1}}, 400),
        ({"format": "txt", "transcript": EDITED | {"id": "a" * 5_000_000}}, 413),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
    ],
)
def test_edited_transcripts_are_checked(client: TestClient, body: object, status: int) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/v1/asr/transcript", content=content)
    assert answer.status_code == status
    if status != 200:
        assert "b'" not in answer.json()["error"]["message"]
    else:
        assert answer.text == "1\n00:00:00,000 --> 00:00:01,000\na b\n\n"


def test_many_words_of_zero_width_are_divided_quickly(client: TestClient) -> None:
    accents = [{"text": "\u0301", "start": 0, "end": 0, "confidence": 0}] * 3_000
    segment = {"start": 0, "end": 1, "text": "\u0301" * 3_000, "words": accents}
    body = {"format": "vtt", "transcript": EDITED | {"segments": [segment]}}
    started = time.process_time()
    assert client.post("/v1/asr/transcript", json=body).status_code == 200
    assert time.process_time() - started < 10, "each end of a cue was tried with each beginning"


FIELDS = st.dictionaries(
    st.sampled_from(["language", "prompt", "response_format", "temperature", "stream", "chunking_strategy"])
    | st.sampled_from(["include[]", "keywords[]", "chunking_strategy[type]", "chunking_strategy[", "]", "["])
    | st.text("abc[]._", min_size=1, max_size=8),
    st.sampled_from(
        ["de", "0", "nan", "true", "srt", "text", "auto", "server_vad", "{", '{"type": 1}', "1e999", ""]
    )
    | st.text("ab{}[]:\",'0 \u00e9\u4e2d", max_size=20),
    max_size=4,
)


@FEW
@given(fields=FIELDS)
def test_any_fields_are_answered(client: TestClient, fields: dict[str, str]) -> None:
    answer = client.post(URL, files={"file": ("a.wav", AUDIO)}, data=fields | {"model": "tiny"})
    assert answer.status_code in (200, 400), answer.text


# --- frames ---------------------------------------------------------------------------------------

LEAVES: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
LEAVES |= st.sampled_from(
    ["audio/pcm", "audio/pcmu", "server_vad", "transcription", "tiny", "de", 24000, 500, "AAAA"]
)
OPTIONS = (SessionOptions, InputOptions, AudioFormat, ServerVad, SessionTranscription)
KEYS = st.sampled_from(["session", "event_id", *(name for one in OPTIONS for name in one.model_fields)])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
KINDS = st.sampled_from(
    ["session.update", *(f"input_audio_buffer.{name}" for name in ("append", "commit", "clear")), "nonsense"]
)
SOUND = base64.b64encode(b"\1\2" * 400).decode()
FRAMES = (
    st.builds(
        lambda kind, rest: json.dumps({**rest, "type": kind}), KINDS, st.dictionaries(KEYS, TREES, max_size=5)
    )
    | st.builds(json.dumps, TREES)
    | st.text(max_size=40)
    | st.just(json.dumps({"type": "input_audio_buffer.append", "audio": SOUND}))
)


@FEW
@given(frames=st.lists(FRAMES, max_size=8))
def test_any_frames_are_answered(app: Any, frames: list[str]) -> None:
    """Whatever arrives, the session continues to its end, and every answer is a valid event."""
    service, sent = app.state.service, []

    def send(event: Any) -> None:
        sent.append(json.loads(json.dumps(event)))

    session = Session(service.models, service.models["tiny"], Client(is_live=True), send)
    for frame in frames:
        session.handle(frame)
    session.close()
    with contextlib.suppress(WithdrawnError):
        session.work()
    assert all(event["event_id"] for event in sent)


@pytest.fixture(scope="module")
def address(app: Any) -> Iterator[str]:
    with at_a_port(app) as address:
        yield address


def test_slow_clients_do_not_block_others(address: str, app: Any) -> None:
    """While many connections never finish their requests, another one is answered."""
    links = [connect(address) for _ in range(50)]
    for number, link in enumerate(links):
        head = f"POST {URL} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n"
        link.sendall(
            head.encode() if number % 2 else f"{head}content-type: {TYPE['content-type']}\r\n\r\n--b".encode()
        )
    wait_until(lambda: app.state.service.num_requests == 25)
    with connect(address) as link:
        link.sendall(f"POST {URL} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n".encode())
        link.sendall(f"content-type: {TYPE['content-type']}\r\n\r\n".encode() + BODY)
        assert link.recv(4096).startswith(b"HTTP/1.1 200")
    for link in links:
        link.close()
    wait_until(lambda: not app.state.service.num_requests)


# --- names, and files that name others --------------------------------------------------------------

NAMES = ["../../etc/passwd", "..\\a.wav", "a\u202egpj.wav", "x" * 2000, "a.wav;.m3u8", "a\0b.wav", "-i", ""]


def test_names_are_only_shown(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        answer = client.post(URL, content=make_body({"model": "tiny"}, AUDIO, name), headers=TYPE)
        assert answer.status_code in (200, 400)
        assert not list(tmp_path.iterdir())


def test_paths_of_the_page_stay_in_its_folder(address: str) -> None:
    for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "//etc/passwd", "/%00", "/" + "a" * 5000):
        with connect(address) as link:
            link.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            answer = link.recv(4096)
            assert answer.split()[1] in (b"404", b"400"), (path, answer)


def make_mov_alias(url: str) -> bytes:
    """An MP4 whose audio is elsewhere, at the place that its `dref` names."""

    def box(kind: bytes, content: bytes) -> bytes:
        return (8 + len(content)).to_bytes(4, "big") + kind + content

    entry = box(b"url ", b"\0\0\0\0" + url.encode() + b"\0")
    dref = box(b"dref", b"\0\0\0\0\0\0\0\1" + entry)
    entry = b"\0" * 6 + b"\0\1" + b"\0" * 8 + b"\0\1\0\x10\0\0\0\0\x3e\x80\0\0"
    stsd = box(b"stsd", b"\0\0\0\0\0\0\0\1" + box(b"sowt", entry))
    tables = box(b"stts", b"\0" * 7 + b"\1\0\0\x10\0\0\0\0\1") + box(
        b"stsc", b"\0" * 7 + b"\1" + b"\0\0\0\1\0\0\x10\0\0\0\0\1"
    )
    tables += box(b"stsz", b"\0\0\0\0\0\0\0\2\0\0\x10\0") + box(b"stco", b"\0" * 7 + b"\1\0\0\0\0")
    minf = box(b"smhd", b"\0" * 8) + box(b"dinf", dref) + box(b"stbl", stsd + tables)
    mdhd = box(b"mdhd", b"\0" * 12 + (RATE).to_bytes(4, "big") + b"\0\0\x10\0\0\0\0\0")
    hdlr = box(b"hdlr", b"\0" * 8 + b"soun" + b"\0" * 13)
    trak = box(b"tkhd", b"\0\0\0\1" + b"\0" * 80) + box(b"mdia", mdhd + hdlr + box(b"minf", minf))
    mvhd = box(b"mvhd", b"\0" * 12 + (1000).to_bytes(4, "big") + b"\0" * 80)
    return box(b"ftyp", b"isom\0\0\0\0isom") + box(b"moov", mvhd + box(b"trak", trak))


def test_files_that_reference_others_open_nothing(client: TestClient, tmp_path: Path) -> None:
    secret = tmp_path / "secret.wav"
    secret.write_bytes(AUDIO)
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.5)
        port = canary.getsockname()[1]
        files = {name: text.format(path=secret, port=port).encode() for name, text in PLAYLISTS.items()}
        for name, content in (files | {"MOV": make_mov_alias(f"http://127.0.0.1:{port}/")}).items():
            answer = client.post(URL, files={"file": (f"{name}.wav", content)}, data={"model": "tiny"})
            is_own = name == "MOV"  # its own bytes are then the audio
            assert answer.status_code == 400 or is_own, (name, answer.text)
        with pytest.raises(TimeoutError):
            canary.accept()
