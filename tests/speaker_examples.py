"""Speakers that are tones, and stand-in models that distinguish them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.speakers.activity import FIELD_SAMPLES, FRAME_SAMPLES, SAMPLE_RATE
from asr.speakers.diarize import EDGE

Spans = Sequence[tuple[float, float, int]]
PITCHES = 400 + 200 * torch.arange(12.0)


def measure_tones(audio_XS: Tensor) -> Tensor:
    """The level of each speaker's tone."""
    waves_SC = torch.exp(2j * np.pi * torch.arange(audio_XS.shape[-1])[:, None] * PITCHES / SAMPLE_RATE)
    return (audio_XS.to(waves_SC.dtype) @ waves_SC).abs()


def segment(windows_BS: Tensor) -> Tensor:
    """Up to three speakers of a window, in an order of its own."""
    num_frames = (windows_BS.shape[1] - FIELD_SAMPLES) // FRAME_SAMPLES + 1
    frames_BTS = windows_BS[:, EDGE:][:, : num_frames * FRAME_SAMPLES].unflatten(1, (-1, FRAME_SAMPLES))
    active_BTC = measure_tones(frames_BTS) > 0.025 * FRAME_SAMPLES
    order_BC = active_BTC.sum(1).argsort(dim=1, descending=True, stable=True)[:, :3]
    return active_BTC.float().gather(2, order_BC.flip(1)[:, None].expand(-1, num_frames, -1))


def embed(waveforms: Sequence[Tensor]) -> Tensor:
    return torch.nn.functional.normalize(measure_tones(torch.stack(list(waveforms))))


MODELS: Any = SimpleNamespace(segment=segment, embed=embed)


def make_audio(spans: Spans, seconds: float) -> np.ndarray:
    times_S = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    audio_S = np.zeros(len(times_S), np.float32)
    for start, end, speaker in spans:
        own = slice(round(start * SAMPLE_RATE), round(end * SAMPLE_RATE))
        audio_S[own] += 0.2 * np.sin(2 * np.pi * float(PITCHES[speaker]) * times_S[own])
    return audio_S
