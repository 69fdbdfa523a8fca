"""Transcribe recordings for `asr transcribe`, go on after a failure, and count the outcomes."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from asr.audio import reading as audio
from asr.audio.sources import AudioFile, AudioPart, Source
from asr.config import Config
from asr.data.storage import is_address, read_range
from asr.errors import UserError, plural
from asr.evaluation.attention_pictures import check_drawing, draw_recording
from asr.evaluation.speech import describe_device
from asr.jobs.work_units import plan_units
from asr.models.precision import Precision
from asr.progress import AudioProgress
from asr.system.decoding_resources import DecodingResources
from asr.transcription.audio_paths import STANDARD_INPUT, Recording
from asr.transcription.recognizer import Recognizer, load_model
from asr.transcription.segment_log import SegmentLog
from asr.transcription.settings import TranscriptionSettings
from asr.transcription.transcriber import Request, Transcriber
from asr.transcripts.transcript import Segment, Transcript

logger = logging.getLogger(__name__)

MAX_FAULTS_SHOWN = 20
# Of 16 kHz mono; of other formats that of MP3 and Opus with 64 kbit/s is taken.
BYTES_PER_SECOND = {".wav": 32_000, ".flac": 16_000}
STANDARD_INPUT_FILE = "standard-input"


@dataclass(frozen=True)
class TranscriptionOptions:
    """The command line of `asr transcribe` as values."""

    model: str
    device: str
    batch_size: int
    settings: TranscriptionSettings
    for_family: Config | None
    """Settings of the model's family, such as whisper; None for a model that was trained here."""
    resources: DecodingResources
    clip: tuple[float, float | None] | None = None
    """Start and end in seconds; without an end, to the end of the recording."""
    plot: Path | None = None
    """Where the attention is drawn."""

    def with_precision(self, precision: Precision) -> TranscriptionOptions:
        return replace(self, settings=self.settings.model_copy(update={"precision": precision}))


class TranscriptionJob:
    """Transcription of one recording after the other, with counts of the outcomes."""

    def __init__(
        self,
        options: TranscriptionOptions,
        write: Callable[[Recording, Transcript], None],
        show: Callable[[Recording, Segment], None] = lambda recording, segment: None,
        open_log: Callable[[Recording, int | None], SegmentLog | None] = lambda recording, channel: None,
    ) -> None:
        """`write` takes each transcript, `show` before that each of its segments as soon as it is final."""
        self._options = options
        self._write = write
        self._show = show
        self._open_log = open_log
        self._progress: AudioProgress | None = None
        self._faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self._audio_seconds = 0.0
        self._wall_seconds = 0.0

    def transcribe(self, recordings: Sequence[Recording]) -> None:
        """Load the model and write a transcript of each; those that fail are named and counted."""
        if not recordings:
            return
        recognizer = load_transcriber(self._options)
        seconds = [measure_recording(recording, self._options.clip) for recording in recordings]
        with self.show_progress(sum(seconds)) as progress:
            left = iter(zip(recordings, seconds, strict=True))
            recording, length = next(left)
            for result in self._results(recognizer, recordings, seconds):
                if isinstance(result, Segment):
                    self._show(recording, result)
                    continue
                if isinstance(result, UserError):
                    progress.advance(length)
                self.take(recording, result)
                recording, length = next(left, (recording, 0.0))

    @contextlib.contextmanager
    def show_progress(self, seconds: float) -> Iterator[AudioProgress]:
        """Show how much of so many seconds of audio is done, and time the work."""
        with AudioProgress(seconds) as self._progress:
            yield self._progress
            self._wall_seconds = self._progress.elapsed

    def _results(
        self, recognizer: Transcriber, recordings: Sequence[Recording], seconds: Sequence[float]
    ) -> Iterator[Segment | Transcript | UserError]:
        options = self._options
        if options.plot is not None:
            check_drawing(recognizer, options.plot)
        by_name = {recording.name: recording for recording in recordings}

        def open_log(source: Source) -> SegmentLog | None:
            assert isinstance(source, AudioPart) and source.id is not None
            recording = by_name[source.id]
            if recording.path == STANDARD_INPUT:  # it is not there again
                return None
            log = self._open_log(recording, source.channel)
            if log is not None and len(log):
                logger.info("%s: %d segments were finished by an earlier call", recording.path, len(log))
            return log

        request = replace(
            make_request(options, recognizer),
            report=self._progress.advance if self._progress is not None else lambda seconds: None,
            open_log=open_log,
        )
        # Unit by unit, as on Ray: the company of a segment in its batch changes the last digit of what some
        # models compute, so it is the same, and the outputs are the same to the byte.
        for unit in plan_units([recording.name for recording in recordings], seconds):
            with open_parts(recordings[unit.start : unit.end], options.clip) as parts:
                for part, result in recognizer.transcribe_events(parts, request):
                    yield result
                    if options.plot is not None and isinstance(result, Transcript):
                        self._draw(recognizer, part, recordings[0], options.plot, request)

    def _draw(
        self, recognizer: Transcriber, part: AudioFile, recording: Recording, plot: Path, request: Request
    ) -> None:
        try:
            for path in draw_recording(
                recognizer, part, plot, Request(request.decoding, request.language_model)
            ):
                logger.info("drawn: %s", path)
        except UserError as error:
            self.fail(recording, str(error))

    def take(self, recording: Recording, transcript: Transcript | UserError) -> None:
        """Write and count what became of a recording."""
        if isinstance(transcript, UserError):
            self.fail(recording, str(transcript))
            return
        transcript = replace(transcript, id=recording.name, audio=recording.path)
        try:
            self._write(recording, transcript)
        except UserError as error:
            self.fail(recording, str(error))
            return
        self._audio_seconds += transcript.duration
        if transcript.out_of_domain:
            self.counts["out of domain"] += 1
            if self._progress is not None:
                self._progress.say(f"{recording.path}: {transcript.out_of_domain}", logging.WARNING)
        if not transcript.text and self._progress is not None:
            reasons = [warning for segment in transcript.segments for warning in segment.warnings]
            reason = f"{reasons[0]}; --set checks=off keeps it" if reasons else "no speech was found"
            self._progress.say(f"{recording.path}: no text ({reason})", logging.WARNING)
        self.counts["doubted"] += sum(bool(segment.warnings) for segment in transcript.segments)
        if transcript.warnings:
            damage = transcript.incomplete
            found = transcript.duration if damage is None else damage.found
            self.counts["incomplete"] += 1
            self.fail(
                recording,
                f"{'; '.join(transcript.warnings)}; the transcript has the {found:.3f} s that are there",
            )
        else:
            self.counts["transcribed"] += 1

    def fail(self, recording: Recording, message: str) -> None:
        message = re.sub(rf"\S*/{STANDARD_INPUT_FILE}", "standard input", message)
        if is_address(recording.path):
            message = message.replace(str(Path(recording.path)), recording.path)
        if recording.path not in message:
            message = f"{recording.path}: {message}"
        self._faults.append(message)
        if self._progress is None:
            logger.error("%s", message)
        else:
            self._progress.say(message, logging.ERROR)

    def finish(self) -> int:
        """Log what was done. Returns the exit status."""
        self.counts["failed"] = len(self._faults) - self.counts["incomplete"]
        shown = ("finished before", "incomplete", "failed")
        parts = [f"{self.counts[name]} {name}" for name in shown if self.counts[name]]
        summary = ", ".join([f"{self.counts['transcribed']} transcribed", *parts])
        if self._audio_seconds:
            speed = self._audio_seconds / max(self._wall_seconds, 1e-9)
            summary += (
                f"; {self._audio_seconds:.1f} s of audio in {self._wall_seconds:.1f} s, "
                f"{speed:.1f} times as fast as it was spoken"
            )
        logger.info("%s", summary)
        if self.counts["out of domain"]:
            logger.info(
                "%d are probably not what the model was trained for, see above", self.counts["out of domain"]
            )
        if self.counts["doubted"]:
            logger.info(
                "the decoding of %s is doubtful; the warnings in json say why",
                plural(self.counts["doubted"], "segment"),
            )
        if len(self._faults) > 1 or (self._faults and self.counts["transcribed"]):
            logger.info("incomplete or failed:" if self.counts["incomplete"] else "failed:")
            for message in self._faults[:MAX_FAULTS_SHOWN]:
                logger.info("  %s", message)
            if len(self._faults) > MAX_FAULTS_SHOWN:
                logger.info("  and %d more, see above", len(self._faults) - MAX_FAULTS_SHOWN)
        return 1 if self._faults else 0


def make_request(options: TranscriptionOptions, recognizer: Transcriber) -> Request:
    settings, language_model = options.settings, None
    if isinstance(recognizer, Recognizer):
        language_model = options.resources.load(recognizer.system, recognizer.device)
    return Request(
        settings.decoding,
        language_model,
        options.batch_size,
        options.for_family,
        tokens=settings.tokens,
        channels=settings.channels,
    )


def load_transcriber(options: TranscriptionOptions) -> Transcriber:
    settings = options.settings
    recognizer = load_model(
        options.model,
        options.device,
        settings.precision,
        segmentation=settings.segmentation,
        checks=settings.checks,
    )
    logger.info("device: %s, %s", describe_device(recognizer.device), recognizer.precision)
    return recognizer


def measure_recording(recording: Recording, clip: tuple[float, float | None] | None) -> float:
    """Seconds to read, by the header; 0 where it does not say; of a file elsewhere, a guess by its size."""
    if recording.path == STANDARD_INPUT:
        return 0.0
    if recording.content is not None:
        if recording.clip is not None and recording.clip[1] is not None:
            return recording.clip[1] - recording.clip[0]
        return recording.content.size / BYTES_PER_SECOND.get(Path(recording.path).suffix.lower(), 8_000)
    try:
        seconds = audio.read_info(recording.path).seconds or 0.0
    except UserError:
        return 0.0  # what is wrong is said when it is read
    start, end = recording.clip or clip or (0.0, None)
    return max(0.0, min(seconds, end or seconds) - start)


@contextlib.contextmanager
def open_parts(
    recordings: Sequence[Recording], clip: tuple[float, float | None] | None
) -> Iterator[list[AudioPart]]:
    """The span to read of each recording."""
    with contextlib.ExitStack() as stack:
        yield [_to_part(recording, stack, clip) for recording in recordings]


def _to_part(
    recording: Recording, stack: contextlib.ExitStack, clip: tuple[float, float | None] | None
) -> AudioPart:
    """The span to read. Decoders seek, so standard input is written to a file first."""
    start, end = recording.clip or clip or (0.0, None)
    duration = None if end is None else end - start
    if recording.path != STANDARD_INPUT:
        channel = None if recording.channel is None else recording.channel - 1
        is_utterance = recording.clip is not None
        load = None if recording.content is None else partial(read_range, recording.content)
        return AudioPart(
            recording.path, start, duration, channel, recording.name, load=load, is_utterance=is_utterance
        )
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asr-"))) / STANDARD_INPUT_FILE
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return AudioPart(path, start, duration, id=recording.name)
