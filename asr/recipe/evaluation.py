"""Decode dev and test with every decoding setup of a system; dev chooses one."""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy
import torch

from asr.decoding.decode import offered_methods
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig, FusionModel
from asr.errors import UserError
from asr.evaluation.speech import decode_utterances, make_normalizer, read_references, score_setups
from asr.families import find_model
from asr.language_models.fusion import ShallowFusion
from asr.language_models.ngram import (
    Arpa,
    WordList,
    build_ngram_model,
    collect_words,
    estimate_ngrams,
    token_vocabulary,
)
from asr.models.precision import describe_device, limit_kernel_cache
from asr.recipe.definition import Study
from asr.recipe.experiment import Experiment, PlannedRun
from asr.recipe.scores import References, Texts, write_table
from asr.recipe.steps import read_record
from asr.system.checkpoint import versions
from asr.system.decoding_resources import load_language_model
from asr.system.system import System, load_state, load_system
from asr.text.normalization import TextConfig, normalize
from asr.train.training_data import read_training_texts
from asr.transcription.transcribe import Recognizer, Request

logger = logging.getLogger(__name__)

AT_SPEEDS = "+speeds"  # suffix of setups that decode each utterance at several speeds
NGRAMS = "ngrams"  # name of the n-gram model of the training texts
ORDER = {"words": 3, "tokens": 6}
SMOKE_BEAM = 2
# Weights of the language model in shallow fusion, and of CTC in joint decoding; dev chooses.
WEIGHTS = (0.3, 0.6, 1.0)
CTC_WEIGHTS = (0.3, 0.6)
# Methods that are tried with language models and with n-grams; more would take too long.
FUSED_METHODS = ("ctc_beam", "joint")
NGRAM_METHODS = (*FUSED_METHODS, "transducer")

Setups = Mapping[str, Sequence[Request]]
"""Decoding setups by name, the cheapest first; the requests of one differ only in weights or speeds."""


@dataclass(frozen=True)
class Decoded:
    """The texts of a split as decoded by one request and normalized for scoring, with their rates."""

    request: Request
    texts: Texts
    rates: dict[str, float]
    """WER, CER, real-time factor, language model weight, and the number of texts that checks rejected."""


def evaluate_run(
    experiment: Experiment, run: PlannedRun, language_models: Sequence[Path] = ()
) -> dict[str, object]:
    """Decode dev with all setups and test with the best of each; write the test table, return the summary."""
    recipe, study, model = experiment.recipe, experiment.study, find_model(run.folder)
    state, system = load_state(model), load_system(model)
    limit_kernel_cache()
    longest = state.get("longest_seconds")
    recognizer = Recognizer(system, checks=ChecksConfig(), longest_seconds=longest, needs_times=False)

    def decode_dev(requests: Mapping[str, Request]) -> dict[str, Decoded]:
        return decode(recognizer, Path(run.config.data.dev), requests)

    dev = choose_requests(decode_dev, plan_setups(experiment, run, system, language_models), recipe.chosen_by)
    if recipe.speeds:
        at_speeds = {n + AT_SPEEDS: vary([one.request], "speeds", [recipe.speeds]) for n, one in dev.items()}
        dev |= choose_requests(decode_dev, at_speeds, recipe.chosen_by)
    chosen = choose_setup(dev, recipe.chosen_by, study.methods if study else ())
    by_chunks = [decode_dev(requests) for requests in plan_chunks(study, recognizer, dev)]
    test_manifest = experiment.data_dir / "test.jsonl"
    test: dict[str, Decoded] = {}
    for view in (dev, *by_chunks):  # each size of chunk needs its own encoding
        requests = {name: one.request for name, one in view.items()}
        test |= decode(recognizer, test_manifest, requests)
    dev = dict(item for view in (dev, *by_chunks) for item in view.items())
    references = describe_references(test_manifest, system.config.text)
    write_table(run.test_table, references, {name: one.texts for name, one in test.items()})
    return {
        "name": run.name,
        "system": run.system,
        "variant": run.conf.variant or run.system,
        "left_out": run.conf.left_out,
        "seed": run.seed,
        "decoding": chosen,
        "decoding_config": dev[chosen].request.decoding.model_dump(mode="json"),
        "checks": recognizer.checks.describe(),
        "parameters": sum(parameter.numel() for parameter in system.model.parameters()),
        "real_time_factor": test[chosen].rates["real_time_factor"],
        "methods": {
            "dev": {name: one.rates for name, one in dev.items()},
            "test": {name: one.rates for name, one in test.items()},
        },
        "training": {
            "updates": state["step"],
            "seconds": state["seconds"],
            "audio_hours": state["audio_seconds"] / 3600,
            **read_record(run.record_path).get("origin", {}),
            "commit": state["commit"],
        },
        "evaluation": describe_origin(experiment) | {"device": describe_device(recognizer.device)},
    }


# --- setups -------------------------------------------------------------------------------------


def plan_setups(
    experiment: Experiment, run: PlannedRun, system: System, language_models: Sequence[Path]
) -> Setups:
    """Plan all setups of the system; joint decoding and shallow fusion are tried with several weights."""
    config = DecodingConfig(beam=SMOKE_BEAM) if experiment.smoke else DecodingConfig()
    methods = offered_methods(system.model)
    setups = {name: [Request(config.model_copy(update={"method": name}))] for name in methods}
    if "transducer" in setups:
        greedy = vary(setups["transducer"], "beam", [1])
        setups = {"transducer_greedy": greedy, **setups}
    if not experiment.recipe.text_fusion:
        return setups
    if "joint" in setups:
        setups["joint"] = vary(setups["joint"], "ctc_weight", CTC_WEIGHTS)
    texts = list(read_training_texts(run.config))
    for source, model in build_resources(system, texts, language_models).items():
        fused_methods = NGRAM_METHODS if source == NGRAMS else FUSED_METHODS
        for method in (own for own in fused_methods if own in methods):
            fused = [replace(setup, language_model=model) for setup in setups[method]]
            setups[f"{method}+{source}"] = vary(fused, "language_model_weight", WEIGHTS)
    return setups


def plan_chunks(
    study: Study | None, recognizer: Recognizer, dev: Mapping[str, Decoded]
) -> Iterator[dict[str, Request]]:
    """Plan the setups that dev chose, as live speech is decoded, all of one size of chunk at once."""
    if study is None or getattr(recognizer.system.model.encoder, "chunk", None) is None:
        return
    for size in study.chunk_steps:
        delay = round(1000 * size * recognizer.decoder.frame_times.seconds_per_step)
        requests = {name: one.request for name, one in dev.items() if not name.endswith(AT_SPEEDS)}
        yield {
            f"{name}+{delay}ms": vary([request], "chunk_steps", [size])[0]
            for name, request in requests.items()
        }


def vary(requests: Sequence[Request], key: str, values: Sequence[object]) -> list[Request]:
    """Combine each request with each value of a decoding setting."""
    return [
        replace(request, decoding=request.decoding.model_copy(update={key: value}))
        for request in requests
        for value in values
    ]


def choose_requests(
    decode: Callable[[Mapping[str, Request]], Mapping[str, Decoded]],
    setups: Setups,
    chosen_by: Literal["wer", "cer"],
) -> dict[str, Decoded]:
    """Decode all requests at once; keep the best one of each setup, the first among equals."""
    decoded = decode({f"{name} {n}": one for name, own in setups.items() for n, one in enumerate(own)})
    options = {name: [decoded[f"{name} {n}"] for n in range(len(own))] for name, own in setups.items()}
    return {name: min(own, key=lambda one: one.rates[chosen_by]) for name, own in options.items()}


def choose_setup(dev: Mapping[str, Decoded], chosen_by: Literal["wer", "cer"], methods: Sequence[str]) -> str:
    """Choose the first of the given methods that the system offers, or without any the best on dev."""
    if not methods:
        return min(
            dev, key=lambda name: dev[name].rates[chosen_by]
        )  # among equals the first, which is the cheapest
    offered = [name for name in methods if name in dev]
    if not offered:
        raise UserError(f"methods = {', '.join(methods)}: the system offers {', '.join(dev)}")
    return offered[0]


# --- a split ------------------------------------------------------------------------------------


def decode(recognizer: Recognizer, manifest: Path, requests: Mapping[str, Request]) -> dict[str, Decoded]:
    """Decode all requests, encoding each utterance once. A file that cannot be read is an error."""
    utterances = read_references(manifest)
    logger.info("%s: %d utterances", manifest, len(utterances))
    evaluated = decode_utterances(recognizer, utterances, requests)
    if evaluated.problems:
        name, problem = next(iter(evaluated.problems.items()))
        raise UserError(
            f"{manifest}: {len(evaluated.problems)} utterances cannot be read, so nothing is scored; "
            f"{name}: {problem}"
        )
    rules = recognizer.system.config.text
    scores = score_setups(evaluated, utterances, make_normalizer(rules))
    found = {}
    for name, decoded in evaluated.setups.items():
        texts = {id: normalize(text, rules.scoring) for id, text in decoded.texts.items()}
        rates = {
            "wer": scores[name].error_rate,
            "cer": scores[name].cer,
            "real_time_factor": decoded.real_time_factor,
            "language_model_weight": decoded.request.decoding.language_model_weight,
            "rejected": len(decoded.warnings),
        }
        found[name] = Decoded(decoded.request, texts, rates)
    return found


def describe_references(manifest: str | Path, rules: TextConfig) -> References:
    """Read the references, normalized for scoring, with their speakers."""
    references: References = {}
    for utterance in read_references(manifest):
        fields = {"text": normalize(utterance.text or "", rules.scoring)}
        if utterance.speaker is not None:
            fields["speaker"] = utterance.speaker
        for number, other in enumerate(utterance.more_references, start=2):
            fields[f"reference_{number}"] = normalize(other, rules.scoring)
        references[utterance.id] = fields
    return references


# --- language models ----------------------------------------------------------------------------


def build_resources(
    system: System, texts: Sequence[str], language_models: Sequence[Path]
) -> dict[str, FusionModel]:
    """Build n-grams of the texts and load language models, by name; add a word list if words have spaces."""
    has_words = system.tokenizer.space_id is not None
    word_list = [WordList(system.tokenizer, collect_words(texts))] if has_words else []
    models = {NGRAMS: build_ngram_model(estimate_arpa(system, texts), system.tokenizer)}
    loaded = {folder.name: load_language_model(folder, system.tokenizer) for folder in language_models}
    return {name: ShallowFusion([model, *word_list]) for name, model in {**models, **loaded}.items()}


def estimate_arpa(system: System, texts: Sequence[str]) -> Arpa:
    """Estimate n-grams of words if the tokenizer has a space token, else of tokens."""
    tokenizer = system.tokenizer
    if tokenizer.space_id is not None:
        return estimate_ngrams([text.split() for text in texts], ORDER["words"], [])
    tokens = token_vocabulary(tokenizer.tokens)
    lines = [[tokens[id] for id in tokenizer.encode(text)] for text in texts]
    return estimate_ngrams(lines, ORDER["tokens"], tokens)


# --- provenance of a result ----------------------------------------------------------------------


def describe_origin(experiment: Experiment) -> dict[str, str]:
    """Describe command, versions and machine. Folder names are private and left out."""
    return {
        "command": experiment.command,
        **versions(),
        "numpy": numpy.__version__,
        "machine": describe_machine(),
    }


def describe_machine() -> str:
    """Name the GPU, if there is one, and the processor with the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.*)", info.read_text() if info.exists() else "", re.MULTILINE)
    processor = match[1] if match else platform.processor() or platform.machine()
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return f"{gpu}{processor}, {cores} cores"
