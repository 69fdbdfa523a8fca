"""Draws where a decoder looks for each token of a recording, by any layer and head, or what CTC hears.

    python tools/plot_attention.py runs/fsdd/transformer talk.wav talk.png --layer 0 --head 2

Without --text it draws what is decoded, a picture for each segment; with --text, where the model would find
that text in the whole recording.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from asr.audio import Recording
from asr.errors import UserError
from asr.evaluation import View, check_view, draw_recording, draw_text, require_recognizer
from asr.transcription import Request, load_model


def run(args: argparse.Namespace) -> None:
    if args.ctc and (args.head is not None or args.layer != -1 or args.text is not None):
        raise UserError(
            "--ctc draws what is heard: --layer, --head and --text say nothing of it; leave them out"
        )
    recognizer = require_recognizer(load_model(args.model, args.device))
    view = View(args.layer, args.head, args.ctc)
    check_view(recognizer.model, view, args.output)
    recording = Recording(args.audio, start=args.start, duration=args.duration)
    if args.text is not None:
        draw_text(recognizer, recording, args.output, args.text, view)
        written = [args.output]
    else:
        written = draw_recording(recognizer, recording, args.output, Request(), view)
    for path in written:
        print(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or of one of its checkpoints")
    parser.add_argument("audio", metavar="AUDIO", type=Path)
    parser.add_argument("output", metavar="OUT.png", type=Path)
    parser.add_argument("--text", help="said in the recording (default: what the model decodes)")
    parser.add_argument("--layer", type=int, default=-1, metavar="N", help="from 0; -1 is the last (default)")
    parser.add_argument("--head", type=int, metavar="N", help="from 0 (default: the mean of all)")
    parser.add_argument("--ctc", action="store_true", help="the posteriors of the CTC head")
    parser.add_argument("--start", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--duration", type=float, metavar="SECONDS")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        run(parser.parse_args())
    except UserError as error:
        print(f"plot_attention: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
