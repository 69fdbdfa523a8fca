"""Stages of a recipe, from the download to the report, and studies, which vary one of its systems."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydantic
import torch

from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import UserError, suggest
from asr.families import find_checkpoints, find_family, find_model
from asr.recipe.definition import Recipe, Study, SystemConf
from asr.recipe.evaluation import describe_machine, describe_origin, evaluate_run
from asr.recipe.experiment import (
    SPLITS,
    Experiment,
    PlannedRun,
    build_runs,
    check_test_split,
    cut_manifests,
    find_all_runs,
    find_change,
    find_runs,
    find_source,
    hash_file,
    load_conf,
    read_record,
    write_record,
)
from asr.recipe.report import make_report
from asr.system.checkpoint import find_commit
from asr.system.run_config import RunConfig
from asr.train.loop import require_same_training, train_model
from asr.train.preparation import hash_data

logger = logging.getLogger(__name__)

STAGES = ("download", "prepare", "train", "evaluate", "report")


@dataclass(frozen=True)
class Task:
    """One step of a recipe, which keeps a record of what it read, so that it is done once."""

    name: str  # the stage, and the run if it is that of one: "train conformer"
    reason: str | None  # reason to run it, for the log; None: it is up to date
    run: Callable[[], None]


def run_recipe(experiment: Experiment, stage: str | None = None, *, force: bool = False) -> None:
    """Run one stage, or all in their order; what is done already is skipped."""
    find_commit()  # before anything changes in the checkout
    _require_corpus(experiment, stage)
    check_only(experiment, experiment.recipe.find_systems())
    _, left_out = find_runs(experiment)
    for line in left_out:
        logger.info("%s", line)
    for name in [stage] if stage else STAGES:
        if name == "train":
            check_data(experiment)
        for task in build_tasks(experiment, name):
            _run_task(task, force and name != "download")  # trained runs are put aside


def _run_task(task: Task, force: bool) -> None:
    if task.reason is None and not force:
        logger.info("%s: skipped, it has been done, and nothing that it reads has changed", task.name)
        return
    logger.info("%s: %s", task.name, task.reason or "done again, by --force")
    try:
        task.run()
    except OSError as error:
        raise UserError(
            f"{error.filename or task.name}: {error.strerror or error}; {task.name} ended there. "
            "The same command continues from there"
        ) from error


def _require_corpus(experiment: Experiment, stage: str | None) -> None:
    recipe = experiment.recipe
    if recipe.synthetic or find_corpus_dir(experiment) is not None:
        return
    if recipe.download is None or stage == "prepare":
        source = recipe.source or "leave --stage out to download it"
        raise UserError(f"{recipe.name}: there is no corpus yet; {source}. Or pass --corpus-dir FOLDER")


def check_only(experiment: Experiment, systems: Mapping[str, SystemConf]) -> None:
    """Reject unknown names of systems or variants."""
    known = {system: conf.variant or system for system, conf in systems.items()}
    for name in experiment.only:
        if name not in known and name not in known.values():
            raise UserError(
                f"--only {name}: there is none of this name; {suggest(name, set(known.values()))}"
            )


def build_tasks(experiment: Experiment, stage: str) -> Iterator[Task]:
    """Build the tasks of a stage, each when those before are done, whose outputs it may read."""
    recipe = experiment.recipe
    if stage == "download" and recipe.download is not None and _find_given(experiment) is None:
        yield _download(experiment, recipe.download)
    elif stage == "prepare":
        yield _prepare(experiment)
    elif stage == "train":
        runs = build_runs(experiment)
        yield from (_train(experiment, run, runs) for run in runs)
    elif stage == "evaluate":
        yield from (_evaluate(experiment, run) for run in build_runs(experiment) if run.makes_text)
    elif stage == "report" and any(run.makes_text for run in find_all_runs(experiment)):
        yield _report(experiment)


# --- download and prepare -----------------------------------------------------------------------


def find_corpus_dir(experiment: Experiment) -> Path | None:
    """Find the given folder, else that of the download stage."""
    downloaded = read_record(experiment.data_dir / ".download.done").get("corpus_dir")
    return _find_given(experiment) or (Path(downloaded) if downloaded else None)


def _find_given(experiment: Experiment) -> Path | None:
    """Find the folder that is given, by this call or the one that prepared it."""
    before = read_record(experiment.data_dir / ".prepare.done").get("given")
    given = experiment.given_corpus_dir or (Path(before) if before else None)
    return given and given.absolute()


def _download(experiment: Experiment, download: Callable[[Path], Path]) -> Task:
    path = experiment.data_dir / ".download.done"
    record, inputs = read_record(path), {"recipe.py": hash_file(experiment.recipe.path)}

    def run() -> None:
        folder = download(experiment.data_dir.absolute() / "corpus")
        write_record(path, {"inputs": inputs, "corpus_dir": str(folder)})

    return Task("download", find_change(record, inputs, [Path(record.get("corpus_dir", ""))]), run)


def _prepare(experiment: Experiment) -> Task:
    data_dir, recipe, corpus_dir = experiment.data_dir, experiment.recipe, find_corpus_dir(experiment)
    path, given = data_dir / ".prepare.done", _find_given(experiment)
    splits = [data_dir / f"{split}.jsonl" for split in SPLITS]
    inputs = {"recipe.py": hash_file(recipe.path), "the folder of the corpus": str(corpus_dir)}
    inputs["smoke"] = str(experiment.smoke)

    def run() -> None:
        written_before = [data_dir / Path(name).name for name in read_record(path).get("manifests", [])]
        for old in (path, *written_before, *splits):  # an old file must not be taken for a new one
            old.unlink(missing_ok=True)
        others = set(data_dir.glob("*.jsonl"))
        shortfalls = recipe.write_manifests(corpus_dir, data_dir.absolute(), smoke=experiment.smoke)
        for split in splits:
            if not split.exists() or next(read_manifest(split), None) is None:
                raise UserError(f"{split}: prepare of the recipe has written no utterance into it")
        if experiment.smoke:
            cut_manifests(data_dir)
        written = [manifest.name for manifest in set(data_dir.glob("*.jsonl")) - others]
        record = {"inputs": inputs, "manifests": sorted(written), "shortfalls": shortfalls}
        write_record(path, record | ({"given": str(given)} if given else {}))

    return Task("prepare", find_change(read_record(path), inputs, splits), run)


# --- train --------------------------------------------------------------------------------------


def check_data(experiment: Experiment) -> None:
    """Check the data of all systems that are still to be trained, before the first of them is."""
    runs = build_runs(experiment)
    if untrained := [run for run in runs if _train(experiment, run, runs).reason]:
        check_test_split(untrained, experiment.data_dir / "test.jsonl")


def _train(experiment: Experiment, run: PlannedRun, runs: Sequence[PlannedRun]) -> Task:
    """Training resumes by itself, and checks its settings and data; the record notes that it has ended."""
    before = read_record(run.record_path)
    other = _explain_other_training(run, before, runs)
    reason = other
    if not other and not (before.get("done") and run.model_path.exists()):
        reason = "not done yet"
    elif not other and run.config.train.steps > before["settings"]["train"]["steps"]:
        reason = "more updates are requested"

    def run_it() -> None:
        is_new = other is not None or reason is None  # the latter by --force
        if is_new and run.folder.exists():
            _put_aside(run)
        if not find_checkpoints(run.folder):  # then what is there is of unknown origin
            run.tokenizer_path.unlink(missing_ok=True)
        earlier = [] if is_new else before.get("machines", [])
        machines = list(dict.fromkeys([*earlier, describe_machine()]))
        record = {
            "settings": json.loads(run.config.model_dump_json()),
            "data": hash_data(run.config),
            "start": _hash_start(run, runs),
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

    return Task(f"train {run.name}", reason, run_it)


def _explain_other_training(
    run: PlannedRun, record: Mapping[str, Any], runs: Sequence[PlannedRun]
) -> str | None:
    """Explain how the training in the folder differs from this one; None if it does not, or is missing."""
    if not record:
        return None
    try:
        before = RunConfig.model_validate_json(json.dumps(record["settings"]))
        require_same_training(run.config, before, record["data"], run.folder)
    except pydantic.ValidationError:
        return "it was trained with settings of another version"
    except UserError as error:
        return str(error)
    return None if record["start"] == _hash_start(run, runs) else "the model that it starts from is another"


def _hash_start(run: PlannedRun, runs: Sequence[PlannedRun]) -> str | None:
    """Hash the weights that the run starts from; None if it starts afresh."""
    start = run.config.start_from
    if start is None:
        return None
    if source := find_source(run, runs):
        return hash_file(source.model_path)
    family = find_family(start, as_run=True)
    return hash_file(
        find_model(start) / "model.safetensors" if family is None else family.find_weights(start)
    )


def _put_aside(run: PlannedRun) -> None:
    """Put aside what was trained on other data or with other settings: hours of work are never deleted."""
    number = 1
    while (aside := run.folder.with_name(f"{run.name}.old-{number}")).exists():
        number += 1
    run.folder.rename(aside)
    logger.info("%s: trained from the start; what there was is now in %s", run.name, aside)


# --- evaluate and report ------------------------------------------------------------------------


def _evaluate(experiment: Experiment, run: PlannedRun) -> Task:
    recipe = experiment.recipe
    # Language models that have been trained, by this call or an earlier one, on the tokens of this system.
    # What starts from a model of another corpus may number its tokens otherwise.
    language_models = [
        own
        for own in (find_all_runs(experiment) if recipe.text_fusion else [])
        if own.config.model.type == "language" and own.model_path.exists()
        if hash_file(own.tokenizer_path) == hash_file(run.tokenizer_path)
    ]
    read = [Path(run.config.data.dev), experiment.data_dir / "test.jsonl"]
    inputs = {"the model": hash_file(run.model_path)} | {path.name: hash_file(path) for path in read}
    inputs |= {f"the model of {own.name}": hash_file(own.model_path) for own in language_models}
    inputs |= {name: str(getattr(recipe, name)) for name in ("speeds", "text_fusion", "checks")}
    inputs["smoke"] = str(experiment.smoke)

    def run_it() -> None:
        summary = evaluate_run(experiment, run, [own.folder for own in language_models])
        write_record(run.summary_path, summary | {"inputs": inputs})

    return Task(f"evaluate {run.name}", find_change(read_record(run.summary_path), inputs, []), run_it)


def find_evaluated_runs(experiment: Experiment) -> tuple[list[PlannedRun], list[str]]:
    """Find the runs whose results are up to date, of this call and of earlier ones; and what others lack."""
    runs = find_all_runs(experiment)
    evaluated, reasons = [], []
    for run in runs:
        if run.folder.exists() and run.makes_text:
            tasks = (_train(experiment, run, runs), _evaluate(experiment, run))
            if outdated := [f"{task.name}: {task.reason}" for task in tasks if task.reason]:
                reasons.append(outdated[0])
            else:
                evaluated.append(run)
    return evaluated, reasons


def _report(experiment: Experiment) -> Task:
    path = experiment.report_dir / ".report.done"
    runs, reasons = find_evaluated_runs(experiment)
    inputs = {run.name: hash_file(run.summary_path) for run in runs}

    def run_it() -> None:
        if not runs:
            raise UserError(f"{experiment.runs_dir}: no system has been evaluated; leave --stage out")
        for reason in reasons:
            logger.info("left out of the comparison, since %s", reason)
        make_report(experiment, runs)
        write_record(path, {"inputs": inputs})

    return Task("report", find_change(read_record(path), inputs, []), run_it)


def run_study(experiment: Experiment) -> None:
    """Train and compare the variants of the experiment's study. What is done already is skipped."""
    study = experiment.study
    assert study is not None
    variants = load_variants(study, experiment.recipe)
    if study.folds is None:
        check_only(experiment, variants)
    for stage in ("download", "prepare"):
        run_recipe(replace(experiment, only=()), stage)
    cases = build_cases(study, variants, experiment.data_dir)
    recipe = experiment.recipe.model_copy(update={"systems": cases})
    run_recipe(replace(experiment, recipe=recipe))


# --- variants -----------------------------------------------------------------------------------


def load_variants(study: Study, recipe: Recipe) -> dict[str, SystemConf]:
    """Build the conf of each variant, as far as it loads."""
    base = recipe.find_systems().get(study.system)
    if base is None:
        raise UserError(f"system = {study.system}: no {study.system}.yaml in {recipe.conf_dir}")
    variants = {}
    for name, own in study.variants.items():
        overrides = (*base.overrides, *study.all, *own)
        variants[name] = SystemConf(path=base.path, overrides=overrides, variant=name)
        load_conf(variants[name])
    return variants


def build_cases(study: Study, variants: dict[str, SystemConf], data_dir: Path) -> dict[str, SystemConf]:
    """Build the systems to train, by name. Folds need the prepared manifests, and write parts of them."""
    if study.folds is None:
        return variants
    return {
        f"{name}_without_{speaker}": leave_out(conf, speaker, data_dir)
        for name, conf in variants.items()
        for speaker in find_speakers(data_dir / "test.jsonl")
    }


def find_speakers(manifest: Path) -> list[str]:
    """Find all speakers, in the order of their names."""
    speakers = {utterance.speaker for utterance in read_manifest(manifest)}
    if None in speakers or len(speakers) < 2:
        raise UserError(
            f"{manifest}: folds leave out speakers; expected a speaker of each utterance, and two"
        )
    return sorted(map(str, speakers))


def leave_out(conf: SystemConf, speaker: str, data_dir: Path) -> SystemConf:
    """Change the conf to train and choose without the speaker, and write the manifests for it."""
    data = load_conf(conf).data
    train, dev = Path(data.train_paths[0]), Path(data.dev)

    def write_others(path: Path, *sources: str) -> str:
        name = f"{path.stem}_without_{speaker}.jsonl"
        manifests = (data_dir / p.name if p.parent == path.parent else p for p in map(Path, sources))
        utterances = read_manifest(*manifests)  # those of another recipe stay in its folder
        write_unless_equal(data_dir / name, [u for u in utterances if u.speaker != speaker])
        return path.with_name(name).as_posix()

    paths = {"train": write_others(train, *data.train_paths), "dev": write_others(dev, data.dev)}
    overrides = [f"data.{key}={json.dumps(path)}" for key, path in paths.items()]
    return SystemConf(
        path=conf.path, overrides=(*conf.overrides, *overrides), variant=conf.variant, left_out=speaker
    )


def write_unless_equal(path: Path, utterances: list[Utterance]) -> None:
    """Write a manifest; leave an equal one alone, as another process may be training on it."""
    if not path.exists() or list(read_manifest(path)) != utterances:
        write_manifest(path, utterances)
