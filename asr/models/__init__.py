"""Models of speech: `build_model` makes the one that a config describes."""

from __future__ import annotations

from asr.models.speech_model import SpeechModel, SpeechModelConfig


def build_model(config: SpeechModelConfig, num_features: int, vocab_size: int) -> SpeechModel:
    """The model with fresh random weights; seed torch before for the same ones."""
    return SpeechModel(config, num_features, vocab_size)


__all__ = ["SpeechModel", "SpeechModelConfig", "build_model"]
