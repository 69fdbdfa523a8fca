"""Windows of at most 30 seconds of audio, with silence behind it, as features."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.errors import UserError
from asr.whisper.loading import WhisperSystem
from asr.whisper.sections import FRAMES_PER_STEP

# B batch, S samples, T frames, F features

ROUND_SECONDS = 0.5  # to a multiple of which shorter windows go on, so that those of many clips are alike
SILENCE_SECONDS = 1.0  # behind the audio, whose steps are all computed
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


def find_padding(system: WhisperSystem, padding_seconds: float | None) -> float | None:
    """Silence of which each step is computed; the rest of 30 seconds has few. None: all of these."""
    is_base_en = system.config.dim == SPARSE_DIM and not system.tokenizer.is_multilingual
    return SILENCE_SECONDS if padding_seconds is None and is_base_en else padding_seconds


def encode_audio(
    system: WhisperSystem, audio_BS: Tensor, audio_lengths_B: Tensor, padding_seconds: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Encode windows: (B, T, D), (B,) lengths, and (B, T) what attention adds to its scores, or None."""
    padding = find_padding(system, padding_seconds)
    features_BTF, lengths_B = compute_window_features(system, audio_BS, audio_lengths_B, padding)
    if padding_seconds is None and features_BTF.size(1) < FRAMES_PER_STEP * system.config.max_steps:
        return system.model.encode_with_silence(features_BTF)
    return *system.model.encode(features_BTF, lengths_B), None
