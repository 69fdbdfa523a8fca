"""What is asked of an audio file: parts, channels, rates, blocks in little memory; and writing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
import scipy
import soundfile
from audio_formats import FORMATS, SOUND, put
from hostile_audio import RATE, encode_media, encode_sound, make_speechlike, make_wav
from hypothesis import HealthCheck, given, settings, strategies as st

from asr.audio import AudioError, reading as audio
from asr.errors import UserError


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    """SOUND at 16 kHz."""
    return put(tmp_path, FORMATS["wav float"].data)


# --- what is asked of a file --------------------------------------------------------------------

WRONG_REQUESTS = {
    "negative start": ({"start": -0.1}, "start is -0.1 s, expected 0 or more"),
    "NaN as start": ({"start": float("nan")}, "start is nan s"),
    "infinite start": ({"start": float("inf")}, "start is inf s"),
    "no duration": ({"duration": 0.0}, "duration is 0.0 s, expected more than 0"),
    "negative duration": ({"duration": -1.0}, "duration is -1.0 s"),
    "NaN as duration": ({"duration": float("nan")}, "duration is nan s"),
    "less than a sample": ({"duration": 1e-5}, "less than a sample at 16000 Hz"),
    "less than a sample to write": (
        {"sample_rate": 1000, "duration": 1e-4},
        "too short for a sample at 1000 Hz",
    ),
    "start at the end": ({"start": 3.0}, "from 3.000 s on is wanted, but the audio ends at 3.000 s"),
    "start far behind the end": ({"start": 1e300, "duration": 1.0}, "but the audio ends at 3.000 s"),
    "part behind the end": ({"start": 3.0, "duration": 0.005}, "from 3.000 to 3.005 s is wanted"),
    "part past the end": (
        {"start": 2.5, "duration": 0.52},
        "from 2.500 to 3.020 s is wanted, but the audio ends at 3.000 s",
    ),
    "endless part": ({"duration": 1e9}, "but the audio ends at 3.000 s"),
    "channel": ({"channel": 1}, "has 1 channel, counted from 1; channel 2 is wanted"),
    "negative channel": ({"channel": -1}, "channel 0 is wanted"),
    "rate of zero": ({"sample_rate": 0}, "sample_rate is 0 Hz, expected 1,000 to 768,000 Hz"),
    "huge rate": ({"sample_rate": 10**7}, "sample_rate is 10000000 Hz"),
}


@pytest.mark.parametrize("name", WRONG_REQUESTS)
@pytest.mark.parametrize("read", [audio.read, audio.read_blocks])
def test_refuses_wrong_request(name: str, read: Any, wav: Path) -> None:
    arguments, message = WRONG_REQUESTS[name]
    with pytest.raises(AudioError) as caught:
        list(read(wav, **arguments))
    assert str(caught.value).startswith(f"{wav}: ") and message in str(caught.value)


@pytest.mark.parametrize("name", ["wav", "aac"])
def test_part_may_end_a_rounding_error_late(name: str, tmp_path: Path) -> None:
    path = put(tmp_path, FORMATS[name].data)
    length = len(audio.read(path))
    part = audio.read(path, start=2.0, duration=length / RATE - 2.0 + 0.009)
    assert len(part) == length - 2 * RATE
    with pytest.raises(AudioError, match=r"from 2\.000 to 3\.\d+ s is wanted, but the audio ends at 3\.0"):
        audio.read(path, start=2.0, duration=length / RATE - 2.0 + 0.02)
    with pytest.raises(AudioError, match=r"from 9\.000 s on is wanted, but the audio ends at"):
        audio.read(path, start=9.0)


@pytest.mark.parametrize("block_seconds", [0.0, -1.0, float("nan"), 1e-6, 1e9])
def test_refuses_wrong_blocks_at_once(block_seconds: float, wav: Path) -> None:
    with pytest.raises(AudioError, match="block_seconds is"):
        audio.read_blocks(wav, block_seconds=block_seconds)


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


def test_independent_channels_and_silence_are_mixed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for level in (0.1, 1e-4, 0.0):
        sound = level * random.standard_normal((16_000, 2)).astype(np.float32)
        soundfile.write(tmp_path / "stereo.wav", sound, 16_000, "FLOAT")
        found = audio.read(tmp_path / "stereo.wav", allow_silence=True)
        np.testing.assert_allclose(found, sound.mean(axis=1), atol=1e-6)


def test_picks_from_a_microphone_array(tmp_path: Path) -> None:
    channels = np.stack([SOUND * 0.01 * channel for channel in range(64)], axis=1)
    path = put(tmp_path, encode_sound(channels, RATE, "WAV", "FLOAT"))
    np.testing.assert_array_equal(audio.read(path, channel=40), channels[:, 40])
    with pytest.raises(AudioError, match=r"has 64 channels.* pick one with channel="):
        audio.read(path)
    with pytest.raises(AudioError, match="all samples of channel 1 are zero"):
        audio.read(path, channel=0)


def test_silence_only_if_allowed(tmp_path: Path) -> None:
    path = put(tmp_path, encode_sound(np.concatenate([np.zeros(RATE), SOUND]), RATE, "WAV"))
    assert len(audio.read(path)) == 4 * RATE
    with pytest.raises(AudioError, match="all samples are zero"):
        audio.read(path, duration=0.9)
    assert not audio.read(path, duration=0.9, allow_silence=True).any()


def test_level_may_exceed_full_scale_somewhat(tmp_path: Path) -> None:
    path = put(tmp_path, encode_sound(50 * SOUND, RATE, "WAV", "FLOAT"))
    np.testing.assert_array_equal(audio.read(path), 50 * SOUND)


# --- blocks, memory, limits ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wav float", "flac", "ogg Vorbis", "mp3", "m4a"])
@pytest.mark.parametrize("block_seconds", [0.01, 0.7, 1.5, 30.0])
def test_blocks_equal_the_whole(name: str, block_seconds: float, tmp_path: Path) -> None:
    path = put(tmp_path, FORMATS[name].data)
    for rate in (RATE, 11_025):
        blocks = list(audio.read_blocks(path, rate, block_seconds=block_seconds))
        np.testing.assert_array_equal(np.concatenate(blocks), audio.read(path, rate))
        assert {len(block) for block in blocks[:-1]} <= {round(block_seconds * rate)}
        assert 0 < len(blocks[-1]) <= round(block_seconds * rate)


def test_blocks_come_before_the_fault(tmp_path: Path) -> None:
    samples = SOUND.copy()
    samples[-1] = np.nan
    path = put(tmp_path, encode_sound(samples, RATE, "WAV", "FLOAT"))
    with pytest.raises(AudioError, match="is nan"):
        audio.read(path, start=2.9)
    assert len(audio.read(path, duration=2.9)) == 2.9 * RATE


def make_sparse_wav(path: Path, seconds: float, sample_rate: int = RATE) -> Path:
    """Zeros that take no room on the disk."""
    header = make_wav(b"", data_bytes=round(seconds * sample_rate) * 2, sample_rate=sample_rate)
    path.write_bytes(header)
    os.truncate(path, len(header) + round(seconds * sample_rate) * 2)
    return path


@pytest.mark.parametrize("rate", [RATE, 22_050])
def test_memory_of_blocks_does_not_grow_with_the_file(rate: int, tmp_path: Path) -> None:
    peaks = []
    for minutes in (3, 12):
        path = make_sparse_wav(tmp_path / "long.wav", 60 * minutes)
        tracemalloc.start()
        try:
            total = sum(len(block) for block in audio.read_blocks(path, rate, allow_silence=True))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert total == pytest.approx(60 * minutes * rate, abs=1)
    assert peaks[1] < 1.05 * peaks[0] < 40e6


MEASURE = """
import sys
from asr.audio import reading
total = sum(len(block) for block in reading.read_blocks(sys.argv[1], int(sys.argv[2]), allow_silence=True))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(total, peak)
"""


def make_long_file(folder: Path, container: str, minutes: int) -> Path:
    path = folder / f"long.{container}"
    if container == "wav":
        return make_sparse_wav(path, 60 * minutes)
    if container == "m4a":
        return put(folder, encode_media(np.tile(SOUND, 20 * minutes), RATE, "ipod", "aac"), path.name)
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for _ in range(20 * minutes):
            file.write(SOUND)
    return path


# The index of MP4 is read as a whole and has some 5 MB for each hour, so its long file has half of one.
@pytest.mark.slow
@pytest.mark.parametrize(("container", "minutes"), [("wav", 180), ("flac", 180), ("m4a", 30)])
def test_three_hours_take_no_more_memory_than_three_minutes(
    container: str, minutes: int, tmp_path: Path
) -> None:
    peaks = []
    for length in (3, minutes):
        path = make_long_file(tmp_path, container, length)
        command = [sys.executable, "-c", MEASURE, str(path), "22050"]
        total, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert int(total) == pytest.approx(60 * length * 22_050, abs=1)
        peaks.append(int(peak))
    assert peaks[1] < 1.1 * peaks[0], f"{peaks} kB"


def test_read_has_a_limit(tmp_path: Path) -> None:
    path = make_sparse_wav(tmp_path / "long.wav", audio.MAX_READ_SECONDS + 1, 1000)
    message = r"7,201 s are too long to be read at once \(at most 7,200 s\); read a part, or use read_blocks"
    with pytest.raises(AudioError, match=message):
        audio.read(path)
    assert len(audio.read(path, 1000, start=7000, duration=201, allow_silence=True)) == 201_000
    blocks = audio.read_blocks(path, 1000, block_seconds=600, allow_silence=True)
    assert sum(map(len, blocks)) == 7_201_000


def test_limit_holds_where_the_header_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MAX_READ_SECONDS", 2.0)
    for name in ("aac", "mp3 without tag"):
        with pytest.raises(AudioError, match="too long to be read at once"):
            audio.read(put(tmp_path, FORMATS[name].data))


# --- resampling ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_resample_agrees_with_librosa() -> None:
    for to_rate in (8_000, 11_025, 22_050, 48_000):
        ours = audio.resample(SOUND, RATE, to_rate)
        theirs = librosa.resample(SOUND, orig_sr=RATE, target_sr=to_rate, res_type="soxr_hq")
        assert ours.dtype == np.float32 and abs(len(ours) - len(theirs)) <= 1
        length = min(len(ours), len(theirs))
        np.testing.assert_allclose(ours[:length], theirs[:length], atol=1e-6)


@pytest.mark.parametrize("from_rate", [44_100, 48_000])
def test_reading_resamples_as_whole_arrays_do(from_rate: int, tmp_path: Path) -> None:
    sound = make_speechlike(5.0, from_rate)
    path = put(tmp_path, encode_sound(sound, from_rate, "WAV", "FLOAT"))
    read = audio.read(path)
    assert abs(len(read) - 5 * RATE) <= 1
    np.testing.assert_allclose(read, audio.resample(sound, from_rate, RATE)[: len(read)], atol=1e-6)


def test_reading_resamples_like_an_ideal_filter(tmp_path: Path) -> None:
    """Against scipy in float64: what passes is unchanged, what would alias is gone."""
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


def test_resample_refuses() -> None:
    with pytest.raises(UserError, match="to_rate is 0 Hz"):
        audio.resample(SOUND, RATE, 0)
    with pytest.raises(UserError, match=r"shape \(samples,\), got \(3, 2\)"):
        audio.resample(np.zeros((3, 2)), RATE, 8_000)
    assert audio.resample(SOUND, RATE, RATE) is SOUND


# --- writing ------------------------------------------------------------------------------------


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
    np.testing.assert_array_equal(
        soundfile.read(tmp_path / "a.wav", dtype="int16")[0], [32767, -32768, 32767, -32768]
    )


WRONG_WRITES = {
    "suffix": ("a.mp3", SOUND, RATE, "the suffix is '.mp3', expected .wav or .flac"),
    "no suffix": ("a", SOUND, RATE, "the suffix is ''"),
    "no samples": ("a.wav", SOUND[:0], RATE, "expected finite float samples"),
    "channels": ("a.wav", SOUND.reshape(-1, 2), RATE, "got float32 (24000, 2)"),
    "integers": ("a.wav", np.arange(9), RATE, "got int64 (9,)"),
    "NaN": ("a.wav", np.array([0.0, np.nan]), RATE, "expected finite float samples"),
    "rate": ("a.wav", SOUND, 0, "sample_rate is 0 Hz"),
    "rate that FLAC has not": ("a.flac", SOUND, 768_000, "cannot write the file"),
}


@pytest.mark.parametrize("name", WRONG_WRITES)
def test_refused_write_leaves_nothing_behind(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file_name, samples, rate, message = WRONG_WRITES[name]
    with pytest.raises(AudioError) as caught:
        audio.write(tmp_path / file_name, samples, rate)
    assert str(caught.value).startswith(f"{tmp_path / file_name}: ") and message in str(caught.value)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.wav"
    audio.write(path, SOUND, RATE)
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(soundfile, "write", fail)
    with pytest.raises(UserError, match="No space left on device"):
        audio.write(path, SOUND / 2, RATE)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.wav"]


def test_write_follows_links(wav: Path) -> None:
    link = wav.parent / "link.wav"
    link.symlink_to(wav.name)
    audio.write(link, SOUND[:RATE], RATE)
    assert link.is_symlink() and len(audio.read(wav)) == RATE


# --- importing ----------------------------------------------------------------------------------


def test_import_is_light_and_reading_leaves_no_trace(wav: Path) -> None:
    script = f"""
import sys
from asr.audio import containers, reading
assert not {{"av", "soxr", "soundfile", "torch"}} & set(sys.modules)
reading.read({str(wav)!r})
assert "av" not in sys.modules and "soxr" not in sys.modules
import av
assert av.logging.get_level() is None
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# --- open-ended inputs --------------------------------------------------------------------------

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
    """A file, its samples (frames, channels) as libsndfile reads them, and their rate."""
    rate = draw(st.sampled_from([1_000, 8_000, 11_025, 16_000, 44_100, 48_000, 96_000]))
    shape = draw(st.integers(1, 6_000)), draw(st.integers(1, 8))
    container, subtype = draw(st.sampled_from(ENCODINGS))
    samples = np.random.default_rng(draw(st.integers(0, 9))).uniform(-0.9, 0.9, shape)
    data = encode_sound(samples, rate, container, subtype)
    return data, soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0], rate


@settings(PROPERTY, max_examples=60)
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


@settings(PROPERTY, max_examples=60)
@given(sounds(), st.data())
def test_part_equals_slice(tmp_path: Path, sound: tuple[bytes, np.ndarray, int], data: st.DataObject) -> None:
    encoded, frames, rate = sound
    path = put(tmp_path, encoded)
    first = data.draw(st.integers(0, len(frames) - 1))
    count = data.draw(st.integers(1, len(frames) - first))
    part = audio.read(path, rate, start=first / rate, duration=count / rate, channel=0, allow_silence=True)
    np.testing.assert_array_equal(part, frames[first : first + count, 0])
