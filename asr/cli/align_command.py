"""`asr align MODEL MANIFEST`: word times of the texts, by alignment under a CTC head or by attention."""

from __future__ import annotations

import argparse
import logging

from asr.cli import AudioProgress, add_batch_size, add_device, refuse_to_overwrite, require_any_input

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder of a run, or of a checkpoint")
    add("manifest", metavar="MANIFEST", help="utterances with their texts, as JSON Lines")
    text = 'the same utterances, with extras.word_times: "TWO:0.1060-0.4364 SIX:...", in seconds'
    add("--output", metavar="FILE", required=True, help=text)
    text = "the best path of the CTC head, or where the decoder's last layer attends (default: ctc)"
    add("--method", choices=("ctc", "attention"), default="ctc", help=text)
    add_batch_size(parser, "utterances encoded")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    require_any_input(args.manifest)
    from asr.data.manifest import write_manifest
    from asr.errors import UserError
    from asr.evaluation.speech import read_references
    from asr.evaluation.word_times import align_utterances
    from asr.files import find_family, find_model
    from asr.models.speech_model import choose_device, describe_device
    from asr.system.run_config import load_system

    refuse_to_overwrite(args.manifest, args.output)
    if find_family(args.model, as_run=True) is not None:
        raise UserError(f"{args.model}: words are aligned by models trained here; give the folder of a run")
    utterances = read_references(args.manifest)
    device, system = choose_device(args.device), load_system(find_model(args.model))
    logger.debug("device: %s", describe_device(device))
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        found, faults = align_utterances(
            system,
            utterances,
            device=device,
            by=args.method,
            batch_size=args.batch_size,
            report=progress.advance,
        )
    for message in faults.values():
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
    return 1 if faults else 0
