"""Read the runs of a study: the decoding that is reported, what was learned when, and WER by length."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asr.audio.segmentation import SegmentationConfig
from asr.data.manifest import Utterance, read_manifest
from asr.decoding.methods import Method
from asr.errors import UserError
from asr.recipe.definition import SystemConf
from asr.recipe.evaluation import Split, load_recognizer, read_decoding
from asr.recipe.experiment import Experiment
from asr.recipe.figures import read_batches, read_validations
from asr.recipe.results import (
    Record,
    Texts,
    describe_score,
    hypotheses_name,
    pool,
    read_results,
    read_texts,
    write_texts,
)
from asr.recipe.tasks import Task, hash_file, read_record, run_task
from asr.system.checkpoint import find_model, load_state, load_system
from asr.system.run_config import RunConfig
from asr.train.dev_scores import compute_dev_scores
from asr.train.distributed import Process
from asr.train.loop import step_name
from asr.transcription.transcriber import Request

logger = logging.getLogger(__name__)

RATES = (0.5, 0.2, 0.1)  # of dev WER: how soon are they reached?
TRAIN_UTTERANCES = 100  # that are read again at the end: what has been learned by heart?


def read_runs(
    experiment: Experiment, cases: Mapping[str, SystemConf], methods: Sequence[Method]
) -> list[Record]:
    """Read the evaluated runs in the order of the study, with the decoding that is reported."""
    found = read_results(experiment)["runs"]
    return [
        {**choose_method(run, methods), "variant": case.variant, "left_out": case.left_out}
        for name, case in cases.items()
        for run in found
        if run["system"] == name
    ]


def choose_method(run: Record, methods: Sequence[Method]) -> Record:
    """Describe the run by the first of the methods that it offers, if any are asked for."""
    dev, test = run["ways"]["dev"], run["ways"]["test"]
    method = next((name for name in methods or [run["decoding"]] if name in test), None)
    if method is None:
        offered, asked = ", ".join(test), ", ".join(methods)
        raise UserError(
            f"{run['name']} was decoded by {offered}; of the study's methods there is none: {asked}"
        )
    reported = {"decoding": method, "ways": {"dev": dev, "test": {method: test[method]}}}
    if methods:
        reported["decoding_config"] = {**run["decoding_config"], "method": method}
        reported["real_time_factor"] = test[method]["real_time_factor"]
    return {**run, **reported}


# --- what the logs and the checkpoints tell -----------------------------------------------------


def add_learning(experiment: Experiment, run: Record) -> Record:
    """Add to a run what its log says, and how its checkpoints decode utterances of training."""
    folder = experiment.runs_dir / run["name"]
    dev = {line["step"]: line for line in read_validations(folder / "log.jsonl")}
    state = load_state(find_model(folder))
    steps = {"best": state["best"][0][1], "end": state["step"]}

    def reread_training() -> Record:
        utterances = choose_training(folder)
        return {"train": {str(step): reread(folder, step, utterances) for step in set(steps.values())}}

    task = Task(
        name=f"reread {run['name']}",
        does=f"decode utterances of training with its checkpoints of updates {sorted(set(steps.values()))}",
        record=folder / ".reread.done",
        inputs=lambda: {
            f"update {step}": hash_file(folder / "checkpoints" / step_name(step) / "model.safetensors")
            for step in steps.values()
        },
        outputs=list,
        run=reread_training,
    )
    run_task(task)
    train: dict[str, Any] = read_record(task.record)["train"]
    lowest = min(dev, key=lambda step: dev[step]["loss"])
    points = {
        when: {
            "step": step,
            "dev": {key: dev[step][key] for key in ("loss", "wer")},
            "train": train[str(step)] if when in steps else None,
        }
        for when, step in {**steps, "lowest dev loss": lowest}.items()
    }
    return {**run, "reached": find_rates(list(dev.values())), "points": points}


def find_rates(dev: Sequence[Record]) -> dict[str, Record]:
    """Find for each of the rates where dev WER was first so low, if it ever was."""
    firsts = {rate: next((line for line in dev if line["wer"] <= rate), None) for rate in RATES}
    return {
        str(rate): {"step": line["step"], "seconds": line.get("training_seconds")}
        for rate, line in firsts.items()
        if line is not None
    }


def choose_training(folder: Path) -> list[Utterance]:
    """Choose the same training utterances each time, spread over all."""
    data = RunConfig.load(find_model(folder) / "config.yaml").data
    utterances = list(read_manifest(*data.train_paths))
    count = min(len(utterances), TRAIN_UTTERANCES)
    return [utterances[index * len(utterances) // count] for index in range(count)]


def reread(folder: Path, step: int, utterances: Sequence[Utterance]) -> dict[str, float]:
    """Compute loss and WER by the weights of an update, as dev has them in the log; not augmented."""
    system = load_system(folder / "checkpoints" / step_name(step))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    system.model.to(device)
    scores = compute_dev_scores(system, read_batches(system, utterances), Process(0, 1, device))
    return {"loss": scores["loss"], "wer": scores["wer"]}


# --- longer utterances --------------------------------------------------------------------------


def beam_suffix(beam: int) -> str:
    """Suffix for the names of texts that were decoded with another beam than all else."""
    return f"_beam_{beam}"


def score_lengths(
    experiment: Experiment, runs: Sequence[Record], manifests: Sequence[str], beam: int | None = None
) -> dict[str, dict[str, Record]]:
    """Score each variant on the utterances of each number of words; beam None: that of the run."""
    scores: dict[str, dict[str, Record]] = {}
    for name in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == name]
        hypotheses: dict[str, Texts] = {}
        for run in own:
            references, hypotheses[run["name"]] = decode_lengths(experiment, run, manifests, beam)
        by_length: dict[int, Texts] = defaultdict(dict)
        for id, fields in references.items():
            by_length[len(fields["text"].split())][id] = fields
        scores[name] = {
            str(length): describe_score(pool(own, by_length[length], hypotheses))
            for length in sorted(by_length)
        }
    return scores


def decode_lengths(
    experiment: Experiment, run: Record, manifests: Sequence[str], beam: int | None
) -> tuple[Texts, Texts]:
    """Decode test.jsonl and the longer manifests, or read what has been: references and hypotheses."""
    folder = experiment.runs_dir / run["name"]
    model = find_model(folder) / "model.safetensors"
    whole = SegmentationConfig(method="none")  # that they are longer than in training is what is measured
    recognizer = load_recognizer(experiment, folder, segmentation=whole)
    config, suffix = read_decoding(run), ""
    if beam is not None and beam != config.beam:
        config, suffix = config.model_copy(update={"beam": beam}), beam_suffix(beam)
    references: Texts = {}
    hypotheses: Texts = {}
    for name in ("test", *manifests):
        manifest = experiment.data_dir / f"{name}.jsonl"
        split = Split.read(recognizer, manifest, folder / "evaluation", name)
        references |= split.references
        path = split.folder / hypotheses_name(name + suffix, config.method)
        if not path.exists() or path.stat().st_mtime < model.stat().st_mtime:
            logger.info("%s: %s by %s", run["name"], name + suffix, config.method)
            decoded = split.decode({config.method: Request(config)})
            write_texts(path, split.describe(decoded[config.method]))
        hypotheses |= read_texts(path)
    return references, hypotheses
