"""Vary the training audio: speed, noise, SpecAugment. Every choice is reproducible.

A choice depends only on (seed, epoch, stage, utterance ID), not on the number of workers, the rest of the
batch, or which other stages are enabled.

Shapes: N utterances of a corpus, B utterances of a batch, T frames, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asr.audio import reading as audio_files
from asr.batches.order import choose, hash_names, random_stream
from asr.data.manifest import read_manifest
from asr.errors import UserError
from asr.features.front_end import speech_spans, valid_frames
from asr.system.run_config import AugmentConfig, SpecAugmentConfig

# Power of colored noise falls with frequency f as f ** -exponent.
NOISE_EXPONENTS = {"white": 0.0, "pink": 1.0, "brown": 2.0}
LOWEST_NOISE_HZ = 20.0  # high-pass for colored noise, most of whose power would otherwise be inaudible
MAX_TIME_MASK_SHARE = 0.2  # widest time mask, as a share of the utterance's frames


class Augmenter:
    """Applies an AugmentConfig. It is stateless, so calls may come in any order and from any process."""

    def __init__(self, config: AugmentConfig, seed: int, sample_rate: int) -> None:
        self._config = config
        self._seed = seed
        self._sample_rate = sample_rate
        path = config.noise.recordings
        self._recordings = [] if path is None else list(read_manifest(path))
        if path is not None and not self._recordings:
            raise UserError(
                f"augment.noise.recordings = {path}: this manifest is empty; give one with noises"
            )

    def choose_speeds(self, id_hashes_N: np.ndarray, epoch: int) -> np.ndarray:
        """Return the speed factor of each utterance, given `hash_names` of the IDs."""
        speeds = np.array(self._config.speed or (1.0,))
        return speeds[choose(id_hashes_N, len(speeds), self._seed, epoch, "speed")]

    def augment_audio(self, audio: np.ndarray, utterance_id: str, epoch: int) -> tuple[np.ndarray, float]:
        """Change the speed, then add noise. Also returns the speed. Samples may exceed [-1, 1]."""
        speed = float(self.choose_speeds(hash_names([utterance_id]), epoch)[0])
        if speed != 1.0:
            audio = audio_files.change_speed(audio, speed, self._sample_rate)
        if self._config.noise.probability:
            audio = self._add_noise(audio, self.stream("noise", utterance_id, epoch))
        return audio, speed

    def augment_features(
        self, features_BTF: Tensor, feature_lengths_B: Tensor, ids: Sequence[str], epoch: int
    ) -> tuple[Tensor, Tensor | None]:
        """Apply SpecAugment. Also returns the spans of speech, if SpecAugment is on."""
        config = self._config.spec_augment
        is_on = config.time_warp or config.num_frequency_masks or config.num_time_masks
        if not is_on or not len(ids):
            return features_BTF, None
        return apply_spec_augment(config, self._seed, features_BTF, feature_lengths_B, ids, epoch)

    def stream(self, stage: str, utterance_id: str, epoch: int) -> np.random.Generator:
        """Return the random numbers for one stage and one utterance."""
        return random_stream(self._seed, epoch, stage, utterance_id)

    def _add_noise(self, audio: np.ndarray, stream: np.random.Generator) -> np.ndarray:
        config = self._config.noise
        if stream.random() >= config.probability:
            return audio
        snr_db = float(stream.uniform(*config.snr_db))
        kind = config.kinds[stream.integers(len(config.kinds))]
        if kind == "recorded":
            noise = self._read_noise(len(audio), stream)
        else:
            noise = make_noise(len(audio), self._sample_rate, NOISE_EXPONENTS[kind], stream)
        speech_power = np.mean(np.square(audio, dtype=np.float64))
        noise_power = np.mean(np.square(noise, dtype=np.float64))
        if not speech_power or not noise_power:
            return audio  # a silent excerpt has no signal-to-noise ratio
        scale = np.sqrt(speech_power / noise_power) * 10 ** (-snr_db / 20)
        return audio + noise * np.float32(scale)

    def _read_noise(self, num_samples: int, stream: np.random.Generator) -> np.ndarray:
        """Read a random excerpt of a random recording; a recording that is too short is repeated."""
        recording = self._recordings[stream.integers(len(self._recordings))]
        seconds = num_samples / self._sample_rate
        start = recording.start + stream.uniform(0, max(0.0, recording.duration - seconds))
        duration = min(seconds, recording.duration)
        excerpt = audio_files.read(
            recording.audio, self._sample_rate, start=start, duration=duration, allow_silence=True
        )
        return np.resize(excerpt, num_samples)


def make_noise(
    num_samples: int, sample_rate: int, exponent: float, stream: np.random.Generator
) -> np.ndarray:
    """Return Gaussian noise whose power falls with frequency as f ** -exponent."""
    noise = stream.standard_normal(num_samples, dtype=np.float32)
    if not exponent:
        return noise
    # Use a power of two, because the FFT of a long prime length is several times slower.
    size = 1 << (num_samples - 1).bit_length()
    spectrum = np.fft.rfft(noise, size)
    frequencies = np.fft.rfftfreq(size, 1 / sample_rate)
    frequencies[frequencies < LOWEST_NOISE_HZ] = np.inf
    return np.fft.irfft(spectrum * frequencies ** (-exponent / 2), size)[:num_samples].astype(np.float32)


# --- SpecAugment (B utterances, T frames, F features, M masks) ----------------------------------


def apply_spec_augment(
    config: SpecAugmentConfig,
    seed: int,
    features_BTF: Tensor,
    feature_lengths_B: Tensor,
    ids: Sequence[str],
    epoch: int,
) -> tuple[Tensor, Tensor]:
    """Warp, find the spans of speech, then mask. Padding is left unchanged."""
    num_frames, num_features = features_BTF.shape[1:]
    warps, time_masks, bands = [], [], []
    for name, length in zip(ids, feature_lengths_B.tolist(), strict=True):
        warps.append(_draw_warp(config.time_warp, length, (seed, epoch, "time_warp", name)))
        width = min(int(MAX_TIME_MASK_SHARE * length), config.time_mask_width or length)
        time_masks.append(draw_masks(config.num_time_masks, width, length, (seed, epoch, "time_masks", name)))
        width, keys = config.frequency_mask_width, (seed, epoch, "frequency_masks", name)
        bands.append(draw_masks(config.num_frequency_masks, width, num_features, keys))

    valid_BT1 = valid_frames(features_BTF, feature_lengths_B)
    fill_B11 = _mean(features_BTF, valid_BT1)
    features_BTF = warp_time(features_BTF, feature_lengths_B, np.array(warps))
    spans_B2 = speech_spans(features_BTF, feature_lengths_B)
    time_mask_BT = build_mask(time_masks, num_frames).to(features_BTF.device)
    band_mask_BF = build_mask(bands, num_features).to(features_BTF.device)
    mask_BTF = (time_mask_BT[:, :, None] | band_mask_BF[:, None, :]) & valid_BT1
    return torch.where(mask_BTF, fill_B11, features_BTF), spans_B2


def _draw_warp(limit: int, length: int, keys: tuple[str | int, ...]) -> tuple[int, int]:
    """Draw a frame and its shift. The frame keeps its distance from both ends, which do not move."""
    if not limit or length < 2 * limit + 3:
        return 0, 0
    stream = random_stream(*keys)
    return int(stream.integers(limit + 1, length - limit - 1)), int(stream.integers(-limit, limit + 1))


def draw_masks(num_masks: int, max_width: int, size: int, keys: tuple[str | int, ...]) -> np.ndarray:
    """Draw starts and widths (num_masks, 2): widths from 0 to max_width, anywhere within `size`."""
    if not num_masks:
        return np.zeros((0, 2), np.int64)
    stream = random_stream(*keys)
    widths_M = stream.integers(0, min(max_width, size) + 1, num_masks)
    return np.array([stream.integers(0, size - widths_M + 1), widths_M]).T


def build_mask(masks: Sequence[np.ndarray], size: int) -> Tensor:
    """Return a bool tensor (batch, size), True within any of the utterance's masks (start, width)."""
    masks_BM2 = np.zeros((len(masks), max(map(len, masks)), 2), dtype=np.int64)
    for row, masks_M2 in zip(masks_BM2, masks, strict=True):
        row[: len(masks_M2)] = masks_M2
    starts_BM1, widths_BM1 = masks_BM2[..., :1], masks_BM2[..., 1:]
    positions = np.arange(size)
    return torch.from_numpy(((positions >= starts_BM1) & (positions < starts_BM1 + widths_BM1)).any(axis=1))


def warp_time(features_BTF: Tensor, feature_lengths_B: Tensor, warps_B2: np.ndarray) -> Tensor:
    """Shift one frame of each utterance, so that one side is stretched and the other squeezed."""
    if not warps_B2[:, 1].any():
        return features_BTF
    device = features_BTF.device
    positions_T = torch.arange(features_BTF.shape[1], dtype=torch.float64, device=device)
    frame_B1, shift_B1 = torch.from_numpy(warps_B2).double().to(device).T.unsqueeze(2)
    last_B1 = feature_lengths_B.to(device).double()[:, None] - 1
    # Rows that are not warped may divide by 0 here; `where` below ignores their results.
    target_B1 = frame_B1 + shift_B1
    left_BT = positions_T * frame_B1 / target_B1
    right_BT = frame_B1 + (positions_T - target_B1) * (last_B1 - frame_B1) / (last_B1 - target_B1)
    warped_BT = torch.where(positions_T < target_B1, left_BT, right_BT)
    is_moved_BT = (shift_B1 != 0) & (positions_T <= last_B1)
    source_BT = torch.where(is_moved_BT, warped_BT, positions_T)

    lower_BT = source_BT.long()
    upper_BT = torch.where(is_moved_BT, (lower_BT + 1).minimum(last_B1.long()), lower_BT)
    weight_BT1 = (source_BT - lower_BT).to(features_BTF)[:, :, None]
    lower_BTF = features_BTF.gather(1, lower_BT[:, :, None].expand_as(features_BTF))
    upper_BTF = features_BTF.gather(1, upper_BT[:, :, None].expand_as(features_BTF))
    return torch.lerp(lower_BTF, upper_BTF, weight_BT1)


def _mean(features_BTF: Tensor, valid_BT1: Tensor) -> Tensor:
    """Return each utterance's mean over its frames (B, 1, 1), in float64 so that padding has no effect."""
    frame_means_BT1 = features_BTF.double().mean(2, keepdim=True) * valid_BT1
    means_B11 = frame_means_BT1.sum(1, keepdim=True) / valid_BT1.sum(1, keepdim=True).clamp(min=1)
    return means_B11.to(features_BTF)
