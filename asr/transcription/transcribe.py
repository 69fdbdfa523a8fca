"""All steps from audio to text, in the order of this file: read and cut, batch, decode, time, join.

    cut_recordings     recordings -> segments of speech between pauses, in a thread that reads ahead
    decode_recordings  segments of similar length in batches -> their texts, with word times
    join_recordings    texts of segments -> transcripts

Steps that depend on the kind of model are methods of `SpeechDecoder`, of which each family has a subclass.
Memory holds little more than the audio to decode next, however long a recording is.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

import pydantic

from asr.audio.reading import change_speed
from asr.audio.segmentation import (
    AudioSegment,
    Channels,
    Recording,
    SegmentationConfig,
    Segmenter,
    read_ahead,
    read_recording,
    split_channels,
)
from asr.config import Config, Precision
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig, DecodingSetup, FusionModel
from asr.errors import UserError, require_choice
from asr.families import Family, find_default_model, find_family, find_model, is_export
from asr.system.decoding_resources import DecodingResources, load_bundled_decoding
from asr.text.normalization import TextConfig
from asr.threads import SideBySide, side_by_side
from asr.transcripts.transcript import (
    Segment,
    Transcript,
    Word,
    clip_words,
    join_words,
    keep_words,
    make_segment,
    merge_channels,
)

if TYPE_CHECKING:
    from asr.audio.speech_detection import DetectorModel
    from asr.decoding.decode import DecodedBatch, SpeechDecoder

# S samples

WINDOW = 8  # number of batches whose segments are sorted by length
LONGEST_BATCHES = 6  # window of the longest segments (16 minutes); fewer would leave batches half full
SEGMENTS = pydantic.TypeAdapter(list[Segment])  # parses the segments of a journal


class Journal(Protocol):
    """A store of finished segments, from which an interrupted call resumes. It has to be thread-safe."""

    def find_segment(self, segment: AudioSegment) -> Any: ...
    def add_segment(self, segment: AudioSegment, value: dict[str, Any]) -> None: ...


Event = tuple[Recording, Segment | Transcript | UserError]
"""A final segment of a recording, or at its end the complete transcript, or the error."""


@dataclass(frozen=True)
class End:
    """Marks the end of a recording, or of one of its channels."""

    recording: Recording
    seconds: float
    error: UserError | None = None
    damages: Sequence[str] = ()  # at most one message about missing parts of the recording
    is_last: bool = True  # False if another channel follows


Decoded = tuple[AudioSegment | End, Segment | None]
"""A segment of audio with its text, in the order of the recordings; or the end of one, without text."""


@dataclass(frozen=True)
class Request:
    """All options of one call."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    language_model: FusionModel | None = None
    batch_size: int = 8
    options: Config | None = None
    """Settings of the model's family, such as the language; None: the defaults."""
    channels: Channels = "mix"
    """Channels to transcribe: mix, their mean; separate, each as a speaker; or a number, counted from 1."""
    has_words: bool = True  # False: compute word times only where segments overlap
    label_speakers: Callable[[Recording, Transcript], Transcript] | None = None  # adds diarization
    journal: Journal | None = None  # keeps finished segments in case the call is interrupted

    @property
    def setup(self) -> DecodingSetup:
        return DecodingSetup(self.decoding, self.language_model, self.options)


@dataclass
class TimedTexts:
    """Texts of a batch, without word times, and the seconds spent on computing them."""

    segments: list[Segment]
    seconds: float


def load_recognizer(
    source: str | Path | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Recognizer:
    """Load the recognizer that `asr.load_model` wraps, with the same arguments."""
    source = find_default_model() if source is None else source
    require_choice("precision", precision, get_args(Precision))  # this and the device before downloading
    if is_export(source):
        load_export: Callable[..., Recognizer] = import_module("asr.export.onnx_recognizer").load_export
        return load_export(source, device, precision, segmentation, checks)
    from asr.models.precision import choose_device
    from asr.system.system import load_state, load_system

    chosen = str(choose_device(device))
    if (family := find_family(source)) is not None:
        recognizer = family.load(source, chosen, precision, segmentation, checks)
    else:
        folder = find_model(source)
        if is_export(folder):  # from the hub
            return load_recognizer(folder, device, precision, segmentation, checks)
        longest = load_state(folder).get("longest_seconds")
        resources, system = load_bundled_decoding(folder), load_system(folder)
        recognizer = Recognizer(system, chosen, precision, segmentation, checks, longest, resources)
    recognizer.name = str(source)
    return recognizer


def find_manners(system: Any) -> type[SpeechDecoder]:
    """Return the decoder class for an encoder that works by chunks, or the usual one."""
    from asr.decoding.decode import SpeechDecoder

    if getattr(system.model.encoder, "chunk", None) is None:
        return SpeechDecoder
    manners: type[SpeechDecoder] = import_module("asr.streaming.chunked_decoder").ChunkedDecoder
    return manners


class Recognizer:
    """A model that turns recordings into transcripts. Made by `load_recognizer`."""

    name = ""
    """Argument of `load_model`."""
    load_detector: Callable[[], DetectorModel] | None = None
    """Loads the network that detects speech; None: in PyTorch."""

    def __init__(
        self,
        system: Any,
        device: str = "auto",
        precision: Precision = "auto",
        segmentation: SegmentationConfig | None = None,
        checks: ChecksConfig | None = None,
        longest_seconds: float | None = None,
        resources: DecodingResources | None = None,
        needs_times: bool = True,
        manners: type[SpeechDecoder] | None = None,
        family: Family | None = None,
    ) -> None:
        """`longest_seconds` is the duration of the longest training utterance, which limits segments.

        `resources` are the decoding settings and language model for calls that name none. Without
        `needs_times`, for evaluation, the model need not have word times. `family` is None if it is
        native; its encoder then chooses the `manners`.
        """
        import torch

        from asr.models.precision import HALF_TYPES, choose_device, resolve_precision

        manners = manners or find_manners(system)
        decoder = system.model.decoder
        if needs_times and system.model.ctc_head is None and (decoder is None or decoder.num_heads == 0):
            raise UserError(
                "this model has neither a CTC head nor attention, which provide word times; decode it with "
                "`asr evaluate`, or train one with model.ctc_weight above 0"
            )
        self.system, self.family = system, family
        self.device = choose_device(device)
        self.precision = resolve_precision(precision, self.device, manners.prefers_int8)
        self.compute_type = f"{self.precision} on {self.device.type}"
        self.num_parameters = sum(parameter.numel() for parameter in system.model.parameters())
        manners.set_precision(system.model, self.precision)
        dtype = HALF_TYPES.get(self.precision, torch.float32)
        self.decoder = manners(system, checks, self.device, dtype)
        self.checks, self.model, self.tokenizer = self.decoder.checks, system.model, system.tokenizer
        self.language, self.sample_rate = self.decoder.language, self.decoder.sample_rate
        plan = self.decoder.plan_segments(segmentation or SegmentationConfig(), longest_seconds)
        self.segmentation, self.uncut_seconds, self.trained_seconds = plan
        self.resources = resources or DecodingResources()
        self._loaded: tuple[DecodingResources, FusionModel | None] = DecodingResources(), None

    # --- entry points -----------------------------------------------------------------------------

    def transcribe_recording(self, recording: Recording, request: Request) -> Transcript:
        *_, result = self.follow(recording, request)
        assert isinstance(result, Transcript)
        return result

    def follow(self, recording: Recording, request: Request) -> Iterator[Segment | Transcript]:
        for _, result in self.transcribe_events([recording], request):
            if isinstance(result, UserError):
                raise result
            yield result

    def transcribe_events(self, recordings: Iterable[Recording], request: Request) -> Iterator[Event]:
        """Yield each recording's segments in order, as soon as they are final, then its transcript or error.

        If channels are transcribed separately or speakers are labeled, only the transcript is yielded.
        """
        self.check(request)
        yield from self.join_recordings(self.decode_recordings(recordings, request), request)

    # --- read and cut -----------------------------------------------------------------------------

    def cut_recordings(
        self, recordings: Iterable[Recording], request: Request
    ) -> Iterator[AudioSegment | End]:
        """Yield the segments of each recording, then its end with any error, since this runs in a thread."""
        for recording in recordings:
            parts = split_channels(recording, request.channels)
            for part in parts:
                error, damages = None, list[str]()
                segmenter = self.make_segmenter(part)
                try:
                    for block in read_recording(part, self.sample_rate, damages.append):
                        for segment in segmenter.push(block):
                            yield replace(segment, recording=part)
                except UserError as problem:
                    error = problem
                for segment in segmenter.finish():
                    yield replace(segment, recording=part)
                yield End(part, segmenter.seconds, error, damages, part is parts[-1])

    def make_segmenter(self, recording: Recording) -> Segmenter:
        """Build a segmenter that leaves an utterance of a manifest whole, unless it is very long."""
        segmentation, seconds = self.segmentation, recording.duration
        if recording.is_utterance and seconds is not None and seconds <= self.uncut_seconds:
            segmentation = segmentation.model_copy(update={"method": "none"})
        start, uncut_seconds = recording.start, self.trained_seconds
        return Segmenter(
            self.sample_rate, segmentation, start, uncut_seconds, load_detector=self.load_detector
        )

    # --- batch and decode -------------------------------------------------------------------------

    def decode_recordings(self, recordings: Iterable[Recording], request: Request) -> Iterator[Decoded]:
        """Yield the segments of the recordings in order, each with its text."""
        window: list[AudioSegment | End] = []
        pieces = self.decoder.prepare(self.cut_recordings(recordings, request), request.setup)
        ahead = read_ahead(pieces, request.batch_size)
        with contextlib.closing(ahead), side_by_side(self.device) as run:
            for piece in ahead:
                window.append(piece)
                if self._is_full(window, request.batch_size):
                    yield from self._decode_window(window, request, run)
                    window.clear()
            yield from self._decode_window(window, request, run)

    def _is_full(self, window: Sequence[AudioSegment | End], batch_size: int) -> bool:
        """Return True if the window has enough audio or segments for several batches, or only ends."""
        lengths = [piece.end - piece.start for piece in window if not isinstance(piece, End)]
        most = LONGEST_BATCHES * batch_size * self.segmentation.max_seconds
        return not lengths or len(lengths) >= WINDOW * batch_size or sum(lengths) >= most

    def _decode_window(
        self, window: Sequence[AudioSegment | End], request: Request, run: SideBySide
    ) -> Iterator[Decoded]:
        """Decode in batches of equal padded length, starting with the batch of the first segment."""
        segments = [piece for piece in window if not isinstance(piece, End)]
        lengths = [self.decoder.padded_length(len(segment.audio_S)) for segment in segments]
        texts: dict[int, Segment] = {}  # by index in `segments`, kept until all earlier ones are decoded
        left, number = list(reversed(window)), 0
        batches = batch_by_length(lengths, request.batch_size)

        def decode(rows: list[int]) -> list[Segment]:
            return self._decode_batch([segments[row] for row in rows], request)

        for rows, decoded in itertools.chain([([], [])], zip(batches, run(decode, batches), strict=True)):
            texts |= zip(rows, decoded, strict=True)
            while left and (isinstance(left[-1], End) or number in texts):
                if isinstance(left[-1], End):
                    yield left.pop(), None
                else:
                    yield left.pop(), texts.pop(number)
                    number += 1

    def _decode_batch(self, batch: Sequence[AudioSegment], request: Request) -> list[Segment]:
        """Decode a batch, or return its texts from the journal if an earlier call has decoded all of it."""
        journal = request.journal
        if journal is None:
            return self.recognize(batch, request)
        stored = [journal.find_segment(segment) for segment in batch]
        if None not in stored:
            return SEGMENTS.validate_python(stored)
        segments = self.recognize(batch, request)
        for segment, text in zip(batch, segments, strict=True):
            journal.add_segment(segment, asdict(text))
        return segments

    # --- join -------------------------------------------------------------------------------------

    def join_recordings(self, decoded: Iterator[Decoded], request: Request) -> Iterator[Event]:
        """Yield the final segments and then the transcript of each recording."""
        channels: list[Transcript | UserError] = []
        for first in decoded:
            gives_segments = request.channels != "separate" and request.label_speakers is None
            end, result = yield from self._join_part(itertools.chain([first], decoded), gives_segments)
            channels.append(result)
            if end.is_last:
                joined = merge_channels(channels)
                if request.label_speakers is not None and isinstance(joined, Transcript):
                    joined = request.label_speakers(end.recording, joined)
                yield end.recording, joined
                channels = []

    def _join_part(
        self, decoded: Iterator[Decoded], gives_segments: bool
    ) -> Generator[Event, None, tuple[End, Transcript | UserError]]:
        """Join the segments up to the next end. Where they overlap, no word is lost or duplicated."""
        segments: list[Segment] = []
        held: tuple[AudioSegment, Segment] | None = None  # newest segment, which the next one may change
        opening, log_probability, num_tokens = Segment(0.0, 0.0, ""), 0.0, 0
        for piece, text in decoded:
            final = [] if held is None else [held[1]]
            if text is not None and not isinstance(piece, End):
                opening = text if opening.language is None else opening
                log_probability += text.token_scores[0]
                num_tokens += text.token_scores[1]
                if held is not None and piece.cut_before is not None:
                    (before, left), cut = held, piece.cut_before
                    if before.cut_after == cut:
                        separator = self.decoder.separator_in(opening.language)
                        words, following = join_words(left.words, text.words, cut)
                        final = [keep_words(left, words, separator)]
                        text = keep_words(text, following, separator)
                held = piece, text
                if piece.cut_after is None:
                    final.append(text)
                    held = None
            for segment in final:
                if segment.text or segment.warnings:
                    segments.append(segment)
                    if gives_segments:
                        yield piece.recording, segment
            if isinstance(piece, End):
                break
        assert isinstance(piece, End)
        if piece.error is not None and not piece.seconds:
            return piece, piece.error
        return piece, Transcript(
            piece.recording.name,
            str(piece.recording.path),
            piece.seconds,
            tuple(segments),
            separator=self.decoder.separator_in(opening.language),
            warnings=(*([str(piece.error)] if piece.error else []), *piece.damages),
            language=opening.language,
            language_probability=opening.language_probability,
            model=self.name,
            out_of_domain=self.check_domain(log_probability, num_tokens),
            compute_type=self.compute_type,
        )

    # --- from samples to text ---------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raise UserError for a request that this model does not support, before any file is read."""
        self.decoder.check(request.setup)

    def read(
        self, segments: Sequence[AudioSegment], requests: Mapping[str, Request]
    ) -> dict[str, TimedTexts]:
        """Decode one batch for each request. Texts are the same as from `recognize`, without word times."""
        setups = {name: request.setup for name, request in requests.items()}
        texts = {}
        for name, batch in self.decoder.decode_batch(segments, setups).items():
            found = self._make_segments(segments, batch, [()] * len(segments))
            texts[name] = TimedTexts(found, batch.seconds)
        return texts

    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Segment]:
        """Decode one batch, from samples to words with their times."""
        import torch

        with torch.inference_mode():
            (batch,) = self.decoder.decode_batch(segments, {"": request.setup}).values()
            found = self._make_segments(segments, batch, self._time_words(segments, batch, request))
            if self.resources.min_log_probability is None:
                return found
            scores = self.decoder.score_tokens(batch)
        return [replace(one, token_scores=score) for one, score in zip(found, scores, strict=True)]

    def _make_segments(
        self, segments: Sequence[AudioSegment], batch: DecodedBatch, words: Sequence[Sequence[Word]]
    ) -> list[Segment]:
        found = []
        encoded, _ = next(iter(batch.at_speeds.values()))
        for row, (segment, (_, decoded)) in enumerate(zip(segments, batch.best, strict=True)):
            language, probability = encoded.languages[row] if encoded.languages else (None, None)
            text = self.decoder.spell(decoded.tokens)
            timed = make_segment(segment, text, words[row], decoded.method, decoded.warnings)
            found.append(
                replace(
                    timed,
                    average_log_probability=decoded.average_log_probability,
                    no_speech_probability=decoded.no_speech,
                    temperature=decoded.temperature,
                    tokens=self.decoder.number(decoded.tokens),
                    language=language,
                    language_probability=probability,
                )
            )
        return found

    def _time_words(
        self, segments: Sequence[AudioSegment], batch: DecodedBatch, request: Request
    ) -> list[list[Word]]:
        """Return the words of each segment if they are requested or the segment overlaps another."""
        words: list[list[Word]] = [[] for _ in segments]
        best = batch.best
        for speed, (encoded, _) in batch.at_speeds.items():
            texts = {
                row: self.decoder.rules.spoken(decoded.tokens)
                for row, (own_speed, decoded) in enumerate(best)
                if own_speed == speed and (request.has_words or segments[row].overlaps)
            }
            rows = [row for row, tokens in texts.items() if tokens]
            if not rows:
                continue
            part = encoded.select(encoded.lengths_B.new_tensor(rows))
            audio = [change_speed(segments[row].audio_S, speed, self.sample_rate) for row in rows]
            timed = self.decoder.time_words(part, audio, [texts[row] for row in rows], request.setup)
            for row, own in zip(rows, timed, strict=True):
                first = segments[row].start
                placed = [
                    replace(one, start=first + speed * one.start, end=first + speed * one.end) for one in own
                ]
                words[row] = clip_words(placed, segments[row])
        return words

    # --- settings of a call -----------------------------------------------------------------------

    def change_request(self, request: Request, language: str | None, is_partial: bool) -> Request:
        """Adapt a request to live speech: set the language, if the model has several, and make no second
        attempt at a text that the next decoding may change."""
        if is_partial:
            request = replace(request, decoding=request.decoding.model_copy(update={"temperatures": ()}))
        options = request.options
        if language is not None and options is not None and "language" in type(options).model_fields:
            request = replace(request, options=options.model_copy(update={"language": language}))
        return request

    def check_domain(self, log_probability: float, num_tokens: int) -> str:
        """Compare the mean log-probability of a token at all speeds with the model's limit, if it has one."""
        limit = self.resources.min_log_probability
        if limit is None or not num_tokens:
            return ""
        average = log_probability / num_tokens
        if average >= limit:
            return ""
        trained_for = self.resources.trained_for and f" ({self.resources.trained_for})"
        return (
            f"probably not what the model was trained for{trained_for}: its tokens have a mean "
            f"log-probability of {average:.2f}, expected {limit:g} or more; use another model"
        )

    def default_decoding(self) -> tuple[DecodingConfig, FusionModel | None]:
        """Return the decoding settings and language model for calls that name none."""
        return self.resources.decoding or DecodingConfig(), self.load_resources(self.resources)

    def load_resources(self, resources: DecodingResources) -> FusionModel | None:
        """Load language model and word list, or reuse them if the previous call had the same."""
        if not resources.files:
            return None
        if resources != self._loaded[0]:
            text = self.system.text or TextConfig()
            self._loaded = resources, resources.load(self.tokenizer, text, self.device)
        return self._loaded[1]


def batch_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Yield the row numbers of batches of equal length; the first row is in the first batch."""
    rows_of: dict[int, list[int]] = collections.defaultdict(list)
    for row, length in enumerate(lengths):
        rows_of[length].append(row)
    return sorted(
        rows[start : start + batch_size]
        for rows in rows_of.values()
        for start in range(0, len(rows), batch_size)
    )
