"""Steps of the front end on padded batches, in which an utterance's result does not depend on the padding.

Shapes: B utterances, S samples, T frames, F features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator

from asr.config import Config
from asr.errors import UserError

MIN_DEVIATION = 1e-3  # in CMVN; a feature that never changes stays finite


def check_audio(audio_BS: torch.Tensor, audio_lengths_B: torch.Tensor) -> None:
    assert audio_BS.dim() == 2 and audio_BS.dtype == torch.float32, (audio_BS.shape, audio_BS.dtype)
    assert audio_lengths_B.shape == audio_BS.shape[:1], (audio_lengths_B.shape, audio_BS.shape)
    assert audio_lengths_B.dtype == torch.int64, audio_lengths_B.dtype
    if audio_lengths_B.device.type == "cpu" and len(audio_lengths_B):
        shortest, longest = audio_lengths_B.min().item(), audio_lengths_B.max().item()
        assert 0 <= shortest <= longest <= audio_BS.shape[1], (shortest, longest, audio_BS.shape)


def split_batch(
    feature_lengths_B: torch.Tensor, num_frames: int, max_rows: int
) -> Iterator[tuple[slice, slice]]:
    """(utterances, frames) of rectangles that cover all valid frames, each of at most max_rows frames."""
    num_utterances = len(feature_lengths_B)
    on_cpu = feature_lengths_B.device.type == "cpu"  # to look at the lengths on a GPU would wait for it
    lengths = feature_lengths_B.tolist() if on_cpu else [num_frames] * num_utterances
    utterances_at_once = max(1, max_rows // num_frames)
    for first in range(0, num_utterances, utterances_at_once):
        utterances = slice(first, min(first + utterances_at_once, num_utterances))
        longest = max(lengths[utterances])
        frames_at_once = math.ceil(longest / math.ceil(longest / max_rows)) if longest else 1
        for start in range(0, longest, frames_at_once):
            yield utterances, slice(start, min(start + frames_at_once, longest))


def valid_frames(features_BTF: torch.Tensor, feature_lengths_B: torch.Tensor) -> torch.Tensor:
    time_T = torch.arange(features_BTF.shape[1], device=features_BTF.device)
    return (time_T < feature_lengths_B[:, None])[:, :, None]


def speech_spans(features_BTF: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """(B, 2): the first and one past the last loud frame.

    Loud is what lies over 40 % of the way from the utterance's quietest frame to its 95th percentile. For
    log-mel features, where a mean over bins is a loudness.
    """
    mask_BT = valid_frames(features_BTF, lengths_B.clamp(min=1))[..., 0]
    loudness_BT = features_BTF.float().mean(-1)
    quietest_B1 = loudness_BT.masked_fill(~mask_BT, torch.inf).amin(1, keepdim=True)
    ascending_BT = loudness_BT.masked_fill(~mask_BT, torch.inf).sort(dim=1).values
    loud_B1 = ascending_BT.gather(1, (0.95 * (lengths_B.clamp(min=1) - 1)).long()[:, None])
    is_loud_BT = mask_BT & (loudness_BT >= quietest_B1 + 0.4 * (loud_B1 - quietest_B1))
    frames_T = torch.arange(features_BTF.size(1), device=features_BTF.device)
    first_B = frames_T.expand_as(is_loud_BT).masked_fill(~is_loud_BT, features_BTF.size(1)).amin(1)
    last_B = frames_T.expand_as(is_loud_BT).masked_fill(~is_loud_BT, -1).amax(1)
    return torch.stack([first_B, last_B + 1], dim=1).float()


def zero_padding(features_BTF: torch.Tensor, feature_lengths_B: torch.Tensor) -> torch.Tensor:
    """Write zeros past each utterance's length, in place."""
    if features_BTF.device.type != "cpu":
        return features_BTF.masked_fill_(~valid_frames(features_BTF, feature_lengths_B), 0.0)
    for features_TF, length in zip(features_BTF, feature_lengths_B.tolist(), strict=True):
        features_TF[length:] = 0.0  # a fraction of the time of a mask over everything
    return features_BTF


def add_noise(
    audio_BS: torch.Tensor,
    audio_lengths_B: torch.Tensor,
    generators: Sequence[torch.Generator],
    deviation: float,
) -> torch.Tensor:
    audio_BS = audio_BS.clone()
    for audio_S, length, generator in zip(audio_BS, audio_lengths_B.tolist(), generators, strict=True):
        noise_S = torch.randn(length, generator=generator, device=generator.device)
        audio_S[:length] += deviation * noise_S.to(audio_S.device)
    return audio_BS


def mirror_ends(audio_BS: torch.Tensor, audio_lengths_B: torch.Tensor, margin: int) -> torch.Tensor:
    """`margin` samples before and after each utterance, mirrored at its own first and last sample."""
    mirrored_BS = F.pad(audio_BS, (margin, margin))
    mirrored_BS[:, :margin] = audio_BS[:, 1 : margin + 1].flip(1)
    last_B1 = audio_lengths_B.to(audio_BS.device)[:, None] - 1
    distance_S = torch.arange(1, margin + 1, device=audio_BS.device)
    # An utterance of fewer samples has no frames; the limit only keeps its indices inside the batch.
    source_BS = (last_B1 - distance_S).clamp(min=0)
    return mirrored_BS.scatter_(1, last_B1 + margin + distance_S, audio_BS.gather(1, source_BS))


def scale_like_whisper(log_mel_BTM: torch.Tensor, feature_lengths_B: torch.Tensor) -> torch.Tensor:
    """Cut 80 dB below each utterance's loudest band, then bring speech to about [-1, 1]."""
    padding_BT1 = ~valid_frames(log_mel_BTM, feature_lengths_B)
    loudest_B11 = log_mel_BTM.masked_fill(padding_BT1, -math.inf).amax(dim=(1, 2), keepdim=True)
    return torch.maximum(log_mel_BTM, loudest_B11 - 8.0).add_(4.0).div_(4.0)


def append_deltas(features_BTF: torch.Tensor, feature_lengths_B: torch.Tensor, order: int) -> torch.Tensor:
    """Kaldi's deltas up to `order` behind the features; each utterance's first and last frame repeat."""
    num_utterances, num_frames, _ = features_BTF.shape
    if num_frames == 0:
        return features_BTF.repeat(1, 1, 1 + order)
    reach = 2 * order
    position_T = torch.arange(-reach, num_frames + reach, device=features_BTF.device)
    position_BT = torch.minimum(position_T, feature_lengths_B[:, None] - 1).clamp_(min=0)
    row_BT = position_BT + num_frames * torch.arange(num_utterances, device=features_BTF.device)[:, None]
    extended_BTF = features_BTF.flatten(0, 1)[row_BT]
    filters = [np.array([1.0])]
    for _ in range(order):  # Kaldi's second order is the first applied twice, before frames are repeated
        filters.append(np.convolve(filters[-1], np.arange(-2, 3) / 10))
    blocks = [features_BTF]
    for taps in filters[1:]:
        delta_BTF = torch.zeros_like(features_BTF)
        for offset, tap in enumerate(taps, start=reach - len(taps) // 2):
            delta_BTF.add_(extended_BTF[:, offset : offset + num_frames], alpha=float(tap))
        blocks.append(delta_BTF)
    return torch.cat(blocks, dim=2)


def normalize_each(features_BTF: torch.Tensor, feature_lengths_B: torch.Tensor) -> torch.Tensor:
    """Each utterance to mean 0 and deviation 1, feature by feature; padding must be zeros."""
    count_B11 = feature_lengths_B.clamp(min=1)[:, None, None]
    centred_BTF = features_BTF - _sum_over_time(features_BTF) / count_B11
    centred_BTF = zero_padding(centred_BTF, feature_lengths_B)
    variance_B1F = _sum_over_time(centred_BTF.square()) / count_B11
    return centred_BTF / variance_B1F.sqrt().clamp(min=MIN_DEVIATION)


def _sum_over_time(features_BTF: torch.Tensor) -> torch.Tensor:
    """Sum in blocks of a fixed size, then block after block: zeros at the end do not change the rounding."""
    num_frames = features_BTF.shape[1]
    if num_frames == 0:
        return features_BTF.sum(dim=1, keepdim=True)
    blocks_BTTF = F.pad(features_BTF, (0, 0, 0, -num_frames % 64)).unflatten(1, (-1, 64))
    return blocks_BTTF.sum(dim=2).cumsum(dim=1)[:, -1:]


# --- statistics


class ReductionConfig(Config):
    """Fewer, decorrelated features: projection on the directions that explain most of the variance."""

    type: Literal["none", "pca", "smart_pca"] = "none"
    """`pca`: eigenvectors of the covariance. `smart_pca`: their subspace, learnt by a linear autoencoder."""
    dim: int | None = Field(default=None, ge=1)
    """Number of features that are kept; only with a type other than `none`."""

    @model_validator(mode="after")
    def _check_dim(self) -> ReductionConfig:
        if self.type == "none" and self.dim is not None:
            raise ValueError(
                f"type is none, but dim is {self.dim}: set type to pca or smart_pca, or remove dim"
            )
        if self.type != "none" and self.dim is None:
            raise ValueError(f"type is {self.type}, but dim is missing: set how many features to keep")
        return self


class Moments:
    """Count, mean and covariance of feature vectors, in float64 and in one pass over the batches."""

    def __init__(self, num_features: int) -> None:
        self.count = 0
        self._mean_F = torch.zeros(num_features, dtype=torch.float64)
        self._scatter_FF = torch.zeros(num_features, num_features, dtype=torch.float64)

    @torch.no_grad()
    def update(self, features_BTF: torch.Tensor, feature_lengths_B: torch.Tensor) -> None:
        """Take in a padded batch; frames past an utterance's length do not count."""
        is_valid_BT = valid_frames(features_BTF, feature_lengths_B.to(features_BTF.device))[..., 0]
        frames_NF = features_BTF[is_valid_BT].to("cpu", torch.float64)
        added = len(frames_NF)
        if added == 0:
            return
        # Each batch is centred on its own mean before the two are merged: sums of raw squares would
        # cancel where a mean is large beside its deviation.
        mean_F = frames_NF.mean(dim=0)
        centred_NF = frames_NF - mean_F
        difference_F = mean_F - self._mean_F
        total = self.count + added
        self._scatter_FF += centred_NF.T @ centred_NF
        self._scatter_FF += torch.outer(difference_F, difference_F) * (self.count * added / total)
        self._mean_F += difference_F * (added / total)
        self.count = total

    @property
    def mean_F(self) -> torch.Tensor:
        self._require_frames()
        return self._mean_F.clone()

    @property
    def covariance_FF(self) -> torch.Tensor:
        self._require_frames()
        return self._scatter_FF / self.count

    @property
    def std_F(self) -> torch.Tensor:
        return self.covariance_FF.diagonal().sqrt()

    def _require_frames(self) -> None:
        if self.count == 0:
            raise UserError(
                "no feature frames to learn from: there was no audio, or none as long as one window, or it "
                "came from a generator that was used up; give a list or a DataLoader of audio"
            )


def accumulate_moments(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Moments:
    """The moments of all (features_BTF, feature_lengths_B) of an iterable, of which one is held at a time."""
    moments: Moments | None = None
    for features_BTF, feature_lengths_B in batches:
        if moments is None:
            moments = Moments(features_BTF.shape[-1])
        moments.update(features_BTF, feature_lengths_B)
    return moments or Moments(num_features=0)


@dataclass(frozen=True)
class Subspace:
    """A mean and K orthonormal directions: features reduce to (x - mean) @ directions."""

    mean_F: torch.Tensor
    directions_FK: torch.Tensor
