"""Windows of audio, padded with the silence that Whisper was trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.decoding.hypothesis import EncodedAudio
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.models.layers import length_mask
from asr.models.speech_model import SpeechModel
from asr.system.system import System
from asr.whisper.encoder_decoder import WhisperEncoder, count_rows, place_silence
from asr.whisper.family import WhisperEncoderConfig
from asr.whisper.sizes import FRAMES_PER_STEP, MAX_STEPS, WhisperSizes

# B batch, S samples, T frames or encoded steps, F features, D dimension

ROUND_SECONDS = 0.5  # windows are padded to a multiple, so that many clips have windows of equal length
PADDED_SECONDS = (4.0, 8.0, 16.0, 21.0, 24.0)  # lengths of encoded windows that are decoded together


class Silence(NamedTuple):
    """Silence after the audio: all steps for `seconds`, then one in `stride` steps up to 30 s."""

    seconds: float
    stride: int | None


# Keyed by width and whether multilingual: tiny, base and base.en, as accurate without (docs/benchmarks.md).
SILENCES = {(384, True): Silence(1.0, 8), (512, True): Silence(1.0, 8), (512, False): Silence(1.0, 16)}


@dataclass(frozen=True)
class Windows:
    """Encodes audio in windows."""

    sizes: WhisperSizes
    front_end: FrontEnd
    model: SpeechModel
    silence: Silence

    @classmethod
    def of(cls, system: System) -> Windows:
        """Use the silence that the model size needs, up to 30 s; fine-tuned models learned without."""
        sizes = find_sizes(system)
        known = SILENCES.get((sizes.dim, sizes.is_multilingual), Silence(math.inf, None))
        silence = known if system.is_published else Silence(0.0, None)
        return cls(sizes, system.front_end, system.model, silence)

    @property
    def samples_per_step(self) -> int:
        return FRAMES_PER_STEP * self.front_end.config.shift_samples

    @property
    def uncut_samples(self) -> int:
        """Number of samples in the longest window, 30 seconds."""
        return self.sizes.max_steps * self.samples_per_step

    def count_window_samples(self, num_samples: int) -> int:
        """Return the number of samples in a window, audio and silence, for this many samples of audio."""
        sample_rate, whole = self.front_end.config.sample_rate, self.uncut_samples
        if num_samples > whole:
            raise UserError(
                f"{num_samples / sample_rate:.2f} seconds of audio, but a window has at most "
                f"{whole / sample_rate:g}; cut longer recordings"
            )
        unit = round(ROUND_SECONDS * sample_rate)
        padded = min(whole, num_samples + self.silence.seconds * sample_rate)
        return min(whole, max(1, math.ceil(padded / unit)) * unit)

    def count_padded_samples(self, num_samples: int) -> int:
        """Return the number of samples that a window is padded to for decoding together with others."""
        window, whole = self.count_window_samples(num_samples), self.uncut_samples
        if self.silence.stride is None:
            return window
        sizes = [round(seconds * self.front_end.config.sample_rate) for seconds in PADDED_SECONDS]
        return next((size for size in sizes if window <= size < whole), whole)

    def compute_features(self, audio_BS: Tensor, audio_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log-mel features of audio and silence, padded to what the longest audio needs."""
        longest = int(audio_lengths_B.max())
        window = self.count_window_samples(longest)
        audio_BS = audio_BS[:, :longest] * length_mask(audio_lengths_B, longest)
        lengths_B = audio_lengths_B if not self.silence.seconds else torch.full_like(audio_lengths_B, window)
        return self.front_end(F.pad(audio_BS, (0, window - longest)), lengths_B)

    @torch.inference_mode()
    def encode(self, audio_BS: Tensor, audio_lengths_B: Tensor) -> EncodedAudio:
        """Encode windows; with a silence stride, each is encoded at its own length and then padded."""
        stride, max_steps, lengths = self.silence.stride, self.sizes.max_steps, audio_lengths_B.tolist()
        if stride is None:
            return EncodedAudio(self.model, *self._encode_whole(audio_BS, audio_lengths_B))
        num_steps = self.count_padded_samples(max(lengths)) // self.samples_per_step
        num_steps += len(place_silence(num_steps, max_steps, stride, audio_BS.device)[0])
        encoded_BTD = torch.zeros(len(lengths), num_steps, self.sizes.dim, device=audio_BS.device)
        bias_BT = torch.full_like(encoded_BTD[..., 0], -torch.inf)
        encoder = cast(WhisperEncoder, self.model.encoder)
        for row in range(len(lengths)):
            features_1TF, _ = self.compute_features(audio_BS[row : row + 1], audio_lengths_B[row : row + 1])
            x_1SD, bias_1S = encoder.encode_with_silence(features_1TF, stride)
            encoded_BTD[row, : x_1SD.size(1)], bias_BT[row, : x_1SD.size(1)] = x_1SD[0], bias_1S[0]
        return EncodedAudio(self.model, encoded_BTD, torch.full_like(audio_lengths_B, max_steps), bias_BT)

    def _encode_whole(self, audio_BS: Tensor, audio_lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        features_BTF, lengths_B = self.compute_features(audio_BS, audio_lengths_B)
        count = count_rows(features_BTF, FRAMES_PER_STEP * MAX_STEPS)
        parts = zip(features_BTF.split(count), lengths_B.split(count), strict=True)
        encoded, lengths = zip(*(self.model.encode(*part) for part in parts), strict=True)
        return torch.cat(encoded), torch.cat(lengths)


def find_sizes(system: System) -> WhisperSizes:
    encoder = cast(WhisperEncoderConfig, cast(Any, system.config.model).encoder)
    assert encoder.sizes is not None
    return encoder.sizes
