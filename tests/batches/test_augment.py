"""Augmentation: reproducible, independent of the batch, as strong as configured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings, strategies as st

from asr.batches.augment import Augmenter
from asr.batches.order import hash_names
from asr.data import Utterance, write_manifest
from asr.errors import UserError
from asr.system.run_config import AugmentConfig, NoiseConfig, SpecAugmentConfig

RATE = 16_000
EVERYTHING = AugmentConfig(
    speed=(0.9, 1.0, 1.1),
    noise=NoiseConfig(probability=0.5, kinds=("white", "pink", "brown")),
    spec_augment=SpecAugmentConfig(
        time_warp=5, num_frequency_masks=2, num_time_masks=2, frequency_mask_width=8
    ),
)


def build(config: AugmentConfig, seed: int = 0) -> Augmenter:
    return Augmenter(config, seed, RATE)


def tone(seconds: float = 1.0, hz: float = 440.0) -> np.ndarray:
    return (0.1 * np.sin(2 * np.pi * hz * np.arange(int(RATE * seconds)) / RATE)).astype(np.float32)


def measure_ratio(audio: np.ndarray, speech: np.ndarray) -> float:
    """The ratio of speech and noise in dB."""
    return 10 * np.log10(power(speech) / power(audio - speech))


def power(audio: np.ndarray) -> float:
    return float(np.mean(audio.astype(np.float64) ** 2))


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        (AugmentConfig, {"speed": (0.0, 1.0)}, "0.5 to 2.0"),
        (NoiseConfig, {"snr_db": (20.0, 10.0)}, r"\[low, high\]"),
        (NoiseConfig, {"kinds": ()}, "at least one kind"),
        (NoiseConfig, {"kinds": ("recorded",)}, "recordings"),
        (NoiseConfig, {"recordings": "noise"}, "recordings"),
    ],
)
def test_nonsense_is_refused(section: type, settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        section(**settings)


def test_audio_depends_on_seed_epoch_and_id_only() -> None:
    first, speed = build(EVERYTHING).augment_audio(tone(), "a", epoch=3)
    other = build(EVERYTHING)
    for epoch, name in [(0, "b"), (3, "c"), (1, "a")]:  # earlier calls leave no trace
        other.augment_audio(tone(), name, epoch)
    again, speed_again = other.augment_audio(tone(), "a", epoch=3)
    assert np.array_equal(first, again) and speed == speed_again
    noisy = EVERYTHING.model_copy(update={"noise": NoiseConfig(probability=1.0)})
    heard = [(0, 3, "a"), (1, 3, "a"), (0, 4, "a"), (0, 3, "b")]
    noises = [build(noisy, seed).augment_audio(tone(), *rest[::-1])[0] for seed, *rest in heard]
    assert len({noise.tobytes() for noise in noises}) == 4


def test_stages_do_not_disturb_each_other() -> None:
    """Disabling one stage does not change what the others draw."""
    slower, noisier = AugmentConfig(speed=EVERYTHING.speed), AugmentConfig(noise=EVERYTHING.noise)
    for name in "abcdefgh":
        full, speed = build(EVERYTHING).augment_audio(tone(), name, 0)
        plain, speed_alone = build(slower).augment_audio(tone(), name, 0)
        noise = build(noisier).augment_audio(tone(), name, 0)[0] - tone()
        assert speed == speed_alone and noise.any() == (full - plain).any()


def test_speeds_are_known_before_the_audio_is_read() -> None:
    augmenter, names = build(EVERYTHING), [f"utterance-{number}" for number in range(30)]
    planned = augmenter.choose_speeds(hash_names(names), epoch=2)
    assert planned.tolist() == [augmenter.augment_audio(tone(0.1), name, 2)[1] for name in names]


@pytest.mark.parametrize("speed", [0.5, 0.9, 1.1, 2.0])
def test_speed_changes_duration_and_pitch(speed: float) -> None:
    audio, applied = build(AugmentConfig(speed=(speed,))).augment_audio(tone(2.0), "a", 0)
    assert applied == speed
    assert abs(len(audio) - 2 * RATE / speed) <= 1
    loudest = np.abs(np.fft.rfft(audio * np.hanning(len(audio)))).argmax() * RATE / len(audio)
    assert loudest == pytest.approx(440 * speed, abs=1)


@pytest.mark.parametrize("kind", ["white", "pink", "brown"])
def test_noise_has_a_ratio_within_the_limits(kind: str) -> None:
    config = AugmentConfig(noise=NoiseConfig(probability=1.0, snr_db=(-5.0, 25.0), kinds=(kind,)))
    ratios = []
    for name in (f"utterance-{n}" for n in range(200)):
        audio, _ = build(config).augment_audio(tone(0.1), name, 0)
        assert audio.dtype == np.float32 and len(audio) == RATE // 10
        ratios.append(measure_ratio(audio, tone(0.1)))
    assert -5.01 <= min(ratios) < 0 and 20 < max(ratios) <= 25.01
    assert np.mean(ratios) == pytest.approx(10, abs=2)


@pytest.mark.parametrize(("kind", "decibels_per_octave"), [("white", 0.0), ("pink", -3.01), ("brown", -6.02)])
def test_noise_has_the_color_of_its_kind(kind: str, decibels_per_octave: float) -> None:
    config = AugmentConfig(noise=NoiseConfig(probability=1.0, snr_db=(0.0, 0.0), kinds=(kind,)))
    audio, _ = build(config).augment_audio(tone(16.0), "a", 0)
    spectrum = np.abs(np.fft.rfft(audio - tone(16.0))) ** 2
    octaves = [10 * np.log10(spectrum[2**k : 2 ** (k + 1)].mean()) for k in range(9, 17)]  # from 32 Hz on
    assert np.polyfit(range(len(octaves)), octaves, 1)[0] == pytest.approx(decibels_per_octave, abs=0.15)


def recorded(path: Path) -> AugmentConfig:
    noise = NoiseConfig(probability=1.0, snr_db=(0.0, 0.0), kinds=("recorded",), recordings=str(path))
    return AugmentConfig(noise=noise)


@pytest.mark.parametrize("seconds", [0.3, 5.0])
def test_recorded_noise(tmp_path: Path, seconds: float) -> None:
    """A longer recording gives an excerpt, a shorter one is repeated; silence is not counted as noise."""
    soundfile.write(tmp_path / "hum.wav", tone(seconds, hz=100.0), RATE)
    soundfile.write(tmp_path / "silence.wav", np.zeros(RATE), RATE)
    for name, length in (("hum", seconds), ("silence", 1.0)):
        item = Utterance(id=name, audio=str(tmp_path / f"{name}.wav"), duration=length)
        write_manifest(tmp_path / f"{name}.jsonl", [item])
    audio, _ = build(recorded(tmp_path / "hum.jsonl")).augment_audio(tone(hz=3000.0), "a", 0)
    noise = audio - tone(hz=3000.0)
    assert power(noise) == pytest.approx(power(tone()), rel=1e-3)
    assert np.abs(np.fft.rfft(noise)).argmax() == pytest.approx(100, abs=2)
    silent = build(recorded(tmp_path / "silence.jsonl"))
    assert np.array_equal(silent.augment_audio(tone(), "a", 0)[0], tone())


def test_problems_of_recordings_name_them(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for name in ("empty", "missing"):
        with pytest.raises(UserError, match=rf"{name}\.jsonl"):
            build(recorded(tmp_path / f"{name}.jsonl"))


@settings(max_examples=25)
@given(
    seconds=st.floats(0.05, 0.6),
    level=st.floats(1e-4, 1.0),
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    epoch=st.integers(0, 10**6),
)
def test_any_audio_stays_finite(seconds: float, level: float, name: str, epoch: int) -> None:
    audio = (level * tone(seconds)).astype(np.float32)
    augmented, speed = build(EVERYTHING).augment_audio(audio, name, epoch)
    assert augmented.dtype == np.float32 and np.isfinite(augmented).all()
    assert abs(len(augmented) - len(audio) / speed) <= 1


def test_noise_comes_as_often_as_configured() -> None:
    augmenter = build(AugmentConfig(noise=NoiseConfig(probability=0.3)))
    heard = (augmenter.augment_audio(tone(0.02), f"utterance-{n}", 0)[0] for n in range(2000))
    assert np.mean([not np.array_equal(audio, tone(0.02)) for audio in heard]) == pytest.approx(0.3, abs=0.04)
