"""Delays that were put in are found, and what theory says of the noise is so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.errors import UserError
from asr.recipe import beamform_files
from asr.recipe.corpora import delay_and_sum, find_delays

RATE = 16_000


def delay(audio: np.ndarray, samples: float) -> np.ndarray:
    """Shift by a fraction of samples, in the spectrum."""
    frequencies = np.fft.rfftfreq(len(audio))
    shifted: np.ndarray = np.fft.irfft(
        np.fft.rfft(audio) * np.exp(-2j * np.pi * frequencies * samples), len(audio)
    )
    return shifted


def make_channels(delays: list[float], noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Something with the spectrum of speech, and the same in each channel, with noise of its own."""
    random = np.random.default_rng(seed)
    speech = np.convolve(random.normal(size=2 * RATE), 0.9 ** np.arange(60), "same")
    speech *= np.repeat(random.uniform(0, 1, 20), RATE // 10) / speech.std()
    channels = [delay(speech, shift) for shift in delays]
    return speech, np.stack([own + noise * random.normal(size=len(own)) for own in channels])


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5])
def test_delays_are_found(noise: float) -> None:
    delays = [0.0, 3.0, -7.25, 12.5, 0.4375]
    _, channels = make_channels(delays, noise)
    found = find_delays(channels * np.array([[1], [0.1], [3], [1], [-0.0 + 1]]), RATE)
    assert np.allclose(found, delays, atol=1 / 16 + noise / 2)


@pytest.mark.parametrize("count", [2, 5, 8])
def test_noise_falls_by_the_number_of_channels(count: int) -> None:
    delays = [float(shift) for shift in np.linspace(0, 20, count)]
    speech, channels = make_channels(delays, 0.1)
    error = delay_and_sum(channels, RATE) - speech
    inner = slice(100, -100)  # what is shifted in at the edges is not known
    gain = 10 * np.log10(0.1**2 / np.mean(error[inner] ** 2))
    assert gain == pytest.approx(10 * np.log10(count), abs=0.3)
    mean = channels.mean(axis=0) - speech  # not shifted back, the speech itself is damaged
    assert np.mean(mean[inner] ** 2) > 3 * np.mean(error[inner] ** 2)


def test_files(tmp_path: Path) -> None:
    _, channels = make_channels([0.0, 5.0], 0.0)
    paths = [tmp_path / "ch1.wav", tmp_path / "ch2.wav"]
    for path, channel in zip(paths, channels, strict=True):
        soundfile.write(path, 0.1 * channel, RATE)
    joined = beamform_files(paths, RATE)
    assert np.allclose(joined[100:-100], 0.1 * channels[0][100:-100], atol=0.01)
    soundfile.write(paths[1], 0.1 * channels[1][:RATE], RATE)
    with pytest.raises(UserError, match="its channels have 16,000 to 32,000 samples; expected files that"):
        beamform_files(paths, RATE)
