"""The server over HTTP: fields, formats, streams, errors, keys and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_audio import make_speechlike
from serve_examples import RATE, SURE, encode, speak
from starlette.testclient import TestClient

from asr.speakers import speaker_models
from asr.transcription.model import Model

URL = "/v1/audio/transcriptions"
AUDIO = speak(8.0)


@pytest.fixture(scope="module")
def expected(recognizer: Any) -> Any:
    return Model(recognizer).transcribe(AUDIO, RATE, decoding=SURE)


def post(client: TestClient, content: bytes | None = None, url: str = URL, **fields: Any) -> Any:
    files = {"file": ("talk.wav", encode(AUDIO) if content is None else content)}
    return client.post(url, files=files, data={"model": "tiny"} | fields)


def read_events(text: str) -> list[Any]:
    assert text.endswith("data: [DONE]\n\n")
    lines = text.removesuffix("data: [DONE]\n\n").strip().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_streamed_segments_hold_their_words(client: TestClient, expected: Any) -> None:
    events = read_events(post(client, stream="true", **{"include[]": "asr.segments"}).text)
    segments = [event for event in events if event["type"] == "asr.segment"]
    words = [word["word"] for segment in segments for word in segment["words"]]
    assert words == [word.text for word in expected.words]


DIARIZED, URLS = {"response_format": "diarized_json"}, "known_speaker_references"


def make_urls(count: int = 1) -> dict[str, list[str]]:
    return {f"{URLS}[]": ["data:audio/wav;base64,AAAA"] * count}


REFUSED: list[tuple[Any, str | None]] = [
    ({"temperature": "0.5"}, "temperature"),
    (DIARIZED, "response_format"),
    ({"timestamp_granularities[]": "letter", "response_format": "verbose_json"}, "timestamp_granularities.0"),
    ({"include[]": "logprobs"}, "include.0"),
    ({"stream": "perhaps"}, "stream"),
    ({"known_speaker_names[]": "Ann"}, "known_speaker_names"),
    (DIARIZED | {"known_speaker_names[]": "Ann"}, "known_speaker_references"),
    (DIARIZED | {"known_speaker_names[]": ["a"] * 2} | make_urls(2), URLS),
    (DIARIZED | {"known_speaker_names[]": list("abcde")} | make_urls(5), URLS),
    (DIARIZED | {"known_speaker_names[]": ""} | make_urls(), "known_speaker_names.0"),
    ({"languages[]": ["de", "fr"]}, "languages"),
    ({"langage": "de"}, "langage"),
    ({"chunking_strategy": "never"}, "chunking_strategy"),
    ({"chunking_strategy": '{"type": "server_vad", "threshold": "high"}'}, "chunking_strategy.threshold"),
    (
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "7"},
        "chunking_strategy.threshold",
    ),
    ({"chunking_strategy[type]": "semantic_vad"}, "chunking_strategy.type"),
    ({"language[type]": "de"}, "language"),
    ({"model": ["tiny", "tiny"]}, "model"),
    ({"language": "klingon"}, None),
    ({"prompt": "word " * 1000}, None),
    ({"prompt": "word " * 5000}, "prompt"),
    ({"keywords[]": ["ab", "x" * 200]}, "keywords.1"),
    ({"language": "x" * 5000}, "language"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:40])
def test_unsupported_fields_are_refused_by_name(
    client: TestClient, fields: Any, param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speaker_models, "PACKAGE", "no_package")
    answer = post(client, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param, error
    assert error["type"] == "invalid_request_error" and (param or "").split(".")[0] in error["message"]
    assert answer.headers["x-should-retry"] == "false"


ACCEPTED: list[dict[str, Any]] = [
    {"temperature": "0"},
    {"language": "German"},
    {"chunking_strategy": "auto"},
    {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 400}'},
    {"chunking_strategy[type]": "server_vad", "chunking_strategy[prefix_padding_ms]": "100"},
    {"timestamp_granularities": "word", "response_format": "verbose_json"},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_supported_fields_are_accepted(client: TestClient, fields: dict[str, Any]) -> None:
    assert post(client, **fields).status_code == 200


def test_settings_of_a_request_reach_the_model(client: TestClient, recognizer: Any) -> None:
    given: Any = {"language": "de", "prompt": "a", "hotwords": ("ab",), "decoding": SURE}
    expected = Model(recognizer).transcribe(AUDIO, RATE, **given).text
    fields = {"language": "de", "prompt": "a", "keywords[]": "ab"}
    assert post(client, **fields).json()["text"] == expected != post(client).json()["text"]


def test_chunking_changes_the_segments(client: TestClient) -> None:
    pause = np.zeros(round(0.8 * RATE), np.float32)
    audio = encode(np.concatenate([make_speechlike(0.8, RATE), pause, make_speechlike(0.8, RATE, 1)]))
    verbose = {"response_format": "verbose_json"}
    strategy = {"chunking_strategy[type]": "server_vad", "chunking_strategy[silence_duration_ms]": "400"}
    many = post(client, audio, **verbose, **strategy).json()["segments"]
    assert len(many) > len(post(client, audio, **verbose).json()["segments"])


def test_translation(client: TestClient, recognizer: Any) -> None:
    translated = Model(recognizer).transcribe(AUDIO, RATE, decoding=SURE, task="translate")
    answer = post(client, url="/v1/audio/translations", response_format="verbose_json").json()
    assert answer["task"] == "translate" and answer["text"] == translated.text
    refused = post(client, url="/v1/audio/translations", language="de")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "language"


def test_other_bodies_are_refused(client: TestClient) -> None:
    assert client.post(URL, json={"model": "tiny"}).status_code == 400
    assert client.post(URL, data={"model": "tiny"}).status_code == 400
    no_file = client.post(URL, files={"sound": ("a.wav", b"x")}, data={"model": "tiny"})
    assert no_file.status_code == 400 and no_file.json()["error"]["param"] == "file"
    broken = client.post(
        URL, content=b"--x\r\nnonsense", headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert broken.status_code == 400 and "error" in broken.json()
    assert client.get("/v1/nonsense").json()["error"]["message"]


def test_every_response_has_an_id_and_security_headers(client: TestClient) -> None:
    for path in ("/", "/v1/nonsense"):
        headers = client.get(path).headers
        assert len(headers["x-request-id"]) == 32
        assert headers["content-security-policy"].startswith("default-src 'self'")


def test_health_and_metrics(client: TestClient) -> None:
    post(client)
    assert client.get("/health").text == "ok\n" and client.get("/ready").text == "ready\n"
    text = client.get("/metrics").text
    assert 'asr_audio_seconds_total{model="tiny"}' in text and "asr_waiting_seconds 0" in text
    assert 'asr_requests_total{route="/v1/audio/transcriptions",status="200"}' in text


def test_a_damaged_file_gives_its_readable_part_and_a_warning(client: TestClient) -> None:
    cut = encode(AUDIO)[: -4 * RATE]
    body = post(client, cut).json()
    assert body["text"] and "cut short" in body["warnings"][0]
    assert "cut short" in post(client, cut, response_format="text").headers["x-asr-warnings"]
    assert "cut short" in read_events(post(client, cut, stream="true").text)[-1]["warnings"][0]


def test_no_files_are_left_on_disk(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for content in (None, b"no audio"):
        post(client, content)
        post(client, content, stream="true")
    assert not list(tmp_path.iterdir())
