"""`asr combine HYP HYP HYP ...`: one text for each utterance, of several systems, by votes or scores."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from asr.cli import (
    DECODING_METHODS,
    AudioProgress,
    add_decoding_options,
    add_settings,
    limit_threads,
    refuse_to_overwrite,
)
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.evaluation.ensemble import Member

logger = logging.getLogger(__name__)

# Options of systems that decode a manifest.
ONLY_RUNS = ("decoding", "beam", "language_model", "lexicon", "threads", "set")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The texts of an utterance are aligned, and each word is voted on, as NIST's rover does. Of words "
        "with as many votes, that of the earliest file wins: put the system first that is best on "
        "development data. Words are compared as they stand, with case and punctuation. With --manifest the "
        "systems themselves are given, trained here: each proposes its n-best texts, each scores all of "
        "them, and the text with the highest sum is taken."
    )
    parser.add_argument(
        "hypotheses",
        metavar="HYP",
        nargs="+",
        help="the texts of a system, in any format that `asr score` reads, three files or more; with "
        "--manifest a run or one of its checkpoints, two or more",
    )
    parser.add_argument("--manifest", metavar="FILE", help="utterances for the systems to decode together")
    parser.add_argument(
        "--decoding",
        metavar="METHOD",
        help=f"how each system finds its texts: {DECODING_METHODS} (default: auto)",
    )
    add_decoding_options(parser, "utterances")
    add_settings(
        parser,
        "any other setting of decoding, or precision, for all systems, such as decoding.speeds=[0.9,1.0]; "
        "may be repeated; decoding.nbest is the beam unless given",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="JSON Lines of ids and texts (default: standard output)"
    )


def run(args: argparse.Namespace) -> int:
    if args.manifest is None:
        if given := [f"--{name.replace('_', '-')}" for name in ONLY_RUNS if getattr(args, name)]:
            raise UserError(
                f"{given[0]} is for systems that decode a --manifest; to vote on texts, remove it"
            )
        return _vote(args)
    limit_threads(args.threads)
    return _decode(args)


def _vote(args: argparse.Namespace) -> int:
    from asr.scoring.alignments import load_nist
    from asr.transcripts.readers import split_format

    if args.output is not None:
        for name in args.hypotheses:
            refuse_to_overwrite(split_format(name)[1], args.output)
    combined, notes = load_nist().combine_files(args.hypotheses)
    for note in notes:
        logger.warning("%s", note)
    _write(args, combined)
    return 0


def _decode(args: argparse.Namespace) -> int:
    from asr.evaluation.ensemble import decode_together
    from asr.evaluation.speech import read_utterances

    if args.output is not None:
        refuse_to_overwrite(args.manifest, args.output)
    if len(args.hypotheses) < 2:
        raise UserError(f"{args.hypotheses[0]}: one system has nothing to be combined with; give two or more")
    members = [_load_member(args, name) for name in args.hypotheses]
    utterances = read_utterances(args.manifest)
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        texts, faults = decode_together(members, utterances, args.batch_size, progress.advance)
    for message in faults.values():
        logger.error("%s", message)
    if not texts:
        raise UserError(f"{args.manifest}: none of its {len(utterances)} utterances could be decoded")
    _write(args, {item.id: texts[item.id] for item in utterances if item.id in texts})
    return 1 if faults else 0


def _load_member(args: argparse.Namespace, name: str) -> Member:
    from asr.decoding.decode import check_decoding, resolve_method
    from asr.evaluation.ensemble import Member
    from asr.models.decoders import Decoder
    from asr.system.checkpoint import find_model, find_resources, load_system
    from asr.transcription.arguments import CombinationSettings, load_settings
    from asr.transcription.transcribe import Recognizer

    folder = find_model(name)
    system = load_system(folder)
    resources = find_resources(folder, args.language_model, args.lexicon, args.decoding, args.set)
    options = {"decoding.beam": args.beam, "decoding.method": args.decoding}
    settings = load_settings(CombinationSettings, options, args.set, resources)
    recognizer = Recognizer(system, args.device, settings.precision, needs_times=False)
    config = settings.decoding
    most = config.nbest if config.nbest > 1 else config.beam
    config = config.model_copy(update={"method": resolve_method(system.model, config.method), "nbest": most})
    language_model = resources.load(system, recognizer.device)
    check_decoding(system.model, config, language_model)
    if system.model.ctc_head is None and not isinstance(system.model.decoder, Decoder):
        raise UserError(f"{name}: without a CTC head, its decoder cannot score texts of other systems")
    return Member(recognizer, config, language_model)


def _write(args: argparse.Namespace, texts: Mapping[str, str]) -> None:
    from asr.files import replace_file

    lines = [json.dumps({"id": id, "text": text}, ensure_ascii=False) + "\n" for id, text in texts.items()]
    if args.output is None:
        print(*lines, sep="", end="")
        return
    with replace_file(args.output) as file:
        file.writelines(line.encode() for line in lines)
    logger.info("%s: %d utterances of %d systems", args.output, len(lines), len(args.hypotheses))
    print(args.output)
