"""`asr evaluate`: a model and how it decodes, its scores, as a table or as one JSON object."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from asr.cli import AudioProgress
from asr.data.manifest import Utterance
from asr.decoding.decode import offered_methods, resolve_method
from asr.errors import UserError, plural
from asr.evaluation.speech import (
    EvaluatedSplit,
    Normalizer,
    decode_utterances,
    make_normalizer,
    read_references,
    read_utterances,
    score_setups,
    write_texts,
)
from asr.files import Family, find_family, make_folder
from asr.models.speech_model import choose_device, describe_device
from asr.scoring.counting import describe_choice
from asr.scoring.result import Score, percent, show_interval, text_table, without_infinity
from asr.system.checkpoint import (
    System,
    find_model,
    find_resources,
    load_any_system,
    load_state,
    require_speech,
)
from asr.text.normalization import TextConfig, normalize_for_training
from asr.train.preparation import log_unknown_share
from asr.transcription.arguments import (
    EvaluationSettings,
    ReadyEvaluationSettings,
    ScoringConfig,
    find_options,
    load_settings,
    print_settings,
)
from asr.transcription.transcribe import Recognizer, Request, Transcriber

logger = logging.getLogger(__name__)


@dataclass
class Evaluation:
    """A model, how it decodes which utterances, and how the texts are normalized."""

    utterances: list[Utterance]
    transcriber: Transcriber
    requests: dict[str, Request]
    normalizer: Normalizer
    rules: str
    """Rules of the normalizer, in words."""
    about: dict[str, Any] = field(default_factory=dict)
    """More facts, for JSON."""


def evaluate(args: argparse.Namespace) -> int:
    family = find_family(args.model)
    if args.set == ["list"]:
        print_settings(EvaluationSettings() if family is None else ReadyEvaluationSettings())
        return 0
    if args.output_dir is not None:  # before the work
        make_folder(args.output_dir)
    if family is not None:
        own = prepare_family(args, family)
    else:
        system = load_any_system(find_model(args.model))
        if system.config.model.find_labels(system.config.text) is not None:
            from asr.research.classification import Classification

            return evaluate_kind(args, Classification, system)
        if system.config.model.num_texts > 1:
            from asr.research.mixtures import SpeakersAtOnce

            return evaluate_kind(args, SpeakersAtOnce, system)
        own = prepare_native(args, require_speech(system, args.model))
    model, utterances = own.transcriber, own.utterances
    logger.info("device: %s, %s", describe_device(model.device), model.precision)
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = decode_utterances(model, utterances, own.requests, progress.advance)
    _report_faults(args.manifest, split.faults, len(utterances), "decoded")
    scores = score_setups(split, utterances, own.normalizer)
    if args.output_dir is not None:
        write_texts(args.output_dir, split, utterances, own.normalizer)
    if args.json:
        about = {"precision": model.precision, "checks": model.checks.describe(), "normalization": own.rules}
        setups = {name: _describe_setup(split, name, score) for name, score in scores.items()}
        _print_json(args, model.device, split.faults, about | own.about | {"ways": setups})
    else:
        print_table(split, scores, model.checks.describe())
        print(f"\ntexts were normalized by {own.rules}")
    if split.faults:
        logger.info(
            "%d of %d utterances could not be decoded; their words count as deleted",
            len(split.faults), len(utterances),
        )  # fmt: skip
    logger.info("texts were normalized by %s", own.rules)
    return 1 if split.faults else 0


def prepare_native(args: argparse.Namespace, system: System) -> Evaluation:
    if args.decoding and any(pair.startswith("decoding.method=") for pair in args.set):
        raise UserError("--decoding and --set decoding.method are the same; leave one out")
    folder, text = find_model(args.model), system.config.text
    resources = find_resources(folder, args.language_model, args.lexicon, args.decoding, args.set)
    settings = load_settings(EvaluationSettings, {"decoding.beam": args.beam}, args.set, resources)
    utterances = read_references(args.manifest)
    unknown, total = system.tokenizer.count_unknown(
        normalize_for_training(item.text or "", text) for item in utterances
    )
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
    about: dict[str, Any] = {"language_model": resources.language_model, "lexicon": resources.lexicon}
    about |= {"unknown_share": unknown / max(total, 1)}
    return Evaluation(utterances, transcriber, requests, *_rules_of_run(text), about)


def _rules_of_run(text: TextConfig) -> tuple[Normalizer, str]:
    return make_normalizer(text), f"text.scoring: {', '.join(text.scoring) or 'no rule'}"


def prepare_family(args: argparse.Namespace, family: Family) -> Evaluation:
    """Prepare a model of a family such as Whisper, which has settings of its own."""
    for name in ("decoding", "language_model", "lexicon"):
        if getattr(args, name):
            raise UserError(
                f"--{name.replace('_', '-')} is for models trained here, and {args.model} was not; remove it"
            )
    settings = load_settings(ReadyEvaluationSettings, {f"{family.section}.beam": args.beam}, args.set)
    options = find_options(settings, family)
    utterances = read_references(args.manifest)
    transcriber = family.load(
        args.model, args.device, settings.precision, settings.segmentation, settings.checks
    )
    name = "beam" if getattr(options, "beam", 1) > 1 else "greedy"
    requests = {name: Request(batch_size=args.batch_size, options=options)}
    text = family.find_text(args.model)
    if text is not None and settings.scoring == ScoringConfig():  # as the run that fine-tuned it was scored
        return Evaluation(utterances, transcriber, requests, *_rules_of_run(text))
    language = getattr(options, "language", None) or transcriber.language
    is_translated = getattr(options, "task", None) == "translate"

    def find_language(own: str | None) -> str | None:
        return "en" if is_translated else own or language

    def normalize(text: str, own: str | None) -> str:
        return settings.scoring.normalize(text, find_language(own))

    rules = settings.scoring.describe([find_language(utterance.language) for utterance in utterances])
    return Evaluation(utterances, transcriber, requests, normalize, rules)


def evaluate_kind(args: argparse.Namespace, kind: Any, system: Any) -> int:
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
        about = task.about | {"score": score.to_dict(), **split.describe_time()}
        _print_json(args, device, split.faults, about)
    else:
        print(task.format(split, score))
    return 1 if split.faults else 0


def _report_faults(manifest: str, faults: Mapping[str, str], num_utterances: int, outcome: str) -> None:
    for message in faults.values():
        logger.error("%s", message)
    if len(faults) == num_utterances:
        raise UserError(f"{manifest}: none of its {num_utterances} utterances could be {outcome}")


def _print_json(
    args: argparse.Namespace, device: torch.device, faults: Mapping[str, str], found: dict[str, Any]
) -> None:
    record = {"model": args.model, "manifest": args.manifest, "device": describe_device(device)}
    record |= {"failed": faults, **found}
    print(json.dumps(without_infinity(record), ensure_ascii=False, indent=2, allow_nan=False))


def _describe_setup(split: EvaluatedSplit, name: str, score: Score) -> dict[str, Any]:
    setup = split.setups[name]
    settings = setup.request.options or setup.request.decoding
    return {
        "score": score.to_dict(),
        **setup.describe_time(),
        "decoding": settings.model_dump(mode="json"),
        "rejected": setup.warnings,
    }


def print_table(split: EvaluatedSplit, scores: dict[str, Score], checks: str) -> None:
    any_score, any_setup = next(iter(scores.values())), next(iter(split.setups.values()))
    speakers = f" of {plural(len(set(any_score.speakers)), 'speaker')}" if any_score.speakers else ""
    print(
        f"{plural(len(any_score), 'utterance')}{speakers}, "
        f"{plural(any_score.counts.reference_length, 'word')}, {any_setup.audio_seconds:.1f} s of audio, "
        f"checks: {checks}\n"
    )
    if any_score.num_references > 1:
        print(f"references: {describe_choice(any_score.num_references)}\n")
    interval = "95 % interval"
    rows = [("decoding", "WER %", interval, "CER %", interval, "real-time factor", "rejected")]
    for name, score in scores.items():
        setup = split.setups[name]
        words = percent(score.error_rate), show_interval(score.interval, unknown="-")
        characters = percent(score.character_error_rate), show_interval(score.character_interval, unknown="-")
        rows.append((name, *words, *characters, f"{setup.real_time_factor:.4f}", str(len(setup.warnings))))
    print("\n".join(text_table(rows)))
    for name, score in scores.items():
        if (count := len(split.setups[name].warnings)) > len(score) / 2:
            logger.warning(
                "%s: the checks rejected %d of %d texts; --set checks=off scores the model without them",
                name, count, len(score),
            )  # fmt: skip
