"""`asr transcribe AUDIO... --model MODEL`: what is said in recordings, as text, subtitles or tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.options import add_decoding_options
from asr.decoding.methods import METHODS

if TYPE_CHECKING:
    from asr.decoding.fusion import FusionModel
    from asr.errors import UserError
    from asr.progress import AudioProgress
    from asr.transcription.audio_paths import Recording
    from asr.transcription.recognizer import AudioPart, Transcriber
    from asr.transcription.settings import TranscriptionSettings
    from asr.transcription.sources import AudioFile
    from asr.transcripts.transcript import Transcript

logger = logging.getLogger(__name__)

# As in asr.transcripts.writers, which --help must not import.
FORMATS = ("txt", "json", "jsonl", "srt", "vtt", "tsv", "ctm", "stm", "trn")
MAX_FAULTS_SHOWN = 20
STANDARD_INPUT_FILE = "standard-input"
STREAM_RATE = 16_000  # Hz


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "audio",
        metavar="AUDIO",
        nargs="*",
        help="audio or video files in any format, quoted patterns, folders with -r, or - for standard input",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="folder of a run or of one of its checkpoints, or a Whisper model: a .pt or ggml file, "
        "a folder, a name such as whisper-small (default: ASR_MODEL in the environment, else whisper-base)",
    )
    parser.add_argument(
        "-r", "--recursive", action="store_true", help="take all audio files in the folders that are given"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        action="append",
        help="what to write; may be given several times with --output-dir (default: txt)",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="write a file for each recording and format there, and skip what an earlier call has finished; "
        "without it, the text goes to standard output",
    )
    parser.add_argument(
        "--decoding",
        choices=METHODS,
        help="how the text is found (default: auto, the best that MODEL can do)",
    )
    add_decoding_options(parser, "segments")
    parser.add_argument(
        "--language", metavar="CODE", help="Whisper: what is spoken, such as de (default: it tells by itself)"
    )
    parser.add_argument("--task", choices=("transcribe", "translate"), help="Whisper: translate into English")
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="Whisper: what may have been said before, such as names and their spelling",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any other setting, such as subtitles.line_width=32; `--set list` explains them all",
    )
    parser.add_argument(
        "--plot-attention",
        metavar="OUT.png",
        help="of one recording, draw where the decoder looks for each token, or what CTC hears; several "
        "segments become OUT-001.png and so on",
    )
    parser.add_argument(
        "--stream",
        action="store_true",
        help="live: raw PCM (16 kHz, 16 bits, mono, little-endian) on standard input, words as they become "
        "final on standard output (--format txt or jsonl)",
    )


def run(args: argparse.Namespace) -> int:
    from asr.errors import UserError
    from asr.transcription.audio_paths import find_recordings
    from asr.transcription.recognizer import find_default_model
    from asr.transcription.settings import (
        Knowledge,
        TranscriptionSettings,
        load_transcription_settings,
        print_settings,
    )

    if args.set == ["list"]:
        print_settings(TranscriptionSettings())
        return 0
    if not (args.audio or args.stream):
        raise UserError("expected AUDIO...; `asr transcribe --help` explains what else there is")
    if not args.model:
        args.model = find_default_model()
        logger.info("model: %s", args.model)
    if args.plot_attention and (args.stream or args.output_dir):
        raise UserError("--plot-attention goes with neither --stream nor --output-dir; leave it out")
    if args.batch_size < 1:
        raise UserError(f"--batch-size {args.batch_size}: expected 1 or more")
    args.knowledge = Knowledge(args.language_model, args.lexicon)
    settings = load_transcription_settings(_own_options(args), args.set, args.knowledge)
    formats = list(dict.fromkeys(args.format or ["txt"]))
    if args.stream:
        return _stream(args, settings, formats)
    recordings = find_recordings(args.audio, args.recursive)
    if args.plot_attention and len(recordings) > 1:
        raise UserError(f"--plot-attention draws one recording, and here are {len(recordings)}; give one")
    if args.output_dir is None:
        return _to_standard_output(args, settings, recordings, formats)
    return _to_folder(args, settings, recordings, formats)


def _own_options(args: argparse.Namespace) -> dict[str, object]:
    """Settings that have an option of their own; quoted, or YAML would read : as the end of a key."""
    from asr.whisper.loading import is_whisper

    texts = {"language": args.language, "task": args.task, "prompt": args.prompt}
    quoted = {f"whisper.{name}": json.dumps(text) for name, text in texts.items() if text is not None}
    beam = "whisper.beam" if is_whisper(args.model) else "decoding.beam"
    return {"decoding.method": args.decoding, beam: args.beam, **quoted}


# --- where it goes --------------------------------------------------------------------------------


def _to_standard_output(
    args: argparse.Namespace,
    settings: TranscriptionSettings,
    recordings: Sequence[Recording],
    formats: Sequence[str],
) -> int:
    from asr.errors import UserError
    from asr.transcripts.writers import TranscriptStream

    if len(formats) > 1:
        raise UserError(f"{len(formats)} formats do not go into one standard output; give --output-dir")
    _escape_what_cannot_be_shown()
    stream = TranscriptStream(formats[0], settings.subtitles, several=len(recordings) > 1)

    def write(recording: Recording, transcript: Transcript) -> None:
        sys.stdout.write(stream.add(transcript))
        sys.stdout.flush()

    job = _Job(args, settings, write)
    job.transcribe(recordings)
    sys.stdout.write(stream.end())
    return job.finish()


def _escape_what_cannot_be_shown() -> None:
    """A terminal that is not UTF-8 gets \\u5b57 in place of a character that it lacks, and not an error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _to_folder(
    args: argparse.Namespace,
    settings: TranscriptionSettings,
    recordings: Sequence[Recording],
    formats: Sequence[str],
) -> int:
    from asr.errors import UserError
    from asr.transcription.output_folder import OutputFolder
    from asr.transcription.settings import describe_making
    from asr.transcripts.writers import format_transcript

    folder = OutputFolder(args.output_dir, formats, describe_making(args.model, args.knowledge, settings))
    folder.check(recordings)

    def write(recording: Recording, transcript: Transcript) -> None:
        contents = {name: format_transcript(name, transcript, settings.subtitles) for name in formats}
        folder.write(recording, contents, is_whole=not transcript.warnings)

    job = _Job(args, settings, write)
    wanted = []
    for recording in recordings:
        if folder.is_done(recording):
            job.num_skipped += 1
            continue
        try:
            folder.require_free(recording)
        except UserError as error:
            job.fail(recording, str(error))
        else:
            wanted.append(recording)
    if job.num_skipped:
        logger.info("%d of %d were finished by an earlier call", job.num_skipped, len(recordings))
    job.transcribe(wanted)
    return job.finish()


# --- work -----------------------------------------------------------------------------------------


class _Job:
    """Transcribes one recording after the other, and counts what became of them."""

    def __init__(
        self,
        args: argparse.Namespace,
        settings: TranscriptionSettings,
        write: Callable[[Recording, Transcript], None],
    ) -> None:
        self._args = args
        self._settings = settings
        self._write = write
        self._progress: AudioProgress | None = None
        self._faults: list[str] = []
        self._num_done = 0
        self._num_doubted = 0
        self._audio_seconds = 0.0
        self._wall_seconds = 0.0
        self.num_skipped = 0

    def transcribe(self, recordings: Sequence[Recording]) -> None:
        from asr.errors import UserError
        from asr.progress import AudioProgress

        if not recordings:
            return
        recognizer = _load(self._args, self._settings)
        seconds = [_measure(recording) for recording in recordings]
        with AudioProgress(sum(seconds)) as self._progress:
            results = self._results(recognizer, recordings)
            for recording, length, result in zip(recordings, seconds, results, strict=True):
                if isinstance(result, UserError):
                    self.fail(recording, str(result))
                    self._progress.advance(length)
                else:
                    self._take(recording, result)
            self._wall_seconds = self._progress.elapsed

    def _results(
        self, recognizer: Transcriber, recordings: Sequence[Recording]
    ) -> Iterator[Transcript | UserError]:
        from asr.attention_pictures import check_drawing
        from asr.errors import UserError

        if self._args.plot_attention:
            check_drawing(recognizer, Path(self._args.plot_attention))
        knowledge = _load_knowledge(self._args, recognizer)
        with contextlib.ExitStack() as stack:
            parts = [_to_part(recording, stack) for recording in recordings]
            for part, result in recognizer.transcribe_files(
                parts,
                self._args.batch_size,
                decoding=self._settings.decoding,
                language_model=knowledge,
                whisper=self._settings.whisper,
                report=self._progress.advance if self._progress is not None else lambda seconds: None,
            ):
                yield result
                if self._args.plot_attention and not isinstance(result, UserError):
                    self._draw(recognizer, recordings[0], part, knowledge)

    def _draw(
        self, recognizer: Transcriber, recording: Recording, part: AudioFile, knowledge: FusionModel | None
    ) -> None:
        from asr.attention_pictures import draw_recording
        from asr.errors import UserError
        from asr.transcription.recognizer import Request

        request = Request(self._settings.decoding, knowledge)
        try:
            for path in draw_recording(recognizer, part, Path(self._args.plot_attention), request):
                logger.info("drawn: %s", path)
        except UserError as error:
            self.fail(recording, str(error))

    def _take(self, recording: Recording, transcript: Transcript) -> None:
        from dataclasses import replace

        from asr.errors import UserError

        if transcript.warnings and not transcript.text:
            self.fail(recording, "; ".join(transcript.warnings))
            return
        transcript = replace(transcript, id=recording.name, audio=recording.path)
        try:
            self._write(recording, transcript)
        except UserError as error:
            self.fail(recording, str(error))
            return
        self._audio_seconds += transcript.duration
        self._num_doubted += sum(bool(segment.warnings) for segment in transcript.segments)
        if transcript.warnings:
            message = "; ".join(transcript.warnings)
            self.fail(recording, f"{message}; the transcript has the {transcript.duration:.1f} s before")
        else:
            self._num_done += 1

    def fail(self, recording: Recording, message: str) -> None:
        message = re.sub(rf"\S*/{STANDARD_INPUT_FILE}", "standard input", message)
        if recording.path not in message:
            message = f"{recording.path}: {message}"
        self._faults.append(message)
        if self._progress is None:
            logger.error("%s", message)
        else:
            self._progress.say(message, logging.ERROR)

    def finish(self) -> int:
        """Says what was done; the exit status."""
        counts = [f"{self._num_done} transcribed"]
        if self.num_skipped:
            counts.append(f"{self.num_skipped} finished before")
        if self._faults:
            counts.append(f"{len(self._faults)} failed")
        summary = ", ".join(counts)
        if self._audio_seconds:
            speed = self._audio_seconds / max(self._wall_seconds, 1e-9)
            summary += (
                f"; {self._audio_seconds:.1f} s of audio in {self._wall_seconds:.1f} s, "
                f"{speed:.1f} times as fast as it was spoken"
            )
        logger.info("%s", summary)
        if self._num_doubted:
            logger.info(
                "in %d stretches of speech the decoder was not believed; the warnings in json say why",
                self._num_doubted,
            )
        if len(self._faults) > 1 or (self._faults and self._num_done):
            logger.info("failed:")
            for message in self._faults[:MAX_FAULTS_SHOWN]:
                logger.info("  %s", message)
            if len(self._faults) > MAX_FAULTS_SHOWN:
                logger.info("  and %d more, see above", len(self._faults) - MAX_FAULTS_SHOWN)
        return 1 if self._faults else 0


def _load_knowledge(args: argparse.Namespace, recognizer: Transcriber) -> FusionModel | None:
    from asr.errors import UserError
    from asr.transcription.recognizer import Recognizer

    if isinstance(recognizer, Recognizer):
        return args.knowledge.load(recognizer.system, recognizer.device)
    if args.knowledge.files:
        raise UserError(
            "--language-model and --lexicon are for models trained here; tell a Whisper model words that are "
            "likely by --prompt, or --set whisper.hotwords=[...]"
        )
    return None


def _load(args: argparse.Namespace, settings: TranscriptionSettings) -> Transcriber:
    from asr.evaluation import describe_device
    from asr.transcription.recognizer import load_model

    recognizer = load_model(
        args.model,
        args.device,
        settings.precision,
        segmentation=settings.segmentation,
        checks=settings.checks,
    )
    logger.info("device: %s", describe_device(recognizer.device))
    return recognizer


def _measure(recording: Recording) -> float:
    """Seconds, from the header alone; 0 where it does not say."""
    from asr import audio
    from asr.errors import UserError
    from asr.transcription.audio_paths import STANDARD_INPUT

    if recording.path == STANDARD_INPUT:
        return 0.0
    try:
        return audio.read_info(recording.path).seconds or 0.0
    except UserError:
        return 0.0  # what is wrong is said when it is read


def _to_part(recording: Recording, stack: contextlib.ExitStack) -> AudioPart:
    """What to read. Decoders jump about in a file, so that standard input is written to one first."""
    from asr.transcription.audio_paths import STANDARD_INPUT
    from asr.transcription.recognizer import AudioPart

    if recording.path != STANDARD_INPUT:
        return AudioPart(recording.path, id=recording.name)
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asr-"))) / STANDARD_INPUT_FILE
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return AudioPart(path, id=recording.name)


# --- live -----------------------------------------------------------------------------------------


def _stream(args: argparse.Namespace, settings: TranscriptionSettings, formats: Sequence[str]) -> int:
    from asr.errors import UserError
    from asr.transcription.live_output import Latency, measure_latency, read_pieces, write_live
    from asr.transcription.recognizer import Request
    from asr.transcription.streaming import LiveTranscriber, decode_pcm, transcribe_live

    if args.audio not in ([], ["-"]) or args.recursive or args.output_dir is not None:
        raise UserError(
            "--stream reads standard input and writes standard output; leave files and folders out"
        )
    if formats not in (["txt"], ["jsonl"]):
        raise UserError(f"--stream --format {' '.join(formats)}: expected txt or jsonl")
    recognizer = _load(args, settings)
    request = Request(settings.decoding, _load_knowledge(args, recognizer), args.batch_size, settings.whisper)
    recognizer.check(request)
    transcriber = LiveTranscriber(recognizer, request, settings.streaming)
    _escape_what_cannot_be_shown()
    latency = Latency()
    texts = transcribe_live(
        decode_pcm(read_pieces(sys.stdin.buffer, latency, STREAM_RATE // 10 * 2)), transcriber, STREAM_RATE
    )
    timed = measure_latency(texts, latency)
    for _ in write_live(timed, sys.stdout, recognizer.separator, formats == ["jsonl"]):
        pass
    logger.info("%s", latency)
    return 0
