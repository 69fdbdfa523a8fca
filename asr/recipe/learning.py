"""What a study reports beside error rates: what was learned when, and how WER grows with length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from asr.audio.segmentation import SegmentationConfig
from asr.data.manifest import Utterance, read_manifest
from asr.errors import UserError
from asr.recipe.evaluation import Split, load_recognizer, read_decoding
from asr.recipe.experiment import Experiment, find_change, hash_file, read_record, write_record
from asr.recipe.figures import read_batches, read_validations
from asr.recipe.results import (
    Record,
    Table,
    Texts,
    describe_score,
    pool,
    read_texts,
    setup_name,
    write_texts,
)
from asr.recipe.systems import spread
from asr.system.checkpoint import find_model, load_state, load_system
from asr.system.run_config import RunConfig
from asr.train.dev_scores import compute_dev_scores
from asr.train.distributed import Process
from asr.train.loop import step_name
from asr.transcription.transcribe import Request

RATES = (0.5, 0.2, 0.1)  # of dev WER: how soon are they reached?
TRAIN_UTTERANCES = 100  # that are read again at the end: what has been learned by heart?


def choose_method(run: Record, methods: Sequence[str]) -> Record:
    """Describe the run by the first of the methods that it offers, if any are asked for."""
    test = run["ways"]["test"]
    method = next((name for name in methods or [run["decoding"]] if name in test), None)
    if method is None:
        offered, asked = ", ".join(test), ", ".join(methods)
        raise UserError(
            f"{run['name']} was decoded by {offered}; of the study's methods there is none: {asked}"
        )
    if not methods:
        return run
    return {
        **run,
        "decoding": method,
        "decoding_config": {**run["decoding_config"], "method": method},
        "real_time_factor": test[method]["real_time_factor"],
    }


# --- what the logs and the checkpoints tell -----------------------------------------------------


def add_learning(experiment: Experiment, run: Record) -> Record:
    """Add to a run what its log says, and how its checkpoints decode utterances of training."""
    folder = experiment.runs_dir / run["name"]
    dev = {line["step"]: line for line in read_validations(folder / "log.jsonl")}
    state = load_state(find_model(folder))
    steps = {"best": state["best"][0][1], "end": state["step"]}
    weights = {step: folder / "checkpoints" / step_name(step) for step in set(steps.values())}
    inputs = {path.name: hash_file(path / "model.safetensors") for path in weights.values()}
    path = folder / ".reread.json"
    if find_change(record := read_record(path), inputs, []):
        utterances = choose_training(folder)
        train = {str(step): reread(folder, step, utterances) for step in weights}
        write_record(path, record := {"inputs": inputs, "train": train})
    train = record["train"]
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
    return spread(list(read_manifest(*data.train_paths)), TRAIN_UTTERANCES)


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


def decode_lengths(experiment: Experiment, runs: Sequence[Record]) -> dict[str, Table]:
    """Decode test.jsonl and the longer manifests of the study with each of its beams, unless that is done."""
    study = experiment.study
    assert study is not None
    tables: dict[str, Table] = {split: ({}, {}) for split in ("test", *study.lengths)}
    for run in runs:
        folder = experiment.runs_dir / run["name"]
        model = find_model(folder) / "model.safetensors"
        whole = SegmentationConfig(method="none")  # that they are longer than in training is what is measured
        recognizer = load_recognizer(experiment, folder, segmentation=whole)
        usual = read_decoding(run)
        for name, (references, columns) in tables.items():
            manifest = experiment.data_dir / f"{name}.jsonl"
            split = Split.read(recognizer, manifest, folder / "evaluation", name)
            references |= split.references
            for beam in dict.fromkeys((usual.beam, *study.length_beams)):
                suffix = "" if beam == usual.beam else beam_suffix(beam)
                path = split.folder / f"{setup_name(name + suffix, usual.method)}.jsonl"
                if not path.exists() or path.stat().st_mtime < model.stat().st_mtime:
                    request = Request(usual.model_copy(update={"beam": beam}))
                    write_texts(path, split.describe(split.decode({"own": request})["own"]))
                columns[setup_name(run["name"] + suffix, usual.method)] = read_texts(path)
    return tables


def score_lengths(tables: Sequence[Table], runs: Sequence[Record], beam: int) -> dict[str, dict[str, Record]]:
    """Score each variant on the utterances of each number of words, from the tables of all splits."""
    references = {id: fields for own, _ in tables for id, fields in own.items()}
    hypotheses: dict[str, Texts] = defaultdict(dict)
    for run in runs:
        suffix = "" if beam == run["decoding_config"]["beam"] else beam_suffix(beam)
        for _, columns in tables:
            hypotheses[run["name"]] |= columns[setup_name(run["name"] + suffix, run["decoding"])]
    by_length: dict[int, Texts] = defaultdict(dict)
    for id, fields in references.items():
        by_length[len(fields["text"].split())][id] = fields
    variants = {run["variant"]: [own for own in runs if own["variant"] == run["variant"]] for run in runs}
    return {
        name: {str(n): describe_score(pool(own, by_length[n], hypotheses)) for n in sorted(by_length)}
        for name, own in variants.items()
    }
