"""Live sessions of a model whose encoder works by chunks: each frame is encoded once, sessions go together."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hostile_audio import make_speechlike
from system_examples import save_talker

from asr.audio.segmentation import SegmentationConfig
from asr.cli import main
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.serve.live import LiveText, LiveTranscriber, listen, transcribe_live
from asr.serve.scheduler import Client, Scheduler
from asr.streaming.chunked_decoder import ChunkedDecoder
from asr.streaming.live_session import ChunkedTranscriber
from asr.transcription.transcribe import Recognizer, Request, load_recognizer

pytestmark = pytest.mark.usefixtures("loud_is_speech")
RATE = 16_000
SPEECH_S = np.asarray(make_speechlike(3.0), dtype=np.float32)
PAUSE_S = np.zeros(3 * RATE // 2, np.float32)
CHUNKED = (
    *("features.cmvn=running", "model.encoder.type=conformer", "model.encoder.kernel=5"),
    "model.encoder.chunk={live_steps: 6, live_left: 20}",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_talker(tmp_path_factory.mktemp("chunked") / "model", *CHUNKED, sharpness=3.0)


def load(model: Path, method: str = "silero") -> Recognizer:
    segmentation: Any = SegmentationConfig() if method != "none" else SegmentationConfig(method="none")
    return load_recognizer(model, "cpu", "float32", segmentation, ChecksConfig.off())


def cut(audio_S: np.ndarray, seed: int) -> list[np.ndarray]:
    """Pieces of any length, up to a fifth of a second."""
    lengths = np.random.default_rng(seed).integers(1, RATE // 5, 2_000)
    return np.split(audio_S, lengths.cumsum()[lengths.cumsum() < len(audio_S)])


def run(recognizer: Recognizer, audio_S: np.ndarray, seed: int = 0) -> list[LiveText]:
    return [*transcribe_live(cut(audio_S, seed), listen(recognizer), RATE)]


def read(texts: Sequence[LiveText]) -> list[str]:
    return [text.segment.text for text in texts if text.segment is not None]


def test_the_final_text_is_that_of_the_same_chunks_of_a_file(model: Path) -> None:
    recognizer = load(model, "none")
    assert isinstance(listen(recognizer), ChunkedTranscriber)
    (final,) = (text.segment for text in run(recognizer, SPEECH_S) if text.segment is not None)
    segment = next(iter(transcribe_live([SPEECH_S], LiveTranscriber(recognizer), RATE))).segment
    probability = final.average_log_probability
    assert probability is not None and segment is not None
    assert segment.average_log_probability != pytest.approx(probability, abs=1e-4), "at full context"
    chunked = Request(recognizer.default_decoding()[0].model_copy(update={"chunk_steps": 6}))
    (expected,) = (
        text.segment for text in transcribe_live([SPEECH_S], LiveTranscriber(recognizer, chunked), RATE)
    )
    assert expected is not None and final.text == expected.text
    assert expected.average_log_probability == pytest.approx(probability, abs=1e-4)
    assert [word.text for word in final.words] == [word.text for word in expected.words]
    assert [word.start for word in final.words] == pytest.approx([word.start for word in expected.words])


def test_each_frame_is_encoded_once_and_stable_words_stay(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognizer, sizes = load(model), list[int]()
    encode = ChunkedDecoder.encode_chunk

    def count(self: ChunkedDecoder, frames_TF: Any, state: Any) -> Any:
        sizes.append(len(frames_TF))
        return encode(self, frames_TF, state)

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
    times = [word.start for text in partial[-3:] for word in text.stable]
    assert min(times) > len(SPEECH_S) / RATE, "times count from the first sample of the session"


def test_sessions_in_threads_go_together(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the scheduler of a server, with the texts that each has alone."""
    recognizer, together = load(model), list[int]()
    audio = [SPEECH_S[RATE // 4 * place :] for place in range(6)]
    audio = [np.concatenate([one_S, PAUSE_S, one_S]) for one_S in audio]
    expected = [read(run(recognizer, one_S, seed)) for seed, one_S in enumerate(audio)]
    encode = ChunkedDecoder._encode_chunks

    def count(self: ChunkedDecoder, batch: Sequence[Any]) -> None:
        together.append(len(batch))
        encode(self, batch)

    monkeypatch.setattr(ChunkedDecoder, "_encode_chunks", count)
    scheduler = Scheduler(recognizer, batch_size=4)

    def follow(place: int) -> list[str]:
        return read(run(scheduler.transcriber_for(Client(is_live=True)), audio[place], place))

    with ThreadPoolExecutor(len(audio)) as pool:
        assert [*pool.map(follow, range(len(audio)))] == expected
    assert max(together) > 1


def test_a_chunk_that_fails_leaves_the_model_to_others(model: Path) -> None:
    recognizer = load(model)
    decoder = recognizer.decoder
    assert isinstance(decoder, ChunkedDecoder)
    with pytest.raises(RuntimeError):
        decoder.encode_chunk(decoder.encoder.start().frames_BTF[0, :, :3], decoder.encoder.start())
    assert read(run(recognizer, SPEECH_S))


def test_a_model_without_ctc_head_is_decoded_again_and_again(tmp_path: Path) -> None:
    folder = save_talker(tmp_path / "model", *CHUNKED, "model.ctc_weight=0.0")
    assert type(listen(load(folder))) is LiveTranscriber


def test_evaluation_by_chunks_needs_such_an_encoder(tmp_path: Path) -> None:
    recognizer = load(save_talker(tmp_path / "model"))
    assert not isinstance(listen(recognizer), ChunkedTranscriber)
    with pytest.raises(UserError, match=r"model\.encoder\.chunk"):
        recognizer.check(Request(DecodingConfig(chunk_steps=4)))


def test_sessions_of_a_server(model: Path) -> None:
    """One that leaves in mid-word, one that sends nothing, and one with partial and final text."""
    pytest.importorskip("starlette")
    from serve_examples import make_app
    from starlette.testclient import TestClient

    def append(socket: Any, audio_S: np.ndarray) -> None:
        audio = base64.b64encode((audio_S * 32_767).astype("<i2").tobytes()).decode()
        socket.send_json({"type": "input_audio_buffer.append", "audio": audio})

    def receive(socket: Any, kind: str) -> Any:
        while not (event := socket.receive_json())["type"].endswith(kind):
            pass
        return event

    audio = {"input": {"format": {"type": "audio/pcm", "rate": RATE}}}
    settings = {"type": "transcription", "include": ["asr.partial"], "audio": audio}
    url = "/v1/realtime?intent=transcription"
    with TestClient(make_app(recognizer=load(model), decoding=DecodingConfig())) as client:
        for sent in (SPEECH_S[:10_000], SPEECH_S[:0], SPEECH_S):
            with client.websocket_connect(url) as socket:
                socket.send_json({"type": "session.update", "session": settings})
                receive(socket, "session.updated")
                append(socket, sent)
                if len(sent) == len(SPEECH_S):
                    assert receive(socket, "asr.partial")["stable"]
                    append(socket, PAUSE_S)
                    assert receive(socket, "transcription.completed")["transcript"]


def test_evaluation_by_chunks(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command scores what the same chunks would give live."""
    soundfile.write(tmp_path / "a.wav", SPEECH_S, RATE)
    row = {"id": "a", "audio": "a.wav", "duration": len(SPEECH_S) / RATE, "text": "one two"}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    words = [
        "evaluate",
        str(model),
        str(tmp_path / "test.jsonl"),
        "--decoding=ctc_greedy",
        "--set=checks=off",
    ]
    texts = []
    for steps in ((), ("--set=decoding.chunk_steps=1",)):
        folder = tmp_path / f"out{len(steps)}"
        assert main([*words, *steps, "--output-dir", str(folder)]) == 0, capsys.readouterr().err
        texts.append(sorted(path.read_text() for path in folder.rglob("*.trn")))
    assert texts[0] and texts[0] != texts[1]
