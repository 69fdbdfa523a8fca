"""Mix sources at given levels, by the rule of wsj0-2mix; and the active speech level that it needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MARGIN_DB = 15.9  # how far ITU-T P.56 sets the threshold of activity below the level that it finds
SMOOTHING_SECONDS = 0.03
HANGOVER_SECONDS = 0.2
PEAK = 0.9


def mix_sources(sources: Sequence[np.ndarray], gains_db: Sequence[float], sample_rate: int) -> np.ndarray:
    """Sum of the sources, each brought to its level; the shorter ones end with silence.

    Levels are those of active speech, so that pauses do not make a source louder than another. Where the sum
    or one of its parts would be clipped, all are lowered; peaks are at most 0.9.
    """
    mixture = np.zeros(max(map(len, sources)))
    peak = 1.0
    for source, gain in zip(sources, gains_db, strict=True):
        level = measure_active_level(source, sample_rate)
        part = source * (10 ** (gain / 20) / np.sqrt(level) if level else 0.0)
        mixture[: len(part)] += part
        peak = max(peak, float(np.abs(part).max(initial=0.0)))
    peak = max(peak, float(np.abs(mixture).max(initial=0.0)))
    return (PEAK / peak * mixture).astype(np.float32)


def measure_active_level(audio: np.ndarray, sample_rate: int) -> float:
    """Mean square of the audio while there is speech (ITU-T P.56, method B); 0 of silence.

    Active is what lies 15.9 dB below the level or less. Each threshold, a factor of two from the next, gives
    a share of active samples and so a level; the one that is right lies between two thresholds.
    """
    from scipy.ndimage import maximum_filter1d
    from scipy.signal import lfilter

    energy = float(np.square(audio, dtype=np.float64).sum())
    if not energy:
        return 0.0
    decay = np.exp(-1 / (SMOOTHING_SECONDS * sample_rate))
    envelope = np.abs(audio, dtype=np.float64)
    for _ in range(2):
        envelope = lfilter([1 - decay], [1, -decay], envelope)
    width = 1 + round(HANGOVER_SECONDS * sample_rate)
    envelope = maximum_filter1d(envelope, width, mode="constant", origin=(width - 1) // 2)
    thresholds = envelope.max() * 2.0 ** -np.arange(32)
    counts = len(envelope) - np.searchsorted(np.sort(envelope), thresholds)
    levels_db = 10 * np.log10(energy / counts)
    distances_db = levels_db - 20 * np.log10(thresholds)
    index = int(np.searchsorted(distances_db, MARGIN_DB))  # it grows as the threshold falls
    if not 0 < index < len(thresholds):
        return energy / len(audio)
    share = (MARGIN_DB - distances_db[index - 1]) / (distances_db[index] - distances_db[index - 1])
    return float(10 ** ((levels_db[index - 1] + share * (levels_db[index] - levels_db[index - 1])) / 10))
