"""asr/export/numpy_features: what the front end in PyTorch computes, for every setting and length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from asr.export.numpy_features import NumpyFrontEnd
from asr.features.filters import FeaturesConfig
from asr.features.front_end import FrontEnd

SETTINGS = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["log_mel", "mfcc"]),
            "sample_rate": st.sampled_from([8_000, 16_000, 22_050]),
            "window_ms": st.floats(20, 40),
            "shift_ms": st.floats(5, 20),
            "num_mels": st.integers(13, 32),
            "num_ceps": st.integers(1, 13),
        }
    ),
    st.fixed_dictionaries({"convention": st.just("icefall"), "num_mels": st.integers(13, 80)}),
    st.fixed_dictionaries({"convention": st.just("whisper"), "num_mels": st.sampled_from([80, 128])}),
    st.fixed_dictionaries({"type": st.just("samples"), "sample_rate": st.sampled_from([8_000, 16_000])}),
)


def make_audio(seed: int, num_samples: int, level: float) -> np.ndarray:
    """Noise, the first quarter of which is digital silence."""
    audio_S = np.random.default_rng(seed).normal(scale=level, size=num_samples).astype(np.float32)
    audio_S[: num_samples // 4] = 0
    return audio_S


def scale_of(config: FeaturesConfig) -> float:
    return 1.0 if config.convention == "whisper" or config.type == "samples" else 32_768.0


@settings(deadline=None)
@given(SETTINGS, st.integers(0, 20_000), st.sampled_from([1e-3, 0.1]), st.integers(0, 99))
def test_as_in_pytorch(values: dict[str, Any], num_samples: int, level: float, seed: int) -> None:
    """Within the rounding of float32. Of both, numpy's are mostly nearer to what float64 gives."""
    config = FeaturesConfig(**values, cmvn="none")
    audio_S = make_audio(seed, num_samples, level)
    expected_BTF, (length,) = FrontEnd(config)(torch.from_numpy(audio_S)[None], torch.tensor([num_samples]))
    found_TF = NumpyFrontEnd(config, scale_of(config))(audio_S)
    assert found_TF.dtype == np.float32 and found_TF.shape == (int(length), config.num_features)
    if found_TF.size:
        differences_TF = np.abs(found_TF - expected_BTF[0].numpy())
        assert differences_TF.mean() < 5e-5 and np.quantile(differences_TF, 0.999) < 1e-3


def test_speech_differs_by_less_than_a_ten_thousandth() -> None:
    """A voice, as far as features go: harmonics of 120 Hz, which fade, and a little noise."""
    time_S = np.arange(32_000) / 16_000
    voice_S = sum(np.sin(2 * np.pi * 120 * k * time_S) / k for k in range(1, 50)) * np.sin(3 * time_S) ** 2
    noise_S = np.random.default_rng(0).normal(scale=0.003, size=32_000)
    audio_S = (0.1 * voice_S + noise_S).astype(np.float32)
    config = FeaturesConfig(cmvn="none")
    expected_BTF, _ = FrontEnd(config)(torch.from_numpy(audio_S)[None], torch.tensor([len(audio_S)]))
    np.testing.assert_allclose(
        NumpyFrontEnd(config, 32_768)(audio_S), expected_BTF[0].numpy(), rtol=0, atol=1e-4
    )


def test_samples_from_minus_one_to_one() -> None:
    """Where the graph expects them so, energies are smaller by the square of the scale."""
    config, audio_S = FeaturesConfig(), make_audio(1, 16_000, 0.1)
    small_TF, large_TF = (NumpyFrontEnd(config, scale)(audio_S)[40:] for scale in (1.0, 32_768.0))
    np.testing.assert_allclose(large_TF - small_TF, 2 * np.log(32_768), rtol=0, atol=1e-3)


def test_every_setting_is_known() -> None:
    """A new one changes what the front end computes, so `NumpyFrontEnd` has to follow."""
    known = {"convention", "type", "sample_rate", "window_ms", "shift_ms", "num_mels", "num_ceps", "cmvn"}
    assert set(FeaturesConfig.model_fields) == known
