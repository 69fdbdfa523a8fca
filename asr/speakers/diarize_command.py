"""`asr diarize AUDIO...`: write who speaks when, as RTTM or JSON."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from asr.cli import (
    AudioProgress,
    add_device,
    add_speaker_options,
    limit_threads,
    require_any_input,
    whole_number,
)
from asr.errors import UserError

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("audio", metavar="AUDIO", nargs="+", help="audio or video files, manifests, or folders with -r")
    text = "write DIR/NAME.rttm or .json for each recording; skip those that exist (default: standard output)"
    add("-o", "--output-dir", metavar="DIR", help=text)
    add("--format", choices=("rttm", "json"), default="rttm", help="json: one array of turns (default: rttm)")
    add("-r", "--recursive", action="store_true", help="search the given folders for audio files")
    text = "write turns that do not overlap: where several people speak, only the one with the most evidence"
    add("--exclusive", action="store_true", help=text)
    add_speaker_options(parser)
    text = "CPU threads (default: one for each core that other processes leave free)"
    add("--threads", type=whole_number(0), metavar="N", help=text)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    require_any_input(*args.audio)
    from asr.files import replace_file
    from asr.speakers.diarize import load_diarizer
    from asr.speakers.turns import Turn, format_rttm, format_seglst
    from asr.transcription.arguments import find_recordings, measure_recording

    limit_threads(args.threads)
    write = {"rttm": format_rttm, "json": format_seglst}[args.format]
    recordings, problems = find_recordings(args.audio, args.recursive), list[str]()
    paths = [Path(args.output_dir or "", f"{recording.name}.{args.format}") for recording in recordings]
    if args.output_dir and args.same_speakers and not args.voices and any(path.exists() for path in paths):
        text = "has turns of another call; give --voices FILE in both, or a new DIR"
        raise UserError(f"{args.output_dir}: {text}")
    diarizer, printed = load_diarizer(args), list[Turn]()  # printed at the end, since JSON is a single array
    lengths = [measure_recording(recording) for recording in recordings]
    with AudioProgress(sum(lengths)) as progress:
        for recording, path, seconds in zip(recordings, paths, lengths, strict=True):
            if args.output_dir is not None and path.exists():
                logger.info("%s: already exists, skipped; delete it to diarize again", path)
                continue
            try:
                turns, found = diarizer.find_turns(recording, args.exclusive)
                if args.output_dir is not None:
                    with replace_file(path) as file:
                        file.write(write(turns).encode())
                elif args.format == "rttm":
                    sys.stdout.buffer.write(write(turns).encode())
                printed += turns
                logger.info("%s: %d speakers", recording.path, len({turn.speaker for turn in turns}))
            except UserError as error:
                found = [str(error)]
            progress.advance(seconds)
            problems += found
            for problem in found:
                logger.error("%s", problem)
    if args.output_dir is None and args.format == "json":
        sys.stdout.buffer.write(write(printed).encode())
    return 1 if problems else 0
