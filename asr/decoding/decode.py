"""Decode audio to tokens: encode, search by a method, check, fall back, choose among speed factors.

`asr transcribe`, `asr evaluate`, recipes and studies all decode by `SpeechDecoder`.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from asr.audio.reading import change_speed
from asr.decoding.beam import decode_by_ctc_beam, decode_by_rescoring, decode_jointly, rescore, search_beams
from asr.decoding.hypothesis import (
    ChecksConfig,
    CtcText,
    DecodingConfig,
    EncodedAudio,
    Evidence,
    FusionModel,
    Hypothesis,
    NBest,
    find_faults,
    is_agreed,
    is_speech,
    join_encoded,
)
from asr.decoding.timestamps import TokenTime, align_by_attention, align_by_ctc
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.models import SpeechModel
from asr.models.decoders import Decoder
from asr.models.encoders import make_frame_times
from asr.models.layers import length_mask
from asr.text.tokenizer import BLANK_ID, Tokenizer

# B utterances, S samples, F features, T frames or encoded steps, U tokens

Name = TypeVar("Name")
Attempt = TypeVar("Attempt")
Result = TypeVar("Result")

# Audio is padded to a multiple of so many encoded steps, and batched by padded length. So the shapes of an
# utterance's matrices, and with them the rounding, do not depend on its neighbors: a Transformer encodes it
# to the same bits in any batch. The kernels of LSTM and Conformer still differ in the last digit.
STEP_MULTIPLE = 16
_CONSTRAINED_CTC_WEIGHT = 0.8  # the decoder then chooses among what CTC finds likely


# --- methods ------------------------------------------------------------------------------------


def decode_by_ctc(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    """The text of each best path, scored by that one alignment."""
    log_probabilities_BTV, lengths_B = encoded.ctc_BTV, encoded.lengths_B
    paths = encoded.ctc_paths
    texts = paths.texts()
    best_BT = log_probabilities_BTV.amax(-1)
    best_BT = best_BT.masked_fill(~length_mask(lengths_B, best_BT.size(1)), 0.0)
    flat = torch.tensor([token for text in texts for token in text], device=lengths_B.device)
    negative_B = F.ctc_loss(
        log_probabilities_BTV.transpose(0, 1), flat, lengths_B, paths.counts_B, BLANK_ID, reduction="none"
    )
    rows = zip(texts, best_BT.double().sum(1).tolist(), negative_B.tolist(), strict=True)
    return [[Hypothesis(tuple(text), score, ctc_log_probability=-loss)] for text, score, loss in rows]


def decode_in_parallel(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None
) -> NBest:
    from asr.research.non_autoregressive_search import decode

    return decode(encoded, config, language_model)


@dataclass(frozen=True)
class DecodingMethod:
    """A function from encoded audio to n-best lists, and the heads of a model that it needs."""

    search: Callable[[EncodedAudio, DecodingConfig, FusionModel | None], NBest]
    needs_ctc: bool
    decoder: str = ""  # kind of decoder that it needs: autoregressive, non-autoregressive or none
    fuses_language_model: bool = True


# The cheapest first.
METHODS: dict[str, DecodingMethod] = {
    "ctc_greedy": DecodingMethod(decode_by_ctc, needs_ctc=True, fuses_language_model=False),
    "parallel": DecodingMethod(decode_in_parallel, False, "non-autoregressive", fuses_language_model=False),
    "ctc_beam": DecodingMethod(decode_by_ctc_beam, needs_ctc=True),
    "attention": DecodingMethod(search_beams, False, "autoregressive"),
    "rescoring": DecodingMethod(decode_by_rescoring, True, "autoregressive"),
    "joint": DecodingMethod(decode_jointly, True, "autoregressive"),
}
PREFERRED: tuple[str, ...] = ("joint", "attention", "parallel", "ctc_beam")  # by auto, the first possible


def offered_methods(model: SpeechModel, with_language_model: bool = False) -> list[str]:
    """All methods that the model supports, the cheapest first; with a language model, those that use it."""
    methods = [name for name in METHODS if not _find_missing(model, name)]
    if with_language_model:
        return [name for name in methods if METHODS[name].fuses_language_model] or methods
    return methods


def resolve_method(model: SpeechModel, method: str) -> str:
    """Resolve auto for this model; reject a method that it has no head for."""
    if method == "auto":
        return next(name for name in PREFERRED if not _find_missing(model, name))
    if method not in METHODS:
        raise UserError(f"decoding method {method}: expected one of auto, {', '.join(METHODS)}")
    if missing := _find_missing(model, method):
        raise UserError(f"decoding method {method} needs {missing}; use {resolve_method(model, 'auto')}")
    return method


def _find_missing(model: SpeechModel, name: str) -> str:
    """Return the head that the method needs and this model lacks; "" if none is missing."""
    method = METHODS[name]
    if method.needs_ctc and model.ctc_head is None:
        return "a CTC head"
    kind = "autoregressive" if isinstance(model.decoder, Decoder) else "non-autoregressive"
    if method.decoder and (model.decoder is None or method.decoder != kind):
        return f"a decoder ({method.decoder})"
    return ""


def check_decoding(model: SpeechModel, config: DecodingConfig, language_model: FusionModel | None) -> str:
    """Return the resolved method; raise a UserError if this model does not support the settings."""
    name = resolve_method(model, config.method)
    if (language_model is None) != (config.language_model_weight == 0):
        mismatch = "there is no language model" if language_model is None else "a language model was given"
        raise UserError(
            f"decoding.language_model_weight = {config.language_model_weight}, but {mismatch}; change either"
        )
    if language_model is not None and not METHODS[name].fuses_language_model:
        instead = "use ctc_beam" if model.ctc_head is not None else "leave it out"
        raise UserError(f"decoding method {name} has no use for a language model; {instead}")
    return name


@torch.inference_mode()
def search_encoded(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None = None
) -> NBest:
    """Search for up to `config.nbest` hypotheses of each utterance, best first; always at least one.

    An utterance without encoded steps has the empty text, with probability 1.
    """
    method = METHODS[check_decoding(encoded.model, config, language_model)]
    assert not encoded.model.training, "decoding requires model.eval(): dropout would change the text"
    has_steps_B = encoded.lengths_B > 0
    some = has_steps_B.nonzero()[:, 0]
    certain = 0.0 if method.decoder else math.nan, 0.0 if method.needs_ctc else math.nan
    results = iter(method.search(encoded.select(some), config, language_model) if len(some) else ())
    return [
        next(results) if has_steps else [Hypothesis((), 0.0, *certain)] for has_steps in has_steps_B.tolist()
    ]


def search_greedy(encoded: EncodedAudio) -> dict[str, list[list[int]]]:
    """Greedy tokens of each utterance by each head, "ctc" and "decoder", for scores during training."""
    tokens = {}
    if encoded.model.ctc_head is not None:
        tokens["ctc"] = encoded.ctc_paths.texts()
    if encoded.model.decoder is not None:
        method: str = "attention" if isinstance(encoded.model.decoder, Decoder) else "parallel"
        ranked = search_encoded(encoded, DecodingConfig(method=method, beam=1))
        tokens["decoder"] = [list(best.tokens) for best, *_ in ranked]
    return tokens


# --- audio to tokens ----------------------------------------------------------------------------


@dataclass(frozen=True)
class DecodingSetup:
    """Settings of decoding, and the model that shallow fusion adds."""

    config: DecodingConfig
    language_model: FusionModel | None = None


@dataclass(frozen=True)
class DecodedUtterance:
    """Tokens of an utterance, and the method that found them."""

    tokens: tuple[int, ...]
    method: str  # the requested method, or the fallback; "" if there is no speech to decode
    warnings: tuple[str, ...] = ()
    likelihood: float = 0.0  # log-probability of the hypothesis; 0 if nothing was decoded

    @property
    def average_log_probability(self) -> float | None:
        """Mean over the tokens and the end; None if nothing was decoded."""
        return self.likelihood / (len(self.tokens) + 1) if self.method else None

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Order of the texts of one utterance at several speeds: speech, few warnings, likely."""
        return bool(self.method), -len(self.warnings), self.likelihood


@dataclass
class DecodedBatch:
    """A batch decoded by one setup."""

    at_speeds: dict[float, tuple[EncodedAudio, list[DecodedUtterance]]]
    seconds: float = 0.0  # compute time

    @property
    def best(self) -> list[tuple[float, DecodedUtterance]]:
        """The speed to choose for each utterance, and its decoded text."""
        decoded = {speed: utterances for speed, (_, utterances) in self.at_speeds.items()}
        rows = range(len(next(iter(decoded.values()))))
        speeds = [max(decoded, key=lambda speed: decoded[speed][row].rank) for row in rows]
        return [(speed, decoded[speed][row]) for row, speed in enumerate(speeds)]


class SpeechDecoder:
    """A model with front end, tokenizer and checks: samples to tokens."""

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
        self.frame_times = make_frame_times(front_end.config, model.encoder)

    def decode_batch(
        self, audio: Sequence[np.ndarray], setups: Mapping[Name, DecodingSetup]
    ) -> dict[Name, DecodedBatch]:
        """Encode once at each speed, decode by every setup; all speeds of a setup in one search."""
        encoded, encoding_seconds = {}, {}
        for speed in sorted({speed for setup in setups.values() for speed in setup.config.speeds}):
            began = read_clock(self.device)
            encoded[speed] = self.encode(audio, speed)
            encoding_seconds[speed] = read_clock(self.device) - began
        batches = {}
        for name, setup in setups.items():
            began = read_clock(self.device)
            speeds = sorted(set(setup.config.speeds))
            decoded = iter(self.decode(join_encoded([encoded[speed] for speed in speeds]), setup))
            at_speeds = {
                speed: (encoded[speed], list(itertools.islice(decoded, len(audio)))) for speed in speeds
            }
            seconds = read_clock(self.device) - began + sum(encoding_seconds[speed] for speed in speeds)
            batches[name] = DecodedBatch(at_speeds, seconds)
        return batches

    def padded_frames(self, num_samples: int, speed: float = 1.0) -> int:
        """Frames that audio is padded to. At other speeds these, like batches, follow from the usual ones."""
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
        with compute_type(self.device, self.dtype):
            try:
                encoded = EncodedAudio(self.model, *self.model.encode(padded_BTF, lengths_B))
            except UserError:  # the multiple may be longer than a model can take, and the audio not
                encoded = EncodedAudio(self.model, *self.model.encode(features_BTF, lengths_B))
            if self.model.ctc_head is not None:
                _ = encoded.ctc_BTV  # here, where its time counts for the encoder
        return encoded

    @torch.inference_mode()
    def decode(self, encoded: EncodedAudio, setup: DecodingSetup) -> list[DecodedUtterance]:
        """Decode, and decode again if there are faults: by CTC, which cannot hallucinate, then by the decoder
        constrained by CTC. If nothing is without faults, the first with the fewest is taken.

        With checks off, the first text is kept.
        """
        lengths = encoded.lengths_B.tolist()
        attempts = plan_attempts(self.model, setup.config)
        with compute_type(self.device, self.dtype):
            ctc_texts = self._read_ctc(encoded) if self.checks.enabled else [None] * len(lengths)

            def run(attempt: DecodingConfig, rows: list[int]) -> Iterator[DecodedUtterance]:
                part = encoded.select(torch.tensor(rows, device=encoded.lengths_B.device))
                nbest = search_encoded(part, attempt, setup.language_model)
                for row, (best, *_) in zip(rows, nbest, strict=True):
                    yield self._check(best, attempt.method, ctc_texts[row], lengths[row])

            rows = [row for row, ctc in enumerate(ctc_texts) if lengths[row] and is_speech(ctc)]
            results = retry(attempts, rows, run, lambda one: not one.warnings or not one.method)
        return [
            _choose(results[row]) if row in results else _drop(ctc, []) for row, ctc in enumerate(ctc_texts)
        ]

    def _check(self, best: Hypothesis, method: str, ctc: CtcText | None, num_steps: int) -> DecodedUtterance:
        step = self.frame_times.seconds_per_step
        evidence = Evidence(best, self.tokenizer.decode(best.tokens), num_steps * step, step, ctc)
        faults = tuple(f"{method}: {fault}" for fault in find_faults(evidence, self.checks))
        if not is_agreed(evidence):
            return _drop(ctc, faults)
        return DecodedUtterance(best.tokens, method, faults, best.likelihood)

    def _read_ctc(self, encoded: EncodedAudio) -> list[CtcText | None]:
        """Read the best path of the CTC head through each utterance."""
        if self.model.ctc_head is None:
            return [None] * len(encoded.lengths_B)
        paths = encoded.ctc_paths
        columns = (paths.steps_BU, paths.log_probabilities_BU, paths.path_log_probability_B)
        texts: list[CtcText | None] = []
        for tokens, steps, values, path in zip(
            paths.texts(), *(column.tolist() for column in columns), strict=True
        ):
            count = len(tokens)
            mean = sum(values[:count]) / count if count else -math.inf
            texts.append(CtcText(tokens, steps[:count], self.tokenizer.decode(tokens), mean, path))
        return texts

    def time_tokens(self, encoded: EncodedAudio, tokens: Sequence[Sequence[int]]) -> list[list[TokenTime]]:
        """Time of each token, by the CTC head, else by cross-attention."""
        if self.model.ctc_head is not None:
            return align_by_ctc(encoded.ctc_BTV.cpu(), encoded.lengths_B, tokens)
        with compute_type(self.device, self.dtype):
            return align_by_attention(self.model, encoded.encoded_BTD, encoded.lengths_B, tokens)

    def score_tokens(self, batch: DecodedBatch) -> list[tuple[float, int]]:
        """Log-probability and number of the tokens of each utterance over all speeds.

        An autoregressive decoder scores them, whatever found the text: CTC gives high probability to
        letters that the decoder has never seen in a row.
        """
        sums = [(0.0, 0)] * len(batch.best)
        for encoded, decoded in batch.at_speeds.values():
            scores = [one.likelihood for one in decoded]
            if isinstance(self.model.decoder, Decoder):
                texts = [[Hypothesis(one.tokens, 0.0)] for one in decoded]
                with compute_type(self.device, self.dtype):
                    ranked = rescore(encoded, texts, DecodingConfig(ctc_weight=0))
                scores = [text.log_probability for (text,) in ranked]
            for row, (one, score) in enumerate(zip(decoded, scores, strict=True)):
                if one.method:
                    total, count = sums[row]
                    sums[row] = total + score, count + len(one.tokens) + 1
        return sums


def plan_attempts(model: SpeechModel, config: DecodingConfig) -> list[DecodingConfig]:
    """List the requested decoding, then its fallbacks, as far as the model has the heads."""
    requested = config.model_copy(update={"method": resolve_method(model, config.method), "nbest": 1})
    attempts = [requested]
    if model.ctc_head is not None and requested.method != "ctc_beam":
        attempts.append(requested.model_copy(update={"method": "ctc_beam"}))
    if isinstance(model.decoder, Decoder):
        narrow = {"beam": max(1, requested.beam // 3)}
        if model.ctc_head is None:
            attempts.append(requested.model_copy(update=narrow))
        elif METHODS[requested.method].decoder:
            weight = max(requested.ctc_weight, _CONSTRAINED_CTC_WEIGHT)
            attempts.append(requested.model_copy(update=narrow | {"method": "joint", "ctc_weight": weight}))
    return attempts


def _drop(ctc: CtcText | None, faults: Iterable[str]) -> DecodedUtterance:
    if ctc is None or not ctc.tokens:
        return DecodedUtterance((), "")
    return DecodedUtterance((), "", (f"no clear speech: {ctc.text!r} was dropped", *faults))


def _choose(attempts: Sequence[DecodedUtterance]) -> DecodedUtterance:
    """The first with the fewest faults, with the warnings of all attempts up to it."""
    if not attempts[-1].method:  # dropped
        return attempts[-1]
    best = min(range(len(attempts)), key=lambda index: len(attempts[index].warnings))
    warnings = tuple(fault for one in attempts[: best + 1] for fault in one.warnings)
    return replace(attempts[best], warnings=warnings)


def retry(
    attempts: Iterable[Attempt],
    rows: Sequence[int],
    run: Callable[[Attempt, list[int]], Iterable[Result]],
    is_final: Callable[[Result], bool],
) -> dict[int, list[Result]]:
    """Run one attempt after the other, each on the rows that have no final result yet; list all results."""
    results: dict[int, list[Result]] = {row: [] for row in rows}
    open_rows = list(rows)
    for attempt in attempts:
        if not open_rows:
            break
        for row, result in zip(open_rows, run(attempt, open_rows), strict=True):
            results[row].append(result)
        open_rows = [row for row in open_rows if not is_final(results[row][-1])]
    return results


# --- computing ----------------------------------------------------------------------------------


def pad_audio(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, S) samples and (B,) their numbers."""
    audio_BS = pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)
    return audio_BS.to(device), torch.tensor([len(row) for row in rows], device=device)


def batch_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Numbers of the rows of batches, of equal length each; the first row is in the first batch."""
    rows_of: dict[int, list[int]] = collections.defaultdict(list)
    for row, length in enumerate(lengths):
        rows_of[length].append(row)
    return sorted(
        rows[start : start + batch_size]
        for rows in rows_of.values()
        for start in range(0, len(rows), batch_size)
    )


def compute_type(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    """Autocast of matrix products to this type."""
    if dtype != torch.float32:
        return torch.autocast(device.type, dtype)
    if device.type == "cuda":
        # By default cuDNN rounds the factors of a float32 convolution to 10 bits.
        return torch.backends.cudnn.flags(allow_tf32=False)
    return contextlib.nullcontext()


def read_clock(device: torch.device) -> float:
    """Seconds, once the work of a GPU is done, whose calls return before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
