"""`asr evaluate`: a model and how it decodes, its scores, as a table or as one JSON object."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Mapping
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
from asr.scoring.counting import BASIC_RULES, describe_choice
from asr.scoring.result import Score, tabulate, text_table, without_infinity
from asr.system.run_config import (
    System,
    find_model,
    find_resources,
    load_any_system,
    load_state,
    require_speech,
)
from asr.text.normalization import TextConfig, normalize, normalize_english
from asr.train.preparation import log_unknown_share
from asr.transcription.arguments import (
    EvaluationSettings,
    ReadyEvaluationSettings,
    find_options,
    load_settings,
    print_settings,
)
from asr.transcription.transcribe import Recognizer, Request, Transcriber

logger = logging.getLogger(__name__)

Prepared = tuple[list[Utterance], Transcriber, dict[str, Request], tuple[Normalizer, str], dict[str, Any]]
"""Utterances, the model, how it decodes, the normalizer and its rules in words, more facts for JSON."""


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
    utterances, model, requests, (normalizer, rules), about = own
    logger.info("device: %s, %s", describe_device(model.device), model.precision)
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = decode_utterances(model, utterances, requests, progress.advance)
    _report_faults(args.manifest, split.faults, len(utterances))
    scores = score_setups(split, utterances, normalizer)
    if args.output_dir is not None:
        write_texts(args.output_dir, split, utterances, normalizer)
    if args.json:
        about |= {"precision": model.precision, "checks": model.checks.describe(), "normalization": rules}
        ways = {
            name: {
                "score": scores[name].to_dict(),
                **setup.describe_time(),
                "decoding": (setup.request.options or setup.request.decoding).model_dump(mode="json"),
                "rejected": setup.warnings,
            }
            for name, setup in split.setups.items()
        }
        _print_json(args, model.device, split.faults, about | {"ways": ways})
    else:
        print_table(split, scores, model.checks.describe())
        print(f"\ntexts were normalized by {rules}")
    return 1 if split.faults else 0


def prepare_native(args: argparse.Namespace, system: System) -> Prepared:
    folder, text = find_model(args.model), system.config.text
    resources = find_resources(folder, args.language_model, args.lexicon, args.decoding, args.set)
    settings = load_settings(EvaluationSettings, {"decoding.beam": args.beam}, args.set, resources)
    utterances = read_references(args.manifest)
    unknown, total = system.tokenizer.count_unknown(
        normalize(item.text or "", text.training) for item in utterances
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
    about["unknown_share"] = unknown / max(total, 1)
    return utterances, transcriber, requests, _rules_of_run(text), about


def _rules_of_run(text: TextConfig) -> tuple[Normalizer, str]:
    return make_normalizer(text), f"text.scoring: {', '.join(text.scoring) or 'no rule'}"


def prepare_family(args: argparse.Namespace, family: Family) -> Prepared:
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
    if text is not None:  # as the run that fine-tuned it was scored
        return utterances, transcriber, requests, _rules_of_run(text), {}
    language = getattr(options, "language", None) or transcriber.language

    def find_language(own: str | None) -> str | None:
        return "en" if getattr(options, "task", None) == "translate" else own or language

    def normalize_by_language(text: str, own: str | None) -> str:
        return normalize_english(text) if is_english(find_language(own)) else normalize(text, ANY_LANGUAGE)

    count, rules = sum(is_english(find_language(one.language)) for one in utterances), "the rules for English"
    if count < len(utterances):
        english = f"{rules} in {count} of {len(utterances)} utterances, else " if count else ""
        rules = f"{english}{', '.join(ANY_LANGUAGE)}"
    return utterances, transcriber, requests, (normalize_by_language, rules), {}


# Rules for the texts of a ready model in any language, which has no rules of a run; English has its own.
ANY_LANGUAGE = tuple(rule for rule in BASIC_RULES if rule != "strip_brackets")


def is_english(language: str | None) -> bool:
    return re.split("[-_]", (language or "").lower())[0] in ("en", "eng", "english")


def evaluate_kind(args: argparse.Namespace, kind: Any, system: Any) -> int:
    """Evaluate a model of a kind that is not decoded by methods."""
    utterances = read_utterances(args.manifest)
    task: Any = kind(system, args.manifest, utterances)
    device = choose_device(args.device)
    logger.info("device: %s", describe_device(device))
    with AudioProgress(sum(utterance.duration for utterance in utterances)) as progress:
        split = task.decode(device, args.batch_size, progress.advance)
    _report_faults(args.manifest, split.faults, len(utterances))
    score = task.score(split)
    if args.output_dir is not None:
        task.write(args.output_dir, split)
    if args.json:
        about = task.about | {"score": score.to_dict(), **split.describe_time()}
        _print_json(args, device, split.faults, about)
    else:
        print(task.format(split, score))
    return 1 if split.faults else 0


def _report_faults(manifest: str, faults: Mapping[str, str], num_utterances: int) -> None:
    for message in faults.values():
        logger.error("%s", message)
    if len(faults) == num_utterances:
        raise UserError(f"{manifest}: none of its {num_utterances} utterances could be decoded")


def _print_json(
    args: argparse.Namespace, device: torch.device, faults: Mapping[str, str], found: dict[str, Any]
) -> None:
    record = {"model": args.model, "manifest": args.manifest, "device": describe_device(device)}
    record |= {"failed": faults, **found}
    print(json.dumps(without_infinity(record), ensure_ascii=False, indent=2, allow_nan=False))


def print_table(split: EvaluatedSplit, scores: dict[str, Score], checks: str) -> None:
    any_score, any_setup = next(iter(scores.values())), next(iter(split.setups.values()))
    speakers = f"{plural(len(set(any_score.speakers)), 'speaker')}, " if any_score.speakers else ""
    print(f"{speakers}{any_setup.audio_seconds:.1f} s of audio, checks: {checks}\n")
    if any_score.num_references > 1:
        print(f"references: {describe_choice(any_score.num_references)}\n")
    headings, *rows = tabulate(("decoding",), [((name,), score) for name, score in scores.items()])
    for row, setup in zip(rows, split.setups.values(), strict=True):
        row += [f"{setup.real_time_factor:.4f}", str(len(setup.warnings))]
    print("\n".join(text_table([[*headings, "real-time factor", "rejected"], *rows])))
