"""The one path from audio to tokens: encode, search, check, fall back, choose among speeds.

`asr transcribe`, `asr evaluate`, recipes and studies all decode by `SpeechDecoder`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.audio.reading import change_speed
from asr.decoding.checks import ChecksConfig, CtcText, Evidence, find_faults, is_agreed, is_speech
from asr.decoding.fusion import FusionModel
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, Hypothesis, join_encoded
from asr.decoding.methods import METHODS
from asr.decoding.search import resolve_method, search_encoded
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.models import SpeechModel
from asr.models.decoders import Decoder
from asr.models.encoders import make_clock
from asr.text.tokenizer import Tokenizer

# B utterances, S samples, F features, T frames or encoded steps, U tokens

Name = TypeVar("Name")

# Audio is padded to a multiple of so many encoded steps, and that of equal padded length goes together. So
# the shapes of an utterance's matrices, and with them the rounding, do not depend on its company: a
# Transformer encodes it to the same bits in any batch. The kernels of LSTM and Conformer still differ in the
# last digit.
STEP_MULTIPLE = 16
_CONSTRAINED_CTC_WEIGHT = 0.8  # the decoder may then choose among what CTC finds likely, and no more


@dataclass(frozen=True)
class DecodingSetup:
    """Settings of decoding, and the model that shallow fusion adds."""

    config: DecodingConfig
    language_model: FusionModel | None = None


@dataclass(frozen=True)
class DecodedUtterance:
    """Tokens of an utterance, and how they were found."""

    tokens: tuple[int, ...]
    method: str
    """The one asked for, or the one fallen back to; "" where there is no speech to decode."""
    warnings: tuple[str, ...] = ()
    likelihood: float = 0.0
    """That of the hypothesis; 0, for certain, where nothing was decoded."""

    @property
    def average_log_probability(self) -> float | None:
        """Mean over the tokens and the end; None where nothing was decoded."""
        return self.likelihood / (len(self.tokens) + 1) if self.method else None

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Order of the texts of one utterance at several speeds: speech, few warnings, likely."""
        return bool(self.method), -len(self.warnings), self.likelihood


@dataclass
class DecodedBatch:
    """A batch decoded by one setup."""

    at_speeds: dict[float, tuple[EncodedAudio, list[DecodedUtterance]]]
    seconds: float = 0.0
    """Of computing."""

    @property
    def best(self) -> list[tuple[float, DecodedUtterance]]:
        """The speed to choose for each utterance, and what was decoded there."""
        found = {speed: utterances for speed, (_, utterances) in self.at_speeds.items()}
        rows = range(len(next(iter(found.values()))))
        speeds = [max(found, key=lambda speed: found[speed][row].rank) for row in rows]
        return [(speed, found[speed][row]) for row, speed in enumerate(speeds)]


class SpeechDecoder:
    """A model with all that stands between samples and tokens."""

    def __init__(
        self,
        model: SpeechModel,
        front_end: FrontEnd,
        tokenizer: Tokenizer,
        checks: ChecksConfig | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device, self.dtype = device or torch.device("cpu"), dtype
        self.model = model.to(self.device).eval()
        self.front_end = front_end.to(self.device)
        self.tokenizer = tokenizer
        self.checks = checks or ChecksConfig()
        self.sample_rate = front_end.config.sample_rate
        self.clock = make_clock(front_end.config, model.encoder)

    def decode_batch(
        self, audio: Sequence[np.ndarray], setups: Mapping[Name, DecodingSetup]
    ) -> dict[Name, DecodedBatch]:
        """Decode by every setup what is encoded once at each speed; all speeds of a setup in one search."""
        encoded, encoding_seconds = {}, {}
        for speed in sorted({speed for setup in setups.values() for speed in setup.config.speeds}):
            watch = Stopwatch(self.device)
            encoded[speed] = self.encode(audio, speed)
            encoding_seconds[speed] = watch.read()
        batches = {}
        for name, setup in setups.items():
            watch = Stopwatch(self.device)
            speeds = sorted(set(setup.config.speeds))
            found = iter(self.decode(join_encoded([encoded[speed] for speed in speeds]), setup))
            at_speeds = {
                speed: (encoded[speed], list(itertools.islice(found, len(audio)))) for speed in speeds
            }
            seconds = watch.read() + sum(encoding_seconds[speed] for speed in speeds)
            batches[name] = DecodedBatch(at_speeds, seconds)
        return batches

    def padded_frames(self, num_samples: int, speed: float = 1.0) -> int:
        """Frames that audio is padded to. At other speeds they follow from those at the usual one, as batches
        do."""
        multiple = STEP_MULTIPLE * self.model.subsampling_factor
        num_frames = max(1, -(-self.front_end.num_frames(num_samples) // multiple)) * multiple
        if speed != 1.0:
            features = self.front_end.config
            most_ms = num_frames * features.shift_ms + features.window_ms
            num_frames = -(-math.ceil(most_ms / speed / features.shift_ms) // multiple) * multiple
        return num_frames

    @torch.inference_mode()
    def encode(self, audio: Sequence[np.ndarray], speed: float = 1.0) -> EncodedAudio:
        """Encode a batch, played at a speed."""
        num_frames = self.padded_frames(max(map(len, audio)), speed)
        played = [change_speed(audio_S, speed, self.sample_rate) for audio_S in audio]
        features_BTF, lengths_B = self.front_end(*pad_audio(played, self.device))
        padded_BTF = F.pad(features_BTF, (0, 0, 0, num_frames - features_BTF.size(1)))
        with self.arithmetic():
            try:
                encoded = EncodedAudio(self.model, *self.model.encode(padded_BTF, lengths_B))
            except UserError:  # the multiple may be longer than a model can take, and the audio not
                encoded = EncodedAudio(self.model, *self.model.encode(features_BTF, lengths_B))
            if self.model.ctc_head is not None:
                _ = encoded.ctc_BTV  # here, where its time counts for the encoder
        return encoded

    @torch.inference_mode()
    def decode(self, encoded: EncodedAudio, setup: DecodingSetup) -> list[DecodedUtterance]:
        """Decode, and decode again what has faults: by CTC, which cannot go astray, then by the decoder held
        close to CTC. If nothing is without faults, the first with the fewest is taken.

        With checks off, what was decoded first stands.
        """
        with self.arithmetic():
            attempts = plan_attempts(self.model, setup.config)
            if not self.checks.are_on:
                return self._decode_once(encoded, attempts[0], setup.language_model)
            return self._decode_checked(encoded, attempts, setup.language_model)

    def _decode_once(
        self, encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None
    ) -> list[DecodedUtterance]:
        found = search_encoded(encoded, config, language_model)
        return [
            DecodedUtterance(best.tokens, config.method, (), best.likelihood) if length else _NOTHING
            for (best, *_), length in zip(found, encoded.lengths_B.tolist(), strict=True)
        ]

    def _decode_checked(
        self, encoded: EncodedAudio, attempts: list[DecodingConfig], language_model: FusionModel | None
    ) -> list[DecodedUtterance]:
        lengths = encoded.lengths_B.tolist()
        texts = self._read_ctc(encoded)
        tried: list[list[tuple[list[str], DecodedUtterance]]] = [[] for _ in lengths]
        open_rows = [row for row, text in enumerate(texts) if lengths[row] and is_speech(text, self.checks)]
        dropped = {row: _drop(texts[row], []) for row in range(len(lengths)) if row not in open_rows}
        for attempt in attempts:
            if not open_rows:
                break
            rows_B = torch.tensor(open_rows, device=encoded.lengths_B.device)
            found = search_encoded(encoded.select(rows_B), attempt, language_model)
            for row, (best, *_) in zip(open_rows, found, strict=True):
                evidence = self._gather(best, texts[row], lengths[row])
                faults = [f"{attempt.method}: {fault}" for fault in find_faults(evidence, self.checks)]
                decoded = DecodedUtterance(best.tokens, attempt.method, (), best.likelihood)
                tried[row].append((faults, decoded))
                if not is_agreed(evidence, self.checks):
                    dropped[row] = _drop(texts[row], faults)
            open_rows = [row for row in open_rows if tried[row][-1][0] and row not in dropped]
        return [dropped.get(row) or _choose(own) for row, own in enumerate(tried)]

    def _read_ctc(self, encoded: EncodedAudio) -> list[CtcText | None]:
        """Read the best path of the CTC head through each utterance."""
        if self.model.ctc_head is None:
            return [None] * len(encoded.lengths_B)
        paths = encoded.ctc_paths
        columns = (
            paths.tokens_BU,
            paths.steps_BU,
            paths.log_probabilities_BU,
            paths.counts_B,
            paths.path_log_probability_B,
        )
        texts: list[CtcText | None] = []
        for tokens, steps, values, count, whole in zip(*(column.tolist() for column in columns), strict=True):
            own = tokens[:count]
            mean = sum(values[:count]) / count if count else -math.inf
            texts.append(CtcText(tuple(own), tuple(steps[:count]), self.tokenizer.decode(own), mean, whole))
        return texts

    def _gather(self, best: Hypothesis, ctc: CtcText | None, num_steps: int) -> Evidence:
        return Evidence(
            tokens=best.tokens,
            text=self.tokenizer.decode(best.tokens),
            seconds=num_steps * self.clock.seconds_per_step,
            seconds_per_step=self.clock.seconds_per_step,
            attended_steps=best.attended_steps,
            log_probability=best.log_probability,
            ctc=ctc,
            ctc_log_probability=best.ctc_log_probability,
        )

    def arithmetic(self) -> contextlib.AbstractContextManager[None]:
        return arithmetic(self.device, self.dtype)


def plan_attempts(model: SpeechModel, config: DecodingConfig) -> list[DecodingConfig]:
    """List the decoding asked for, then its fallbacks, as far as the model has the heads."""
    asked = config.model_copy(update={"method": resolve_method(model, config.method), "nbest": 1})
    attempts = [asked]
    if model.ctc_head is not None and asked.method != "ctc_beam":
        attempts.append(asked.model_copy(update={"method": "ctc_beam"}))
    if isinstance(model.decoder, Decoder):
        narrow = {"beam": max(1, asked.beam // 3)}
        if model.ctc_head is None:
            attempts.append(asked.model_copy(update=narrow))
        elif METHODS[asked.method].decoder:
            held = {"method": "joint", "ctc_weight": max(asked.ctc_weight, _CONSTRAINED_CTC_WEIGHT)}
            attempts.append(asked.model_copy(update=narrow | held))
    return attempts


_NOTHING = DecodedUtterance((), "")


def _drop(ctc: CtcText | None, faults: Sequence[str]) -> DecodedUtterance:
    if ctc is None or not ctc.tokens:
        return _NOTHING
    return DecodedUtterance((), "", (f"no clear speech: {ctc.text!r} was dropped", *faults))


def _choose(attempts: list[tuple[list[str], DecodedUtterance]]) -> DecodedUtterance:
    """The first with the fewest faults, with a warning of all that was wrong on the way to it."""
    best = min(range(len(attempts)), key=lambda index: len(attempts[index][0]))
    faults = tuple(fault for own, _ in attempts[: best + 1] for fault in own)
    return replace(attempts[best][1], warnings=faults)


# --- computing ----------------------------------------------------------------------------------


def pad_audio(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, S) samples and (B,) their numbers."""
    lengths = [len(row) for row in rows]
    audio_BS = torch.zeros(len(rows), max(lengths))
    for row, length in enumerate(lengths):
        audio_BS[row, :length] = torch.from_numpy(rows[row])
    return audio_BS.to(device), torch.tensor(lengths, device=device)


def batch_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Numbers of the rows of batches, of equal length each; the first row is in the first batch."""
    rows_of: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows_of.setdefault(length, []).append(row)
    batches = [
        rows[first : first + batch_size]
        for rows in rows_of.values()
        for first in range(0, len(rows), batch_size)
    ]
    return sorted(batches)


@contextlib.contextmanager
def arithmetic(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Compute matrix products in this type."""
    with contextlib.ExitStack() as stack:
        if dtype != torch.float32:
            stack.enter_context(torch.autocast(device.type, dtype))
        elif device.type == "cuda":
            # By default cuDNN rounds the factors of a float32 convolution to 10 bits.
            stack.enter_context(torch.backends.cudnn.flags(allow_tf32=False))
        yield


class Stopwatch:
    """Seconds of work, on a GPU too, where calls return before their work is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin = self._now()

    def read(self) -> float:
        return self._now() - self._begin

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
