"""The stages of a recipe, from download to report; finished stages are skipped."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pydantic
import torch

from asr.data.manifest import read_manifest
from asr.errors import UserError
from asr.families import find_checkpoints, find_family, find_model
from asr.recipe.definition import SystemConf
from asr.recipe.evaluation import describe_machine, describe_origin, evaluate_run
from asr.recipe.experiment import Experiment, PlannedRun, build_runs, find_runs
from asr.recipe.report import make_report
from asr.recipe.splits import SPLITS, check_test_split, cut_manifests
from asr.recipe.steps import do_once, find_change, hash_file, log_skipped, read_record, write_record
from asr.recipe.studies import build_folds, load_variants
from asr.system.checkpoint import find_commit
from asr.system.run_config import RunConfig
from asr.train.loop import require_same_training, train_model
from asr.train.training_data import hash_data

logger = logging.getLogger(__name__)

STAGES = ("download", "prepare", "train", "evaluate", "report")
CORPUS_DIR = "the folder of the corpus"  # key in the record of the stage prepare


def run_recipe(experiment: Experiment, stage: str | None = None, *, force: bool = False) -> None:
    """Run one stage, or all in order. A study trains and compares the variants of a system."""
    find_commit()  # before outputs change the checkout
    study, stages = experiment.study, [stage] if stage else STAGES
    if study is not None:
        experiment = _use_systems(experiment, load_variants(study, experiment.recipe))
    _require_corpus(experiment, stage)
    runs, left_out = find_runs(experiment)
    for line in left_out:
        logger.info("%s", line)
    try:
        if "download" in stages:
            _download(experiment)  # --force does not repeat the download
        if "prepare" in stages:
            _prepare(experiment, force)
        if study is not None and study.folds and "train" in stages:
            experiment = _use_systems(
                experiment, build_folds(experiment.recipe.find_systems(), experiment.data_dir)
            )
            runs = build_runs(experiment)
        if "train" in stages:
            _train(experiment, runs, force)
        if "evaluate" in stages:
            _evaluate(experiment, runs, force)
        if "report" in stages:
            _report(experiment, runs, force)
    except OSError as error:
        raise UserError(
            f"{error.filename or experiment.recipe.name}: {error.strerror or error}; "
            "run the same command again to continue from there"
        ) from error


def _use_systems(experiment: Experiment, systems: dict[str, SystemConf]) -> Experiment:
    return replace(experiment, recipe=experiment.recipe.model_copy(update={"systems": systems}))


# --- download and prepare -----------------------------------------------------------------------


def find_corpus_dir(experiment: Experiment) -> Path | None:
    """Find the corpus folder: given now, given when it was prepared, or downloaded."""
    if experiment.recipe.synthetic:
        return None
    prepared = read_record(experiment.data_dir / ".prepare.done").get("inputs", {}).get(CORPUS_DIR)
    downloaded = read_record(experiment.data_dir / ".download.done").get("corpus_dir")
    known = experiment.given_corpus_dir or prepared or downloaded
    return Path(known).absolute() if known else None


def _require_corpus(experiment: Experiment, stage: str | None) -> None:
    recipe = experiment.recipe
    may_download = recipe.download is not None and stage != "prepare"
    if not (recipe.synthetic or may_download or find_corpus_dir(experiment)):
        source = recipe.source or "leave --stage out to download it"
        raise UserError(f"{recipe.name}: there is no corpus yet; {source}. Or pass --corpus-dir FOLDER")


def needs_download(experiment: Experiment) -> bool:
    """Return whether the folder of the corpus is unknown, or its download has been deleted."""
    if experiment.recipe.download is None:
        return False
    folder = find_corpus_dir(experiment)
    is_own = folder is not None and experiment.download_dir in (folder, *folder.parents)
    return folder is None or (is_own and not folder.exists())


def _download(experiment: Experiment) -> None:
    download = experiment.recipe.download
    if download is not None and needs_download(experiment):
        logger.info("download: to %s", experiment.download_dir)
        folder = download(experiment.download_dir)
        write_record(experiment.data_dir / ".download.done", {"corpus_dir": str(folder)})


def _prepare(experiment: Experiment, force: bool) -> None:
    recipe, data_dir, corpus_dir = experiment.recipe, experiment.data_dir, find_corpus_dir(experiment)
    record = data_dir / ".prepare.done"
    splits = [data_dir / f"{split}.jsonl" for split in SPLITS]
    inputs = {"recipe.py": hash_file(recipe.path), CORPUS_DIR: str(corpus_dir)}
    inputs["smoke"] = str(experiment.smoke)
    written_before = [data_dir / Path(name).name for name in read_record(record).get("manifests", [])]

    def prepare() -> dict[str, Any]:
        for old in (*written_before, *splits):  # an old file must not pass for a new one
            old.unlink(missing_ok=True)
        others = set(data_dir.glob("*.jsonl"))
        shortfalls = recipe.write_manifests(corpus_dir, data_dir.absolute(), smoke=experiment.smoke)
        for split in splits:
            if not split.exists() or next(read_manifest(split), None) is None:
                raise UserError(f"{split}: the prepare function of the recipe wrote no utterance to it")
        if experiment.smoke:
            cut_manifests(data_dir)
        written = sorted(path.name for path in set(data_dir.glob("*.jsonl")) - others)
        return {"manifests": written, "shortfalls": shortfalls}

    do_once("prepare", record, inputs, prepare, outputs=splits, force=force)


# --- train --------------------------------------------------------------------------------------


def _train(experiment: Experiment, runs: Sequence[PlannedRun], force: bool) -> None:
    """Train each run. A training resumes by itself; one with other data or settings is moved aside."""
    todo = [run for run in runs if force or find_reason_to_train(run)]
    if todo:
        check_test_split(todo, experiment.data_dir / "test.jsonl")
    for run in runs:
        reason = find_reason_to_train(run)  # the run that it starts from may be trained by now
        if reason is None and not force:
            log_skipped(f"train {run.name}")
            continue
        logger.info("train %s: %s", run.name, reason or "repeated because of --force")
        before = read_record(run.record_path)
        if reason is None or _explain_other_training(run, before):
            _put_aside(run)
            before = {}
        if not find_checkpoints(run.folder):  # without a checkpoint, a tokenizer is of unknown origin
            (run.folder / "tokenizer.json").unlink(missing_ok=True)
        machines = list(dict.fromkeys([*before.get("machines", []), describe_machine()]))
        record = {
            "settings": json.loads(run.config.model_dump_json()),
            "data": hash_data(run.config),
            "start": _hash_start(run),
            "machines": machines,
            "origin": describe_origin(experiment) | {"machine": "; ".join(machines)},
        }
        write_record(run.record_path, record)
        threads = torch.get_num_threads()
        try:
            train_model(run.config)
        finally:
            torch.set_num_threads(threads)  # a conf may set them; the next one may count on the default
        write_record(run.record_path, record | {"done": True})


def find_reason_to_train(run: PlannedRun) -> str | None:
    """Find why a run is to be trained, or trained on; None if it is done."""
    record = read_record(run.record_path)
    if other := _explain_other_training(run, record):
        return other
    if not record.get("done") or not run.model_path.exists():
        return "not done yet"
    wants_more = run.config.train.steps > record["settings"]["train"]["steps"]
    return "more updates are requested" if wants_more else None


def _explain_other_training(run: PlannedRun, record: Mapping[str, Any]) -> str | None:
    """Explain how the training in the folder differs from this one; None if it does not, or is missing."""
    if not record:
        return None
    try:
        before = RunConfig.model_validate_json(json.dumps(record["settings"]))
        require_same_training(run.config, before, record["data"], run.folder)
    except pydantic.ValidationError:
        return "it was trained with the settings of another version"
    except UserError as error:
        return str(error)
    return None if record["start"] == _hash_start(run) else "it starts from another model"


def _hash_start(run: PlannedRun) -> str | None:
    """Hash the weights that the run starts from; None if it starts from scratch."""
    start = run.config.start_from
    if start is None:
        return None
    if family := find_family(start, as_run=True):
        return hash_file(family.find_weights(start))
    try:
        return hash_file(find_model(start) / "model.safetensors")
    except UserError:
        return "missing"  # a run of this recipe that will be trained first


def _put_aside(run: PlannedRun) -> None:
    """Move aside a run with other data or settings, because hours of training are never deleted."""
    number = 1
    while (aside := run.folder.with_name(f"{run.name}.old-{number}")).exists():
        number += 1
    run.folder.rename(aside)
    logger.info("%s: training from scratch; the earlier run is now in %s", run.name, aside)


# --- evaluate and report ------------------------------------------------------------------------


def _evaluate(experiment: Experiment, runs: Sequence[PlannedRun], force: bool) -> None:
    for run in runs:
        if run.makes_text:
            language_models = _find_language_models(experiment, run)
            evaluate = partial(evaluate_run, experiment, run, [own.folder for own in language_models])
            inputs = _list_evaluated(experiment, run, language_models)
            outputs = [run.test_table]
            do_once(f"evaluate {run.name}", run.summary_path, inputs, evaluate, outputs=outputs, force=force)


def _find_language_models(experiment: Experiment, run: PlannedRun) -> list[PlannedRun]:
    """Find the trained language models of the recipe with the same tokens as this system.

    A system that starts from a model of another corpus may number its tokens differently.
    """
    if not experiment.recipe.text_fusion:
        return []
    tokens = hash_file(run.folder / "tokenizer.json")
    return [
        own
        for own in build_runs(replace(experiment, only=(), seeds=(), overrides=()))
        if own.config.model.type == "language" and own.model_path.exists()
        if hash_file(own.folder / "tokenizer.json") == tokens
    ]


def _list_evaluated(
    experiment: Experiment, run: PlannedRun, language_models: Sequence[PlannedRun]
) -> dict[str, str]:
    """List everything that the error rates of a run depend on."""
    read = [Path(run.config.data.dev), experiment.data_dir / "test.jsonl"]
    inputs = {"the model": hash_file(run.model_path)} | {path.name: hash_file(path) for path in read}
    inputs |= {f"the model of {own.name}": hash_file(own.model_path) for own in language_models}
    settings = ("speeds", "text_fusion", "chosen_by")
    inputs |= {name: str(getattr(experiment.recipe, name)) for name in settings}
    study = experiment.study
    inputs |= {"methods": str(study and study.methods), "chunks": str(study and study.chunk_steps)}
    return inputs | {"smoke": str(experiment.smoke)}


def _report(experiment: Experiment, runs: Sequence[PlannedRun], force: bool) -> None:
    """Report on the runs with up-to-date results; with `--stage report`, some may be missing."""
    compared = [run for run in runs if run.makes_text]
    if not compared:
        return
    evaluated = []
    for run in compared:
        inputs = _list_evaluated(experiment, run, _find_language_models(experiment, run))
        record = read_record(run.summary_path)
        if reason := find_reason_to_train(run) or find_change(record, inputs, [run.test_table]):
            logger.info("left out of the comparison: %s: %s", run.name, reason)
        else:
            evaluated.append(run)
    if not evaluated:
        raise UserError(f"{experiment.runs_dir}: no system has been evaluated; run without --stage")
    inputs = {run.name: hash_file(run.summary_path) for run in evaluated}
    make = partial(make_report, experiment, evaluated)
    do_once("report", experiment.report_dir / ".report.done", inputs, make, force=force)
