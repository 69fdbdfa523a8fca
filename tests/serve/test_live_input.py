"""Live audio from a pipe: the recorder never waits, nothing is lost, and files are told from raw PCM."""

from __future__ import annotations

import io
import os
import threading
import time
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
import scipy
import soundfile
from audio_formats import FORMATS, SOUND
from hostile_audio import RATE, make_speechlike

from asr.audio import is_container, reading as audio
from asr.errors import UserError
from asr.transcription import PipeReader, decode_pcm, live_input, read_live


def read_all(content: bytes, channel: int | None = None) -> np.ndarray:
    pieces, rate = read_live(PipeReader(io.BytesIO(content)), RATE, channel)
    assert rate == RATE
    return np.concatenate(list(pieces))


def test_a_recorder_does_not_wait_for_decoding() -> None:
    """Far more than a pipe holds is written while nobody reads."""
    reading, writing = os.pipe()
    content = os.urandom(1 << 20)
    with open(reading, "rb") as source, open(writing, "wb") as sink:
        pipe = PipeReader(source)
        writer = threading.Thread(target=lambda: (sink.write(content), sink.close()))
        begin = time.monotonic()
        writer.start()
        writer.join(10)
        assert not writer.is_alive()
        assert pipe.peek(10) == content[:10]
        found = b"".join(iter(lambda: pipe.read(1000), b""))
        assert found == content and begin <= pipe.arrived <= time.monotonic()
        assert pipe.waiting_bytes == 0


def test_only_after_hours_behind_the_pipe_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_input, "MAX_WAITING_BYTES", 100_000)
    content = os.urandom(1 << 20)
    pipe = PipeReader(io.BytesIO(content))
    pipe.peek(100_000)
    time.sleep(0.05)
    assert pipe.waiting_bytes < 100_000 + (1 << 17)
    assert b"".join(iter(lambda: pipe.read(1 << 15), b"")) == content, "and nothing is lost"
    assert "the pipe has to wait" in caplog.text


def test_a_fault_of_the_pipe_is_told_after_what_came() -> None:
    class Broken(io.RawIOBase):
        def __init__(self) -> None:
            self.pieces: list[Any] = [b"abc", None, OSError(5, "Input/output error")]

        def read(self, size: int = -1) -> Any:
            piece = self.pieces.pop(0)
            if isinstance(piece, OSError):
                raise piece
            return piece

    pipe = PipeReader(cast(BinaryIO, Broken()))
    assert pipe.read(100) == b"abc"
    with pytest.raises(UserError, match="standard input: cannot be read"):
        pipe.read(100)


def test_raw_samples_may_come_in_any_pieces() -> None:
    samples = np.array([0, 1, -1, 32767, -32768], "<i2")
    content = samples.tobytes()
    for size in (1, 2, 3, 10):
        pieces = [content[first : first + size] for first in range(0, len(content), size)]
        assert np.array_equal(np.concatenate(list(decode_pcm(pieces))), samples.astype(np.float32) / 32768)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_through_a_pipe_is_what_it_is_on_disk(name: str, tmp_path: Any) -> None:
    (tmp_path / "sound").write_bytes(FORMATS[name].data)
    expected = audio.read(tmp_path / "sound", RATE)
    found = read_all(FORMATS[name].data)
    # Decoders that know the whole file leave out what the encoder put at its edges.
    assert abs(len(found) - len(expected)) <= 0.13 * RATE
    lags = scipy.signal.correlation_lags(len(found), len(expected))
    shift = int(lags[scipy.signal.correlate(found, expected, method="fft").argmax()])
    assert _match(found, expected, shift) > 0.95


def _match(one: np.ndarray, other: np.ndarray, lag: int) -> float:
    one, other = (one[lag:], other) if lag > 0 else (one, other[-lag:] if lag else other)
    length = min(len(one), len(other), RATE)
    return float(np.corrcoef(one[:length], other[:length])[0, 1])


@pytest.mark.parametrize("seed", range(20))
def test_raw_pcm_is_no_container(seed: int) -> None:
    random = np.random.default_rng(seed)
    noise = (random.standard_normal(3000) * 10 ** random.uniform(0, 4)).clip(-32768, 32767).astype("<i2")
    speech = (make_speechlike(0.2, seed=seed) * 32767).astype("<i2")
    mpeg = np.frombuffer(b"\xff\xfb\x90\x64" + noise.tobytes(), "<i2")  # the first samples alone do not tell
    for samples in (noise, speech, 0 * noise, mpeg):
        assert not is_container(samples.tobytes()[:4096])
        assert np.array_equal(read_all(samples.tobytes()), samples.astype(np.float32) / 32768)


def test_sound_comes_before_the_end_of_the_file() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as source, open(writing, "wb") as sink:
        content = FORMATS["mp3"].data
        sink.write(content[: len(content) // 2])
        sink.flush()
        pieces, _ = read_live(PipeReader(source), RATE)
        assert len(next(pieces)) > 0, "the other half has not been written yet"
        sink.write(content[len(content) // 2 :])
        sink.close()
        assert sum(map(len, pieces)) > 2.5 * RATE


def test_channels_of_a_stream(tmp_path: Any) -> None:
    left, right = SOUND, np.roll(SOUND, RATE)
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], axis=1), RATE)
    content = (tmp_path / "a.wav").read_bytes()
    np.testing.assert_allclose(read_all(content, channel=1), right, atol=1e-4)
    np.testing.assert_allclose(read_all(content), (left + right) / 2, atol=1e-4)
    with pytest.raises(UserError, match="has 2"):
        read_all(content, channel=2)
    with pytest.raises(UserError, match="raw PCM on standard input"):
        read_all(b"\0" * 8000, channel=0)


@pytest.mark.parametrize("content", [b"RIFF" + b"\0" * 5000, b"OggS", b"\0\0\0\x1cftypM4A " + b"\xff" * 9000])
def test_what_cannot_be_decoded_is_said(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^standard input: "):
        read_all(content)
