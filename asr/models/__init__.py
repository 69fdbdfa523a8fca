"""Models: the kinds there are, and `build_model`, which makes the one that a config describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pydantic

from asr.config import Config
from asr.models.label_model import (
    FrameLabelsConfig,
    FrameLabelsModel,
    LabelModel,
    RecordingLabelConfig,
    RecordingLabelModel,
)
from asr.models.language_model import LanguageModel, LanguageModelConfig
from asr.models.model import Model
from asr.models.speech_model import SpeechModel, SpeechModelConfig


def _type_of(section: Any) -> str:
    """speech where no type is given."""
    given = section.get("type") if isinstance(section, dict) else getattr(section, "type", None)
    return "speech" if given is None else str(given)


ModelConfig = Annotated[
    Annotated[SpeechModelConfig, pydantic.Tag("speech")]
    | Annotated[LanguageModelConfig, pydantic.Tag("language")]
    | Annotated[RecordingLabelConfig, pydantic.Tag("recording_label")]
    | Annotated[FrameLabelsConfig, pydantic.Tag("frame_labels")],
    pydantic.Discriminator(_type_of),
]

# A new kind of model stands here, in the union above, and nowhere in the training loop.
MODELS: dict[type[Config], Callable[[Any, int, int], Model]] = {
    SpeechModelConfig: SpeechModel,
    LanguageModelConfig: LanguageModel,
    RecordingLabelConfig: RecordingLabelModel,
    FrameLabelsConfig: FrameLabelsModel,
}


def build_model(config: ModelConfig, num_features: int, vocab_size: int) -> Model:
    """The model with fresh random weights; seed torch before for the same ones."""
    return MODELS[type(config)](config, num_features, vocab_size)


__all__ = [
    "FrameLabelsConfig",
    "FrameLabelsModel",
    "LabelModel",
    "LanguageModel",
    "LanguageModelConfig",
    "Model",
    "ModelConfig",
    "RecordingLabelConfig",
    "RecordingLabelModel",
    "SpeechModel",
    "SpeechModelConfig",
    "build_model",
]
