"""Decode audio to tokens: encode, search, check, fall back, choose a speed. Commands use SpeechDecoder."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from asr.audio.reading import change_speed
from asr.audio.segmentation import AudioSegment, SegmentationConfig, SegmentPlan, plan_segments
from asr.config import Precision
from asr.decoding.beam import decode_by_ctc_beam, decode_by_rescoring, decode_jointly, rescore, search_beams
from asr.decoding.greedy import sample
from asr.decoding.hypothesis import (
    MAX_REPEATS,
    ChecksConfig,
    CtcText,
    DecodingConfig,
    DecodingSetup,
    EncodedAudio,
    Evidence,
    FusionModel,
    Hypothesis,
    NBest,
    SearchRules,
    find_problems,
    is_agreed,
    is_silence,
    is_speech,
    join_encoded,
)
from asr.errors import UserError, shorten
from asr.models.decoders import AnyDecoder
from asr.models.encoders import make_frame_times
from asr.models.layers import find_more_kinds, length_mask
from asr.models.precision import quantize_layers
from asr.models.speech_model import SpeechModel
from asr.text.normalization import TextConfig, normalize
from asr.text.tokenizer import BLANK_ID, EOS_ID
from asr.transcripts.transcript import Word

if TYPE_CHECKING:
    from asr.decoding.word_spans import TokenTime

# B utterances, S samples, F features, T frames or encoded steps, U tokens

Name = TypeVar("Name")
Way = TypeVar("Way")
Result = TypeVar("Result")

# Audio is padded to a multiple of this many encoded steps and batched by padded length, so that rounding does
# not depend on neighbors: a Transformer's encoding is bit-identical in all batches (LSTM, Conformer: nearly).
STEP_MULTIPLE = 16
_CONSTRAINED_CTC_WEIGHT = 0.8  # the decoder then chooses among texts that CTC finds likely


# --- methods ------------------------------------------------------------------------------------


def decode_by_ctc(encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None) -> NBest:
    """Return the text of each best path, scored by this single alignment."""
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


@dataclass(frozen=True)
class DecodingMethod:
    """A search from encoded audio to n-best lists, and the heads that it needs."""

    search: Callable[[EncodedAudio, DecodingConfig, FusionModel | None], NBest]
    needs_ctc: bool = False
    decoders: tuple[str, ...] = ()  # kinds of decoders that it serves; empty if it needs none
    fuses_language_model: bool = True


# The cheapest first.
METHODS: dict[str, DecodingMethod] = {
    "ctc_greedy": DecodingMethod(decode_by_ctc, needs_ctc=True, fuses_language_model=False),
    "ctc_beam": DecodingMethod(decode_by_ctc_beam, needs_ctc=True),
    "attention": DecodingMethod(search_beams, decoders=("attention",)),
    "rescoring": DecodingMethod(decode_by_rescoring, needs_ctc=True, decoders=("attention",)),
    "joint": DecodingMethod(decode_jointly, needs_ctc=True, decoders=("attention",)),
}


def find_method(name: str) -> DecodingMethod:
    """Find a method in the core or in an optional folder."""
    methods = METHODS if name in METHODS else METHODS | find_more_kinds("METHODS")
    if name not in methods:
        raise UserError(f"decoding method {name}: expected one of auto, {', '.join(methods)}")
    return methods[name]


def find_methods(decoder: AnyDecoder | None) -> dict[str, DecodingMethod]:
    """Return the methods of the core and, for a decoder that they do not serve, of optional folders."""
    is_served = decoder is None or any(decoder.kind in method.decoders for method in METHODS.values())
    return METHODS if is_served else METHODS | find_more_kinds("METHODS")


def offered_methods(model: SpeechModel, with_language_model: bool = False) -> list[str]:
    """List the methods that the model supports, cheapest first; with a language model, those that use it."""
    possible = {
        name: own for name, own in find_methods(model.decoder).items() if not _find_missing(model, own)
    }
    fusing = [name for name, method in possible.items() if method.fuses_language_model]
    return fusing if with_language_model and fusing else [*possible]


def resolve_method(model: SpeechModel, method: str) -> str:
    """Resolve auto for this model; refuse a method for which it has no head."""
    if method == "auto":
        methods = find_methods(model.decoder)
        preferred = ("joint", find_method_of(model.decoder), "ctc_beam")
        return next(name for name in preferred if name and not _find_missing(model, methods[name]))
    if missing := _find_missing(model, find_method(method)):
        raise UserError(f"decoding method {method} needs {missing}; use {resolve_method(model, 'auto')}")
    return method


def find_method_of(decoder: AnyDecoder | None) -> str | None:
    """Find the method that uses this decoder alone."""
    if decoder is None:
        return None
    methods = find_methods(decoder).items()
    return next(name for name, own in methods if decoder.kind in own.decoders and not own.needs_ctc)


def _find_missing(model: SpeechModel, method: DecodingMethod) -> str:
    """Return the head that the method needs and this model lacks; "" if none is missing."""
    if method.needs_ctc and model.ctc_head is None:
        return "a CTC head"
    if method.decoders and (model.decoder is None or model.decoder.kind not in method.decoders):
        return f"a decoder ({' or '.join(method.decoders)})"
    return ""


def check_decoding(model: SpeechModel, config: DecodingConfig, language_model: FusionModel | None) -> str:
    """Return the resolved method; raise a UserError if this model does not support the settings."""
    name = resolve_method(model, config.method)
    if config.temperatures and not scores_texts(model):
        raise UserError("decoding.temperatures need a decoder that goes token by token; leave them out")
    if config.chunk_steps is not None and getattr(model.encoder, "chunk", None) is None:
        raise UserError("decoding.chunk_steps needs an encoder with model.encoder.chunk; leave it out")
    if (language_model is None) != (config.language_model_weight == 0):
        mismatch = "there is no language model" if language_model is None else "a language model was given"
        raise UserError(
            f"decoding.language_model_weight = {config.language_model_weight}, but {mismatch}; change either"
        )
    if language_model is not None and not find_method(name).fuses_language_model:
        what = "hotwords" if config.hotwords else "a language model"
        instead = "use ctc_beam" if model.ctc_head is not None else "leave it out"
        raise UserError(f"decoding method {name} has no use for {what}; {instead}")
    return name


@torch.inference_mode()
def search_encoded(
    encoded: EncodedAudio, config: DecodingConfig, language_model: FusionModel | None = None
) -> NBest:
    """Search for up to `config.nbest` hypotheses of each utterance, best first, and at least one.

    An utterance without encoded steps gets the empty text with probability 1.
    """
    method = find_method(check_decoding(encoded.model, config, language_model))
    assert not encoded.model.training, "decoding requires model.eval(): dropout would change the text"
    has_steps_B = encoded.lengths_B > 0
    some = has_steps_B.nonzero()[:, 0]
    certain = 0.0 if method.decoders else math.nan, 0.0 if method.needs_ctc else math.nan
    results = iter(method.search(encoded.select(some), config, language_model) if len(some) else ())
    return [
        next(results) if has_steps else [Hypothesis((), 0.0, *certain)] for has_steps in has_steps_B.tolist()
    ]


def search_greedy(encoded: EncodedAudio) -> dict[str, list[list[int]]]:
    """Decode greedily with each head, "ctc" and "decoder", for scores during training."""
    tokens = {}
    if encoded.model.ctc_head is not None:
        tokens["ctc"] = encoded.ctc_paths.texts()
    if (method := find_method_of(encoded.model.decoder)) is not None:
        ranked = search_encoded(encoded, DecodingConfig(method=method, beam=1))
        tokens["decoder"] = [list(best.tokens) for best, *_ in ranked]
    return tokens


# --- audio to tokens ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One way to decode; at a temperature above 0, texts are sampled."""

    config: DecodingConfig
    temperature: float = 0.0


@dataclass(frozen=True)
class DecodedUtterance:
    """Decoded tokens of an utterance, and the method that found them."""

    tokens: tuple[int, ...]
    method: str  # the requested method, or the fallback; "" if there is no speech to decode
    warnings: tuple[str, ...] = ()
    likelihood: float = 0.0  # log-probability of the hypothesis; 0 if nothing was decoded
    average_log_probability: float | None = None
    """Mean over the tokens and the end; None if nothing was decoded."""
    temperature: float | None = None  # None if the model does not sample
    no_speech: float | None = None  # probability that nobody speaks, if the model predicts it

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Sort key for the texts of an utterance at several speeds: speech, few warnings, likely."""
        return bool(self.method), -len(self.warnings), self.likelihood

    @property
    def doubt(self) -> tuple[int, float]:
        """Number of problems, then unlikeliness; text that was dropped as silence has neither."""
        return len(self.warnings) if self.method else 0, -(self.average_log_probability or 0.0)


@dataclass
class DecodedBatch:
    """A batch decoded by one setup."""

    at_speeds: dict[float, tuple[EncodedAudio, list[DecodedUtterance]]]
    seconds: float = 0.0  # compute time

    @functools.cached_property
    def best(self) -> list[tuple[float, DecodedUtterance]]:
        """The speed to choose for each utterance, and its decoded text."""
        decoded = {speed: utterances for speed, (_, utterances) in self.at_speeds.items()}
        rows = range(len(next(iter(decoded.values()))))
        speeds = [max(decoded, key=lambda speed: decoded[speed][row].rank) for row in rows]
        return [(speed, decoded[speed][row]) for row, speed in enumerate(speeds)]


class SpeechDecoder:
    """A model with front end, tokenizer and checks: samples to tokens, and tokens to words with times.

    Methods are for models trained here; families of pretrained models override those that differ.
    """

    prefers_int8 = False  # 8 bits cost the model no accuracy
    draws = False  # default sampling temperatures after a rejected text
    rules = SearchRules()
    language: str | None = None  # the only language of the model; None: it has several, or it is unknown

    def __init__(
        self,
        system: Any,
        checks: ChecksConfig | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`system` has a model, a front end and a tokenizer, as `System` does."""
        self.device, self.dtype = device or torch.device("cpu"), dtype
        self.system, self.tokenizer = system, system.tokenizer
        self.model = system.model.to(self.device).eval()
        self.front_end = system.front_end.to(self.device)
        self.checks = checks or ChecksConfig()
        self.sample_rate = self.front_end.config.sample_rate
        self.frame_times = make_frame_times(self.front_end.config, self.model.encoder)

    def decode_batch(
        self, segments: Sequence[AudioSegment], setups: Mapping[Name, DecodingSetup]
    ) -> dict[Name, DecodedBatch]:
        """Encode once at each speed, and decode with each setup; its speeds share one search."""
        encoded, encoding_seconds = {}, {}
        for speed in sorted({speed for setup in setups.values() for speed in setup.config.speeds}):
            began = read_clock(self.device)
            encoded[speed] = self.encode_segments(segments, speed, setups.values())
            encoding_seconds[speed] = read_clock(self.device) - began
        batches = {}
        for name, setup in setups.items():
            began = read_clock(self.device)
            speeds = sorted(set(setup.config.speeds))
            own = [self.introduce(encoded[speed], segments, setup) for speed in speeds]
            decoded = iter(self.decode(join_encoded(own), setup))
            at_speeds = {
                speed: (part, list(itertools.islice(decoded, len(segments))))
                for speed, part in zip(speeds, own, strict=True)
            }
            seconds = read_clock(self.device) - began + sum(encoding_seconds[speed] for speed in speeds)
            batches[name] = DecodedBatch(at_speeds, seconds)
        return batches

    @torch.inference_mode()
    def decode(self, encoded: EncodedAudio, setup: DecodingSetup) -> list[DecodedUtterance]:
        """Decode with the attempts of `plan_attempts` until a text has no problems, else keep the best.

        With checks off, the first text is kept.
        """
        lengths, setup = encoded.lengths_B.tolist(), self.add_hotwords(setup)
        attempts = self.plan_attempts(setup.config)
        with compute_type(self.device, self.dtype):
            ctc_texts = self._read_ctc(encoded) if self.checks.enabled else [None] * len(lengths)

            def run(attempt: Attempt, rows: list[int]) -> Iterator[DecodedUtterance]:
                part = encoded.select(torch.tensor(rows, device=encoded.lengths_B.device))
                nbest = self._search(part, attempt, setup.language_model)
                for row, texts in zip(rows, nbest, strict=True):
                    judged = [self._check(one, attempt, ctc_texts[row], lengths[row]) for one in texts]
                    yield min(judged, key=lambda one: one.doubt)

            rows = [row for row, ctc in enumerate(ctc_texts) if lengths[row] and is_speech(ctc)]
            results = retry(attempts, rows, run, lambda one: not one.doubt[0])
        choose = _choose_likeliest if self.draws or setup.config.temperatures else _choose_first
        return [
            choose(results[row]) if row in results else _drop(ctc, []) for row, ctc in enumerate(ctc_texts)
        ]

    def _search(
        self, encoded: EncodedAudio, attempt: Attempt, language_model: FusionModel | None
    ) -> Iterable[Sequence[Hypothesis]]:
        """Return the texts to check for each utterance: the best, or all samples."""
        config, repeats = attempt.config, MAX_REPEATS if self.checks.enabled else None
        is_greedy = config.method == "attention" and config.beam == 1 and not self.rules.notes_attention
        if attempt.temperature or is_greedy:
            return sample(encoded, config, language_model, attempt.temperature, max_repeats=repeats)
        return (texts[:1] for texts in search_encoded(encoded, config, language_model))

    def _check(
        self, best: Hypothesis, attempt: Attempt, ctc: CtcText | None, num_steps: int
    ) -> DecodedUtterance:
        step, text = self.frame_times.seconds_per_step, self.spell(best.tokens)
        method = name = self.name_method(attempt)
        facts: dict[str, Any] = {"no_speech": best.no_speech}
        if self.draws:
            name = f"{method} at temperature {attempt.temperature:g}"
            facts["temperature"] = attempt.temperature
        if self.is_silence(best):
            dropped = (f"no speech: {text!r} was dropped",) if text else ()
            return DecodedUtterance((), "", dropped, 0.0, best.mean, **facts)
        spoken, judged = self.rules.spoken(best.tokens), best
        if spoken != best.tokens:
            judged = replace(best, tokens=spoken, log_probability=best.mean * (len(spoken) + 1))
        evidence = Evidence(judged, text, num_steps * step, step, ctc)
        problems = tuple(f"{name}: {problem}" for problem in find_problems(evidence, self.checks))
        if not is_agreed(evidence):
            return _drop(ctc, problems)
        average = best.likelihood / (len(best.tokens) + 1)
        return DecodedUtterance(best.tokens, method, problems, best.likelihood, average, **facts)

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

    # --- manners ----------------------------------------------------------------------------------

    @staticmethod
    def set_precision(model: SpeechModel, precision: Precision) -> None:
        """Replace, in place, the layers that compute in 8 bits."""
        if precision == "int8":
            quantize_layers(model)

    def check(self, setup: DecodingSetup) -> None:
        """Refuse settings that the model does not support."""
        check_decoding(self.model, setup.config, setup.language_model)
        with_words = self.add_hotwords(setup)
        if setup.config.hotwords:
            check_decoding(self.model, with_words.config, with_words.language_model)

    def is_silence(self, best: Hypothesis) -> bool:
        """Check whether a text was invented where nobody speaks."""
        return is_silence(best, self.checks)

    def write(self, text: str) -> list[int]:
        """Tokenize a text with the rules of training."""
        text = normalize(text, (self.system.text or TextConfig()).training)
        if unknown := self.tokenizer.find_unknown(text):
            raise UserError(f"the model has no token for {unknown[0]!r} in {shorten(text)}")
        return self.tokenizer.encode(text)

    def add_hotwords(self, setup: DecodingSetup) -> DecodingSetup:
        """Return the same setup with the hotwords added to its language model."""
        config, words = setup.config, setup.config.hotwords
        if not words:
            return setup
        from asr.language_models.fusion import ShallowFusion, Weighted
        from asr.language_models.hotwords import Hotwords

        spellings = [self.write(word) for word in words]
        trie = Hotwords(spellings, config.hotword_boost, len(self.tokenizer), EOS_ID, self.space)
        parts: list[FusionModel] = [trie]
        if setup.language_model is not None:
            parts.append(Weighted(setup.language_model, config.language_model_weight))
        config = config.model_copy(update={"language_model_weight": 1.0})
        return replace(setup, config=config, language_model=ShallowFusion(parts))

    @property
    def space(self) -> int | None:
        """The token between words, if there is one."""
        return self.tokenizer.space_id

    def plan_segments(self, segmentation: SegmentationConfig, longest: float | None) -> SegmentPlan:
        """Plan segments; `longest` is the longest training utterance in seconds, if known."""
        return plan_segments(segmentation, self.system.longest_seconds, longest)

    def padded_length(self, num_samples: int) -> int:
        """Batch audio of equal padded length, so that padding does not depend on neighbors."""
        return self.padded_frames(num_samples)

    def padded_frames(self, num_samples: int, speed: float = 1.0) -> int:
        """Frames that audio is padded to; at other speeds they are scaled, and batches stay the same."""
        multiple = STEP_MULTIPLE * self.model.subsampling_factor
        num_frames = max(1, -(-self.front_end.num_frames(num_samples) // multiple)) * multiple
        if speed != 1.0:
            features = self.front_end.config
            most_ms = num_frames * features.shift_ms + features.window_ms
            num_frames = -(-math.ceil(most_ms / speed / features.shift_ms) // multiple) * multiple
        return num_frames

    def encode_segments(
        self, segments: Sequence[AudioSegment], speed: float, setups: Collection[DecodingSetup]
    ) -> EncodedAudio:
        """Encode a batch for all setups."""
        return self.encode([segment.audio_S for segment in segments], speed)

    @torch.inference_mode()
    def encode(self, audio: Sequence[np.ndarray], speed: float = 1.0) -> EncodedAudio:
        """Encode a batch at a speed factor."""
        num_frames = self.padded_frames(max(map(len, audio)), speed)
        played = [change_speed(audio_S, speed, self.sample_rate) for audio_S in audio]
        features_BTF, lengths_B = self.front_end(*pad_audio(played, self.device))
        padded_BTF = F.pad(features_BTF, (0, 0, 0, num_frames - features_BTF.size(1)))
        with compute_type(self.device, self.dtype):
            try:
                steps = self.model.encode(padded_BTF, lengths_B)
            except UserError:  # the padded length may exceed the model's limit even if the audio does not
                steps = self.model.encode(features_BTF, lengths_B)
            encoded = EncodedAudio(self.model, steps[0], steps[1], rules=self.rules)
            if self.model.ctc_head is not None:
                _ = encoded.ctc_BTV  # here, so that its time counts for the encoder
        return encoded

    def prepare(self, pieces: Iterator[Any], setup: DecodingSetup) -> Iterator[Any]:
        """Add what decoding needs to segments and to the ends of recordings among them."""
        return pieces

    def introduce(
        self, encoded: EncodedAudio, segments: Sequence[AudioSegment], setup: DecodingSetup
    ) -> EncodedAudio:
        """Add languages and prompts."""
        return encoded

    def plan_attempts(self, config: DecodingConfig) -> list[Attempt]:
        """The requested decoding, then its fallbacks: at temperatures, if there are any, else by CTC, which
        cannot hallucinate, then by the decoder constrained by CTC, as far as the model has the heads."""
        fallbacks = plan_fallbacks(self.model, config)
        if self.draws or config.temperatures:
            return [Attempt(fallbacks[0], temperature) for temperature in (0.0, *config.temperatures)]
        return [*map(Attempt, fallbacks)]

    def name_method(self, attempt: Attempt) -> str:
        return "sampling" if attempt.temperature else attempt.config.method

    def spell(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def number(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the token IDs that other software uses."""
        return tuple(tokens)

    def separator_in(self, language: str | None) -> str:
        """Return the separator of two words in this language."""
        from asr.decoding.word_spans import has_spaces

        return " " if has_spaces(self.tokenizer) else ""

    def time_words(
        self,
        encoded: EncodedAudio,
        audio: Sequence[np.ndarray],
        texts: Sequence[Sequence[int]],
        setup: DecodingSetup,
        by_ctc: bool | None = None,
    ) -> list[list[Word]]:
        """Return words with times since the start of the audio, from the CTC head if there is one (default),
        else from attention."""
        from asr.decoding.word_spans import split_words, time_words

        times = self.time_tokens(
            encoded, texts, self.model.ctc_head is not None if by_ctc is None else by_ctc
        )
        return [
            time_words(split_words(self.tokenizer, tokens), own, self.frame_times, audio_S, self.sample_rate)
            for tokens, own, audio_S in zip(texts, times, audio, strict=True)
        ]

    def time_tokens(
        self, encoded: EncodedAudio, tokens: Sequence[Sequence[int]], by_ctc: bool
    ) -> list[list[TokenTime]]:
        """Time each token with the CTC head or with cross-attention."""
        from asr.decoding.timestamps import align_by_attention, align_by_ctc

        if by_ctc:
            return align_by_ctc(encoded.ctc_BTV.cpu(), encoded.lengths_B, tokens)
        with compute_type(self.device, self.dtype):
            return align_by_attention(self.model, encoded.encoded_BTD, encoded.lengths_B, tokens)

    def score_tokens(self, batch: DecodedBatch) -> list[tuple[float, int]]:
        """Return log-probability and number of tokens of each utterance over all speeds.

        An autoregressive decoder scores any text, because CTC finds letter sequences likely that never occur.
        """
        sums = [(0.0, 0)] * len(batch.best)
        for encoded, decoded in batch.at_speeds.values():
            scores = [one.likelihood for one in decoded]
            if scores_texts(self.model):
                texts = [[Hypothesis(one.tokens, 0.0)] for one in decoded]
                with compute_type(self.device, self.dtype):
                    ranked = rescore(encoded, texts, DecodingConfig(ctc_weight=0))
                scores = [text.log_probability for (text,) in ranked]
            for row, (one, score) in enumerate(zip(decoded, scores, strict=True)):
                if one.method:
                    total, count = sums[row]
                    sums[row] = total + score, count + len(one.tokens) + 1
        return sums


def plan_fallbacks(model: SpeechModel, config: DecodingConfig) -> list[DecodingConfig]:
    """List the requested decoding and the fallbacks for which the model has the heads."""
    requested = config.model_copy(update={"method": resolve_method(model, config.method), "nbest": 1})
    attempts = [requested]
    if model.ctc_head is not None and requested.method != "ctc_beam":
        attempts.append(requested.model_copy(update={"method": "ctc_beam"}))
    if scores_texts(model):
        narrow = {"beam": max(1, requested.beam // 3)}
        if model.ctc_head is None:
            attempts.append(requested.model_copy(update=narrow))
        elif find_method(requested.method).decoders:
            weight = max(requested.ctc_weight, _CONSTRAINED_CTC_WEIGHT)
            attempts.append(requested.model_copy(update=narrow | {"method": "joint", "ctc_weight": weight}))
    return attempts


def scores_texts(model: SpeechModel) -> bool:
    """Check for an autoregressive decoder, which gives a text its probability."""
    return model.decoder is not None and model.decoder.kind == "attention"


def _drop(ctc: CtcText | None, problems: Iterable[str]) -> DecodedUtterance:
    if ctc is None or not ctc.tokens:
        return DecodedUtterance((), "")
    return DecodedUtterance((), "", (f"no clear speech: {ctc.text!r} was dropped", *problems))


def _choose_likeliest(attempts: Sequence[DecodedUtterance]) -> DecodedUtterance:
    """Choose the likeliest text among those with the fewest problems."""
    return min(attempts, key=lambda one: one.doubt)


def _choose_first(attempts: Sequence[DecodedUtterance]) -> DecodedUtterance:
    """Choose the first attempt with the fewest problems, with all warnings up to it."""
    if not attempts[-1].method:  # dropped
        return attempts[-1]
    best = min(range(len(attempts)), key=lambda index: len(attempts[index].warnings))
    warnings = tuple(problem for one in attempts[: best + 1] for problem in one.warnings)
    return replace(attempts[best], warnings=warnings)


def retry(
    attempts: Iterable[Way],
    rows: Sequence[int],
    run: Callable[[Way, list[int]], Iterable[Result]],
    is_final: Callable[[Result], bool],
) -> dict[int, list[Result]]:
    """Run the attempts in turn on the rows without a final result; list all results."""
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
    """Pad to (B, S) samples, and return (B,) lengths."""
    audio_BS = pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)
    return audio_BS.to(device), torch.tensor([len(row) for row in rows], device=device)


def compute_type(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    """Return a context that autocasts matrix products to this type."""
    if dtype != torch.float32:
        return torch.autocast(device.type, dtype)
    if device.type == "cuda":
        # By default cuDNN rounds the factors of a float32 convolution to 10 bits.
        return torch.backends.cudnn.flags(allow_tf32=False)
    return contextlib.nullcontext()


def read_clock(device: torch.device) -> float:
    """Return the time in seconds after waiting for the GPU, whose calls are asynchronous."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
