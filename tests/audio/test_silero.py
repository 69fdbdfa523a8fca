"""silero-vad's model in asr/audio/speech_detection.py against the package's own model, and on sounds that are no speech."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import soxr
import torch
from silero_vad import load_silero_vad

from asr.audio import SileroModel, load_silero
from asr.data import synthesize


def speak(rate: int) -> np.ndarray:
    """Chunks of words with faint noise around."""
    pytest.importorskip("espeakng_loader")
    words, own_rate = synthesize("one two three, four five six seven")
    spoken = soxr.resample(words, own_rate, rate).astype(np.float32)
    audio = 1e-3 * np.random.default_rng(0).standard_normal(len(spoken) + 2 * rate).astype(np.float32)
    audio[rate:-rate] += spoken
    chunk = rate * 32 // 1000
    return audio[: len(audio) // chunk * chunk].reshape(-1, chunk)


def play(seconds: float, rate: int) -> np.ndarray:
    """Chords of decaying overtones, four a second, and a drum."""
    rng = np.random.default_rng(1)
    times = np.arange(rate // 4) / rate
    notes = []
    for _ in range(round(4 * seconds)):
        roots = 110 * 2 ** (rng.choice([0, 3, 5, 7, 10], 3) / 12)
        chord = sum(np.sin(2 * np.pi * root * k * times) / k for root in roots for k in range(1, 6))
        drum = rng.standard_normal(len(times)) * np.exp(-40 * times)
        notes.append((0.05 * chord * np.exp(-4 * times) + 0.05 * drum).astype(np.float32))
    audio = np.concatenate(notes)
    chunk = rate * 32 // 1000
    return audio[: len(audio) // chunk * chunk].reshape(-1, chunk)


@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_probabilities_are_those_of_the_package(rate: int) -> None:
    chunks_CS = np.concatenate([speak(rate), play(1.0, rate)])
    theirs = load_silero_vad()
    with torch.inference_mode():
        expected = [float(theirs(torch.from_numpy(chunk)[None], rate)) for chunk in chunks_CS]
    model = load_silero(rate)
    state, found = model.start(), []
    for part in np.split(chunks_CS, [0, 1, 2, 40]):
        probabilities, state = model(part, state)
        found.append(probabilities)
    assert np.concatenate(found) == pytest.approx(np.array(expected), abs=1e-4)
    assert max(expected) > 0.9


def test_speech_is_known_from_music_and_noise() -> None:
    model = load_silero(16_000)
    noise = 0.1 * np.random.default_rng(0).standard_normal((150, 512)).astype(np.float32)
    assert model(noise, model.start())[0].max() < 0.5
    assert model(play(5.0, 16_000), model.start())[0].max() < 0.5
    assert np.mean(model(speak(16_000)[31:-31], model.start())[0] > 0.5) > 0.7


def test_the_number_of_threads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package sets it to one when it is imported."""
    for name in [name for name in sys.modules if name.startswith("silero_vad")]:
        monkeypatch.delitem(sys.modules, name)
    torch.set_num_threads(2)
    SileroModel(16_000)
    assert torch.get_num_threads() == 2
