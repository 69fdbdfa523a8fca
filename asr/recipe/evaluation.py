"""What one trained system hears in dev and test, decoded in each way it offers; dev chooses one of them.

A system that has trained on dev too (`decoded_as` of the recipe) hears test alone, in the way of another.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from asr.data.manifest import Utterance, read_manifest
from asr.decoding.fusion import FusionModel
from asr.decoding.search import DecodingConfig, offered_methods
from asr.errors import UserError
from asr.evaluation.speech import Decoded, choose_ways, decode_utterances, describe_device
from asr.recipe.definition import Job
from asr.recipe.knowledge import CTC_WEIGHTS, WEIGHTS, load_knowledge
from asr.recipe.origin import describe_origin
from asr.recipe.results import Texts, score_texts, write_texts
from asr.recipe.systems import Run, find_all_runs
from asr.recipe.tasks import read_record, write_record
from asr.scoring.counting import Score
from asr.system.checkpoint import System, find_model, load_state, load_system
from asr.text.normalization import normalize_for_scoring

logger = logging.getLogger(__name__)

SMOKE_BEAM = 2
WEIGHED_METHODS = ("ctc_beam", "joint")
SPEEDS = "speeds"  # at the end of the name of a way that hears each utterance at several

Key = tuple[str, int]  # the name of a way, and which of its weights


@dataclass(frozen=True)
class Way:
    """Of decoding: its settings, and what is weighed in."""

    config: DecodingConfig
    knowledge: FusionModel | None = None

    def at(self, speeds: tuple[float, ...]) -> Way:
        """The same, where each utterance is heard at these speeds."""
        return replace(self, config=self.config.model_copy(update={"speeds": speeds}))


def evaluate_run(job: Job, run: Run, language_models: Sequence[Path] = ()) -> None:
    """Write SPLIT.WAY.jsonl for each split and way, SPLIT.jsonl of the references, and summary.json."""
    system = load_system(find_model(run.folder))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    other = find_guide(job, run)
    rates: dict[str, dict[str, dict[str, float]]] = {"dev": {}, "test": {}}
    if other is None:
        ways, rates["dev"] = _choose_ways(job, run, system, language_models, device)
        # Of equals the cheapest, which is the first.
        chosen = min(rates["dev"], key=lambda way: rates["dev"][way]["wer"])
    else:
        chosen, way = _read_way(run, other, system, language_models)
        ways = {chosen: way}
    split = _Split.read(run, system, "test", job.data_dir / "test.jsonl")
    decoded = split.decode({(name, 0): way for name, way in ways.items()}, device)
    for name in ways:
        rates["test"][name] = split.keep(name, decoded[name, 0])
    state = load_state(find_model(run.folder))
    summary = {
        "name": run.name,
        "system": run.system,
        "seed": run.seed,
        "smoke": job.smoke,
        "decoding": chosen,
        "decoding_config": ways[chosen].config.model_dump(mode="json"),
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
        "evaluation": describe_origin(job) | {"device": describe_device(device)},
    }
    write_record(run.evaluation_dir / "summary.json", summary)


def find_guide(job: Job, run: Run) -> Run | None:
    """By whose dev results `run` is decoded, if its own would mean nothing."""
    guide = job.recipe.decoded_as.get(run.system)
    if guide is None:
        return None
    for other in find_all_runs(job):
        if other.system == guide and other.seed == run.seed:
            return other
    raise UserError(
        f"{job.recipe.path}: decoded_as names {guide}, but there is no such system of seed {run.seed}"
    )


def _read_way(run: Run, other: Run, system: System, language_models: Sequence[Path]) -> tuple[str, Way]:
    """The way that dev chose for the other; what is weighed in is made of the texts of `run`."""
    summary = read_record(other.evaluation_dir / "summary.json")
    if not summary:
        raise UserError(
            f"{run.name} has trained on dev, so it is decoded in the way that dev chooses for {other.name}, "
            f"which has not been evaluated; add --only {other.system}"
        )
    chosen = str(summary["decoding"])
    sources = [part for part in chosen.split("+")[1:] if part != SPEEDS]
    known = load_knowledge(system, run, language_models) if sources else {}
    if missing := [source for source in sources if source not in known]:
        raise UserError(
            f"{run.name} is to be decoded like {other.name}, with {missing[0]}, which is not there"
        )
    config = DecodingConfig.model_validate_json(json.dumps(summary["decoding_config"]))
    return chosen, Way(config, known[sources[0]] if sources else None)


def _choose_ways(
    job: Job, run: Run, system: System, language_models: Sequence[Path], device: torch.device
) -> tuple[dict[str, Way], dict[str, dict[str, float]]]:
    """All that the system offers, with the settings that dev likes best, and their rates on dev."""
    split = _Split.read(run, system, "dev", Path(run.config.data.dev))
    ways, rates = _choose_settings(split, _plan_ways(job, run, system, language_models), device)
    if job.recipe.speeds:
        at_speeds = {f"{name}+{SPEEDS}": [way.at(job.recipe.speeds)] for name, way in ways.items()}
        more_ways, more_rates = _choose_settings(split, at_speeds, device)
        ways, rates = ways | more_ways, rates | more_rates
    return ways, rates


def _choose_settings(
    split: _Split, candidates: Mapping[str, Sequence[Way]], device: torch.device
) -> tuple[dict[str, Way], dict[str, dict[str, float]]]:
    """Of each way the settings that make the fewest errors, and its rates; its texts are written."""
    ways, rates = {}, {}
    decoded = split.decode(
        {(name, index): way for name, own in candidates.items() for index, way in enumerate(own)}, device
    )
    for name, own in candidates.items():
        found = [decoded[name, index] for index in range(len(own))]
        best = min(range(len(own)), key=lambda index: split.score(found[index]).error_rate)
        ways[name], rates[name] = own[best], split.keep(name, found[best])
    return ways, rates


def _plan_ways(job: Job, run: Run, system: System, language_models: Sequence[Path]) -> dict[str, list[Way]]:
    """By name, the cheapest first. Where something is weighed in, dev has several weights to choose from."""
    config = DecodingConfig(beam=SMOKE_BEAM) if job.smoke else DecodingConfig()
    plain = choose_ways(system, offered_methods(system.model), config)
    ways = {name: [Way(own)] for name, own in plain.items()}
    if job.recipe.text_fusion:
        if "joint" in plain:
            ways["joint"] = [Way(own) for own in vary([plain["joint"]], "ctc_weight", CTC_WEIGHTS)]
        for source, knowledge in load_knowledge(system, run, language_models).items():
            for method in (name for name in plain if name in WEIGHED_METHODS):
                settings = vary([way.config for way in ways[method]], "language_model_weight", WEIGHTS)
                ways[f"{method}+{source}"] = [Way(own, knowledge) for own in settings]
    return ways


def vary(configs: Sequence[DecodingConfig], key: str, values: Sequence[float]) -> list[DecodingConfig]:
    """Each config with each value."""
    return [config.model_copy(update={key: value}) for config in configs for value in values]


@dataclass(frozen=True)
class _Split:
    """Utterances and their references, as they are scored."""

    run: Run
    system: System
    name: str
    manifest: Path
    utterances: list[Utterance]
    references: Texts

    @classmethod
    def read(cls, run: Run, system: System, name: str, manifest: Path) -> _Split:
        utterances = list(read_manifest(manifest))
        logger.info("%s: %d utterances of %s", run.name, len(utterances), manifest)
        references: Texts = {}
        for utterance in utterances:
            if utterance.text is None:
                raise UserError(f"{manifest}: utterance {utterance.id} has no text to compare with")
            text = normalize_for_scoring(utterance.text, system.config.text)
            references[utterance.id] = {"text": text}
            if utterance.speaker is not None:
                references[utterance.id]["speaker"] = utterance.speaker
        write_texts(run.evaluation_dir / f"{name}.jsonl", references)
        return cls(run, system, name, manifest, utterances, references)

    def decode(self, ways: Mapping[Key, Way], device: torch.device) -> dict[Key, Decoded]:
        """The utterances are encoded once for all ways that weigh in the same."""
        found: dict[Key, Decoded] = {}
        for knowledge in {id(way.knowledge): way.knowledge for way in ways.values()}.values():
            own = {str(key): (key, way.config) for key, way in ways.items() if way.knowledge is knowledge}
            configs = {name: config for name, (_, config) in own.items()}
            split = decode_utterances(
                self.system, self.utterances, configs, device=device, language_model=knowledge
            )
            if split.faults:
                name, fault = next(iter(split.faults.items()))
                raise UserError(
                    f"{self.manifest}: {len(split.faults)} utterances cannot be read, so nothing is scored; "
                    f"{name}: {fault}"
                )
            found |= {key: split.ways[name] for name, (key, _) in own.items()}
        return found

    def score(self, decoded: Decoded) -> Score:
        return score_texts(self.references, self._texts(decoded))

    def keep(self, way: str, decoded: Decoded) -> dict[str, float]:
        """Write the texts; WER, CER and speed."""
        write_texts(self.run.evaluation_dir / f"{self.name}.{way}.jsonl", self._texts(decoded))
        found = self.score(decoded)
        return {
            "wer": found.error_rate,
            "cer": found.character_error_rate,
            "real_time_factor": decoded.real_time_factor,
            "language_model_weight": decoded.config.language_model_weight,
        }

    def _texts(self, decoded: Decoded) -> Texts:
        rules = self.system.config.text
        return {name: {"text": normalize_for_scoring(decoded.texts[name], rules)} for name in self.references}
