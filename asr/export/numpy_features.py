"""The front end in numpy, for one recording: what `asr.features.front_end.FrontEnd` computes in PyTorch.

CMVN is missing, because the exported graphs contain it.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from asr.features.filters import (
    INT16_SCALE,
    KALDI_FLOOR,
    PRE_EMPHASIS,
    WHISPER_FLOOR,
    FeaturesConfig,
    compute_cepstral_matrix,
    compute_mel_filters,
    compute_window,
)

# S samples, T frames, W samples of a window, M mel bands, F features


class NumpyFrontEnd:
    """Computes (T, F) features of samples in [-1, 1]; none if they are shorter than a window.

    `sample_scale` is what graphs expect the samples to be multiplied by, 32768 as in Kaldi or 1.
    """

    def __init__(self, config: FeaturesConfig, sample_scale: float) -> None:
        self.config = config
        self._is_whisper, self._is_icefall = (config.convention == name for name in ("whisper", "icefall"))
        self._floor = np.float32(KALDI_FLOOR * (sample_scale**2 if self._is_icefall else 1))
        if config.type == "samples":
            self._scale = sample_scale
            return
        self._scale = sample_scale if self._is_whisper else sample_scale / INT16_SCALE
        self._window_W = compute_window(config).astype(np.float32)
        self._mel_KM = compute_mel_filters(config).astype(np.float32)
        self._cepstra_MF = compute_cepstral_matrix(config.num_mels, config.num_ceps).astype(np.float32)

    def __call__(self, audio_S: np.ndarray) -> np.ndarray:
        config, audio_S = self.config, audio_S.astype(np.float32) * np.float32(self._scale)
        window, shift = config.window_samples, config.shift_samples
        if config.type == "samples":
            num_frames = (len(audio_S) + 1) // shift
            return np.pad(audio_S, (0, 1))[: num_frames * shift].reshape(num_frames, shift)
        shortest = {"kaldi": window, "icefall": window // 2, "whisper": window // 2 + 1}[config.convention]
        if len(audio_S) < shortest:
            return np.zeros((0, config.num_features), np.float32)
        log_mel_TM = (
            self._measure_mirrored(audio_S) if self._is_whisper else self._measure_emphasized(audio_S)
        )
        return log_mel_TM @ self._cepstra_MF if config.type == "mfcc" else log_mel_TM

    def _measure_emphasized(self, audio_S: np.ndarray) -> np.ndarray:
        """Return log energies as Kaldi does: of windows without their mean, after pre-emphasis."""
        window, shift = self.config.window_samples, self.config.shift_samples
        if self._is_icefall:  # windows past both ends, which mirror the samples there
            num_frames = (len(audio_S) + shift // 2) // shift
            mirrored_S = np.pad(audio_S, window // 2, mode="symmetric")
            audio_S = mirrored_S[shift // 2 :][: (num_frames - 1) * shift + window]
        means_T1 = sliding_window_view(audio_S, window)[::shift].mean(axis=1, keepdims=True)
        emphasized_S = audio_S[1:] - np.float32(PRE_EMPHASIS) * audio_S[:-1]
        windows_TW = sliding_window_view(emphasized_S, window - 1)[::shift]
        mel_TM = self._compute_mel(windows_TW - np.float32(1 - PRE_EMPHASIS) * means_T1)
        return np.log(np.maximum(mel_TM, self._floor))

    def _measure_mirrored(self, audio_S: np.ndarray) -> np.ndarray:
        """Return log energies as Whisper does: mirrored at the ends, scaled, and limited to 80 dB."""
        window, shift = self.config.window_samples, self.config.shift_samples
        windows_TW = sliding_window_view(np.pad(audio_S, window // 2, mode="reflect"), window)[::shift]
        mel_TM = self._compute_mel(windows_TW[: len(audio_S) // shift])
        log_mel_TM = np.log10(np.maximum(mel_TM, np.float32(WHISPER_FLOOR)))
        return (np.maximum(log_mel_TM, log_mel_TM.max() - 8) + 4) / 4

    def _compute_mel(self, windows_TW: np.ndarray) -> np.ndarray:
        spectrum_TK = np.fft.rfft(windows_TW * self._window_W, self.config.fft_samples)
        energies_TK = spectrum_TK.real**2 + spectrum_TK.imag**2
        return energies_TK.astype(np.float32) @ self._mel_KM
