"""Decode dev and test by every setup that a trained system offers; dev chooses one of them."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from asr.data.manifest import Utterance
from asr.decoding.checks import ChecksConfig
from asr.decoding.decode import offered_methods
from asr.decoding.hypothesis import DecodingConfig
from asr.errors import UserError
from asr.evaluation.speech import DecodedSplit, decode_utterances, read_references
from asr.models.lora_int8 import describe_device
from asr.recipe.experiment import Experiment, read_record
from asr.recipe.results import (
    AT_SPEEDS,
    Texts,
    describe_hypotheses,
    describe_references,
    find_language_model,
    score_texts,
    setup_name,
    write_texts,
)
from asr.recipe.systems import Run
from asr.scoring.result import Score
from asr.system.checkpoint import System, find_model, load_state, load_system, versions
from asr.system.shipping import build_resources, read_training_texts
from asr.transcription.transcribe import Recognizer, Request

logger = logging.getLogger(__name__)

SMOKE_BEAM = 2
# Of the log-probabilities that shallow fusion adds, and of CTC against the decoder; dev chooses.
WEIGHTS = (0.3, 0.6, 1.0)
CTC_WEIGHTS = (0.3, 0.6)
FUSED_METHODS = ("ctc_beam", "joint")  # with language models too; the others would take long


def evaluate_run(experiment: Experiment, run: Run, language_models: Sequence[Path] = ()) -> dict[str, object]:
    """Write SPLIT.SETUP.jsonl for each split and setup, SPLIT.jsonl of the references; return the summary."""
    state = load_state(find_model(run.folder))
    recognizer = load_recognizer(experiment, run.folder, longest_seconds=state.get("longest_seconds"))
    system = recognizer.system
    split = Split.read(recognizer, Path(run.config.data.dev), run.evaluation_dir, "dev")
    setups = _choose_setups(experiment, run, split, language_models)
    dev = {name: split.keep(name, decoded) for name, decoded in setups.items()}
    # Of equals the cheapest, which is the first.
    chosen = min(dev, key=lambda name: dev[name][experiment.recipe.chosen_by])
    requests = {name: decoded.request for name, decoded in setups.items()}
    split = Split.read(recognizer, experiment.data_dir / "test.jsonl", run.evaluation_dir, "test")
    test = {name: split.keep(name, decoded) for name, decoded in split.decode(requests).items()}
    return {
        "name": run.name,
        "system": run.system,
        "variant": run.conf.variant or run.system,
        "left_out": run.conf.left_out,
        "seed": run.seed,
        "decoding": chosen,
        "decoding_config": requests[chosen].decoding.model_dump(mode="json"),
        "checks": recognizer.checks.describe(),
        "language_model": find_language_model(chosen),
        "parameters": sum(parameter.numel() for parameter in system.model.parameters()),
        "guided_attention": system.model.config.guided_attention is not None,
        "real_time_factor": test[chosen]["real_time_factor"],
        "ways": {"dev": dev, "test": test},
        "training": {
            "updates": state["step"],
            "seconds": state["seconds"],
            "audio_hours": state["audio_seconds"] / 3600,
            **read_record(run.record_path).get("origin", {}),
            "commit": state["commit"],
        },
        "evaluation": describe_origin(experiment) | {"device": describe_device(recognizer.device)},
    }


def load_recognizer(experiment: Experiment, folder: Path, **options: Any) -> Recognizer:
    """Load the model of a run, to decode as users do; checks are on or off as the recipe says."""
    checks = ChecksConfig() if experiment.recipe.checks else ChecksConfig.off()
    return Recognizer(load_system(find_model(folder)), checks=checks, needs_times=False, **options)


def read_decoding(summary: Mapping[str, Any]) -> DecodingConfig:
    """Read how a run is decoded in the setup that was chosen."""
    return DecodingConfig.model_validate_json(json.dumps(summary["decoding_config"]))


# --- what dev chooses from ----------------------------------------------------------------------


def _choose_setups(
    experiment: Experiment, run: Run, split: Split, language_models: Sequence[Path]
) -> dict[str, DecodedSplit]:
    """Decode dev by all that the system offers; of each the weights that do best there, then its speeds."""
    chosen_by, speeds = experiment.recipe.chosen_by, experiment.recipe.speeds
    planned = _plan_setups(experiment, run, split.recognizer.system, language_models)
    chosen = _choose_weights(split, planned, chosen_by)
    if not speeds:
        return chosen
    at_speeds = {
        name + AT_SPEEDS: vary([decoded.request], "speeds", [speeds]) for name, decoded in chosen.items()
    }
    return chosen | _choose_weights(split, at_speeds, chosen_by)


def _choose_weights(
    split: Split, candidates: Mapping[str, Sequence[Request]], chosen_by: Literal["wer", "cer"]
) -> dict[str, DecodedSplit]:
    """Choose for each name the request with the fewest errors."""
    decoded = split.decode(
        {f"{name} {index}": one for name, own in candidates.items() for index, one in enumerate(own)}
    )
    chosen = {}
    for name, own in candidates.items():
        found = [decoded[f"{name} {index}"] for index in range(len(own))]
        chosen[name] = found[find_best([split.score(one) for one in found], chosen_by)]
    return chosen


def find_best(scores: Sequence[Score], chosen_by: Literal["wer", "cer"]) -> int:
    """The score with the lowest rate; of equals the first."""
    rates = [score.error_rate if chosen_by == "wer" else score.character_error_rate for score in scores]
    return rates.index(min(rates))


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
                    setups[f"{method}+{source}"] = vary(fused, "language_model_weight", WEIGHTS)
    return setups


def vary(requests: Sequence[Request], key: str, values: Sequence[object]) -> list[Request]:
    """Each request with each value of a setting of decoding."""
    return [
        replace(request, decoding=request.decoding.model_copy(update={key: value}))
        for request in requests
        for value in values
    ]


# --- a split ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Utterances to decode, and their references as they are scored."""

    recognizer: Recognizer
    manifest: Path
    folder: Path
    """Where the texts go."""
    name: str
    utterances: list[Utterance]
    references: Texts

    @classmethod
    def read(cls, recognizer: Recognizer, manifest: Path, folder: Path, name: str) -> Split:
        """Read the manifest, and write its references."""
        utterances = read_references(manifest)
        references = describe_references(utterances, recognizer.system.config.text)
        write_texts(folder / f"{name}.jsonl", references)
        return cls(recognizer, manifest, folder, name, utterances, references)

    def decode(self, requests: Mapping[str, Request]) -> dict[str, DecodedSplit]:
        """Decode by all setups; utterances are encoded once. A file that cannot be read is an error."""
        logger.info("%s: %d utterances of %s", self.folder.parent.name, len(self.utterances), self.manifest)
        found = decode_utterances(self.recognizer, self.utterances, requests)
        if found.faults:
            name, fault = next(iter(found.faults.items()))
            raise UserError(
                f"{self.manifest}: {len(found.faults)} utterances cannot be read, so nothing is scored; "
                f"{name}: {fault}"
            )
        return found.setups

    def score(self, decoded: DecodedSplit) -> Score:
        return score_texts(self.references, self.describe(decoded))

    def keep(self, setup: str, decoded: DecodedSplit) -> dict[str, float]:
        """Write the texts; return WER, CER, speed, and how many texts the checks rejected."""
        write_texts(self.folder / f"{setup_name(self.name, setup)}.jsonl", self.describe(decoded))
        found = self.score(decoded)
        return {
            "wer": found.error_rate,
            "cer": found.character_error_rate,
            "real_time_factor": decoded.real_time_factor,
            "language_model_weight": decoded.request.decoding.language_model_weight,
            "rejected": len(decoded.warnings),
        }

    def describe(self, decoded: DecodedSplit) -> Texts:
        """Describe the texts as they are scored."""
        return describe_hypotheses(decoded.texts, self.recognizer.system.config.text)


# --- how a result came about --------------------------------------------------------------------


def describe_origin(experiment: Experiment) -> dict[str, str]:
    """Describe command, versions and machine. Names of folders do not matter, and are private."""
    return {
        "command": experiment.command,
        **versions(),
        "numpy": numpy.__version__,
        "machine": describe_machine(),
    }


def describe_machine() -> str:
    """Name the GPU, if there is one, and the processor with the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor = f"{_processor()}, {cores} cores"
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {processor}"
    return processor


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
