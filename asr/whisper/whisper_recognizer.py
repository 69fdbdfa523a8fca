"""Transcribe by a Whisper model: segments in batches, each in one window.

features -> model.encode -> decode_windows -> align_tokens -> time_words
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import asr.whisper
from asr.audio.segmentation import AudioSegment, Recording, SegmentationConfig
from asr.config import Precision
from asr.decoding.decode import compute_type, pad_audio, read_clock
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.transcription.transcribe import End, Request, TimedTexts, Transcriber
from asr.transcripts.transcript import Segment, Word, clip_words, replace_words
from asr.whisper.decoding import (
    SECONDS_PER_STEP,
    EncodedWindows,
    decode_windows,
    detect_languages,
    encode_context,
)
from asr.whisper.encoder_decoder import WhisperSystem
from asr.whisper.family import WhisperDecodingConfig
from asr.whisper.loading import load_whisper
from asr.whisper.words import WITHOUT_SPACES, align_tokens, split_words, time_words

# B segments, S samples, W samples of a window, T encoded steps, D dimension

OPENING_SECONDS = 30.0  # of speech, by which the language of a recording is detected
# A segment that is padded to 30 s should hold as much speech as fits in. Without padding, long segments cost
# more: attention grows by the square of the length. Neither applies if lengths are set.
MAX_PADDED, MAX_UNPADDED, MIN_SHARE = 28.0, 20.0, 15 / 28
MAX_PAUSE_SECONDS = 3.0

Language = tuple[str, float | None]
"""Code, with its probability if it was detected."""


@dataclass(frozen=True)
class OpenedSegment(AudioSegment):
    """A segment, with the first speech of its recording, and its language in a list once it is known."""

    opening: AudioSegment | None = None
    known: list[Language] | None = None


class WhisperRecognizer(Transcriber):
    """A Whisper model."""

    family = asr.whisper

    def __init__(
        self,
        source: str | Path | WhisperSystem,
        device: str = "auto",
        precision: Precision = "float32",
        segmentation: SegmentationConfig | None = None,
        checks: ChecksConfig | None = None,
    ) -> None:
        super().__init__(device, precision, prefers_int8=True)
        system = source if isinstance(source, WhisperSystem) else load_whisper(source)
        self.system, self.tokenizer = system, system.tokenizer
        self.num_parameters = sum(parameter.numel() for parameter in system.model.parameters())
        self.language = system.language if self.tokenizer.is_multilingual else "en"
        self.model = system.model.eval()
        if self.precision.startswith("int8"):
            self.model.quantize(torch.bfloat16 if self.precision == "int8_bf16" else torch.float32)
        else:
            self.model.float().to(self.device)
        self.front_end = system.front_end.to(self.device)
        self.checks = checks or ChecksConfig()
        self.sample_rate = system.front_end.config.sample_rate
        self.separator = " "
        self.uncut_seconds = 0.0  # silence misleads it as much in an utterance as in a file
        segmentation = segmentation or SegmentationConfig()
        longest = MAX_PADDED if system.silence.stride is None else MAX_UNPADDED
        lengths = {"max_seconds": longest, "min_share": MIN_SHARE}
        lengths = {} if lengths.keys() & segmentation.model_fields_set else lengths
        segmentation = segmentation.with_rules(max_pause_seconds=MAX_PAUSE_SECONDS, **lengths)
        self.segmentation = segmentation.limited(system.uncut_samples / self.sample_rate)

    def check(self, request: Request) -> None:
        if request.language_model is not None or request.decoding != DecodingConfig():
            raise UserError(
                "a language model, a lexicon and the settings of decoding are for models trained here; "
                "Whisper has its own: whisper.beam, whisper.prompt, whisper.hotwords ..."
            )
        options = _options(request)
        self.tokenizer.prompt(options.language or "en", options.task)
        encode_context(self.tokenizer, options, self.model.sizes.max_tokens)

    def padded_length(self, num_samples: int, request: Request) -> int:
        return self.system.count_padded_samples(num_samples)

    def with_options(self, request: Request, **changes: Any) -> Request:
        return replace(request, options=_options(request).model_copy(update=changes))

    def separator_in(self, language: str | None) -> str:
        return "" if language in WITHOUT_SPACES else self.separator

    # --- segments ---------------------------------------------------------------------------------

    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        options = _options(request)
        windows = self.encode(segments, options)
        texts = self.decode(windows, options)
        tokens = [
            text.tokens if request.has_words or {piece.cut_before, piece.cut_after} != {None} else ()
            for piece, text in zip(segments, texts, strict=True)
        ]
        words = self.time(segments, windows, tokens, options)
        results = []
        for segment, text, own in zip(segments, texts, words, strict=True):
            placed = replace(text, start=segment.start, end=segment.end)
            results.append(replace_words(placed, text.text, clip_words(own, segment)))
        return results

    @torch.inference_mode()
    def encode(self, segments: Sequence[AudioSegment], config: WhisperDecodingConfig) -> EncodedWindows:
        """One batch, from samples to encoded steps, with the language of each."""
        with compute_type(self.device, self.dtype):
            audio = self.system.encode(*pad_audio([segment.audio_S for segment in segments], self.device))
            if (language := config.language or self.language) is not None:
                return EncodedWindows(audio, [(language, None)] * len(segments))
            own = detect_languages(self.model, self.tokenizer, audio)
            return EncodedWindows(audio, list(map(self._find_language, segments, own)))

    def _find_language(self, segment: AudioSegment, own: Language) -> Language:
        """Language of a segment's recording; of live speech, which has no opening, its own."""
        if not isinstance(segment, OpenedSegment) or segment.opening is None or segment.known is None:
            return own
        if not segment.known and segment.opening.audio_S is segment.audio_S:
            segment.known.append(own)
        elif not segment.known:
            audio = self.system.encode(*pad_audio([segment.opening.audio_S], self.device))
            segment.known.extend(detect_languages(self.model, self.tokenizer, audio))
        return segment.known[0]

    @torch.inference_mode()
    def decode(self, windows: EncodedWindows, config: WhisperDecodingConfig) -> list[Segment]:
        """Decode encoded windows to text."""
        with compute_type(self.device, self.dtype):
            return decode_windows(self.model, self.tokenizer, windows, config, self.checks)

    def time(
        self,
        segments: Sequence[AudioSegment],
        windows: EncodedWindows,
        tokens: Sequence[Sequence[int]],
        config: WhisperDecodingConfig,
    ) -> list[list[Word]]:
        """The words of the text among tokens, with times from the start of the recording."""
        texts = [[token for token in own if token < self.tokenizer.end] for own in tokens]
        timed: list[list[Word]] = [[] for _ in texts]
        rows = [row for row, ids in enumerate(texts) if ids]
        if not rows:
            return timed
        part, known = windows.select(rows), [texts[row] for row in rows]
        prompts = [self.tokenizer.prompt(language, config.task) for language, _ in part.languages]
        step_samples = SECONDS_PER_STEP * self.sample_rate
        steps = [int(len(segments[row].audio_S) / step_samples) for row in rows]
        with compute_type(self.device, self.dtype):
            aligned = align_tokens(self.model, self.tokenizer, part.audio, steps, prompts, known)
        for row, (language, _), firsts, probabilities in zip(rows, part.languages, *aligned, strict=True):
            spans = split_words(self.tokenizer, texts[row], language)
            timed[row] = time_words(spans, firsts, probabilities, segments[row].start)
        return timed

    def read(
        self, segments: Sequence[AudioSegment], requests: Mapping[str, Request]
    ) -> dict[str, TimedTexts]:
        texts = {}
        for name, request in requests.items():
            began = read_clock(self.device)
            own = self.recognize(segments, replace(request, has_words=False))
            texts[name] = TimedTexts(own, read_clock(self.device) - began)
        return texts

    def cut_recordings(
        self, recordings: Iterable[Recording], request: Request
    ) -> Iterator[AudioSegment | End]:
        """Give each segment the first speech of its recording, where the language is to be detected."""
        pieces = super().cut_recordings(recordings, request)
        if (_options(request).language or self.language) is not None:
            yield from pieces
            return
        held: list[AudioSegment] = []
        opening: AudioSegment | None = None
        known: list[Language] = []
        for piece in pieces:
            is_end = isinstance(piece, End)
            if not isinstance(piece, End):
                held.append(piece)
            seconds = sum(len(one.audio_S) for one in held) / self.sample_rate
            if opening is None and held and (is_end or seconds >= OPENING_SECONDS):
                opening, known = held[0], []
                if len(held) > 1:
                    audio_S = np.concatenate([one.audio_S for one in held])[: self.system.uncut_samples]
                    opening = replace(opening, audio_S=audio_S)
            if opening is not None:
                yield from (OpenedSegment(**vars(one), opening=opening, known=known) for one in held)
                held = []
            if isinstance(piece, End):
                opening = None
                yield piece


load = WhisperRecognizer


def _options(request: Request) -> WhisperDecodingConfig:
    options = request.options or WhisperDecodingConfig()
    assert isinstance(options, WhisperDecodingConfig), f"expected a WhisperDecodingConfig, not {options}"
    return options
