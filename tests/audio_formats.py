"""The same sound in every format that we read: FORMATS, for the tests of audio files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from hostile_audio import RATE, encode_media, encode_sound, make_speechlike

HALF_STEP = 0.5 / 32768  # of 16 bits
LOSSY = None
SOUND = make_speechlike(3.0)


@dataclass(frozen=True)
class Format:
    encode: Callable[[], bytes]
    container: str
    error: float | None = 2 * HALF_STEP
    """The worst difference to SOUND; LOSSY: it is only similar."""
    seconds: float | None = 3.0
    """In the header."""
    delay: int = 0
    """Samples before SOUND: what the encoder put there, and the header does not tell."""

    @cached_property
    def data(self) -> bytes:
        return self.encode()


FORMATS = {
    "wav": Format(partial(encode_sound, SOUND, RATE, "WAV"), "wav"),
    "wav float": Format(partial(encode_sound, SOUND, RATE, "WAV", "FLOAT"), "wav", 0),
    "wav A-law": Format(partial(encode_sound, SOUND, RATE, "WAV", "ALAW"), "wav", LOSSY),
    # Whole packets of 320 samples; libsndfile cannot seek in them.
    "wav GSM": Format(partial(encode_sound, SOUND[:44_800], RATE, "WAV", "GSM610"), "wav", LOSSY, 2.8),
    "wav MP3": Format(partial(encode_media, SOUND, RATE, "wav", "libmp3lame"), "wav", LOSSY, None, 1105),
    "rf64": Format(partial(encode_sound, SOUND, RATE, "RF64"), "rf64"),
    "flac": Format(partial(encode_sound, SOUND, RATE, "FLAC"), "flac"),
    "aiff": Format(partial(encode_sound, SOUND, RATE, "AIFF"), "aiff"),
    "au": Format(partial(encode_sound, SOUND, RATE, "AU"), "au"),
    "caf": Format(partial(encode_sound, SOUND, RATE, "CAF"), "caf"),
    "caf ALAC": Format(partial(encode_sound, SOUND, RATE, "CAF", "ALAC_16"), "caf"),
    "sphere": Format(partial(encode_sound, SOUND, RATE, "NIST"), "nistsphere"),
    "ogg Vorbis": Format(partial(encode_sound, SOUND, RATE, "OGG", "VORBIS"), "ogg", LOSSY),
    "ogg Opus": Format(partial(encode_sound, SOUND, RATE, "OGG", "OPUS"), "ogg", LOSSY),
    "mp3": Format(partial(encode_sound, SOUND, RATE, "MP3"), "mp3", LOSSY),
    "mp3 without tag": Format(
        partial(encode_media, SOUND, RATE, "mp3", "libmp3lame", write_xing="0"), "mp3", LOSSY, None, 1105
    ),
    "m4a": Format(partial(encode_media, SOUND, RATE, "ipod", "aac"), "mov", LOSSY),
    "m4a ALAC": Format(partial(encode_media, SOUND, RATE, "ipod", "alac"), "mov"),
    "mp4 in fragments": Format(
        partial(encode_media, SOUND, RATE, "mp4", "aac", movflags="frag_keyframe+empty_moov"),
        "mov",
        LOSSY,
        3.064,
        1024,
    ),
    "webm Opus": Format(partial(encode_media, SOUND, RATE, "webm", "libopus"), "matroska", LOSSY, 3.008),
    "aac": Format(partial(encode_media, SOUND, RATE, "adts", "aac"), "aac", LOSSY, None, 1024),
    "mpeg-ts": Format(partial(encode_media, SOUND, RATE, "mpegts", "aac"), "mpegts", LOSSY, None, 1024),
    "wavpack": Format(partial(encode_media, SOUND, RATE, "wv", "wavpack"), "wv", 1 / 127),
}


# What people may have, each with its FFmpeg container, codec and rate: read only to see that it is accepted.
OTHER_FORMATS = {
    "amr": ("amr", "libopencore_amrnb", 8_000),
    "wma": ("asf", "wmav2", 44_100),
    "mp2": ("mp2", "mp2", 44_100),
    "avi": ("avi", "libmp3lame", 44_100),
    "mov PCM": ("mov", "pcm_s16le", 44_100),
    "speex": ("ogg", "libspeex", 16_000),
    "ogg FLAC": ("ogg", "flac", 16_000),
    "wav ADPCM": ("wav", "adpcm_ms", 44_100),
}


def put(folder: Path, data: bytes, name: str = "a.wav") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
