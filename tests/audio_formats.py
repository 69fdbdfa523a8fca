"""The same sound in every format that we read: FORMATS, for the tests of audio files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hostile_audio import RATE, encode_media, encode_sound, make_speechlike

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
    "sphere": Format(encode_sound(SOUND, RATE, "NIST"), "nistsphere"),
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
