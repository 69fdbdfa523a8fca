"""`asr evaluate MODEL MANIFEST`: decode or classify a split: error rates with intervals, and speed."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from asr.cli.options import add_decoding_options, add_settings, limit_threads
from asr.decoding.methods import METHODS
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.config import Config
    from asr.data.manifest import Utterance
    from asr.evaluation.speech import DecodedSplit, Normalizer
    from asr.models import LabelModel
    from asr.system.checkpoint import System
    from asr.transcription.families import Family

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="folder of a run or of one of its checkpoints, or a Whisper model: its file, folder or name",
    )
    parser.add_argument("manifest", metavar="MANIFEST", help="utterances with texts or labels, as JSON Lines")
    parser.add_argument(
        "--decoding",
        choices=(*METHODS, "all"),
        action="append",
        help="decoding method; may be repeated; all: each that MODEL offers (default: auto)",
    )
    add_decoding_options(parser, "utterances")
    add_settings(
        parser,
        "any other setting, such as decoding.ctc_weight=0.5 or whisper.language=de; may be repeated; "
        "`--set list` explains those of MODEL",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="write there, for each METHOD of decoding, the hypotheses (METHOD.jsonl), and as scored "
        "(METHOD.trn and reference.jsonl, in which `asr score` finds the same errors); of a classifier "
        "the expected and the found labels (labels.jsonl)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from asr.decoding.search import offered_methods
    from asr.evaluation.speech import (
        choose_ways,
        decode_utterances,
        describe_device,
        make_normalizer,
        read_references,
    )
    from asr.models import LabelModel
    from asr.progress import AudioProgress
    from asr.system.checkpoint import find_model, load_any_system, require_speech
    from asr.text.normalization import normalize_for_training
    from asr.train.preparation import log_unknown_share
    from asr.transcription.families import find_family
    from asr.transcription.knowledge import find_knowledge
    from asr.transcription.recognizer import choose_device
    from asr.transcription.settings import (
        EvaluationSettings,
        load_evaluation_settings,
        print_settings,
    )

    limit_threads(args.threads)
    if (family := find_family(args.model)) is not None:
        return run_ready(args, family)
    if args.set == ["list"]:
        print_settings(EvaluationSettings())
        return 0
    if args.decoding and any(pair.startswith("decoding.method=") for pair in args.set):
        raise UserError("--decoding and --set decoding.method are the same; leave one out")
    any_system = load_any_system(find_model(args.model))
    if isinstance(any_system.model, LabelModel):
        return run_labels(args, cast("System[LabelModel]", any_system))
    system = require_speech(any_system, args.model)
    knowledge = find_knowledge(args.model, args.language_model, args.lexicon, args.decoding, args.set)
    settings = load_evaluation_settings({"decoding.beam": args.beam}, args.set, knowledge)
    methods = args.decoding or [settings.decoding.method]
    utterances = read_references(args.manifest)
    texts = (normalize_for_training(item.text or "", system.config.text) for item in utterances)
    unknown, total = system.tokenizer.count_unknown(texts)
    unknown_share = unknown / max(total, 1)
    log_unknown_share(args.manifest, unknown_share)
    if "all" in methods:
        methods = offered_methods(system.model, bool(knowledge.files))
    ways = choose_ways(system, methods, settings.decoding)
    device = choose_device(args.device)
    logger.info("device: %s", describe_device(device))
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = decode_utterances(
            system,
            utterances,
            ways,
            device=device,
            batch_size=args.batch_size,
            language_model=knowledge.load(system, device),
            report=progress.advance,
        )
    normalizer = make_normalizer(system.config.text)
    about = {
        "model": args.model,
        "manifest": args.manifest,
        "language_model": knowledge.language_model,
        "lexicon": knowledge.lexicon,
        "device": describe_device(device),
        "precision": "float32",
        "unknown_share": unknown_share,
    }
    status = _report(split, utterances, normalizer, about, args.output_dir, as_json=args.json)
    logger.info(
        "texts were normalised by text.scoring: %s", ", ".join(system.config.text.scoring) or "no rule"
    )
    return status


def run_ready(args: argparse.Namespace, family: Family) -> int:
    """Of a ready model, such as Whisper's, which has settings of its own."""
    from asr.config import build_config
    from asr.evaluation.speech import describe_device, read_references, transcribe_utterances
    from asr.progress import AudioProgress
    from asr.transcription.settings import (
        ReadyEvaluationSettings,
        find_options,
        merge_settings,
        print_settings,
    )
    from asr.transcription.transcriber import Request

    if args.set == ["list"]:
        print_settings(ReadyEvaluationSettings())
        return 0
    for name in ("decoding", "language_model", "lexicon"):
        if getattr(args, name):
            raise UserError(
                f"--{name.replace('_', '-')} is for models trained here, and {args.model} was not; remove it"
            )
    overrides = merge_settings({f"{family.section}.beam": args.beam}, args.set)
    settings = build_config(ReadyEvaluationSettings, overrides)
    options = find_options(settings, family)
    assert options is not None
    family.check(args.model, options)
    utterances = read_references(args.manifest)
    recognizer = family.load(
        args.model, args.device, settings.precision, settings.segmentation, settings.checks
    )
    logger.info("device: %s, %s", describe_device(recognizer.device), recognizer.precision)
    request = Request(batch_size=args.batch_size, options=options)
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = transcribe_utterances(recognizer, utterances, request, progress.advance)
    about = {
        "model": args.model,
        "manifest": args.manifest,
        "device": describe_device(recognizer.device),
        "precision": recognizer.precision,
    }
    return _report(split, utterances, settings.scoring.normalize, about, args.output_dir, as_json=args.json)


def _report(
    split: DecodedSplit[Config],
    utterances: Sequence[Utterance],
    normalizer: Normalizer,
    about: dict[str, Any],
    output_dir: str | None,
    *,
    as_json: bool,
) -> int:
    """Print the scores and write the texts. `about`: the model, the data and the device, for JSON."""
    from asr.cli.evaluation_output import describe_ways, print_json, print_table
    from asr.evaluation.speech import score_ways, write_texts

    for message in split.faults.values():
        logger.error("%s", message)
    if len(split.faults) == len(utterances):
        raise UserError(f"{about['manifest']}: none of its {len(utterances)} utterances could be decoded")
    scores = score_ways(split, utterances, normalizer)
    if output_dir is not None:
        write_texts(output_dir, split, utterances, normalizer)
    if as_json:
        print_json({**about, "failed": split.faults, "ways": describe_ways(split, scores)})
    else:
        print_table(split, scores)
    if split.faults:
        logger.info(
            "%d of %d utterances could not be decoded and are not scored", len(split.faults), len(utterances)
        )
    return 1 if split.faults else 0


# --- classifiers --------------------------------------------------------------------------------


def run_labels(args: argparse.Namespace, system: System[LabelModel]) -> int:
    from asr.cli.evaluation_output import print_json, print_labels
    from asr.evaluation.classification import label_utterances, score_split, write_labels
    from asr.evaluation.speech import describe_device, read_utterances
    from asr.models import FrameLabelsModel
    from asr.progress import AudioProgress
    from asr.train.preparation import find_unseen_labels
    from asr.transcription.recognizer import choose_device

    for name in ("decoding", "beam", "language_model", "lexicon", "set"):
        if getattr(args, name):
            raise UserError(
                f"--{name.replace('_', '-')} is about text, but {args.model} is a classifier; remove it"
            )
    utterances, labels = read_utterances(args.manifest), system.config.model.find_labels(system.config.text)
    assert labels is not None
    unseen = find_unseen_labels(args.manifest, utterances, labels, system.tokenizer)
    device = choose_device(args.device)
    logger.info("device: %s", describe_device(device))
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = label_utterances(
            system, labels, utterances, device=device, batch_size=args.batch_size, report=progress.advance
        )
    for message in split.faults.values():
        logger.error("%s", message)
    if not split.said:
        raise UserError(f"{args.manifest}: none of its {len(utterances)} utterances could be labelled")
    score = score_split(split, utterances, system.model.config.label)
    if args.output_dir is not None:
        write_labels(args.output_dir, split)
    if args.json:
        print_json(
            {
                "model": args.model,
                "manifest": args.manifest,
                "device": describe_device(device),
                "failed": split.faults,
                "unseen": unseen,
                "label": system.model.config.label,
                "score": score.to_dict(),
                "real_time_factor": split.real_time_factor,
                "seconds": split.seconds,
                "audio_seconds": split.audio_seconds,
            }
        )
    else:
        print_labels(split, score, "frame " if isinstance(system.model, FrameLabelsModel) else "")
    return 1 if split.faults else 0
