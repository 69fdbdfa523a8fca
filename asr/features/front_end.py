"""The front end of training and inference: turns padded audio into log-mel or MFCC features.

Shapes: B utterances, S samples, W samples of a window, N samples of its FFT, T frames, F features,
M mel bands, K frequency bins, R rows (stacked frames of one or more utterances).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from asr.features.filters import (
    ICEFALL_FLOOR,
    KALDI_FLOOR,
    MIN_DEVIATION,
    PRE_EMPHASIS,
    PRIOR_DEVIATION,
    PRIOR_FRAMES,
    PRIOR_MEAN,
    WHISPER_FLOOR,
    FeaturesConfig,
    compute_cepstral_matrix,
    compute_mel_filters,
    compute_window,
)

Lengths = TypeVar("Lengths", int, torch.Tensor)

# Matrix products use different code, with different rounding, for the last rows of a matrix or of a thread's
# share. If the usual tile heights (2 to 16) divide the number of rows, even after a split over 1, 2 or 4
# threads, there are no such last rows, and a frame's features do not depend on its place in the batch. Seen
# with MKL on AVX2 and AVX-512; with 3, or 8 and more threads, the last digits may change.
ROW_MULTIPLE = 48
# Windows and spectra take 2 KB each per frame. Fewer rows fit the cache better, while more rows amortize the
# calls and the synchronization of threads after each; about twenty seconds of audio is a good compromise.
CPU_ROWS = 42 * ROW_MULTIPLE
GPU_ROWS = 1024 * ROW_MULTIPLE
BANDS_AT_ONCE = 32  # multiplied together; a mel filter covers few bins, so this skips most zeros


class FrontEnd(torch.nn.Module):
    """Computes features of padded batches, on CPU and GPU. Not differentiable; always in float32.

    Steps: windows and spectra -> mel bands -> logarithm -> cepstra and CMVN, if configured.

    An utterance has the same features alone and in a batch, bit for bit on an x86 CPU (see ROW_MULTIPLE):
    samples past its length are ignored, and frames past it are zeros. With convention `kaldi` only whole
    windows count (snip_edges), so shorter audio has 0 frames. With `whisper` the audio is mirrored at both
    ends, which takes more than half a window, so up to 200 samples give 0 frames. With `samples`, the last
    sample of the last frame may be missing and is then zero; convolutions over several frames do not need it.
    """

    window_W: torch.Tensor
    mel_KM: torch.Tensor
    cepstra_MF: torch.Tensor

    def __init__(self, config: FeaturesConfig) -> None:
        super().__init__()
        self.config = config
        self.num_features = config.num_features
        if config.type == "samples":
            return
        mel_KM = compute_mel_filters(config)
        self._bands = _split_bands(mel_KM)
        self._register_constant("window_W", compute_window(config))
        # The power of a bin is re * re + im * im. The FFT stores re and im side by side, so a matrix with
        # each row repeated adds them while it computes the bands.
        self._register_constant("mel_KM", mel_KM.repeat(2, axis=0))
        if config.type == "mfcc":
            self._register_constant("cepstra_MF", compute_cepstral_matrix(config.num_mels, config.num_ceps))
        self._free_windows: list[torch.Tensor] = []

    def _register_constant(self, name: str, values: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(values).float(), persistent=False)

    def num_frames(self, audio_lengths: Lengths) -> Lengths:
        """Return the number of frames for a number of samples, or for a tensor of them."""
        window, shift = self.config.window_samples, self.config.shift_samples
        if self.config.convention == "whisper":
            return audio_lengths // shift * (audio_lengths > window // 2)
        if self.config.type == "samples":
            return (audio_lengths + 1) // shift
        if self.config.convention == "icefall":
            return (audio_lengths + shift // 2) // shift * (audio_lengths >= window // 2)
        return ((audio_lengths - window) // shift + 1) * (audio_lengths >= window)

    @torch.no_grad()
    def forward(
        self, audio_BS: torch.Tensor, audio_lengths_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (features_BTF, feature_lengths_B) of float32 audio in [-1, 1]."""
        whisper = self.config.convention == "whisper"
        feature_lengths_B = self.num_frames(audio_lengths_B.to(audio_BS.device))
        num_frames = self.num_frames(audio_BS.shape[1])
        if num_frames == 0:
            return audio_BS.new_zeros(len(audio_BS), 0, self.num_features), feature_lengths_B
        if self.config.type == "samples":
            padded_BS = F.pad(audio_BS, (0, 1))[:, : num_frames * self.num_features]
            return zero_padding(
                padded_BS.unflatten(1, (num_frames, -1)), feature_lengths_B
            ), feature_lengths_B
        # Mixed precision is for models only, because 16 bits cannot represent the range of these energies.
        with torch.autocast(audio_BS.device.type, enabled=False):
            if whisper:
                audio_BS = mirror_ends(audio_BS, audio_lengths_B, self.config.window_samples // 2)
            elif self.config.convention == "icefall":
                # Kaldi's first frame is centered at half a shift.
                audio_BS = mirror_ends(audio_BS, audio_lengths_B, self.config.window_samples // 2, 1)
                audio_BS = audio_BS[:, self.config.shift_samples // 2 :]
            features_BTF = self._compute_log_mel(audio_BS, num_frames, feature_lengths_B)
            if whisper:
                features_BTF = scale_like_whisper(features_BTF, feature_lengths_B)
            if self.config.type == "mfcc":
                features_BTF = _map_rows(features_BTF, self.cepstra_MF)
        features_BTF = zero_padding(features_BTF, feature_lengths_B)
        if self.config.cmvn == "utterance":
            features_BTF = normalize_each(features_BTF, feature_lengths_B)
        elif self.config.cmvn == "running":
            features_BTF, _ = normalize_running(features_BTF, start_statistics(features_BTF))
        return zero_padding(features_BTF, feature_lengths_B), feature_lengths_B

    def _compute_log_mel(
        self, audio_BS: torch.Tensor, num_frames: int, feature_lengths_B: torch.Tensor
    ) -> torch.Tensor:
        """Return the log mel energies; frames past an utterance's length are undefined."""
        log_mel_BTM = audio_BS.new_empty(len(audio_BS), num_frames, self.config.num_mels)
        take_log, floor = torch.log, ICEFALL_FLOOR if self.config.convention == "icefall" else KALDI_FLOOR
        if self.config.convention == "whisper":
            take_log, floor = torch.log10, WHISPER_FLOOR
        with self._borrow_windows(audio_BS, num_frames) as windows_RN:
            for utterances, frames in _split_batch(feature_lengths_B, num_frames, len(windows_RN)):
                into_BTM = log_mel_BTM[utterances, frames]
                num_rows = into_BTM.shape[0] * into_BTM.shape[1]
                windows_BTN = windows_RN[:num_rows].unflatten(0, into_BTM.shape[:2])
                self._cut_windows(audio_BS[utterances], frames, windows_BTN)
                mel_RM = self._compute_mel(windows_RN[: _round_up(num_rows)])
                take_log(mel_RM[:num_rows].clamp_(min=floor).view(into_BTM.shape), out=into_BTM)
        return log_mel_BTM

    def _cut_windows(self, audio_BS: torch.Tensor, frames: slice, windows_BTN: torch.Tensor) -> None:
        """Write the windowed frames; past the window, windows_BTN keeps its zeros."""
        window, shift = self.config.window_samples, self.config.shift_samples
        audio_BS = audio_BS[:, frames.start * shift : (frames.stop - 1) * shift + window]
        frames_BTW = audio_BS.unfold(1, window, shift)
        if self.config.convention == "whisper":
            torch.mul(frames_BTW, self.window_W, out=windows_BTN)
            return
        # Kaldi subtracts each frame's mean, then applies pre-emphasis within the frame. Both are linear, so
        # pre-emphasis can come first, once for all overlapping frames, after which (1 - PRE_EMPHASIS) of the
        # mean remains to be subtracted. A frame's first sample has no predecessor in the frame, but it is
        # left out, because the window is 0 there.
        means_BT1 = frames_BTW.sum(dim=2, keepdim=True).mul_((1 - PRE_EMPHASIS) / window)
        emphasized_BS = torch.sub(audio_BS[:, 1:], audio_BS[:, :-1], alpha=PRE_EMPHASIS)
        into_BTW = windows_BTN[:, :, 1:window]
        torch.sub(emphasized_BS.unfold(1, window - 1, shift), means_BT1, out=into_BTW)
        into_BTW.mul_(self.window_W)

    def _compute_mel(self, windows_RN: torch.Tensor) -> torch.Tensor:
        spectrum_RK = torch.view_as_real(torch.fft.rfft(windows_RN)).flatten(1)  # re, im, re, im, ...
        squares_RK = spectrum_RK.mul_(spectrum_RK)
        mel_RM = windows_RN.new_empty(len(windows_RN), self.config.num_mels)
        for bins, bands in self._bands:
            torch.mm(squares_RK[:, bins], self.mel_KM[bins, bands], out=mel_RM[:, bands])
        return mel_RM

    @contextlib.contextmanager
    def _borrow_windows(self, audio_BS: torch.Tensor, num_frames: int) -> Iterator[torch.Tensor]:
        """Yield rows of zeros for the windows; on a CPU they are reused, because new memory is slow."""
        on_cpu = audio_BS.device.type == "cpu"
        if on_cpu and self._free_windows:
            windows_RN = self._free_windows.pop()  # removed, so that threads never share a buffer
        else:
            num_rows = CPU_ROWS if on_cpu else min(GPU_ROWS, _round_up(len(audio_BS) * num_frames))
            with torch.inference_mode(False):  # else no later call outside that mode could write to them
                windows_RN = audio_BS.new_zeros(num_rows, self.config.fft_samples)
        yield windows_RN
        if on_cpu:
            self._free_windows.append(windows_RN)


def _split_bands(mel_KM: np.ndarray) -> list[tuple[slice, slice]]:
    """Return, for groups of bands, the (rows, columns) of the doubled matrix that cover all nonzeros."""
    parts = []
    for first in range(0, mel_KM.shape[1], BANDS_AT_ONCE):
        bands = slice(first, first + BANDS_AT_ONCE)
        used = np.flatnonzero(mel_KM[:, bands].any(axis=1))
        parts.append((slice(2 * int(used[0]), 2 * int(used[-1] + 1)), bands))
    return parts


# --- padded batches, in which an utterance's result does not depend on the padding --------------


def _round_up(num_rows: int) -> int:
    return -(-num_rows // ROW_MULTIPLE) * ROW_MULTIPLE


def _map_rows(features_BTF: torch.Tensor, matrix_FF: torch.Tensor) -> torch.Tensor:
    """Compute features @ matrix, with rows padded so that a result does not depend on its place."""
    rows_RF = features_BTF.flatten(0, 1)
    num_rows = len(rows_RF)
    mapped_RF = F.pad(rows_RF, (0, 0, 0, _round_up(num_rows) - num_rows)) @ matrix_FF
    return mapped_RF[:num_rows].unflatten(0, features_BTF.shape[:2])


def _split_batch(
    feature_lengths_B: torch.Tensor, num_frames: int, max_rows: int
) -> Iterator[tuple[slice, slice]]:
    """Yield rectangles (utterances, frames) of at most max_rows frames that cover all valid frames."""
    num_utterances = len(feature_lengths_B)
    on_cpu = feature_lengths_B.device.type == "cpu"  # reading lengths from a GPU would wait for it
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
    """Return (B, 2): the first loud frame, and past the last one.

    A frame is loud above 40 % of the way from the utterance's quietest frame to its 95th percentile. This is
    for log-mel features, whose mean over the bands measures loudness.
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
        features_TF[length:] = 0.0  # takes a fraction of the time of a full mask
    return features_BTF


def mirror_ends(
    audio_BS: torch.Tensor, audio_lengths_B: torch.Tensor, margin: int, repeated: int = 0
) -> torch.Tensor:
    """Extend each utterance by `margin` samples on both sides, mirrored at its first and last sample, which
    may be `repeated` once."""
    mirrored_BS = F.pad(audio_BS, (margin, margin))
    mirrored_BS[:, :margin] = audio_BS[:, 1 - repeated : margin + 1 - repeated].flip(1)
    last_B1 = audio_lengths_B.to(audio_BS.device)[:, None] - 1
    distance_S = torch.arange(1, margin + 1, device=audio_BS.device)
    # A shorter utterance has no frames; the clamp only keeps its indices valid.
    source_BS = (last_B1 + repeated - distance_S).clamp(min=0)
    return mirrored_BS.scatter_(1, last_B1 + margin + distance_S, audio_BS.gather(1, source_BS))


def scale_like_whisper(log_mel_BTM: torch.Tensor, feature_lengths_B: torch.Tensor) -> torch.Tensor:
    """Clip at 80 dB below each utterance's loudest band, then scale speech to about [-1, 1]."""
    padding_BT1 = ~valid_frames(log_mel_BTM, feature_lengths_B)
    loudest_B11 = log_mel_BTM.masked_fill(padding_BT1, -math.inf).amax(dim=(1, 2), keepdim=True)
    return torch.maximum(log_mel_BTM, loudest_B11 - 8.0).add_(4.0).div_(4.0)


def normalize_each(features_BTF: torch.Tensor, feature_lengths_B: torch.Tensor) -> torch.Tensor:
    """Normalize each feature of each utterance to mean 0 and deviation 1; padding must be zeros."""
    count_B11 = feature_lengths_B.clamp(min=1)[:, None, None]
    centered_BTF = features_BTF - _sum_over_time(features_BTF) / count_B11
    centered_BTF = zero_padding(centered_BTF, feature_lengths_B)
    variance_B1F = _sum_over_time(centered_BTF.square()) / count_B11
    return centered_BTF / variance_B1F.sqrt().clamp(min=MIN_DEVIATION)


def start_statistics(features_BTF: torch.Tensor) -> torch.Tensor:
    """(B, 3, F) in float64 before the first frame: a number of frames, their sums, and sums of squares."""
    each_3 = [1.0, PRIOR_MEAN, PRIOR_MEAN**2 + PRIOR_DEVIATION**2]
    sums_3 = PRIOR_FRAMES * torch.tensor(each_3, dtype=torch.float64, device=features_BTF.device)
    return sums_3[None, :, None].repeat(len(features_BTF), 1, features_BTF.size(2))


def normalize_running(
    features_BTF: torch.Tensor, statistics_B3F: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each frame by mean and deviation of the frames up to it; and the statistics after the last one."""
    exact_BTF = features_BTF.double()
    sums_BT3F = torch.stack([torch.ones_like(exact_BTF), exact_BTF, exact_BTF.square()], dim=2)
    # One sum from the first frame of all, so that pieces give to the bit what the whole gives.
    sums_BT3F = torch.cat([statistics_B3F[:, None], sums_BT3F], dim=1).cumsum(dim=1)
    count_BTF, sum_BTF, squares_BTF = sums_BT3F[:, 1:].unbind(dim=2)
    mean_BTF = sum_BTF / count_BTF
    deviation_BTF = (squares_BTF / count_BTF - mean_BTF.square()).clamp(min=MIN_DEVIATION**2).sqrt()
    return ((exact_BTF - mean_BTF) / deviation_BTF).to(features_BTF.dtype), sums_BT3F[:, -1]


def _sum_over_time(features_BTF: torch.Tensor) -> torch.Tensor:
    """Sum in blocks of fixed size, then block after block, so that padding does not change the rounding."""
    num_frames = features_BTF.shape[1]
    if num_frames == 0:
        return features_BTF.sum(dim=1, keepdim=True)
    blocks_BTTF = F.pad(features_BTF, (0, 0, 0, -num_frames % 64)).unflatten(1, (-1, 64))
    return blocks_BTTF.sum(dim=2).cumsum(dim=1)[:, -1:]
