"""SpecAugment on padded batches: time warp and masks over frequency and time, drawn for each utterance.

Shapes: B utterances, T frames, F features, M masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pydantic
import torch
from torch import Tensor

from asr.batches.seeding import random_stream
from asr.config import Config
from asr.features.padded import speech_spans, valid_frames


class SpecAugmentConfig(Config):
    """Masks and time warp on the features (Park et al. 2019, arXiv 1904.08779).

    Masked cells have the mean of the utterance over frames and features.
    """

    time_warp: int = pydantic.Field(default=0, ge=0)
    """Greatest shift of a point of the utterance, in frames; 0: no warp. Utterances shorter than twice this
    plus 3 frames stay as they are."""
    num_frequency_masks: int = pydantic.Field(default=0, ge=0, le=100)
    """Bands of features that are masked in each utterance; they may overlap."""
    frequency_mask_width: int = pydantic.Field(default=27, ge=1)
    """Greatest width of a band, in features; the width is drawn evenly from 0 to this."""
    num_time_masks: int = pydantic.Field(default=0, ge=0, le=1000)
    """Stretches of frames that are masked in each utterance; with `time_masks_per_frame` the upper limit."""
    time_masks_per_frame: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Adapts the number of time masks to the utterance: this times its frames; 0: `num_time_masks` for all.
    LibriFullAdapt (Park et al. 2020, arXiv 1912.05533): 0.04, at most 20 masks, time_mask_share 0.04."""
    time_mask_width: int | None = pydantic.Field(default=None, ge=1)
    """Greatest width of a stretch in frames; null: only `time_mask_share` limits it."""
    time_mask_share: float = pydantic.Field(default=0.2, gt=0, le=1)
    """Greatest width of a stretch as a share of the frames of the utterance."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> SpecAugmentConfig:
        if self.time_masks_per_frame and not self.num_time_masks:
            raise ValueError("time_masks_per_frame needs num_time_masks, the upper limit, which is 0")
        self.refuse_idle(self.num_frequency_masks > 0, "num_frequency_masks", "frequency_mask_width")
        self.refuse_idle(self.num_time_masks > 0, "num_time_masks", "time_mask_width", "time_mask_share")
        return self

    @property
    def is_on(self) -> bool:
        return bool(self.time_warp or self.num_frequency_masks or self.num_time_masks)


class Masked(NamedTuple):
    """Masks of one utterance."""

    time_warp: int  # shift in frames
    time_masked: float  # share of the frames
    frequency_masked: float  # share of the features


class SpecAugment:
    """SpecAugment; what it draws depends on seed, epoch, id and length of an utterance alone."""

    def __init__(self, config: SpecAugmentConfig, seed: int) -> None:
        self._config = config
        self._seed = seed

    def apply(
        self,
        features_BTF: Tensor,
        feature_lengths_B: Tensor,
        ids: Sequence[str],
        epoch: int,
    ) -> tuple[Tensor, list[Masked], Tensor]:
        """Warp, find the spans of speech, then mask. Padding stays as it is."""
        num_frames, num_features = features_BTF.shape[1:]
        lengths = feature_lengths_B.tolist()
        rows = list(zip(ids, lengths, strict=True))
        warps_B2 = np.array([self._draw_warp(*row, epoch) for row in rows])
        time_masks = [self._draw_time_masks(*row, epoch) for row in rows]
        bands = [self._draw_bands(name, num_features, epoch) for name in ids]

        valid_BT1 = valid_frames(features_BTF, feature_lengths_B)
        fill_B11 = _mean(features_BTF, valid_BT1)
        features_BTF = warp_time(features_BTF, feature_lengths_B, warps_B2)
        spans_B2 = speech_spans(features_BTF, feature_lengths_B)
        time_mask_BT = build_mask(time_masks, num_frames).to(features_BTF.device)
        band_mask_BF = build_mask(bands, num_features).to(features_BTF.device)
        mask_BTF = (time_mask_BT[:, :, None] | band_mask_BF[:, None, :]) & valid_BT1
        features_BTF = torch.where(mask_BTF, fill_B11, features_BTF)

        time_masked = (time_mask_BT.sum(1) / feature_lengths_B.clamp(min=1)).tolist()
        frequency_masked = band_mask_BF.float().mean(1).tolist()
        shares = zip(warps_B2[:, 1].tolist(), time_masked, frequency_masked, strict=True)
        return features_BTF, [Masked(*share) for share in shares], spans_B2

    def _draw_warp(self, utterance_id: str, length: int, epoch: int) -> tuple[int, int]:
        """A frame and its shift. Both ends of the utterance stay in place, so the frame keeps off them."""
        limit = self._config.time_warp
        if not limit or length < 2 * limit + 3:
            return 0, 0
        stream = random_stream(self._seed, epoch, "time_warp", utterance_id)
        return int(stream.integers(limit + 1, length - limit - 1)), int(stream.integers(-limit, limit + 1))

    def _draw_time_masks(self, utterance_id: str, length: int, epoch: int) -> np.ndarray:
        config = self._config
        num_masks, width = config.num_time_masks, int(config.time_mask_share * length)
        if config.time_masks_per_frame:
            num_masks = min(num_masks, int(config.time_masks_per_frame * length))
        if config.time_mask_width is not None:
            width = min(width, config.time_mask_width)
        stream = random_stream(self._seed, epoch, "time_masks", utterance_id)
        return draw_masks(num_masks, width, length, stream)

    def _draw_bands(self, utterance_id: str, num_features: int, epoch: int) -> np.ndarray:
        stream = random_stream(self._seed, epoch, "frequency_masks", utterance_id)
        return draw_masks(
            self._config.num_frequency_masks, self._config.frequency_mask_width, num_features, stream
        )


def draw_masks(num_masks: int, max_width: int, size: int, stream: np.random.Generator) -> np.ndarray:
    """(num_masks, 2) starts and widths below `size`; widths from 0 to max_width, anywhere."""
    widths_M = stream.integers(0, min(max_width, size) + 1, num_masks)
    return np.stack([stream.integers(0, size - widths_M + 1), widths_M], axis=1)


def build_mask(masks: Sequence[np.ndarray], size: int) -> Tensor:
    """(batch, size) bool: true where one of the utterance's masks, (start, width) each, lies."""
    masks_BM2 = np.zeros((len(masks), max(map(len, masks)), 2), dtype=np.int64)
    for row, masks_M2 in zip(masks_BM2, masks, strict=True):
        row[: len(masks_M2)] = masks_M2
    starts_BM1, widths_BM1 = masks_BM2[..., :1], masks_BM2[..., 1:]
    positions = np.arange(size)
    return torch.from_numpy(((positions >= starts_BM1) & (positions < starts_BM1 + widths_BM1)).any(axis=1))


def warp_time(features_BTF: Tensor, feature_lengths_B: Tensor, warps_B2: np.ndarray) -> Tensor:
    """Move a frame of each utterance by (frame, shift): one side is stretched, the other squeezed."""
    if not warps_B2[:, 1].any():
        return features_BTF
    device = features_BTF.device
    positions_T = torch.arange(features_BTF.shape[1], dtype=torch.float64, device=device)
    frame_B1, shift_B1 = torch.from_numpy(warps_B2).double().to(device).T.unsqueeze(2)
    last_B1 = feature_lengths_B.to(device).double()[:, None] - 1
    # Rows that stay as they are may divide by 0 here; `where` below leaves their positions alone.
    target_B1 = frame_B1 + shift_B1
    left_BT = positions_T * frame_B1 / target_B1
    right_BT = frame_B1 + (positions_T - target_B1) * (last_B1 - frame_B1) / (last_B1 - target_B1)
    warped_BT = torch.where(positions_T < target_B1, left_BT, right_BT)
    is_moved_BT = (shift_B1 != 0) & (positions_T <= last_B1)
    source_BT = torch.where(is_moved_BT, warped_BT, positions_T)

    lower_BT = source_BT.long()
    upper_BT = torch.where(is_moved_BT, (lower_BT + 1).minimum(last_B1.long()), lower_BT)
    weight_BT1 = (source_BT - lower_BT).to(features_BTF)[:, :, None]
    lower_BTF = features_BTF.gather(1, lower_BT[:, :, None].expand_as(features_BTF))
    upper_BTF = features_BTF.gather(1, upper_BT[:, :, None].expand_as(features_BTF))
    return torch.lerp(lower_BTF, upper_BTF, weight_BT1)


def _mean(features_BTF: Tensor, valid_BT1: Tensor) -> Tensor:
    """(B, 1, 1) mean of each utterance over its own frames; in float64, so that padding never shows."""
    frame_means_BT1 = features_BTF.double().mean(2, keepdim=True) * valid_BT1
    means_B11 = frame_means_BT1.sum(1, keepdim=True) / valid_BT1.sum(1, keepdim=True).clamp(min=1)
    return means_B11.to(features_BTF)
