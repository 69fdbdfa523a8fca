"""Steps of the front end on padded batches, in which an utterance's result does not depend on the padding.

Shapes: B utterances, S samples, T frames, F features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F

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
