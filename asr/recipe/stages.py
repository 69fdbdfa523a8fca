"""Stages of a recipe: what each reads, does and writes, from the download to the report."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asr.config import describe_config, dump_config
from asr.errors import UserError, suggest
from asr.files import replace_file
from asr.recipe.definition import SystemConf
from asr.recipe.evaluation import describe_machine, describe_origin, evaluate_run, find_guide
from asr.recipe.experiment import Experiment
from asr.recipe.processes import Processes, count_cores, run_side_by_side
from asr.recipe.report import write_report
from asr.recipe.results import compare_runs, publish_results, read_results
from asr.recipe.splits import SPLITS, check_test_split, find_written, mark_partial, stamp_manifests
from asr.recipe.systems import (
    Run,
    build_runs,
    cut_manifests,
    find_all_runs,
    find_needed,
    find_runs,
    hash_settings,
    paths_in,
)
from asr.recipe.tasks import (
    STAGES,
    PartError,
    Task,
    find_reason_to_run,
    hash_file,
    hash_text,
    read_record,
    run_task,
    write_record,
)
from asr.system.checkout import SHIPPED, find_commit
from asr.system.checkpoint import find_checkpoints, find_model
from asr.train.loop import train_and_draw
from asr.train.preparation import load_or_train_tokenizer
from asr.transcription.families import find_family

logger = logging.getLogger(__name__)

_CORPUS = "the folder of the corpus"  # among the inputs of prepare


def run_recipe(experiment: Experiment, stage: str | None = None) -> None:
    """Run one stage, or all in their order; what is done already is skipped."""
    find_commit()  # of now, whatever becomes of the checkout
    if stage is None and not experiment.recipe.find_systems():
        logger.info(
            "no system in %s: the corpus is prepared, and nothing trained", experiment.recipe.conf_dir
        )
    for name in choose_stages(experiment, stage):
        if name == "tokenizer" or stage == "train":
            check_data(experiment)
        if name == "train" and experiment.jobs > 1:  # not evaluations: their speed is measured
            train_side_by_side(experiment)
            continue
        for task in build_tasks(experiment, name):
            run_task(task)


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


def build_plan(experiment: Experiment, stage: str | None) -> list[Task]:
    return [task for name in choose_stages(experiment, stage) for task in build_tasks(experiment, name)]


def build_tasks(experiment: Experiment, stage: str) -> list[Task]:
    """Build the tasks of a stage: one, or one for each run."""
    if stage == "download":
        return [_download(experiment)]
    if stage == "prepare":
        return [_prepare(experiment)]
    if stage in ("compare", "report") and not any(run.makes_text for run in find_all_runs(experiment)):
        return []
    if stage == "compare":
        return [_compare(experiment)]
    if stage == "report":
        return [_report(experiment), *([_publish(experiment)] if experiment.publish else [])]
    runs = build_runs(experiment)
    if stage == "tokenizer":
        return [_tokenizer(run) for run in runs if run.config.start_from is None]
    if stage == "train":
        return [_train(experiment, run, runs) for run in runs]
    in_order = sorted(runs, key=lambda run: find_guide(experiment, run) is not None)
    return [_evaluate(experiment, run) for run in in_order if run.makes_text]


# --- download and prepare -----------------------------------------------------------------------


def find_corpus_dir(experiment: Experiment) -> Path | None:
    """Find the given folder, else the one that was prepared, else that of the download stage."""
    if experiment.given_corpus_dir is not None:
        return experiment.given_corpus_dir.absolute()
    return _find_given_before(experiment) or _find_downloaded_corpus(experiment)


def _find_given_before(experiment: Experiment) -> Path | None:
    """Find the folder that has been prepared, unless it is that of the download."""
    none = str(None)  # as the record of a recipe that makes its corpus has it
    folder = read_record(experiment.data_dir / ".prepare.done").get("inputs", {}).get(_CORPUS, none)
    is_ours = folder == none or Path(folder).is_relative_to(_download_dir(experiment))
    return None if is_ours else Path(folder)


def _download_dir(experiment: Experiment) -> Path:
    return experiment.data_dir.absolute() / "corpus"


def _find_downloaded_corpus(experiment: Experiment) -> Path | None:
    folder = read_record(experiment.data_dir / ".download.done").get("corpus_dir")
    return Path(folder) if folder else None


def _download(experiment: Experiment) -> Task:
    recipe = experiment.recipe

    def find_reason_against() -> str | None:
        if recipe.synthetic:
            return "this recipe makes its corpus itself"
        if experiment.given_corpus_dir is not None:
            return "--corpus-dir is given"
        if recipe.download is None:
            return "this corpus cannot be downloaded"
        if given := _find_given_before(experiment):
            return f"{given} has been prepared; another one can be given as --corpus-dir"
        return None

    def run() -> Mapping[str, Any]:
        assert recipe.download is not None  # else it is needless
        return {"corpus_dir": str(recipe.download(_download_dir(experiment)))}

    return Task(
        name="download",
        does=STAGES["download"],
        record=experiment.data_dir / ".download.done",
        inputs=lambda: {"recipe.py": hash_file(recipe.path)},
        outputs=lambda: [folder] if (folder := _find_downloaded_corpus(experiment)) else [],
        run=run,
        needless=find_reason_against(),
    )


def _prepare(experiment: Experiment) -> Task:
    data_dir, recipe = experiment.data_dir, experiment.recipe
    done = read_record(data_dir / ".prepare.done")  # before it is put away to do the task again
    corpus_dir = find_corpus_dir(experiment)

    def inputs() -> dict[str, str]:
        found = {"recipe.py": hash_file(recipe.path), _CORPUS: str(corpus_dir)}
        found |= {"--partial": "given"} if experiment.partial else {}
        return found | ({"smoke mode": hash_text("smoke")} if experiment.smoke else {})

    def run() -> Mapping[str, Any]:
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
        return {"manifests": written, "shortfalls": shortfalls}

    return Task(
        name="prepare",
        does=STAGES["prepare"],
        record=data_dir / ".prepare.done",
        inputs=inputs,
        outputs=lambda: [data_dir / f"{split}.jsonl" for split in SPLITS],
        run=run,
        after=("download",),
    )


# --- tokenizer and train ------------------------------------------------------------------------


def check_data(experiment: Experiment) -> None:
    """Check the data of all systems that are still to be trained, before the first of them is."""
    runs = build_runs(experiment)
    tested = [run for run in runs if run.conf.fold is None]  # folds are apart as they are made
    if untrained := [run for run in tested if find_reason_to_run(_train(experiment, run, runs))]:
        check_test_split(untrained, experiment.data_dir / "test.jsonl")


def find_training_inputs(run: Run) -> dict[str, str]:
    """Fingerprint what a training reads."""
    config = run.config
    files = [Path(path) for _, value, _ in describe_config(config.data) for path in paths_in(value)]
    names = Counter(path.name for path in files)
    return {f"{run.system}.yaml": hash_settings(config)} | {
        path.name if names[path.name] == 1 else str(path): hash_file(path) for path in files
    }


def _tokenizer(run: Run) -> Task:
    def run_it() -> None:
        _begin(run)
        if not find_checkpoints(run.folder):  # what is there is of unknown origin
            run.tokenizer_path.unlink(missing_ok=True)
        load_or_train_tokenizer(run.config)

    return Task(
        name=f"tokenizer {run.name}",
        does=f"make its tokenizer ({run.config.tokenizer.type}) from {run.config.data.train_name}",
        record=run.folder / ".tokenizer.done",
        inputs=lambda: find_training_inputs(run),
        outputs=lambda: [run.tokenizer_path],
        run=run_it,
        after=("prepare",),
    )


def train_side_by_side(experiment: Experiment) -> None:
    """Train up to `experiment.jobs` at once, each in a process of its own with its share of the cores."""
    runs = build_runs(experiment)
    processes = Processes()

    def train_apart(run: Run) -> None:
        conf = run.folder / "conf.yaml"
        with replace_file(conf) as file:
            file.write(dump_config(run.config).encode())
        program = [sys.executable, "-m", "asr.recipe.processes", str(conf)]
        processes.run(run.name, program, {"OMP_NUM_THREADS": str(threads)})

    tasks = [_train(experiment, run, runs, train_apart) for run in runs]
    at_once = min(experiment.jobs, sum(find_reason_to_run(task) is not None for task in tasks))
    threads = min(torch.get_num_threads(), max(1, count_cores() // max(1, at_once)))
    if faults := run_side_by_side(tasks, experiment.jobs, processes):
        listed = ", ".join(f"{name.removeprefix('train ')} ({fault})" for name, fault in faults.items())
        raise PartError(
            f"{len(faults)} of {len(tasks)} trainings failed: {listed}. What they wrote stands above, "
            "behind their names; the same command goes on with them"
        )


def _train_here(run: Run) -> None:
    threads = torch.get_num_threads()
    try:
        train_and_draw(run.config)
    finally:
        torch.set_num_threads(threads)  # a conf may set them; the next one may count on the default


def _train(
    experiment: Experiment, run: Run, runs: Sequence[Run], do: Callable[[Run], None] = _train_here
) -> Task:
    others = find_needed(run, runs)

    def inputs() -> dict[str, str]:
        found = find_training_inputs(run) | {other.name: hash_file(other.model_path) for other in others}
        start = run.config.start_from
        if start is not None and not others:
            family = find_family(start)
            weights = (
                find_model(start) / "model.safetensors" if family is None else family.find_weights(start)
            )
            found["the model that it starts from"] = hash_file(weights)
        return found

    def run_it() -> dict[str, object]:
        machines = _begin(run)
        do(run)
        return {"origin": describe_origin(experiment) | {"machine": "; ".join(machines)}}

    does = f"train it for {run.config.train.steps:,} updates"
    if (checkpoints := find_checkpoints(run.folder)) and not _is_outdated(run):
        does += f", going on from {checkpoints[-1].name}"
    return Task(
        name=f"train {run.name}",
        does=does,
        record=run.folder / ".train.done",
        inputs=inputs,
        outputs=lambda: [run.model_path],
        run=run_it,
        after=("prepare", f"tokenizer {run.name}", *(f"train {other.name}" for other in others)),
    )


def _begin(run: Run) -> list[str]:
    """Put aside what was trained on other data or with other settings: hours of work are never deleted.

    Then note what this training reads, and on which machines it has been; return these.
    """
    if _is_outdated(run):
        number = 1
        while (aside := run.folder.with_name(f"{run.name}.old-{number}")).exists():
            number += 1
        run.folder.rename(aside)
        logger.info("%s: made of other data or settings; what there was is now in %s", run.name, aside)
    machines = list(dict.fromkeys([*read_record(run.note_path).get("machines", []), describe_machine()]))
    write_record(run.note_path, {"inputs": find_training_inputs(run), "machines": machines})
    return machines


def _is_outdated(run: Run) -> bool:
    """Return whether the folder holds a training, or its beginning, of something else."""
    begun = read_record(run.note_path).get("inputs")
    return begun is not None and begun != find_training_inputs(run)


# --- evaluate, compare, report ------------------------------------------------------------------


def _evaluate(experiment: Experiment, run: Run) -> Task:
    recipe = experiment.recipe
    runs = find_all_runs(experiment) if recipe.text_fusion else []
    languages = [own for own in runs if own.config.model.type == "language"]
    guide = find_guide(experiment, run)

    def language_models() -> list[Run]:
        """Find those that have been trained, by this call or an earlier one, on the tokens of this system.

        What starts from a model of another corpus may number its tokens otherwise. What follows a guide takes
        what that one takes.
        """
        trained = [own for own in languages if own.model_path.exists()]
        if guide is not None:
            return trained
        return [own for own in trained if hash_file(own.tokenizer_path) == hash_file(run.tokenizer_path)]

    def inputs() -> dict[str, str]:
        manifests = (Path(run.config.data.dev), run.test)
        found = {"the model": hash_file(run.model_path)} | {path.name: hash_file(path) for path in manifests}
        found |= {f"the model of {own.name}": hash_file(own.model_path) for own in language_models()}
        if recipe.speeds:
            found["speeds"] = str(recipe.speeds)
        if guide is not None:
            found[f"the evaluation of {guide.name}"] = hash_file(guide.summary_path)
        found |= {"smoke mode": str(experiment.smoke), "texts": str(recipe.text_fusion)}
        return found | {"checks": str(recipe.checks)}

    return Task(
        name=f"evaluate {run.name}",
        does="decode dev and test by each setup that it offers",
        record=run.folder / ".evaluate.done",
        inputs=inputs,
        outputs=lambda: [run.summary_path],
        run=lambda: evaluate_run(experiment, run, [own.folder for own in language_models()]),
        after=(
            "prepare",
            f"train {run.name}",
            *(f"train {own.name}" for own in languages),
            *([f"evaluate {guide.name}"] if guide else []),
        ),
    )


def find_evaluated_runs(experiment: Experiment) -> tuple[list[Run], list[str]]:
    """Find the runs whose results are up to date, of this call and of earlier ones; and what others lack."""
    runs = find_all_runs(experiment)
    evaluated, reasons = [], []
    for run in runs:
        if run.folder.exists() and run.makes_text:
            tasks = (_train(experiment, run, runs), _evaluate(experiment, run))
            lacking = [f"{task.name}: {reason}" for task in tasks if (reason := find_reason_to_run(task))]
            if lacking:
                reasons.append(lacking[0])
            else:
                evaluated.append(run)
    return evaluated, reasons


def _compare(experiment: Experiment) -> Task:
    def run_it() -> None:
        runs, reasons = find_evaluated_runs(experiment)
        if not runs:
            raise UserError(f"{experiment.runs_dir}: no system has been evaluated; leave --stage out")
        for reason in reasons:
            logger.info("left out of the comparison, since %s", reason)
        compare_runs(experiment, runs)

    return Task(
        name="compare",
        does="score all systems on test, and test which is better",
        record=experiment.runs_dir / ".compare.done",
        inputs=lambda: {run.name: hash_file(run.summary_path) for run in find_evaluated_runs(experiment)[0]},
        outputs=lambda: [experiment.results_path],
        run=run_it,
        after=tuple(f"evaluate {run.name}" for run in build_runs(experiment) if run.makes_text),
    )


def _report(experiment: Experiment) -> Task:
    folder = experiment.report_dir

    def run_it() -> None:
        results = read_results(experiment)
        compared = {run["name"] for run in results["runs"]}
        runs = {run.name: run for run in find_all_runs(experiment) if run.name in compared}
        write_report(experiment, results, runs)

    return Task(
        name="report",
        does=STAGES["report"],
        record=experiment.runs_dir / ".report.done",
        inputs=lambda: {"results.json": hash_file(experiment.results_path)},
        outputs=lambda: [folder / "report.html", folder / "report.md"],
        run=run_it,
        after=("compare",),
    )


def _publish(experiment: Experiment) -> Task:
    return Task(
        name="publish",
        does=f"copy results and hypotheses to {experiment.published_dir}",
        record=experiment.runs_dir / ".publish.done",
        inputs=lambda: {"results.json": hash_file(experiment.results_path)},
        outputs=lambda: [experiment.published_dir / "results.json"],
        run=lambda: publish_results(experiment),
        after=("compare", "report"),
    )
