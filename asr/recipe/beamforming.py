"""Several microphones into one signal: delays by GCC-PHAT, then delay and sum.

The sound of a speaker reaches each microphone at another time. GCC-PHAT (Knapp and Carter 1976) finds the
delay where the phases of two channels agree best, at all frequencies alike, whatever their levels. Shifted
back and averaged, the speech of M channels adds up, while noise that differs from channel to channel falls
by 10 log10(M) dB. Each channel has one delay for the whole signal: for an utterance of a few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asr.audio.reading import read
from asr.errors import UserError

# C channels, S samples, K frames of the analysis, F frequencies

MAX_DELAY_SECONDS = 0.003  # one metre, more than across a tablet or the array of a room
FRAME = 4096  # samples; long beside the delay, short beside the utterance
UPSAMPLING = 16  # delays are found to a sixteenth of a sample


def beamform_files(paths: Sequence[Path], sample_rate: int) -> np.ndarray:
    """Delay and sum of files that hold a channel each, as float32 (samples,)."""
    channels = [read(path, sample_rate, allow_silence=True) for path in paths]
    lengths = {len(channel) for channel in channels}
    if max(lengths) - min(lengths) > MAX_DELAY_SECONDS * sample_rate:
        raise UserError(
            f"{paths[0]}: its channels have {min(lengths):,} to {max(lengths):,} samples; expected files "
            "that were recorded together"
        )
    return delay_and_sum(np.stack([channel[: min(lengths)] for channel in channels]), sample_rate)


def delay_and_sum(channels_CS: np.ndarray, sample_rate: int) -> np.ndarray:
    """Mean of the channels after their delays were taken back, as float32 (samples,). The first channel is
    the one whose time stays; one that is silent has no part."""
    channels_CS = channels_CS[channels_CS.any(axis=1)]
    if len(channels_CS) < 2:
        return channels_CS.sum(axis=0).astype(np.float32)
    delays_C = find_delays(channels_CS, sample_rate)
    num_samples = channels_CS.shape[1]
    padded = num_samples + round(
        2 * MAX_DELAY_SECONDS * sample_rate
    )  # what is shifted out must not come round
    spectra_CF = np.fft.rfft(channels_CS, padded)
    frequencies_F = np.fft.rfftfreq(padded)
    aligned_CF = spectra_CF * np.exp(2j * np.pi * frequencies_F * delays_C[:, None])
    return np.fft.irfft(aligned_CF.mean(axis=0), padded)[:num_samples].astype(np.float32)


def find_delays(channels_CS: np.ndarray, sample_rate: int) -> np.ndarray:
    """(C,) samples, with fractions, by which each channel comes later than the first one."""
    window = np.hanning(FRAME)
    first_KF = np.fft.rfft(_frame(channels_CS[0]) * window, 2 * FRAME).conj()
    cross_CF = np.stack(
        [(np.fft.rfft(_frame(own) * window, 2 * FRAME) * first_KF).sum(axis=0) for own in channels_CS]
    )
    cross_CF /= np.maximum(np.abs(cross_CF), 1e-30)
    correlation_CS = np.fft.irfft(cross_CF, 2 * FRAME * UPSAMPLING)
    most = round(MAX_DELAY_SECONDS * sample_rate * UPSAMPLING)
    near_CS = np.concatenate([correlation_CS[:, -most:], correlation_CS[:, : most + 1]], axis=1)
    return (near_CS.argmax(axis=1) - most) / UPSAMPLING


def _frame(channel_S: np.ndarray) -> np.ndarray:
    """(K, FRAME), half a frame apart; the last one is filled up with silence."""
    num_halves = max(2, -(-len(channel_S) // (FRAME // 2)))
    padded_S = np.pad(channel_S, (0, num_halves * (FRAME // 2) - len(channel_S)))
    return np.lib.stride_tricks.sliding_window_view(padded_S, FRAME)[:: FRAME // 2]
