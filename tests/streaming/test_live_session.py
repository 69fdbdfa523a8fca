"""Live sessions of a model whose encoder works by chunks: each frame is encoded once, sessions go together."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hostile_audio import make_speechlike
from hypothesis import HealthCheck, given, settings, strategies as st
from pydantic import ValidationError
from system_examples import save_talker

from asr.audio.segmentation import AudioSegment, SegmentationConfig
from asr.cli import main
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.serve.live import LiveText, LiveTranscriber, listen, transcribe_live, transcribe_pipe
from asr.serve.scheduler import Client, Scheduler
from asr.streaming.chunked_decoder import ChunkedDecoder, SessionState
from asr.streaming.first_pass import FIRST_PASSES, Emission, Read, ReadState
from asr.streaming.live_session import ChunkedTranscriber
from asr.text.tokenizer import BLANK_ID, UNK_ID
from asr.transcription.transcribe import Recognizer, Request, load_recognizer
from asr.transcripts.transcript import Segment

pytestmark = pytest.mark.usefixtures("loud_is_speech")
RATE = 16_000
APPEND = {"type": "input_audio_buffer.append"}
INPUT = {"format": {"type": "audio/pcm", "rate": RATE}}
SPEECH_S = np.asarray(make_speechlike(3.0), dtype=np.float32)
PAUSE_S = np.zeros(3 * RATE // 2, np.float32)
CHUNKED = (
    *("features.cmvn=running", "model.encoder.type=conformer", "model.encoder.kernel=5"),
    "model.encoder.chunk={live_steps: 6, live_left: 20}",
)


TRANSDUCER = (*CHUNKED, "model.decoder={type: transducer, dim: 16}", "model.ctc_weight=0.3")


@pytest.fixture(scope="module")
def transducer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transducer") / "model"
    return save_talker(folder, *TRANSDUCER, sharpness=3.0, decoder=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_talker(tmp_path_factory.mktemp("chunked") / "model", *CHUNKED, sharpness=3.0)


def load(model: Path, method: str = "silero", **endpoint: float) -> Recognizer:
    segmentation = SegmentationConfig.model_validate({"method": method, "endpoint": endpoint})
    recognizer = load_recognizer(model, "cpu", "float32", segmentation, ChecksConfig.off())
    if (decoder := recognizer.model.decoder) is not None and decoder.kind == "transducer":
        with torch.no_grad():  # or it would never come to the next step
            decoder.output.bias[BLANK_ID] += 6.0
    return recognizer


def cut(audio_S: np.ndarray, seed: int) -> list[np.ndarray]:
    """Pieces of any length, up to a fifth of a second."""
    lengths = np.random.default_rng(seed).integers(1, RATE // 5, 2_000)
    return np.split(audio_S, lengths.cumsum()[lengths.cumsum() < len(audio_S)])


def run(recognizer: Recognizer, audio_S: np.ndarray, seed: int = 0, **decoding: Any) -> list[LiveText]:
    request = Request(DecodingConfig(**decoding))
    return [*transcribe_live(cut(audio_S, seed), listen(recognizer, request), RATE)]


def add_pauses(seconds: Sequence[float]) -> np.ndarray:
    """Sound of a second and a pause, by turns."""
    sounds = [SPEECH_S[RATE // 3 * place :][:RATE] for place in range(len(seconds))]
    pauses = [np.zeros(round(RATE * pause), np.float32) for pause in seconds]
    return np.concatenate([piece_S for pair in zip(sounds, pauses, strict=True) for piece_S in pair])


def read(texts: Sequence[LiveText]) -> list[str]:
    return [text.segment.text for text in texts if text.segment is not None]


def send(socket: Any, audio_S: np.ndarray) -> None:
    audio = base64.b64encode((audio_S * 32_767).astype("<i2").tobytes()).decode()
    socket.send_json(APPEND | {"audio": audio})


def receive(socket: Any, kind: str) -> Any:
    while not (event := socket.receive_json())["type"].endswith(kind):
        pass
    return event


def update(audio: dict[str, Any]) -> dict[str, Any]:
    session = {"type": "transcription", "include": ["asr.partial"], "audio": {"input": audio}}
    return {"type": "session.update", "session": session}


@contextlib.contextmanager
def begin_session(client: Any) -> Iterator[Any]:
    from serve_examples import wait_until

    wait_until(lambda: client.app.state.service.num_sessions == 0)  # the last one may be ending
    with client.websocket_connect("/v1/realtime?intent=transcription") as socket:
        socket.send_json(update(INPUT))
        receive(socket, "session.updated")
        yield socket


def find_final(texts: Iterable[LiveText]) -> Segment:
    """The only segment that ended."""
    (final,) = (text.segment for text in texts if text.segment is not None)
    return final


def test_the_final_text_is_that_of_the_same_chunks_of_a_file(model: Path) -> None:
    recognizer = load(model, "none")
    assert isinstance(listen(recognizer), ChunkedTranscriber)
    final = find_final(run(recognizer, SPEECH_S))
    segment = find_final(transcribe_live([SPEECH_S], LiveTranscriber(recognizer), RATE))
    probability = final.average_log_probability
    assert probability is not None
    assert segment.average_log_probability != pytest.approx(probability, abs=1e-4), "at full context"
    chunked = Request(recognizer.default_decoding()[0].model_copy(update={"chunk_steps": 6}))
    expected = find_final(transcribe_live([SPEECH_S], LiveTranscriber(recognizer, chunked), RATE))
    assert final.text == expected.text
    assert expected.average_log_probability == pytest.approx(probability, abs=1e-4)
    assert [word.text for word in final.words] == [word.text for word in expected.words]
    assert [word.start for word in final.words] == pytest.approx([word.start for word in expected.words])


def test_each_frame_is_encoded_once_and_stable_words_stay(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer, sizes = load(model), list[int]()
    encode = ChunkedDecoder.encode_chunk

    def count(self: ChunkedDecoder, frames_TF: Any, *arguments: Any) -> Any:
        sizes.append(len(frames_TF))
        return encode(self, frames_TF, *arguments)

    monkeypatch.setattr(ChunkedDecoder, "encode_chunk", count)
    audio_S = np.concatenate([SPEECH_S, PAUSE_S, SPEECH_S, PAUSE_S])
    texts = run(recognizer, audio_S)
    assert 2 * len(SPEECH_S) / 160 - 48 < 24 * sizes.count(24) < len(audio_S) / 160, "pauses are left out"
    assert sum(size for size in sizes if size != 24) < 4 * 24, "a rest is encoded at the end of a segment"
    assert len([text for text in read(texts) if text]) == 2
    stable: list[str] = []
    partial = [text for text in texts if text.segment is None]
    assert sum(len(text.stable) > 3 for text in partial) > 3
    for text in texts:
        words = [word.text for word in text.stable]
        assert text.segment is not None or words[: len(stable)] == stable
        stable = [] if text.segment is not None else words
    assert run(recognizer, audio_S, seed=1) == texts, "pieces make no difference"
    times = [word.start for text in partial[-3:] for word in text.stable]
    assert min(times) > len(SPEECH_S) / RATE, "times count from the first sample of the session"


@pytest.fixture(scope="module", params=["model", "transducer"])
def recognizer(request: pytest.FixtureRequest) -> Recognizer:
    return load(request.getfixturevalue(request.param))


@pytest.mark.slow
@given(
    pauses=st.lists(st.floats(0.1, 0.8), min_size=2, max_size=3),
    seed=st.integers(0, 99),
    method=st.sampled_from(["auto", "ctc_greedy"]),
    chunk_steps=st.integers(1, 12),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_stable_word_changes_within_a_segment(
    recognizer: Recognizer, pauses: list[float], seed: int, method: str, chunk_steps: int
) -> None:
    """Words are only added, to the shown ones but the last, whatever the second pass finds in pauses."""
    audio_S = add_pauses(pauses)
    texts = run(recognizer, audio_S, seed, method=method, beam=2, chunk_steps=chunk_steps)
    stable: list[str] = []
    most = 0
    for text in texts:
        if text.segment is not None:
            stable = []
            continue
        words = [word.text for word in text.stable]
        assert words[: len(stable)] == stable
        stable, most = words, max(most, len(words))
    assert most


def test_the_first_pass_of_a_transducer_is_its_greedy_search(transducer: Path) -> None:
    """All that it has read is in the text that the same search finds in the whole segment."""
    recognizer = load(transducer, "none", silence_seconds=9, empty_seconds=9)
    texts = run(recognizer, SPEECH_S, method="transducer", beam=1)
    (final,) = read(texts)
    shown = " ".join(word.text for word in (*texts[-2].stable, *texts[-2].partial))
    assert len(shown.split()) > 5 and final.startswith(shown)
    by_ctc = run(recognizer, SPEECH_S, method="ctc_greedy")
    assert read(by_ctc) != [final]
    assert [word.text for word in texts[-2].stable] != [word.text for word in by_ctc[-2].stable]


def test_the_second_pass_may_be_left_out(model: Path) -> None:
    """The final text is then that of the first pass."""
    recognizer = load(model, "none")
    texts = run(recognizer, SPEECH_S, method="ctc_greedy")
    (final,) = read(texts)
    shown = " ".join(word.text for word in (*texts[-2].stable, *texts[-2].partial))
    assert len(shown.split()) > 5 and final.startswith(shown)
    assert read(run(recognizer, SPEECH_S, method="joint")) != [final]


# --- endpoints ------------------------------------------------------------------------------------


def script(recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch, places: Collection[int]) -> list[float]:
    """Emit a token at some steps of each segment; return the ends of those that the second pass reads."""

    def emit(model: Any, encoded_BTD: Any, lengths_B: Any, states: Sequence[ReadState]) -> list[Read]:
        found: list[Read] = []
        for length, state in zip(lengths_B.tolist(), states, strict=True):
            steps = range(state.num_steps, state.num_steps + length)
            emissions = [Emission(UNK_ID + 1, step, -0.1) for step in steps if step in places]
            found.append((emissions, ReadState(state.num_steps + length)))
        return found

    ends: list[float] = []
    recognize = recognizer.recognize

    def note(segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        ends.extend(segment.end for segment in segments)
        return recognize(segments, request)

    monkeypatch.setitem(FIRST_PASSES, "ctc", emit)
    monkeypatch.setattr(recognizer, "recognize", note)
    return ends


@pytest.mark.parametrize("method", ["silero", "none"])
@pytest.mark.parametrize("piece", [999, 10 * RATE])
def test_text_and_then_none_ends_a_segment(
    model: Path, monkeypatch: pytest.MonkeyPatch, method: str, piece: int
) -> None:
    """Where all is loud, at 1.2 s after the token, and the next segment begins without a gap."""
    recognizer = load(model, method)
    ends = script(recognizer, monkeypatch, [3])
    audio_S = np.tile(SPEECH_S, 2)
    transcriber = listen(recognizer)
    texts = [
        text
        for first in range(0, len(audio_S), piece)
        for text in transcriber.push(audio_S[first : first + piece])
    ]
    segments = [text.segment for text in texts if text.segment is not None]
    # 36 steps are the first whole chunks with 30 blanks after the token; a quarter of a second is kept.
    lengths = np.diff([0.0, *ends])
    assert len(ends) == 4 and lengths == pytest.approx([36 * 0.04 - 0.25] * 4, abs=0.011)
    assert len(segments) == 4
    assert len(transcriber.finish()) == 1


def test_a_segment_without_text_is_dropped(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that the detector takes for speech costs neither a second pass nor memory."""
    recognizer = load(model)
    ends = script(recognizer, monkeypatch, [])
    transcriber = listen(recognizer)
    for late in (False, True):
        texts = transcriber.push(np.tile(SPEECH_S, 3), is_late=late)
        assert not any(text.segment or text.stable or text.partial for text in texts) and ends == []
        assert len(transcriber._segmenter._audio) < 3.0 * RATE


def test_endpoints_are_settings(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recognizer = load(model, silence_seconds=0.4)
    ends = script(recognizer, monkeypatch, [3])
    listen(recognizer).push(SPEECH_S)
    # 18 steps are the first whole chunks with 10 blanks after the token; half of the silence is kept.
    assert ends[0] == pytest.approx(18 * 0.04 - 0.2, abs=0.011)
    with pytest.raises(ValidationError):
        load(model, silence_seconds=0)


# --- many sessions --------------------------------------------------------------------------------


def test_sessions_in_threads(model: Path) -> None:
    """Through the scheduler of a server, with the texts that each has alone."""
    recognizer = load(model)
    audio = [SPEECH_S[RATE // 4 * place :] for place in range(6)]
    audio = [np.concatenate([one_S, PAUSE_S, one_S]) for one_S in audio]
    expected = [read(run(recognizer, one_S, seed)) for seed, one_S in enumerate(audio)]
    scheduler = Scheduler(recognizer, batch_size=4)

    def follow(place: int) -> list[str]:
        return read(run(scheduler.transcriber_for(Client(is_live=True)), audio[place], place))

    with ThreadPoolExecutor(len(audio)) as pool:
        assert [*pool.map(follow, range(len(audio)))] == expected


def test_a_chunk_that_fails_leaves_the_model_to_others(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even to the one with which it goes together, when all that are being spoken have come."""
    recognizer, together, clients = load(model), list[int](), [Client(), Client()]
    decoder, encode = recognizer.decoder, ChunkedDecoder._encode_chunks

    def count(self: ChunkedDecoder, batch: Sequence[Any], first_pass: str) -> None:
        together.append(len(batch))
        encode(self, batch, first_pass)

    assert isinstance(decoder, ChunkedDecoder)
    decoder.speaking.update(clients)
    monkeypatch.setattr("asr.streaming.chunked_decoder.WAIT_SHARE", 1e4)
    monkeypatch.setattr(ChunkedDecoder, "_encode_chunks", count)
    state = SessionState(decoder.encoder.start())
    frames_TF = state.encoder.frames_BTF[0]
    with ThreadPoolExecutor(2) as pool:
        good, bad = (pool.submit(decoder.encode_chunk, frames_TF[:, :n], state, "ctc") for n in (None, 3))
        assert len(good.result().encoded_TD) == 1
        with pytest.raises(RuntimeError):
            bad.result()
    assert together == [2, 1, 1]
    decoder.speaking.clear()
    assert read(run(recognizer, SPEECH_S))


def test_a_model_without_ctc_head_is_decoded_again_and_again(tmp_path: Path) -> None:
    folder = save_talker(tmp_path / "model", *CHUNKED, "model.ctc_weight=0.0")
    assert type(listen(load(folder))) is LiveTranscriber


def test_evaluation_by_chunks_needs_such_an_encoder(tmp_path: Path) -> None:
    recognizer = load(save_talker(tmp_path / "model"))
    assert not isinstance(listen(recognizer), ChunkedTranscriber)
    with pytest.raises(UserError, match=r"model\.encoder\.chunk"):
        recognizer.check(Request(DecodingConfig(chunk_steps=4)))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Any]:
    pytest.importorskip("starlette")
    from serve_examples import make_app
    from starlette.testclient import TestClient

    app = make_app(recognizer=load(model), decoding=DecodingConfig(), max_sessions=1, max_idle_seconds=2.0)
    with TestClient(app) as client:
        yield client


def test_a_client_that_talks(server: Any) -> None:
    """Partial and final text."""
    with begin_session(server) as socket:
        send(socket, SPEECH_S)
        assert receive(socket, "asr.partial")["stable"]
        send(socket, PAUSE_S)
        assert receive(socket, "transcription.completed")["transcript"]


def test_a_client_that_leaves_in_mid_word(server: Any) -> None:
    with begin_session(server) as socket:
        send(socket, SPEECH_S[:10_000])
    test_a_client_that_talks(server)


def test_a_client_that_sends_nothing(server: Any) -> None:
    """Its place is free again after `max_idle_seconds`."""
    with begin_session(server) as socket:
        error = receive(socket, "error")["error"]
        assert error["code"] == "session_expired" and "2 s" in error["message"]
    test_a_client_that_talks(server)


def test_a_client_that_sends_too_much(server: Any) -> None:
    """A minute of noise at once, some of it floats that are NaN, all of it read as samples."""
    floats = np.full(RATE * 10, math.nan, np.float32).tobytes()
    noise = np.random.default_rng(0).bytes(2 * RATE * 40)
    with begin_session(server) as socket:
        for content in (floats, noise):
            for first in range(0, len(content), 1 << 20):
                audio = base64.b64encode(content[first : first + (1 << 20)]).decode()
                socket.send_json(APPEND | {"audio": audio})
        assert receive(socket, "completed")
    test_a_client_that_talks(server)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_pipe_with_samples_that_are_no_numbers(model: Path, value: float) -> None:
    """The command refuses them, after the text of what came before."""
    samples_S = np.concatenate([SPEECH_S, np.full(RATE, value, np.float32)])
    content, out = io.BytesIO(), io.StringIO()
    soundfile.write(content, samples_S, RATE, "FLOAT", format="WAV")
    content.seek(0)
    with pytest.raises(UserError, match="NaN or infinite"):
        transcribe_pipe(content, out, lambda: (load(model), Request()), as_json=False)
    assert out.getvalue().strip()


def test_evaluation_by_chunks(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command scores what the same chunks would give live."""
    soundfile.write(tmp_path / "a.wav", SPEECH_S, RATE)
    row = {"id": "a", "audio": "a.wav", "duration": len(SPEECH_S) / RATE, "text": "one two"}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    words = ["evaluate", str(model), str(tmp_path / "test.jsonl"), "--set=checks=off"]
    texts = []
    for steps in ((), ("--set=decoding.chunk_steps=1",)):
        folder = tmp_path / f"out{len(steps)}"
        options = ["--decoding=ctc_greedy", *steps, "--output-dir", str(folder)]
        assert main([*words, *options]) == 0, capsys.readouterr().err
        texts.append(sorted(path.read_text() for path in folder.rglob("*.trn")))
    assert texts[0] and texts[0] != texts[1]
