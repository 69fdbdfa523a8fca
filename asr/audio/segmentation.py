"""Segmentation: find speech, and cut recordings of any length, read block by block, between pauses.

Speech is found by the model of the package silero-vad, or by its energy over the noise. Memory holds one
segment and what the search for the next cut looks ahead, however long the recording is.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import warnings
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.audio.sources import Recording
from asr.config import Config
from asr.errors import UserError

# S samples, T frames of 10 ms, C chunks of 32 ms, D dimension

FRAMES_PER_SECOND = 100
SHORTEST_SECONDS = 0.05  # of a recording with a word in it
INNER_PAUSE_SECONDS = 0.5  # between two spans of speech of one segment
MIN_PAUSE_SECONDS = 0.2  # a shorter one is a part of speech, such as the stop in a t
UNJUDGED_SECONDS = 3.0  # a shorter recording is one segment: too little to measure the noise in it
OVERLAP_SHARE = 0.05  # of the longest segment, at most a second, that both sides of a cut in speech hold

SILENCE_DB = -80.0  # of full scale: the rounding of 16 bits lies 20 dB below, the quietest speech above
_THRESHOLD_DB = (
    8.0  # speech begins so far over the noise, and ends at half of that; white noise varies by 2 dB
)
_AHEAD_SECONDS = 10.0  # after a frame, where its noise is measured
_PAST_SECONDS = 20.0  # and before it
_NOISE_SHARE = 0.1  # of these frames, at least so many hold no speech: even fast talkers close their lips
_PRE_EMPHASIS = 0.97  # or hum and rumble would hide the speech

SILERO_RATES = (8_000, 16_000)  # Hz
_SILERO_HYSTERESIS = 0.15  # its authors': so far below the probability where speech begins, it ends


class SegmentationConfig(Config):
    """Segmentation of recordings by voice activity."""

    method: Literal["auto", "silero", "energy", "none"] = "auto"
    """silero: the model of the package silero-vad, which knows speech from music, for models that hear 8 or
    16 kHz. energy: speech is what is louder than the noise around it. auto: silero where the rate allows it,
    else energy. none: no cut, the whole recording is one segment."""
    max_seconds: float = pydantic.Field(default=20.0, ge=1)
    """Longest segment, never longer than the longest utterance that the model was trained on. Whisper, which
    hears 30 s at once however short a segment is, has 28 here unless told otherwise."""
    min_seconds: float = pydantic.Field(default=8.0, gt=0)
    """Speech that goes on past max_seconds is not cut before so many seconds. Whisper: 15."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> SegmentationConfig:
        if not self.overlap_seconds < self.min_seconds < self.max_seconds - 2 * self.overlap_seconds:
            raise ValueError(
                f"min_seconds = {self.min_seconds} does not go with max_seconds = {self.max_seconds}: "
                f"expected {OVERLAP_SHARE:.0%} to {1 - 2 * OVERLAP_SHARE:.0%} of it"
            )
        return self

    @property
    def overlap_seconds(self) -> float:
        """Audio that both sides share where speech is cut without a pause; their common words are joined."""
        return min(1.0, OVERLAP_SHARE * self.max_seconds)

    def limited(self, max_seconds: float) -> SegmentationConfig:
        """The same with segments of at most so many seconds, and the shortest in proportion."""
        if max_seconds >= self.max_seconds:
            return self
        min_seconds = self.min_seconds * max_seconds / self.max_seconds
        return self.model_copy(update={"max_seconds": max_seconds, "min_seconds": min_seconds})

    def with_rules(self, **changed: float) -> CuttingRules:
        return CuttingRules(**{**self.model_dump(), **changed})


class CuttingRules(SegmentationConfig):
    """All rules of cutting: the settings, and what a kind of model or a client of the server changes."""

    max_pause_seconds: float = 0.5
    """A longer pause always ends a segment; at shorter ones cuts are made only where max_seconds asks."""
    padding_seconds: float = 0.3
    """Kept before and after speech: weak sounds at its edges."""
    speech_threshold: float = 0.5
    """silero: speech begins where it is at least so likely."""


@dataclass(frozen=True)
class AudioSegment:
    """A segment of a recording."""

    start: float
    """Seconds from the start of the recording."""
    audio_S: np.ndarray
    sample_rate: int
    cut_before: float | None = None
    """Second at which speech was cut without a pause: this segment begins earlier, the other ends later."""
    cut_after: float | None = None
    """The same at the end."""
    speech: tuple[tuple[float, float], ...] = ()
    """Begin and end of each span of speech in it, in seconds of the recording, with pauses of at least
    INNER_PAUSE_SECONDS between; empty where nobody has looked."""
    recording: Recording = field(default_factory=Recording)
    """Recording that the segment was cut from."""

    @property
    def end(self) -> float:
        return self.start + len(self.audio_S) / self.sample_rate


def split_at_pauses(segment: AudioSegment) -> list[AudioSegment]:
    """Cut in the middle of each pause between its spans of speech."""
    pauses = [(end + start) / 2 - segment.start for (_, end), (start, _) in pairwise(segment.speech)]
    places = [0, *(round(pause * segment.sample_rate) for pause in pauses), len(segment.audio_S)]
    return [
        replace(
            segment,
            start=segment.start + first / segment.sample_rate,
            audio_S=segment.audio_S[first:past],
            speech=(span,),
        )
        for (first, past), span in zip(pairwise(places), segment.speech, strict=True)
    ]


class Segmenter:
    """Cutter of a stream of samples into segments, each given as soon as its end is certain."""

    def __init__(
        self,
        sample_rate: int,
        config: SegmentationConfig,
        offset: float = 0.0,
        whole_seconds: float = 0.0,
        is_live: bool = False,
    ) -> None:
        """A recording of at most `whole_seconds`, if there is speech in it, is one segment. Live, nothing is
        looked at ahead: the noise is what it was until now."""
        self.sample_rate, self.offset, self.whole_seconds = sample_rate, offset, whole_seconds
        self.rules = config if isinstance(config, CuttingRules) else config.with_rules()
        self.frame_samples = sample_rate / FRAMES_PER_SECOND  # frames may begin between two samples
        self._detector = make_detector(self.rules, sample_rate, 0.0 if is_live else _AHEAD_SECONDS)
        self._unjudged_seconds = 0.0 if is_live else UNJUDGED_SECONDS
        self._padding = _count_frames(self.rules.padding_seconds)
        self._blocks = [np.zeros(0, np.float32)]  # from sample _audio_first on
        self._audio_first = self._num_samples = 0
        self._is_speech_T = np.zeros(0, bool)  # from frame _first on
        self._first = 0
        self._next = 0  # the first frame that belongs to no segment yet
        self._cut_before: float | None = None
        self._has_given = False

    @property
    def seconds(self) -> float:
        """Seconds taken so far."""
        return self._num_samples / self.sample_rate

    def push(self, block_S: np.ndarray) -> list[AudioSegment]:
        self._blocks.append(block_S)
        self._num_samples += len(block_S)
        if self._detector is None:
            return []
        self._is_speech_T = np.concatenate([self._is_speech_T, self._detector.push(block_S)])
        return [] if self.seconds <= self.whole_seconds else self._take(is_last=False)

    def finish(self) -> list[AudioSegment]:
        """The rest; nothing can be pushed after."""
        whole = [AudioSegment(self.offset, self._audio, self.sample_rate)]
        if self._detector is None:
            return whole if self._num_samples else []
        self._is_speech_T = np.concatenate([self._is_speech_T, self._detector.finish()])
        if self.seconds <= self.whole_seconds and self._is_speech_T.any():
            return [self._cut_out(0, self._num_samples / self.frame_samples, None)]
        segments = self._take(is_last=True)
        is_short = SHORTEST_SECONDS <= self.seconds <= self._unjudged_seconds
        is_silent = self._measure(self._first, self._known).max(initial=SILENCE_DB) <= SILENCE_DB
        return whole if is_short and not is_silent and not self._has_given else segments

    def current(self) -> AudioSegment | None:
        """The segment that has begun and is not over, up to the newest sample; None in a pause."""
        speech_T = self._find_speech()
        if not speech_T:
            return None
        return self._cut_out(self._begin(speech_T[0]), self._num_samples / self.frame_samples, None)

    def ending(self) -> AudioSegment | None:
        """The segment that the present pause will end as it is, unless someone goes on to speak."""
        speech_T = self._find_speech()
        if not speech_T or self._known - 1 - speech_T[-1] < self._padding:
            return None
        return self._cut_out(self._begin(speech_T[0]), speech_T[-1] + 1 + self._padding, None)

    # --- frames ---------------------------------------------------------------------------------

    def _find_speech(self) -> list[int]:
        """Frames of speech that belong to no segment yet."""
        return (self._next + np.flatnonzero(self._is_speech_T[self._next - self._first :])).tolist()

    @property
    def _known(self) -> int:
        return self._first + len(self._is_speech_T)

    @property
    def _audio(self) -> np.ndarray:
        """The blocks as one, joined when it is asked for: with method none there may be hours of them."""
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def _measure(self, first: int, past: int) -> np.ndarray:
        """Energies of frames, measured from the frame before on, whose last sample pre-emphasis needs."""
        before = max(first - 1, self._first)
        begin, end = (
            math.floor(frame * self.frame_samples) - self._audio_first for frame in (before, past + 1)
        )
        energies_T = _Energies(self.sample_rate, before).push(self._audio[begin:end])
        return energies_T[first - before : past - before]

    def _take(self, is_last: bool) -> list[AudioSegment]:
        segments = []
        while (segment := self._next_segment(is_last)) is not None:
            segments.append(segment)
        self._has_given = self._has_given or bool(segments)
        self._forget()
        return segments

    def _next_segment(self, is_last: bool) -> AudioSegment | None:
        """The first one whose end is certain."""
        known, padding = self._known, self._padding
        speech_T = self._find_speech()
        if not speech_T:
            self._next, self._cut_before = max(self._next, known - padding), None
            return None
        begin, start = speech_T[0], self._begin(speech_T[0])
        limit = start + _count_frames(self.rules.max_seconds)
        longest_pause = _count_frames(self.rules.max_pause_seconds)
        certain = max(longest_pause, 2 * padding)  # then a pause ends a segment
        shortest_pause = min(_count_frames(MIN_PAUSE_SECONDS), longest_pause)
        silent = _find_runs(~self._is_speech_T[begin - self._first :])
        pauses = [(begin + a, begin + b) for a, b in silent if b - a >= shortest_pause]
        for first, past in pauses:
            # One that goes on at the newest frame must be long enough for the padding of both sides.
            enough = certain if past == known else longest_pause
            if past - first >= enough and first <= limit - padding:
                end = first + min(padding, (past - first) // 2)
                return self._emit(start, end, max(past - padding, end))
        horizon = limit + certain  # what is known beyond depends on the sizes of the blocks
        if known >= horizon or (is_last and known >= limit):
            return self._cut(start, limit, [(first, min(past, horizon)) for first, past in pauses])
        if is_last:
            end = min(speech_T[-1] + 1 + padding, known)
            rest = self._num_samples / self.frame_samples  # a part of a frame at the end belongs to it
            return self._emit(start, rest if end == known else end, known)
        return None

    def _begin(self, speech: int) -> int:
        """First frame of a segment whose speech begins at a frame."""
        if self._cut_before is not None:
            return self._next
        return max(self._next, speech - self._padding)

    def _cut(self, start: int, limit: int, pauses: list[tuple[int, int]]) -> AudioSegment:
        """Speech goes on past the limit: cut in its longest late pause, else at its quietest place."""
        earliest = start + _count_frames(self.rules.min_seconds)
        inside = [(a, b) for a, b in pauses if earliest <= (a + b) // 2 <= limit and a < limit]
        if inside:
            first, past = max(inside, key=lambda pause: pause[1] - pause[0])
            middle = min((first + past) // 2, limit)
            return self._emit(start, middle, middle)
        overlap = _count_frames(self.rules.overlap_seconds)
        latest = limit - overlap
        quiet_T = smooth(self._measure(earliest, latest), 9)
        place = earliest + int(np.argmin(quiet_T))
        return self._emit(start, place + overlap, place - overlap, place)

    def _emit(self, start: int, end: float, next_frame: int, cut: int | None = None) -> AudioSegment:
        cut_after = None if cut is None else self.offset + cut / FRAMES_PER_SECOND
        segment = self._cut_out(start, end, cut_after)
        self._next, self._cut_before = next_frame, cut_after
        return segment

    def _cut_out(self, start: int, end: float, cut_after: float | None) -> AudioSegment:
        first, past = round(start * self.frame_samples), round(end * self.frame_samples)
        audio_S = self._audio[first - self._audio_first : past - self._audio_first].copy()
        time = self.offset + first / self.sample_rate
        is_speech_T = self._is_speech_T[start - self._first : math.floor(end) - self._first]
        spans: list[tuple[int, int]] = []
        for span in _find_runs(is_speech_T):
            is_near = spans and span[0] - spans[-1][1] < _count_frames(INNER_PAUSE_SECONDS)
            spans.append((spans.pop()[0], span[1]) if is_near else span)
        second = [self.offset + (start + frame) / FRAMES_PER_SECOND for span in spans for frame in span]
        speech = tuple(zip(second[::2], second[1::2], strict=True))
        return AudioSegment(time, audio_S, self.sample_rate, self._cut_before, cut_after, speech)

    def _forget(self) -> None:
        """Drop audio that no later segment can hold."""
        if self.seconds <= self._unjudged_seconds:
            return
        keep = max(self._next - 1, self._first)
        self._is_speech_T = self._is_speech_T[keep - self._first :]
        self._first = keep
        first_sample = math.floor(keep * self.frame_samples)
        self._blocks = [self._audio[first_sample - self._audio_first :]]
        self._audio_first = first_sample


def _count_frames(seconds: float) -> int:
    return round(seconds * FRAMES_PER_SECOND)


def _find_runs(is_on_T: np.ndarray) -> list[tuple[int, int]]:
    """First and past-the-end frame of each run of frames that are on."""
    edges_T = np.flatnonzero(np.diff(is_on_T.astype(np.int8), prepend=0, append=0))
    return list(zip(edges_T[::2].tolist(), edges_T[1::2].tolist(), strict=True))


# --- detectors ----------------------------------------------------------------------------------


def make_detector(
    rules: CuttingRules, sample_rate: int, ahead_seconds: float
) -> EnergyDetector | SileroDetector | None:
    """Build a detector, which tells for each frame of the blocks that it takes whether it is speech."""
    if rules.method == "none":
        return None
    if rules.method == "silero" or (rules.method == "auto" and sample_rate in SILERO_RATES):
        return SileroDetector(sample_rate, rules.speech_threshold)
    return EnergyDetector(sample_rate, ahead_seconds)


def measure_energies(audio_S: np.ndarray, sample_rate: int) -> np.ndarray:
    """The energy of each whole frame of 10 ms in dB of full scale, high frequencies raised."""
    return _Energies(sample_rate).push(audio_S)


class _Energies:
    """The same as `measure_energies`, for audio that comes in blocks."""

    def __init__(self, sample_rate: int, first_frame: int = 0) -> None:
        self._frame_samples = sample_rate / FRAMES_PER_SECOND
        self._rest = np.zeros(0)
        self._last = 0.0
        self._num_frames = first_frame
        self._position = math.floor(first_frame * self._frame_samples)  # of the first sample in _rest

    def push(self, block_S: np.ndarray) -> np.ndarray:
        block = block_S.astype(np.float64)
        emphasized = block - _PRE_EMPHASIS * np.concatenate([[self._last], block[:-1]])
        self._last = float(block[-1]) if len(block) else self._last
        self._rest = np.concatenate([self._rest, emphasized**2])
        count = int((self._position + len(self._rest)) / self._frame_samples) - self._num_frames
        frames = np.arange(self._num_frames, self._num_frames + count + 1)
        edges = np.floor(frames * self._frame_samples).astype(int) - self._position
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

    def __init__(self, sample_rate: int, ahead_seconds: float) -> None:
        self._energies = _Energies(sample_rate)
        self._ahead = round(ahead_seconds * FRAMES_PER_SECOND)
        self._near_T = np.zeros(0)  # the frames in whose middle the next to be judged stands
        self._judged = 0  # how many of them are
        self._was_speech = False

    def push(self, block_S: np.ndarray) -> np.ndarray:
        self._near_T = np.concatenate([self._near_T, self._energies.push(block_S)])
        past = len(self._near_T) - self._ahead
        # By whole seconds, so that the sizes of the blocks change nothing; live, at once.
        return self._judge(past - past % FRAMES_PER_SECOND if self._ahead else past)

    def finish(self) -> np.ndarray:
        return self._judge(len(self._near_T))

    def _judge(self, past: int) -> np.ndarray:
        """Frames up to `past`, a second at a time: each second has its own noise."""
        judged = [np.zeros(0, bool)]
        while self._judged < past:
            stop = min(self._judged + FRAMES_PER_SECOND, past)
            noise = float(np.quantile(self._near_T[: stop + self._ahead], _NOISE_SHARE))
            own_T = self._near_T[max(self._judged - 1, 0) : stop + 1]
            smooth_T = smooth(own_T, 3)[min(self._judged, 1) :][: stop - self._judged]
            is_on_T, is_off_T = smooth_T > noise + _THRESHOLD_DB, smooth_T <= noise + _THRESHOLD_DB / 2
            judged.append(_apply_hysteresis(is_on_T, is_off_T, self._was_speech))
            self._was_speech = bool(judged[-1][-1])
            drop = max(0, stop - round(_PAST_SECONDS * FRAMES_PER_SECOND))
            self._near_T, self._judged, past = self._near_T[drop:], stop - drop, past - drop
        return np.concatenate(judged)


def _apply_hysteresis(is_on_T: np.ndarray, is_off_T: np.ndarray, was_on: bool) -> np.ndarray:
    """Fill in what is neither on nor off: as the frame before."""
    last_T = np.maximum.accumulate(np.where(is_on_T | is_off_T, np.arange(len(is_on_T)), -1))
    return np.where(last_T < 0, was_on, is_on_T[last_T])


class SileroDetector:
    """Detector by the model of silero-vad, which knows speech from music and noise, for 8 and 16 kHz."""

    def __init__(self, sample_rate: int, threshold: float) -> None:
        if sample_rate not in SILERO_RATES:
            raise UserError(
                f"segmentation.method = silero knows 8000 and 16000 Hz, but the model takes {sample_rate}; "
                "use energy"
            )
        self._threshold = threshold
        self._model = load_silero(sample_rate)
        self._state: Any = None
        self._frame_samples = sample_rate / FRAMES_PER_SECOND
        self._chunk_frames = self._model.chunk_samples / self._frame_samples
        self._rest = np.zeros(0, np.float32)  # less than a chunk
        self._num_samples = self._num_judged = 0
        self._is_speech_C = np.zeros(0, bool)  # of the chunks from _first_chunk on
        self._first_chunk = 0
        self._was_speech = False

    def push(self, block_S: np.ndarray) -> np.ndarray:
        self._num_samples += len(block_S)
        return self._judge(block_S)

    def finish(self) -> np.ndarray:
        return self._judge(np.zeros(self._model.chunk_samples - len(self._rest), np.float32))

    def _judge(self, block_S: np.ndarray) -> np.ndarray:
        """Ask the model about each whole chunk; the frames that these cover."""
        audio_S, size = np.concatenate([self._rest, block_S]), self._model.chunk_samples
        past = len(audio_S) - len(audio_S) % size
        chunks_CS, self._rest = audio_S[:past].reshape(-1, size), audio_S[past:]
        likely_C, self._state = self._model(chunks_CS, self._state)
        is_off_C = likely_C <= self._threshold - _SILERO_HYSTERESIS
        flags_C = _apply_hysteresis(likely_C > self._threshold, is_off_C, self._was_speech)
        self._was_speech = bool(flags_C[-1]) if len(flags_C) else self._was_speech
        self._is_speech_C = np.concatenate([self._is_speech_C, flags_C])
        covered = int((self._first_chunk + len(self._is_speech_C)) * self._chunk_frames)
        stop = min(covered, int(self._num_samples / self._frame_samples))
        chunk_T = (np.arange(self._num_judged, stop) / self._chunk_frames).astype(int)
        flags_T, self._num_judged = self._is_speech_C[chunk_T - self._first_chunk], stop
        done = int(stop / self._chunk_frames) - self._first_chunk
        self._is_speech_C, self._first_chunk = self._is_speech_C[done:], self._first_chunk + done
        return flags_T


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

    @torch.inference_mode()
    def forward(self, chunks_CS: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        """(C,) probabilities, and the state after the last chunk; None before the first one."""
        if not len(chunks_CS):
            return np.zeros(0, np.float32), state
        context_S, memory = state or (torch.zeros(self._context_samples), None)
        audio_CS = torch.from_numpy(chunks_CS)
        ends_CS = audio_CS[:, -self._context_samples :]
        before_CS = torch.cat([context_S[None], ends_CS[:-1]])
        hidden_CD, memory = self._lstm(self._encode(torch.cat([before_CS, audio_CS], dim=1)), memory)
        likely_C = F.linear(hidden_CD.relu(), *self._output).sigmoid()[:, 0]
        return likely_C.numpy(), (ends_CS[-1].clone(), memory)

    def _encode(self, audio_CS: Tensor) -> Tensor:
        window = self._basis.size(2)
        padded = F.pad(audio_CS[:, None], (0, window // 4), mode="reflect")
        real, imaginary = F.conv1d(padded, self._basis, stride=window // 2).chunk(2, dim=1)
        x = (real.square() + imaginary.square()).sqrt()
        for (weight, bias), stride in zip(self._kernels, _STRIDES, strict=True):
            x = F.conv1d(x, weight, bias, stride, padding=1).relu()
        return x[..., 0]


def _read_weights(prefix: str) -> dict[str, Tensor]:
    """Read the file of the package without its import, which is slow and sets PyTorch to one thread."""
    package = importlib.util.find_spec("silero_vad")
    assert package is not None and package.origin is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.load is deprecated; at 8 kHz there is no other file
        state = torch.jit.load(Path(package.origin).parent / "data" / "silero_vad.jit").state_dict()
    return {name[len(prefix) + 1 :]: value for name, value in state.items() if name.startswith(f"{prefix}.")}


@functools.lru_cache
def load_silero(sample_rate: int) -> SileroModel:
    """Load the model once; it has no state, so all recordings share it."""
    return SileroModel(sample_rate)
