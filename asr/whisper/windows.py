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

ROUND_SECONDS = (
    0.5  # windows of less than 30 s have a multiple of this, so that those of many clips are alike
)


def count_window_samples(system: WhisperSystem, num_samples: int, padding_seconds: float | None) -> int:
    """Count the samples of the window for so many samples of audio."""
    config = system.front_end.config
    whole = system.config.max_steps * FRAMES_PER_STEP * config.shift_samples
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
