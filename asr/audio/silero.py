"""The network of silero-vad, which distinguishes speech from music and noise, in PyTorch."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# S samples, T frames, C chunks of 32 ms, D dimension

_STRIDES = (1, 2, 2, 1)
_DIM = 128


class SileroModel(nn.Module):
    """The silero-vad network, run on many chunks at once, which is six times as fast as one by one.

    Spectra and convolutions cover one chunk each; an LSTM runs over the chunks. The weights come from the
    silero-vad package.
    """

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        self.chunk_samples = sample_rate * 32 // 1000
        self._context_samples = self.chunk_samples // 8  # samples of the previous chunk put before each chunk
        weights = _read_weights("_model" if sample_rate == 16_000 else "_model_8k")
        self._window = weights["stft.forward_basis_buffer"][0, 0]  # row of frequency 0, whose cosine is 1
        self._kernels = [
            tuple(weights[f"encoder.{index}.reparam_conv.{part}"] for part in ("weight", "bias"))
            for index in range(len(_STRIDES))
        ]
        self._lstm = nn.LSTM(_DIM, _DIM)
        names = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0"}
        names |= {"bias_ih": "bias_ih_l0", "bias_hh": "bias_hh_l0"}
        self._lstm.load_state_dict({ours: weights[f"decoder.rnn.{name}"] for name, ours in names.items()})
        self._output = (weights["decoder.decoder.2.weight"][..., 0], weights["decoder.decoder.2.bias"])

    @torch.inference_mode()
    def forward(self, chunks_CS: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        """Return probabilities (C,) and the state after the last chunk; the first state is None."""
        if not len(chunks_CS):
            return np.zeros(0, np.float32), state
        context_S, memory = state or (torch.zeros(self._context_samples), None)
        audio_CS = torch.from_numpy(chunks_CS)
        ends_CS = audio_CS[:, -self._context_samples :]
        before_CS = torch.cat([context_S[None], ends_CS[:-1]])
        hidden_CD, memory = self._lstm(self._encode(torch.cat([before_CS, audio_CS], dim=1)), memory)
        probability_C = F.linear(hidden_CD.relu(), *self._output).sigmoid()[:, 0]
        return probability_C.numpy(), (ends_CS[-1].clone(), memory)

    def _encode(self, audio_CS: Tensor) -> Tensor:
        size = len(self._window)
        padded_CS = F.pad(audio_CS[:, None], (0, size // 4), mode="reflect")[:, 0]
        x_CTD = torch.fft.rfft(padded_CS.unfold(1, size, size // 2) * self._window).abs()
        for (weight, bias), stride in zip(self._kernels, _STRIDES, strict=True):
            # As a matrix product, because a convolution would compile a kernel for each number of chunks.
            around_CTD = F.pad(x_CTD, (0, 0, 1, 1)).unfold(1, 3, stride).flatten(2)
            x_CTD = F.linear(around_CTD, weight.flatten(1), bias).relu()
        return x_CTD[:, 0]


def _read_weights(prefix: str) -> dict[str, Tensor]:
    """Read the package's weights without importing it, which is slow and sets PyTorch to one thread."""
    package = importlib.util.find_spec("silero_vad")
    assert package is not None and package.origin is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.load is deprecated; at 8 kHz there is no other file
        state = torch.jit.load(Path(package.origin).parent / "data" / "silero_vad.jit").state_dict()
    return {name[len(prefix) + 1 :]: value for name, value in state.items() if name.startswith(f"{prefix}.")}


@functools.lru_cache
def load_silero(sample_rate: int) -> SileroModel:
    """Load the model once. It is stateless, so all recordings share it."""
    return SileroModel(sample_rate)
