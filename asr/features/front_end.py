"""The one front end of training and inference: padded audio to log-mel or MFCC features.

Shapes: B utterances, S samples, W samples of a window, N samples of its FFT, T frames, F features,
M mel bands, K frequency bins, R rows: frames of one or more utterances, one below the other.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, overload

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator

from asr.config import Config
from asr.errors import UserError
from asr.features.mel import (
    compute_cepstral_matrix,
    compute_hann_window,
    compute_kaldi_filters,
    compute_povey_window,
    compute_whisper_filters,
)
from asr.features.padded import (
    MIN_DEVIATION,
    ReductionConfig,
    Subspace,
    accumulate_moments,
    add_noise,
    append_deltas,
    check_audio,
    mirror_ends,
    normalize_each,
    scale_like_whisper,
    split_batch,
    zero_padding,
)

INT16_SCALE = 32768.0  # Kaldi's features, dither and floor are defined on 16-bit sample values
KALDI_FLOOR = float(np.finfo(np.float32).eps)  # of a mel energy, before the logarithm
WHISPER_FLOOR = 1e-10
WHISPER_NEEDS: dict[str, Any] = {
    "type": "log_mel",
    "sample_rate": 16_000,
    "window_ms": 25.0,
    "shift_ms": 10.0,
    "low_hz": 0.0,
    "high_hz": None,
    "pre_emphasis": 0.0,
}

# Matrix products treat the last rows of a matrix, or of a thread's share of it, by other code than the rest,
# with other rounding. Numbers of rows that the usual tile heights (2 to 16) divide, also after a split over
# 1, 2 or 4 threads, leave no such last rows: a frame's features do not depend on where in the batch it
# stands. Seen with MKL on AVX2 and AVX-512; 3, or 8 and more threads may change the last digits.
ROW_MULTIPLE = 48
# Windows and spectra take 2 KB each per frame. Fewer rows fit a cache better, more rows share the cost of the
# calls, and of the threads' waiting for each other at the end of each; twenty seconds at a time do well.
CPU_ROWS = 42 * ROW_MULTIPLE
GPU_ROWS = 1024 * ROW_MULTIPLE
BANDS_AT_ONCE = 32  # a mel filter covers few bins; products of a few neighbours skip most of the zeros


class FeaturesConfig(Config):
    """Settings of feature vectors."""

    convention: Literal["kaldi", "whisper"] = "kaldi"
    """Whose numbers to compute: `kaldi` (and torchaudio.compliance.kaldi) or `whisper` (OpenAI's log-mel)."""
    type: Literal["log_mel", "mfcc"] = "log_mel"
    """`log_mel`: energies of the mel bands. `mfcc`: their cepstra, with the zeroth one, without energy."""
    sample_rate: int = Field(default=16_000, ge=1_000, le=192_000)
    """Samples per second of the audio that the front end is given."""
    window_ms: float = Field(default=25.0, gt=0)
    """Length of the window that a frame is computed from, in milliseconds."""
    shift_ms: float = Field(default=10.0, gt=0)
    """Milliseconds from one frame to the next."""
    num_mels: int = Field(default=80, ge=4, le=512)
    """Number of mel bands. Usual are 80 for log_mel (whisper: 80 or 128) and 23 for mfcc."""
    low_hz: float = Field(default=20.0, ge=0)
    """Lower edge of the first mel band. Default: 20; 0 with whisper."""
    high_hz: float | None = None
    """Upper edge of the last mel band. Null: half the sample rate; 0 or less: an offset from that."""
    num_ceps: int = Field(default=13, ge=1)
    """Number of cepstra, with mfcc."""
    deltas: Literal[0, 1, 2] = 0
    """Append time derivatives up to this order, by regression over 2 frames to each side."""
    pre_emphasis: float = Field(default=0.97, ge=0, lt=1)
    """Share of the previous sample that is subtracted from each. Default: 0.97; 0 with whisper."""
    dither: float = Field(default=0.0, ge=0)
    """Noise added to training audio: its deviation in steps of 16-bit samples. Kaldi's usual value is 1."""
    cmvn: Literal["none", "utterance", "global"] = "utterance"
    """Subtract mean, divide by deviation: of each utterance, or of the training data. None with whisper."""
    reduction: ReductionConfig = ReductionConfig()
    """Projection of the log_mel or mfcc on fewer dimensions, before deltas and CMVN."""

    @property
    def window_samples(self) -> int:
        return _whole_samples(self.sample_rate, self.window_ms)

    @property
    def shift_samples(self) -> int:
        return _whole_samples(self.sample_rate, self.shift_ms)

    @property
    def fft_samples(self) -> int:
        """Kaldi fills the window up to a power of two with zeros, Whisper does not."""
        if self.convention == "whisper":
            return self.window_samples
        return 1 << (self.window_samples - 1).bit_length()

    @property
    def upper_hz(self) -> float:
        """`high_hz` as a plain frequency."""
        if self.high_hz is None or self.high_hz <= 0:
            return self.sample_rate / 2 + (self.high_hz or 0.0)
        return self.high_hz

    @property
    def num_static(self) -> int:
        """Features of a frame before reduction and deltas."""
        return self.num_ceps if self.type == "mfcc" else self.num_mels

    @property
    def num_features(self) -> int:
        return (self.reduction.dim or self.num_static) * (1 + self.deltas)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_convention(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("convention") == "whisper":
            return {"low_hz": 0.0, "pre_emphasis": 0.0, "cmvn": "none", **data}
        return data

    @model_validator(mode="after")
    def _check(self) -> FeaturesConfig:
        if self.convention == "whisper":
            for name, needed in WHISPER_NEEDS.items():
                if getattr(self, name) != needed:
                    raise ValueError(
                        f"{name} is {getattr(self, name)}, but convention whisper needs {needed}; "
                        f"leave {name} out, or set convention to kaldi"
                    )
        self.refuse_idle(self.type == "mfcc", "type = mfcc", "num_ceps")
        if not 32 <= self.window_samples <= 16_384:
            raise ValueError(
                f"window_ms {self.window_ms:g} at sample_rate {self.sample_rate} is a window of "
                f"{self.window_samples} samples; expected 32 to 16384"
            )
        if self.shift_samples < 1 or self.shift_ms > self.window_ms:
            raise ValueError(
                f"shift_ms is {self.shift_ms:g} ({self.shift_samples} samples): expected at least one sample "
                f"and at most window_ms, {self.window_ms:g}, or audio between the windows is lost"
            )
        if not self.low_hz < self.upper_hz <= self.sample_rate / 2:
            raise ValueError(
                f"low_hz {self.low_hz:g} and high_hz {self.high_hz} are the band from {self.low_hz:g} to "
                f"{self.upper_hz:g} Hz; expected low < high <= {self.sample_rate / 2:g}, half the sample_rate"
            )
        if self.type == "mfcc" and self.num_ceps > self.num_mels:
            raise ValueError(f"num_ceps is {self.num_ceps}, but num_mels {self.num_mels}; expected no more")
        if self.reduction.dim is not None and self.reduction.dim > self.num_static:
            source = "num_ceps" if self.type == "mfcc" else "num_mels"
            raise ValueError(
                f"reduction.dim is {self.reduction.dim}, but {source} {self.num_static}; expected no more"
            )
        empty = np.flatnonzero(_compute_mel_filters(self).sum(axis=0) == 0)
        if len(empty):
            raise ValueError(
                f"num_mels {self.num_mels} is too many for window_ms {self.window_ms:g} at sample_rate "
                f"{self.sample_rate}: mel band {empty[0] + 1} holds none of the {self.fft_samples // 2 + 1} "
                "frequencies of the FFT; take fewer bands or a longer window"
            )
        return self


def _whole_samples(sample_rate: int, milliseconds: float) -> int:
    return int(sample_rate * milliseconds / 1000)  # Kaldi drops the fraction of a sample too


class FrontEnd(torch.nn.Module):
    """Audio to features, for padded batches, on CPU and GPU. Not differentiable; always in float32.

    The steps: windows and spectra -> mel bands -> logarithm -> cepstra, reduction, deltas, CMVN as the
    config asks. The reduction and the statistics of global CMVN are learnt from data by `fit_front_end` and
    kept in buffers, so that they travel with a checkpoint.

    An utterance has the same features alone and in a batch, on an x86 CPU to the bit (see ROW_MULTIPLE):
    nothing past its length is looked at, and frames past it are zeros. With convention `kaldi` only whole
    windows count (snip_edges), so shorter audio has 0 frames. With `whisper` the audio is mirrored at both
    ends, for which more than half a window is needed: up to 200 samples have 0 frames.
    """

    window_W: torch.Tensor
    mel_KM: torch.Tensor
    cepstra_MF: torch.Tensor
    reduction_mean_F: torch.Tensor
    reduction_FF: torch.Tensor
    cmvn_mean_F: torch.Tensor
    cmvn_std_F: torch.Tensor

    def __init__(self, config: FeaturesConfig) -> None:
        super().__init__()
        self.config = config
        self.num_features = config.num_features
        mel_KM = _compute_mel_filters(config)
        self._bands = _split_bands(mel_KM)
        if config.convention == "whisper":
            self._register_constant("window_W", compute_hann_window(config.window_samples))
        else:  # the first weight is 0: see _cut_windows
            self._register_constant("window_W", INT16_SCALE * compute_povey_window(config.window_samples)[1:])
        # The power of a bin is re * re + im * im. The FFT lays re and im of a bin side by side; a matrix
        # with each row twice adds them on the way to the bands.
        self._register_constant("mel_KM", mel_KM.repeat(2, axis=0))
        if config.type == "mfcc":
            self._register_constant("cepstra_MF", compute_cepstral_matrix(config.num_mels, config.num_ceps))
        if config.reduction.dim is not None:
            self._register_learnt("reduction_mean_F", config.num_static)
            self._register_learnt("reduction_FF", config.num_static, config.reduction.dim)
        if config.cmvn == "global":
            self._register_learnt("cmvn_mean_F", config.num_features)
            self._register_learnt("cmvn_std_F", config.num_features)
        self._learnt: set[str] = set()
        self._free_windows: list[torch.Tensor] = []

    def _register_constant(self, name: str, values: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(values).float(), persistent=False)

    def _register_learnt(self, name: str, *shape: int) -> None:
        self.register_buffer(name, torch.full(shape, math.nan))  # NaN: not learnt yet

    def set_reduction(self, subspace: Subspace) -> None:
        self.reduction_mean_F.copy_(subspace.mean_F)
        self.reduction_FF.copy_(subspace.directions_FK)

    def set_cmvn(self, mean_F: torch.Tensor, std_F: torch.Tensor) -> None:
        self.cmvn_mean_F.copy_(mean_F)
        self.cmvn_std_F.copy_(std_F.clamp(min=MIN_DEVIATION))

    @overload
    def num_frames(self, audio_lengths: int) -> int: ...
    @overload
    def num_frames(self, audio_lengths: torch.Tensor) -> torch.Tensor: ...
    def num_frames(self, audio_lengths: int | torch.Tensor) -> int | torch.Tensor:
        """Frames of audio of so many samples, for one number or for a tensor of them."""
        window, shift = self.config.window_samples, self.config.shift_samples
        if self.config.convention == "whisper":
            return audio_lengths // shift * (audio_lengths > window // 2)
        return ((audio_lengths - window) // shift + 1) * (audio_lengths >= window)

    @torch.no_grad()
    def forward(
        self,
        audio_BS: torch.Tensor,
        audio_lengths_B: torch.Tensor,
        generators: Sequence[torch.Generator] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(features_BTF, feature_lengths_B) of float32 audio in [-1, 1].

        Dither is noise for training: it is added only if `generators` has one generator per utterance, so
        that an utterance's noise is its own, whatever batch it comes in.
        """
        features_BTF, feature_lengths_B = self.static_features(audio_BS, audio_lengths_B, generators)
        features_BTF = self.transform(features_BTF, feature_lengths_B)
        if self.config.cmvn == "none":
            return features_BTF, feature_lengths_B
        if self.config.cmvn == "global":
            self._require_learnt("features.cmvn: global", self.cmvn_mean_F)
            features_BTF = (features_BTF - self.cmvn_mean_F) / self.cmvn_std_F
        else:
            features_BTF = normalize_each(features_BTF, feature_lengths_B)
        return zero_padding(features_BTF, feature_lengths_B), feature_lengths_B

    @torch.no_grad()
    def transform(self, features_BTF: torch.Tensor, feature_lengths_B: torch.Tensor) -> torch.Tensor:
        """Reduce static features and append deltas, as the config asks."""
        if self.config.reduction.dim is not None:
            self._require_learnt(f"features.reduction.type: {self.config.reduction.type}", self.reduction_FF)
            features_BTF = _map_rows(features_BTF - self.reduction_mean_F, self.reduction_FF)
            features_BTF = zero_padding(features_BTF, feature_lengths_B)
        if self.config.deltas:
            features_BTF = append_deltas(features_BTF, feature_lengths_B, self.config.deltas)
            features_BTF = zero_padding(features_BTF, feature_lengths_B)
        return features_BTF

    @torch.no_grad()
    def static_features(
        self,
        audio_BS: torch.Tensor,
        audio_lengths_B: torch.Tensor,
        generators: Sequence[torch.Generator] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The log-mel or MFCC alone, before reduction, deltas and CMVN."""
        check_audio(audio_BS, audio_lengths_B)
        whisper = self.config.convention == "whisper"
        feature_lengths_B = self.num_frames(audio_lengths_B.to(audio_BS.device))
        num_frames = self.num_frames(audio_BS.shape[1])
        if num_frames == 0:
            return audio_BS.new_zeros(len(audio_BS), 0, self.config.num_static), feature_lengths_B
        if generators is not None and self.config.dither > 0:
            audio_BS = add_noise(audio_BS, audio_lengths_B, generators, self.config.dither / INT16_SCALE)
        # Mixed precision is for models: 16 bits do not hold the range of these energies.
        with torch.autocast(audio_BS.device.type, enabled=False):
            if whisper:
                audio_BS = mirror_ends(audio_BS, audio_lengths_B, self.config.window_samples // 2)
            features_BTF = self._compute_log_mel(audio_BS, num_frames, feature_lengths_B)
            if whisper:
                features_BTF = scale_like_whisper(features_BTF, feature_lengths_B)
            if self.config.type == "mfcc":
                features_BTF = _map_rows(features_BTF, self.cepstra_MF)
        return zero_padding(features_BTF, feature_lengths_B), feature_lengths_B

    def _compute_log_mel(
        self, audio_BS: torch.Tensor, num_frames: int, feature_lengths_B: torch.Tensor
    ) -> torch.Tensor:
        """The logarithm of the mel energies; frames past an utterance's length hold anything."""
        log_mel_BTM = audio_BS.new_empty(len(audio_BS), num_frames, self.config.num_mels)
        take_log, floor = torch.log, KALDI_FLOOR
        if self.config.convention == "whisper":
            take_log, floor = torch.log10, WHISPER_FLOOR
        with self._borrow_windows(audio_BS, num_frames) as windows_RN:
            for utterances, frames in split_batch(feature_lengths_B, num_frames, len(windows_RN)):
                into_BTM = log_mel_BTM[utterances, frames]
                num_rows = into_BTM.shape[0] * into_BTM.shape[1]
                windows_BTN = windows_RN[:num_rows].unflatten(0, into_BTM.shape[:2])
                self._cut_windows(audio_BS[utterances], frames, windows_BTN)
                mel_RM = self._compute_mel(windows_RN[: _round_up(num_rows)])
                take_log(mel_RM[:num_rows].clamp_(min=floor).view(into_BTM.shape), out=into_BTM)
        return log_mel_BTM

    def _cut_windows(self, audio_BS: torch.Tensor, frames: slice, windows_BTN: torch.Tensor) -> None:
        """Write the windowed frames; behind the window, windows_BTN keeps its zeros."""
        window, shift = self.config.window_samples, self.config.shift_samples
        audio_BS = audio_BS[:, frames.start * shift : (frames.stop - 1) * shift + window]
        frames_BTW = audio_BS.unfold(1, window, shift)
        if self.config.convention == "whisper":
            torch.mul(frames_BTW, self.window_W, out=windows_BTN)
            return
        # Kaldi subtracts each frame's mean, then emphasises within the frame. Both are linear, so the
        # emphasis can come first, once for all overlapping frames; (1 - pre_emphasis) of the mean are
        # left to subtract. A frame's first sample has no predecessor in the frame, but the window is 0
        # there: it is left out.
        pre_emphasis = self.config.pre_emphasis
        means_BT1 = frames_BTW.sum(dim=2, keepdim=True).mul_((1 - pre_emphasis) / window)
        emphasised_BS = torch.sub(audio_BS[:, 1:], audio_BS[:, :-1], alpha=pre_emphasis)
        into_BTW = windows_BTN[:, :, 1:window]
        torch.sub(emphasised_BS.unfold(1, window - 1, shift), means_BT1, out=into_BTW)
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
        """Rows of zeros for the windows. On a CPU they are kept for the next call: new memory is slow."""
        on_cpu = audio_BS.device.type == "cpu"
        if on_cpu and self._free_windows:
            windows_RN = self._free_windows.pop()  # off the list, so that threads never share one
        else:
            num_rows = CPU_ROWS if on_cpu else min(GPU_ROWS, _round_up(len(audio_BS) * num_frames))
            with torch.inference_mode(False):  # or no later call outside of that mode could write to them
                windows_RN = audio_BS.new_zeros(num_rows, self.config.fft_samples)
        yield windows_RN
        if on_cpu:
            self._free_windows.append(windows_RN)

    def _require_learnt(self, setting: str, values: torch.Tensor) -> None:
        if setting in self._learnt:  # remembered, because looking at a GPU's values waits for the GPU
            return
        if bool(values.isnan().any()):
            raise UserError(
                f"{setting} needs values that are learnt from data, and there are none yet: "
                "run asr.features.front_end.fit_front_end on training audio, or load a checkpoint"
            )
        self._learnt.add(setting)


def fit_front_end(front_end: FrontEnd, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Learn what the config asks for: the reduction, then global CMVN of what comes after it.

    `batches` holds (audio_BS, audio_lengths_B). Each of the two reads all of it once, one batch at a time:
    where both are set it must be readable twice, that is, a list or a DataLoader and not a generator.
    """
    config = front_end.config
    if config.reduction.dim is not None:
        from asr.research.reduction import fit_reduction

        moments = accumulate_moments(front_end.static_features(*batch) for batch in batches)
        front_end.set_reduction(fit_reduction(config.reduction, moments))
    if config.cmvn == "global":
        static = (front_end.static_features(*batch) for batch in batches)
        moments = accumulate_moments((front_end.transform(*features), features[1]) for features in static)
        front_end.set_cmvn(moments.mean_F, moments.std_F)


def _round_up(num_rows: int) -> int:
    return -(-num_rows // ROW_MULTIPLE) * ROW_MULTIPLE


def _map_rows(features_BTF: torch.Tensor, matrix_FF: torch.Tensor) -> torch.Tensor:
    """features @ matrix, with so many rows that each comes out the same wherever it stands."""
    rows_RF = features_BTF.flatten(0, 1)
    num_rows = len(rows_RF)
    mapped_RF = F.pad(rows_RF, (0, 0, 0, _round_up(num_rows) - num_rows)) @ matrix_FF
    return mapped_RF[:num_rows].unflatten(0, features_BTF.shape[:2])


def _compute_mel_filters(config: FeaturesConfig) -> np.ndarray:
    """(K, M), of the convention's kind."""
    compute = compute_whisper_filters if config.convention == "whisper" else compute_kaldi_filters
    bins_K = np.arange(config.fft_samples // 2 + 1) * (config.sample_rate / config.fft_samples)
    return compute(bins_K, config.low_hz, config.upper_hz, config.num_mels)


def _split_bands(mel_KM: np.ndarray) -> list[tuple[slice, slice]]:
    """A few bands at a time: (rows, columns) of the doubled matrix that hold all that is not zero."""
    parts = []
    for first in range(0, mel_KM.shape[1], BANDS_AT_ONCE):
        bands = slice(first, first + BANDS_AT_ONCE)
        used = np.flatnonzero(mel_KM[:, bands].any(axis=1))
        parts.append((slice(2 * int(used[0]), 2 * int(used[-1] + 1)), bands))
    return parts
