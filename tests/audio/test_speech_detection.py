"""asr/speech_detection: energies in dB, the noise around, and what becomes of silero-vad's probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from asr.audio import (
    SILENCE_DB,
    EnergyDetector,
    SileroDetector,
    apply_hysteresis,
    make_detector,
    measure_energies,
    speech_detection,
)
from asr.errors import UserError


def test_energy_is_in_db_of_full_scale() -> None:
    """Pre-emphasis by 0.97 multiplies a sine's power by |1 - 0.97 exp(-iw)|^2, its mean square by a half."""
    rate, hertz, level = 16_000, 1000, 0.5
    sine_S = level * np.sin(2 * np.pi * hertz * np.arange(rate) / rate)
    gain = abs(1 - 0.97 * np.exp(-2j * np.pi * hertz / rate)) ** 2
    energies_T = measure_energies(sine_S, rate)
    assert energies_T.shape == (100,)
    assert energies_T[1:] == pytest.approx(10 * np.log10(level**2 / 2 * gain), abs=0.01)
    assert (measure_energies(np.zeros(rate), rate) == SILENCE_DB).all()


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 44_100])
def test_frames_are_a_hundredth_of_a_second_at_any_rate(rate: int) -> None:
    assert len(measure_energies(np.ones(10 * rate), rate)) == 1000


def test_speech_ends_at_half_of_the_threshold() -> None:
    """Hysteresis: between the thresholds it stays as it was."""
    levels_db = np.repeat([-60.0, -49.0, -55.0, -59.0, -55.0], 100)
    rng = np.random.default_rng(0)
    audio_S = np.repeat(10 ** (levels_db / 20), 160) * rng.choice([-1.0, 1.0], 500 * 160)
    detector = EnergyDetector(16_000, 8.0, 10.0)
    early, _ = detector.push(audio_S)
    late, _ = detector.finish()
    flags = np.concatenate([early, late]).reshape(5, 100)[:, 5:95]
    assert [bool(row.all()) for row in flags] == [False, True, True, False, False]
    assert not flags[[0, 3, 4]].any()


class Scripted:
    """In place of the model: speech where the mean of a chunk is positive."""

    def __init__(self, rate: int) -> None:
        self.chunk_samples = rate * 32 // 1000

    def start(self) -> None:
        return None

    def __call__(self, chunks_CS: np.ndarray, state: None) -> tuple[np.ndarray, None]:
        return (chunks_CS.mean(1) > 0).astype(np.float32), None


@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_silero_probabilities_become_frames(monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    monkeypatch.setattr(speech_detection, "load_silero", Scripted)
    signs = np.repeat([-1.0, 1.0, -1.0], [round(0.96 * rate), round(0.64 * rate), round(0.5 * rate)])
    detector = make_detector("silero", 8.0, rate, 0.0)
    results = [detector.push(block.astype(np.float32)) for block in np.array_split(signs, 17)]
    results.append(detector.finish())
    flags = np.concatenate([flags for flags, _ in results])
    energies = np.concatenate([energies for _, energies in results])
    assert len(flags) == len(energies) == 210
    assert flags.nonzero()[0].tolist() == list(range(96, 160))


def test_silero_goes_on_between_its_thresholds() -> None:
    """The package's authors: on above 0.5, off below 0.35."""
    probabilities = np.array([0.4, 0.6, 0.4, 0.5, 0.36, 0.3, 0.4, 0.51])
    flags = apply_hysteresis(probabilities > 0.5, probabilities <= 0.35, was_on=False)
    assert flags.tolist() == [False, True, True, True, True, False, False, True]
    assert apply_hysteresis(probabilities > 0.5, probabilities <= 0.35, was_on=True)[0]


@pytest.mark.parametrize(("threshold", "num_frames"), [(0.3, 64), (0.5, 64), (0.9, 0)])
def test_silero_has_a_threshold(threshold: float, num_frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubtful(Scripted):
        def __call__(self, chunks_CS: np.ndarray, state: None) -> tuple[np.ndarray, None]:
            probabilities_C, state = super().__call__(chunks_CS, state)
            return 0.7 * probabilities_C, state

    monkeypatch.setattr(speech_detection, "load_silero", Doubtful)
    detector = make_detector("silero", 8.0, 8_000, 0.0, threshold)
    signs = np.repeat([-1.0, 1.0, -1.0], [7680, 5120, 4000]).astype(np.float32)
    flags = np.concatenate([detector.push(signs)[0], detector.finish()[0]])
    assert flags.sum() == num_frames


def test_a_recording_does_not_begin_within_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probability between the thresholds ends no speech, but begins none either."""

    class Unsure(Scripted):
        def __call__(self, chunks_CS: np.ndarray, state: None) -> tuple[np.ndarray, None]:
            return np.full(len(chunks_CS), 0.4, np.float32), None

    monkeypatch.setattr(speech_detection, "load_silero", Unsure)
    detector = make_detector("silero", 8.0, 8_000, 0.0)
    flags = np.concatenate([detector.push(np.zeros(8_000, np.float32))[0], detector.finish()[0]])
    assert len(flags) == 100 and not flags.any()


def test_silero_is_taken_where_the_rate_allows_it() -> None:
    assert isinstance(make_detector("auto", 8.0, 8_000, 0.0), SileroDetector)
    assert isinstance(make_detector("auto", 8.0, 16_000, 0.0), SileroDetector)
    assert isinstance(make_detector("auto", 8.0, 22_050, 0.0), EnergyDetector)
    assert isinstance(make_detector("energy", 8.0, 16_000, 0.0), EnergyDetector)
    with pytest.raises(UserError, match="8000 and 16000 Hz, but the model takes 22050"):
        make_detector("silero", 8.0, 22_050, 0.0)
