"""Mixtures have the levels that were asked for, whatever the pauses in their sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asr.recipe import load_recipe

RATE = 8_000
RECIPE = load_recipe("fsdd_2mix", Path(__file__).resolve().parents[2] / "recipes").prepare.__globals__
mix_sources, measure_active_level = RECIPE["mix_sources"], RECIPE["measure_active_level"]


def make_speech(seconds: float, has_pauses: bool, level: float = 0.1, seed: int = 0) -> np.ndarray:
    """Noise of a level, every other half second of which may be silent."""
    random = np.random.default_rng(seed)
    audio = level * random.normal(size=round(seconds * RATE))
    halves = np.arange(len(audio)) // (RATE // 2)
    return np.where(has_pauses & (halves % 2 == 1), 1e-5 * audio, audio)


@pytest.mark.parametrize("level", [0.3, 0.01])
@pytest.mark.parametrize("has_pauses", [False, True])
def test_pauses_do_not_count(level: float, has_pauses: bool) -> None:
    audio = make_speech(20, has_pauses, level)
    found = 10 * np.log10(measure_active_level(audio, RATE) / level**2)
    # After each word 0.2 s and the decay of the smoothing, 0.1 s or less, belong to it: of pauses of 0.5 s, as
    # long as the words, 0.2 to 0.3 s count.
    least, most = (10 * np.log10([0.5 / 0.8, 0.5 / 0.7])) if has_pauses else (-0.1, 0.1)
    assert least < found < most
    assert measure_active_level(np.zeros(100), RATE) == 0.0


def test_a_mixture_has_the_gains_and_its_longest_source() -> None:
    first, second = make_speech(3, False, 0.2, 1), make_speech(2, False, 0.01, 2)
    mixture = mix_sources([first, second], [1.5, -1.5], RATE)
    assert (mixture.dtype, len(mixture)) == (np.float32, 3 * RATE)
    alone, both = mixture[2 * RATE :], mixture[: 2 * RATE]
    scale = alone / first[2 * RATE :]
    assert np.allclose(scale, scale[0], rtol=1e-4)  # behind the second source the first stands alone
    rest = both - scale[0] * first[: 2 * RATE]
    assert 20 * np.log10(alone.std() / rest.std()) == pytest.approx(3.0, abs=0.2)
    assert np.abs(mixture).max() <= 0.9 + 1e-6
    assert not mix_sources([np.zeros(10), np.zeros(5)], [1.0, -1.0], RATE).any()
