"""Voice activity detection (VAD): by the energy over the noise around, or by the model of silero-vad."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.errors import UserError

# S samples, T frames of 10 ms, C chunks of 32 ms, D dimension

FRAMES_PER_SECOND = 100
SILENCE_DB = -80.0  # of full scale: the rounding of 16 bits lies 20 dB below, the quietest speech above
AHEAD_SECONDS = 10.0  # after a frame, where its noise is measured
_PAST_SECONDS = 20.0  # and before it
_NOISE_SHARE = 0.1  # of these frames, at least so many hold no speech: even fast talkers close their lips
_SILERO_HYSTERESIS = 0.15  # its authors': so far below the probability where speech begins, it ends
SILERO_RATES = (8_000, 16_000)  # Hz
_PRE_EMPHASIS = 0.97  # or hum and rumble would hide the speech


Method = Literal["auto", "silero", "energy", "none"]


def make_detector(
    method: Method,
    threshold_db: float,
    sample_rate: int,
    ahead_seconds: float,
    speech_threshold: float = 0.5,
) -> EnergyDetector | SileroDetector:
    """Build a detector. For each frame of the blocks that it takes, it gives whether it is speech, and its
    energy in dB of full scale.
    """
    if method == "silero" or (method == "auto" and sample_rate in SILERO_RATES):
        return SileroDetector(sample_rate, speech_threshold)
    return EnergyDetector(sample_rate, threshold_db, ahead_seconds)


def measure_energies(audio_S: np.ndarray, sample_rate: int) -> np.ndarray:
    """The energy of each whole frame of 10 ms in dB of full scale, high frequencies raised."""
    return _Energies(sample_rate).push(audio_S)


class _Energies:
    """The same as `measure_energies`, for audio that comes in blocks."""

    def __init__(self, sample_rate: int) -> None:
        self.frame_samples = sample_rate / FRAMES_PER_SECOND
        self._rest = np.zeros(0)
        self._last = 0.0
        self._num_frames = 0
        self._position = 0  # of the first sample in _rest

    def push(self, block_S: np.ndarray) -> np.ndarray:
        block = block_S.astype(np.float64)
        emphasised = block - _PRE_EMPHASIS * np.concatenate([[self._last], block[:-1]])
        self._last = float(block[-1]) if len(block) else self._last
        self._rest = np.concatenate([self._rest, emphasised**2])
        count = int((self._position + len(self._rest)) / self.frame_samples) - self._num_frames
        frames = np.arange(self._num_frames, self._num_frames + count + 1)
        edges = np.floor(frames * self.frame_samples).astype(int) - self._position
        sums = np.concatenate([[0.0], np.cumsum(self._rest)])
        powers_T = np.diff(sums[edges]) / np.diff(edges)
        self._rest = self._rest[edges[-1] :]
        self._position += int(edges[-1])
        self._num_frames += count
        return np.maximum(10 * np.log10(np.maximum(powers_T, 1e-12)), SILENCE_DB)


def smooth(values_T: np.ndarray, width: int) -> np.ndarray:
    """Mean over `width` frames around each."""
    padded = np.pad(values_T, width // 2, mode="edge")
    return np.convolve(padded, np.full(width, 1 / width), mode="valid")


class EnergyDetector:
    """Detector of frames louder than the noise, which the quietest tenth of those nearby stays below."""

    def __init__(self, sample_rate: int, threshold_db: float, ahead_seconds: float) -> None:
        self._energies = _Energies(sample_rate)
        self._threshold_db = threshold_db
        self._ahead = round(ahead_seconds * FRAMES_PER_SECOND)
        self._near_T = np.zeros(0)  # the frames in whose middle the next to be judged stands
        self._judged = 0  # how many of them are
        self._was_speech = False

    def push(self, block_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._near_T = np.concatenate([self._near_T, self._energies.push(block_S)])
        past = len(self._near_T) - self._ahead
        # By whole seconds, so that the sizes of the blocks change nothing; live, at once.
        return self._judge(past - past % FRAMES_PER_SECOND if self._ahead else past)

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        return self._judge(len(self._near_T))

    def _judge(self, past: int) -> tuple[np.ndarray, np.ndarray]:
        """Frames up to `past`, a second at a time: each second has its own noise."""
        flags, energies = [np.zeros(0, bool)], [np.zeros(0)]
        while self._judged < past:
            stop = min(self._judged + FRAMES_PER_SECOND, past)
            noise = float(np.quantile(self._near_T[: stop + self._ahead], _NOISE_SHARE))
            own_T = self._near_T[max(self._judged - 1, 0) : stop + 1]
            smooth_T = smooth(own_T, 3)[min(self._judged, 1) :][: stop - self._judged]
            flags.append(self._apply_hysteresis(smooth_T, noise))
            energies.append(self._near_T[self._judged : stop])
            drop = max(0, stop - round(_PAST_SECONDS * FRAMES_PER_SECOND))
            self._near_T, self._judged, past = self._near_T[drop:], stop - drop, past - drop
        return np.concatenate(flags), np.concatenate(energies)

    def _apply_hysteresis(self, energies_T: np.ndarray, noise: float) -> np.ndarray:
        """Switch on above the threshold, and off below half of it."""
        is_on_T = energies_T > noise + self._threshold_db
        is_off_T = energies_T <= noise + self._threshold_db / 2
        flags_T = apply_hysteresis(is_on_T, is_off_T, self._was_speech)
        self._was_speech = bool(flags_T[-1])
        return flags_T


def apply_hysteresis(is_on_T: np.ndarray, is_off_T: np.ndarray, was_on: bool) -> np.ndarray:
    """Fill in what is neither on nor off: as the frame before."""
    last_T = np.maximum.accumulate(np.where(is_on_T | is_off_T, np.arange(len(is_on_T)), -1))
    return np.where(last_T < 0, was_on, is_on_T[last_T])


class SileroDetector:
    """The model of silero-vad, which knows speech from music and noise, for 8 and 16 kHz."""

    def __init__(self, sample_rate: int, threshold: float = 0.5) -> None:
        if sample_rate not in SILERO_RATES:
            raise UserError(
                f"segmentation.method = silero knows 8000 and 16000 Hz, but the model takes {sample_rate}; "
                "use energy"
            )
        self._threshold = threshold
        self._model = load_silero(sample_rate)
        self._state = self._model.start()
        self._chunk = self._model.chunk_samples
        self._energies = _Energies(sample_rate)
        self._rest = np.zeros(0, np.float32)
        self._energies_T = np.zeros(0)  # of all frames that are not judged
        self._is_speech_C = np.zeros(0, bool)  # of the chunks from _first_chunk on
        self._first_chunk = self._num_judged = 0
        self._was_speech = False

    def push(self, block_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._energies_T = np.concatenate([self._energies_T, self._energies.push(block_S)])
        self._hear(block_S)
        return self._judge()

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        self._hear(np.zeros(self._chunk - len(self._rest), np.float32))
        return self._judge()

    def _hear(self, block_S: np.ndarray) -> None:
        """Ask the model about each whole chunk."""
        self._rest = np.concatenate([self._rest, block_S])
        past = len(self._rest) - len(self._rest) % self._chunk
        chunks_CS, self._rest = self._rest[:past].reshape(-1, self._chunk), self._rest[past:]
        probabilities_C, self._state = self._model(chunks_CS, self._state)
        flags_C = apply_hysteresis(
            probabilities_C > self._threshold,
            probabilities_C <= self._threshold - _SILERO_HYSTERESIS,
            self._was_speech,
        )
        self._was_speech = bool(flags_C[-1]) if len(flags_C) else self._was_speech
        self._is_speech_C = np.concatenate([self._is_speech_C, flags_C])

    def _judge(self) -> tuple[np.ndarray, np.ndarray]:
        """The frames that the judged chunks cover."""
        chunk_frames = self._chunk / self._energies.frame_samples
        covered = int((self._first_chunk + len(self._is_speech_C)) * chunk_frames)
        count = min(covered - self._num_judged, len(self._energies_T))
        chunk_T = (np.arange(self._num_judged, self._num_judged + count) / chunk_frames).astype(int)
        flags_T, energies_T = self._is_speech_C[chunk_T - self._first_chunk], self._energies_T[:count]
        self._energies_T = self._energies_T[count:]
        self._num_judged += count
        done = int(self._num_judged / chunk_frames) - self._first_chunk
        self._is_speech_C, self._first_chunk = self._is_speech_C[done:], self._first_chunk + done
        return flags_T, energies_T


# --- the model of silero-vad --------------------------------------------------------------------

_STRIDES = (1, 2, 2, 1)
_DIM = 128


class SileroModel(nn.Module):
    """Probability of speech in each chunk, from many chunks at once: six times as fast as one by one.

    Spectra and convolutions see one chunk each; an LSTM runs over the chunks. The weights are the package's.
    """

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        self.chunk_samples = sample_rate * 32 // 1000
        self._context_samples = self.chunk_samples // 8  # that the chunk before lends
        weights = _read_weights("_model" if sample_rate == 16_000 else "_model_8k")
        self._basis = weights["stft.forward_basis_buffer"]
        self._kernels = [
            tuple(weights[f"encoder.{index}.reparam_conv.{part}"] for part in ("weight", "bias"))
            for index in range(len(_STRIDES))
        ]
        self._lstm = nn.LSTM(_DIM, _DIM)
        names = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0"}
        names |= {"bias_ih": "bias_ih_l0", "bias_hh": "bias_hh_l0"}
        self._lstm.load_state_dict({own: weights[f"decoder.rnn.{name}"] for name, own in names.items()})
        self._output = (weights["decoder.decoder.2.weight"][..., 0], weights["decoder.decoder.2.bias"])

    def start(self) -> SileroState:
        return SileroState(torch.zeros(self._context_samples), None)

    @torch.inference_mode()
    def forward(self, chunks_CS: np.ndarray, state: SileroState) -> tuple[np.ndarray, SileroState]:
        """(C,) probabilities, and the state after the last chunk."""
        if not len(chunks_CS):
            return np.zeros(0, np.float32), state
        audio_CS = torch.from_numpy(chunks_CS)
        ends_CS = audio_CS[:, -self._context_samples :]
        before_CS = torch.cat([state.context_S[None], ends_CS[:-1]])
        hidden_CD, memory = self._lstm(self._encode(torch.cat([before_CS, audio_CS], dim=1)), state.memory)
        probabilities_C = F.linear(hidden_CD.relu(), *self._output).sigmoid()[:, 0]
        return probabilities_C.numpy(), SileroState(ends_CS[-1].clone(), memory)

    def _encode(self, audio_CS: Tensor) -> Tensor:
        window = self._basis.size(2)
        padded = F.pad(audio_CS[:, None], (0, window // 4), mode="reflect")
        real, imaginary = F.conv1d(padded, self._basis, stride=window // 2).chunk(2, dim=1)
        x = (real.square() + imaginary.square()).sqrt()
        for (weight, bias), stride in zip(self._kernels, _STRIDES, strict=True):
            x = F.conv1d(x, weight, bias, stride, padding=1).relu()
        return x[..., 0]


class SileroState(NamedTuple):
    """State of the model after the chunks so far."""

    context_S: Tensor
    memory: tuple[Tensor, Tensor] | None


def _read_weights(prefix: str) -> dict[str, Tensor]:
    """Read the file of the package without its import, which is slow and sets PyTorch to one thread."""
    package = importlib.util.find_spec("silero_vad")
    assert package is not None and package.origin is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit.load; there is no other file
        state = torch.jit.load(Path(package.origin).parent / "data" / "silero_vad.jit").state_dict()
    return {name[len(prefix) + 1 :]: value for name, value in state.items() if name.startswith(f"{prefix}.")}


@functools.lru_cache
def load_silero(sample_rate: int) -> SileroModel:
    """Load the model once; it has no state, so all recordings share it."""
    return SileroModel(sample_rate)
