"""The kinds of model there are, and `build_model`, which makes the one that a config describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asr.config import choose_by_type
from asr.models.label_model import (
    FrameLabelsConfig,
    FrameLabelsModel,
    RecordingLabelConfig,
    RecordingLabelModel,
)
from asr.models.language_model import LanguageModel, LanguageModelConfig
from asr.models.model import Model, ModelConfig
from asr.models.multi_speaker import MultiSpeakerConfig, MultiSpeakerModel
from asr.models.speech_model import SpeechModel, SpeechModelConfig

# The only table from the type in a config to a class; nothing in the training loop names a kind.
MODELS: dict[type[ModelConfig], Callable[[Any, int, int], Model]] = {
    SpeechModelConfig: SpeechModel,
    LanguageModelConfig: LanguageModel,
    RecordingLabelConfig: RecordingLabelModel,
    FrameLabelsConfig: FrameLabelsModel,
    MultiSpeakerConfig: MultiSpeakerModel,
}

if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:
    AnyModelConfig = choose_by_type(MODELS, default="speech")


def build_model(config: ModelConfig, num_features: int, vocab_size: int) -> Model:
    """The model with fresh random weights; seed torch before for the same ones."""
    return MODELS[type(config)](config, num_features, vocab_size)
