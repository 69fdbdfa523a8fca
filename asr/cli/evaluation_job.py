"""`asr evaluate`: a model and how it decodes, its scores, as a table or as one JSON object."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from asr.data.manifest import Utterance
from asr.decoding.decode import offered_methods, resolve_method
from asr.errors import UserError, plural
from asr.evaluation.speech import (
    DecodedSplit,
    EvaluatedSplit,
    Normalizer,
    decode_utterances,
    make_normalizer,
    read_references,
    read_utterances,
    score_setups,
    write_texts,
)
from asr.families import Family, find_family
from asr.files import make_folder
from asr.models.lora_int8 import describe_device
from asr.progress import AudioProgress
from asr.scoring.counting import describe_choice
from asr.scoring.result import Score, without_infinity
from asr.scoring.tables import percent, show_interval, text_table
from asr.system.checkpoint import System, find_model, load_any_system, load_state, require_speech
from asr.system.decoding_resources import find_resources
from asr.text.normalization import normalize_for_training
from asr.train.preparation import log_unknown_share
from asr.transcription.settings import (
    EvaluationSettings,
    ReadyEvaluationSettings,
    ScoringConfig,
    find_options,
    load_settings,
    print_settings,
)
from asr.transcription.transcribe import Recognizer, Request, Transcriber, choose_device

logger = logging.getLogger(__name__)


def evaluate(args: argparse.Namespace) -> int:
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
            from asr.research.classification import Classification

            return run_kind(args, Classification, system)
        if system.config.model.num_texts > 1:
            from asr.research.mixtures import SpeakersAtOnce

            return run_kind(args, SpeakersAtOnce, system)
        utterances, evaluation = prepare_own(args, require_speech(system, args.model))
    transcriber = evaluation.transcriber
    logger.info("device: %s, %s", describe_device(transcriber.device), transcriber.precision)
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = decode_utterances(transcriber, utterances, evaluation.requests, progress.advance)
    status = _report(args, evaluation, split, utterances)
    logger.info("texts were normalized by %s", evaluation.rules)
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
    language = getattr(options, "language", None) or transcriber.language
    is_translated = getattr(options, "task", None) == "translate"

    def find_language(own: str | None) -> str | None:
        return "en" if is_translated else own or language

    def normalizer(text: str, own: str | None) -> str:
        return settings.scoring.normalize(text, find_language(own))

    rules = settings.scoring.describe([find_language(utterance.language) for utterance in utterances])
    evaluation = Evaluation(transcriber, requests, normalizer, rules, "options", {})
    text = family.find_text(args.model)
    if text is not None and settings.scoring == ScoringConfig():  # as the run that fine-tuned it was scored
        rules = f"text.scoring: {', '.join(text.scoring) or 'no rule'}"
        evaluation = replace(evaluation, normalizer=make_normalizer(text), rules=rules)
    return utterances, evaluation


def _report(
    args: argparse.Namespace, evaluation: Evaluation, split: EvaluatedSplit, utterances: Sequence[Utterance]
) -> int:
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
        about |= {"normalization": evaluation.rules, **evaluation.about}
        print_json({**about, "ways": describe_setups(split, scores, evaluation.config)})
    else:
        print_table(split, scores, checks)
        print(f"\ntexts were normalized by {evaluation.rules}")
    if split.faults:
        logger.info(
            "%d of %d utterances could not be decoded; their words count as deleted",
            len(split.faults), len(utterances),
        )  # fmt: skip
    return 1 if split.faults else 0


def run_kind(args: argparse.Namespace, kind: Any, system: Any) -> int:
    """Evaluate a model of a kind that is not decoded by methods."""
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
    about = {"model": args.model, "manifest": args.manifest, "device": describe_device(device)}
    return {**about, **more, "failed": faults}


# --- output -------------------------------------------------------------------------------------


def print_table(split: EvaluatedSplit, scores: dict[str, Score], checks: str) -> None:
    any_score = next(iter(scores.values()))
    any_setup = next(iter(split.setups.values()))
    speakers = f" of {plural(len(set(any_score.speakers)), 'speaker')}" if any_score.speakers else ""
    print(
        f"{plural(len(any_score), 'utterance')}{speakers}, "
        f"{plural(any_score.counts.reference_length, 'word')}, {any_setup.audio_seconds:.1f} s of audio, "
        f"checks: {checks}\n"
    )
    if any_score.num_references > 1:
        print(f"references: {describe_choice(any_score.num_references)}\n")
    interval = "95 % interval"
    head = ("decoding", "WER %", interval, "CER %", interval, "real-time factor", "rejected")
    rows = [_describe_row(name, scores[name], split.setups[name]) for name in scores]
    print("\n".join(text_table([head, *rows])))
    for name, score in scores.items():
        if (count := len(split.setups[name].warnings)) > len(score) / 2:
            logger.warning(
                "%s: the checks rejected %d of %d texts; --set checks=off scores the model without them",
                name, count, len(score),
            )  # fmt: skip


def _describe_row(name: str, score: Score, decoded: DecodedSplit) -> tuple[str, ...]:
    return (
        name,
        percent(score.error_rate),
        show_interval(score.interval, unknown="-"),
        percent(score.character_error_rate),
        show_interval(score.character_interval, unknown="-"),
        f"{decoded.real_time_factor:.4f}",
        str(len(decoded.warnings)),
    )


def describe_setups(split: EvaluatedSplit, scores: dict[str, Score], config: str) -> dict[str, Any]:
    """`config`: the field of a request that its settings are in."""
    return {
        name: {
            "score": score.to_dict(),
            **split.setups[name].describe_time(),
            "decoding": getattr(split.setups[name].request, config).model_dump(mode="json"),
            "rejected": split.setups[name].warnings,
        }
        for name, score in scores.items()
    }


def print_json(record: dict[str, Any]) -> None:
    print(json.dumps(without_infinity(record), ensure_ascii=False, indent=2, allow_nan=False))
