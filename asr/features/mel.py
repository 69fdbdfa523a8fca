"""Windows, mel filters and cepstra of the two conventions, Kaldi's and Whisper's, in float64.

Shapes: W samples of a window, K frequency bins, M mel bands, F cepstra.
"""

from __future__ import annotations

import numpy as np

LIFTER = 22.0  # HTK's and Kaldi's weighting of the cepstra


def compute_povey_window(num_samples: int) -> np.ndarray:
    """Kaldi's own: like Hamming's, but 0 at both ends."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(num_samples) / (num_samples - 1))) ** 0.85


def compute_hann_window(num_samples: int) -> np.ndarray:
    """Periodic, as an FFT of the same size wants it."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(num_samples) / num_samples)


def compute_kaldi_filters(bins_K: np.ndarray, low_hz: float, high_hz: float, num_mels: int) -> np.ndarray:
    """(K, M) for bins at these frequencies: triangles on HTK's mel scale, with peak 1."""
    edges = np.linspace(hz_to_htk_mel(low_hz), hz_to_htk_mel(high_hz), num_mels + 2)
    return _triangles(hz_to_htk_mel(bins_K), edges)


def compute_whisper_filters(bins_K: np.ndarray, low_hz: float, high_hz: float, num_mels: int) -> np.ndarray:
    """(K, M) for bins at these frequencies: triangles in Hz with area 1, placed by Slaney's mel scale."""
    edges = np.linspace(hz_to_slaney_mel(low_hz), hz_to_slaney_mel(high_hz), num_mels + 2)
    edges = _slaney_mel_to_hz(edges)
    return _triangles(bins_K, edges) * 2 / (edges[2:] - edges[:-2])


def compute_cepstral_matrix(num_mels: int, num_ceps: int) -> np.ndarray:
    """(M, F): orthonormal cosine transform, with the lifter on its columns."""
    order_F, band_M1 = np.arange(num_ceps), np.arange(num_mels)[:, None]
    cosines_MF = np.cos(np.pi / num_mels * (band_M1 + 0.5) * order_F) * np.sqrt(2 / num_mels)
    cosines_MF[:, 0] = np.sqrt(1 / num_mels)
    return cosines_MF * (1 + 0.5 * LIFTER * np.sin(np.pi * order_F / LIFTER))


def _triangles(points_K: np.ndarray, edges: np.ndarray) -> np.ndarray:
    left_M, peak_M, right_M = edges[:-2], edges[1:-1], edges[2:]
    rising_KM = (points_K[:, None] - left_M) / (peak_M - left_M)
    falling_KM = (right_M - points_K[:, None]) / (right_M - peak_M)
    return np.maximum(0.0, np.minimum(rising_KM, falling_KM))


def hz_to_htk_mel(hz: np.ndarray | float) -> np.ndarray:
    return 1127.0 * np.log1p(np.asarray(hz) / 700.0)


# Slaney's scale: linear up to 1000 Hz, which is 15 mel, then 27 mel to each factor of 6.4.
def hz_to_slaney_mel(hz: float) -> float:
    return hz * 15 / 1000 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)


def _slaney_mel_to_hz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 1000 / 15, 1000 * 6.4 ** ((mel - 15) / 27))
