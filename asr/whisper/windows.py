"""Windows of at most 30 seconds of audio, with silence behind it, as features."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.errors import UserError
from asr.whisper.encoder_decoder import place_silence
from asr.whisper.loading import WhisperSystem
from asr.whisper.sections import FRAMES_PER_STEP

# B batch, S samples, T frames, F features

ROUND_SECONDS = 0.5  # to a multiple of which shorter windows go on, so that those of many clips are alike
PADDED_SECONDS = (4.0, 8.0, 16.0, 24.0)  # to which encoded windows are padded, to be decoded together


class Silence(NamedTuple):
    """Silence behind audio, up to 30 seconds: of the first, all steps are computed, then one of `stride`."""

    seconds: float
    stride: int


# By width and whether it knows many languages: tiny and base.en, whose texts stay as good (docs/speed.md).
SILENCES = {(384, True): Silence(3.0, 4), (512, False): Silence(1.0, 16)}


def count_whole_samples(system: WhisperSystem) -> int:
    """Count the samples of 30 seconds."""
    return system.config.max_steps * FRAMES_PER_STEP * system.front_end.config.shift_samples


def count_window_samples(system: WhisperSystem, num_samples: int, padding_seconds: float | None) -> int:
    """Count the samples of the window for so many of audio; without a padding, those of 30 seconds."""
    config, whole = system.front_end.config, count_whole_samples(system)
    if num_samples > whole:
        raise UserError(
            f"{num_samples / config.sample_rate:.2f} seconds of audio; one window has at most "
            f"{whole / config.sample_rate:g}, cut longer recordings"
        )
    if padding_seconds is None:
        return whole
    unit = round(ROUND_SECONDS * config.sample_rate)
    wanted = math.ceil((num_samples + padding_seconds * config.sample_rate) / unit) * unit
    return min(whole, max(unit, wanted))


def compute_window_features(
    system: WhisperSystem,
    audio_BS: Tensor,
    audio_lengths_B: Tensor,
    padding_seconds: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-mel of the audio with silence behind it, as much for all as the longest needs; None: 30 seconds."""
    longest = int(audio_lengths_B.max()) if len(audio_lengths_B) else 0
    window = count_window_samples(system, longest, padding_seconds)
    audio_BS = audio_BS[:, :longest]
    is_audio_BS = torch.arange(longest, device=audio_BS.device) < audio_lengths_B[:, None]
    padded_BS = F.pad(audio_BS * is_audio_BS, (0, window - longest))
    return system.front_end(padded_BS, torch.full_like(audio_lengths_B, window))


def count_padded_samples(system: WhisperSystem, num_samples: int, padding_seconds: float | None) -> int:
    """Count the samples that a window is padded to where it is decoded with others."""
    silence = find_silence(system, padding_seconds)
    if silence is None:
        return count_window_samples(system, num_samples, padding_seconds)
    window = count_window_samples(system, num_samples, silence.seconds)
    whole, sample_rate = count_whole_samples(system), system.front_end.config.sample_rate
    sizes = [round(seconds * sample_rate) for seconds in PADDED_SECONDS]
    return next((size for size in sizes if window <= size < whole), whole)


def find_silence(system: WhisperSystem, padding_seconds: float | None) -> Silence | None:
    """Find the silence of which few steps are computed; None: all of them are."""
    known = SILENCES.get((system.config.dim, system.tokenizer.is_multilingual))
    return known if padding_seconds is None else None


def encode_audio(
    system: WhisperSystem, audio_BS: Tensor, audio_lengths_B: Tensor, padding_seconds: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Encode windows: (B, T, D), (B,) lengths, and (B, T) what attention adds to its scores, or None."""
    silence = find_silence(system, padding_seconds)
    if silence is not None:
        return _encode_with_silence(system, audio_BS, audio_lengths_B, silence)
    features_BTF, lengths_B = compute_window_features(system, audio_BS, audio_lengths_B, padding_seconds)
    return *system.model.encode(features_BTF, lengths_B), None


def _encode_with_silence(
    system: WhisperSystem, audio_BS: Tensor, audio_lengths_B: Tensor, silence: Silence
) -> tuple[Tensor, Tensor, Tensor]:
    """Encode each window as long as it needs, then pad all to as many steps."""
    config, lengths = system.config, audio_lengths_B.tolist()
    samples_per_step = FRAMES_PER_STEP * system.front_end.config.shift_samples
    num_steps = count_padded_samples(system, max(lengths), None) // samples_per_step
    num_steps += len(place_silence(num_steps, config.max_steps, silence.stride, audio_BS.device)[0])
    encoded_BTD = audio_BS.new_zeros(len(lengths), num_steps, config.dim)
    bias_BT = audio_BS.new_full((len(lengths), num_steps), -torch.inf)
    rows_of: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows_of.setdefault(count_window_samples(system, length, silence.seconds), []).append(row)
    for rows in rows_of.values():
        features_BTF, _ = compute_window_features(
            system, audio_BS[rows], audio_lengths_B[rows], silence.seconds
        )
        found_BTD, found_bias_BT = system.model.encode_with_silence(features_BTF, silence.stride)
        encoded_BTD[rows, : found_BTD.size(1)] = found_BTD.to(encoded_BTD.dtype)
        bias_BT[rows, : found_BTD.size(1)] = found_bias_BT
    return encoded_BTD, torch.full_like(audio_lengths_B, config.max_steps), bias_BT
