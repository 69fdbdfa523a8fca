"""Live sessions over a WebSocket: order of events, formats, turns and refusals."""

from __future__ import annotations

import base64
import contextlib
import gc
import hashlib
import io
import json
import socket
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import soundfile
from serve_examples import RATE, at_a_port, fail_once, load_tiny, make_app, speak, wait_until
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from asr.audio import resample
from asr.errors import UserError
from asr.serve.realtime import Session
from asr.serve.service import Keys

URL = "/v1/realtime?intent=transcription"
KIND = "conversation.item.input_audio_transcription"
AUDIO = speak(8.0)


def update(socket: Any, **audio: Any) -> Any:
    session: dict[str, Any] = {"type": "transcription", "include": audio.pop("include", [])}
    socket.send_json({"type": "session.update", "session": session | {"audio": {"input": audio}}})
    return socket.receive_json()


def append(socket: Any, content: bytes, chunk: int = 3200) -> None:
    for first in range(0, len(content), chunk):
        audio = base64.b64encode(content[first : first + chunk]).decode()
        socket.send_json({"type": "input_audio_buffer.append", "audio": audio})


def to_pcm(audio_S: np.ndarray) -> bytes:
    return (audio_S.clip(-1, 1) * 32767).astype("<i2").tobytes()


@contextlib.contextmanager
def session(client: TestClient, **audio: Any) -> Iterator[Any]:
    """A session at 16 kHz by default."""
    with client.websocket_connect(URL) as socket:
        socket.receive_json()
        assert update(socket, **PCM | audio)["type"] == "session.updated"
        yield socket


def receive_until(socket: Any, kind: str, count: int = 1) -> list[Any]:
    events = []
    while sum(event["type"] == kind for event in events) < count:
        events.append(socket.receive_json())
        assert len(events) < 1000
    return events


def texts(events: list[Any], kind: str = f"{KIND}.completed") -> list[str]:
    return [event["transcript"] for event in events if event["type"] == kind]


PCM = {"format": {"type": "audio/pcm", "rate": RATE}}


def test_a_session_begins_and_is_described(client: TestClient) -> None:
    with client.websocket_connect(URL) as socket:
        created = socket.receive_json()
        assert created["type"] == "session.created" and created["event_id"]
        audio = created["session"]["audio"]["input"]
        assert created["session"]["type"] == "transcription"
        assert audio["format"] == {"type": "audio/pcm", "rate": 24000}
        assert audio["transcription"]["model"] == "tiny" and audio["turn_detection"]["type"] == "server_vad"
        german = {"model": "tiny", "language": "de"}
        updated = update(socket, **PCM, transcription=german, turn_detection=None)
        assert updated["type"] == "session.updated"
        audio = updated["session"]["audio"]["input"]
        assert audio["format"]["rate"] == RATE and audio["turn_detection"] is None
        assert audio["transcription"] == {"model": "tiny", "language": "de", "prompt": ""}


def test_a_pause_ends_an_item_and_its_events_come_in_order(client: TestClient) -> None:
    with session(client, turn_detection={"type": "server_vad", "silence_duration_ms": 500}) as socket:
        append(socket, to_pcm(AUDIO))
        events = receive_until(socket, f"{KIND}.completed", 2)
    own = events[0]["item_id"]
    first = [one for one in events if one.get("item_id", one.get("item", {}).get("id")) == own]
    kinds = [event["type"] for event in first]
    buffer, item = "input_audio_buffer", "conversation.item"
    expected = [f"{buffer}.speech_started", f"{buffer}.speech_stopped", f"{buffer}.committed"]
    expected += [f"{item}.added", f"{item}.done", f"{KIND}.delta", f"{KIND}.completed"]
    assert kinds == expected
    started, stopped, committed, *_, delta, completed = first
    assert 0 <= started["audio_start_ms"] < stopped["audio_end_ms"] < 2500
    assert committed["previous_item_id"] is None
    assert delta["delta"] == completed["transcript"] != "" and completed["usage"]["type"] == "duration"
    second = next(e for e in events if e["type"] == f"{buffer}.committed" and e is not committed)
    assert second["previous_item_id"] == started["item_id"]
    assert len({event["event_id"] for event in events}) == len(events)


def test_a_commit_ends_a_turn_where_the_client_detects_them(client: TestClient, recognizer: Any) -> None:
    with session(client, turn_detection=None, include=["asr.words"]) as socket:
        for _ in range(2):
            append(socket, to_pcm(AUDIO[: 4 * RATE]))
            socket.send_json({"type": "input_audio_buffer.commit"})
        events = receive_until(socket, f"{KIND}.completed", 2)
    assert events[0]["type"] == "input_audio_buffer.committed"
    one, other = texts(events)
    assert one == other != ""
    deltas = [event["delta"] for event in events if event["type"] == f"{KIND}.delta"]
    assert "".join(deltas[: len(deltas) // 2]) == one
    first, second = [event["words"] for event in events if event["type"] == "asr.words"]
    assert " ".join(word["word"] for word in first) == one
    assert second[0]["start"] - first[0]["start"] == pytest.approx(4.0, abs=0.01), "times go on"


def test_words_that_may_change_are_sent_as_asr_partial(
    recognizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.serve.live.STEP_SECONDS", 0.05)
    options = {"turn_detection": {"silence_duration_ms": 500}, "include": ["asr.partial"]}
    with TestClient(make_app(recognizer=recognizer)) as client, session(client, **options) as socket:
        begun = RATE + RATE // 4  # in the middle of the first words, where no segment ends
        append(socket, to_pcm(AUDIO[:begun]))
        seen = receive_until(socket, "asr.partial")  # because nothing waits after the last piece
        append(socket, to_pcm(AUDIO[begun:]))
        seen += receive_until(socket, f"{KIND}.completed")
    partial = [event for event in seen if event["type"] == "asr.partial"]
    assert partial and all({"item_id", "stable", "text"} <= event.keys() for event in partial)


def test_other_rates_are_resampled(client: TestClient, recognizer: Any) -> None:
    audio = to_pcm(resample(AUDIO[: 4 * RATE], RATE, 24_000))
    assert transcribe_turn(client, audio, {"type": "audio/pcm", "rate": 24_000})


@pytest.mark.parametrize(("kind", "subtype"), [("audio/pcmu", "ULAW"), ("audio/pcma", "ALAW")])
def test_g711_is_decoded(client: TestClient, kind: str, subtype: str) -> None:
    file = io.BytesIO()
    soundfile.write(file, AUDIO[: 4 * RATE : 2], 8000, subtype, format="RAW")
    assert transcribe_turn(client, file.getvalue(), {"type": kind})


def transcribe_turn(client: TestClient, content: bytes, audio_format: Any) -> str:
    with session(client, format=audio_format, turn_detection=None) as socket:
        append(socket, content, 4000)
        socket.send_json({"type": "input_audio_buffer.commit"})
        (text,) = texts(receive_until(socket, f"{KIND}.completed"))
        return text


def test_cleared_audio_is_discarded(client: TestClient) -> None:
    with session(client, turn_detection=None) as socket:
        append(socket, to_pcm(AUDIO[: 2 * RATE]))
        socket.send_json({"type": "input_audio_buffer.clear"})
        assert socket.receive_json()["type"] == "input_audio_buffer.cleared"
        socket.send_json({"type": "input_audio_buffer.commit"})
        assert socket.receive_json()["error"]["code"] == "input_audio_buffer_commit_empty"


WRONG: list[tuple[Any, str]] = [
    ("no json", "invalid_json"),
    ("[" * 100_000, "invalid_json"),
    ([1], "invalid_json"),
    ({"type": "response.create"}, "type"),
    ({"type": "session.update"}, "session"),
    ({"type": "session.update", "session": {"type": "realtime"}}, "type"),
    ({"type": "session.update", "session": {"voice": "alloy"}}, "voice"),
    ({"type": "session.update", "session": {"include": ["logprobs"]}}, "include"),
    ({"type": "input_audio_buffer.append"}, "audio"),
    ({"type": "input_audio_buffer.append", "audio": "%%%"}, "audio"),
    ({"type": "input_audio_buffer.append", "audio": "AA=="}, "16-bit samples"),
    ({"type": "input_audio_buffer.commit"}, "empty"),
]
WRONG_INPUT: list[tuple[Any, str]] = [
    ({"noise_reduction": {"type": "near_field"}}, "noise"),
    ({"turn_detection": {"type": "semantic_vad"}}, "turn"),
    ({"format": {"rate": 4000}}, "rate"),
    ({"transcription": {"model": "huge"}}, "model"),
    ({"transcription": {"language": "xx"}}, "language"),
    ({"transcription": {"prompt": "x " * 9999}}, "prompt"),
]
WRONG += [
    ({"type": "session.update", "session": {"audio": {"input": given}}}, said) for given, said in WRONG_INPUT
]


def test_invalid_events_are_answered_and_the_session_continues(client: TestClient) -> None:
    with client.websocket_connect(URL) as socket:
        socket.receive_json()
        for event, said in WRONG:
            named = event | {"event_id": "mine"} if isinstance(event, dict) else event
            socket.send_text(named if isinstance(named, str) else json.dumps(named))
            answer = socket.receive_json()
            assert answer["type"] == "error", (event, answer)
            error = answer["error"]
            assert said in f"{error['param']} {error['code']} {error['message']}", (event, error)
            assert error["event_id"] == ("mine" if isinstance(event, dict) else None)
        socket.send_bytes(b"\0\1")
        assert socket.receive_json()["type"] == "error"
        assert update(socket, **PCM)["type"] == "session.updated"


def test_refusals_come_before_the_socket_opens() -> None:
    keys = Keys({"ann": hashlib.sha256(b"sesame").hexdigest()})
    with TestClient(make_app(keys, load_tiny(), max_sessions=1)) as client:
        for url, protocols, headers in (
            (URL, None, {}),
            (URL, ["realtime", "openai-insecure-api-key.wrong"], {}),
            (URL, None, {"authorization": "Bearer sesame", "origin": "https://evil.example"}),
            ("/v1/realtime?intent=conversation", None, {"authorization": "Bearer sesame"}),
            ("/v1/realtime?model=huge", None, {"authorization": "Bearer sesame"}),
        ):
            link = client.websocket_connect(url, protocols, headers=headers)
            with pytest.raises(WebSocketDisconnect), link as socket:
                socket.receive_json()
        protocols = ["realtime", "openai-insecure-api-key.sesame"]
        with client.websocket_connect(URL, protocols) as socket:
            assert socket.accepted_subprotocol == "realtime"
            assert socket.receive_json()["type"] == "session.created"
            with pytest.raises(WebSocketDisconnect), client.websocket_connect(URL, protocols) as other:
                other.receive_json()


def test_a_session_ends_with_its_client(client: TestClient) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]
    with client.websocket_connect(URL) as socket:
        socket.receive_json()
        append(socket, to_pcm(AUDIO))
        assert service.num_sessions == 1
    wait_until(lambda: service.num_sessions == 0)


def test_a_model_error_fails_only_its_turn() -> None:
    app = make_app(recognizer=fail_once())
    with TestClient(app) as client, session(client, turn_detection=None) as socket:
        append(socket, to_pcm(AUDIO[: 3 * RATE]))
        failed = receive_until(socket, f"{KIND}.failed")[-1]
        assert failed["error"]["code"] == "transcription_failed" and "secret" not in str(failed)
        append(socket, to_pcm(AUDIO[: 3 * RATE]))
        socket.send_json({"type": "input_audio_buffer.commit"})
        assert texts(receive_until(socket, f"{KIND}.completed"))


def test_nothing_is_sent_when_a_session_is_over(recognizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is closed by then, and a coroutine that never runs would cause a warning."""
    begun, may_end, ended = (threading.Event() for _ in range(3))

    def fail_late(*_: Any) -> Any:
        begun.set()
        may_end.wait(10)
        raise UserError("an event to send")

    def work(self: Session, run: Any = Session.work) -> None:
        try:
            run(self)
        finally:
            ended.set()

    monkeypatch.setattr("asr.serve.realtime.transcribe_live", fail_late)
    monkeypatch.setattr(Session, "work", work)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with TestClient(make_app(recognizer=recognizer)) as client, session(client):
            assert begun.wait(10)
        may_end.set()
        wait_until(ended.is_set)
        gc.collect()
    assert not [one for one in caught if "never awaited" in str(one.message)]


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.serve.realtime.SEND_SECONDS", 1.0)
    app = make_app(recognizer=load_tiny())
    service = app.state.service
    with at_a_port(app) as address, socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(("127.0.0.1", int(address.partition(":")[2])))
        head = f"GET {URL} HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        link.sendall(
            f"{head}sec-websocket-version: 13\r\nsec-websocket-key: {16 * 'A'}{6 * 'A'}==\r\n\r\n".encode()
        )
        wait_until(lambda: service.num_sessions == 1)
        text = json.dumps({"type": "input_audio_buffer.commit", "event_id": "x" * 100_000}).encode()
        frame = b"\x81\xff" + len(text).to_bytes(8, "big") + b"\0\0\0\0" + text  # with a mask of zeros
        threading.Thread(target=send_forever, args=(link, frame), daemon=True).start()
        wait_until(lambda: service.num_sessions == 0, 20)


def send_forever(link: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            link.sendall(frame)
