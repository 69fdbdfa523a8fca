"""`asr align MODEL MANIFEST`: word times of the texts, from a CTC head or from attention."""

from __future__ import annotations

import argparse
import logging

from asr.cli import AudioProgress, add_batch_size, add_device, refuse_to_overwrite, require_any_input

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="run directory, checkpoint, or pretrained model")
    add("manifest", metavar="MANIFEST", help="utterances with their texts, as JSON Lines")
    text = 'file for the same utterances with extras.word_times: "TWO:0.1060-0.4364 SIX:...", in seconds'
    add("--output", metavar="FILE", required=True, help=text)
    text = "best path of the CTC head, or the decoder's attention (default: ctc if MODEL has the head)"
    add("--method", choices=("ctc", "attention"), help=text)
    add_batch_size(parser, "utterances encoded")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    require_any_input(args.manifest)
    from asr.data.manifest import write_manifest
    from asr.errors import UserError
    from asr.evaluation.speech import read_references
    from asr.evaluation.word_times import align_utterances
    from asr.transcription.transcribe import load_recognizer

    refuse_to_overwrite(args.manifest, args.output)
    utterances = read_references(args.manifest)
    recognizer = load_recognizer(args.model, args.device, "float32")
    logger.debug("device: %s", recognizer.compute_type)
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        found, problems = align_utterances(
            recognizer, utterances, by=args.method, batch_size=args.batch_size, report=progress.advance
        )
    for message in problems.values():
        logger.error("%s", message)
    if not found:
        raise UserError(f"{args.manifest}: none of its {len(utterances)} utterances could be aligned")
    aligned = [
        item.model_copy(update={"extras": item.extras | {"word_times": found[item.id]}})
        for item in utterances
        if item.id in found
    ]
    write_manifest(args.output, aligned)
    logger.info("%s: %d of %d utterances", args.output, len(aligned), len(utterances))
    print(args.output)
    return 1 if problems else 0
