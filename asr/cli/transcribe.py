"""`asr transcribe AUDIO... --model MODEL`: transcribe recordings, as text, subtitles or tables."""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.cli.options import (
    DECODING_METHODS,
    add_decoding_options,
    add_engine,
    add_settings,
    find_pool,
    limit_threads,
)
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.audio.sources import Recording
    from asr.cli.transcription_job import TranscriptionOptions
    from asr.transcripts.transcript import Segment, Transcript

logger = logging.getLogger(__name__)

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
        "quoted patterns, shards, folders and addresses such as s3://bucket/talks with -r, or - for standard "
        "input",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a Whisper model: a name such as tiny, base.en, large-v3, turbo or distil-large-v3, a .pt "
        "file, or a folder; or the folder of a run or of one of its checkpoints (default: ASR_MODEL in the "
        "environment, else whisper-base)",
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="Whisper: the language spoken, such as de or German; `--language list` shows them all (default: "
        "detected)",
    )
    parser.add_argument("--task", choices=("transcribe", "translate"), help="Whisper: translate into English")
    parser.add_argument(
        "--prompt",
        "--initial-prompt",
        metavar="TEXT",
        help="Whisper: a text that may have come before, such as names and their spelling",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, "all"),
        action="append",
        default=[],
        help="output format; several, or all, with --output-dir (default: txt)",
    )
    parser.add_argument(
        *("-o", "--output-dir"),
        metavar="DIR",
        help="write a file for each recording and format there, and skip what an earlier call has finished; "
        "without it, the text goes to standard output",
    )
    parser.add_argument(
        "-r", "--recursive", action="store_true", help="take all audio files in the folders that are given"
    )
    add_settings(
        parser,
        "any other setting, such as precision=float32 or subtitles.line_width=32; may be repeated; "
        "`--set list` explains them all",
    )
    more = parser.add_argument_group("more")
    more.add_argument(
        *("--clip", "--clip-timestamps"),
        metavar="START,END",
        help="only this part, in seconds or as minutes:seconds; without END, to the end",
    )
    more.add_argument(
        "--channels",
        metavar="mix|separate|N",
        help="of recordings with several channels: mix, their mean; separate, each as a speaker; or the "
        "number of one, from 1 (default: mix)",
    )
    more.add_argument(
        "--hotwords", metavar="WORDS", help="Whisper: words that are likely, with commas between them"
    )
    more.add_argument(
        "--decoding",
        metavar="METHOD",
        help=f"{DECODING_METHODS} (default: auto, the best that MODEL offers)",
    )
    add_decoding_options(more, "segments")
    more.add_argument(
        "--plot-attention",
        metavar="OUT.png",
        help="of one recording, draw the attention of the decoder to each token, or the CTC probabilities; "
        "several segments become OUT-001.png and so on",
    )
    more.add_argument(
        "--stream",
        action="store_true",
        help="live: read standard input, raw PCM (16 kHz, 16 bits, mono, little-endian) or a format such as "
        "WAV, MP3, Ogg, and write text while someone speaks (--format txt or jsonl)",
    )
    _add_whisper_options(parser)
    ray = parser.add_argument_group("many recordings", "With --output-dir.")
    add_engine(ray)
    ray.add_argument(
        "--status",
        metavar="DIR",
        help="how much of an --output-dir is done and failed, and how long the rest will take",
    )


class _SetAction(argparse.Action):
    """Append to --set what the value stands for in `const`, or the setting of `const` with the value."""

    def __call__(self, parser, namespace, value, option_string=None):  # type: ignore[no-untyped-def]
        meaning: Any = self.const
        if isinstance(meaning, str):
            settings = [f"{meaning}={'null' if value == 'None' else value}"]
        else:
            settings = meaning[value]
        namespace.set = [*namespace.set, *settings]


# Options of openai-whisper's command line, and the settings that they are here.
_SEQUENTIAL = ["whisper.windows=sequential", "whisper.condition_on_previous_text=true"]
_WHISPER_OPTIONS: dict[str, str | dict[str, list[str]]] = {
    "--fp16": {"True": ["precision=fp16"], "False": ["precision=float32"]},
    "--condition-on-previous-text": {"True": _SEQUENTIAL, "False": []},
    "--best-of": "whisper.samples",
    "--compression-ratio-threshold": "checks.max_compression",
    "--logprob-threshold": "checks.min_log_probability",
    "--no-speech-threshold": "whisper.max_no_speech",
    "--max-line-width": "subtitles.line_width",
    "--max-line-count": "subtitles.max_lines",
}


def _add_whisper_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of openai-whisper that have another name or another unit there."""
    group = parser.add_argument_group("openai-whisper", "Options by the names of OpenAI's command line.")
    group.add_argument(
        *("-f", "--output-format"),
        dest="format",
        metavar="FORMAT",
        type=lambda name: "whisper.tsv" if name == "tsv" else name,
        choices=(*FORMATS, "all"),
        action="append",
        help="as --format, where tsv is the table that openai-whisper writes (--format whisper.tsv)",
    )
    for option, meaning in _WHISPER_OPTIONS.items():
        if isinstance(meaning, str):
            shown: dict[str, Any] = {"metavar": "VALUE", "help": f"--set {meaning}=VALUE"}
        else:
            settings = " ".join(f"--set {setting}" for setting in meaning["True"])
            shown = {"choices": tuple(meaning), "help": f"True: {settings}"}
        group.add_argument(option, dest="set", const=meaning, action=_SetAction, **shown)


def run(args: argparse.Namespace) -> int:
    if args.status is not None:
        return _show_status(args)

    from asr.families import find_families
    from asr.transcription.recordings import find_recordings, require_any
    from asr.transcription.settings import TranscriptionSettings, print_settings

    if args.set == ["list"]:
        print_settings(TranscriptionSettings())
        return 0
    if args.language == "list":
        for known in find_families():
            for code, name in known.languages.items():
                print(f"{code:5}{name}")
        return 0
    pool = find_pool(args)
    formats = list(dict.fromkeys(FORMATS if "all" in args.format else args.format)) or ["txt"]
    _refuse_conflicts(args, formats)
    clip = None if args.clip is None else read_clip(args.clip)
    options = _read_options(args)
    if args.stream:
        return _stream(options, formats)
    recordings = find_recordings(args.audio, args.recursive)
    require_any(recordings)  # before weights are fetched
    if clip is not None:
        if any(recording.is_utterance for recording in recordings):
            raise UserError("--clip is about whole files, and a manifest has its own times; leave it out")
        recordings = [replace(recording, start=clip[0], duration=clip[1]) for recording in recordings]
    if options.plot and len(recordings) > 1:
        raise UserError(f"--plot-attention draws one recording, and here are {len(recordings)}; give one")
    if args.output_dir is None:
        return _to_standard_output(options, recordings, formats)
    from asr.cli.transcription_job import transcribe_to_folder

    return transcribe_to_folder(options, args.output_dir, recordings, formats, pool)


def _show_status(args: argparse.Namespace) -> int:
    from asr.scale.output_folder import show_status

    if args.audio:
        raise UserError("--status DIR only looks; leave AUDIO out")
    show_status(args.status)
    return 0


def _refuse_conflicts(args: argparse.Namespace, formats: Sequence[str]) -> None:
    """Refuse options that do not go together, before any file is read."""
    if not (args.audio or args.stream):
        raise UserError("expected AUDIO...; `asr transcribe --help` explains what else there is")
    if args.plot_attention and (args.stream or args.output_dir):
        raise UserError("--plot-attention goes with neither --stream nor --output-dir; leave it out")
    if len(formats) > 1 and not (args.stream or args.output_dir):
        raise UserError(f"{len(formats)} formats do not go into one standard output; give --output-dir")
    if args.engine == "ray":
        if args.output_dir is None or args.stream or args.plot_attention or "-" in args.audio:
            raise UserError(
                "--engine ray reads files and writes to --output-dir DIR; give that, and leave --stream, "
                "--plot-attention and - out"
            )
        if args.device.startswith("cuda:"):
            raise UserError(f"--device {args.device}: Ray chooses the GPU of each worker; give cuda")
    if not args.stream:
        return
    if args.clip is not None:
        raise UserError("--clip is about files, and --stream reads what comes; leave it out")
    if args.audio not in ([], ["-"]) or args.recursive or args.output_dir is not None:
        raise UserError(
            "--stream reads standard input and writes standard output; leave files and folders out"
        )
    if formats not in (["txt"], ["jsonl"]):
        raise UserError(f"--stream --format {' '.join(formats)}: expected txt or jsonl")


def _read_options(args: argparse.Namespace) -> TranscriptionOptions:
    """The command line as values, checked against the model."""
    from asr.cli.transcription_job import TranscriptionOptions
    from asr.families import find_family
    from asr.system.checkpoint import find_model
    from asr.system.decoding_resources import find_resources
    from asr.transcription.settings import TranscriptionSettings, find_options, load_settings
    from asr.transcription.transcribe import find_default_model

    model = args.model or find_default_model()
    if not args.model:
        logger.info("model: %s", model)
    limit_threads(args.threads)
    family = find_family(model)
    folder = None if family is not None else find_model(model)
    resources = find_resources(folder, args.language_model, args.lexicon, args.decoding, args.set)
    # Texts are quoted, or YAML would read : as the end of a key.
    texts = {"language": args.language, "task": args.task, "prompt": args.prompt}
    own: dict[str, object] = {
        f"whisper.{key}": json.dumps(text) for key, text in texts.items() if text is not None
    }
    if args.hotwords is not None:
        words = [word.strip() for word in args.hotwords.split(",")]
        own["whisper.hotwords"] = json.dumps([word for word in words if word])
    own[f"{'decoding' if family is None else family.section}.beam"] = args.beam
    own |= {"decoding.method": args.decoding, "channels": args.channels}
    if args.channels not in (None, "mix", "separate") and not args.channels.isdecimal():
        raise UserError(
            f"--channels {args.channels}: expected mix, separate or the number of one, from 1 (left is 1)"
        )
    settings = load_settings(TranscriptionSettings, own, args.set, resources)
    if settings.channels == "separate" and (args.stream or args.plot_attention):
        raise UserError(
            "--channels separate is for recordings that are read to their end; with --stream and "
            "--plot-attention give --channels mix, or the number of one"
        )
    for_family = find_options(settings, family)
    if family is not None and for_family is not None:
        family.check(model, for_family)
        if resources.files:
            raise UserError(
                "--language-model and --lexicon are for models trained here; tell a Whisper model words that "
                "are likely by --prompt, or --set whisper.hotwords=[...]"
            )
    plot = None if args.plot_attention is None else Path(args.plot_attention)
    return TranscriptionOptions(model, args.device, args.batch_size, settings, for_family, resources, plot)


def read_clip(text: str) -> tuple[float, float | None]:
    """Parse 60,90 or 1:00,1:30 as start and duration in seconds; None where there is no end."""
    match = re.fullmatch(r"((?:\d+:){0,2}\d+(?:\.\d*)?)(?:,((?:\d+:){0,2}\d+(?:\.\d*)?)?)?", text.strip())
    if match is None:
        several = " (of several parts each in a call of its own)" if text.count(",") > 1 else ""
        raise UserError(f"--clip {text}: expected START,END such as 60,90 or 1:00,1:30{several}")
    times = [None if part is None else _to_seconds(part) for part in match.groups()]
    start, end = times[0] or 0.0, times[1]
    if end is not None and end <= start:
        raise UserError(f"--clip {text}: expected an END after START")
    return start, None if end is None else end - start


def _to_seconds(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


# --- where it goes --------------------------------------------------------------------------------


def _to_standard_output(
    options: TranscriptionOptions, recordings: Sequence[Recording], formats: Sequence[str]
) -> int:
    from asr.cli.transcription_job import TranscriptionJob
    from asr.transcripts.writers import TranscriptStream

    _escape_what_cannot_be_shown()
    stream = TranscriptStream(formats[0], options.settings.subtitles, several=len(recordings) > 1)

    def write(recording: Recording, transcript: Transcript) -> None:
        sys.stdout.write(stream.add(transcript))
        sys.stdout.flush()

    def show(recording: Recording, segment: Segment) -> None:
        sys.stdout.write(stream.add_segment(recording.name, str(recording.path), segment))
        sys.stdout.flush()

    job = TranscriptionJob(options, write, show)
    job.transcribe(recordings)
    sys.stdout.write(stream.end())
    return job.finish()


def _escape_what_cannot_be_shown() -> None:
    """Write \\u5b57 in place of a character that a terminal without UTF-8 lacks, and raise no error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


# --- live -----------------------------------------------------------------------------------------


def _stream(options: TranscriptionOptions, formats: Sequence[str]) -> int:
    from asr.serve.live import Delay, LiveTranscriber, transcribe_live, write_live
    from asr.serve.pipe import PipeReader, read_live

    settings = options.settings
    pipe = PipeReader(sys.stdin.buffer)  # before the model is loaded, for which no recorder should wait
    recognizer, request = options.load()
    recognizer.check(request)
    transcriber = LiveTranscriber(recognizer, request)
    _escape_what_cannot_be_shown()
    delay = Delay()
    channel = settings.channels - 1 if isinstance(settings.channels, int) else None
    pieces, rate = read_live(pipe, recognizer.sample_rate, channel)
    watched = delay.watch(pieces, rate, pipe)
    texts = transcribe_live(watched, transcriber, rate, is_late=lambda: pipe.waiting_bytes > 0)
    write_live(texts, sys.stdout, formats == ["jsonl"], delay)
    logger.info("%.1f s of audio; decoding was at most %.2f s behind", delay.audio_seconds, delay.most)
    return 0
