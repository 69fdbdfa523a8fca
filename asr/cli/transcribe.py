"""`asr transcribe AUDIO... --model MODEL`: what is said in recordings, as text, subtitles or tables."""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast, get_args

from asr.cli.options import add_decoding_options, prepare_device
from asr.cli.whisper_options import RULES, translate_options
from asr.decoding.methods import METHODS
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.transcription.audio_paths import Recording
    from asr.transcription.output_folder import OutputFolder
    from asr.transcription.settings import TranscriptionSettings
    from asr.transcripts.transcript import Segment, Transcript

logger = logging.getLogger(__name__)

__all__ = ["RULES", "add_arguments", "run", "translate_options"]

# As in asr.transcripts.writers, which --help must not import.
FORMATS = ("txt", "json", "jsonl", "srt", "vtt", "lrc", "tsv", "whisper.tsv", "ctm", "stm", "trn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "asr transcribe AUDIO... [--model MODEL] [--language CODE] [--format FORMAT] [--output-dir DIR] "
        "[OPTIONS]"
    )
    parser.add_argument(
        "audio",
        metavar="AUDIO",
        nargs="*",
        help="audio or video files in any format, manifests (.jsonl, .csv ...) with or without texts, "
        "quoted patterns, folders with -r, or - for standard input",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a Whisper model: a name such as tiny, base.en, large-v3, turbo or distil-large-v3, a .pt or "
        "ggml file, or a folder; or the folder of a run or of one of its checkpoints (default: ASR_MODEL in "
        "the environment, else whisper-base)",
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="Whisper: what is spoken, such as de or German; `--language list` shows them all (default: it "
        "tells by itself)",
    )
    parser.add_argument("--task", choices=("transcribe", "translate"), help="Whisper: translate into English")
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="Whisper: what may have been said before, such as names and their spelling",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, "all"),
        action="append",
        help="what to write; may be given several times, or all, with --output-dir (default: txt)",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="write a file for each recording and format there, and skip what an earlier call has finished; "
        "without it, the text goes to standard output",
    )
    parser.add_argument(
        "-r", "--recursive", action="store_true", help="take all audio files in the folders that are given"
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any other setting, such as precision=float32 or subtitles.line_width=32; `--set list` explains "
        "them all",
    )
    more = parser.add_argument_group(
        "more", "Options of openai-whisper, whisper-ctranslate2, whisperX and whisper.cpp are understood too."
    )
    more.add_argument(
        "--clip",
        metavar="START,END",
        help="only this part, in seconds or as minutes:seconds; without END, to the end",
    )
    more.add_argument(
        "--channels",
        metavar="mix|separate|N",
        help="of recordings with several channels: mix, their mean; separate, each by itself, as the "
        "speakers of a call; or the one of this number, from 1 (default: mix)",
    )
    more.add_argument(
        "--hotwords", metavar="WORDS", help="Whisper: words that are likely, with commas between them"
    )
    more.add_argument(
        "--decoding",
        choices=METHODS,
        help="how the text is found (default: auto, the best that MODEL can do)",
    )
    add_decoding_options(more, "segments")
    more.add_argument(
        "--plot-attention",
        metavar="OUT.png",
        help="of one recording, draw where the decoder looks for each token, or what CTC hears; several "
        "segments become OUT-001.png and so on",
    )
    more.add_argument(
        "--stream",
        action="store_true",
        help="live: from standard input, raw PCM (16 kHz, 16 bits, mono, little-endian) or a format such as "
        "WAV, MP3, Ogg; text while someone speaks on standard output (--format txt or jsonl)",
    )


def run(args: argparse.Namespace) -> int:
    from asr.transcription.audio_paths import find_recordings
    from asr.transcription.knowledge import find_knowledge
    from asr.transcription.recognizer import find_default_model
    from asr.transcription.settings import (
        TranscriptionSettings,
        load_transcription_settings,
        print_settings,
    )
    from asr.whisper.languages import LANGUAGES
    from asr.whisper.loading import is_whisper, require_language

    if args.set == ["list"]:
        print_settings(TranscriptionSettings())
        return 0
    if args.language == "list":
        for code, name in LANGUAGES.items():
            print(f"{code:5}{name}")
        return 0
    if not (args.audio or args.stream):
        raise UserError("expected AUDIO...; `asr transcribe --help` explains what else there is")
    if not args.model:
        args.model = find_default_model()
        logger.info("model: %s", args.model)
    if args.plot_attention and (args.stream or args.output_dir):
        raise UserError("--plot-attention goes with neither --stream nor --output-dir; leave it out")
    args.clip = None if args.clip is None else read_clip(args.clip)
    if args.clip and args.stream:
        raise UserError("--clip is about files, and --stream reads what comes; leave it out")
    prepare_device(args)
    args.knowledge = find_knowledge(args.model, args.language_model, args.lexicon, args.decoding, args.set)
    settings = load_transcription_settings(_own_options(args), args.set, args.knowledge)
    if settings.channels == "separate" and (args.stream or args.plot_attention):
        raise UserError(
            "--channels separate is for recordings that are read to their end; with --stream and "
            "--plot-attention give --channels mix, or the number of one"
        )
    if is_whisper(args.model):
        require_language(args.model, settings.whisper.language, settings.whisper.task)
    formats = list(FORMATS) if args.format and "all" in args.format else args.format or ["txt"]
    formats = list(dict.fromkeys(formats))
    if args.stream:
        return _stream(args, settings, formats)
    recordings = find_recordings(args.audio, args.recursive)
    if args.clip and any(recording.clip for recording in recordings):
        raise UserError("--clip is about whole files, and a manifest has its own times; leave it out")
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
    if args.hotwords is not None:
        words = [word.strip() for word in args.hotwords.split(",")]
        quoted["whisper.hotwords"] = json.dumps([word for word in words if word])
    beam = "whisper.beam" if is_whisper(args.model) else "decoding.beam"
    return {"decoding.method": args.decoding, beam: args.beam, "channels": args.channels, **quoted}


def read_clip(text: str) -> tuple[float, float | None]:
    """Start and end in seconds of 60,90 or 1:00,1:30; the end is None where there is none."""
    match = re.fullmatch(r"((?:\d+:){0,2}\d+(?:\.\d*)?)(?:,((?:\d+:){0,2}\d+(?:\.\d*)?)?)?", text.strip())
    if match is None:
        several = " (of several parts each in a call of its own)" if text.count(",") > 1 else ""
        raise UserError(f"--clip {text}: expected START,END such as 60,90 or 1:00,1:30{several}")
    times = [None if part is None else _to_seconds(part) for part in match.groups()]
    start, end = times[0] or 0.0, times[1]
    if end is not None and end <= start:
        raise UserError(f"--clip {text}: expected an END after START")
    return start, end


def _to_seconds(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


# --- where it goes --------------------------------------------------------------------------------


def _to_standard_output(
    args: argparse.Namespace,
    settings: TranscriptionSettings,
    recordings: Sequence[Recording],
    formats: Sequence[str],
) -> int:
    from asr.cli.transcription_job import Job
    from asr.transcripts.writers import TranscriptStream

    if len(formats) > 1:
        raise UserError(f"{len(formats)} formats do not go into one standard output; give --output-dir")
    _escape_what_cannot_be_shown()
    stream = TranscriptStream(formats[0], settings.subtitles, several=len(recordings) > 1)

    def write(recording: Recording, transcript: Transcript) -> None:
        sys.stdout.write(stream.add(transcript))
        sys.stdout.flush()

    def show(recording: Recording, segment: Segment) -> None:
        sys.stdout.write(stream.add_segment(recording.name, recording.path, segment))
        sys.stdout.flush()

    job = Job(args, settings, write, show)
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
    from asr.cli.transcription_job import Job
    from asr.transcripts.writers import format_transcript

    folder, settings = _open_folder(args, settings, formats)
    folder.check(recordings)

    def write(recording: Recording, transcript: Transcript) -> None:
        contents = {name: format_transcript(name, transcript, settings.subtitles) for name in formats}
        folder.write(recording, contents, is_whole=not transcript.warnings)

    job = Job(args, settings, write, open_log=folder.open_log)
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


def _open_folder(
    args: argparse.Namespace, settings: TranscriptionSettings, formats: Sequence[str]
) -> tuple[OutputFolder, TranscriptionSettings]:
    """The folder, and the settings with its precision: where both are left to us, it goes on as it began."""
    from asr.models.precision import Precision, describe_arithmetic, resolve_precision
    from asr.transcription.output_folder import OutputFolder
    from asr.transcription.settings import describe_making
    from asr.transcription.transcriber import choose_device
    from asr.whisper.loading import is_whisper

    def resolve(precision: Precision) -> tuple[OutputFolder, TranscriptionSettings, str]:
        device = choose_device(args.device)
        precision = resolve_precision(precision, device, is_whisper(args.model))
        arithmetic = describe_arithmetic(precision, device)
        making = describe_making(args.model, args.knowledge, settings, arithmetic) | {"clip": args.clip}
        folder = OutputFolder(args.output_dir, formats, making)
        return folder, settings.model_copy(update={"precision": precision}), arithmetic

    folder, resolved, arithmetic = resolve(settings.precision)
    earlier = folder.earlier_arithmetic
    if earlier is None or earlier == arithmetic:
        return folder, resolved
    precision, _, device = earlier.partition(" on ")
    if precision not in get_args(Precision):
        return folder, resolved
    if settings.precision not in ("auto", precision) or args.device.partition(":")[0] not in ("auto", device):
        return folder, resolved  # asked for by name: as with any other setting, all is done anew
    if args.device == "auto":
        args.device = device
    logger.info("%s: goes on in %s, as it was begun", args.output_dir, earlier)
    try:
        return resolve(cast("Precision", precision))[:2]
    except UserError as error:
        raise UserError(
            f"{args.output_dir}: was begun in {earlier}, which cannot go on here: {error}. Give another "
            f"--output-dir, or do all anew by --set precision={resolved.precision} --device cpu"
        ) from None


# --- live -----------------------------------------------------------------------------------------


def _stream(args: argparse.Namespace, settings: TranscriptionSettings, formats: Sequence[str]) -> int:
    from asr.cli.transcription_job import load_knowledge, load_transcriber
    from asr.transcription.live_input import PipeReader, read_live
    from asr.transcription.live_output import Latency, write_live
    from asr.transcription.recognizer import Request
    from asr.transcription.streaming import LiveTranscriber, transcribe_live

    if args.audio not in ([], ["-"]) or args.recursive or args.output_dir is not None:
        raise UserError(
            "--stream reads standard input and writes standard output; leave files and folders out"
        )
    if formats not in (["txt"], ["jsonl"]):
        raise UserError(f"--stream --format {' '.join(formats)}: expected txt or jsonl")
    pipe = PipeReader(sys.stdin.buffer)  # before the model is loaded, for which no recorder should wait
    recognizer = load_transcriber(args, settings)
    request = Request(settings.decoding, load_knowledge(args, recognizer), args.batch_size, settings.whisper)
    recognizer.check(request)
    transcriber = LiveTranscriber(recognizer, request, settings.streaming)
    _escape_what_cannot_be_shown()
    latency = Latency()
    channel = settings.channels - 1 if isinstance(settings.channels, int) else None
    pieces, rate = read_live(pipe, recognizer.sample_rate, channel)
    watched = latency.watch(pieces, rate, pipe)
    texts = transcribe_live(watched, transcriber, rate, is_late=lambda: pipe.waiting_bytes > 0)
    for _ in write_live(latency.measure(texts), sys.stdout, formats == ["jsonl"], latency):
        pass
    logger.info("%s", latency)
    return 0
