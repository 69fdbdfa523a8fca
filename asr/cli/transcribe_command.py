"""`asr transcribe AUDIO... --model MODEL`: transcribe recordings, as text, subtitles or tables."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import re
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli import (
    DECODING_METHODS,
    SPEAKER_OPTIONS,
    AudioProgress,
    add_decoding_options,
    add_engine,
    add_settings,
    add_speaker_options,
    find_pool,
    limit_threads,
    read_call_options,
    require_any_input,
)
from asr.errors import UserError
from asr.families import HasOptions, find_families, is_export

if TYPE_CHECKING:
    from asr.audio.segmentation import Recording
    from asr.scale.output_folder import OutputFolder
    from asr.scale.ray_pool import PoolOptions
    from asr.system.decoding_resources import DecodingResources
    from asr.transcription.arguments import TranscriptionSettings
    from asr.transcription.transcribe import Event, Recognizer, Request
    from asr.transcripts.subtitles import SubtitlesConfig
    from asr.transcripts.transcript import Segment, Transcript

logger = logging.getLogger(__name__)

# As in asr.transcripts.writers, which --help must not import.
FORMATS = ("txt", "json", "jsonl", "srt", "vtt", "tsv", "ctm", "stm", "rttm", "trn")
NOT_EXPORTED = ("stream", "diarize", "plot_attention")  # options that need more than the exported graphs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "asr transcribe AUDIO... [--model MODEL] [--format FORMAT] [--output-dir DIR] [OPTIONS]"
    add, formats = parser.add_argument, (*FORMATS, "all")
    text = """audio or video files in any format, manifests (.jsonl, .csv ...) with or without texts,
    shards, folders and addresses such as s3://bucket/talks with -r, or - for standard input"""
    add("audio", metavar="AUDIO", nargs="*", help=text)
    text = """moonshine-base, or a Whisper model such as tiny, base.en or turbo; user/name[@revision] on the
    Hugging Face Hub; a folder, a ggml-*.bin, a .pt, a run or a checkpoint (default: ASR_MODEL in the
    environment; else moonshine-base if it is installed and can do what is asked for; else whisper-base)"""
    add("--model", metavar="MODEL", help=text)
    text = "language, such as de or German; `--language list` shows all (default: detected)"
    add("--language", metavar="CODE", help=text)
    add("--task", choices=("transcribe", "translate"), help="Whisper: translate into English")
    text = "Whisper: text before the recording, such as names and their spelling"
    add("--prompt", metavar="TEXT", help=text)
    text = "output format; several, or all, with --output-dir (default: txt)"
    add("--format", choices=formats, action="append", default=[], help=text)
    text = """folder for a file per recording and format; finished recordings are skipped (default: print the
    text to standard output)"""
    add("-o", "--output-dir", metavar="DIR", help=text)
    text = "also transcribe all audio files in the given folders"
    add("-r", "--recursive", action="store_true", help=text)
    text = """any other setting, such as precision=float32 or subtitles.line_width=32; may be repeated; `--set
    list` explains them all"""
    add_settings(parser, text)

    more = parser.add_argument_group("more")
    add = more.add_argument
    text = "transcribe only this part, in seconds or minutes:seconds; without END, up to the end"
    add("--clip", metavar="START,END", type=_read_clip, help=text)
    text = """for recordings with several channels: mix, their mean; separate, each as a speaker; or the
    number of a channel, from 1 (default: mix)"""
    add("--channels", metavar="mix|separate|N", help=text)
    text = f"{DECODING_METHODS} (default: auto, the best that MODEL offers)"
    add("--decoding", metavar="METHOD", help=text)
    add_decoding_options(more, "segments")
    text = """draw the decoder's attention for each token of one recording; the second segment is drawn in
    OUT-002.png and so on"""
    add("--plot-attention", metavar="OUT.png", help=text)
    text = """live: read standard input in a format such as WAV, MP3 or Ogg, and write text while someone
    speaks (--format txt or jsonl)"""
    add("--stream", action="store_true", help=text)
    add("--diarize", action="store_true", help="label the text with speakers")
    add_speaker_options(more)

    for family in find_families():
        if isinstance(family, HasOptions):
            family.add_options(parser, formats, _read_clip)

    many = parser.add_argument_group("many recordings", "With --output-dir.")
    add_engine(many)


def _read_clip(text: str) -> tuple[float, float | None]:
    """Parse 60,90 or 1:00,1:30 as start and duration in seconds; None means up to the end."""
    time = r"((?:\d{1,9}:){0,2}\d{1,9}(?:\.\d*)?)"
    match = re.fullmatch(f"{time}(?:,{time}?)?", text)
    times = (match[1], match[2] or "inf") if match else ("0", "0")
    places = (enumerate(reversed(time.split(":"))) for time in times)  # seconds first
    start, end = (sum(60.0**power * float(part) for power, part in own) for own in places)
    if end <= start:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one part, such as 60,90 or 1:00,1:30")
    return start, end - start if end < math.inf else None


def run(args: argparse.Namespace) -> int:
    if not (args.audio or args.stream or args.set == ["list"] or args.language == "list"):
        raise UserError("expected AUDIO...; `asr transcribe --help` shows all options")
    args.diarize = args.diarize or any(getattr(args, name) for name in SPEAKER_OPTIONS)
    has_speakers = args.diarize or args.channels == "separate"
    every = [name for name in FORMATS if name != "rttm" or has_speakers]
    formats = list(dict.fromkeys(every if "all" in args.format else args.format)) or ["txt"]
    if "rttm" in formats and not has_speakers:
        raise UserError("--format rttm: expected --diarize, or --channels separate")
    pool = find_pool(args)
    if args.audio or args.stream:
        _refuse_conflicts(args, formats)
    if args.audio:
        require_any_input(*args.audio)
    from asr.transcription.arguments import TranscriptionSettings, find_recordings, print_settings

    if args.set == ["list"]:
        print_settings(TranscriptionSettings())
        return 0
    if args.language == "list":
        languages = {code: name for family in find_families() for code, name in family.languages.items()}
        print("".join(f"{code:5}{name}\n" for code, name in languages.items()), end="")
        return 0
    job = _read_job(args)
    limit_threads(args.threads, job.needs_torch)
    if args.stream:
        return _stream(job, formats)
    recordings = find_recordings(args.audio, args.recursive)
    if args.plot_attention and len(recordings) > 1:
        raise UserError(f"--plot-attention draws one recording, not {len(recordings)}; give one")
    if args.clip is not None:
        if any(recording.is_utterance for recording in recordings):
            raise UserError("--clip needs whole files, but a manifest has its own times; leave it out")
        start, duration = args.clip
        recordings = [replace(recording, start=start, duration=duration) for recording in recordings]
    return _transcribe(args, job, recordings, formats, pool)


def _refuse_conflicts(args: argparse.Namespace, formats: Sequence[str]) -> None:
    """Refuse conflicting options before any file is read."""
    has_folder, plot = args.output_dir is not None, args.plot_attention
    is_of_files = args.audio not in ([], ["-"]) or args.recursive or has_folder or plot or args.clip
    if args.stream and (is_of_files or args.channels == "separate" or formats not in (["txt"], ["jsonl"])):
        raise UserError("--stream reads standard input and writes txt or jsonl, without --channels separate")
    if args.diarize and (args.stream or "-" in args.audio or args.channels == "separate"):
        raise UserError("--diarize needs files, and cannot be used with --stream, - or --channels separate")
    if plot and (has_folder or "-" in args.audio or args.channels == "separate"):
        raise UserError("--plot-attention cannot be used with --output-dir, --channels separate or -")
    if len(formats) > 1 and not has_folder:
        raise UserError(f"{len(formats)} formats do not fit on standard output; use --output-dir")
    if args.engine == "ray" and (not has_folder or "-" in args.audio or args.same_speakers or args.voices):
        raise UserError("--engine ray needs --output-dir DIR, and takes no -, --same-speakers or --voices")
    if args.engine == "ray" and args.device.startswith("cuda:"):
        raise UserError(f"--device {args.device}: Ray chooses the GPU of each worker; give cuda")


# --- what is asked for ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TranscriptionJob:
    """A model and its options, which Ray processes also receive."""

    model: str
    device: str
    batch_size: int
    settings: TranscriptionSettings
    resources: DecodingResources
    has_words: bool = True
    speakers: argparse.Namespace | None = None  # diarization options

    @property
    def needs_torch(self) -> bool:
        return not is_export(self.model)

    def load(self, threads: int | None = None) -> tuple[Recognizer, Request]:
        from asr.transcription.arguments import find_options
        from asr.transcription.transcribe import Request, load_recognizer

        if threads is not None:
            limit_threads(threads, self.needs_torch)
        label = None
        if self.speakers is not None:
            # The one place where transcribing imports asr.speakers, which can be deleted.
            from asr.speakers.diarize import load_diarizer

            label = load_diarizer(self.speakers).label
        settings = self.settings
        checks, segmentation = settings.checks, settings.segmentation
        model = load_recognizer(self.model, self.device, settings.precision, segmentation, checks)
        if self.needs_torch:
            from asr.models.precision import describe_device

            logger.debug("device: %s, %s", describe_device(model.device), model.precision)
        options, language_model = find_options(settings, model.family), model.load_resources(self.resources)
        request = Request(settings.decoding, language_model, self.batch_size, options, settings.channels)
        return model, replace(request, has_words=self.has_words, label_speakers=label)


def _read_job(args: argparse.Namespace) -> TranscriptionJob:
    """Check the command line against the model."""
    from asr.families import find_default_model, find_family, find_model
    from asr.transcription.arguments import TranscriptionSettings, find_options, load_settings

    model = args.model or find_default_model(language=args.language, task=args.task, prompt=args.prompt)
    logger.debug("model: %s", model)
    family = find_family(model)
    folder = None if family is not None else find_model(model)
    if folder is not None and is_export(folder):
        model = str(folder)  # also one from the hub
        for name in NOT_EXPORTED:
            if getattr(args, name):
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option}: an exported model cannot do this; give the run it came from")
    own = read_call_options(args, family, "language", "task", "prompt")
    own["channels"] = args.channels
    if family is not None:  # reports problems before torch is imported
        load_settings(TranscriptionSettings, own, args.set)
    from asr.system.decoding_resources import find_resources

    resources = find_resources(folder, args.language_model, args.words, args.decoding, args.set, family)
    settings = load_settings(TranscriptionSettings, own, args.set, resources)
    find_options(settings, family)  # refuses options of other families
    speakers = argparse.Namespace(**{name: getattr(args, name) for name in (*SPEAKER_OPTIONS, "device")})
    asked = speakers if args.diarize else None
    is_ordered_by_words = args.diarize or args.stream or args.channels == "separate"
    has_words = is_ordered_by_words or args.plot_attention is not None or bool({*args.format} - {"txt"})
    return TranscriptionJob(model, args.device, args.batch_size, settings, resources, has_words, asked)


# --- where it goes --------------------------------------------------------------------------------


def _transcribe(
    args: argparse.Namespace,
    job: TranscriptionJob,
    recordings: list[Recording],
    formats: Sequence[str],
    pool: PoolOptions | None,
) -> int:
    """Write each recording to standard output or a folder; report and count failures."""
    from asr.files import claim_folder
    from asr.transcription.arguments import measure_recording

    subtitles = job.settings.subtitles
    todo, problems = recordings, dict[str, tuple[str, str]]()
    output: StandardOutput | FolderOutput
    if args.output_dir is None:
        output = StandardOutput(formats[0], subtitles, several=len(recordings) > 1)
    else:
        # The one place where transcribing imports asr.scale, which can be deleted.
        from asr.scale.output_folder import open_folder

        is_elsewhere = pool is not None and pool.address is not None
        folder, job = open_folder(args.output_dir, formats, job, is_elsewhere)
        todo, problems = folder.find_work(recordings)
        output = FolderOutput(folder, formats, subtitles)
    seconds = {recording.name: measure_recording(recording) for recording in todo}
    tally = Tally(len(recordings) - len(todo) - len(problems))
    with contextlib.ExitStack() as opened:
        events: Iterable[Event] = ()
        if pool is not None and output.journal is not None:
            opened.enter_context(claim_folder(output.journal.state))
            from asr.scale.ray_pool import transcribe_on_ray

            on_ray = transcribe_on_ray(job.load, job.device, recordings, todo, pool)
            events = opened.enter_context(contextlib.closing(on_ray))
        elif todo:
            model, request = job.load()
            request = replace(request, journal=output.journal)
            here = _transcribe_here(model, request, todo, list(seconds.values()), args.plot_attention)
            events = opened.enter_context(contextlib.closing(here))
        progress = opened.enter_context(AudioProgress(sum(seconds.values())))
        for recording in recordings:
            if recording.name in problems:
                kind, message = problems[recording.name]
                tally.fail(recording, message, kind)
        for recording, result in _follow(events, seconds, progress):
            _deliver(recording, result, output, tally)
    output.end()
    return tally.finish(progress.elapsed)


def _follow(
    events: Iterable[Event], seconds: dict[str, float], progress: AudioProgress
) -> Generator[Event, None, None]:
    """Advance the progress bar for each event, then yield it. `seconds` has the length of each recording."""
    from asr.transcripts.transcript import Segment

    done = 0.0  # seconds of the current recording
    for recording, result in events:
        if isinstance(result, Segment):
            end = max(done, result.end - recording.start)
            progress.advance(end - done)
            done = end
        else:
            length = seconds[recording.name] if isinstance(result, UserError) else result.duration
            progress.advance(max(0.0, length - done))
            done = 0.0
        yield recording, result


def _deliver(
    recording: Recording,
    result: Segment | Transcript | UserError,
    output: StandardOutput | FolderOutput,
    tally: Tally,
) -> None:
    """Write a result and count it; if it cannot be written, it counts as a failure."""
    from asr.transcripts.transcript import Segment

    if isinstance(result, Segment):
        output.add_segment(recording, result)
    elif isinstance(result, UserError):
        message = tally.fail(recording, str(result))
        if output.journal is not None:
            output.journal.note_error(recording, message)
    else:
        try:
            output.add(recording, result)
            tally.take(recording, result)
        except UserError as error:
            tally.fail(recording, str(error))


class StandardOutput:
    """Prints transcripts, segment by segment where the format allows it."""

    journal: OutputFolder | None = None

    def __init__(self, format_name: str, subtitles: SubtitlesConfig, several: bool) -> None:
        from asr.transcripts.writers import TranscriptStream

        self._stream = TranscriptStream(format_name, subtitles, several=several)
        _escape_what_cannot_be_shown()

    def add_segment(self, recording: Recording, segment: Segment) -> None:
        text = self._stream.add_segment(recording.name, str(recording.path), segment)
        print(text, end="", flush=True)

    def add(self, recording: Recording, transcript: Transcript) -> None:
        print(self._stream.add(transcript), end="", flush=True)

    def end(self) -> None:
        print(self._stream.end(), end="", flush=True)


class FolderOutput:
    """Writes a file for each recording and format, and notes failures in the journal."""

    def __init__(self, journal: OutputFolder, formats: Sequence[str], subtitles: SubtitlesConfig) -> None:
        self.journal = journal
        self._formats = formats
        self._subtitles = subtitles

    def add_segment(self, recording: Recording, segment: Segment) -> None:
        """Do nothing; a file is written when its recording is finished."""

    def add(self, recording: Recording, transcript: Transcript) -> None:
        from asr.transcripts.writers import format_transcript

        contents = {name: format_transcript(name, transcript, self._subtitles) for name in self._formats}
        self.journal.write(recording, contents, transcript.duration, "; ".join(transcript.warnings))

    def end(self) -> None:
        """Do nothing; each file is complete."""


def _transcribe_here(
    transcriber: Recognizer,
    request: Request,
    recordings: Sequence[Recording],
    seconds: Sequence[float],
    plot: str | None,
) -> Generator[Event, None, None]:
    """Transcribe in this process; if `plot` is a path, draw the attention of the only recording."""
    from asr.audio.segmentation import STANDARD_INPUT
    from asr.transcription.arguments import plan_units
    from asr.transcripts.transcript import Transcript

    if plot is not None:
        from asr.evaluation.attention_pictures import check_drawing, draw_recording

        check_drawing(transcriber, Path(plot))
    opened = [
        replace(one, content=sys.stdin.buffer) if one.path == STANDARD_INPUT else one for one in recordings
    ]
    # Work in the same units as on Ray: the other segments in a batch change the last digits of some models,
    # so equal units make the outputs identical.
    for unit in plan_units(seconds):
        for event in transcriber.transcribe_events([opened[index] for index in unit], request):
            yield event
            if plot is not None and isinstance(event[1], Transcript):
                try:
                    for path in draw_recording(transcriber, opened[0], Path(plot), request):
                        logger.info("drawn: %s", path)
                except UserError as error:
                    yield opened[0], error


class Tally:
    """Counts of the outcomes, and the messages about each recording."""

    def __init__(self, num_done: int) -> None:
        self._counts = Counter({"finished before": num_done})
        self._seconds = 0.0

    def take(self, recording: Recording, transcript: Transcript) -> None:
        self._seconds += transcript.duration
        if transcript.out_of_domain:
            self._counts["out of domain"] += 1
            logger.warning("%s: %s", recording.path, transcript.out_of_domain)
        doubtful = [segment for segment in transcript.segments if segment.warnings]
        self._counts["doubtful"] += bool(doubtful)
        reason = doubtful[0].warnings[0] if doubtful else "no speech was found"
        if not transcript.text:
            keep = "; --set checks=off keeps it" if doubtful else ""
            logger.warning("%s: no text (%s%s)", recording.path, reason, keep)
        elif doubtful:
            count, total = len(doubtful), len(transcript.segments)
            where = f"{count} of {total} segments, first at {doubtful[0].start:.1f} s: {reason}"
            # base.en: most are doubtful in 71 of 87 foreign recordings and in 1 of 159 English ones.
            is_given = transcript.language is not None and transcript.language_probability is None
            hint = f"; another language than {transcript.language}?" if is_given and 2 * count > total else ""
            logger.warning("%s: doubtful (%s%s)", recording.path, where, hint)
        if transcript.warnings:
            self.fail(recording, "; ".join(transcript.warnings), "incomplete")
        else:
            self._counts["transcribed"] += 1

    def fail(self, recording: Recording, message: str, kind: str = "failed") -> str:
        """Log and count a failure. Return the message, which names the file."""
        path = str(recording.path)
        message = message.replace(str(Path(path)), path)  # Path writes memory:/bucket for memory://bucket
        message = message if path in message else f"{path}: {message}"
        self._counts[kind] += 1
        logger.error("%s", message)
        return message

    def finish(self, elapsed: float) -> int:
        """Log a summary. Return the exit status."""
        kinds = ("finished before", "incomplete", "failed", "failed before", "out of domain", "doubtful")
        parts = [f"{self._counts[kind]} {kind}" for kind in kinds if self._counts[kind]]
        summary = ", ".join([f"{self._counts['transcribed']} transcribed", *parts])
        if self._seconds:
            speed = self._seconds / max(elapsed, 1e-9)
            summary += f"; {self._seconds:.1f} s of audio in {elapsed:.1f} s, {speed:.1f} x real time"
        logger.info("%s", summary)
        return 1 if any(self._counts[kind] for kind in ("incomplete", "failed", "failed before")) else 0


def _escape_what_cannot_be_shown() -> None:
    """Write \\u5b57 instead of failing on a character that a terminal without UTF-8 lacks."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _stream(job: TranscriptionJob, formats: Sequence[str]) -> int:
    """Transcribe standard input live."""
    from asr.serve.live import transcribe_pipe

    _escape_what_cannot_be_shown()
    transcribe_pipe(sys.stdin.buffer, sys.stdout, job.load, formats == ["jsonl"])
    return 0
