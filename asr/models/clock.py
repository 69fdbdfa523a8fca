"""Map encoder steps and feature frames to seconds of audio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asr.features.front_end import FeaturesConfig
from asr.models.label_model import LabelModel
from asr.models.speech_model import SpeechModel


@dataclass(frozen=True)
class Clock:
    """Times of evenly spaced steps, in seconds of the audio."""

    first: float
    """Seconds from the first sample to the middle of what step 0 sees."""
    seconds_per_step: float

    def times(self, num_steps: int) -> np.ndarray:
        """Times of the first steps."""
        return self.first + self.seconds_per_step * np.arange(num_steps)

    def time(self, step: float) -> float:
        return self.first + step * self.seconds_per_step


def make_frame_clock(features: FeaturesConfig) -> Clock:
    """Clock of the frames that an encoder reads."""
    # Kaldi's first window begins at the first sample, Whisper's is centred there.
    middle = 0.0 if features.convention == "whisper" else features.window_samples / features.sample_rate / 2
    return Clock(middle, features.shift_samples / features.sample_rate)


def make_clock(features: FeaturesConfig, model: SpeechModel | LabelModel) -> Clock:
    """Clock of the steps that the model's encoder makes."""
    frame = make_frame_clock(features)
    return Clock(
        frame.time(model.encoder.first_frame), frame.seconds_per_step * model.encoder.subsampling_factor
    )
