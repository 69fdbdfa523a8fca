"""Stages of a recipe, from the download to the report, and studies, which vary one of its systems."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydantic
import torch

from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import UserError, suggest
from asr.features.front_end import FrontEnd
from asr.files import SHIPPED, find_family
from asr.models import build_model
from asr.recipe.definition import STAGES, Recipe, Study, SystemConf
from asr.recipe.evaluation import describe_machine, describe_origin, evaluate_run
from asr.recipe.experiment import (
    SPLITS,
    Experiment,
    Run,
    build_runs,
    check_test_split,
    cut_manifests,
    find_all_runs,
    find_change,
    find_runs,
    find_source,
    find_written,
    hash_file,
    hash_text,
    load_conf,
    mark_partial,
    read_record,
    stamp_manifests,
    write_record,
)
from asr.recipe.report import make_report
from asr.system.checkpoint import find_checkpoints, find_commit, find_model
from asr.system.run_config import RunConfig
from asr.train.loop import require_same_training, train_and_draw
from asr.train.preparation import hash_data

logger = logging.getLogger(__name__)

_CORPUS = "the folder of the corpus"  # among the inputs of prepare


@dataclass(frozen=True)
class Task:
    """One step of a recipe, which keeps a record of what it read, so that it is done once."""

    name: str
    """The stage, and the run if it is that of one: "train conformer"."""
    does: str
    """Action as a verb phrase, as in "would ..."."""
    find_reason: Callable[[], str | None]
    """Finds why it is to be done; None if it is not."""
    run: Callable[[], None]


def run_recipe(experiment: Experiment, stage: str | None = None) -> None:
    """Run one stage, or all in their order; what is done already is skipped."""
    find_commit()  # of now, whatever becomes of the checkout
    if stage is None and not experiment.recipe.find_systems():
        logger.info(
            "no system in %s: the corpus is prepared, and nothing trained", experiment.recipe.conf_dir
        )
    for name in choose_stages(experiment, stage):
        if name == "train":
            check_data(experiment)
        for task in build_tasks(experiment, name):
            _run_task(task)


def _run_task(task: Task) -> None:
    reason = task.find_reason()
    if reason is None:
        logger.info("%s: skipped, it has been done, and nothing that it reads has changed", task.name)
        return
    logger.info("%s: %s (%s)", task.name, task.does, reason)
    try:
        task.run()
    except OSError as error:
        raise UserError(
            f"{error.filename or task.name}: {error.strerror or error}; {task.name} ended there. "
            "The same command goes on from there"
        ) from error


def explain_plan(experiment: Experiment, stage: str | None) -> list[str]:
    """Say in a line for each task what would be done and why, or why not, as things stand now."""
    lines = []
    for name in choose_stages(experiment, stage):
        for task in build_tasks(experiment, name):
            reason = task.find_reason()
            lines.append(
                f"{task.name}: would {task.does} ({reason})"
                if reason
                else f"{task.name}: would be skipped, it has been done"
            )
    return lines


def choose_stages(experiment: Experiment, stage: str | None) -> list[str]:
    """Name the wanted stages, after a check that they fit the corpus that is given, or is not."""
    recipe, given = experiment.recipe, experiment.given_corpus_dir is not None
    has_corpus = recipe.synthetic or find_corpus_dir(experiment) is not None
    if given and recipe.synthetic:
        raise UserError(f"{recipe.name} makes its corpus itself and reads none; leave --corpus-dir out")
    if given and stage == "download":
        raise UserError("--stage download and --corpus-dir: with a corpus there is nothing to download")
    if not has_corpus and not recipe.urls:
        source = f" To get one: {recipe.source}." if recipe.source else ""
        raise UserError(
            f"{recipe.name} cannot be downloaded; pass --corpus-dir DIR, the folder of your copy.{source}"
        )
    if not has_corpus and stage == "prepare":
        raise UserError(
            f"{experiment.data_dir}: no corpus has been downloaded; leave --stage out, or pass "
            "--corpus-dir DIR"
        )
    if experiment.smoke and experiment.publish:
        raise UserError("--smoke and --publish: results of a smoke run mean nothing; leave one of them out")
    if experiment.publish and recipe.path.is_relative_to(SHIPPED):
        raise UserError(f"--publish: {recipe.name} is installed with the package; publish from a checkout")
    check_only(experiment, recipe.find_systems())
    for line in find_runs(experiment)[1]:
        logger.info("%s", line)
    return [stage] if stage else list(STAGES)


def check_only(experiment: Experiment, systems: Mapping[str, SystemConf]) -> None:
    """Refuse names of systems or variants that there are not."""
    for name in experiment.only:
        if not any(name in (system, conf.variant) for system, conf in systems.items()):
            known = list(dict.fromkeys(conf.variant or system for system, conf in systems.items()))
            what = "such variant" if experiment.study else f"{name}.yaml in {experiment.recipe.conf_dir}"
            raise UserError(f"--only {name}: no {what}; {suggest(name, known)}")


def build_tasks(experiment: Experiment, stage: str) -> list[Task]:
    """Build the tasks of a stage: one, one for each run, or none where there is nothing to do."""
    if stage == "download":
        return _download(experiment)
    if stage == "prepare":
        return [_prepare(experiment)]
    if stage == "report":
        return [_report(experiment)] if any(run.makes_text for run in find_all_runs(experiment)) else []
    runs = build_runs(experiment)
    if stage == "train":
        return [_train(experiment, run, runs) for run in runs]
    return [_evaluate(experiment, run) for run in runs if run.makes_text]


# --- download and prepare -----------------------------------------------------------------------


def find_corpus_dir(experiment: Experiment) -> Path | None:
    """Find the given folder, else the one that was prepared, else that of the download stage."""
    if experiment.given_corpus_dir is not None:
        return experiment.given_corpus_dir.absolute()
    downloaded = read_record(experiment.data_dir / ".download.done").get("corpus_dir")
    return _find_given_before(experiment) or (Path(downloaded) if downloaded else None)


def _find_given_before(experiment: Experiment) -> Path | None:
    """Find the folder that has been prepared, unless it is that of the download."""
    none = str(None)  # as the record of a recipe that makes its corpus has it
    folder = read_record(experiment.data_dir / ".prepare.done").get("inputs", {}).get(_CORPUS, none)
    is_ours = folder == none or Path(folder).is_relative_to(_download_dir(experiment))
    return None if is_ours else Path(folder)


def _download_dir(experiment: Experiment) -> Path:
    return experiment.data_dir.absolute() / "corpus"


def _download(experiment: Experiment) -> list[Task]:
    recipe, path = experiment.recipe, experiment.data_dir / ".download.done"
    download, inputs = recipe.download, {"recipe.py": hash_file(recipe.path)}
    if download is None or experiment.given_corpus_dir is not None or _find_given_before(experiment):
        return []

    def find_reason() -> str | None:
        record = read_record(path)
        return find_change(record, inputs, [Path(record.get("corpus_dir", ""))])

    def run() -> None:
        assert download is not None
        folder = download(_download_dir(experiment))
        write_record(path, {"inputs": inputs, "corpus_dir": str(folder)})

    return [Task("download", STAGES["download"], find_reason, run)]


def _prepare(experiment: Experiment) -> Task:
    data_dir, recipe = experiment.data_dir, experiment.recipe
    path = data_dir / ".prepare.done"

    def list_inputs() -> dict[str, str]:
        inputs = {"recipe.py": hash_file(recipe.path), _CORPUS: str(find_corpus_dir(experiment))}
        inputs |= {"--partial": "given"} if experiment.partial else {}
        return inputs | ({"smoke mode": hash_text("smoke")} if experiment.smoke else {})

    def find_reason() -> str | None:
        outputs = [data_dir / f"{split}.jsonl" for split in SPLITS]
        return find_change(read_record(path), list_inputs(), outputs)

    def run() -> None:
        inputs, corpus_dir, done = list_inputs(), find_corpus_dir(experiment), read_record(path)
        path.unlink(missing_ok=True)
        for name in done.get("manifests", []):  # what is not written again must not be taken for new
            (data_dir / Path(name).name).unlink(missing_ok=True)
        before = stamp_manifests(data_dir)
        shortfalls = recipe.write_manifests(
            corpus_dir, data_dir.absolute(), smoke=experiment.smoke, partial=experiment.partial
        )
        written = find_written(data_dir, before)
        if experiment.smoke:
            cut_manifests(data_dir)
        if shortfalls:
            mark_partial([data_dir / name for name in written], shortfalls)
        write_record(path, {"inputs": inputs, "manifests": written, "shortfalls": shortfalls})

    return Task("prepare", STAGES["prepare"], find_reason, run)


# --- train --------------------------------------------------------------------------------------


def check_data(experiment: Experiment) -> None:
    """Check the data of all systems that are still to be trained, before the first of them is."""
    runs = build_runs(experiment)
    if untrained := [run for run in runs if _train(experiment, run, runs).find_reason()]:
        check_test_split(untrained, experiment.data_dir / "test.jsonl")


def _train(experiment: Experiment, run: Run, runs: Sequence[Run]) -> Task:
    """Training resumes by itself, and knows its settings and data; the record says that it has ended."""

    def find_reason() -> str | None:
        record = read_record(run.record_path)
        if other := _explain_other_training(run, record, runs):
            return other
        if not record.get("done") or not run.model_path.exists():
            return "it has not been done"
        longer = run.config.train.steps > record["settings"]["train"]["steps"]
        return "more updates are wanted" if longer else None

    def run_it() -> None:
        record = read_record(run.record_path)
        if _explain_other_training(run, record, runs):
            _put_aside(run)
            record = {}
        if not find_checkpoints(run.folder):  # then what is there is of unknown origin
            run.tokenizer_path.unlink(missing_ok=True)
        machines = list(dict.fromkeys([*record.get("machines", []), describe_machine()]))
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
            train_and_draw(run.config)
        finally:
            torch.set_num_threads(threads)  # a conf may set them; the next one may count on the default
        write_record(run.record_path, record | {"done": True})

    does = f"train it for {run.config.train.steps:,} updates"
    if checkpoints := find_checkpoints(run.folder):
        does += f", going on from {checkpoints[-1].name} if it is the same training"
    return Task(f"train {run.name}", does, find_reason, run_it)


def _explain_other_training(run: Run, record: Mapping[str, Any], runs: Sequence[Run]) -> str | None:
    """Explain in what the training in the folder differs from this one; None if there is none, or no
    difference."""
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


def _hash_start(run: Run, runs: Sequence[Run]) -> str | None:
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


def _put_aside(run: Run) -> None:
    """Put aside what was trained on other data or with other settings: hours of work are never deleted."""
    number = 1
    while (aside := run.folder.with_name(f"{run.name}.old-{number}")).exists():
        number += 1
    run.folder.rename(aside)
    logger.info("%s: made of other data or settings; what there was is now in %s", run.name, aside)


# --- evaluate and report ------------------------------------------------------------------------


def _evaluate(experiment: Experiment, run: Run) -> Task:
    recipe = experiment.recipe
    runs = find_all_runs(experiment) if recipe.text_fusion else []

    def language_models() -> list[Run]:
        """Find those that have been trained, by this call or an earlier one, on the tokens of this system.

        What starts from a model of another corpus may number its tokens otherwise.
        """
        trained = [own for own in runs if own.config.model.type == "language" and own.model_path.exists()]
        return [own for own in trained if hash_file(own.tokenizer_path) == hash_file(run.tokenizer_path)]

    def list_inputs() -> dict[str, str]:
        manifests = (Path(run.config.data.dev), experiment.data_dir / "test.jsonl")
        found = {"the model": hash_file(run.model_path)} | {path.name: hash_file(path) for path in manifests}
        found |= {f"the model of {own.name}": hash_file(own.model_path) for own in language_models()}
        names = ("speeds", "text_fusion", "checks")
        return found | {name: str(getattr(recipe, name)) for name in names} | {"smoke": str(experiment.smoke)}

    def run_it() -> None:
        inputs = list_inputs()
        summary = evaluate_run(experiment, run, [own.folder for own in language_models()])
        write_record(run.summary_path, summary | {"inputs": inputs})

    return Task(
        f"evaluate {run.name}",
        "decode dev and test by each setup that it offers",
        lambda: find_change(read_record(run.summary_path), list_inputs(), []),
        run_it,
    )


def find_evaluated_runs(experiment: Experiment) -> tuple[list[Run], list[str]]:
    """Find the runs whose results are up to date, of this call and of earlier ones; and what others lack."""
    runs = find_all_runs(experiment)
    evaluated, reasons = [], []
    for run in runs:
        if run.folder.exists() and run.makes_text:
            tasks = (_train(experiment, run, runs), _evaluate(experiment, run))
            lacking = [f"{task.name}: {reason}" for task in tasks if (reason := task.find_reason())]
            if lacking:
                reasons.append(lacking[0])
            else:
                evaluated.append(run)
    return evaluated, reasons


def _report(experiment: Experiment) -> Task:
    path = experiment.report_dir / ".report.done"

    def list_inputs() -> dict[str, str]:
        runs = find_evaluated_runs(experiment)[0]
        return {run.name: hash_file(run.summary_path) for run in runs} | {"publish": str(experiment.publish)}

    def run_it() -> None:
        inputs = list_inputs()
        runs, reasons = find_evaluated_runs(experiment)
        if not runs:
            raise UserError(f"{experiment.runs_dir}: no system has been evaluated; leave --stage out")
        for reason in reasons:
            logger.info("left out of the comparison, since %s", reason)
        make_report(experiment, runs)
        write_record(path, {"inputs": inputs})

    return Task("report", STAGES["report"], lambda: find_change(read_record(path), list_inputs(), []), run_it)


TOLERANCE = 0.1  # of the number of parameters
NUM_TOKENS = 32  # to count parameters with: the real number comes from the training texts and changes little


def run_study(experiment: Experiment) -> None:
    """Train and compare the variants of the experiment's study. What is done already is skipped."""
    study = experiment.study
    assert study is not None
    choose_stages(replace(experiment, only=()), None)  # for its checks
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
    """Load the conf of each variant; refuse sizes that cannot be compared."""
    base = recipe.find_systems().get(study.system)
    if base is None:
        raise UserError(f"system = {study.system}: no {study.system}.yaml in {recipe.conf_dir}")
    variants = {}
    for name, own in study.variants.items():
        overrides = (*base.overrides, *study.all, *own)
        variants[name] = SystemConf(path=base.path, overrides=overrides, variant=name)
        config, wanted = load_conf(variants[name]), study.parameters
        if config.start_from is not None and wanted is None:
            continue  # sizes may come with the weights, when training starts
        count = count_parameters(config)
        logger.info("%-28s %9s parameters", name, f"{count:,}")
        if wanted is not None and abs(count - wanted) > TOLERANCE * wanted:
            raise UserError(
                f"variant {name} has {count:,} parameters; expected {wanted:,} give or take {TOLERANCE:.0%}. "
                "Change its sizes, or `parameters` of the study"
            )
    return variants


def count_parameters(config: RunConfig) -> int:
    with torch.device("meta"):
        model = build_model(config.model, FrontEnd(config.features).num_features, NUM_TOKENS)
    return sum(parameter.numel() for parameter in model.parameters())


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
        found = (data_dir / p.name if p.parent == path.parent else p for p in map(Path, sources))
        whole = read_manifest(*found)  # those of another recipe stay in its folder
        write_unless_equal(data_dir / name, [u for u in whole if u.speaker != speaker])
        return path.with_name(name).as_posix()

    paths = {"train": write_others(train, *data.train_paths), "dev": write_others(dev, data.dev)}
    overrides = [f"data.{key}={json.dumps(path)}" for key, path in paths.items()]
    return SystemConf(
        path=conf.path, overrides=(*conf.overrides, *overrides), variant=conf.variant, left_out=speaker
    )


def write_unless_equal(path: Path, utterances: list[Utterance]) -> None:
    """Write a manifest; leave one alone that says the same, as another process may be training on it."""
    if not path.exists() or list(read_manifest(path)) != utterances:
        write_manifest(path, utterances)
