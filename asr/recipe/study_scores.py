"""Compute the figures of a study from the texts, logs and checkpoints of its runs."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asr.audio.segmentation import SegmentationConfig
from asr.data.manifest import read_manifest, write_manifest
from asr.decoding.hypothesis import DecodingConfig
from asr.evaluation.speech import read_references
from asr.recipe.evaluation import decode_manifest, load_with_checks
from asr.recipe.experiment import Experiment
from asr.recipe.figures import read_batches, read_validations
from asr.recipe.results import (
    REFERENCES,
    Texts,
    choose_tested,
    compare_scores,
    describe_hypotheses,
    describe_references,
    describe_score,
    hypotheses_name,
    read_texts,
    score_texts,
    write_texts,
)
from asr.recipe.tasks import Task, hash_file, read_record, run_task
from asr.scoring.counting import Score
from asr.system.checkpoint import find_model, load_state, load_system
from asr.system.run_config import RunConfig
from asr.train.dev_scores import compute_dev_scores
from asr.train.distributed import Process
from asr.train.loop import step_name
from asr.transcription.transcriber import Request

logger = logging.getLogger(__name__)

RATES = (0.5, 0.2, 0.1)  # of dev WER: how soon are they reached?
TRAIN_UTTERANCES = 100  # that are read again at the end: what has been learned by heart?

# Of a run, as study.json has it: what the recipe says of it, with its variant, and in a study with folds the
# speaker or fold that was left out (else None).
Record = dict[str, Any]


# --- what follows from the texts ----------------------------------------------------------------


def score_study(folder: Path, baseline: str, runs: Sequence[Record]) -> Record:
    """Compute every figure that follows from the texts in `folder`, and add it to what is known of each run.

    Anyone can compute them again; tests do so with published studies.
    """
    references = read_texts(folder / REFERENCES)
    hypotheses = {
        run["name"]: read_texts(folder / hypotheses_name(run["name"], run["decoding"])) for run in runs
    }
    variants = {run["variant"]: [own for own in runs if own["variant"] == run["variant"]] for run in runs}
    scores = {name: pool(own, references, hypotheses) for name, own in variants.items()}
    comparisons = []
    for name, own in variants.items():
        shared, others = share_folds(own, variants.get(baseline, []))
        if name != baseline and shared:
            first, second = (pool(side, references, hypotheses) for side in (shared, others))
            verdict = compare_scores((name, baseline), first, second)
            comparisons.append({"variant": name, "baseline": baseline, **verdict})
    first = next(iter(scores.values()))
    return {
        "test": {
            "utterances": len(references),
            "words": sum(len(fields["text"].split()) for fields in references.values()),
            "resampled_by": first.resampled_by,
        },
        "runs": [{**run, **_score_run(run, references, hypotheses)} for run in runs],
        "variants": [{"name": name, **describe_score(found)} for name, found in scores.items()],
        "comparisons": comparisons,
    }


def pool(runs: Sequence[Record], references: Texts, hypotheses: Mapping[str, Texts]) -> Score:
    """Score all runs as if their utterances were one test set; of a fold, what was left out alone."""
    spoken = {run["name"]: choose_references(run, references, hypotheses[run["name"]]) for run in runs}
    return score_texts(
        {f"{run['seed']} {id}": fields for run in runs for id, fields in spoken[run["name"]].items()},
        {f"{run['seed']} {id}": hypotheses[run["name"]][id] for run in runs for id in spoken[run["name"]]},
    )


def choose_references(run: Record, references: Texts, hypotheses: Texts) -> Texts:
    """Choose what a run is tested on."""
    if run.get("is_fold"):
        return choose_tested(run, references, hypotheses)
    left_out = run["left_out"]
    return {id: f for id, f in references.items() if left_out is None or f["speaker"] == left_out}


def write_left_out(folder: Path, runs: Sequence[Record]) -> None:
    """Write for each variant and seed the texts of all folds, each by the run that left it out."""
    references = read_texts(folder / REFERENCES)
    texts: dict[str, Texts] = defaultdict(dict)
    for run in runs:
        hypotheses = read_texts(folder / hypotheses_name(run["name"], run["decoding"]))
        own = {id: hypotheses[id] for id in choose_references(run, references, hypotheses)}
        texts[hypotheses_name(f"{run['variant']}-seed-{run['seed']}", "left_out")] |= own
    for name, all_texts in texts.items():
        write_texts(folder / name, all_texts)


def share_folds(first: Sequence[Record], second: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Keep the runs of seeds and folds that both variants have."""
    keys = [{(run["seed"], run["left_out"]) for run in runs} for runs in (first, second)]
    both = keys[0] & keys[1]
    kept = [[run for run in runs if (run["seed"], run["left_out"]) in both] for runs in (first, second)]
    return kept[0], kept[1]


def _score_run(run: Record, references: Texts, hypotheses: Mapping[str, Texts]) -> Record:
    found = pool([run], references, hypotheses)
    figures = describe_score(found) | {"cer": found.character_error_rate}
    if run["left_out"] is not None and not run.get("is_fold"):  # and the speakers that it knows
        known = {id: fields for id, fields in references.items() if fields["speaker"] != run["left_out"]}
        texts = {id: hypotheses[run["name"]][id] for id in known}
        figures["known_speakers"] = describe_score(score_texts(known, texts))
    return figures


# --- what the logs and the checkpoints tell -----------------------------------------------------


def add_learning(experiment: Experiment, run: Record) -> Record:
    """Add to a run what its log says, and how its checkpoints decode utterances of training."""
    folder = experiment.runs_dir / run["name"]
    dev = read_validations(folder / "log.jsonl")
    state = load_state(find_model(folder))
    steps = {"best": state["best"][0][1], "end": state["step"]}

    def run_it() -> Record:
        manifest = choose_training(folder)
        return {"train": {str(step): reread(folder, step, manifest) for step in set(steps.values())}}

    task = Task(
        stage="report",
        name=f"reread {run['name']}",
        does=f"decode utterances of training with its checkpoints of updates {sorted(set(steps.values()))}",
        record=folder / ".reread.done",
        inputs=lambda: {
            f"update {step}": hash_file(folder / "checkpoints" / step_name(step) / "model.safetensors")
            for step in steps.values()
        },
        outputs=list,
        run=run_it,
    )
    run_task(task)
    train = read_record(task.record)["train"]
    points = {
        when: {
            "step": step,
            "dev": next({key: line[key] for key in ("loss", "wer")} for line in dev if line["step"] == step),
            "train": train[str(step)],
        }
        for when, step in steps.items()
    }
    lowest = min(dev, key=lambda line: line["loss"])
    points["lowest dev loss"] = {
        "step": lowest["step"], "dev": {"loss": lowest["loss"], "wer": lowest["wer"]}, "train": None
    }  # fmt: skip
    return {**run, "reached": find_rates(dev), "points": points}


def find_rates(dev: Sequence[Record]) -> dict[str, Record]:
    """Find for each of the rates where dev WER was first so low, if it ever was."""
    firsts = {rate: next((line for line in dev if line["wer"] <= rate), None) for rate in RATES}
    return {
        str(rate): {"step": line["step"], "seconds": line.get("training_seconds")}
        for rate, line in firsts.items()
        if line is not None
    }


def choose_training(folder: Path) -> Path:
    """Write a manifest of the same training utterances each time, spread over all."""
    data = RunConfig.load(find_model(folder) / "config.yaml").data
    utterances = list(read_manifest(*data.train_paths))
    count = min(len(utterances), TRAIN_UTTERANCES)
    manifest = folder / "evaluation" / "train.jsonl"
    write_manifest(manifest, [utterances[index * len(utterances) // count] for index in range(count)])
    return manifest


def reread(folder: Path, step: int, manifest: Path) -> dict[str, float]:
    """Compute loss and WER by the weights of an update, as dev has them in the log; not augmented."""
    system = load_system(folder / "checkpoints" / step_name(step))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    system.model.to(device)
    scores = compute_dev_scores(system, read_batches(system, manifest), Process(0, 1, device))
    return {"loss": scores["loss"], "wer": scores["wer"]}


# --- longer utterances --------------------------------------------------------------------------


def beam_suffix(beam: int) -> str:
    """Suffix for the names of texts that were decoded with another beam than all else."""
    return f"_beam_{beam}"


def score_lengths(
    experiment: Experiment, runs: Sequence[Record], manifests: Sequence[str], beam: int | None = None
) -> dict[str, dict[int, Score]]:
    """Score each variant on the utterances of each number of words; beam None: that of the run."""
    scores: dict[str, dict[int, Score]] = {}
    for name in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == name]
        read = {run["name"]: decode_lengths(experiment, run, manifests, beam) for run in own}
        hypotheses = {run: hypotheses for run, (_, hypotheses) in read.items()}
        references = next(iter(read.values()))[0]
        by_length: dict[int, Texts] = defaultdict(dict)
        for id, fields in references.items():
            by_length[len(fields["text"].split())][id] = fields
        scores[name] = {length: pool(own, by_length[length], hypotheses) for length in sorted(by_length)}
    return scores


def decode_lengths(
    experiment: Experiment, run: Record, manifests: Sequence[str], beam: int | None
) -> tuple[Texts, Texts]:
    """Decode test.jsonl and the longer manifests, or read what has been: references and hypotheses."""
    folder = experiment.runs_dir / run["name"]
    model = find_model(folder)
    whole = SegmentationConfig(method="none")  # that they are longer than in training is what is measured
    recognizer = load_with_checks(experiment, folder, segmentation=whole)
    config = DecodingConfig.model_validate_json(json.dumps(run["decoding_config"]))
    suffix = ""
    if beam is not None and beam != config.beam:
        config, suffix = config.model_copy(update={"beam": beam}), beam_suffix(beam)
    method = config.method
    rules = recognizer.system.config.text
    references: Texts = {}
    hypotheses: Texts = {}
    for name in ("test", *manifests):
        manifest = experiment.data_dir / f"{name}.jsonl"
        utterances = read_references(manifest)
        own = describe_references(utterances, rules)
        if name != "test":  # that one the recipe has written
            write_texts(folder / "evaluation" / f"{name}.jsonl", own)
        references |= own
        path = folder / "evaluation" / hypotheses_name(name + suffix, method)
        if not path.exists() or path.stat().st_mtime < (model / "model.safetensors").stat().st_mtime:
            logger.info("%s: %d utterances of %s by %s", run["name"], len(utterances), name + suffix, method)
            decoded = decode_manifest(recognizer, manifest, utterances, {method: Request(config)})
            write_texts(path, describe_hypotheses(decoded[method].texts, rules))
        hypotheses |= read_texts(path)
    return references, hypotheses
