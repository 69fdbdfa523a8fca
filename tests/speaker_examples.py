"""Speakers that are tones, and stand-in models that distinguish them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.audio.segmentation import Recording
from asr.speakers.activity import FIELD_SAMPLES, FRAME_SAMPLES, SAMPLE_RATE, PyanNet
from asr.speakers.diarize import EDGE
from asr.speakers.turns import Turn

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


def make_talk(spans: Spans, seconds: float) -> Recording:
    return Recording(id="talk", content=make_audio(spans, seconds), sample_rate=SAMPLE_RATE)


class RecordedMeeting:
    """What the published models find in a meeting, at each call of models that `gather_evidence` makes.

    Each sample of its audio is the number of its frame, which tells the stand-in models what they are given:
    windows of recorded classes, and speech of the speakers who speak in these frames (tools/record_meetings.py).
    """

    unit = 1e-6  # the value of a sample in frame 1

    def __init__(self, path: Path) -> None:
        found = np.load(path)
        self.name, self.step, self.classes_WT = path.stem, int(found["step"]), found["classes_WT"]
        num_frames = (len(self.classes_WT) - 1) * self.step + 160_000 // FRAME_SAMPLES + 1
        times_T = (np.arange(num_frames) + 0.5) * FRAME_SAMPLES / SAMPLE_RATE
        self.voices_TD = torch.zeros(num_frames, found["embeddings_ND"].shape[1])
        for speaker in range(int(found["speakers_N"].max()) + 1):
            (own_N,) = np.nonzero(found["speakers_N"] == speaker)
            near_T = own_N[np.abs(found["middles_N"][own_N] - times_T[:, None]).argmin(axis=1)]
            parts = [(start, end) for start, end, own in found["parts"] if own == speaker]
            speaks_T = np.any([(start <= times_T) & (times_T < end) for start, end in parts], axis=0)
            self.voices_TD += torch.from_numpy(speaks_T[:, None] * found["embeddings_ND"][near_T] / 127)
        self.turns = [Turn(self.name, start, end, str(own)) for start, end, own in found["spans"].tolist()]
        audio_S = (np.arange(num_frames) * self.unit).astype(np.float32).repeat(FRAME_SAMPLES)
        size = (len(self.classes_WT) - 1) * self.step * FRAME_SAMPLES + 160_000
        self.recording = Recording(id=self.name, content=audio_S[:size], sample_rate=SAMPLE_RATE)
        self.segmentation = PyanNet()
        self.segmentation.forward = self._find_classes
        self.segment = self.segmentation.segment

    def _find_classes(self, windows_BS: Tensor) -> Tensor:
        firsts_B = (windows_BS[:, 0] / self.unit).round().long().numpy()
        near_B = (firsts_B / self.step).round().astype(int)
        rows = [
            np.roll(self.classes_WT[near], near * self.step - first)
            for near, first in zip(near_B, firsts_B, strict=True)
        ]
        return torch.nn.functional.one_hot(torch.from_numpy(np.stack(rows)).long(), 7).float()

    def embed(self, waveforms: Sequence[Tensor]) -> Tensor:
        frames_BT = (torch.stack(list(waveforms))[:, ::FRAME_SAMPLES] / self.unit).round().long()
        return torch.nn.functional.normalize(self.voices_TD[frames_BT].sum(dim=1))
