"""`asr.load_model` and the model that it returns, whose options have the names of `asr transcribe`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from asr.audio.segmentation import AudioFile, AudioInput, Channels, SegmentationConfig, make_recording
from asr.config import Precision
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError, shorten
from asr.system.decoding_resources import find_resources
from asr.transcription.arguments import TranscriptionSettings, find_options, load_settings, read_options
from asr.transcription.transcribe import Recognizer, Request, load_recognizer
from asr.transcripts.transcript import Segment, Transcript

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Options(TypedDict, total=False):
    """Options of a call; None means the default. docs/python.md explains them."""

    language: str | None
    task: Literal["transcribe", "translate"] | None
    prompt: str | None
    hotwords: Sequence[str] | None
    beam: int | None
    decoding: str | DecodingConfig | None  # a method, or several settings
    language_model: str | Path | None
    words: str | Path | None  # file of the only words that may be recognized
    channels: Channels | None
    batch_size: int | None
    word_times: bool | None


class Model:
    """A speech recognition model, made by `load_model`."""

    def __init__(self, transcriber: Recognizer) -> None:
        self._transcriber = transcriber
        self.name, self.device = transcriber.name, str(transcriber.device)
        self.precision: str = transcriber.precision

    def __repr__(self) -> str:
        own = self._transcriber
        size = f"{own.num_parameters / 1e6:,.1f} M parameters, " if own.num_parameters else ""
        return f"Model({self.name}, {size}{own.compute_type})"

    def transcribe(
        self, audio: AudioInput, sample_rate: int | None = None, **options: Unpack[Options]
    ) -> Transcript:
        """Transcribe a path, an array or tensor of samples with their `sample_rate`, or a file as bytes or
        open. Raises AudioError if nothing is readable; a damaged file gives its readable part and `warnings`.
        """
        request = self._make_request(options)
        return self._transcriber.transcribe_recording(make_recording(audio, sample_rate), request)

    def iter_segments(
        self, audio: AudioInput, sample_rate: int | None = None, **options: Unpack[Options]
    ) -> Iterator[Segment]:
        """Transcribe one recording segment by segment. With `batch_size=1` the first ones come soonest."""
        request = self._make_request(options)
        for result in self._transcriber.follow(make_recording(audio, sample_rate), request):
            if isinstance(result, Segment):
                yield result
            elif request.channels == "separate":  # its segments come only after all channels are complete
                yield from result.segments

    def transcribe_files(
        self, files: Iterable[AudioFile], **options: Unpack[Options]
    ) -> Iterator[tuple[AudioFile, Transcript | UserError]]:
        """Transcribe files in order, and yield each with its transcript or the error."""
        files = list(files)
        given, request = iter(files), self._make_request(options)
        for _, result in self._transcriber.transcribe_events(map(make_recording, files), request):
            if not isinstance(result, Segment):
                yield next(given), result

    def _make_request(self, options: Options) -> Request:
        own, given = self._transcriber, {name: value for name, value in options.items() if value is not None}
        batch_size, channels = given.pop("batch_size", 8), given.pop("channels", "mix")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UserError(
                f"batch_size = {shorten(batch_size)}: expected a whole number of segments, 1 or more"
            )
        has_words = bool(given.pop("word_times", True))
        if isinstance(given.get("words"), bool):
            raise UserError("words: expected a file of words; for word times, the option is word_times")
        settings, resources = read_options(given, own.family), own.resources
        files = {name: str(given[name]) for name in ("language_model", "words") if name in given}
        if files or "decoding" in given:
            resources = find_resources(None, **files, family=own.family)
        settings["channels"] = json.dumps(channels, default=str)
        read = load_settings(TranscriptionSettings, settings, (), resources)
        family, language_model = find_options(read, own.family), own.load_resources(resources)
        return Request(read.decoding, language_model, batch_size, family, read.channels, has_words)


def load_model(
    source: str | Path | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    *,
    segmentation: SegmentationConfig | None = None,
    checks: ChecksConfig | None = None,
) -> Model:
    """Load the model of a run or checkpoint (a folder), or a pretrained one (files, or a name on the hub).

    Without `source`, it is the default model of `asr transcribe`, which the variable ASR_MODEL may name. It
    runs on a GPU if there is one.
    """
    return Model(load_recognizer(source, device, precision, segmentation, checks))
