"""Stages of a recipe that need a model: tokenizer, train, evaluate, compare, report."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from asr.config import describe_config, dump_config
from asr.errors import UserError
from asr.files import replace_file
from asr.recipe.evaluation import evaluate_run, find_guide
from asr.recipe.experiment import Experiment
from asr.recipe.origin import describe_machine, describe_origin
from asr.recipe.processes import Processes, count_cores, run_side_by_side
from asr.recipe.report import write_report
from asr.recipe.results import compare_runs, publish_results
from asr.recipe.splits import check_test_split
from asr.recipe.systems import Run, build_runs, find_all_runs, hash_settings, paths_in, read_by
from asr.recipe.tasks import (
    PartError,
    Task,
    find_reason_to_run,
    hash_file,
    read_record,
    skip_task,
    write_record,
)
from asr.system.checkpoint import find_checkpoints, find_model
from asr.train.loop import train
from asr.train.preparation import load_or_train_tokenizer
from asr.transcription.families import find_family

logger = logging.getLogger(__name__)


def build_tasks(experiment: Experiment, stage: str) -> list[Task]:
    """Build the tasks of one stage."""
    if stage in ("compare", "report") and not any(run.makes_text for run in find_all_runs(experiment)):
        return []
    if stage == "compare":
        return [_compare(experiment)]
    if stage == "report":
        return [_report(experiment), *([_publish(experiment)] if experiment.publish else [])]
    runs = build_runs(experiment)
    if stage == "evaluate":
        in_order = sorted(runs, key=lambda run: find_guide(experiment, run) is not None)
        return [_evaluate(experiment, run) for run in in_order if run.makes_text]
    if stage == "tokenizer":
        return [_tokenizer(run) for run in runs if run.config.start_from is None]
    return [_train(experiment, run, runs) for run in runs]


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
    named = {path.name if names[path.name] == 1 else str(path): path for path in files}
    return {f"{run.system}.yaml": hash_settings(config)} | {
        name: hash_file(path) for name, path in named.items()
    }


def _tokenizer(run: Run) -> Task:
    def run_it() -> None:
        _begin(run)
        if not find_checkpoints(run.folder):  # what is there is of unknown origin
            run.tokenizer_path.unlink(missing_ok=True)
        load_or_train_tokenizer(run.config)

    config = run.config
    return Task(
        stage="tokenizer",
        name=f"tokenizer {run.name}",
        does=f"find its {config.tokenizer.type} in the texts of {config.data.train_name}",
        record=run.folder / ".tokenizer.done",
        inputs=lambda: find_training_inputs(run),
        outputs=lambda: [run.tokenizer_path],
        run=run_it,
        after=("prepare",),
    )


def train_side_by_side(experiment: Experiment) -> None:
    """Train up to `experiment.jobs` at once, each in a process of its own with its share of the cores."""
    runs = build_runs(experiment)
    wanted: list[Run] = []
    for run in runs:  # what others start from comes first
        task = _train(experiment, run, runs)
        is_given = not any(f"train {other.name}" in task.after for other in wanted)
        if not (is_given and skip_task(task)):
            wanted.append(run)
    threads = min(torch.get_num_threads(), max(1, count_cores() // max(1, min(experiment.jobs, len(wanted)))))
    processes = Processes()

    def train_apart(run: Run) -> None:
        conf = run.folder / "conf.yaml"
        with replace_file(conf) as file:
            file.write(dump_config(run.config).encode())
        program = [sys.executable, "-m", "asr.recipe.training_process", str(conf)]
        processes.run(run.name, program, {"OMP_NUM_THREADS": str(threads)})

    tasks = [_train(experiment, run, runs, train_apart) for run in wanted]
    if faults := run_side_by_side(tasks, experiment.jobs, processes):
        listed = ", ".join(f"{name.removeprefix('train ')} ({fault})" for name, fault in faults.items())
        raise PartError(
            f"{len(faults)} of {len(tasks)} trainings failed: {listed}. What they wrote stands above, "
            "behind their names; the same command goes on with them"
        )


def _train_here(run: Run) -> None:
    threads = torch.get_num_threads()
    try:
        train(run.config)
    finally:
        torch.set_num_threads(threads)  # a conf may set them; the next one may count on the default


def _train(
    experiment: Experiment, run: Run, runs: Sequence[Run], do: Callable[[Run], None] = _train_here
) -> Task:
    others = [other for other in runs if other.folder != run.folder and read_by(run, other)]

    def inputs() -> dict[str, str]:
        found = find_training_inputs(run) | {other.name: hash_file(other.model_path) for other in others}
        start = run.config.start_from
        if start is not None and not others:
            family = find_family(start)
            weights = (
                find_model(start) / "model.safetensors" if family is None else family.find_weights(start)
            )
            found |= {"the model that it starts from": hash_file(weights)}
        return found

    def run_it() -> dict[str, object]:
        _begin(run)
        do(run)
        return {"origin": describe_origin(experiment) | {"machine": "; ".join(_machines(run))}}

    does = f"train it for {run.config.train.steps:,} updates"
    if (checkpoints := find_checkpoints(run.folder)) and not _is_outdated(run):
        does += f", going on from {checkpoints[-1].name}"
    return Task(
        stage="train",
        name=f"train {run.name}",
        does=does,
        record=run.folder / ".train.done",
        inputs=inputs,
        outputs=lambda: [run.model_path],
        run=run_it,
        after=("prepare", f"tokenizer {run.name}", *(f"train {other.name}" for other in others)),
    )


# --- evaluate, compare, report ------------------------------------------------------------------


def _evaluate(experiment: Experiment, run: Run) -> Task:
    languages = (
        [own for own in find_all_runs(experiment) if own.is_language] if experiment.recipe.text_fusion else []
    )
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
        config = run.config
        manifests = (Path(config.data.dev), run.find_test(experiment.data_dir))
        found = {"the model": hash_file(run.model_path)} | {path.name: hash_file(path) for path in manifests}
        found |= {f"the model of {own.name}": hash_file(own.model_path) for own in language_models()}
        found |= {"speeds": str(experiment.recipe.speeds)} if experiment.recipe.speeds else {}
        if guide is not None:
            found[f"the evaluation of {guide.name}"] = hash_file(guide.evaluation_dir / "summary.json")
        found |= {"smoke mode": str(experiment.smoke), "texts": str(experiment.recipe.text_fusion)}
        return found | {"checks": str(experiment.recipe.checks)}

    return Task(
        stage="evaluate",
        name=f"evaluate {run.name}",
        does="decode dev and test by each setup that it offers",
        record=run.folder / ".evaluate.done",
        inputs=inputs,
        outputs=lambda: [run.evaluation_dir / "summary.json"],
        run=lambda: evaluate_run(experiment, run, [own.folder for own in language_models()]),
        after=(
            "prepare",
            f"train {run.name}",
            *(f"train {own.name}" for own in languages),
            *([f"evaluate {guide.name}"] if guide else []),
        ),
    )


def find_evaluated_runs(experiment: Experiment) -> list[Run]:
    """Find the runs whose results are up to date: those that are wanted now, and those of earlier calls."""
    return [run for run, reason in _find_begun_runs(experiment) if reason is None]


def _find_begun_runs(experiment: Experiment) -> Iterator[tuple[Run, str | None]]:
    """List the runs that have begun, each with the reason why its results cannot be used, if there is one."""
    runs = find_all_runs(experiment)
    for run in runs:
        if run.folder.exists() and run.makes_text:
            tasks = (_train(experiment, run, runs), _evaluate(experiment, run))
            reasons = [f"{task.name}: {reason}" for task in tasks if (reason := find_reason_to_run(task))]
            yield run, reasons[0] if reasons else None


def _compare(experiment: Experiment) -> Task:
    def run_it() -> None:
        runs = find_evaluated_runs(experiment)
        if not runs:
            raise UserError(f"{experiment.runs_dir}: no system has been evaluated; leave --stage out")
        for _, reason in _find_begun_runs(experiment):
            if reason is not None:
                logger.info("left out of the comparison, since %s", reason)
        compare_runs(experiment, runs)

    return Task(
        stage="compare",
        name="compare",
        does="score all systems on test, and test which is better",
        record=experiment.runs_dir / ".compare.done",
        inputs=lambda: {
            run.name: hash_file(run.evaluation_dir / "summary.json")
            for run in find_evaluated_runs(experiment)
        },
        outputs=lambda: [experiment.results_dir / "results.json"],
        run=run_it,
        after=tuple(f"evaluate {run.name}" for run in build_runs(experiment) if run.makes_text),
    )


def _report(experiment: Experiment) -> Task:
    results_path = experiment.results_dir / "results.json"

    def run_it() -> None:
        results = read_record(results_path)
        if not results:
            raise UserError(f"{results_path}: no results to report; leave --stage out")
        write_report(experiment, results, {run.name: run for run in find_evaluated_runs(experiment)})

    return Task(
        stage="report",
        name="report",
        does="write one HTML page and one Markdown table",
        record=experiment.runs_dir / ".report.done",
        inputs=lambda: {"results.json": hash_file(results_path)},
        outputs=lambda: [experiment.report_dir / "report.html", experiment.report_dir / "report.md"],
        run=run_it,
        after=("compare",),
    )


def _publish(experiment: Experiment) -> Task:
    return Task(
        stage="report",
        name="publish",
        does=f"copy results and hypotheses to {experiment.published_dir}",
        record=experiment.runs_dir / ".publish.done",
        inputs=lambda: {"results.json": hash_file(experiment.results_dir / "results.json")},
        outputs=lambda: [experiment.published_dir / "results.json"],
        run=lambda: publish_results(experiment),
        after=("compare", "report"),
    )


# --- where a training begins --------------------------------------------------------------------


def _begin(run: Run) -> None:
    """Put aside what was trained on other data or with other settings: hours of work are never deleted.

    Then note what this training reads, and on which machine.
    """
    if _is_outdated(run):
        number = 1
        while (aside := run.folder.with_name(f"{run.name}.old-{number}")).exists():
            number += 1
        run.folder.rename(aside)
        logger.info("%s: made of other data or settings; what there was is now in %s", run.name, aside)
    machines = dict.fromkeys([*_machines(run), describe_machine()])
    write_record(_note_path(run), {"inputs": find_training_inputs(run), "machines": list(machines)})


def _is_outdated(run: Run) -> bool:
    """Return whether the folder holds a training, or its beginning, of something else."""
    begun = read_record(_note_path(run)).get("inputs")
    return begun is not None and begun != find_training_inputs(run)


def _machines(run: Run) -> list[str]:
    """List the machines of this training in their order."""
    return [str(machine) for machine in read_record(_note_path(run)).get("machines", [])]


def _note_path(run: Run) -> Path:
    return run.folder / ".train.begun"
