"""Transcribe by a Whisper model: segments in batches, or one window of 30 s after the other.

features -> model.encode -> decode_windows -> align_tokens -> time_words
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pydantic
import torch

from asr.audio.reading import Damage
from asr.audio.segmentation import AudioSegment, SegmentationConfig, split_at_pauses
from asr.audio.sources import Recording, read_ahead, read_recording, split_channels
from asr.decoding.checks import ChecksConfig
from asr.decoding.decode import Stopwatch, batch_by_length, pad_audio
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.models.lora_int8 import Precision
from asr.transcription.joining import clip_words, make_segment, mean_confidence, replace_words
from asr.transcription.transcribe import Decoded, End, Request, TimedTexts, Transcriber
from asr.transcripts.transcript import Segment, Word
from asr.whisper.decoding import (
    SECONDS_PER_STEP,
    EncodedWindows,
    WhisperReading,
    decode_windows,
    detect_languages,
    require_known,
)
from asr.whisper.encoder_decoder import WhisperSystem, count_padded_samples, count_whole_samples, encode_audio
from asr.whisper.family import WhisperDecodingConfig
from asr.whisper.token_times import align_tokens
from asr.whisper.words import WITHOUT_SPACES, TimedSpan, split_spans, split_words, time_words

# B segments, S samples, W samples of a window, T encoded steps, D dimension

OPENING_SECONDS = 30.0  # of speech, by which the language of a recording is detected
# Each segment costs as much as 30 s, so it should hold as much speech as fits in.
LENGTHS: dict[str, float] = {"max_seconds": 28.0, "min_seconds": 15.0}
MAX_PAUSE_SECONDS = 3.0
SLACK = 0.3  # seconds, by which the time of a word may be wrong
SKIPPED = "speech without text: decoded again in parts"
MAX_SKIPPED_SECONDS = 0.8
SURE_TEMPERATURE = 0.5  # text that was found above is no good to go on from


@dataclass
class Opening:
    """The first speech of a recording, and its language once it is known."""

    segment: AudioSegment
    language: tuple[str, float] | None = None
    """With its probability."""


@dataclass(frozen=True)
class OpenedSegment(AudioSegment):
    """A segment, with the opening of its recording."""

    opening: Opening | None = None


@dataclass(frozen=True)
class DecodedWindow:
    """Text of one window of 30 seconds, where each begins at the end of the text before."""

    segments: tuple[Segment, ...]
    language: str
    language_probability: float | None
    previous: tuple[int, ...]
    """Tokens of the text before the next window."""
    step: int
    """Samples from the start of this window to that of the next one."""


DECODED_WINDOW: pydantic.TypeAdapter[DecodedWindow] = pydantic.TypeAdapter(DecodedWindow)


class WhisperRecognizer(Transcriber):
    """A Whisper model."""

    window_samples: int

    def __init__(
        self,
        system: WhisperSystem,
        device: str = "auto",
        precision: Precision = "float32",
        segmentation: SegmentationConfig | None = None,
        checks: ChecksConfig | None = None,
    ) -> None:
        super().__init__(device, precision, prefers_int8=True)
        self.system = system
        self.language = system.language if system.tokenizer.is_multilingual else "en"
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
        self.window_samples = count_whole_samples(system)
        window_seconds = self.window_samples / self.sample_rate
        self.whole_seconds = window_seconds
        self.segmentation = fill_windows(segmentation or SegmentationConfig()).limited(window_seconds)

    def check(self, request: Request) -> None:
        if request.language_model is not None or request.decoding != DecodingConfig():
            raise UserError(
                "a language model, a lexicon and the settings of decoding are for models trained here; "
                "Whisper has its own: whisper.beam, whisper.prompt, whisper.hotwords ..."
            )
        require_known(self.system.tokenizer, _options(request), self.model.sizes.max_tokens)

    def padded_length(self, num_samples: int, request: Request) -> int:
        return count_padded_samples(self.system, num_samples)

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
        again = iter(self._recognize_again(pieces, request))
        for row in rows:
            parts = [next(again) for _ in segments[row].speech]
            results[row] = join_parts(segments[row], parts, self.separator_in(results[row].language))
        for row, segment in enumerate(segments):
            found = results[row]
            results[row] = replace_words(found, found.text, clip_words(found.words, segment))
        return results

    def _skips_speech(self, segment: AudioSegment, result: Segment) -> bool:
        """Check whether a long span of speech, of several, has no word."""
        limit = self.checks.max_skipped_seconds
        if limit is None or len(segment.speech) < 2:
            return False
        middles = [(word.start + word.end) / 2 for word in result.words]
        return any(
            end - start > limit and not any(start - SLACK <= middle <= end + SLACK for middle in middles)
            for start, end in segment.speech
        )

    @torch.inference_mode()
    def _recognize_once(self, segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        windows = self.encode(segments, _options(request))
        readings = self.decode(windows, _options(request))
        tokens = [[token for token in one.tokens if token < self.system.tokenizer.end] for one in readings]
        timed = self.time(segments, windows, tokens, _options(request))
        results = []
        for segment, reading, words in zip(segments, readings, timed, strict=True):
            found = make_segment(segment, reading.text, words, reading.method, reading.warnings)
            found = with_scores(found, reading, reading.tokens if request.tokens else ())
            num_tokens = len(reading.tokens) + 1
            total = num_tokens * (found.average_log_probability or 0.0)
            results.append(replace(found, token_scores=(total, num_tokens)))
        return results

    @torch.inference_mode()
    def encode(self, segments: Sequence[AudioSegment], config: WhisperDecodingConfig) -> EncodedWindows:
        """One batch, from samples to encoded steps, with the language of each."""
        audio = pad_audio([segment.audio_S for segment in segments], self.device)
        with self._precision():
            encoded_BTD, lengths_B, bias_BT = encode_audio(self.system, *audio)
        language = config.language or self.language
        windows = EncodedWindows(encoded_BTD, lengths_B, [language or ""] * len(segments), bias_BT=bias_BT)
        if language is not None:
            return windows
        languages, probabilities = zip(*self._detect(segments, windows), strict=True)
        return replace(windows, languages=languages, language_probabilities=probabilities)

    @torch.inference_mode()
    def decode(self, windows: EncodedWindows, config: WhisperDecodingConfig) -> list[WhisperReading]:
        """Decode encoded windows to text."""
        with self._precision():
            return decode_windows(
                self.model, self.system.tokenizer, windows, config, self.checks, self.give_way
            )

    @torch.inference_mode()
    def time(
        self,
        segments: Sequence[AudioSegment],
        windows: EncodedWindows,
        tokens: Sequence[Sequence[int]],
        config: WhisperDecodingConfig,
    ) -> list[list[Word]]:
        """The words of tokens of text, with times from the start of the recording."""
        timed: list[list[Word]] = [[] for _ in tokens]
        rows = [row for row, ids in enumerate(tokens) if ids]
        if not rows:
            return timed
        tokenizer, part = self.system.tokenizer, windows.select(rows)
        known = [tokens[row] for row in rows]
        prompts = [tokenizer.prompt(language, config.task) for language in part.languages]
        step_samples = SECONDS_PER_STEP * self.sample_rate
        steps = [int(len(segments[row].audio_S) / step_samples) for row in rows]
        with self._precision():
            firsts, probabilities = align_tokens(
                self.model, tokenizer, (part.encoded_BTD, part.lengths_B, part.bias_BT), steps, prompts, known
            )
        for place, row in enumerate(rows):
            spans = split_words(tokenizer, known[place], part.languages[place])
            timed[row] = time_words(spans, firsts[place], probabilities[place], segments[row].start)
        return timed

    def read(
        self, segments: Sequence[AudioSegment], requests: Mapping[str, Request]
    ) -> dict[str, TimedTexts]:
        texts = {}
        for name, request in requests.items():
            watch = Stopwatch(self.device)
            options = _options(request)
            if options.windows != "pauses":
                raise UserError(
                    "whisper.windows is about recordings; utterances are decoded as they are, remove it"
                )
            readings = self.decode(self.encode(segments, options), options)
            own = [
                make_segment(segment, one.text, (), one.method, one.warnings)
                for segment, one in zip(segments, readings, strict=True)
            ]
            texts[name] = TimedTexts(own, watch.read())
        return texts

    def _recognize_again(self, segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        """Decode in batches of windows that are equally long."""
        lengths = [self.padded_length(len(segment.audio_S), request) for segment in segments]
        found: dict[int, Segment] = {}
        for rows in batch_by_length(lengths, request.batch_size):
            found |= zip(rows, self._recognize_once([segments[row] for row in rows], request), strict=True)
        return [found[row] for row in range(len(segments))]

    # --- languages --------------------------------------------------------------------------------

    def cut_recordings(
        self, recordings: Iterable[Recording], request: Request
    ) -> Iterator[AudioSegment | End]:
        """Give each segment the first speech of its recording, where the language is to be detected."""
        pieces = super().cut_recordings(recordings, request)
        if (_options(request).language or self.language) is not None:
            yield from pieces
            return
        held: list[AudioSegment] = []
        opening: Opening | None = None
        for piece in pieces:
            is_end = isinstance(piece, End)
            if not isinstance(piece, End):
                held.append(piece)
            if opening is None and held:
                seconds = sum(len(one.audio_S) for one in held) / self.sample_rate
                if not is_end and seconds < OPENING_SECONDS:
                    continue
                opening = Opening(self._join_audio(held))
            for one in held:
                yield OpenedSegment(**vars(one), opening=opening)
            held.clear()
            if isinstance(piece, End):
                opening = None
                yield piece

    def _join_audio(self, segments: Sequence[AudioSegment]) -> AudioSegment:
        if len(segments) == 1:
            return segments[0]
        audio_S = np.concatenate([segment.audio_S for segment in segments])[: self.window_samples]
        return AudioSegment(segments[0].start, audio_S, self.sample_rate)

    def _detect(self, segments: Sequence[AudioSegment], windows: EncodedWindows) -> list[tuple[str, float]]:
        """Language of each segment's recording; of live speech, which has no opening, its own."""
        with self._precision():
            own = detect_languages(
                self.model, self.system.tokenizer, windows.encoded_BTD, windows.lengths_B, windows.bias_BT
            )
            languages = []
            for segment, language in zip(segments, own, strict=True):
                opening = segment.opening if isinstance(segment, OpenedSegment) else None
                opening = opening or Opening(segment)
                if opening.language is None:
                    is_whole = opening.segment.audio_S is segment.audio_S
                    opening.language = language if is_whole else self._detect_alone(opening.segment)
                languages.append(opening.language)
        return languages

    def _detect_alone(self, segment: AudioSegment) -> tuple[str, float]:
        encoded = encode_audio(self.system, *pad_audio([segment.audio_S], self.device))
        (language,) = detect_languages(self.model, self.system.tokenizer, *encoded)
        return language

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
        audio_S, done, total = np.zeros(0, np.float32), 0, 0
        window: DecodedWindow | None = None
        error, damages, journal = None, list[Damage](), request.journal
        blocks = read_ahead(read_recording(recording, self.sample_rate, damages.append), 60)
        with contextlib.closing(blocks):
            while True:
                try:
                    while len(audio_S) < self.window_samples:
                        block_S = next(blocks)
                        audio_S, total = np.concatenate([audio_S, block_S]), total + len(block_S)
                except StopIteration:
                    pass
                except UserError as fault:
                    error = fault
                if not len(audio_S):
                    break
                start = recording.start + done / self.sample_rate
                audio_W = audio_S[: self.window_samples]
                place = AudioSegment(start, audio_W, self.sample_rate, recording=recording)
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
        (reading,) = self.decode(windows, config)
        seconds = len(place.audio_S) / self.sample_rate
        spans, going_on = split_spans(self.system.tokenizer, reading.tokens, seconds)
        whole = [token for span in spans for token in span.tokens]
        (words,) = self.time([place], windows, [whole], config)
        tokens = [word.tokens[0] for word in split_words(self.system.tokenizer, whole, reading.language)]
        placed = list(zip(tokens, clip_words(words, place), strict=True))
        texts = [self.system.tokenizer.decode(span.tokens).strip() for span in spans]
        segments = tuple(
            with_scores(segment, reading, span.timed_tokens if request.tokens else ())
            for segment, span in zip(make_segments(place, reading, spans, texts, placed), spans, strict=True)
        )
        if config.condition_on_previous_text:
            # Not what follows the last whole one, which the next window decodes again.
            for span, text in zip(spans, texts, strict=True):
                if text and span.start < span.end:
                    previous += span.timed_tokens
            is_sure = reading.temperature <= SURE_TEMPERATURE
            previous = previous[-self.model.sizes.max_tokens :] if is_sure else []
        step = max(1, min(len(place.audio_S), round(going_on * self.sample_rate)))
        return DecodedWindow(segments, reading.language, reading.language_probability, tuple(previous), step)


def with_scores(segment: Segment, reading: WhisperReading, tokens: Sequence[int]) -> Segment:
    """The same with what the model says of the window that it is in."""
    return replace(
        segment,
        average_log_probability=reading.average_log_probability,
        no_speech_probability=reading.no_speech_probability,
        temperature=reading.temperature,
        tokens=tuple(tokens),
        language=reading.language,
        language_probability=reading.language_probability,
    )


def join_parts(segment: AudioSegment, parts: Sequence[Segment], separator: str) -> Segment:
    """Join the texts of the parts of a segment, as if it had been decoded at once."""
    text = separator.join(one.text for one in parts if one.text)
    words = [word for one in parts for word in one.words]
    warnings = tuple(dict.fromkeys((SKIPPED, *(warning for one in parts for warning in one.warnings))))
    total, num_tokens = (sum(values) for values in zip(*(one.token_scores for one in parts), strict=True))
    return replace(
        make_segment(segment, text, words, parts[0].decoding, warnings),
        average_log_probability=total / num_tokens,
        no_speech_probability=max(one.no_speech_probability or 0.0 for one in parts),
        temperature=max(one.temperature or 0.0 for one in parts),
        tokens=tuple(token for one in parts for token in one.tokens),
        language=parts[0].language,
        language_probability=parts[0].language_probability,
        token_scores=(total, num_tokens),
    )


def fill_windows(config: SegmentationConfig) -> SegmentationConfig:
    """The same with long segments, as far as nothing else was set."""
    lengths = {} if LENGTHS.keys() & config.model_fields_set else LENGTHS
    return config.with_rules(max_pause_seconds=MAX_PAUSE_SECONDS, **lengths)


def make_segments(
    place: AudioSegment,
    reading: WhisperReading,
    spans: Sequence[TimedSpan],
    texts: Sequence[str],
    words: Sequence[tuple[int, Word]],
) -> Iterator[Segment]:
    """One for each span of a window, with the words that begin in it; the first one has the warnings."""
    past, warnings = 0, reading.warnings
    for span, text in zip(spans, texts, strict=True):
        first, past = past, past + len(span.tokens)
        own = [word for token, word in words if first <= token < past]
        start, end = place.start + span.start, place.start + span.end
        yield Segment(start, end, text, tuple(own), mean_confidence(own), reading.method, warnings)
        warnings = ()


def _options(request: Request) -> WhisperDecodingConfig:
    options = request.options or WhisperDecodingConfig()
    if not isinstance(options, WhisperDecodingConfig):
        raise UserError(f"{type(options).__name__} is not for Whisper models; give a WhisperDecodingConfig")
    return options
