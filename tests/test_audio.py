"""Audio files: every format to the same samples, parts and blocks to the sample, and no bad file gets through."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import socket
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import av
import librosa
import numpy as np
import pytest
import scipy.signal
import soundfile
from hostile_audio import (
    HOSTILE_AUDIO,
    RATE,
    encode_media,
    encode_sound,
    encode_video,
    make_speechlike,
    make_sphere,
    make_wav,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asr import audio, audio_decoders
from asr.audio import AudioError
from asr.errors import UserError

HALF_STEP = 0.5 / 32768  # of 16 bits
LOSSY = None
SOUND = make_speechlike(3.0)


class Format(NamedTuple):
    data: bytes
    container: str
    error: float | None = 2 * HALF_STEP
    """The worst difference to SOUND; LOSSY: it is only similar."""
    seconds: float | None = 3.0
    """In the header."""
    delay: int = 0
    """Samples before SOUND: what the encoder put there, and the header does not tell."""


FORMATS = {
    "wav": Format(encode_sound(SOUND, RATE, "WAV"), "wav"),
    "wav float": Format(encode_sound(SOUND, RATE, "WAV", "FLOAT"), "wav", 0),
    "wav double": Format(encode_sound(SOUND, RATE, "WAV", "DOUBLE"), "wav", 0),
    "wav 24 bit": Format(encode_sound(SOUND, RATE, "WAV", "PCM_24"), "wav", HALF_STEP / 100),
    "wav 8 bit": Format(encode_sound(SOUND, RATE, "WAV", "PCM_U8"), "wav", 1 / 127),
    "wav A-law": Format(encode_sound(SOUND, RATE, "WAV", "ALAW"), "wav", LOSSY),
    # Whole packets of 320 samples; libsndfile cannot seek in them.
    "wav GSM": Format(encode_sound(SOUND[:44_800], RATE, "WAV", "GSM610"), "wav", LOSSY, 2.8),
    "wav MP3": Format(encode_media(SOUND, RATE, "wav", "libmp3lame"), "wav", LOSSY, None, 1105),
    "wavex": Format(encode_sound(SOUND, RATE, "WAVEX"), "wavex"),
    "rifx": Format(encode_sound(SOUND, RATE, "WAV", endian="BIG"), "wav"),
    "rf64": Format(encode_sound(SOUND, RATE, "RF64"), "rf64"),
    "w64": Format(encode_sound(SOUND, RATE, "W64"), "w64"),
    "flac": Format(encode_sound(SOUND, RATE, "FLAC"), "flac"),
    "aiff": Format(encode_sound(SOUND, RATE, "AIFF"), "aiff"),
    "au": Format(encode_sound(SOUND, RATE, "AU"), "au"),
    "caf": Format(encode_sound(SOUND, RATE, "CAF"), "caf"),
    "caf ALAC": Format(encode_sound(SOUND, RATE, "CAF", "ALAC_16"), "caf"),
    "sphere": Format(encode_sound(SOUND, RATE, "NIST"), "nist"),
    "ogg Vorbis": Format(encode_sound(SOUND, RATE, "OGG", "VORBIS"), "ogg", LOSSY),
    "ogg Opus": Format(encode_sound(SOUND, RATE, "OGG", "OPUS"), "ogg", LOSSY),
    "mp3": Format(encode_sound(SOUND, RATE, "MP3"), "mp3", LOSSY),
    "mp3 without tag": Format(
        encode_media(SOUND, RATE, "mp3", "libmp3lame", write_xing="0"), "mp3", LOSSY, None, 1105
    ),
    "m4a": Format(encode_media(SOUND, RATE, "ipod", "aac"), "mov", LOSSY),
    "m4a ALAC": Format(encode_media(SOUND, RATE, "ipod", "alac"), "mov"),
    "mp4 in fragments": Format(
        encode_media(SOUND, RATE, "mp4", "aac", movflags="frag_keyframe+empty_moov"),
        "mov",
        LOSSY,
        3.064,
        1024,
    ),
    "webm Opus": Format(encode_media(SOUND, RATE, "webm", "libopus"), "matroska", LOSSY, 3.008),
    "mkv FLAC": Format(encode_media(SOUND, RATE, "matroska", "flac"), "matroska"),
    "aac": Format(encode_media(SOUND, RATE, "adts", "aac"), "aac", LOSSY, None, 1024),
    "mpeg-ts": Format(encode_media(SOUND, RATE, "mpegts", "aac"), "mpegts", LOSSY, None, 1024),
    "wavpack": Format(encode_media(SOUND, RATE, "wv", "wavpack"), "wv", 1 / 127),
}


def put(folder: Path, data: bytes, name: str = "a.wav") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    """SOUND at 16 kHz."""
    return put(tmp_path, FORMATS["wav float"].data)


# --- all formats --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_reads_every_format(name: str, tmp_path: Path) -> None:
    expected = FORMATS[name]
    path = put(tmp_path, expected.data, "misnamed.mp3" if name != "mp3" else "misnamed.wav")
    info = audio.read_info(path)
    assert (info.path, info.num_channels, info.container) == (path, 1, expected.container)
    assert info.seconds == (expected.seconds and pytest.approx(expected.seconds, abs=1e-3))

    samples = audio.read(path)
    assert samples.dtype == np.float32 and samples.ndim == 1 and samples.flags.c_contiguous
    original = SOUND[: len(samples) - expected.delay]
    assert len(original) > len(SOUND) * 0.9
    if expected.delay == 0 and expected.seconds == 3.0:
        assert len(samples) == len(SOUND)
    decoded = samples[expected.delay :][: len(original)]
    if expected.error is LOSSY:
        assert np.corrcoef(decoded, original)[0, 1] > 0.95
    else:
        np.testing.assert_allclose(decoded, original, rtol=0, atol=expected.error)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("start", [0.0, 0.61, 1.3, 2.47])
def test_part_equals_slice_in_every_format(name: str, start: float, tmp_path: Path) -> None:
    path = put(tmp_path, FORMATS[name].data)
    rate = audio.read_info(path).sample_rate
    whole, part = audio.read(path, rate), audio.read(path, rate, start=start, duration=0.3)
    first = round(start * rate)
    assert len(part) == round(0.3 * rate)
    # Matroska counts milliseconds, so a part may begin half of one beside.
    shifts = range(-24, 25) if name == "webm Opus" else [0]
    errors = [np.abs(part - whole[max(0, first + shift) :][: len(part)]).max() for shift in shifts]
    assert min(errors) < 1e-6


def test_reads_sphere_with_shorten(tmp_path: Path) -> None:
    samples = (SOUND[:5000] * 20_000).astype(np.int16)
    path = put(tmp_path, make_sphere(shorten(samples), len(samples), "pcm,embedded-shorten-v2.00"))
    assert audio.read_info(path).seconds == len(samples) / RATE
    np.testing.assert_array_equal(audio.read(path) * 32768, samples)


def shorten(samples: np.ndarray) -> bytes:
    """Version 2 of the format, differences of order 0, each with 10 bits and a unary part."""
    bits: list[int] = []

    def put_number(value: int, num_bits: int) -> None:
        bits.extend([0] * (value >> num_bits) + [1])
        bits.extend(value >> place & 1 for place in reversed(range(num_bits)))

    for number in (
        5,
        1,
        len(samples),
        0,
        0,
        0,
    ):  # 16 bit little endian, channels, block, predictor, mean, skip
        put_number(number.bit_length(), 2)
        put_number(number, number.bit_length())
    put_number(0, 2)  # a block of differences of order 0
    put_number(9, 3)
    for sample in samples.tolist():
        put_number(sample * 2 if sample >= 0 else -sample * 2 - 1, 10)
    put_number(4, 2)  # the end
    return b"ajkg\2" + np.packbits(bits + [0] * (-len(bits) % 32)).tobytes()


def test_reads_sound_of_a_video(tmp_path: Path) -> None:
    path = put(tmp_path, encode_video(with_sound=True), "video.mp4")
    assert audio.read_info(path).seconds == 1.0
    assert np.corrcoef(audio.read(path), make_speechlike(1.0))[0, 1] > 0.95


def test_reads_all_of_chained_ogg(tmp_path: Path) -> None:
    """Streams one after the other, as internet radio sends them; libsndfile would stop after the first."""
    path = put(tmp_path, FORMATS["ogg Vorbis"].data + encode_sound(SOUND[:RATE], RATE, "OGG", "VORBIS"))
    assert audio.read_info(path).seconds is None
    assert len(audio.read(path)) == pytest.approx(4 * RATE, abs=500)  # half a packet of overlap


NO_LENGTH = [
    pytest.param(0xFFFF_FFFF, 0xFFFF_FFFF, id="FFmpeg"),
    pytest.param(0x7FFF_F024, 0x7FFF_F000, id="SoX"),
    pytest.param(0, 0, id="zeros"),
    pytest.param(0xFFFF_FFFF, 0, id="open RIFF"),
    pytest.param(36, 0, id="never finished"),
    pytest.param(8, 0, id="hardly begun"),
]


@pytest.mark.parametrize(("riff_bytes", "data_bytes"), NO_LENGTH)
def test_reads_wav_that_was_written_into_a_pipe(riff_bytes: int, data_bytes: int, tmp_path: Path) -> None:
    samples = (SOUND * 20_000).astype("<i2")
    path = put(tmp_path, make_wav(samples.tobytes(), riff_bytes=riff_bytes, data_bytes=data_bytes))
    np.testing.assert_array_equal(audio.read(path) * 32768, samples)


def test_reads_what_surrounds_the_sound(tmp_path: Path) -> None:
    """Chunks of a broadcast WAV before, tags behind, and a header that counts its own 44 bytes as sound."""
    samples = (SOUND * 20_000).astype("<i2")
    data = make_wav(samples.tobytes(), data_bytes=len(samples) * 2, before=b"bext\x05\0\0\0abcde\0")
    np.testing.assert_array_equal(audio.read(put(tmp_path, data + b"LIST\4\0\0\0INFO")) * 32768, samples)
    data = make_wav(samples.tobytes(), data_bytes=len(samples) * 2 + 44)
    np.testing.assert_array_equal(audio.read(put(tmp_path, data)) * 32768, samples)


MP3_TAILS = {
    "ID3v1": b"TAG" + b"x" * 125,
    "Lyrics3": b"LYRICSBEGIN" + b"IND0000510" * 20 + b"000210LYRICS200" + b"TAG" + b"x" * 125,
    "zeros": bytes(3000),
    "a second file": FORMATS["mp3"].data,
}


@pytest.mark.parametrize("name", MP3_TAILS)
def test_tags_of_mp3_do_no_harm(name: str, tmp_path: Path) -> None:
    sound = audio.read(put(tmp_path, FORMATS["mp3"].data))
    picture = b"ID3\3\0\0\0\0\x27\x08" + b"\xff\xfb" * 2500
    samples = audio.read(put(tmp_path, picture + FORMATS["mp3"].data + MP3_TAILS[name]))
    np.testing.assert_allclose(samples[: len(sound)], sound, atol=1e-6)
    assert len(samples) > 1.9 * len(sound) if name == "a second file" else len(samples) < 1.1 * len(sound)


NAMES = [
    "ünïcödé 音声.wav",
    "with space .wav",
    "new\nline.wav",
    "-leading.wav",
    ".hidden",
    "none",
    "a.txt",
    "100%.wav",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_will_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for data in (FORMATS["wav float"].data, FORMATS["m4a"].data):
        Path(name).write_bytes(data)
        assert len(audio.read(name)) == len(SOUND)
    audio.write(f"{name}.wav", SOUND, RATE)
    assert audio.read_info(f"{name}.wav").seconds == 3.0


def test_follows_links(wav: Path) -> None:
    (wav.parent / "link").symlink_to(wav.name)
    np.testing.assert_array_equal(audio.read(wav.parent / "link"), SOUND)


def test_read_info_reads_the_header_only(tmp_path: Path) -> None:
    data = FORMATS["flac"].data
    path = put(tmp_path, data[:9000] + bytes(len(data) - 9000))
    assert audio.read_info(path).seconds == 3.0
    with pytest.raises(AudioError, match="cannot be decoded"):
        audio.read(path)


# --- files that must be refused -----------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE_AUDIO)
def test_refuses_hostile_file(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = HOSTILE_AUDIO[name].build(tmp_path)
    begin = time.perf_counter()
    with pytest.raises(AudioError) as caught:
        audio.read(path)
    assert time.perf_counter() - begin < 5
    assert str(caught.value).startswith(f"{path}: ")
    assert HOSTILE_AUDIO[name].message in str(caught.value)
    with pytest.raises(AudioError):
        list(audio.read_blocks(path))
    with contextlib.suppress(AudioError):
        audio.read_info(path)
    assert capfd.readouterr() == ("", "")


def test_hostile_table_is_large() -> None:
    assert len(HOSTILE_AUDIO) >= 40


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_refuses_unreadable_file(wav: Path) -> None:
    wav.chmod(0)
    with pytest.raises(AudioError, match="Permission denied"):
        audio.read(wav)


def test_file_that_becomes_a_pipe_does_not_block(wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the opening, the file is exchanged."""
    status = os.stat(wav)
    wav.unlink()
    os.mkfifo(wav)
    monkeypatch.setattr("asr.audio_decoders.os.stat", lambda path: status)
    with pytest.raises(AudioError, match="is a pipe"):
        audio.read(wav)


PLAYLISTS = {
    "ffconcat": "ffconcat version 1.0\nfile {path}\n",
    "HLS": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
    "HLS on the network": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:{port}/a.ts\n#EXT-X-ENDLIST\n",
    "DASH": '\ufeff<MPD type="static"><Period><AdaptationSet><Representation><BaseURL>http://127.0.0.1:{port}/a.ts</BaseURL></Representation></AdaptationSet></Period></MPD>',
    "SDP": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {port} RTP/AVP 0\n",
}


@pytest.mark.parametrize("name", PLAYLISTS)
@pytest.mark.parametrize("suffix", [".mp3", ".m3u8", ".ts"])
def test_playlist_opens_nothing(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Straight into FFmpeg, past our own check for text."""
    monkeypatch.setattr("asr.audio_decoders.name_other_kind", lambda head: None)
    secret = put(tmp_path, FORMATS["mpeg-ts"].data, "secret.ts")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        text = PLAYLISTS[name].format(path=secret, port=listener.getsockname()[1])
        path = put(tmp_path, text.encode(), f"playlist{suffix}")
        accessed = secret.stat().st_atime_ns
        with pytest.raises(AudioError, match="cannot be decoded"):
            audio.read(path)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert secret.stat().st_atime_ns == accessed


def test_playlist_would_open_files_without_the_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above can fail: FFmpeg does follow such a list."""
    put(tmp_path, FORMATS["wav"].data, "secret.wav")
    monkeypatch.chdir(tmp_path)
    with av.open(io.BytesIO(b"ffconcat version 1.0\nfile secret.wav\n")) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == len(SOUND)


def test_never_decodes_pictures(tmp_path: Path) -> None:
    """A picture of 8000 x 6000 takes 72 MB; opening the file must not meet it."""
    pictures = audio_decoders._list_audio_codecs().split(",")
    assert "h264" not in pictures and "mjpeg" not in pictures and {"aac", "opus", "mp3float"} <= set(pictures)


def test_refuses_change_on_the_way(tmp_path: Path) -> None:
    other = encode_media(make_speechlike(1.0, 32_000), 32_000, "adts", "aac")
    with pytest.raises(AudioError, match="changes from 1 channels at 16000 Hz to 1 at 32000 Hz"):
        audio.read(put(tmp_path, FORMATS["aac"].data + other))


def test_library_errors_are_audio_errors(wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), OverflowError("too large"), RuntimeError("broken"), EOFError()):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(soundfile.SoundFile, "read", fail)
        with pytest.raises(AudioError, match="cannot be decoded"):
            audio.read(wav)


def test_closes_its_files(tmp_path: Path) -> None:
    good = [put(tmp_path, FORMATS[name].data, name) for name in ("wav", "flac", "m4a", "mp3")]
    bad = [
        HOSTILE_AUDIO[name].build(tmp_path) for name in ("MP4 without index", "FLAC cut short", "NaN", "text")
    ]
    before = len(os.listdir("/proc/self/fd"))
    for path in good:
        audio.read(path)
        next(audio.read_blocks(path, block_seconds=0.1))  # left before its end
    for path in bad:
        with pytest.raises(AudioError):
            audio.read(path)
    assert len(os.listdir("/proc/self/fd")) == before


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
    "channel": ({"channel": 1}, "channel 1 is wanted, expected 0 to 0"),
    "negative channel": ({"channel": -1}, "channel -1 is wanted"),
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


def test_picks_from_a_microphone_array(tmp_path: Path) -> None:
    channels = np.stack([SOUND * 0.01 * channel for channel in range(64)], axis=1)
    path = put(tmp_path, encode_sound(channels, RATE, "WAV", "FLOAT"))
    np.testing.assert_array_equal(audio.read(path, channel=40), channels[:, 40])
    with pytest.raises(AudioError, match=r"has 64 channels.* pick one with channel="):
        audio.read(path)
    with pytest.raises(AudioError, match="all samples of channel 0 are zero"):
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
from asr import audio, audio_decoders
total = sum(len(block) for block in audio.read_blocks(sys.argv[1], int(sys.argv[2]), allow_silence=True))
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
    "no folder": ("no/a.wav", SOUND, RATE, "cannot write the file (No such file or directory)"),
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
    with pytest.raises(AudioError, match="No space left on device"):
        audio.write(path, SOUND / 2, RATE)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.wav"]


# --- importing ----------------------------------------------------------------------------------


def test_import_is_light_and_reading_leaves_no_trace(wav: Path) -> None:
    script = f"""
import sys
from asr import audio, audio_decoders
assert not {{"av", "soxr", "soundfile", "torch"}} & set(sys.modules)
audio.read({str(wav)!r})
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
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


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
    if wanted == rate:
        np.testing.assert_allclose(read, frames.mean(axis=1), atol=1e-6)
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


FUZZED = [
    "wav",
    "wav float",
    "flac",
    "ogg Vorbis",
    "ogg Opus",
    "mp3",
    "m4a",
    "webm Opus",
    "sphere",
    "aiff",
    "rf64",
    "aac",
]


@st.composite
def damages(draw: st.DrawFn) -> bytes:
    """A valid file of which bytes were changed, taken out or put in, mostly in its header, or that was cut."""
    data = bytearray(FORMATS[draw(st.sampled_from(FUZZED))].data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, min(len(data), draw(st.sampled_from([64, 600, 1 << 20])))))
        kind = draw(st.sampled_from(["change", "number", "remove", "insert", "cut"]))
        if kind == "change":
            data[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "number":
            data[place : place + 4] = draw(
                st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\5\0\0\x33"])
            )
        elif kind == "remove":
            del data[place : place + draw(st.integers(1, 100))]
        elif kind == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=20))
        else:
            del data[place:]
    return bytes(data)


@settings(PROPERTY, max_examples=300)
@given(damages(), st.sampled_from([{}, {"start": 0.5, "duration": 0.4}, {"sample_rate": 8_000}]))
def test_damaged_files_raise_audio_errors_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], data: bytes, arguments: dict[str, Any]
) -> None:
    path = put(tmp_path, data)
    for read in (audio.read_info, functools.partial(audio.read, **arguments)):
        try:
            result = read(path)
        except AudioError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            assert read is audio.read_info or np.isfinite(result).all()
    assert capfd.readouterr() == ("", "")
