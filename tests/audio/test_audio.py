"""Reading parts, channels, rates and blocks of audio files with little memory; and writing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import soundfile
from audio_formats import FORMATS, SOUND, put
from hostile_audio import RATE, encode_sound, make_speechlike, make_wav
from hypothesis import HealthCheck, given, settings, strategies as st

from asr.audio import AudioError, reading as audio


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    """SOUND at 16 kHz."""
    return put(tmp_path, FORMATS["wav float"].data)


WRONG_REQUESTS: list[tuple[dict[str, float], str]] = [
    ({"start": -0.1}, "starts at -0.1 s begins before 0"),
    ({"start": float("nan")}, "cannot be decoded"),
    ({"start": float("inf")}, "cannot be decoded"),
    ({"duration": 0.0}, "less than one sample"),
    ({"duration": float("nan")}, "cannot be decoded"),
    ({"duration": 1e-5}, "less than one sample"),
    ({"sample_rate": 1000, "duration": 1e-4}, "too short for even one sample at 1000 Hz"),
    ({"start": 3.0}, "from 3.000 s on, but the audio ends at 3.000 s"),
    ({"start": 1e300, "duration": 1.0}, "ends at 3.000 s"),
    ({"start": 3.0, "duration": 0.005}, "from 3.000 to 3.005 s, but"),
    ({"start": 2.5, "duration": 0.52}, "from 2.500 to 3.020 s, but"),
    ({"duration": 1e9}, "ends at 3.000 s"),
    ({"channel": 1}, "has 1 channel, counted from 1, so no channel 2"),
    ({"channel": -1}, "channel 0"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_REQUESTS, ids=str)
@pytest.mark.parametrize("read", [audio.read, audio.read_blocks])
def test_refuses_wrong_request(arguments: dict[str, Any], message: str, read: Any, wav: Path) -> None:
    with pytest.raises(AudioError) as caught:
        list(read(wav, **arguments))
    assert str(caught.value).startswith(f"{wav}: ") and message in str(caught.value)


@pytest.mark.parametrize("name", ["wav", "aac"])
def test_part_may_end_a_rounding_error_late(name: str, tmp_path: Path) -> None:
    path = put(tmp_path, FORMATS[name].data)
    length = len(audio.read(path))
    part = audio.read(path, start=2.0, duration=length / RATE - 2.0 + 0.009)
    assert len(part) == length - 2 * RATE
    for wanted in ({"start": 2.0, "duration": length / RATE - 2.0 + 0.02}, {"start": 9.0}):
        with pytest.raises(AudioError, match="but the audio ends at"):
            audio.read(path, **wanted)


def test_mixes_or_picks_channels(tmp_path: Path) -> None:
    channels = np.stack([make_speechlike(seed=seed) for seed in range(4)], axis=1)
    path = put(tmp_path, encode_sound(channels, RATE, "WAV", "FLOAT"))
    assert audio.read_info(path).num_channels == 4
    np.testing.assert_allclose(audio.read(path), channels.mean(axis=1, dtype=np.float64), atol=1e-7)
    for channel in range(4):
        picked = audio.read(path, channel=channel)
        np.testing.assert_array_equal(picked, channels[:, channel])
        assert picked.flags.c_contiguous


@pytest.mark.parametrize(("gain", "is_cancelled"), [(-1.0, True), (-0.8, True), (-0.4, False), (0.9, False)])
def test_channels_that_cancel_each_other_are_not_mixed(
    gain: float, is_cancelled: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = make_speechlike(3.0)
    noise = 0.0005 * np.random.default_rng(0).standard_normal(len(left)).astype(np.float32)
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([left, gain * left + noise], axis=1), 16_000, "FLOAT")
    found = audio.read(path)
    np.testing.assert_allclose(found, left if is_cancelled else (left + gain * left + noise) / 2, atol=1e-6)
    audio.read(path)
    assert caplog.text.count("its channels cancel each other out") == is_cancelled


def test_silence_only_if_allowed(tmp_path: Path) -> None:
    path = put(tmp_path, encode_sound(np.concatenate([np.zeros(RATE), SOUND]), RATE, "WAV"))
    assert len(audio.read(path)) == 4 * RATE
    with pytest.raises(AudioError, match="all samples are zero"):
        audio.read(path, duration=0.9)
    assert not audio.read(path, duration=0.9, allow_silence=True).any()


@pytest.mark.parametrize("name", ["wav float", "flac", "ogg Vorbis", "mp3", "m4a"])
@pytest.mark.parametrize("block_seconds", [0.01, 0.7, 1.5, 30.0])
def test_blocks_equal_the_whole(name: str, block_seconds: float, tmp_path: Path) -> None:
    path = put(tmp_path, FORMATS[name].data)
    for rate in (RATE, 11_025):
        blocks = list(audio.read_blocks(path, rate, block_seconds=block_seconds))
        np.testing.assert_array_equal(np.concatenate(blocks), audio.read(path, rate))
        assert {len(block) for block in blocks[:-1]} <= {round(block_seconds * rate)}
        assert 0 < len(blocks[-1]) <= round(block_seconds * rate)


def make_sparse_wav(path: Path, seconds: float, sample_rate: int = RATE) -> Path:
    """Return zeros that take no space on disk."""
    header = make_wav(b"", data_bytes=round(seconds * sample_rate) * 2, sample_rate=sample_rate)
    path.write_bytes(header)
    os.truncate(path, len(header) + round(seconds * sample_rate) * 2)
    return path


def test_memory_of_blocks_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for minutes in (3, 12):
        path = make_sparse_wav(tmp_path / "long.wav", 60 * minutes)
        tracemalloc.start()
        try:
            total = sum(len(block) for block in audio.read_blocks(path, 22_050, allow_silence=True))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert total == pytest.approx(60 * minutes * 22_050, abs=1)
    assert peaks[1] < 1.05 * peaks[0] < 40e6


@pytest.mark.parametrize("name", ["wav", "aac", "mp3 without tag"])
def test_read_has_a_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MAX_READ_SECONDS", 2.0)
    path = put(tmp_path, FORMATS[name].data)
    with pytest.raises(AudioError, match="too long to read at once"):
        audio.read(path)
    assert len(audio.read(path, duration=1.9)) == 1.9 * RATE
    assert sum(map(len, audio.read_blocks(path))) >= 3 * RATE


def test_reading_resamples_like_an_ideal_filter(tmp_path: Path) -> None:
    """Compare with scipy in float64: the passband is unchanged, and aliases are removed."""
    times = np.arange(4 * 48_000) / 48_000
    tones = np.sin(2 * np.pi * 5_000 * times) * 0.4
    path = put(tmp_path, encode_sound(tones, 48_000, "WAV", "DOUBLE"))
    middle = slice(RATE, 3 * RATE)  # away from the edges
    filter_taps = scipy.signal.firwin(2_001, 7_800, fs=48_000, window=("kaiser", 14.0))
    reference = scipy.signal.resample_poly(tones, 1, 3, window=filter_taps)
    np.testing.assert_allclose(audio.read(path)[middle], reference[middle], atol=1e-5)

    for frequency in (8_800, 10_000, 15_000, 23_000):
        tone = np.sin(2 * np.pi * frequency * times)
        path = put(tmp_path, encode_sound(tone, 48_000, "WAV", "DOUBLE"))
        alias = audio.read(path)[middle]
        assert 20 * np.log10(np.sqrt(2) * alias.std()) < -80, frequency


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".WAV"])
def test_writes_16_bit_losslessly(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    samples = np.arange(-32768, 32768, dtype=np.int16)
    audio.write(path, samples / np.float32(32768), RATE)
    written, rate = soundfile.read(path, dtype="int16")
    np.testing.assert_array_equal(written, samples)
    assert rate == RATE and soundfile.info(path).subtype == "PCM_16"
    audio.write(path, audio.read(path), RATE)
    np.testing.assert_array_equal(soundfile.read(path, dtype="int16")[0], samples)


def test_write_clips(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", np.array([1.5, -1.5, 1.0, -1.0]), RATE)
    assert soundfile.read(tmp_path / "a.wav", dtype="int16")[0].tolist() == [32767, -32768, 32767, -32768]


WRONG_WRITES: dict[str, tuple[str, np.ndarray, int]] = {
    "suffix": ("a.mp3", SOUND, RATE),
    "no samples": ("a.wav", SOUND[:0], RATE),
    "channels": ("a.wav", SOUND.reshape(-1, 2), RATE),
    "integers": ("a.wav", np.arange(9), RATE),
    "NaN": ("a.wav", np.array([0.0, np.nan]), RATE),
    "rate": ("a.wav", SOUND, 0),
    "rate that FLAC has not": ("a.flac", SOUND, 768_000),
}


@pytest.mark.parametrize("name", WRONG_WRITES)
def test_refused_write_leaves_nothing_behind(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file_name, samples, rate = WRONG_WRITES[name]
    with pytest.raises(AudioError, match=f"^{tmp_path / file_name}: "):
        audio.write(tmp_path / file_name, samples, rate)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_import_is_light_and_reading_leaves_no_trace(wav: Path) -> None:
    script = f"""
import sys
from asr.audio import reading
assert not {{"av", "soxr", "soundfile", "torch"}} & set(sys.modules)
reading.read({str(wav)!r})
assert "av" not in sys.modules and "soxr" not in sys.modules
import av
assert av.logging.get_level() is None
"""
    subprocess.run([sys.executable, "-c", script], check=True)


ENCODINGS = [
    ("WAV", "FLOAT"),
    ("WAV", "PCM_16"),
    ("WAV", "PCM_U8"),
    ("AIFF", "PCM_24"),
    ("NIST", "PCM_16"),
    ("FLAC", "PCM_16"),
]
PROPERTY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def sounds(draw: st.DrawFn) -> tuple[bytes, np.ndarray, int]:
    """Yield a file, its samples (frames, channels) as libsndfile reads them, and their rate."""
    rate = draw(st.sampled_from([1_000, 8_000, 11_025, 16_000, 44_100, 48_000, 96_000]))
    shape = draw(st.integers(1, 6_000)), draw(st.integers(1, 8))
    container, subtype = draw(st.sampled_from(ENCODINGS))
    samples = np.random.default_rng(draw(st.integers(0, 9))).uniform(-0.9, 0.9, shape)
    data = encode_sound(samples, rate, container, subtype)
    return data, soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0], rate


@settings(PROPERTY)
@given(sounds(), st.sampled_from([None, 8_000, 16_000, 22_050]))
def test_reads_what_was_written(
    tmp_path: Path, sound: tuple[bytes, np.ndarray, int], wanted: int | None
) -> None:
    data, frames, rate = sound
    path, wanted = put(tmp_path, data), wanted or rate
    info = audio.read_info(path)
    assert (info.sample_rate, info.num_channels, info.seconds) == (rate, frames.shape[1], len(frames) / rate)
    expected_length = len(frames) * wanted / rate
    if expected_length < 2:
        return
    read = audio.read(path, wanted, allow_silence=True)
    assert read.dtype == np.float32 and read.shape == (len(read),) and abs(len(read) - expected_length) <= 1
    mean = frames.mean(axis=1)
    is_cancelled = np.square(mean).mean() < 2 * audio.CANCELLED_SHARE * np.square(frames).mean()
    if wanted == rate and not is_cancelled:
        np.testing.assert_allclose(read, mean, atol=1e-6)
    blocks = list(audio.read_blocks(path, wanted, block_seconds=0.05, allow_silence=True))
    np.testing.assert_array_equal(np.concatenate(blocks), read)
