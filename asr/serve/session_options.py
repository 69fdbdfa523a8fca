"""Options of `session.update`, and decoding of the audio formats of live sessions"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import pydantic

from asr.config import Config
from asr.serve.api import Prompt, ServerVad, ShortText

G711_RATE = 8_000


class Pcm(Config):
    """16-bit little-endian samples of one channel."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: int = pydantic.Field(default=24_000, ge=8_000, le=48_000)

    def decode(self, content: bytes) -> np.ndarray:
        return np.frombuffer(content, "<i2").astype(np.float32) / 32768


class G711(Config):
    """8 kHz in 8 bits: mu-law or A-law."""

    type: Literal["audio/pcmu", "audio/pcma"]

    @property
    def rate(self) -> int:
        return G711_RATE

    def decode(self, content: bytes) -> np.ndarray:
        table = MU_LAW if self.type == "audio/pcmu" else A_LAW
        return table[np.frombuffer(content, np.uint8)]


def _make_mu_law() -> np.ndarray:
    """ITU-T G.711: sign, three bits of exponent, four of mantissa, all inverted."""
    code = ~np.arange(256) & 0xFF
    exponent, mantissa = code >> 4 & 7, code & 15
    magnitude = ((2 * mantissa + 33) << exponent) - 33  # of 8,158 (14 bits)
    return (np.where(code & 0x80, -magnitude, magnitude) / 8192).astype(np.float32)


def _make_a_law() -> np.ndarray:
    """ITU-T G.711: the same with every second bit inverted, and a linear first exponent."""
    code = np.arange(256) ^ 0x55
    exponent, mantissa = code >> 4 & 7, code & 15
    magnitude = np.where(exponent == 0, 2 * mantissa + 1, (2 * mantissa + 33) << np.maximum(exponent - 1, 0))
    return (np.where(code & 0x80, magnitude, -magnitude) / 4096).astype(np.float32)  # 13 bits


MU_LAW, A_LAW = _make_mu_law(), _make_a_law()


class SessionTranscription(Config):
    model: ShortText | None = None
    language: ShortText | None = None
    prompt: Prompt = ""


class InputOptions(Config):
    format: Annotated[Pcm | G711, pydantic.Field(discriminator="type")] = Pcm()
    noise_reduction: None = None
    transcription: SessionTranscription = SessionTranscription()
    turn_detection: ServerVad | None = ServerVad(type="server_vad")


class AudioOptions(Config):
    input: InputOptions = InputOptions()


class SessionOptions(Config):
    """Fields of `session.update`."""

    type: Literal["transcription"] = "transcription"
    audio: AudioOptions = AudioOptions()
    include: tuple[Literal["asr.tentative", "asr.words"], ...] = ()
