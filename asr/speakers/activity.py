"""PyanNet: detects the activity of up to three speakers in ten-second windows, including overlaps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# B batch, S samples, T frames, C channels, K classes, N speakers
# Modules are named as in the checkpoints of pyannote.audio.

SAMPLE_RATE = 16_000
WINDOW_SECONDS = 10.0  # as in the published model's training
FRAME_SAMPLES = 270  # samples from one frame to the next
FIELD_SAMPLES = 991  # samples that a frame sees; frame 0 begins with the window
# Classes of the published model, as sets of speakers: nobody, one of three, two of three.
POWERSET = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
HALF_FILTER, FILTER_STRIDE = 125, 10  # samples
WINDOWS_AT_ONCE = 16  # more would not fit the CPU's caches


class PyanNet(nn.Module):
    """Sinc filters, convolutions and bidirectional LSTMs that detect which of a window's speakers are active.

    Bredin, pyannote.audio 2.1 speaker diarization pipeline (2023); Plaquet and Bredin, Powerset multi-class
    cross entropy loss for neural speaker diarization (2023). The numbers of the speakers differ from window
    to window.
    """

    powerset_KN: Tensor

    def __init__(self, dim: int = 128, num_layers: int = 4) -> None:
        super().__init__()
        self.sincnet = _SincNet()
        self.lstm = nn.LSTM(60, dim, num_layers, bidirectional=True)
        self.linear = nn.ModuleList([nn.Linear(2 * dim, dim), nn.Linear(dim, dim)])
        self.classifier = nn.Linear(dim, len(POWERSET))
        powerset_KN = torch.tensor([[float(speaker in group) for speaker in range(3)] for group in POWERSET])
        self.register_buffer("powerset_KN", powerset_KN, persistent=False)

    def forward(self, audio_BS: Tensor) -> Tensor:
        """Return log-probabilities (B, T, K) of the sets of speakers."""
        x_BCT = self.sincnet(audio_BS[:, None])
        x_TBC, _ = self.lstm(x_BCT.permute(2, 0, 1))
        for linear in self.linear:
            x_TBC = F.leaky_relu(linear(x_TBC))
        return self.classifier(x_TBC).transpose(0, 1).log_softmax(dim=2)

    @torch.inference_mode()
    def segment(self, windows_BS: Tensor) -> Tensor:
        """Return (B, T, N): 1 where a speaker belongs to the most likely set, else 0."""
        device = self.powerset_KN.device
        parts = (self(part_BS.to(device, torch.float32)) for part_BS in windows_BS.split(WINDOWS_AT_ONCE))
        return self.powerset_KN[torch.cat([likely_BTK.argmax(dim=2) for likely_BTK in parts])].cpu()


class _SincNet(nn.Module):
    """Three stages of convolution, max-pooling over three steps, and normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.wav_norm1d = nn.InstanceNorm1d(1, affine=True)
        filters = nn.ModuleDict({"filterbank": _SincFilters()})
        self.conv1d = nn.ModuleList([filters, nn.Conv1d(80, 60, 5), nn.Conv1d(60, 60, 5)])
        self.norm1d = nn.ModuleList([nn.InstanceNorm1d(channels, affine=True) for channels in (80, 60, 60)])

    def forward(self, audio_B1S: Tensor) -> Tensor:
        x_BCT = self.wav_norm1d(audio_B1S)
        convolutions = (*self.conv1d[0].values(), *self.conv1d[1:])  # type: ignore[operator]
        for convolution, normalize in zip(convolutions, self.norm1d, strict=True):
            x_BCT = F.leaky_relu(normalize(F.max_pool1d(convolution(x_BCT), 3)))
        return x_BCT


class _SincFilters(nn.Module):
    """Band-pass filters, half even and half odd, with learned edges in Hz; returns magnitudes."""

    window_: Tensor
    n_: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.low_hz_ = nn.Parameter(torch.linspace(0, 7800, 40)[:, None])
        self.band_hz_ = nn.Parameter(torch.full((40, 1), 100.0))
        window = torch.hamming_window(2 * HALF_FILTER + 1, periodic=False, dtype=torch.float64)
        self.register_buffer("window_", window[:HALF_FILTER].float())
        radians = 2 * math.pi * torch.arange(-HALF_FILTER, 0.0) / SAMPLE_RATE  # of 1 Hz, at each sample
        self.register_buffer("n_", radians[None])

    def forward(self, audio_B1S: Tensor) -> Tensor:
        low = 50 + self.low_hz_.abs()
        high = (low + 50 + self.band_hz_.abs()).clamp(max=SAMPLE_RATE / 2)
        scale = self.window_ / (self.n_ * (high - low))
        even = ((high @ self.n_).sin() - (low @ self.n_).sin()) * scale
        odd = ((low @ self.n_).cos() - (high @ self.n_).cos()) * scale
        middle = torch.ones_like(low)
        even = torch.cat([even, middle, even.flip(1)], dim=1)
        odd = torch.cat([odd, 0 * middle, -odd.flip(1)], dim=1)
        return F.conv1d(audio_B1S, torch.cat([even, odd])[:, None], stride=FILTER_STRIDE).abs_()
