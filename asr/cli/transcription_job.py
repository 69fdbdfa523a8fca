"""What `asr transcribe` does with recordings: write each, resume a folder, go on after a failure, sum up."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import torch

from asr.audio.reading import read_info
from asr.audio.sources import STANDARD_INPUT, Recording
from asr.cli.options import limit_threads
from asr.config import Config
from asr.data.storage import ByteRange, is_address
from asr.errors import UserError, plural
from asr.files import claim_folder
from asr.models.lora_int8 import Precision, describe_arithmetic, describe_device, resolve_precision
from asr.progress import AudioProgress
from asr.system.decoding_resources import DecodingResources
from asr.transcription.recordings import plan_units
from asr.transcription.settings import TranscriptionSettings, describe_making
from asr.transcription.transcribe import Recognizer, Request, Transcriber, choose_device, load_model
from asr.transcripts.transcript import Segment, Transcript
from asr.transcripts.writers import format_transcript

if TYPE_CHECKING:  # a capability: only what is asked for is imported
    from asr.scale.output_folder import OutputFolder
    from asr.scale.ray_pool import PoolOptions

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

    def load(self) -> tuple[Transcriber, Request]:
        """The model, and what is asked of it."""
        settings, language_model = self.settings, None
        precision, cutting = settings.precision, settings.segmentation
        model = load_model(self.model, self.device, precision, segmentation=cutting, checks=settings.checks)
        logger.info("device: %s, %s", describe_device(model.device), model.precision)
        if isinstance(model, Recognizer):
            language_model = self.resources.load(model.system, model.device)
        decoding = settings.decoding, language_model, self.batch_size, self.for_family
        return model, Request(*decoding, tokens=settings.tokens, channels=settings.channels)


class TranscriptionJob:
    """Transcription of one recording after the other, with counts of the outcomes."""

    def __init__(
        self,
        options: TranscriptionOptions,
        write: Callable[[Recording, Transcript], None],
        show: Callable[[Recording, Segment], None] = lambda recording, segment: None,
        folder: OutputFolder | None = None,
    ) -> None:
        """`write` takes each transcript, `show` before that each of its segments as soon as it is final."""
        self._options, self._write, self._show, self._folder = options, write, show, folder
        self._progress: AudioProgress | None = None
        self._faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.num_recordings = 0
        """In all, with those that an earlier call has finished."""
        self._audio_seconds = self._wall_seconds = 0.0

    def transcribe(self, recordings: Sequence[Recording]) -> None:
        """Load the model and write a transcript of each; those that fail are named and counted."""
        if not recordings:
            return
        transcriber, request = self._options.load()
        request = replace(request, journal=self._folder)
        plot = self._options.plot
        if plot is not None:
            from asr.evaluation.attention_pictures import check_drawing

            check_drawing(transcriber, plot)
        seconds = [measure_recording(recording) for recording in recordings]
        lengths = dict(zip((recording.name for recording in recordings), seconds, strict=True))
        with self.show_progress(sum(seconds)) as progress:
            done = 0.0  # seconds of the recording
            # Unit by unit, as on Ray: the company of a segment in its batch changes the last digit of what
            # some models compute, so it is the same, and the outputs are the same to the byte.
            for unit in plan_units(seconds):
                opened = [self._open(recordings[index]) for index in unit]
                for recording, result in transcriber.transcribe_events(opened, request):
                    if isinstance(result, Segment):
                        end = max(done, result.end - recording.start)
                        progress.advance(end - done)
                        done = end
                        self._show(recording, result)
                        continue
                    length = result.duration if isinstance(result, Transcript) else lengths[recording.name]
                    progress.advance(max(0.0, length - done))
                    done = 0.0
                    self.take(recording, result)
                    if plot is not None and isinstance(result, Transcript):
                        self._draw(transcriber, recording, plot, request)

    def _open(self, recording: Recording) -> Recording:
        if recording.path != STANDARD_INPUT:
            return recording
        if self._options.plot is None:
            return replace(recording, content=sys.stdin.buffer)
        copy = tempfile.TemporaryFile()  # noqa: SIM115 (read twice)
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        return replace(recording, content=copy)

    @contextlib.contextmanager
    def show_progress(self, seconds: float) -> Iterator[AudioProgress]:
        """Show how much of so many seconds of audio is done, and time the work."""
        if self._folder is not None:
            self._folder.begin(self.num_recordings, seconds)
        with AudioProgress(seconds) as self._progress:
            yield self._progress
            self._wall_seconds = self._progress.elapsed

    def _draw(self, transcriber: Transcriber, recording: Recording, plot: Path, request: Request) -> None:
        from asr.evaluation.attention_pictures import draw_recording

        if recording.path == STANDARD_INPUT:
            cast("Any", recording.content).seek(0)
        try:
            for path in draw_recording(transcriber, recording, plot, request):
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
            self._say(f"{recording.path}: {transcript.out_of_domain}", logging.WARNING)
        if not transcript.text:
            reasons = [warning for segment in transcript.segments for warning in segment.warnings]
            reason = f"{reasons[0]}; --set checks=off keeps it" if reasons else "no speech was found"
            self._say(f"{recording.path}: no text ({reason})", logging.WARNING)
        self.counts["doubted"] += sum(bool(segment.warnings) for segment in transcript.segments)
        if transcript.warnings:
            self.fail(recording, describe_fault(transcript), "incomplete")
        else:
            self.counts["transcribed"] += 1

    def fail(self, recording: Recording, message: str, kind: str = "failed") -> None:
        path = str(recording.path)
        if is_address(path):
            message = message.replace(str(Path(path)), path)
        if path not in message:
            message = f"{path}: {message}"
        self.counts[kind] += 1
        self._faults.append(message)
        if self._folder is not None and kind == "failed":
            self._folder.note_fault(recording, message)
        self._say(message, logging.ERROR)

    def _say(self, message: str, level: int) -> None:
        if self._progress is None:
            logger.log(level, "%s", message)
        else:
            self._progress.say(message, level)

    def finish(self) -> int:
        """Log what was done. Returns the exit status."""
        counts = self.counts
        kinds = [kind for kind in ("finished before", "incomplete", "failed") if counts[kind]]
        summary = ", ".join(f"{counts[kind]} {kind}" for kind in ("transcribed", *kinds))
        if self._audio_seconds:
            speed = self._audio_seconds / max(self._wall_seconds, 1e-9)
            summary += (
                f"; {self._audio_seconds:.1f} s of audio in {self._wall_seconds:.1f} s, "
                f"{speed:.1f} times as fast as it was spoken"
            )
        logger.info("%s", summary)
        if counts["out of domain"]:
            logger.info(
                "%d are probably not what the model was trained for, see above", counts["out of domain"]
            )
        if counts["doubted"]:
            doubted = plural(counts["doubted"], "segment")
            logger.info("the decoding of %s is doubtful; the warnings in json say why", doubted)
        if len(self._faults) > 1 or (self._faults and counts["transcribed"]):
            logger.info("incomplete or failed:" if counts["incomplete"] else "failed:")
            for message in self._faults[:MAX_FAULTS_SHOWN]:
                logger.info("  %s", message)
            if len(self._faults) > MAX_FAULTS_SHOWN:
                logger.info("  and %d more, see above", len(self._faults) - MAX_FAULTS_SHOWN)
        return 1 if self._faults else 0


def describe_fault(transcript: Transcript) -> str:
    """What is wrong with a recording of which not all could be read; "" if nothing is."""
    if not transcript.warnings:
        return ""
    damage = transcript.incomplete
    found = transcript.duration if damage is None else damage.found
    return f"{'; '.join(transcript.warnings)}; the transcript has the {found:.3f} s that are there"


def measure_recording(recording: Recording) -> float:
    """Seconds to read, by the header; 0 where it does not say; of a file elsewhere, a guess by its size."""
    if recording.path == STANDARD_INPUT:
        return 0.0
    if isinstance(recording.content, ByteRange):
        if recording.duration is not None:
            return recording.duration
        return recording.content.size / BYTES_PER_SECOND.get(Path(recording.path).suffix.lower(), 8_000)
    try:
        seconds = read_info(recording.path).seconds or 0.0
    except UserError:
        return 0.0  # what is wrong is said when it is read
    left = max(0.0, seconds - recording.start)
    return left if recording.duration is None else min(left, recording.duration)


# --- into a folder --------------------------------------------------------------------------------


def transcribe_to_folder(
    options: TranscriptionOptions,
    output_dir: str,
    recordings: Sequence[Recording],
    formats: Sequence[str],
    pool: PoolOptions | None,
) -> int:
    """Write the outputs of all recordings that an earlier call has not finished. Returns the exit status.

    `pool`: the processes of Ray that do it; None: this one.
    """
    is_elsewhere = pool is not None and pool.address is not None
    folder, options = _open_folder(options, output_dir, formats, is_elsewhere)
    folder.check(recordings)

    def write(recording: Recording, transcript: Transcript) -> None:
        subtitles = options.settings.subtitles
        contents = {name: format_transcript(name, transcript, subtitles) for name in formats}
        folder.write(recording, contents, transcript.duration, describe_fault(transcript))

    job = TranscriptionJob(options, write, folder=folder)
    wanted = []
    for recording in recordings:
        # On Ray, a whole unit would be done again for each fault.
        fault = None if pool is None else folder.fault(recording)
        if folder.is_done(recording):
            job.counts["finished before"] += 1
        elif fault is not None:
            job.fail(recording, fault)
        else:
            try:
                folder.require_free(recording)
                wanted.append(recording)
            except UserError as error:
                job.fail(recording, str(error))
    if num_done := job.counts["finished before"]:
        logger.info("%d of %d were finished by an earlier call", num_done, len(recordings))
    job.num_recordings = len(recordings)
    if pool is None:
        job.transcribe(wanted)
    else:
        with claim_folder(folder.state):
            _transcribe_on_ray(job, options, recordings, wanted, pool, folder.arithmetic.endswith("cuda"))
    return job.finish()


def _open_folder(
    options: TranscriptionOptions, output_dir: str, formats: Sequence[str], is_elsewhere: bool
) -> tuple[OutputFolder, TranscriptionOptions]:
    """Open the folder. An earlier call's device and precision are kept where none are asked for by name.

    `is_elsewhere`: the devices are those of a cluster, which this machine may lack.
    """
    from asr.families import find_family
    from asr.scale.output_folder import OutputFolder

    family = find_family(options.model)

    def resolve(options: TranscriptionOptions) -> tuple[OutputFolder, TranscriptionOptions, str]:
        is_named = is_elsewhere and options.device in ("cpu", "cuda")
        device = torch.device(options.device) if is_named else choose_device(options.device)
        prefers_int8 = family is not None and family.prefers_int8
        precision = resolve_precision(options.settings.precision, device, prefers_int8)
        arithmetic = describe_arithmetic(precision, device)
        making = describe_making(options.model, options.resources, options.settings, arithmetic)
        return OutputFolder(output_dir, formats, making), options.with_precision(precision), arithmetic

    folder, resolved, arithmetic = resolve(options)
    earlier = folder.earlier_arithmetic
    if earlier is None or earlier == arithmetic:
        return folder, resolved
    precision, _, device = earlier.partition(" on ")
    if precision not in get_args(Precision):
        return folder, resolved
    wanted, place = options.settings.precision, options.device
    if wanted not in ("auto", precision) or place.partition(":")[0] not in ("auto", device):
        return folder, resolved  # asked for by name: as with any other setting, all is done anew
    logger.info("%s: goes on in %s, as it was begun", output_dir, earlier)
    as_begun = options.with_precision(cast("Precision", precision))
    try:
        return resolve(replace(as_begun, device=device if place == "auto" else place))[:2]
    except UserError as error:
        raise UserError(
            f"{output_dir}: was begun in {earlier}, which cannot go on here: {error}. Give another "
            f"--output-dir, or do all anew by --set precision={resolved.settings.precision} --device cpu"
        ) from None


class TranscriptionWork:
    """Work of a process of Ray: it holds the model, and turns recordings into rows."""

    def __init__(self, options: TranscriptionOptions, threads: int) -> None:
        limit_threads(threads)
        self._transcriber, self._request = options.load()

    def __call__(self, recordings: Sequence[Recording]) -> list[dict[str, Any]]:
        events = self._transcriber.transcribe_events(recordings, self._request)
        results = [result for _, result in events if not isinstance(result, Segment)]
        return [
            {"error": str(result)} if isinstance(result, UserError) else {"transcript": result}
            for result in results
        ]


def _transcribe_on_ray(
    job: TranscriptionJob,
    options: TranscriptionOptions,
    recordings: Sequence[Recording],
    wanted: Sequence[Recording],
    pool_options: PoolOptions,
    uses_gpus: bool,
) -> None:
    """Transcribe each of `wanted`, in the units that all `recordings` make.

    A unit is done as a whole, so that its texts do not depend on what an earlier call has finished.
    """
    from asr.scale.ray_pool import RayPool

    names = {recording.name for recording in wanted}
    seconds = [measure_recording(recording) for recording in recordings]
    units = plan_units(seconds)
    left = [unit for unit in units if any(recordings[index].name in names for index in unit)]
    if not left:
        return
    logger.info("%s of %s to do", plural(len(left), "unit"), f"{len(units):,}")
    items = [[recordings[index] for index in unit] for unit in left]
    lengths = [sum(seconds[index] for index in unit) for unit in left]
    with (
        RayPool[Recording](pool_options, uses_gpus) as pool,
        job.show_progress(sum(lengths)) as progress,
    ):
        logger.info("%s with %s each", plural(pool.num_workers, "worker"), plural(pool.threads, "thread"))
        for number, rows in pool.run(items, lambda threads: TranscriptionWork(options, threads)):
            for recording, row in zip(items[number], rows, strict=True):
                if recording.name in names:
                    job.take(recording, UserError(row["error"]) if "error" in row else row["transcript"])
            progress.advance(lengths[number])
