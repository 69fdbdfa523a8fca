"""Transcribe by a Whisper model: segments in batches, or one window of 30 s after the other.

features -> model.encode -> decode_windows -> align_tokens -> time_words
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pydantic
import torch

from asr.audio.reading import Damage
from asr.audio.segmentation import AudioSegment, SegmentationConfig, split_at_pauses
from asr.audio.sources import Recording, read_ahead, read_recording, split_channels
from asr.decoding.decode import arithmetic, batch_by_length, pad_audio, read_clock
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.models.speech_model import Precision
from asr.transcription.transcribe import Decoded, End, Request, TimedTexts, Transcriber
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
from asr.whisper.words import WITHOUT_SPACES, align_tokens, split_spans, split_words, time_words

# B segments, S samples, W samples of a window, T encoded steps, D dimension

OPENING_SECONDS = 30.0  # of speech, by which the language of a recording is detected
# Each segment costs as much as 30 s, so it should hold as much speech as fits in, unless lengths are set.
LENGTHS: dict[str, float] = {"max_seconds": 28.0, "min_seconds": 15.0}
MAX_PAUSE_SECONDS = 3.0
SLACK = 0.3  # seconds, by which the time of a word may be wrong
SKIPPED = "speech without text: decoded again in parts"
MAX_SKIPPED_SECONDS = 0.8
SURE_TEMPERATURE = 0.5  # text that was found above is no good to go on from

Language = tuple[str, float | None]
"""Code, with its probability if it was detected."""


@dataclass(frozen=True)
class OpenedSegment(AudioSegment):
    """A segment, with the first speech of its recording, and its language in a list once it is known."""

    opening: AudioSegment | None = None
    known: list[Language] | None = None


@dataclass(frozen=True)
class DecodedWindow:
    """Text of one window of 30 seconds, where each begins at the end of the text before."""

    segments: tuple[Segment, ...]
    language: str
    previous: tuple[int, ...]
    """Tokens of the text before the next window."""
    step: int
    """Samples from the start of this window to that of the next one."""


DECODED_WINDOW: pydantic.TypeAdapter[DecodedWindow] = pydantic.TypeAdapter(DecodedWindow)


class WhisperRecognizer(Transcriber):
    """A Whisper model."""

    give_way: Callable[[], None] = staticmethod(lambda: None)
    """Called now and then during a batch, in its thread: something more urgent may be recognized there."""

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
        self.language = system.language if self.tokenizer.is_multilingual else "en"
        self.model = system.model.eval()
        if self.precision.startswith("int8"):
            self.model.quantise(torch.bfloat16 if self.precision == "int8_bf16" else torch.float32)
        else:
            self.model.float().to(self.device)
        self.front_end = system.front_end.to(self.device)
        self.checks = checks or ChecksConfig()
        if "max_skipped_seconds" not in self.checks.model_fields_set:
            self.checks = self.checks.model_copy(update={"max_skipped_seconds": MAX_SKIPPED_SECONDS})
        self.sample_rate = system.front_end.config.sample_rate
        self.separator = " "
        self.whole_seconds = system.whole_samples / self.sample_rate
        segmentation = segmentation or SegmentationConfig()
        lengths = {} if LENGTHS.keys() & segmentation.model_fields_set else LENGTHS
        segmentation = segmentation.with_rules(max_pause_seconds=MAX_PAUSE_SECONDS, **lengths)
        self.segmentation = segmentation.limited(self.whole_seconds)

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

    def check_live(self, request: Request) -> None:
        if _options(request).windows != "pauses":
            raise UserError("live speech is cut in pauses; leave whisper.windows out")

    def in_language(self, request: Request, language: str) -> Request:
        return replace(request, options=_options(request).model_copy(update={"language": language}))

    def tentatively(self, request: Request) -> Request:
        return replace(request, options=_options(request).model_copy(update={"temperatures": ()}))

    def separator_in(self, language: str | None) -> str:
        return "" if language in WITHOUT_SPACES else self.separator

    # --- segments ---------------------------------------------------------------------------------

    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        """Decode segments; if Whisper skips speech in one, its spans are decoded again, one by one."""
        results = self._recognize_once(segments, request)
        rows = [row for row, segment in enumerate(segments) if self._skips_speech(segment, results[row])]
        if _options(request).task == "translate":  # the times of its words are not those of the speech
            rows.clear()
        pieces = [piece for row in rows for piece in split_at_pauses(segments[row])]
        lengths = [self.padded_length(len(piece.audio_S), request) for piece in pieces]
        again: dict[int, Segment] = {}
        for batch in batch_by_length(lengths, request.batch_size):
            again |= zip(
                batch, self._recognize_once([pieces[place] for place in batch], request), strict=True
            )
        parts = (again[place] for place in range(len(pieces)))
        for row in rows:
            own = [next(parts) for _ in segments[row].speech]
            results[row] = join_parts(segments[row], own, self.separator_in(results[row].language))
        return [
            replace_words(found, found.text, clip_words(found.words, segment))
            for segment, found in zip(segments, results, strict=True)
        ]

    def _skips_speech(self, segment: AudioSegment, result: Segment) -> bool:
        """Check whether a long span of speech, of several, has no word."""
        limit = self.checks.max_skipped_seconds
        if limit is None or len(segment.speech) < 2:
            return False
        middles = [word.middle for word in result.words]
        return any(
            end - start > limit and not any(start - SLACK <= middle <= end + SLACK for middle in middles)
            for start, end in segment.speech
        )

    def _recognize_once(
        self, segments: Sequence[AudioSegment], request: Request, with_words: bool = True
    ) -> list[Segment]:
        options = _options(request)
        windows = self.encode(segments, options)
        texts = self.decode(windows, options)
        words = self.time(segments, windows, [text.tokens if with_words else () for text in texts], options)
        results = []
        for segment, text, own in zip(segments, texts, words, strict=True):
            tokens = text.tokens if request.tokens else ()
            placed = replace(text, start=segment.start, end=segment.end, tokens=tokens)
            results.append(replace_words(placed, text.text, own))
        return results

    @torch.inference_mode()
    def encode(self, segments: Sequence[AudioSegment], config: WhisperDecodingConfig) -> EncodedWindows:
        """One batch, from samples to encoded steps, with the language of each."""
        with arithmetic(self.device, self.dtype):
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
        with arithmetic(self.device, self.dtype):
            return decode_windows(self.model, self.tokenizer, windows, config, self.checks, self.give_way)

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
        with arithmetic(self.device, self.dtype):
            aligned = align_tokens(self.model, self.tokenizer, part.audio, steps, prompts, known)
        for row, (language, _), firsts, chances in zip(rows, part.languages, *aligned, strict=True):
            spans = split_words(self.tokenizer, texts[row], language)
            timed[row] = time_words(spans, firsts, chances, segments[row].start)
        return timed

    def read(
        self, segments: Sequence[AudioSegment], requests: Mapping[str, Request]
    ) -> dict[str, TimedTexts]:
        texts = {}
        for name, request in requests.items():
            if _options(request).windows != "pauses":
                raise UserError(
                    "whisper.windows is about recordings; utterances are decoded as they are, remove it"
                )
            began = read_clock(self.device)
            own = self._recognize_once(segments, request, with_words=False)
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
                    audio_S = np.concatenate([one.audio_S for one in held])[: self.system.whole_samples]
                    opening = replace(opening, audio_S=audio_S)
            if opening is not None:
                yield from (OpenedSegment(**vars(one), opening=opening, known=known) for one in held)
                held = []
            if isinstance(piece, End):
                opening = None
                yield piece

    # --- windows one after the other --------------------------------------------------------------

    def decode_recordings(self, recordings: Iterable[Recording], request: Request) -> Iterator[Decoded]:
        if _options(request).windows == "pauses":
            yield from super().decode_recordings(recordings, request)
            return
        for recording in recordings:
            parts = split_channels(recording, request.channels)
            for part in parts:
                yield from self._go_through(part, request, part is parts[-1])

    def _go_through(self, recording: Recording, request: Request, is_last: bool) -> Iterator[Decoded]:
        """Each window begins where the last whole span of text before it ended."""
        audio_S, done, total, size = np.zeros(0, np.float32), 0, 0, self.system.whole_samples
        window: DecodedWindow | None = None
        error, damages, journal = None, list[Damage](), request.journal
        blocks = read_ahead(read_recording(recording, self.sample_rate, damages.append), 60)
        with contextlib.closing(blocks):
            while True:
                try:
                    while len(audio_S) < size and (block_S := next(blocks, None)) is not None:
                        audio_S, total = np.concatenate([audio_S, block_S]), total + len(block_S)
                except UserError as fault:
                    error = fault
                if not len(audio_S):
                    break
                start = recording.start + done / self.sample_rate
                place = AudioSegment(start, audio_S[:size], self.sample_rate, recording=recording)
                if known := journal and journal.find_segment(place):
                    window = DECODED_WINDOW.validate_python(known)
                else:
                    window = self._read_window(place, window, request)
                if journal is not None:
                    journal.add_segment(place, asdict(window))
                for segment in window.segments:
                    yield place, segment
                audio_S, done = audio_S[window.step :], done + window.step
        yield End(recording, total / self.sample_rate, error, damages, is_last), None

    def _read_window(
        self, place: AudioSegment, before: DecodedWindow | None, request: Request
    ) -> DecodedWindow:
        """Decode a window that follows on another one."""
        config, previous = _options(request), [] if before is None else list(before.previous)
        if before is not None:
            config = config.model_copy(update={"language": before.language})
        windows = replace(self.encode([place], config), with_times=True, previous=previous)
        (text,) = self.decode(windows, config)
        language, _ = windows.languages[0]
        spans, going_on = split_spans(self.tokenizer, text.tokens, len(place.audio_S) / self.sample_rate)
        texts = [[token for token in span.tokens if token < self.tokenizer.end] for span in spans]
        whole = [token for own in texts for token in own]
        (words,) = self.time([place], windows, [whole], config)
        words = clip_words(words, place)
        firsts = [span.tokens.start for span in split_words(self.tokenizer, whole, language)]
        segments, past, warnings = [], 0, text.warnings
        for span, own in zip(spans, texts, strict=True):
            first, past = past, past + len(own)
            inside = [word for token, word in zip(firsts, words, strict=True) if first <= token < past]
            found = replace_words(text, self.tokenizer.decode(own).strip(), inside)
            segments.append(
                replace(
                    found,
                    start=place.start + span.start,
                    end=place.start + span.end,
                    warnings=warnings,
                    tokens=span.tokens if request.tokens else (),
                )
            )
            warnings = ()
        if config.condition_on_previous_text:
            # Not what follows the last whole one, which the next window decodes again.
            for segment, span in zip(segments, spans, strict=True):
                if segment.text and span.start < span.end:
                    previous += span.tokens
            is_sure = (text.temperature or 0.0) <= SURE_TEMPERATURE
            previous = previous[-self.model.sizes.max_tokens :] if is_sure else []
        step = max(1, min(len(place.audio_S), round(going_on * self.sample_rate)))
        return DecodedWindow(tuple(segments), language, tuple(previous), step)


def join_parts(segment: AudioSegment, parts: Sequence[Segment], separator: str) -> Segment:
    """Join the texts of the parts of a segment, as if it had been decoded at once."""
    text = separator.join(one.text for one in parts if one.text)
    words = [word for one in parts for word in one.words]
    warnings = dict.fromkeys((SKIPPED, *(warning for one in parts for warning in one.warnings)))
    total, num_tokens = (sum(values) for values in zip(*(one.token_scores for one in parts), strict=True))
    joined = replace(
        parts[0],
        start=segment.start,
        end=segment.end,
        warnings=tuple(warnings),
        average_log_probability=total / num_tokens,
        no_speech_probability=max(one.no_speech_probability or 0.0 for one in parts),
        temperature=max(one.temperature or 0.0 for one in parts),
        tokens=tuple(token for one in parts for token in one.tokens),
        token_scores=(total, num_tokens),
    )
    return replace_words(joined, text, words)


load = WhisperRecognizer


def _options(request: Request) -> WhisperDecodingConfig:
    options = request.options or WhisperDecodingConfig()
    assert isinstance(options, WhisperDecodingConfig), f"expected a WhisperDecodingConfig, not {options}"
    return options
