"""Transcriber: recordings to transcripts by a model of any kind; reading ahead, cutting, batches, joining.

    read_source -> Segmenter -> batches of similar length -> recognize -> join_segments

`Transcriber._read` goes from files to segments; a subclass for each kind of model decodes a batch of them in
`recognize`, or without the times of words in `read`, for evaluation. Reading goes on in a thread meanwhile,
and holds little more than what is decoded next: memory does not grow with the length of a recording.
"""

from __future__ import annotations

import abc
import contextlib
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from asr.audio.segmentation import AudioSegment, SegmentationConfig, Segmenter
from asr.audio.sources import (
    AudioFile,
    AudioInput,
    AudioPart,
    Channels,
    Content,
    Samples,
    Source,
    describe_source,
    make_source,
    read_ahead,
    read_source,
    split_channels,
)
from asr.config import Config
from asr.decoding.checks import ChecksConfig
from asr.decoding.core import arithmetic, batch_by_length
from asr.decoding.fusion import FusionModel
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.models.precision import Precision, describe_arithmetic, limit_kept_kernels, resolve_precision
from asr.transcription.joining import RECOGNIZED, End, OpenRecording, Recognized, assemble, merge_channels
from asr.transcription.segment_log import SegmentLog
from asr.transcripts.transcript import Segment, Transcript

DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}  # of autocast
WINDOW = 8  # batches among whose segments those of similar length are sought

Pending = list[tuple[OpenRecording, int, AudioSegment]]
Event = tuple[Source, Segment | Transcript | UserError]
"""A final segment of a recording, or at its end the whole transcript, or why there is none."""


@dataclass(frozen=True)
class Request:
    """Everything that is asked for in one call."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    language_model: FusionModel | None = None
    batch_size: int = 8
    options: Config | None = None
    """Of the model's family, such as WhisperDecodingConfig; None: the defaults."""
    tokens: bool = False
    """Whether segments hold their tokens."""
    report: Callable[[float], None] = lambda seconds: None
    """Is told of each batch how many seconds of audio are done."""
    channels: Channels = "mix"
    """Of recordings with several: their mean; separate: each by itself, as a speaker; or one, from 1."""
    open_log: Callable[[Source], SegmentLog | None] = lambda source: None
    """Where the finished segments of a recording are kept, in case that it is interrupted."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size}, expected 1 or more")


@dataclass
class TimedTexts:
    """Texts of a batch, without times of words, and the seconds of computing them."""

    segments: list[Segment]
    seconds: float


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
        raise UserError(f"device {name}: expected auto, cpu, cuda or cuda:1")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name}: cannot be used here ({reason}); give auto or cpu") from None
    return device


class Transcriber(abc.ABC):
    """A model that turns recordings into transcripts. Made by `load_model`."""

    name = ""
    """As it was given to `load_model`."""
    sample_rate: int
    separator: str
    """Between two words, and two segments."""
    give_way: Callable[[], None] = staticmethod(lambda: None)
    """Called now and then during a batch, in its thread: something more urgent may be recognized there."""
    segmentation: SegmentationConfig
    whole_seconds: float
    """An utterance of a manifest is one segment up to this length; a longer one is cut like a recording."""
    language: str | None = None
    """The only language of the model; None: it has several, or does not tell."""
    trained_seconds: float = 0.0
    """A recording of at most this length, as training had, is one segment with all of its silence."""
    checks: ChecksConfig

    def __init__(self, device: str, precision: Precision, prefers_int8: bool = False) -> None:
        limit_kept_kernels()
        self.device = choose_device(device)
        self.precision = resolve_precision(precision, self.device, prefers_int8)
        self.dtype = DTYPES.get(self.precision, torch.float32)
        self.arithmetic = describe_arithmetic(self.precision, self.device)

    # --- for each kind of model -------------------------------------------------------------------

    @abc.abstractmethod
    def check(self, request: Request) -> None:
        """Refuse, before any file is read, what this model cannot do."""

    @abc.abstractmethod
    def padded_length(self, num_samples: int, request: Request) -> int:
        """Segments for which this is the same go together, so that their company changes no shape."""

    @abc.abstractmethod
    def recognize(self, segments: Sequence[AudioSegment], request: Request) -> list[Recognized]:
        """Decode one batch, from samples to words with times."""

    @abc.abstractmethod
    def read(
        self, segments: Sequence[AudioSegment], requests: Mapping[str, Request]
    ) -> dict[str, TimedTexts]:
        """Decode one batch for each request. The texts are those of `recognize`; words have no times."""

    def check_live(self, request: Request) -> None:  # noqa: B027
        """Refuse what does not go with live speech."""

    def in_language(self, request: Request, language: str) -> Request:
        """The same request, of speech in this language."""
        return request

    def tentatively(self, request: Request) -> Request:
        """The same request for text that the next decoding may change: without second attempts at it."""
        return request

    def separator_in(self, language: str | None) -> str:
        """Separator of two words in this language."""
        return self.separator

    def find_doubt(self, recording: OpenRecording) -> str:
        """The reason why the model was probably not trained for a recording; "" if nothing tells so."""
        return ""

    def usual_decoding(self) -> tuple[DecodingConfig, FusionModel | None]:
        """Decoding settings and language model used when a call names none."""
        return DecodingConfig(), None

    # --- recordings -------------------------------------------------------------------------------

    def transcribe(
        self,
        source: AudioInput,
        sample_rate: int | None = None,
        *,
        decoding: DecodingConfig | None = None,
        language_model: FusionModel | None = None,
        options: Config | None = None,
        batch_size: int = 8,
        channels: Channels = "mix",
        tokens: bool = False,
    ) -> Transcript:
        """One recording: a path or AudioPart; samples (float, mono, in [-1, 1]; an array or a tensor) with
        their sample rate, or both as a pair; a file as bytes or opened; an audio of Hugging Face's datasets.

        `decoding` and `language_model` are for models trained here: without both, it is as the folder of the
        model says. `options` are for ready models: a WhisperDecodingConfig, say. `channels` "separate": each
        channel is a speaker's. Raises UserError where nothing can be read. A damaged file gives a transcript
        of all that can be decoded, which says in `incomplete` what is missing. With `tokens`, segments hold
        theirs.
        """
        request = self._make_request(
            decoding, language_model, options=options, batch_size=batch_size, channels=channels, tokens=tokens
        )
        return self.transcribe_source(make_source(source, sample_rate), request)

    def transcribe_source(self, source: Source, request: Request) -> Transcript:
        *_, (_, result) = self._transcribe_channels([source], request)
        if isinstance(result, UserError):
            raise result
        assert isinstance(result, Transcript)
        return result

    def segments(
        self,
        source: AudioInput,
        sample_rate: int | None = None,
        *,
        decoding: DecodingConfig | None = None,
        language_model: FusionModel | None = None,
        options: Config | None = None,
        batch_size: int = 1,
        tokens: bool = False,
    ) -> Iterator[Segment]:
        """The segments of one recording, each as soon as it is decoded, as `transcribe` takes it.

        The audio is read as it is decoded, so that memory stays flat. A larger `batch_size` is quicker in
        all, but the first segments come later. Raises UserError where nothing can be read.
        """
        request = self._make_request(
            decoding, language_model, options=options, batch_size=batch_size, tokens=tokens
        )
        for _, result in self._transcribe_channels([make_source(source, sample_rate)], request):
            if isinstance(result, UserError):
                raise result
            if isinstance(result, Segment):
                yield result

    def transcribe_files(
        self,
        files: Iterable[AudioFile],
        batch_size: int = 8,
        *,
        decoding: DecodingConfig | None = None,
        language_model: FusionModel | None = None,
        options: Config | None = None,
        channels: Channels = "mix",
        report: Callable[[float], None] = lambda seconds: None,
    ) -> Iterator[tuple[AudioFile, Transcript | UserError]]:
        """Each file with its transcript, or with the error that says why there is none, in the given order.

        `batch_size` segments, of several files where these are short, are decoded at once. The text of a
        file does not depend on the others. `report` is told of each batch how many seconds of audio are done.
        """
        request = self._make_request(
            decoding, language_model, options=options, batch_size=batch_size, channels=channels, report=report
        )
        for source, result in self.transcribe_events(files, request):
            if not isinstance(result, Segment):
                yield source, result

    def transcribe_events(
        self, files: Iterable[AudioFile], request: Request
    ) -> Iterator[tuple[AudioFile, Segment | Transcript | UserError]]:
        """Each file's segments in order, as soon as they are final, then its transcript, or the error."""
        for source, result in self._transcribe_channels(files, request):
            assert not isinstance(source, Samples | Content)
            yield source, result

    def _transcribe_channels(self, sources: Iterable[Source], request: Request) -> Iterator[Event]:
        """All sources; of those whose channels are transcribed one by one, these put together at the end."""
        groups: deque[tuple[Source, int]] = deque()  # each source, and how many parts it is read in

        def split() -> Iterator[Source]:
            for source in sources:
                parts = split_channels(source, request.channels)
                groups.append((source, len(parts)))
                yield from parts

        found: list[Transcript | UserError] = []
        for _, result in self._transcribe_all(split(), request):
            source, num_parts = groups[0]
            if not isinstance(result, Segment):
                found.append(result)
            elif num_parts == 1:
                yield source, result
            if len(found) == num_parts:
                groups.popleft()
                yield source, merge_channels(found)
                found = []

    def _transcribe_all(self, sources: Iterable[Source], request: Request) -> Iterator[Event]:
        """Collects segments until there are enough for full batches of similar lengths."""
        self.check(request)
        waiting: deque[OpenRecording] = deque()  # in the order of the files
        pending: Pending = []
        with contextlib.closing(read_ahead(self._read(sources, request), 2 * request.batch_size)) as events:
            for recording, segment in events:
                if not waiting or waiting[-1] is not recording:
                    waiting.append(recording)
                if isinstance(segment, End):
                    recording.end = segment
                else:
                    pending.append((recording, recording.num_segments, segment))
                    recording.num_segments += 1
                if self._is_enough(pending, request.batch_size):
                    yield from self._recognize_pending(pending, waiting, request)
                yield from self._take_finished(waiting, request)
            yield from self._recognize_pending(pending, waiting, request)

    def _is_enough(self, pending: Pending, batch_size: int) -> bool:
        """One batch of the longest segments, or several of short ones."""
        seconds = sum(segment.end - segment.start for _, _, segment in pending)
        return len(pending) >= WINDOW * batch_size or seconds >= batch_size * self.segmentation.max_seconds

    def _recognize_pending(
        self, pending: Pending, waiting: deque[OpenRecording], request: Request
    ) -> Iterator[Event]:
        """Recognize in batches of equal padded length, that of the first segment first; empties the list."""
        items = list(pending)
        pending.clear()
        lengths = [self.padded_length(len(segment.audio_S), request) for _, _, segment in items]
        for rows in batch_by_length(lengths, request.batch_size):
            batch = [items[row] for row in rows]
            for (recording, index, segment), result in zip(
                batch, self._recognize_batch(batch, request), strict=True
            ):
                recording.recognized[index] = result
                recording.reported_seconds += segment.end - segment.start
            request.report(sum(segment.end - segment.start for _, _, segment in batch))
            yield from self._take_finished(waiting, request)

    def _recognize_batch(self, batch: Pending, request: Request) -> list[Recognized]:
        """Decodes a batch, unless an earlier call has: all of it, or its company would be another one."""
        known = [recording.recall(index, segment, RECOGNIZED) for recording, index, segment in batch]
        found = [one for one in known if one is not None]
        if len(found) == len(batch):
            return found
        results = self.recognize([segment for _, _, segment in batch], request)
        for (recording, index, segment), result in zip(batch, results, strict=True):
            recording.keep(index, segment, asdict(result))
        return results

    def _take_finished(self, waiting: deque[OpenRecording], request: Request) -> Iterator[Event]:
        """Take from the front of the queue, so that results come in the order of the files."""
        while waiting:
            recording = waiting[0]
            for segment in recording.take_final(self.separator_in):
                yield recording.source, segment
            if not recording.is_done:
                return
            waiting.popleft()
            assert recording.end is not None
            request.report(  # the pauses
                max(0.0, recording.end.seconds - recording.reported_seconds)
            )
            result = assemble(recording, self.separator_in(recording.language))
            if isinstance(result, Transcript):
                doubt = self.find_doubt(recording)
                result = replace(result, model=self.name, arithmetic=self.arithmetic, out_of_domain=doubt)
            yield recording.source, result

    # --- from a file to segments, in the reading thread ------------------------------------------

    def _read(
        self, sources: Iterable[Source], request: Request
    ) -> Iterator[tuple[OpenRecording, AudioSegment | End]]:
        """The segments of each recording, then its end. This runs in a thread; it only notes damage."""
        for source in sources:
            recording, fault = OpenRecording(source, request.open_log(source)), None
            segmenter = self.make_segmenter(source)
            try:
                for block in read_source(source, self.sample_rate, recording.damages.append):
                    for segment in segmenter.push(block):
                        yield recording, segment
            except UserError as error:
                fault = error
            for segment in segmenter.finish():
                yield recording, segment
            yield recording, End(segmenter.seconds, fault)

    def make_segmenter(self, source: Source) -> Segmenter:
        """Leaves an utterance of a manifest whole, unless it is very long."""
        seconds, segmentation = math.inf, self.segmentation
        if isinstance(source, AudioPart) and source.is_utterance and source.duration is not None:
            seconds = source.duration
        if seconds <= self.whole_seconds:
            segmentation = segmentation.model_copy(update={"method": "none"})
        offset = describe_source(source)[2]
        return Segmenter(self.sample_rate, segmentation, offset, whole_seconds=self.trained_seconds)

    def _make_request(
        self, decoding: DecodingConfig | None, language_model: FusionModel | None, **others: Any
    ) -> Request:
        if decoding is None and language_model is None:
            decoding, language_model = self.usual_decoding()
        return Request(decoding or DecodingConfig(), language_model, **others)

    # --- for subclasses ---------------------------------------------------------------------------

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        return arithmetic(self.device, self.dtype)
