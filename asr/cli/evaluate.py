"""`asr evaluate MODEL MANIFEST`: decode or classify a split: error rates with intervals, and speed."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asr.cli.options import add_decoding_options, add_settings, limit_threads
from asr.decoding.methods import METHOD_NAMES
from asr.errors import UserError

if TYPE_CHECKING:
    import torch

    from asr.data.manifest import Utterance
    from asr.evaluation.classification import Classification
    from asr.evaluation.mixtures import SpeakersAtOnce
    from asr.evaluation.speech import EvaluatedSplit, Normalizer
    from asr.system.checkpoint import System
    from asr.transcription.families import Family
    from asr.transcription.transcriber import Request, Transcriber

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="folder of a run or of one of its checkpoints, or a Whisper model: its file, folder or name",
    )
    parser.add_argument(
        "manifest",
        metavar="MANIFEST",
        help="utterances with texts or labels: JSON Lines, or a folder of shards",
    )
    parser.add_argument(
        "--decoding",
        choices=(*METHOD_NAMES, "all"),
        action="append",
        help="decoding method; may be repeated; all: each that MODEL offers (default: auto)",
    )
    add_decoding_options(parser, "utterances")
    add_settings(
        parser,
        "any other setting, such as decoding.ctc_weight=0.5, checks=off or whisper.language=de; may be "
        "repeated; `--set list` explains those of MODEL",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="write there, for each METHOD of decoding, the hypotheses (METHOD.jsonl), and as scored "
        "(METHOD.trn and reference.jsonl, in which `asr score` finds the same errors; further references are "
        "in reference_2.jsonl and so on); of several speakers "
        "at once reference.stm and hypothesis.stm, for `asr score --align speakers`; of a classifier the "
        "expected and the found labels (labels.jsonl)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from asr.evaluation.classification import Classification
    from asr.evaluation.mixtures import SpeakersAtOnce
    from asr.evaluation.speech import decode_utterances, describe_device
    from asr.files import make_folder
    from asr.progress import AudioProgress
    from asr.system.checkpoint import find_model, load_any_system, require_speech
    from asr.transcription.families import find_family
    from asr.transcription.settings import EvaluationSettings, ReadyEvaluationSettings, print_settings

    limit_threads(args.threads)
    family = find_family(args.model)
    if args.set == ["list"]:
        print_settings(EvaluationSettings() if family is None else ReadyEvaluationSettings())
        return 0
    if args.output_dir is not None:  # before the work
        make_folder(args.output_dir)
    if family is not None:
        utterances, evaluation = prepare_ready(args, family)
    else:
        system = load_any_system(find_model(args.model))
        if system.config.model.find_labels(system.config.text) is not None:
            return run_kind(args, Classification, system)
        if system.config.model.num_texts > 1:
            return run_kind(args, SpeakersAtOnce, system)
        utterances, evaluation = prepare_own(args, require_speech(system, args.model))
    transcriber = evaluation.transcriber
    logger.info("device: %s, %s", describe_device(transcriber.device), transcriber.precision)
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = decode_utterances(transcriber, utterances, evaluation.requests, progress.advance)
    status = _report(args, evaluation, split, utterances)
    logger.info("texts were normalised by %s", evaluation.rules)
    return status


@dataclass
class Evaluation:
    """A model, how it is to decode, and how its texts are normalised."""

    transcriber: Transcriber
    requests: dict[str, Request]
    normalizer: Normalizer
    rules: str
    """That it applies, in words."""
    config: str
    """Field of a request that its settings are in."""
    about: dict[str, Any]
    """More facts, for JSON."""


def prepare_own(args: argparse.Namespace, system: System) -> tuple[list[Utterance], Evaluation]:
    """Prepare a model that was trained here."""
    from asr.decoding.search import offered_methods, resolve_method
    from asr.evaluation.speech import make_normalizer, read_references
    from asr.system.checkpoint import find_model, load_state
    from asr.system.decoding_resources import find_resources
    from asr.text.normalization import normalize_for_training
    from asr.train.preparation import log_unknown_share
    from asr.transcription.recognizer import Recognizer
    from asr.transcription.settings import EvaluationSettings, load_settings
    from asr.transcription.transcriber import Request

    if args.decoding and any(pair.startswith("decoding.method=") for pair in args.set):
        raise UserError("--decoding and --set decoding.method are the same; leave one out")
    folder = find_model(args.model)
    resources = find_resources(folder, args.language_model, args.lexicon, args.decoding, args.set)
    settings = load_settings(EvaluationSettings, {"decoding.beam": args.beam}, args.set, resources)
    utterances = read_references(args.manifest)
    texts = (normalize_for_training(item.text or "", system.config.text) for item in utterances)
    unknown, total = system.tokenizer.count_unknown(texts)
    log_unknown_share(args.manifest, unknown / max(total, 1))
    longest = load_state(folder).get("longest_seconds")
    transcriber = Recognizer(
        system, args.device, settings.precision, settings.segmentation, settings.checks, longest,
        needs_times=False,
    )  # fmt: skip
    language_model = resources.load(system, transcriber.device)
    methods = args.decoding or [settings.decoding.method]
    if "all" in methods:
        methods = offered_methods(system.model, language_model is not None)
    requests = {}
    for method in (resolve_method(system.model, method) for method in methods):
        config = settings.decoding.model_copy(update={"method": method})
        requests[method] = Request(config, language_model, args.batch_size)
    rules = f"text.scoring: {', '.join(system.config.text.scoring) or 'no rule'}"
    normalizer = make_normalizer(system.config.text)
    about = {
        "language_model": resources.language_model,
        "lexicon": resources.lexicon,
        "unknown_share": unknown / max(total, 1),
    }
    return utterances, Evaluation(transcriber, requests, normalizer, rules, "decoding", about)


def prepare_ready(args: argparse.Namespace, family: Family) -> tuple[list[Utterance], Evaluation]:
    """Prepare a ready model, such as Whisper's, which has settings of its own."""
    from asr.evaluation.speech import read_references
    from asr.transcription.settings import ReadyEvaluationSettings, find_options, load_settings
    from asr.transcription.transcriber import Request

    for name in ("decoding", "language_model", "lexicon"):
        if getattr(args, name):
            raise UserError(
                f"--{name.replace('_', '-')} is for models trained here, and {args.model} was not; remove it"
            )
    settings = load_settings(ReadyEvaluationSettings, {f"{family.section}.beam": args.beam}, args.set)
    options = find_options(settings, family)
    assert options is not None
    family.check(args.model, options)
    utterances = read_references(args.manifest)
    transcriber = family.load(
        args.model, args.device, settings.precision, settings.segmentation, settings.checks
    )
    name = "beam" if getattr(options, "beam", 1) > 1 else "greedy"
    requests = {name: Request(batch_size=args.batch_size, options=options)}
    scoring = settings.scoring
    rules = "the rules for English" if scoring.english else f"scoring.rules: {', '.join(scoring.rules)}"
    return utterances, Evaluation(transcriber, requests, scoring.normalize, rules, "options", {})


def _report(
    args: argparse.Namespace, evaluation: Evaluation, split: EvaluatedSplit, utterances: Sequence[Utterance]
) -> int:
    from asr.cli.evaluation_output import describe_setups, print_json, print_table
    from asr.evaluation.speech import score_setups, write_texts

    _report_faults(args.manifest, split.faults, len(utterances), "decoded")
    scores = score_setups(split, utterances, evaluation.normalizer)
    if args.output_dir is not None:
        write_texts(args.output_dir, split, utterances, evaluation.normalizer)
    transcriber = evaluation.transcriber
    checks = transcriber.checks.describe()
    if args.json:
        about = _describe_run(
            args, transcriber.device, split.faults, precision=transcriber.precision, checks=checks
        )
        print_json({**about, **evaluation.about, "ways": describe_setups(split, scores, evaluation.config)})
    else:
        print_table(split, scores, checks)
    if split.faults:
        logger.info(
            "%d of %d utterances could not be decoded and are not scored", len(split.faults), len(utterances)
        )
    return 1 if split.faults else 0


def run_kind(args: argparse.Namespace, kind: type[Classification | SpeakersAtOnce], system: Any) -> int:
    """Evaluate a model of a kind that is not decoded by methods."""
    from asr.cli.evaluation_output import print_json
    from asr.evaluation.speech import describe_device, read_utterances
    from asr.progress import AudioProgress
    from asr.transcription.transcriber import choose_device

    for name in ("decoding", "beam", "language_model", "lexicon", "set"):
        if getattr(args, name):
            raise UserError(f"--{name.replace('_', '-')} {kind.refusal.format(args.model)}; remove it")
    utterances = read_utterances(args.manifest)
    task: Any = kind(system, args.manifest, utterances)
    device = choose_device(args.device)
    logger.info("device: %s", describe_device(device))
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = task.decode(device, args.batch_size, progress.advance)
    _report_faults(args.manifest, split.faults, len(utterances), kind.outcome)
    score = task.score(split)
    if args.output_dir is not None:
        task.write(args.output_dir, split)
    if args.json:
        about = {**_describe_run(args, device, split.faults), **task.about}
        print_json(about | {"score": score.to_dict(), **split.describe_time()})
    else:
        print(task.format(split, score))
    return 1 if split.faults else 0


def _report_faults(manifest: str, faults: Mapping[str, str], num_utterances: int, outcome: str) -> None:
    for message in faults.values():
        logger.error("%s", message)
    if len(faults) == num_utterances:
        raise UserError(f"{manifest}: none of its {num_utterances} utterances could be {outcome}")


def _describe_run(
    args: argparse.Namespace, device: torch.device, faults: Mapping[str, str], **more: Any
) -> dict[str, Any]:
    from asr.evaluation.speech import describe_device

    about = {"model": args.model, "manifest": args.manifest, "device": describe_device(device)}
    return {**about, **more, "failed": faults}
