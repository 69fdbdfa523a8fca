"""Decode dev and test by every setup that a trained system offers; dev chooses one of them.

A system that has trained on dev too (`decoded_as` of the recipe) decodes test alone, by the setup of another.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from asr.data.manifest import Utterance
from asr.decoding.checks import ChecksConfig
from asr.decoding.hypothesis import DecodingConfig
from asr.decoding.search import offered_methods
from asr.errors import UserError
from asr.evaluation.speech import DecodedSplit, decode_utterances, describe_device, read_references
from asr.recipe.experiment import Experiment
from asr.recipe.origin import describe_origin
from asr.recipe.results import (
    SetupName,
    Texts,
    describe_hypotheses,
    describe_references,
    score_texts,
    write_texts,
)
from asr.recipe.systems import Run, find_all_runs
from asr.recipe.tasks import read_record, write_record
from asr.scoring.counting import Score
from asr.system.checkpoint import System, find_model, load_state, load_system
from asr.system.decoding_resources import build_resources
from asr.train.preparation import read_training_texts
from asr.transcription.recognizer import Recognizer
from asr.transcription.transcriber import Request

logger = logging.getLogger(__name__)

SMOKE_BEAM = 2
# Of the log-probabilities that shallow fusion adds, and of CTC against the decoder; dev chooses.
WEIGHTS = (0.3, 0.6, 1.0)
CTC_WEIGHTS = (0.3, 0.6)
FUSED_METHODS = ("ctc_beam", "joint")  # with language models too; the others would take long


def evaluate_run(experiment: Experiment, run: Run, language_models: Sequence[Path] = ()) -> None:
    """Write SPLIT.SETUP.jsonl for each split and setup, SPLIT.jsonl of the references, and summary.json."""
    recognizer = load_recognizer(experiment, run)
    system = recognizer.system
    other = find_guide(experiment, run)
    rates: dict[str, dict[str, dict[str, float]]] = {"dev": {}, "test": {}}
    if other is None:
        setups, rates["dev"] = _choose_setups(experiment, run, recognizer, language_models)
        # Of equals the cheapest, which is the first.
        chosen = min(rates["dev"], key=lambda name: rates["dev"][name][experiment.recipe.chosen_by])
    else:
        chosen, setup = _read_setup(run, other, system, language_models)
        setups = {chosen: setup}
    split = _Split.read(run, recognizer, "test", run.find_test(experiment.data_dir))
    for name, decoded in split.decode(setups).items():
        rates["test"][name] = split.keep(name, decoded)
    state = load_state(find_model(run.folder))
    summary = {
        "name": run.name,
        "system": run.system,
        "seed": run.seed,
        "is_fold": run.conf.fold is not None,
        "smoke": experiment.smoke,
        "decoding": chosen,
        "decoding_config": setups[chosen].decoding.model_dump(mode="json"),
        "checks": recognizer.checks.describe(),
        "decoding_chosen_for": run.name if other is None else other.name,
        "parameters": sum(parameter.numel() for parameter in system.model.parameters()),
        "guided_attention": system.model.config.guided_attention is not None,
        "real_time_factor": rates["test"][chosen]["real_time_factor"],
        "ways": rates,
        "training": {
            "updates": state["step"],
            "seconds": state["seconds"],
            "audio_hours": state["audio_seconds"] / 3600,
            **read_record(run.folder / ".train.done").get("origin", {}),
            "commit": state["commit"],
        },
        "evaluation": describe_origin(experiment) | {"device": describe_device(recognizer.device)},
    }
    write_record(run.evaluation_dir / "summary.json", summary)


def load_recognizer(experiment: Experiment, run: Run) -> Recognizer:
    """Load the model of a run, to decode as users do."""
    longest = load_state(find_model(run.folder)).get("longest_seconds")
    return load_with_checks(experiment, run.folder, longest_seconds=longest)


def load_with_checks(experiment: Experiment, folder: Path, **options: Any) -> Recognizer:
    """Load the model of a folder; checks are on or off as the recipe says."""
    checks = ChecksConfig() if experiment.recipe.checks else ChecksConfig.off()
    return Recognizer(load_system(find_model(folder)), checks=checks, needs_times=False, **options)


def find_guide(experiment: Experiment, run: Run) -> Run | None:
    """Find the run whose dev results choose the decoding of `run`, if its own would mean nothing."""
    guide = experiment.recipe.decoded_as.get(run.system)
    if guide is None:
        return None
    for other in find_all_runs(experiment):
        if other.system == guide and other.seed == run.seed:
            return other
    raise UserError(
        f"{experiment.recipe.path}: decoded_as names {guide}, but there is no such system of seed {run.seed}"
    )


def _read_setup(run: Run, other: Run, system: System, language_models: Sequence[Path]) -> tuple[str, Request]:
    """Read the setup that dev chose for the other; language models are made of the texts of `run`."""
    summary = read_record(other.evaluation_dir / "summary.json")
    if not summary:
        raise UserError(
            f"{run.name} has trained on dev, so it is decoded by the setup that dev chooses for "
            f"{other.name}, which has not been evaluated; add --only {other.system}"
        )
    chosen = str(summary["decoding"])
    source = SetupName.parse(chosen).language_model
    known = build_resources(system, list(read_training_texts(run.config)), language_models) if source else {}
    if source and source not in known:
        raise UserError(f"{run.name} is to be decoded like {other.name}, with {source}, which is not there")
    config = DecodingConfig.model_validate_json(json.dumps(summary["decoding_config"]))
    return chosen, Request(config, known[source] if source else None)


def _choose_setups(
    experiment: Experiment, run: Run, recognizer: Recognizer, language_models: Sequence[Path]
) -> tuple[dict[str, Request], dict[str, dict[str, float]]]:
    """All that the system offers, each with the weights that are best on dev, and their rates there."""
    split = _Split.read(run, recognizer, "dev", Path(run.config.data.dev))
    planned = _plan_setups(experiment, run, recognizer.system, language_models)
    setups, rates = _choose_weights(split, planned, experiment.recipe.chosen_by)
    if experiment.recipe.speeds:
        at_speeds = {
            str(replace(SetupName.parse(name), at_speeds=True)): vary(
                [setup], "speeds", [experiment.recipe.speeds]
            )
            for name, setup in setups.items()
        }
        more_setups, more_rates = _choose_weights(split, at_speeds, experiment.recipe.chosen_by)
        setups, rates = setups | more_setups, rates | more_rates
    return setups, rates


def find_best(scores: Sequence[Score], chosen_by: Literal["wer", "cer"]) -> int:
    """The score with the lowest rate; of equals the first."""
    rates = [score.error_rate if chosen_by == "wer" else score.character_error_rate for score in scores]
    return rates.index(min(rates))


def _choose_weights(
    split: _Split, candidates: Mapping[str, Sequence[Request]], chosen_by: Literal["wer", "cer"]
) -> tuple[dict[str, Request], dict[str, dict[str, float]]]:
    """Choose the setup with the fewest errors for each name and write its texts; setups and their rates."""
    setups, rates = {}, {}
    decoded = split.decode(
        {f"{name} {index}": one for name, own in candidates.items() for index, one in enumerate(own)}
    )
    for name, own in candidates.items():
        found = [decoded[f"{name} {index}"] for index in range(len(own))]
        best = find_best([split.score(one) for one in found], chosen_by)
        setups[name], rates[name] = own[best], split.keep(name, found[best])
    return setups, rates


def _plan_setups(
    experiment: Experiment, run: Run, system: System, language_models: Sequence[Path]
) -> dict[str, list[Request]]:
    """Plan setups by name, the cheapest first. Shallow fusion has several weights for dev to choose from."""
    config = DecodingConfig(beam=SMOKE_BEAM) if experiment.smoke else DecodingConfig()
    methods = offered_methods(system.model)
    setups = {name: [Request(config.model_copy(update={"method": name}))] for name in methods}
    if experiment.recipe.text_fusion:
        if "joint" in setups:
            setups["joint"] = vary(setups["joint"], "ctc_weight", CTC_WEIGHTS)
        texts = list(read_training_texts(run.config))
        for source, model in build_resources(system, texts, language_models).items():
            for method in FUSED_METHODS:
                if method in methods:
                    fused = [replace(setup, language_model=model) for setup in setups[method]]
                    setups[str(SetupName(method, source))] = vary(fused, "language_model_weight", WEIGHTS)
    return setups


def vary(requests: Sequence[Request], key: str, values: Sequence[object]) -> list[Request]:
    """Each request with each value of a setting of decoding."""
    return [
        replace(request, decoding=request.decoding.model_copy(update={key: value}))
        for request in requests
        for value in values
    ]


def decode_manifest(
    recognizer: Recognizer, manifest: Path, utterances: Sequence[Utterance], requests: Mapping[str, Request]
) -> dict[str, DecodedSplit]:
    """Decode the utterances by all setups; they are encoded once. A file that cannot be read is an error."""
    split = decode_utterances(recognizer, utterances, requests)
    if split.faults:
        name, fault = next(iter(split.faults.items()))
        count = len(split.faults)
        raise UserError(
            f"{manifest}: {count} utterances cannot be read, so nothing is scored; {name}: {fault}"
        )
    return split.setups


@dataclass(frozen=True)
class _Split:
    """Utterances and their references, as they are scored."""

    run: Run
    recognizer: Recognizer
    name: str
    manifest: Path
    utterances: list[Utterance]
    references: Texts

    @classmethod
    def read(cls, run: Run, recognizer: Recognizer, name: str, manifest: Path) -> _Split:
        utterances = read_references(manifest)
        logger.info("%s: %d utterances of %s", run.name, len(utterances), manifest)
        references = describe_references(utterances, recognizer.system.config.text)
        write_texts(run.evaluation_dir / f"{name}.jsonl", references)
        return cls(run, recognizer, name, manifest, utterances, references)

    def decode(self, requests: Mapping[str, Request]) -> dict[str, DecodedSplit]:
        return decode_manifest(self.recognizer, self.manifest, self.utterances, requests)

    def score(self, decoded: DecodedSplit) -> Score:
        return score_texts(self.references, self._texts(decoded))

    def keep(self, setup: str, decoded: DecodedSplit) -> dict[str, float]:
        """Write the texts; return WER, CER, speed, and how many texts the checks rejected."""
        write_texts(self.run.evaluation_dir / f"{self.name}.{setup}.jsonl", self._texts(decoded))
        found = self.score(decoded)
        return {
            "wer": found.error_rate,
            "cer": found.character_error_rate,
            "real_time_factor": decoded.real_time_factor,
            "language_model_weight": decoded.request.decoding.language_model_weight,
            "rejected": len(decoded.warnings),
        }

    def _texts(self, decoded: DecodedSplit) -> Texts:
        return describe_hypotheses(decoded.texts, self.recognizer.system.config.text)
