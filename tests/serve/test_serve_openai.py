"""OpenAI's client, and curl as in the docs, against a running server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lazy_loader
import pytest
from serve_examples import RATE, SURE, at_a_port, encode, load_tiny, make_app, speak
from speaker_examples import MODELS, make_audio

from asr.audio.segmentation import make_recording
from asr.serve.service import Keys
from asr.speakers import speaker_models
from asr.speakers.diarize import Diarizer
from asr.transcription.model import Model
from asr.transcripts.writers import format_transcript

openai = lazy_loader.load("openai")  # importing it takes a second in each process that collects tests
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # deprecations of features that the client still has

KEYS = Keys({"ann": hashlib.sha256(b"sesame").hexdigest()})
AUDIO = speak(6.0)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "serve.md"


@pytest.fixture(scope="module")
def address(recognizer: Any) -> Iterator[str]:
    with at_a_port(make_app(KEYS, recognizer)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{address}/v1", api_key="sesame")


@pytest.fixture(scope="module")
def expected(recognizer: Any) -> Any:
    return Model(recognizer).transcribe(AUDIO, RATE, decoding=SURE)


def ask(client: openai.OpenAI, **options: Any) -> Any:
    return client.audio.transcriptions.create(model="tiny", file=("talk.wav", encode(AUDIO)), **options)


def test_json(client: openai.OpenAI, expected: Any) -> None:
    answer = ask(client)
    assert answer.text == expected.text and answer.usage.seconds == 6 and answer._request_id


@pytest.mark.parametrize("name", ["text", "srt", "vtt"])
def test_texts(client: openai.OpenAI, expected: Any, name: str) -> None:
    wanted = expected.text + "\n" if name == "text" else format_transcript(name, expected)
    assert ask(client, response_format=name) == wanted


@pytest.mark.parametrize("given", [[], ["word"], ["word", "segment"]], ids=str)
def test_verbose_json(client: openai.OpenAI, expected: Any, given: list[Any]) -> None:
    answer = ask(client, response_format="verbose_json", timestamp_granularities=given)
    assert answer.text == expected.text and answer.duration == 6.0 and answer.language.islower()
    words = [word.text for word in expected.words] if "word" in given else None
    segments = [one.text for one in expected.segments] if given != ["word"] else None
    assert (answer.words and [word.word for word in answer.words]) == words
    assert (answer.segments and [segment.text for segment in answer.segments]) == segments
    type(answer).model_validate(answer.model_dump())  # every field is present and has its type


def test_streaming(client: openai.OpenAI, expected: Any) -> None:
    events = list(ask(client, stream=True))
    assert len(events) == len(expected.segments) + 1 > 2
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == expected.text
    assert events[-1].type == "transcript.text.done" and events[-1].usage.seconds == 6


def test_speakers(client: openai.OpenAI, recognizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known speaker may have a label like ours; a stream has the same segments, at its end."""
    monkeypatch.setattr(speaker_models, "load_speaker_models", lambda path, device: MODELS)
    talk, voice = make_audio([(0.2, 2.2, 0), (2.6, 4.6, 1)], 5.0), make_audio([(0.0, 2.0, 1)], 2.0)
    options: Any = {
        "known_speaker_names": ["SPEAKER_00"],
        "known_speaker_references": [to_url(encode(voice))],
        "response_format": "diarized_json",
    }

    def ask(**more: Any) -> Any:
        file = ("a.wav", encode(talk))
        return client.audio.transcriptions.create(model="tiny", file=file, **options, **more)

    answer = ask()
    type(answer).model_validate(answer.model_dump())
    diarizer = Diarizer(MODELS, enrolled={"SPEAKER_00": make_recording(voice, RATE)})
    plain = Model(recognizer).transcribe(talk, RATE, decoding=SURE)
    labeled = [(one.speaker, one.text) for one in diarizer.label(make_recording(talk, RATE), plain).segments]
    assert [(one.speaker, one.text) for one in answer.segments] == labeled
    assert [*dict.fromkeys(name for name, _ in labeled)] == ["SPEAKER_01", "SPEAKER_00"]
    assert answer.text == plain.text == " ".join(text for _, text in labeled) and answer.duration == 5.0
    *segments, done = ask(stream=True)
    assert [one.model_dump() for one in segments] == [one.model_dump() for one in answer.segments]
    assert done.text == answer.text
    for wrong, problem in {
        to_url(b"no audio"): "recording 1: .*not audio",
        to_url(encode(make_audio([(0.0, 10.1, 1)], 10.1))): "recording 1: expected 2 to 10 s",
        to_url(encode(voice[:-1])): "recording 1: expected 2 to 10 s",
        to_url(encode(0.01 * voice)): "recording 1: contains no speech",
        "https://example.org/a.wav": "expected data",
        to_url(encode(voice)) + "%": "expected data",
    }.items():
        options["known_speaker_references"] = [wrong]
        with pytest.raises(openai.BadRequestError, match=f"references: {problem}") as caught:
            ask()
        assert caught.value.param == "known_speaker_references"


def to_url(file: bytes) -> str:
    return f"data:audio/wav;base64,{base64.encodebytes(file).decode()}"


def test_translations_and_models(client: openai.OpenAI) -> None:
    file = ("talk.wav", encode(AUDIO))
    assert client.audio.translations.create(model="tiny", file=file).text
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "asr"


def test_errors(client: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.NotFoundError, match="huge"):
        client.audio.transcriptions.create(model="huge", file=("a.wav", encode(AUDIO)))
    with pytest.raises(openai.BadRequestError, match=r"talk\.mp3"):
        client.audio.transcriptions.create(model="tiny", file=("talk.mp3", b"no audio"))
    with pytest.raises(openai.AuthenticationError, match="wrong API key"):
        ask(openai.OpenAI(base_url=f"http://{address}/v1", api_key="guessed"))
    with pytest.raises(openai.APIError, match="talk"):
        list(client.audio.transcriptions.create(model="tiny", file=("talk", b"no audio"), stream=True))


def test_the_client_retries_a_busy_server_but_not_a_bad_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai.OpenAI, "_calculate_retry_timeout", lambda *_: 0.01)  # replaces Retry-After
    app = make_app(recognizer=load_tiny())
    service = app.state.service
    admit, asked = service.admit_request, []

    def refuse_twice(*given: Any) -> Any:
        asked.append(given)
        service.num_requests = 99 if len(asked) <= 2 else 0
        return admit(*given)

    service.admit_request = refuse_twice
    with at_a_port(app) as address:
        client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=3)
        assert ask(client).text and len(asked) == 3
        with pytest.raises(openai.BadRequestError):
            ask(client, temperature=1)
        assert len(asked) == 4


def test_realtime(client: openai.OpenAI) -> None:
    audio_format = {"type": "audio/pcm", "rate": 24000}
    audio = {"input": {"format": audio_format, "turn_detection": None, "transcription": {"model": "tiny"}}}
    with client.realtime.connect(model="tiny", extra_query={"intent": "transcription"}) as connection:
        connection.session.update(session={"type": "transcription", "audio": audio})  # type: ignore[misc]
        content = base64.b64encode((AUDIO * 32767).astype("<i2").tobytes()).decode()
        connection.input_audio_buffer.append(audio=content)
        connection.input_audio_buffer.commit()
        kinds, text = [], ""
        for event in connection:
            kinds.append(event.type)
            text += event.delta if event.type.endswith("transcription.delta") else ""
            if event.type.endswith("transcription.completed"):
                assert event.transcript == text != ""
                break
    assert kinds[:3] == ["session.created", "session.updated", "input_audio_buffer.committed"]
    assert kinds[3:5] == ["conversation.item.added", "conversation.item.done"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_as_in_the_docs(
    address: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speaker_models, "load_speaker_models", lambda path, device: MODELS)
    (tmp_path / "talk.mp3").write_bytes(encode(AUDIO))
    lines = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("curl ")]
    assert len(lines) >= 3
    for line in lines:
        line = line.replace("127.0.0.1:8000", address).replace("base.en", "tiny")
        command = f"{line} -sS --fail-with-body -H 'Authorization: Bearer sesame'"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stdout + done.stderr
        said = re.sub(r"\s+", " ", done.stdout)
        if "srt" not in line:
            assert json.dumps(expected.text, ensure_ascii=False)[1:-1] in said
        else:
            assert done.stdout == format_transcript("srt", expected)
