"""Transcribe recordings for `asr transcribe`, go on after a failure, and count the outcomes."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asr.audio import reading as audio
from asr.audio.sources import STANDARD_INPUT, Recording
from asr.config import Config
from asr.data.storage import ByteRange, is_address
from asr.errors import UserError, plural
from asr.evaluation.attention_pictures import check_drawing, draw_recording
from asr.evaluation.speech import describe_device
from asr.jobs.work_units import plan_units
from asr.models.precision import Precision
from asr.progress import AudioProgress
from asr.system.decoding_resources import DecodingResources
from asr.transcription.output_folder import OutputFolder
from asr.transcription.settings import TranscriptionSettings
from asr.transcription.transcribe import Recognizer, Request, Transcriber, load_model
from asr.transcripts.transcript import Segment, Transcript

logger = logging.getLogger(__name__)

MAX_FAULTS_SHOWN = 20
# Of 16 kHz mono; of other formats that of MP3 and Opus with 64 kbit/s is taken.
BYTES_PER_SECOND = {".wav": 32_000, ".flac": 16_000}


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
        journal: OutputFolder | None = None,
    ) -> None:
        """`write` takes each transcript, `show` before that each of its segments as soon as it is final."""
        self._options = options
        self._write = write
        self._show = show
        self._journal = journal
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
        seconds = [measure_recording(recording) for recording in recordings]
        with self.show_progress(sum(seconds)) as progress:
            left = iter(zip(recordings, seconds, strict=True))
            recording, length = next(left)
            position = 0.0  # up to where the recording is done
            for result in self._results(recognizer, recordings, seconds):
                if isinstance(result, Segment):
                    end = result.end - recording.start
                    progress.advance(max(0.0, end - position))
                    position = max(position, end)
                    self._show(recording, result)
                    continue
                whole = result.duration if isinstance(result, Transcript) else length
                progress.advance(max(0.0, whole - position))
                self.take(recording, result)
                recording, length = next(left, (recording, 0.0))
                position = 0.0

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
        request = replace(make_request(options, recognizer), journal=self._journal)
        # Unit by unit, as on Ray: the company of a segment in its batch changes the last digit of what some
        # models compute, so it is the same, and the outputs are the same to the byte.
        for unit in plan_units([recording.name for recording in recordings], seconds):
            for recording, result in recognizer.transcribe_events(
                open_recordings(recordings[unit.start : unit.end]), request
            ):
                yield result
                if options.plot is not None and isinstance(result, Transcript):
                    self._draw(recognizer, recording, options.plot, request)

    def _draw(self, recognizer: Transcriber, recording: Recording, plot: Path, request: Request) -> None:
        try:
            for path in draw_recording(recognizer, recording, plot, request):
                logger.info("drawn: %s", path)
        except UserError as error:
            self.fail(recording, str(error))

    def take(self, recording: Recording, transcript: Transcript | UserError) -> None:
        """Write and count what became of a recording."""
        if isinstance(transcript, UserError):
            self.fail(recording, str(transcript))
            return
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
        path = str(recording.path)
        if is_address(path):
            message = message.replace(str(Path(path)), path)
        if path not in message:
            message = f"{path}: {message}"
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


def measure_recording(recording: Recording) -> float:
    """Seconds to read, by the header; 0 where it does not say; of a file elsewhere, a guess by its size."""
    if recording.path == STANDARD_INPUT:
        return 0.0
    if isinstance(recording.content, ByteRange):
        if recording.duration is not None:
            return recording.duration
        return recording.content.size / BYTES_PER_SECOND.get(Path(recording.path).suffix.lower(), 8_000)
    try:
        seconds = audio.read_info(recording.path).seconds or 0.0
    except UserError:
        return 0.0  # what is wrong is said when it is read
    left = max(0.0, seconds - recording.start)
    return left if recording.duration is None else min(left, recording.duration)


def open_recordings(recordings: Sequence[Recording]) -> Iterator[Recording]:
    """The recordings; standard input, if it is among them, is opened when its turn comes."""
    for recording in recordings:
        if recording.path == STANDARD_INPUT:
            recording = replace(recording, content=sys.stdin.buffer)
        yield recording
