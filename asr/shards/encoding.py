"""Encode the audio of an utterance as a file of its own: FLAC, Opus, or the file that it comes from."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from asr.audio import reading as audio_files
from asr.audio.reading import TOLERANCE_SECONDS
from asr.data.manifest import Utterance
from asr.data.packed import MAX_MEMBER_BYTES
from asr.errors import UserError

Encoding = Literal["flac", "opus", "copy"]
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
OPUS_BITS = 24_000  # a second


@dataclass(frozen=True)
class EncodedFile:
    """The audio of one utterance as it is packed."""

    content: bytes
    suffix: str
    sample_rate: int
    num_samples: int
    num_channels: int = 1
    channel: int | None = None
    """Channel of the utterance, where a file is copied as it is."""


def encode_audio(utterance: Utterance, encoding: Encoding) -> EncodedFile:
    """Read an utterance and encode it: mono, at the sample rate of its file; `copy` keeps whole files."""
    info = audio_files.read_info(utterance.audio)
    is_whole = (
        utterance.start == 0
        and info.seconds is not None
        and abs(info.seconds - utterance.duration) <= TOLERANCE_SECONDS
    )
    audio_S = audio_files.read(
        utterance.audio,
        info.sample_rate,
        start=utterance.start,
        duration=utterance.duration,
        channel=utterance.channel_index,
    )
    if encoding == "copy" and is_whole:
        content = Path(utterance.audio).read_bytes()
        if len(content) > MAX_MEMBER_BYTES:
            raise UserError(
                f"{utterance.audio}: {len(content):,} bytes, more than {MAX_MEMBER_BYTES:,}; cut it"
            )
        suffix = re.sub(r"[^a-z0-9]", "", Path(utterance.audio).suffix.lower()) or info.container
        return EncodedFile(
            content, suffix, info.sample_rate, len(audio_S), info.num_channels, utterance.channel
        )
    if encoding != "opus":
        return EncodedFile(encode_flac(audio_S, info.sample_rate), "flac", info.sample_rate, len(audio_S))
    rate = next((rate for rate in OPUS_RATES if rate >= info.sample_rate), OPUS_RATES[-1])
    resampled_S = audio_files.resample(audio_S, info.sample_rate, rate)
    return EncodedFile(encode_opus(resampled_S, rate), "opus", rate, len(resampled_S))


def encode_flac(audio_S: np.ndarray, sample_rate: int) -> bytes:
    """16-bit FLAC: no loss where the samples were of 16 bits."""
    import soundfile

    samples = np.clip(np.rint(audio_S * 32768), -32768, 32767).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, sample_rate, "PCM_16", format="FLAC")
    return file.getvalue()


def encode_opus(audio_S: np.ndarray, sample_rate: int) -> bytes:
    """Opus in Ogg with `OPUS_BITS` a second."""
    import soundfile

    file = io.BytesIO()
    # libsndfile's scale: 0 is 256 kbit/s, 1 is 6 kbit/s.
    level = 1 - (OPUS_BITS - 6_000) / (256_000 - 6_000)
    soundfile.write(
        file, np.clip(audio_S, -1, 1), sample_rate, "OPUS", format="OGG", compression_level=level
    )  # fmt: skip
    return file.getvalue()
