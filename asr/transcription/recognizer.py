"""Recognizer of models trained here: audio to words with times.

    SpeechDecoder: front end -> model.encode -> search -> checks
    Recognizer:    -> tokenizer.decode -> time_words

Files come in and transcripts go out by `Transcriber`.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from asr.audio.reading import change_speed
from asr.audio.segmentation import AudioSegment, SegmentationConfig
from asr.decoding.checks import ChecksConfig
from asr.decoding.core import DecodedBatch, DecodedUtterance, DecodingSetup, SpeechDecoder
from asr.decoding.fusion import FusionModel
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio, Hypothesis
from asr.decoding.rescoring import rescore
from asr.decoding.search import check_decoding
from asr.errors import UserError
from asr.models.decoder import Decoder
from asr.models.precision import Precision, quantise_layers
from asr.system.checkpoint import System, find_model, load_state, load_system
from asr.system.decoding_resources import DecodingResources, load_bundled_decoding
from asr.transcription.families import find_family
from asr.transcription.joining import (
    OpenRecording,
    Recognized,
    clip_words,
    make_segment,
)
from asr.transcription.timestamps import (
    TokenTime,
    align_by_attention,
    align_by_ctc,
    has_spaces,
    split_words,
    time_words,
)
from asr.transcription.transcriber import Request, TimedTexts, Transcriber
from asr.transcripts.transcript import Word

# S samples

DEFAULT_MODEL = "whisper-base"
SHORTEST_LIMIT = 4.0  # seconds; shorter segments would cut through phrases, whatever training had


def load_model(
    source: str | Path | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    *,
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Transcriber:
    """Load the model of a run or checkpoint (folders), or a ready model (files, or a name on the hub).

    Without `source`: what the environment names in ASR_MODEL, else whisper-base. `auto` takes a GPU if there
    is one. `precision` auto: 16 bits on a GPU, 8 bits for Whisper on a CPU with instructions for them, else
    float32.
    """
    source = find_default_model() if source is None else source
    recognizer: Transcriber
    if (family := find_family(source)) is not None:
        recognizer = family.load(source, device, precision, segmentation, checks)
    else:
        folder = find_model(source)
        longest = load_state(folder).get("longest_seconds")
        own = load_bundled_decoding(folder)
        resources = None if own is None else own.find_resources(folder)
        recognizer = Recognizer(
            load_system(folder), device, precision, segmentation, checks, longest, resources
        )
    recognizer.name = str(source)
    return recognizer


def find_default_model() -> str:
    """The model that is used where none is named."""
    return os.environ.get("ASR_MODEL") or DEFAULT_MODEL


class Recognizer(Transcriber):
    """A model that was trained here."""

    def __init__(
        self,
        system: System,
        device: str = "auto",
        precision: Precision = "auto",
        segmentation: SegmentationConfig | None = None,
        checks: ChecksConfig | None = None,
        longest_seconds: float | None = None,
        resources: DecodingResources | None = None,
        needs_times: bool = True,
    ) -> None:
        """`longest_seconds`: of the longest training utterance; recordings are cut into segments no longer.

        `resources`: decoding settings and language model used when a call names none. Without `needs_times`,
        for evaluation, a model may be one that cannot give the times of words.
        """
        decoder = system.model.decoder
        if needs_times and system.model.ctc_head is None and (decoder is None or decoder.num_heads == 0):
            raise UserError(
                "this model has neither a CTC head nor attention, and nothing else gives the times of "
                "words: decode it with asr evaluate, or train one with model.ctc_weight above 0"
            )
        super().__init__(device, precision)
        if self.precision == "int8":
            quantise_layers(system.model)
        self.system = system
        longest = system.config.batches.max_utterance_seconds  # training used none above
        segmentation = segmentation or SegmentationConfig()
        self.whole_seconds = math.inf if segmentation.method == "none" else longest
        if longest_seconds is not None:
            self.trained_seconds = min(longest, longest_seconds, segmentation.max_seconds)
            longest = min(longest, max(longest_seconds, SHORTEST_LIMIT))
        self.segmentation = segmentation.limited(longest)
        self.decoder = SpeechDecoder(
            system.model, system.front_end, system.tokenizer, checks, self.device, self.dtype
        )
        self.checks, self.model, self.clock = self.decoder.checks, self.decoder.model, self.decoder.clock
        self.sample_rate = system.config.features.sample_rate
        self._resources = resources or DecodingResources()
        self.separator = " " if has_spaces(system.tokenizer) else ""

    def check(self, request: Request) -> None:
        check_decoding(self.model, request.decoding, request.language_model)
        if request.options is not None:
            raise UserError(
                f"{type(request.options).__name__} is for ready models, and this one was trained here; "
                "leave it out"
            )

    def usual_decoding(self) -> tuple[DecodingConfig, FusionModel | None]:
        return self._resources.decoding or DecodingConfig(), self._own_language_model

    @functools.cached_property
    def _own_language_model(self) -> FusionModel | None:
        return self._resources.load(self.system, self.device)

    def find_doubt(self, recording: OpenRecording) -> str:
        """Compare the mean log-probability of a token at all speeds with the model's limit, if it has one."""
        limit = self._resources.min_log_probability
        log_probability, num_tokens = recording.familiarity
        if limit is None or not num_tokens:
            return ""
        average = log_probability / num_tokens
        if average >= limit:
            return ""
        trained_for = self._resources.trained_for and f" ({self._resources.trained_for})"
        return (
            f"probably not what the model was trained for{trained_for}: its tokens have a mean "
            f"log-probability of {average:.2f}, expected {limit:g} or more; take another model"
        )

    # --- from samples to text ---------------------------------------------------------------------

    def padded_length(self, num_samples: int, request: Request) -> int:
        return self.decoder.padded_frames(num_samples)

    def read(
        self, segments: Sequence[AudioSegment], requests: Mapping[str, Request]
    ) -> dict[str, TimedTexts]:
        audio = [segment.audio_S for segment in segments]
        setups = {name: make_setup(request) for name, request in requests.items()}
        texts = {}
        for name, batch in self.decoder.decode_batch(audio, setups).items():
            own = [
                make_segment(segment, self._decode_text(best), (), best.method, best.warnings)
                for segment, (_, best) in zip(segments, batch.best, strict=True)
            ]
            texts[name] = TimedTexts(own, batch.seconds)
        return texts

    @torch.inference_mode()
    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Recognized]:
        audio = [segment.audio_S for segment in segments]
        (batch,) = self.decoder.decode_batch(audio, {"": make_setup(request)}).values()
        familiarity = self._sum_familiarity(batch)
        results: dict[int, Recognized] = {}
        best = batch.best
        for speed, (encoded, _) in batch.at_speeds.items():
            rows = [row for row, (own_speed, _) in enumerate(best) if own_speed == speed]
            if not rows:
                continue
            part = encoded.select(torch.tensor(rows, device=self.device))
            times = self._time_tokens(part, [best[row][1].tokens for row in rows])
            for row, token_times in zip(rows, times, strict=True):
                segment, decoded = segments[row], best[row][1]
                words = self._time_words(segment, speed, decoded, token_times)
                found = make_segment(
                    segment, self._decode_text(decoded), words, decoded.method, decoded.warnings
                )
                found = replace(
                    found,
                    average_log_probability=decoded.average_log_probability,
                    tokens=decoded.tokens if request.tokens else (),
                )
                results[row] = Recognized(
                    found, segment.cut_before, segment.cut_after, familiarity=familiarity[row]
                )
        return [results[row] for row in range(len(segments))]

    def _decode_text(self, decoded: DecodedUtterance) -> str:
        return self.system.tokenizer.decode(decoded.tokens)

    def _time_tokens(self, encoded: EncodedAudio, tokens: Sequence[Sequence[int]]) -> list[list[TokenTime]]:
        if self.model.ctc_head is not None:
            return align_by_ctc(encoded.ctc_BTV.cpu(), encoded.lengths_B, tokens)
        with self._precision():
            return align_by_attention(self.model, encoded.encoded_BTD, encoded.lengths_B, tokens)

    def _time_words(
        self,
        segment: AudioSegment,
        speed: float,
        decoded: DecodedUtterance,
        token_times: Sequence[TokenTime],
    ) -> list[Word]:
        """Words with times of the recording, of tokens of the segment played at a speed."""
        played_S = change_speed(segment.audio_S, speed, self.sample_rate)
        spans = split_words(self.system.tokenizer, decoded.tokens)
        words = time_words(spans, token_times, self.clock, played_S, self.sample_rate)
        words = [
            replace(word, start=segment.start + speed * word.start, end=segment.start + speed * word.end)
            for word in words
        ]
        return clip_words(words, segment)

    def _sum_familiarity(self, batch: DecodedBatch) -> list[tuple[float, int]]:
        """Log-probability and number of the tokens of each utterance over all speeds, where the model has a
        limit for their mean: under a decoder that goes token by token, whatever found the text.

        CTC gives high probability to letters that the decoder has never seen in a row.
        """
        sums = [(0.0, 0)] * len(batch.best)
        if self._resources.min_log_probability is None:
            return sums
        for encoded, decoded in batch.at_speeds.values():
            scores = [one.likelihood for one in decoded]
            if isinstance(self.model.decoder, Decoder):
                texts = [[Hypothesis(one.tokens, 0.0)] for one in decoded]
                with self._precision():
                    ranked = rescore(encoded, texts, DecodingConfig(ctc_weight=0))
                scores = [text.log_probability for (text,) in ranked]
            for row, (one, score) in enumerate(zip(decoded, scores, strict=True)):
                if one.method:
                    total, count = sums[row]
                    sums[row] = total + score, count + len(one.tokens) + 1
        return sums


def make_setup(request: Request) -> DecodingSetup:
    return DecodingSetup(request.decoding, request.language_model)
