"""Every format yields the same samples, whole and in part, and every hostile file is refused."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import scipy
import soundfile
from audio_formats import FORMATS, LOSSY, OTHER_FORMATS, SOUND, put
from hostile_audio import (
    HOSTILE_AUDIO,
    RATE,
    claim_in_a_fragment,
    claim_samples,
    encode_media,
    encode_sound,
    encode_video,
    make_speechlike,
    make_wav,
)
from hypothesis import HealthCheck, example, given, settings, strategies as st

from asr.audio import AudioError, ffmpeg, reading as audio


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


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_accepts_what_people_may_have(name: str, tmp_path: Path) -> None:
    container, codec, rate = OTHER_FORMATS[name]
    sound = audio.resample(SOUND, RATE, rate)
    path = tmp_path / "misnamed.wav"
    try:
        path.write_bytes(encode_media(sound, rate, container, codec))
    except ValueError:  # PyAV lacks the encoder
        if shutil.which("ffmpeg") is None:
            pytest.skip("ffmpeg is not installed")
        words = f"ffmpeg -v error -f f32le -ar {rate} -i - -c:a {codec} -strict -2 -f {container} -y"
        done = subprocess.run([*words.split(), path], input=sound.tobytes(), capture_output=True)
        if done.returncode:
            pytest.skip(f"this ffmpeg does not encode it ({done.stderr.decode()})")
    read = audio.read(path, rate)
    assert len(read) == pytest.approx(len(sound), abs=0.08 * rate)
    if name != "wma":  # where time stamps do not lead to a part exactly
        part = audio.read(path, rate, start=1.5, duration=0.5)
        first, shift = round(1.5 * rate), round(0.002 * rate)  # some count milliseconds
        around = read[first - shift : first + len(part) + shift]
        similar = scipy.signal.correlate(around, part, "valid", "fft").max()
        assert similar > 0.95 * np.linalg.norm(part) * np.linalg.norm(read[first : first + len(part)])
    lags = scipy.signal.correlate(read, sound, "full", "fft")
    assert lags.max() > 0.7 * np.linalg.norm(read) * np.linalg.norm(sound)


def test_raw_samples_are_refused_with_advice(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(-300, 300, RATE).astype("<i2").tobytes()
    with pytest.raises(AudioError, match="raw samples need a header first: ffmpeg -f s16le"):
        audio.read(put(tmp_path, noise))


@pytest.mark.parametrize("name", FORMATS)
def test_part_equals_slice_in_every_format(name: str, tmp_path: Path) -> None:
    path = put(tmp_path, FORMATS[name].data)
    rate = audio.read_info(path).sample_rate
    whole = audio.read(path, rate)
    for start in (0.0, 0.61, 1.3, 2.47):
        part = audio.read(path, rate, start=start, duration=0.3)
        first = round(start * rate)
        assert len(part) == round(0.3 * rate)
        # Matroska counts milliseconds, so a part may begin half of one off.
        shifts = range(-24, 25) if name == "webm Opus" else [0]
        errors = [np.abs(part - whole[max(0, first + shift) :][: len(part)]).max() for shift in shifts]
        assert min(errors) < 1e-6, start


def test_reads_sound_of_a_video(tmp_path: Path) -> None:
    path = put(tmp_path, encode_video(with_sound=True), "video.mp4")
    assert audio.read_info(path).seconds == 1.0
    assert np.corrcoef(audio.read(path), make_speechlike(1.0))[0, 1] > 0.95


def test_reads_all_of_chained_ogg(tmp_path: Path) -> None:
    """Chained streams, as sent by internet radio; libsndfile would stop after the first."""
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
    "a second file": b"",
}


@pytest.mark.parametrize("name", MP3_TAILS)
def test_tags_of_mp3_do_no_harm(name: str, tmp_path: Path) -> None:
    sound = audio.read(put(tmp_path, FORMATS["mp3"].data))
    picture = b"ID3\3\0\0\0\0\x27\x08" + b"\xff\xfb" * 2500
    tail = MP3_TAILS[name] or FORMATS["mp3"].data
    samples = audio.read(put(tmp_path, picture + FORMATS["mp3"].data + tail))
    np.testing.assert_allclose(samples[: len(sound)], sound, atol=1e-6)
    assert len(samples) > 1.9 * len(sound) if name == "a second file" else len(samples) < 1.1 * len(sound)


@pytest.mark.parametrize("name", ["ünï 音声 .wav", "new\nline.wav", "-leading.wav", ".hidden", "100%.txt"])
def test_any_name_will_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for data in (FORMATS["wav float"].data, FORMATS["m4a"].data):
        Path(name).write_bytes(data)
        assert len(audio.read(name)) == len(SOUND)
    audio.write(f"{name}.wav", SOUND, RATE)
    assert audio.read_info(f"{name}.wav").seconds == 3.0


def test_read_info_reads_the_header_only(tmp_path: Path) -> None:
    data = FORMATS["flac"].data
    path = put(tmp_path, data[:9000] + bytes(len(data) - 9000))
    assert audio.read_info(path).seconds == 3.0
    with pytest.raises(AudioError, match="cut short"):
        audio.read(path)


# --- damage -------------------------------------------------------------------------------------


def read_damaged(path: Path) -> tuple[np.ndarray, list[str]]:
    """Read everything that can be decoded, at the file's own rate, and the report of what is missing."""
    damages: list[str] = []
    rate = audio.read_info(path).sample_rate
    blocks = audio.read_blocks(path, rate, block_seconds=1.0, allow_silence=True, on_damage=damages.append)
    return np.concatenate(list(blocks)), damages


def decode_with_ffmpeg(data: bytes) -> int:
    """Count the samples that FFmpeg returns if it ignores errors, as players do."""
    num_samples = 0
    with contextlib.suppress(av.FFmpegError), av.open(io.BytesIO(data)) as container:
        for packet in container.demux(audio=0):
            with contextlib.suppress(av.FFmpegError):
                num_samples += sum(frame.samples for frame in packet.decode())
    return num_samples


STREAMABLE = {name: form.encode for name, form in FORMATS.items() if not name.startswith("m4a")} | {
    "m4a": partial(encode_media, SOUND, RATE, "ipod", "aac", movflags="faststart"),
    "ogg Vorbis": partial(encode_sound, np.tile(SOUND, 2), RATE, "OGG", "VORBIS"),
    "ogg Opus": partial(encode_sound, np.tile(SOUND, 2), RATE, "OGG", "OPUS"),
}
# Every byte belongs to a packet that can be decoded, or the container tells nothing of its length.
UNNOTICED = {"wav MP3", "mp3 without tag", "mpeg-ts", "aac", "mp4 in fragments"}


@pytest.mark.parametrize("name", STREAMABLE)
def test_all_that_is_left_of_a_file_cut_short_is_read(name: str, tmp_path: Path) -> None:
    data = STREAMABLE[name]()
    whole = audio.read(put(tmp_path, data), audio.read_info(put(tmp_path, data)).sample_rate)
    for share in (0.4, 0.6, 0.9):
        left = data[: round(share * len(data))]
        path = put(tmp_path, left)
        if not (num_samples := decode_with_ffmpeg(left)):
            with pytest.raises(AudioError):
                audio.read(path)
            continue
        rate = audio.read_info(path).sample_rate
        samples, damages = read_damaged(path)
        assert len(samples) >= min(num_samples, len(whole)) - 1
        same = min(len(samples), len(whole)) - rate // 10  # the last packet of a codec fades
        np.testing.assert_allclose(samples[:same], whole[:same], atol=1e-6)
        if name in UNNOTICED:
            continue
        (damage,) = damages
        end = len(samples) / rate
        assert f"the audio ends at {end:.3f} s" in damage
        assert "is cut short" in damage
        with pytest.raises(AudioError, match="is cut short"):
            audio.read(path)


@pytest.mark.parametrize("name", ["flac", "m4a", "ogg Vorbis", "ogg Opus"])
def test_decoding_goes_on_behind_damage(name: str, tmp_path: Path) -> None:
    """Audio after the damage keeps its position; the damage becomes silence and is reported."""
    sound = np.concatenate([make_speechlike(1.5, seed=seed) for seed in range(4)])
    kinds = {"flac": ("FLAC", None), "ogg Vorbis": ("OGG", "VORBIS"), "ogg Opus": ("OGG", "OPUS")}
    is_known = name in kinds
    data = encode_sound(sound, RATE, *kinds[name]) if is_known else encode_media(sound, RATE, "ipod", "aac")
    middle = len(data) // 2
    path = put(tmp_path, data)
    rate = audio.read_info(path).sample_rate
    whole = audio.read(path, rate)
    samples, damages = read_damaged(put(tmp_path, data[:middle] + bytes(150) + data[middle + 150 :]))
    assert len(samples) == pytest.approx(len(whole), abs=rate // 20)
    for part in (slice(0, 3 * rate // 2), slice(9 * rate // 2, 11 * rate // 2)):
        np.testing.assert_allclose(samples[part], whole[part], atol=1e-6)
    (damage,) = damages
    begin, end = map(float, re.findall(r"[\d.]+ to [\d.]+ s", damage)[0].removesuffix(" s").split(" to "))
    assert 1.5 < begin < end < begin + 1.1
    assert not samples[math.ceil(begin * rate) + rate // 1000 : math.floor(end * rate) - rate // 1000].any()
    assert "is damaged: " in damage and "cannot be decoded" in damage
    with pytest.raises(AudioError, match="is damaged"):
        audio.read(path)
    audio.read(path, start=begin - 1.5, duration=0.5)  # nothing of that is damaged


def test_nan_is_silenced_where_damage_may_be_told(tmp_path: Path) -> None:
    samples = SOUND.copy()
    samples[[100, 101, 7000]] = np.nan, np.inf, -np.inf
    read, (damage,) = read_damaged(put(tmp_path, encode_sound(samples, RATE, "WAV", "FLOAT")))
    np.testing.assert_array_equal(read, np.where(np.isfinite(samples), samples, 0))
    assert "0.006 to 0.006 s, 0.438 to 0.438 s cannot be decoded" in damage


def test_what_cannot_go_on_gives_what_came_before(tmp_path: Path) -> None:
    other = encode_media(make_speechlike(1.0, 32_000), 32_000, "adts", "aac")
    length = len(audio.read(put(tmp_path, FORMATS["aac"].data)))
    samples, (damage,) = read_damaged(put(tmp_path, FORMATS["aac"].data + other))
    assert len(samples) == length
    assert "changes from 1 channels at 16000 Hz" in damage
    with pytest.raises(AudioError, match="changes from 1 channels"):
        audio.read(tmp_path / "a.wav")


def test_time_stamps_far_ahead_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most an hour of missing audio is filled with silence per file."""
    ogg = FORMATS["ogg Opus"].data
    pages = [page.start() for page in re.finditer(b"OggS", ogg)]
    far = bytearray(ogg)
    for page in pages[-2:]:
        (granule,) = struct.unpack_from("<q", far, page + 6)
        struct.pack_into("<q", far, page + 6, granule + 48_000 * 10**6)
    samples, _ = read_damaged(put(tmp_path, bytes(far)))
    assert len(samples) < 4 * 48_000


@pytest.mark.parametrize("name", ["mp3", "aac"])
def test_streams_without_positions_go_on_behind_damage(name: str, tmp_path: Path) -> None:
    data = FORMATS[name].data
    middle = len(data) // 2
    whole = len(audio.read(put(tmp_path, data)))
    samples, _ = read_damaged(put(tmp_path, data[:middle] + bytes(150) + data[middle + 150 :]))
    assert whole - RATE // 5 < len(samples) <= whole


def test_alac_in_caf_may_count_its_padding(tmp_path: Path) -> None:
    path = put(tmp_path, encode_media(SOUND, RATE, "caf", "alac"))
    assert len(audio.read(path)) == len(SOUND)


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


MEASURE = """
import sys
from asr.audio import ffmpeg, read
from asr.errors import UserError

def find_peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

read(sys.argv[1])
before = find_peak()
if sys.argv[2] == "blind":
    ffmpeg.count_claimed_samples = lambda file: 0
for path in sys.argv[3:]:
    try:
        read(path)
        print("accepted", path)
    except UserError as error:
        assert path in str(error)
print("more:", (find_peak() - before) >> 10)
"""


@pytest.mark.parametrize("sight", ["whole", "blind"])
def test_headers_that_claim_much_take_no_memory(sight: str, tmp_path: Path) -> None:
    """Both our own check and FFmpeg's allocation limit must hold; these files took up to 3 GB."""
    whole = put(tmp_path, FORMATS["m4a"].data, "whole.m4a")
    files = [
        put(tmp_path, content, f"{n}.m4a")
        for n, content in enumerate((claim_samples(), claim_in_a_fragment()))
    ]
    command = [sys.executable, "-c", MEASURE, str(whole), sight, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "accepted" not in done.stdout and int(done.stdout.split()[-1]) < 200, done.stdout


def test_long_files_may_have_many_samples(tmp_path: Path) -> None:
    """Raw samples in MOV, more than an MP4 may claim that is no longer, read whole and cut short."""
    sound = np.tile(make_speechlike(10.0, 48_000), 4)
    data = encode_media(sound, 48_000, "mov", "pcm_s16le", movflags="faststart")
    assert len(sound) > 1 << 20
    assert audio.read_info(put(tmp_path, data)).seconds == 40.0
    samples, _ = read_damaged(put(tmp_path, data[: len(data) // 4]))
    assert len(samples) > 9 * 48_000


def test_file_that_becomes_a_pipe_does_not_block(wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced between the check and the opening."""
    status = os.stat(wav)
    wav.unlink()
    os.mkfifo(wav)
    monkeypatch.setattr("asr.audio.reading.os.stat", lambda path: status)
    with pytest.raises(AudioError, match="is a pipe"):
        audio.read(wav)


PLAYLISTS = {
    "SVG": '<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1:{port}/a.png"/></svg>',
    "XSPF": "<playlist><trackList><track><location>file://{path}</location></track></trackList></playlist>",
    "ffconcat": "ffconcat version 1.0\nfile {path}\n",
    "HLS": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
    "HLS on the network": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:{port}/a.ts\n#EXT-X-ENDLIST\n",
    "DASH": '\ufeff<MPD type="static"><Period><AdaptationSet><Representation><BaseURL>http://127.0.0.1:{port}/a.ts</BaseURL></Representation></AdaptationSet></Period></MPD>',
    "SDP": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {port} RTP/AVP 0\n",
}


@pytest.mark.parametrize("name", PLAYLISTS)
@pytest.mark.parametrize("suffix", [".mp3", ".m3u8"])
def test_playlist_opens_nothing(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feed FFmpeg directly, bypassing our own check for text."""
    monkeypatch.setattr(audio, "_TEXT_BYTES", b"")
    monkeypatch.setattr(audio, "_OTHER_KINDS", ())
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
    """FFmpeg does follow such a list, so the test above can fail."""
    put(tmp_path, FORMATS["wav"].data, "secret.wav")
    monkeypatch.chdir(tmp_path)
    with av.open(io.BytesIO(b"ffconcat version 1.0\nfile secret.wav\n")) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == len(SOUND)


def test_never_decodes_pictures() -> None:
    """FFmpeg decodes a few frames when it opens a video, and one may take hundreds of megabytes."""
    codecs = set(ffmpeg._list_audio_codecs().split(","))
    assert codecs >= {"aac", "opus", "mp3float", "wmav2"} and not codecs & {"h264", "hevc", "mjpeg", "png"}


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


# --- damaged files ------------------------------------------------------------------------------


@st.composite
def damages(draw: st.DrawFn) -> bytes:
    """A valid file of which bytes were changed, taken out or put in, mostly in its header, or that was cut."""
    data = bytearray(FORMATS[draw(st.sampled_from(sorted(FORMATS)))].data)
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


def read_left(path: Path) -> np.ndarray:
    return read_damaged(path)[0]


@example(encode_media(SOUND, RATE, "wav", "libmp3lame")[:101], {})  # of MP3, libsndfile prints notes
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages(), st.sampled_from([{}, {"start": 0.5, "duration": 0.4}, {"sample_rate": 8_000}]))
def test_damaged_files_raise_audio_errors_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], data: bytes, arguments: dict[str, Any]
) -> None:
    path = put(tmp_path, data)
    for read in (audio.read_info, partial(audio.read, **arguments), read_left):
        try:
            result = read(path)
        except AudioError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            assert read is audio.read_info or np.isfinite(result).all()
    assert capfd.readouterr() == ("", "")
