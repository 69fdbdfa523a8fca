"""`asr combine HYP HYP HYP ...`: one text for each utterance, by votes of several systems on each word."""

from __future__ import annotations

import argparse
import json
import logging

from asr.cli import refuse_to_overwrite

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The texts of an utterance are aligned, and each word is voted on, as NIST's rover does. Of words "
        "with as many votes, that of the earliest file wins: put the system first that is best on "
        "development data. Words are compared as they stand, with case and punctuation."
    )
    text = "the texts of a system, in any format that `asr score` reads; three files or more"
    parser.add_argument("hypotheses", metavar="HYP", nargs="+", help=text)
    text = "JSON Lines of ids and texts (default: standard output)"
    parser.add_argument("--output", metavar="FILE", help=text)


def run(args: argparse.Namespace) -> int:
    from asr.files import replace_file
    from asr.scoring.nist.rover import combine_files
    from asr.transcripts.readers import split_format

    if args.output is not None:
        for name in args.hypotheses:
            refuse_to_overwrite(split_format(name)[1], args.output)
    texts, notes = combine_files(args.hypotheses)
    for note in notes:
        logger.warning("%s", note)
    lines = [json.dumps({"id": id, "text": text}, ensure_ascii=False) + "\n" for id, text in texts.items()]
    if args.output is None:
        print(*lines, sep="", end="")
        return 0
    with replace_file(args.output) as file:
        file.writelines(line.encode() for line in lines)
    logger.info("%s: %d utterances of %d systems", args.output, len(lines), len(args.hypotheses))
    print(args.output)
    return 0
