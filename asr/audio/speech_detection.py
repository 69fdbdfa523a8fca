"""Detect speech in a stream with the silero-vad model, which distinguishes it from music and noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

# S samples, T frames of 10 ms, C chunks of 32 ms

RATES = (8_000, 16_000)  # Hz
_HYSTERESIS = 0.15  # speech ends this far below the threshold at which it begins (the authors' value)


def load_silero(sample_rate: int) -> DetectorModel:
    """Load the network in PyTorch."""
    from asr.audio import silero

    return silero.load_silero(sample_rate)


class DetectorModel(Protocol):
    """The network: probabilities (C,) of speech in chunks, and the state after the last one."""

    chunk_samples: int

    def __call__(self, chunks_CS: np.ndarray, state: Any) -> tuple[np.ndarray, Any]: ...


class SileroDetector:
    """Speech detector for a stream: returns a bool for each 10 ms frame.

    Audio at rates other than 8 and 16 kHz is resampled to 16 kHz.
    """

    def __init__(
        self, sample_rate: int, threshold: float, load: Callable[[], DetectorModel] | None = None
    ) -> None:
        """`load` returns the network for 16 kHz; by default it is that of `asr.audio.silero`."""
        self._threshold = threshold
        rate = sample_rate if load is None and sample_rate in RATES else RATES[-1]
        self._stream = None
        if rate != sample_rate:
            import soxr

            self._stream = soxr.ResampleStream(sample_rate, rate, num_channels=1, dtype="float32")
        self._model = load_silero(rate) if load is None else load()
        self._state: Any = None
        self._frame_samples = sample_rate / 100
        self._chunk_frames = self._model.chunk_samples / (rate / 100)
        self._rest = np.zeros(0, np.float32)  # less than a chunk
        self._num_samples = self._num_detected = 0
        self._is_speech_C = np.zeros(0, bool)  # starting with chunk _first_chunk
        self._first_chunk = 0
        self._was_speech = False

    def push(self, block_S: np.ndarray) -> np.ndarray:
        self._num_samples += len(block_S)
        return self._detect(block_S if self._stream is None else self._stream.resample_chunk(block_S))

    def finish(self) -> np.ndarray:
        last_S = np.zeros(0, np.float32)
        if self._stream is not None:
            last_S = self._stream.resample_chunk(last_S, last=True)
        size = self._model.chunk_samples
        missing = -(len(self._rest) + len(last_S)) % size or size
        return self._detect(np.concatenate([last_S, np.zeros(missing, np.float32)]))

    def _detect(self, block_S: np.ndarray) -> np.ndarray:
        """Run the model on each complete chunk, and return the flags of the frames that these cover."""
        audio_S, size = np.concatenate([self._rest, block_S]), self._model.chunk_samples
        past = len(audio_S) - len(audio_S) % size
        chunks_CS, self._rest = audio_S[:past].reshape(-1, size), audio_S[past:]
        probability_C, self._state = self._model(chunks_CS, self._state)
        is_off_C = probability_C <= self._threshold - _HYSTERESIS
        flags_C = _apply_hysteresis(probability_C > self._threshold, is_off_C, self._was_speech)
        self._was_speech = bool(flags_C[-1]) if len(flags_C) else self._was_speech
        self._is_speech_C = np.concatenate([self._is_speech_C, flags_C])
        covered = int((self._first_chunk + len(self._is_speech_C)) * self._chunk_frames)
        stop = min(covered, int(self._num_samples / self._frame_samples))
        chunk_T = (np.arange(self._num_detected, stop) / self._chunk_frames).astype(int)
        flags_T, self._num_detected = self._is_speech_C[chunk_T - self._first_chunk], stop
        done = int(stop / self._chunk_frames) - self._first_chunk
        self._is_speech_C, self._first_chunk = self._is_speech_C[done:], self._first_chunk + done
        return flags_T


def _apply_hysteresis(is_on_T: np.ndarray, is_off_T: np.ndarray, was_on: bool) -> np.ndarray:
    """Return flags; a frame that is neither on nor off keeps the state of the frame before it."""
    last_T = np.maximum.accumulate(np.where(is_on_T | is_off_T, np.arange(len(is_on_T)), -1))
    return np.where(last_T < 0, was_on, is_on_T[last_T])
