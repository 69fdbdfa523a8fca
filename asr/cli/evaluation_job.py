"""`asr evaluate`: load and decode, then print the scores as a table or as one JSON object."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asr.cli import AudioProgress, read_call_options
from asr.data.manifest import Utterance
from asr.decoding.decode import Attempt, offered_methods, resolve_method
from asr.errors import UserError
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
from asr.families import Family, find_family, find_model
from asr.files import make_folder
from asr.models.precision import choose_device, describe_device
from asr.scoring.counting import BASIC_RULES, describe_choice
from asr.scoring.result import Score, tabulate, text_table, without_infinity
from asr.system.decoding_resources import find_resources
from asr.system.system import System, load_any_system, load_state, require_speech
from asr.text.normalization import TextConfig, normalize, normalize_english
from asr.train.run_tokenizer import log_unknown_share
from asr.transcription.arguments import EvaluationSettings, find_options, load_settings, print_settings
from asr.transcription.transcribe import Recognizer, Request

logger = logging.getLogger(__name__)


@dataclass
class Speech:
    """A model, its decoding requests, the utterances, and the normalization of their texts."""

    model: Recognizer
    utterances: list[Utterance]
    requests: dict[str, Request]
    normalizer: Normalizer
    rules: str  # rules of the normalizer, in words
    about: dict[str, Any] = field(default_factory=dict)  # further values for JSON

    def decode(self, _: Any, batch_size: int, report: Callable[[float], None]) -> EvaluatedSplit:
        return decode_utterances(self.model, self.utterances, self.requests, report)

    def score(self, split: EvaluatedSplit) -> dict[str, Score]:
        return score_setups(split, self.utterances, self.normalizer)

    def write(self, folder: str, split: EvaluatedSplit) -> None:
        write_texts(folder, split, self.utterances, self.normalizer)

    def describe(self, split: EvaluatedSplit, scores: dict[str, Score]) -> dict[str, Any]:
        about = {"precision": self.model.precision, "checks": self.model.checks.describe()}
        ways = {
            name: {
                "score": scores[name].to_dict(),
                **setup.describe_time(),
                "decoding": _dump(setup.request),
                "rejected": setup.warnings,
            }
            for name, setup in split.setups.items()
        }
        return about | {"normalization": self.rules, "methods": ways}

    def format(self, split: EvaluatedSplit, scores: dict[str, Score]) -> str:
        any_score, any_setup = next(iter(scores.values())), next(iter(split.setups.values()))
        lines = [f"texts were normalized by {self.rules}"]
        lines += [f"{any_setup.audio_seconds:.1f} s of audio, checks: {self.model.checks.describe()}", ""]
        if any_score.num_references > 1:
            lines += [f"references: {describe_choice(any_score.num_references)}", ""]
        headings, *rows = tabulate(("decoding",), [((name,), score) for name, score in scores.items()])
        for row, setup in zip(rows, split.setups.values(), strict=True):
            row += [f"{setup.real_time_factor:.4f}", str(len(setup.warnings))]
        lines += text_table([[*headings, "RTF", "rejected"], *rows])
        for name, setup in split.setups.items():
            if len(setup.warnings) > len(any_score) / 2:  # otherwise a weak model seems to write nothing
                message = "%s: the checks rejected %d of %d texts; --set checks=off scores without them"
                logger.warning(message, name, len(setup.warnings), len(any_score))
        return "\n".join(lines)


def _dump(request: Request) -> dict[str, Any]:
    own = {} if request.options is None else request.options.model_dump(mode="json")
    return request.decoding.model_dump(mode="json") | own


class DetectedSpeech(Speech):
    """Speech without a given language: the one detected in most utterances chooses the rules."""

    def decode(self, _: Any, batch_size: int, report: Callable[[float], None]) -> EvaluatedSplit:
        split = super().decode(_, batch_size, report)
        (setup,), unknown = split.setups.values(), [one.id for one in self.utterances if not one.language]
        found = Counter(setup.languages[id] for id in unknown if id in setup.languages)
        for language, count in found.most_common(1):
            self.normalizer, rules = choose_rules(self.utterances, language)
            self.rules = f"{rules}, as {language} was detected in {count} of {len(unknown)} utterances"
        return split


def evaluate(args: argparse.Namespace) -> int:
    device, family = choose_device(args.device), find_family(args.model)
    if args.set == ["list"]:
        print_settings(EvaluationSettings())
        return 0
    if args.output_dir is not None:  # fails before the work, not after it
        make_folder(args.output_dir)
    task = _prepare(args, family)
    logger.debug("device: %s", describe_device(device))
    with AudioProgress(sum(utterance.duration for utterance in task.utterances)) as progress:
        split = task.decode(device, args.batch_size, progress.advance)
    for message in split.problems.values():
        logger.error("%s", message)
    if len(split.problems) == len(task.utterances):
        raise UserError(f"{args.manifest}: none of its {len(task.utterances)} utterances could be decoded")
    if split.problems:
        message = "%s: %d of %d utterances could not be decoded; their words count as deleted"
        logger.error(message, args.manifest, len(split.problems), len(task.utterances))
    score = task.score(split)
    if args.output_dir is not None:
        task.write(args.output_dir, split)
    if args.json:
        record = {"model": args.model, "manifest": args.manifest, "device": describe_device(device)}
        record |= {"failed": split.problems, **task.about, **task.describe(split, score)}
        print(json.dumps(without_infinity(record), ensure_ascii=False, indent=2, allow_nan=False))
    else:
        print(task.format(split, score))
    return 1 if split.problems else 0


def _prepare(args: argparse.Namespace, family: Family | None) -> Any:
    """Return Speech, or a task for a kind of model that has no decoding methods."""
    if family is not None:
        return prepare_speech(args, None, family)
    system: Any = load_any_system(find_model(args.model))
    if system.config.model.find_labels(system.config.text) is not None:
        from asr.research.classification import Classification

        return Classification(system, args.manifest, read_utterances(args.manifest))
    if system.config.model.num_texts > 1:
        from asr.research.mixtures import SpeakersAtOnce

        return SpeakersAtOnce(system, args.manifest, read_utterances(args.manifest))
    return prepare_speech(args, require_speech(system, args.model), None)


def prepare_speech(args: argparse.Namespace, system: System | None, family: Family | None) -> Speech:
    """Prepare a model trained here (`system`), or one that `family` loads."""
    folder = None if system is None else find_model(args.model)
    resources = find_resources(folder, args.language_model, args.words, args.decoding, args.set, family)
    settings = load_settings(EvaluationSettings, read_call_options(args, family), args.set, resources)
    options, utterances = find_options(settings, family), read_references(args.manifest)
    about: dict[str, Any] = {"language_model": resources.language_model, "words": resources.words}
    given = settings.precision, settings.segmentation, settings.checks
    if family is not None:
        model = family.load(args.model, args.device, *given)
    else:
        assert system is not None and folder is not None
        about["unknown_share"] = measure_unknown_share(args.manifest, system, utterances)
        longest = load_state(folder).get("longest_seconds")
        model = Recognizer(system, args.device, *given, longest, needs_times=False)
    language_model = model.load_resources(resources)
    methods = args.decoding or [settings.decoding.method]
    if "all" in methods:
        methods = offered_methods(model.model, language_model is not None)
    requests = {}
    for method in (resolve_method(model.model, method) for method in methods):
        config = settings.decoding.model_copy(update={"method": method})
        name = model.decoder.name_method(Attempt(config))
        requests[name] = Request(config, language_model, args.batch_size, options)
    if model.system.text is not None:  # the scoring rules of its training run
        return Speech(model, utterances, requests, *_rules_of_run(model.system.text), about)
    language = getattr(options, "language", None) or model.language
    if getattr(options, "task", None) == "translate":
        return Speech(model, utterances, requests, lambda text, _: normalize_english(text), ENGLISH, about)
    is_known = language is not None or all(one.language for one in utterances)
    kind = Speech if is_known else DetectedSpeech
    return kind(model, utterances, requests, *choose_rules(utterances, language), about)


def measure_unknown_share(manifest: str, system: System, utterances: Sequence[Utterance]) -> float:
    """Compute and log the share of tokens in all texts that the model does not know."""
    rules = system.config.text.training
    unknown, total = system.tokenizer.count_unknown(normalize(item.text or "", rules) for item in utterances)
    log_unknown_share(manifest, unknown / max(total, 1))
    return unknown / max(total, 1)


def _rules_of_run(text: TextConfig) -> tuple[Normalizer, str]:
    return make_normalizer(text), f"text.scoring: {', '.join(text.scoring) or 'no rule'}"


def choose_rules(utterances: Sequence[Utterance], language: str | None) -> tuple[Normalizer, str]:
    """Choose the normalizer by the language of each utterance, else this one; describe its rules."""

    def normalize_by_language(text: str, own: str | None) -> str:
        return normalize_english(text) if is_english(own or language) else normalize(text, ANY_LANGUAGE)

    count, rules = sum(is_english(one.language or language) for one in utterances), ENGLISH
    if count < len(utterances):
        english = f"{ENGLISH} in {count} of {len(utterances)} utterances, else " if count else ""
        rules = f"{english}{', '.join(ANY_LANGUAGE)}"
    return normalize_by_language, rules


ENGLISH = "the rules for English"
# Rules for the texts of a ready model in any language, which has no rules of a run; English has its own.
ANY_LANGUAGE = tuple(rule for rule in BASIC_RULES if rule != "strip_brackets")


def is_english(language: str | None) -> bool:
    return re.split("[-_]", (language or "").lower())[0] in ("en", "eng", "english")
