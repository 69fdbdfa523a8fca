"""From audio to Transcript by a model that was trained here: the star in the middle of inference.

    front end -> model.encode -> decode_checked -> tokenizer.decode -> time_words

Files come in and transcripts go out by `Transcriber`; `Recognizer.recognize` goes from samples to text.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional

from asr.audio.reading import change_speed
from asr.audio.segmentation import AudioSegment, SegmentationConfig
from asr.audio.sources import AudioFile, AudioPart
from asr.decoding.checked import Encoded, Reading, decode_checked
from asr.decoding.checks import ChecksConfig
from asr.decoding.fusion import FusionModel
from asr.decoding.rescoring import rescore
from asr.decoding.search import DecodingConfig, Hypothesis, resolve_method
from asr.errors import UserError
from asr.models.clock import make_clock
from asr.models.decoder import Decoder
from asr.models.precision import Precision
from asr.system.checkpoint import System, find_model, load_state, load_system
from asr.transcription.families import find_family
from asr.transcription.joining import (
    Recognized,
    Recording,
    clip_words,
    make_segment,
)
from asr.transcription.knowledge import Knowledge, load_own_decoding
from asr.transcription.timestamps import (
    align_by_attention,
    align_by_ctc,
    has_spaces,
    split_words,
    time_words,
)
from asr.transcription.transcriber import Request, Transcriber, choose_device, pad_audio
from asr.transcripts.transcript import Segment

__all__ = [
    "AudioFile",
    "AudioPart",
    "Precision",
    "Recognizer",
    "Request",
    "Transcriber",
    "choose_device",
    "find_default_model",
    "load_model",
]

# B segments, S samples, T frames or encoded steps, F features, D dimension, V vocabulary

DEFAULT_MODEL = "whisper-base"
# Segments are padded to a multiple of so many encoded steps, and those of equal padded length go together. So
# the shapes of a segment's matrices, and with them the rounding, do not depend on its company: a Transformer
# encodes it to the same bits in any batch. The kernels of LSTM and Conformer still differ in the last digit.
STEP_MULTIPLE = 16
SHORTEST_LIMIT = 4.0  # seconds; shorter segments would cut through phrases, whatever training had


def load_model(
    source: str | Path | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    *,
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Transcriber:
    """The model of a run or checkpoint, both folders, or a ready model: its files, or its name on the hub.

    Without `source`: what the environment names in ASR_MODEL, else whisper-base. `auto` takes a GPU if there
    is one. `precision` auto: 8 bits for Whisper on a CPU with instructions for them, else float32.
    """
    source = find_default_model() if source is None else source
    recognizer: Transcriber
    if (family := find_family(source)) is not None:
        recognizer = family.load(source, device, precision, segmentation, checks)
    else:
        folder = find_model(source)
        heard = load_state(folder).get("longest_seconds")
        own = load_own_decoding(folder)
        knowledge = None if own is None else own.find(folder)
        recognizer = Recognizer(
            load_system(folder), device, precision, segmentation, checks, heard, knowledge
        )
    recognizer.name = str(source)
    return recognizer


def find_default_model() -> str:
    """What to take where no model is named."""
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
        heard_seconds: float | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        """`heard_seconds`: of the longest training utterance; recordings are cut into segments no longer.

        `knowledge`: how it is decoded where nothing is said about it.
        """
        decoder = system.model.decoder
        if system.model.ctc_head is None and (decoder is None or decoder.num_heads == 0):
            raise UserError(
                "this model has neither a CTC head nor attention, and nothing else tells when a word was "
                "said: decode it with asr evaluate, or train one with model.ctc_weight above 0"
            )
        super().__init__(device, precision)
        self.system = system
        longest = system.config.batches.max_utterance_seconds  # training used none above
        if heard_seconds is not None:
            longest = min(longest, max(heard_seconds, SHORTEST_LIMIT))
        self.segmentation = (segmentation or SegmentationConfig()).limited(longest)
        self.checks = checks or ChecksConfig()
        self.model = system.model.to(self.device).eval()
        self.front_end = system.front_end.to(self.device)
        self.clock = make_clock(system.config.features, self.model)
        self.sample_rate = system.config.features.sample_rate
        self._knowledge = knowledge or Knowledge()
        self.separator = " " if has_spaces(system.tokenizer) else ""

    def check(self, request: Request) -> None:
        resolve_method(self.model, request.decoding.method)
        if request.options is not None:
            raise UserError(
                f"{type(request.options).__name__} is for ready models, and this one was trained here; "
                "leave it out"
            )

    def usual_decoding(self) -> tuple[DecodingConfig, FusionModel | None]:
        return self._knowledge.decoding or DecodingConfig(), self._own_language_model

    @functools.cached_property
    def _own_language_model(self) -> FusionModel | None:
        return self._knowledge.load(self.system, self.device)

    def find_doubt(self, recording: Recording) -> str:
        """By the mean log-probability of a token at all speeds, where the model carries a limit for it."""
        limit = self._knowledge.min_log_probability
        log_probability, num_tokens = recording.familiarity
        if limit is None or not num_tokens:
            return ""
        average = log_probability / num_tokens
        if average >= limit:
            return ""
        trained_for = self._knowledge.trained_for and f" ({self._knowledge.trained_for})"
        return (
            f"probably not what the model was trained for{trained_for}: its tokens have a mean "
            f"log-probability of {average:.2f}, expected {limit:g} or more; take another model"
        )

    # --- from samples to text ---------------------------------------------------------------------

    def padded_length(self, num_samples: int, request: Request) -> int:
        return self._padded_frames(num_samples)

    def _padded_frames(self, num_samples: int, speed: float = 1.0) -> int:
        """Of what is played at a speed it follows from the padded length at the usual one, as groups do."""
        multiple = STEP_MULTIPLE * self.model.encoder.subsampling_factor
        num_frames = max(1, -(-self.front_end.num_frames(num_samples) // multiple)) * multiple
        if speed != 1.0:
            features = self.front_end.config
            most_ms = num_frames * features.shift_ms + features.window_ms
            num_frames = -(-math.ceil(most_ms / speed / features.shift_ms) // multiple) * multiple
        return num_frames

    @torch.inference_mode()
    def encode(self, segments: Sequence[AudioSegment], num_frames: int | None = None) -> Encoded:
        """One batch, from samples to encoded steps, padded to so many frames."""
        audio_BS, audio_lengths_B = pad_audio(segments, self.device)
        features_BTF, feature_lengths_B = self.front_end(audio_BS, audio_lengths_B)
        num_frames = num_frames or self._padded_frames(audio_BS.size(1))
        features_BTF = functional.pad(features_BTF, (0, 0, 0, num_frames - features_BTF.size(1)))
        with self._precision():
            encoded_BTD, lengths_B = self.model.encode(features_BTF, feature_lengths_B)
            scores_BTV = None
            if self.model.ctc_head is not None:
                scores_BTV = self.model.ctc_log_probabilities(encoded_BTD).cpu()
        return Encoded(encoded_BTD, lengths_B, scores_BTV, self.clock.seconds_per_step)

    @torch.inference_mode()
    def decode(self, encoded: Encoded, request: Request) -> list[Reading]:
        """From encoded steps to tokens."""
        spell = self.system.tokenizer.decode
        with self._precision():
            return decode_checked(
                self.model, encoded, request.decoding, self.checks, spell, request.language_model
            )

    @torch.inference_mode()
    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Recognized]:
        """One batch, from samples to text: the likeliest of what is heard at each speed."""
        best: list[tuple[Reading, Segment]] = []
        sums, counts = [0.0] * len(segments), [0] * len(segments)
        for speed in request.decoding.speeds:
            found = self._hear(segments, speed, request)
            best = [max(pair, key=how_good) for pair in zip(best or found, found, strict=True)]
            for row, (reading, _) in enumerate(found):
                sums[row] += reading.log_probability
                counts[row] += len(reading.tokens) + 1 if reading.method else 0
        return [
            Recognized(found, segment.cut_before, segment.cut_after, familiarity=familiarity)
            for segment, (_, found), familiarity in zip(
                segments, best, zip(sums, counts, strict=True), strict=True
            )
        ]

    def _hear(
        self, segments: Sequence[AudioSegment], speed: float, request: Request
    ) -> list[tuple[Reading, Segment]]:
        tokenizer, rate = self.system.tokenizer, self.sample_rate
        longest = max(len(segment.audio_S) for segment in segments)
        played = [play(segment, speed) for segment in segments]
        encoded = self.encode(played, self._padded_frames(longest, speed))
        readings = self.decode(encoded, request)
        if self._knowledge.min_log_probability is not None:
            readings = self._score(encoded, readings)
        tokens = [reading.tokens for reading in readings]
        if encoded.scores_BTV is not None:
            times = align_by_ctc(encoded.scores_BTV, encoded.lengths_B, tokens)
        else:
            with self._precision():
                times = align_by_attention(self.model, encoded.encoded_BTD, encoded.lengths_B, tokens)
        results = []
        for segment, heard, reading, token_times in zip(segments, played, readings, times, strict=True):
            spans = split_words(tokenizer, reading.tokens)
            words = [
                replace(word, start=segment.start + speed * word.start, end=segment.start + speed * word.end)
                for word in time_words(spans, token_times, self.clock, heard.audio_S, rate)
            ]
            text, words = tokenizer.decode(reading.tokens), clip_words(words, segment)
            found = make_segment(segment, text, words, reading.method, reading.warnings)
            found = replace(
                found,
                average_log_probability=reading.average_log_probability,
                tokens=reading.tokens if request.tokens else (),
            )
            results.append((reading, found))
        return results

    def _score(self, encoded: Encoded, readings: Sequence[Reading]) -> list[Reading]:
        """With the log-probability under a decoder that goes token by token, whatever found the text.

        CTC takes letters for well heard that the decoder has not seen in a row.
        """
        scores = [reading.likelihood for reading in readings]
        if isinstance(self.model.decoder, Decoder):
            texts = [[Hypothesis(reading.tokens, 0.0)] for reading in readings]
            with self._precision():
                ranked = rescore(
                    self.model,
                    encoded.encoded_BTD,
                    encoded.lengths_B,
                    texts,
                    DecodingConfig(ctc_weight=0),
                    None,
                )
            scores = [text.log_probability for (text,) in ranked]
        return [
            replace(reading, log_probability=score if reading.method else 0.0)
            for reading, score in zip(readings, scores, strict=True)
        ]


def play(segment: AudioSegment, speed: float) -> AudioSegment:
    """Its audio at another speed."""
    return replace(segment, audio_S=change_speed(segment.audio_S, speed, segment.sample_rate))


def how_good(heard: tuple[Reading, Segment]) -> tuple[bool, int, float]:
    """To choose by among readings of one segment: speech, few warnings, likely."""
    reading, _ = heard
    return bool(reading.method), -len(reading.warnings), reading.likelihood
