"""Features of samples as they come: to the bit what the front end makes of the whole recording."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from asr.features.filters import ICEFALL_FLOOR
from asr.features.front_end import FrontEnd, normalize_running, start_statistics

# S samples, T frames, F features


class LiveFeatures:
    """The front end of one session. It keeps the samples that the next frame begins with."""

    def __init__(self, front_end: FrontEnd) -> None:
        self._config = front_end.config
        assert self._config.cmvn != "utterance" and self._config.convention != "whisper"
        self._front_end = copy.copy(front_end)  # with the same tables
        self._front_end.config = self._config.model_copy(update={"cmvn": "none", "convention": "kaldi"})
        self._is_icefall = self._config.convention == "icefall"
        # Samples before the first one, which mirror those after it as soon as they are there.
        self._num_before = (self._config.window_samples - self._config.shift_samples) // 2 * self._is_icefall
        self._rest_S = torch.zeros(0, device=front_end.mel_KM.device)
        self._statistics_B3F = start_statistics(self._rest_S.new_zeros(1, 0, front_end.num_features))

    def push(self, samples_S: Tensor) -> Tensor:
        """The frames (T, F) that end in these samples."""
        audio_S = torch.cat([self._rest_S, samples_S])
        if 0 < self._num_before <= len(audio_S):
            audio_S = torch.cat([audio_S[: self._num_before].flip(0), audio_S])
            self._num_before = 0
        features_BTF, lengths_B = self._front_end(audio_S[None], torch.tensor([len(audio_S)]))
        self._rest_S = audio_S[int(lengths_B) * self._config.shift_samples :]
        if self._is_icefall:
            features_BTF.clamp_(min=math.log(ICEFALL_FLOOR))
        if self._config.cmvn == "running":
            features_BTF, self._statistics_B3F = normalize_running(features_BTF, self._statistics_B3F)
        return features_BTF[0]
