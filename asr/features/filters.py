"""Settings of the features, and the windows and matrices that they define."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from asr.config import Config

# K frequency bins, M mel bands, F features

INT16_SCALE = 32768.0  # Kaldi's features and floor are defined on 16-bit sample values
PRE_EMPHASIS = 0.97  # share of the previous sample that Kaldi subtracts; Whisper has no pre-emphasis
KALDI_FLOOR = float(np.finfo(np.float32).eps)  # lower bound of a mel energy, before the logarithm
ICEFALL_FLOOR = KALDI_FLOOR * INT16_SCALE**2  # as of samples from -1 to 1
WHISPER_FLOOR = 1e-10
MIN_DEVIATION = 1e-3  # lower bound in CMVN, so that a constant feature stays finite
# Statistics of a running CMVN begin with so many frames of typical log-mel energies of speech.
PRIOR_FRAMES, PRIOR_MEAN, PRIOR_DEVIATION = 100, 10.0, 4.0
LIFTER = 22.0  # weighting of the cepstra, as in HTK and Kaldi


@dataclass(frozen=True)
class FrameTimes:
    """Times of evenly spaced steps, in seconds of the audio."""

    first: float  # seconds from the first sample to the middle of the audio that step 0 sees
    seconds_per_step: float

    def times(self, num_steps: int) -> np.ndarray:
        return self.time(np.arange(num_steps))

    def time(self, step: Any) -> Any:
        return self.first + self.seconds_per_step * step


class FeaturesConfig(Config):
    """Settings of the features."""

    convention: Literal["kaldi", "icefall", "whisper"] = "kaldi"
    """Convention: `kaldi` (as in torchaudio.compliance.kaldi), `icefall` (Kaldi's as set in icefall and
    sherpa-onnx: frames past both ends, no bands in the highest 400 Hz) or `whisper` (OpenAI's log-mel)."""
    type: Literal["log_mel", "mfcc", "samples"] = "log_mel"
    """`log_mel`: log energies of the mel bands. `mfcc`: their cepstra, including c0, without the energy.
    `samples`: raw audio in adjacent frames, for encoders that read samples."""
    sample_rate: int = Field(default=16_000, ge=1_000, le=192_000)
    """Sample rate of the front end's input, in Hz."""
    window_ms: float = Field(default=25.0, gt=0, le=10_000)
    """Window length in milliseconds."""
    shift_ms: float = Field(default=10.0, gt=0, le=10_000)
    """Frame shift in milliseconds."""
    num_mels: int = Field(default=80, ge=4, le=512)
    """Number of mel bands; usually 80 for log_mel (whisper: 80 or 128) and 23 for mfcc."""
    num_ceps: int = Field(default=13, ge=1)
    """Number of cepstra, for mfcc."""
    cmvn: Literal["none", "utterance", "running"] = "utterance"
    """Normalize each feature to mean 0 and deviation 1, over the whole `utterance`, or `running`: over the
    frames so far, after a second of typical ones, for live transcription. `none` with whisper."""

    @property
    def window_samples(self) -> int:
        return int(self.sample_rate * self.window_ms / 1000)  # like Kaldi, drops the fraction of a sample

    @property
    def shift_samples(self) -> int:
        return int(self.sample_rate * self.shift_ms / 1000)

    @property
    def fft_samples(self) -> int:
        """FFT size: Kaldi pads the window with zeros to a power of two, Whisper does not."""
        if self.convention == "whisper":
            return self.window_samples
        return 1 << (self.window_samples - 1).bit_length()

    @property
    def low_hz(self) -> float:
        """Lower edge of the first mel band."""
        return 0.0 if self.convention == "whisper" else 20.0

    @property
    def high_hz(self) -> float:
        """Upper edge of the last mel band."""
        return self.sample_rate / 2 - (400.0 if self.convention == "icefall" else 0.0)

    @property
    def num_features(self) -> int:
        if self.type == "samples":
            return self.shift_samples
        return self.num_ceps if self.type == "mfcc" else self.num_mels

    def time_steps(self, frames_per_step: int) -> FrameTimes:
        """Return the times of an encoder's steps."""
        # Kaldi's first window begins at sample 0; icefall's is centered at half a shift, Whisper's at 0.
        spans = {"kaldi": self.window_samples, "icefall": self.shift_samples, "whisper": 0}
        middle = spans[self.convention] / self.sample_rate / 2
        return FrameTimes(middle, frames_per_step * self.shift_samples / self.sample_rate)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_convention(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("convention") == "whisper":
            return {"cmvn": "none", **data}
        if isinstance(data, dict) and data.get("type") == "samples":
            return {"cmvn": "none", "window_ms": 4.0, "shift_ms": 4.0, **data}
        return data

    @model_validator(mode="after")
    def _check(self) -> FeaturesConfig:
        if self.convention == "whisper":
            for name in ("type", "sample_rate", "window_ms", "shift_ms"):
                needed = type(self).model_fields[name].default
                if getattr(self, name) != needed:
                    raise ValueError(
                        f"{name} is {getattr(self, name)}, but convention whisper needs {needed}"
                    )
        if not 32 <= self.window_samples <= 16_384 or not 1 <= self.shift_samples <= self.window_samples:
            raise ValueError(
                f"window_ms {self.window_ms:g} and shift_ms {self.shift_ms:g} are {self.window_samples} and "
                f"{self.shift_samples} samples: expected 32 to 16384, and 1 to the window"
            )
        if self.cmvn == "running" and (self.convention == "whisper" or self.type != "log_mel"):
            raise ValueError(
                "cmvn running is for type log_mel and not for convention whisper; set cmvn: none"
            )
        if self.convention == "icefall" and self.type != "log_mel":
            raise ValueError(f"convention icefall is for type log_mel, not {self.type}; change either")
        if self.type == "samples":
            if self.window_ms != self.shift_ms or self.cmvn != "none":
                raise ValueError("type samples has adjacent frames: set window_ms = shift_ms and cmvn: none")
            return self
        if self.type == "mfcc" and self.num_ceps > self.num_mels:
            raise ValueError(f"num_ceps is {self.num_ceps}, but num_mels {self.num_mels}; expected no more")
        empty = np.flatnonzero(compute_mel_filters(self).sum(axis=0) == 0)
        if len(empty):
            raise ValueError(
                f"num_mels {self.num_mels} is too many for window_ms {self.window_ms:g} at sample_rate "
                f"{self.sample_rate}: mel band {empty[0] + 1} holds none of the {self.fft_samples // 2 + 1} "
                "frequencies of the FFT; use fewer bands or a longer window"
            )
        return self


# --- mel filters and cepstra, in float64 ---------------------------------------------------------


def compute_kaldi_filters(bins_K: np.ndarray, low_hz: float, high_hz: float, num_mels: int) -> np.ndarray:
    """Return filters (K, M) for bins at these frequencies: triangles on HTK's mel scale, with peak 1."""
    edges = np.linspace(_hz_to_htk_mel(low_hz), _hz_to_htk_mel(high_hz), num_mels + 2)
    return _triangles(_hz_to_htk_mel(bins_K), edges)


def compute_whisper_filters(bins_K: np.ndarray, low_hz: float, high_hz: float, num_mels: int) -> np.ndarray:
    """Return filters (K, M) for bins at these frequencies: triangles in Hz with area 1, on Slaney's scale."""
    edges = np.linspace(_hz_to_slaney_mel(low_hz), _hz_to_slaney_mel(high_hz), num_mels + 2)
    edges = np.where(edges < 15, edges * 1000 / 15, 1000 * 6.4 ** ((edges - 15) / 27))
    return _triangles(bins_K, edges) * 2 / (edges[2:] - edges[:-2])


def compute_cepstral_matrix(num_mels: int, num_ceps: int) -> np.ndarray:
    """Return the orthonormal cosine transform (M, F), with liftered columns."""
    order_F, band_M1 = np.arange(num_ceps), np.arange(num_mels)[:, None]
    cosines_MF = np.cos(np.pi / num_mels * (band_M1 + 0.5) * order_F) * np.sqrt(2 / num_mels)
    cosines_MF[:, 0] = np.sqrt(1 / num_mels)
    return cosines_MF * (1 + 0.5 * LIFTER * np.sin(np.pi * order_F / LIFTER))


def _triangles(points_K: np.ndarray, edges: np.ndarray) -> np.ndarray:
    left_M, peak_M, right_M = edges[:-2], edges[1:-1], edges[2:]
    rising_KM = (points_K[:, None] - left_M) / (peak_M - left_M)
    falling_KM = (right_M - points_K[:, None]) / (right_M - peak_M)
    return np.maximum(0.0, np.minimum(rising_KM, falling_KM))


def _hz_to_htk_mel(hz: np.ndarray | float) -> np.ndarray:
    return 1127.0 * np.log1p(np.asarray(hz) / 700.0)


def _hz_to_slaney_mel(hz: float) -> float:
    """Convert to Slaney's scale: linear up to 1000 Hz = 15 mel, then 27 mel per factor of 6.4."""
    return hz * 15 / 1000 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)


def compute_mel_filters(config: FeaturesConfig) -> np.ndarray:
    """Return the convention's mel filters (K, M)."""
    compute = compute_whisper_filters if config.convention == "whisper" else compute_kaldi_filters
    bins_K = np.arange(config.fft_samples // 2 + 1) * (config.sample_rate / config.fft_samples)
    return compute(bins_K, config.low_hz, config.high_hz, config.num_mels)


def compute_window(config: FeaturesConfig) -> np.ndarray:
    """Return the convention's weights. Povey's first one is 0, so it is left out (see `FrontEnd`)."""
    if config.convention == "whisper":
        return np.hanning(config.window_samples + 1)[:-1]  # periodic
    return INT16_SCALE * np.hanning(config.window_samples)[1:] ** 0.85
