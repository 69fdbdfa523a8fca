"""Windows of at most 30 seconds of audio, with silence behind it, as features."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.errors import UserError
from asr.whisper.encoder_decoder import place_silence
from asr.whisper.loading import WhisperSystem
from asr.whisper.sections import FRAMES_PER_STEP

# B batch, S samples, T frames, F features

ROUND_SECONDS = 0.5  # to a multiple of which shorter windows go on, so that those of many clips are alike
SILENCE_SECONDS = 1.0  # behind the audio, whose steps are all computed
PADDED_SECONDS = (4.0, 8.0, 16.0, 24.0)  # to which encoded windows are padded, to be decoded together
SPARSE_DIM = 512  # of base.en, whose texts stay as good where the other steps are few; tiny's do not


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
    window = count_window_samples(system, num_samples, find_padding(system, padding_seconds))
    if not has_few_silent_steps(system, padding_seconds):
        return window
    whole, sample_rate = count_whole_samples(system), system.front_end.config.sample_rate
    sizes = [round(seconds * sample_rate) for seconds in PADDED_SECONDS]
    return next((size for size in sizes if window <= size < whole), whole)


def find_padding(system: WhisperSystem, padding_seconds: float | None) -> float | None:
    """Silence of which each step is computed; the rest of 30 seconds has few. None: all of these."""
    return SILENCE_SECONDS if has_few_silent_steps(system, padding_seconds) else padding_seconds


def has_few_silent_steps(system: WhisperSystem, padding_seconds: float | None) -> bool:
    is_base_en = system.config.dim == SPARSE_DIM and not system.tokenizer.is_multilingual
    return padding_seconds is None and is_base_en


def encode_audio(
    system: WhisperSystem, audio_BS: Tensor, audio_lengths_B: Tensor, padding_seconds: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Encode windows: (B, T, D), (B,) lengths, and (B, T) what attention adds to its scores, or None."""
    if has_few_silent_steps(system, padding_seconds):
        return _encode_with_silence(system, audio_BS, audio_lengths_B)
    features_BTF, lengths_B = compute_window_features(system, audio_BS, audio_lengths_B, padding_seconds)
    return *system.model.encode(features_BTF, lengths_B), None


def _encode_with_silence(
    system: WhisperSystem, audio_BS: Tensor, audio_lengths_B: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Encode each window as long as it needs, then pad all to as many steps."""
    config, lengths = system.config, audio_lengths_B.tolist()
    samples_per_step = FRAMES_PER_STEP * system.front_end.config.shift_samples
    padded_steps = count_padded_samples(system, max(lengths), None) // samples_per_step
    padded_steps += len(place_silence(padded_steps, config.max_steps, audio_BS.device)[0])
    encoded_BTD = audio_BS.new_zeros(len(lengths), padded_steps, config.dim)
    bias_BT = audio_BS.new_full((len(lengths), padded_steps), -torch.inf)
    rows_of: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows_of.setdefault(count_window_samples(system, length, SILENCE_SECONDS), []).append(row)
    for rows in rows_of.values():
        features_BTF, _ = compute_window_features(
            system, audio_BS[rows], audio_lengths_B[rows], SILENCE_SECONDS
        )
        found_BTD, found_bias_BT = system.model.encode_with_silence(features_BTF)
        encoded_BTD[rows, : found_BTD.size(1)] = found_BTD.to(encoded_BTD.dtype)
        bias_BT[rows, : found_BTD.size(1)] = found_bias_BT
    return encoded_BTD, torch.full_like(audio_lengths_B, config.max_steps), bias_BT
