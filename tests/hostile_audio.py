"""Audio files that must be refused: a table of name -> how to make the file, and what the refusal says.

`HOSTILE_AUDIO[name].build(folder)` writes the file and returns its path, whose suffix mostly lies. Reading it must
raise an AudioError with `message` in it, soon, and print nothing. Below are also the makers of sound ones.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import soundfile

RATE = 16_000


class HostileAudio(NamedTuple):
    build: Callable[[Path], Path]
    message: str
    """A part of the error's message."""


# --- sound files --------------------------------------------------------------------------------


def make_speechlike(seconds: float = 1.0, sample_rate: int = RATE, seed: int = 0) -> np.ndarray:
    """A chord with noise, float32: lossy codecs keep most of it, and no two places are alike."""
    stream = np.random.default_rng(seed)
    times = np.arange(round(seconds * sample_rate)) / sample_rate
    tones = sum(np.sin(2 * np.pi * tone * times + tone) for tone in (110, 173, 281, 430))
    return (0.1 * tones + 0.03 * stream.standard_normal(len(times))).astype(np.float32)


def encode_sound(
    audio: np.ndarray, sample_rate: int, container: str, subtype: str | None = None, endian: str | None = None
) -> bytes:
    """By libsndfile; `audio` is (samples,) or (samples, channels)."""
    buffer = io.BytesIO()
    soundfile.write(buffer, audio, sample_rate, format=container, subtype=subtype, endian=endian)
    return buffer.getvalue()


def encode_media(audio: np.ndarray, sample_rate: int, container: str, codec: str, **options: str) -> bytes:
    """By FFmpeg, the containers that libsndfile does not know."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sound"
        _write_media(path, audio, sample_rate, container, codec, options)
        return path.read_bytes()


def _write_media(
    path: Path, audio: np.ndarray, sample_rate: int, container: str, codec: str, options: dict[str, str]
) -> None:
    with av.open(str(path), "w", format=container, options=options) as file:
        stream = file.add_stream(codec, rate=sample_rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(audio[None, :], format="fltp", layout="mono")
        frame.sample_rate, frame.pts = sample_rate, 0
        context = stream.codec_context
        fit = av.AudioResampler(context.format, context.layout, sample_rate, context.frame_size or None)
        for part in [*fit.resample(frame), *fit.resample(None), None]:
            file.mux(stream.encode(part))


def encode_video(with_sound: bool = False) -> bytes:
    """Two black pictures in MP4."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as file:
        pictures = file.add_stream("mpeg4", rate=2)
        pictures.width = pictures.height = 32
        pictures.pix_fmt = "yuv420p"
        sound = file.add_stream("aac", rate=RATE, layout="mono") if with_sound else None
        for part in [av.VideoFrame(32, 32, "yuv420p"), av.VideoFrame(32, 32, "yuv420p"), None]:
            file.mux(pictures.encode(part))
        if sound is not None:
            frame = av.AudioFrame.from_ndarray(make_speechlike()[None, :], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = RATE, 0
            for part in [frame, None]:
                file.mux(sound.encode(part))
    return buffer.getvalue()


def make_wav(
    data: bytes = bytes(range(256)) * 100,
    *,
    codec: int = 1,
    channels: int = 1,
    sample_rate: int = RATE,
    bits: int = 16,
    riff_bytes: int | None = None,
    data_bytes: int | None = None,
    before: bytes = b"",
) -> bytes:
    """A WAV file by hand; `riff_bytes` and `data_bytes` are what its header says."""
    align = max(1, channels * bits // 8)
    form = struct.pack(
        "<HHIIHH", codec, channels, sample_rate, sample_rate * align & 0xFFFF_FFFF, align & 0xFFFF, bits
    )
    chunks = b"WAVE" + before + b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(data) if data_bytes is None else data_bytes) + data
    return b"RIFF" + struct.pack("<I", len(chunks) if riff_bytes is None else riff_bytes) + chunks


def make_sphere(data: bytes, num_samples: int, coding: str = "pcm", sample_rate: int = RATE) -> bytes:
    header = (
        f"NIST_1A\n   1024\nsample_count -i {num_samples}\nsample_rate -i {sample_rate}\nchannel_count -i 1\n"
        f"sample_n_bytes -i 2\nsample_byte_format -s2 01\nsample_sig_bits -i 16\n"
        f"sample_coding -s{len(coding)} {coding}\nend_head\n"
    )
    return header.encode().ljust(1024, b"\0") + data


# --- how a file goes wrong ----------------------------------------------------------------------


def _file(name: str, make: Callable[[], bytes], message: str) -> HostileAudio:
    def build(folder: Path) -> Path:
        (folder / name).write_bytes(make())
        return folder / name

    return HostileAudio(build, message)


def _cut(make: Callable[[], bytes], share: float = 0.7) -> Callable[[], bytes]:
    return lambda: (data := make())[: round(share * len(data))]


def _sound(container: str, subtype: str | None = None, endian: str | None = None) -> Callable[[], bytes]:
    return lambda: encode_sound(make_speechlike(2.0), RATE, container, subtype, endian)


def _media(container: str, codec: str, **options: str) -> Callable[[], bytes]:
    return lambda: encode_media(make_speechlike(2.0), RATE, container, codec, **options)


def _floats(place: int, value: float) -> Callable[[], bytes]:
    """A float WAV in which one sample is replaced."""
    samples = make_speechlike(2.0)
    samples[place] = value
    return lambda: encode_sound(samples, RATE, "WAV", "FLOAT")


def _noise(seed: int, start: bytes = b"") -> Callable[[], bytes]:
    return lambda: start + np.random.default_rng(seed).bytes(30_000)


def _overwrite(make: Callable[[], bytes], place: int, new: bytes) -> Callable[[], bytes]:
    return lambda: (data := make())[:place] + new + data[place + len(new) :]


def _crowded_table() -> bytes:
    data = encode_media(make_speechlike(), RATE, "mp4", "aac")
    return _overwrite(lambda: data, data.index(b"stsz") + 12, b"\x05\0\0\x33")()


def _crowded_pcm() -> bytes:
    """Return a million chunks of 2^31 frames each."""
    data = bytearray(encode_media(make_speechlike(), RATE, "mov", "pcm_s16le"))
    for kind, index, number in ((b"stco", 1, 10**6), (b"stsc", 3, (1 << 31) - 1)):
        struct.pack_into(">I", data, data.index(kind) + 4 + 4 * index, number)
    return bytes(data)


def claim_samples(num_tracks: int = 1, num_samples: int = 80_000_000) -> bytes:
    """An MP4 whose tables claim that each of its tracks has so many samples of one byte."""
    data = bytearray(encode_media(make_speechlike(), RATE, "mp4", "aac"))
    for kind, index, number in ((b"stsz", 1, 1), (b"stsz", 2, num_samples), (b"stsc", 3, num_samples)):
        struct.pack_into(">I", data, data.index(kind) + 4 + 4 * index, number)
    begin = data.index(b"trak") - 4
    (length,) = struct.unpack_from(">I", data, begin)
    moov = data.index(b"moov") - 4
    struct.pack_into(">I", data, moov, len(data) - moov + (num_tracks - 1) * length)
    return bytes(data) + bytes(data[begin : begin + length]) * (num_tracks - 1)


def claim_in_a_fragment() -> bytes:
    """The same for a fragment, whose samples need no byte in its table."""
    data = bytearray(encode_media(make_speechlike(), RATE, "mp4", "aac", movflags="frag_keyframe+empty_moov"))
    struct.pack_into(">II", data, data.index(b"trun") + 4, 1, 80_000_000)
    return bytes(data)


def _amr() -> bytes:
    return encode_media(make_speechlike(1, 8000), 8000, "amr", "libopencore_amrnb")


def _two_rates() -> bytes:
    return b"".join(
        encode_sound(make_speechlike(1.0, rate), rate, "OGG", "VORBIS") for rate in (16_000, 8_000)
    )


def _flac_header(total: bytes) -> bytes:
    """The first block of metadata, made the last; `total` is its number of samples."""
    data = encode_sound(make_speechlike(), RATE, "FLAC")
    return b"fLaC\x80" + data[5:22] + total + data[26:42]


def _folder(folder: Path) -> Path:
    (folder / "folder.wav").mkdir()
    return folder / "folder.wav"


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.wav")
    return folder / "pipe.wav"


def _link(name: str, target: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        (folder / name).symlink_to(target)
        return folder / name

    return build


_PAGE = "<!DOCTYPE html><html><body>404 — not found</body></html>".encode()
_CMOV = b"\0\0\0\x10moov\0\0\0\x08cmov"
_ENDLESS = b"\0\0\0\x10ftypM4A \0\0\0\0\0\0\0\1free"
_NOT_AUDIO = "not audio"
_BROKEN = "cannot be decoded"
HOSTILE_AUDIO: dict[str, HostileAudio] = {
    # not a file to read
    "missing": HostileAudio(lambda folder: folder / "missing.wav", "No such file"),
    "folder": HostileAudio(_folder, "is a folder"),
    "pipe": HostileAudio(_pipe, "is a pipe, socket or device"),
    "device": HostileAudio(_link("device.wav", "/dev/zero"), "is a pipe, socket or device"),
    "link to itself": HostileAudio(_link("loop.wav", "loop.wav"), "Too many levels of symbolic links"),
    "long name": HostileAudio(lambda folder: folder / ("a" * 300 + ".wav"), "File name too long"),
    "null byte in the name": HostileAudio(lambda folder: folder / "a\0.wav", "is not a valid file name"),
    # not audio
    "empty": _file("empty.wav", bytes, "is empty (0 bytes)"),
    "text": _file("text.wav", lambda: b"Hello, I am a transcript.\n", _NOT_AUDIO),
    "HTML": _file("page.mp3", lambda: _PAGE, _NOT_AUDIO),
    "PNG": _file("image.wav", _noise(0, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), _NOT_AUDIO),
    "pickle": _file("a.sph", lambda: pickle.dumps(list(range(999))), _BROKEN),
    "zero bytes": _file("zeros.wav", lambda: bytes(50_000), _BROKEN),
    "random bytes": _file("random.wav", _noise(4), _BROKEN),
    "random bytes as MP3": _file("random.mp3", _noise(5, b"\xff\xfb\x90\x64"), _BROKEN),
    "random bytes as MP4": _file("noise.m4a", _noise(10, b"\0\0\0\x18ftypM4A "), _BROKEN),
    # audio without sound
    "video without sound": _file("video.mp4", encode_video, "this video has no audio track"),
    "WAV header only": _file("header.wav", lambda: make_wav(b""), "no samples"),
    "WAV without data": _file("nodata.wav", lambda: make_wav()[:36], _BROKEN),
    "FLAC header only": _file("header.flac", lambda: _flac_header(b"\0\0\x3e\x80"), "promises 1.000 s"),
    "FLAC header without length": _file("header.flac", lambda: _flac_header(bytes(4)), "no samples"),
    "AIFF header only": _file("header.aiff", lambda: encode_sound(np.empty(0), RATE, "AIFF"), "no samples"),
    "SPHERE header only": _file("header.sph", lambda: make_sphere(b"", 0), "no samples"),
    "ID3 tag only": _file("tag.mp3", lambda: b"ID3\4\0\0\0\0\7\x68" + bytes(1000), _BROKEN),
    "silent WAV": _file("silent.wav", lambda: make_wav(bytes(32_000)), "all samples are zero"),
    # cut short
    "WAV cut short": _file("cut.wav", _cut(_sound("WAV")), "promises 2.000 s, but the audio ends at 1.4"),
    "WAV with a lying length": _file("lie.wav", lambda: make_wav(data_bytes=0x7000_0000), "cut short"),
    "SPHERE with a lying length": _file("lie.sph", lambda: make_sphere(bytes(99), 10**15 - 1), "cut short"),
    "FLAC cut short": _file("cut.flac", _cut(_sound("FLAC")), "the audio ends at 1.280 s"),
    "Opus cut short": _file("cut.opus", _cut(_sound("OGG", "OPUS")), "cut short"),
    "MP4 without index": _file("cut.m4a", _cut(_media("mp4", "aac")), _BROKEN),
    "AMR cut short": _file("cut.amr", _cut(_amr), "damaged at its end: the audio ends at 0.7"),
    # damaged or absurd
    "MP4 with a lying table": _file("table.m4a", _crowded_table, _BROKEN),
    "MP4 with 80 million samples": _file("claim.m4a", claim_samples, "claims 80,000,000 samples"),
    "MP4 with a fragment of 80 million": _file("claim.m4a", claim_in_a_fragment, "80,000,000 samples"),
    "MP4 with many tracks": _file("claim.m4a", lambda: claim_samples(30, 10**6), "claims 30,000,000 samples"),
    "MOV with endless chunks": _file("claim.mov", _crowded_pcm, "claims 2,097,152,000,000 samples"),
    "MP4 with a compressed header": _file("moov.mov", lambda: _CMOV + bytes(99), "claims inf samples"),
    "MP4 with an endless box": _file("box.m4a", lambda: _ENDLESS + b"\xff" * 99, _BROKEN),
    "FLAC with a hole": _file("hole.flac", _overwrite(_sound("FLAC"), 20_000, bytes(999)), " to 1.280"),
    "NaN": _file("nan.wav", _floats(RATE, np.nan), "the sample at 1.000 s is nan"),
    "integers as floats": _file("loud.wav", _floats(RATE, 32_767), "the sample at 1.000 s is 32767"),
    "0 Hz": _file("rate.wav", lambda: make_wav(sample_rate=0), _BROKEN),
    "1 Hz": _file("rate.wav", lambda: make_wav(sample_rate=1), "a sample rate of 1 Hz"),
    "2 GHz": _file("rate.wav", lambda: make_wav(sample_rate=2_000_000_000), "a sample rate of 2000000000 Hz"),
    "0 channels": _file("channels.wav", lambda: make_wav(channels=0), "its header says 0 channels"),
    "64 channels": _file("channels.wav", lambda: make_wav(channels=64), "has 64 channels"),
    "unknown codec": _file("codec.wav", lambda: make_wav(codec=0x4242), "no decoder for its audio codec"),
    "two sample rates": _file("rates.ogg", _two_rates, "to FLAC"),
}
