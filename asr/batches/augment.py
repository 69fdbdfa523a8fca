"""Vary the training audio: speed, noise, gain, SpecAugment; every choice is reproducible and recorded.

A choice depends on (seed, epoch, stage, utterance id) and on nothing else: not on the number of workers, not
on the other utterances of a batch, not on which other stages are switched on.

Shapes: N utterances of a corpus, B utterances of a batch, T frames, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pydantic
from torch import Tensor

from asr.audio import reading as audio_files
from asr.batches.seeding import choose, hash_names, random_stream
from asr.batches.spec_augment import SpecAugment, SpecAugmentConfig
from asr.config import Config
from asr.data.manifest import read_manifest
from asr.errors import UserError

RECORDING_SUFFIXES = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".sph", ".aiff"}
# Power of coloured noise falls with frequency f as f ** -exponent.
NOISE_EXPONENTS = {"white": 0.0, "pink": 1.0, "brown": 2.0}
LOWEST_NOISE_HZ = 20.0  # of coloured noise: what nobody hears would be most of its power


def _check_range(name: str, bounds: tuple[float, float], least: float, greatest: float) -> None:
    if not least <= bounds[0] <= bounds[1] <= greatest:
        raise ValueError(
            f"{name} = {list(bounds)}: expected [low, high] with {least} <= low <= high <= {greatest}"
        )


class NoiseConfig(Config):
    """Noise added to the waveform."""

    probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Share of the utterances that get noise; 0 switches it off."""
    snr_db: tuple[float, float] = (10.0, 20.0)
    """Lowest and highest ratio of the power of speech and noise over the utterance, in dB; drawn evenly."""
    kinds: tuple[Literal["white", "pink", "brown", "recorded"], ...] = ("white",)
    """What to choose from, evenly: synthetic noise of a colour, or an excerpt of `recordings`."""
    recordings: str | None = None
    """Noise recordings for the kind `recorded`: a manifest, or a folder, searched with all that is below it.
    The headers of a folder are read at every start; for thousands of files a manifest is quicker."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> NoiseConfig:
        _check_range("snr_db", self.snr_db, -30.0, 100.0)
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds = {list(self.kinds)}: expected at least one kind, and each only once")
        if ("recorded" in self.kinds) != (self.recordings is not None):
            raise ValueError("kinds has `recorded` if, and only if, recordings is set; change one of the two")
        self.refuse_idle(self.probability > 0, "probability", "snr_db", "kinds", "recordings")
        return self


class AugmentConfig(Config):
    """Augmentation of the training audio; the defaults change nothing."""

    speed: tuple[float, ...] = ()
    """Factors of tempo and pitch such as [0.9, 1.0, 1.1]: one is drawn for each utterance and epoch."""
    noise: NoiseConfig = NoiseConfig()
    """Noise added to the waveform."""
    gain_db: tuple[float, float] = (0.0, 0.0)
    """Lowest and highest change of loudness in dB, drawn evenly, after the noise; [0.0, 0.0]: none."""
    spec_augment: SpecAugmentConfig = SpecAugmentConfig()
    """Masks and time warp on the features."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> AugmentConfig:
        if len(set(self.speed)) < len(self.speed) or any(not 0.5 <= factor <= 2.0 for factor in self.speed):
            raise ValueError(f"speed = {list(self.speed)}: expected factors from 0.5 to 2.0, each only once")
        _check_range("gain_db", self.gain_db, -60.0, 60.0)
        return self


@dataclass(frozen=True)
class Applied:
    """Augmentation that was applied to one utterance in one epoch."""

    speed: float = 1.0
    snr_db: float | None = None  # none: no noise
    gain_db: float = 0.0
    time_warp: int = 0  # shift in frames
    time_masked: float = 0.0  # share of the frames
    frequency_masked: float = 0.0  # share of the features


NOTHING_APPLIED = Applied()


class Augmenter:
    """Augmentation by an AugmentConfig. Holds no state: calls may come in any order and from any process."""

    def __init__(self, config: AugmentConfig, seed: int, sample_rate: int, num_features: int) -> None:
        mask_width = config.spec_augment.frequency_mask_width
        if config.spec_augment.num_frequency_masks and mask_width > num_features:
            raise UserError(
                f"augment.spec_augment.frequency_mask_width = {mask_width}: "
                f"there are only {num_features} features; give a smaller width"
            )
        self._config = config
        self._seed = seed
        self._sample_rate = sample_rate
        self._spec_augment = SpecAugment(config.spec_augment, seed)
        path = config.noise.recordings
        self._recordings = list_recordings(path) if path is not None and config.noise.probability else []

    def choose_speeds(self, id_hashes_N: np.ndarray, epoch: int) -> np.ndarray:
        """The speed factor of each utterance, given `hash_names` of the ids."""
        speeds = np.array(self._config.speed or (1.0,))
        return speeds[choose(id_hashes_N, len(speeds), self._seed, epoch, "speed")]

    def augment_audio(self, audio: np.ndarray, utterance_id: str, epoch: int) -> tuple[np.ndarray, Applied]:
        """Speed, noise and gain, in this order. The result may leave [-1, 1]; nothing is clipped."""
        config, speed = self._config, float(self.choose_speeds(hash_names([utterance_id]), epoch)[0])
        snr_db, gain_db = None, 0.0
        if speed != 1.0:
            audio = audio_files.change_speed(audio, speed, self._sample_rate)
        if config.noise.probability:
            audio, snr_db = self._add_noise(audio, self.stream("noise", utterance_id, epoch))
        if config.gain_db != (0.0, 0.0):
            gain_db = float(self.stream("gain", utterance_id, epoch).uniform(*config.gain_db))
            audio = audio * np.float32(10 ** (gain_db / 20))
        return audio, Applied(speed=speed, snr_db=snr_db, gain_db=gain_db)

    def augment_features(
        self,
        features_BTF: Tensor,
        feature_lengths_B: Tensor,
        applied: Sequence[Applied],
        ids: Sequence[str],
        epoch: int,
    ) -> tuple[Tensor, tuple[Applied, ...], Tensor | None]:
        """SpecAugment; `applied`, the records so far, come back with what it did, and the spans of speech."""
        if not self._config.spec_augment.is_on or not len(ids):
            return features_BTF, tuple(applied), None
        features_BTF, masked, spans_B2 = self._spec_augment.apply(features_BTF, feature_lengths_B, ids, epoch)
        records = zip(applied, masked, strict=True)
        return features_BTF, tuple(replace(before, **after._asdict()) for before, after in records), spans_B2

    def stream(self, stage: str, utterance_id: str, epoch: int) -> np.random.Generator:
        """The random numbers of one stage for one utterance."""
        return random_stream(self._seed, epoch, stage, utterance_id)

    def _add_noise(self, audio: np.ndarray, stream: np.random.Generator) -> tuple[np.ndarray, float | None]:
        """The audio with noise, and the ratio in dB; none if this utterance gets no noise."""
        config = self._config.noise
        if stream.random() >= config.probability:
            return audio, None
        snr_db = float(stream.uniform(*config.snr_db))
        kind = config.kinds[stream.integers(len(config.kinds))]
        if kind == "recorded":
            noise = self._read_noise(len(audio), stream)
        else:
            noise = make_noise(len(audio), self._sample_rate, NOISE_EXPONENTS[kind], stream)
        speech_power = np.mean(np.square(audio, dtype=np.float64))
        noise_power = np.mean(np.square(noise, dtype=np.float64))
        if not speech_power or not noise_power:
            return audio, None  # a silent excerpt cannot be brought to any ratio
        scale = np.sqrt(speech_power / noise_power) * 10 ** (-snr_db / 20)
        return audio + noise * np.float32(scale), snr_db

    def _read_noise(self, num_samples: int, stream: np.random.Generator) -> np.ndarray:
        """An excerpt from a random place of a random recording; a recording that is too short is repeated."""
        recording = self._recordings[stream.integers(len(self._recordings))]
        seconds = num_samples / self._sample_rate
        start = recording.start + stream.uniform(0, max(0.0, recording.seconds - seconds))
        duration = min(seconds, recording.seconds)
        excerpt = audio_files.read(
            recording.path, self._sample_rate, start=start, duration=duration, allow_silence=True
        )
        return np.resize(excerpt, num_samples)


# --- noise --------------------------------------------------------------------------------------


class NoiseRecording(NamedTuple):
    """A noise recording, or a part of one."""

    path: str
    start: float
    seconds: float


def list_recordings(path: str | Path) -> list[NoiseRecording]:
    """The recordings of a manifest or a folder, always in the same order."""
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in RECORDING_SUFFIXES)
        recordings = [NoiseRecording(str(file), 0.0, _read_seconds(file)) for file in files]
    else:
        recordings = [NoiseRecording(item.audio, item.start, item.duration) for item in read_manifest(path)]
    if not recordings:
        raise UserError(
            f"{path}: no recordings; augment.noise.recordings takes a manifest or a folder of audio"
        )
    return recordings


def _read_seconds(path: Path) -> float:
    seconds = audio_files.read_info(path).seconds
    if seconds is None:
        raise UserError(f"{path}: its header does not tell its length; convert it, or list it in a manifest")
    return seconds


def make_noise(
    num_samples: int, sample_rate: int, exponent: float, stream: np.random.Generator
) -> np.ndarray:
    """Gaussian noise whose power falls as frequency ** -exponent."""
    noise = stream.standard_normal(num_samples, dtype=np.float32)
    if not exponent:
        return noise
    # A length of small factors: the transform of a long prime one is several times slower.
    size = 1 << (num_samples - 1).bit_length()
    spectrum = np.fft.rfft(noise, size)
    frequencies = np.fft.rfftfreq(size, 1 / sample_rate)
    frequencies[frequencies < LOWEST_NOISE_HZ] = np.inf
    return np.fft.irfft(spectrum * frequencies ** (-exponent / 2), size)[:num_samples].astype(np.float32)
