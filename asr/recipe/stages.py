"""Stages of a recipe: what each reads, does and writes, from the download to the report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.errors import UserError
from asr.recipe.tasks import Task, hash_file, hash_text, read_record, run_task
from asr.system.checkout import SHIPPED, find_commit

if TYPE_CHECKING:
    from asr.recipe.experiment import Experiment  # imports pydantic, which --help does not need

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
STAGES = {
    "download": "fetch and unpack the corpus",
    "prepare": "check the corpus and write the manifests train.jsonl, dev.jsonl and test.jsonl",
    "tokenizer": "find the tokens of each system in its training texts",
    "train": "train each system, or go on where training was cut off",
    "evaluate": "decode dev and test with each system; dev chooses the decoding setup",
    "compare": "compute error rates with intervals, and test which system is better",
    "report": "write one HTML page and one Markdown table",
}
_CORPUS = "the folder of the corpus"  # among the inputs of prepare


def run_recipe(experiment: Experiment, stage: str | None = None) -> None:
    """Run one stage, or all in their order; what is done already is skipped."""
    find_commit()  # of now, whatever becomes of the checkout
    if stage is None and not experiment.recipe.find_systems():
        logger.info(
            "no system in %s: the corpus is prepared, and nothing trained", experiment.recipe.conf_dir
        )
    for name in choose_stages(experiment, stage):
        if name in ("tokenizer", "train") and experiment.recipe.find_systems():
            from asr.recipe import training

            if name == "tokenizer" or stage == "train":
                training.check_data(experiment)
            if name == "train" and experiment.jobs > 1:  # not evaluations: their speed is measured
                training.train_side_by_side(experiment)
                continue
        for task in build_tasks(experiment, name):
            run_task(task)


def choose_stages(experiment: Experiment, stage: str | None) -> list[str]:
    """Name the wanted stages, after a check that they fit the corpus that is given, or is not."""
    name, needs_corpus = experiment.recipe.name, not experiment.recipe.synthetic
    if experiment.given_corpus_dir is not None and not needs_corpus:
        raise UserError(f"{name} makes its corpus itself and reads none; leave --corpus-dir out")
    if experiment.given_corpus_dir is not None and stage == "download":
        raise UserError("--stage download and --corpus-dir: with a corpus there is nothing to download")
    if needs_corpus and not experiment.recipe.urls and find_corpus_dir(experiment) is None:
        source = f" To get one: {experiment.recipe.source}." if experiment.recipe.source else ""
        raise UserError(
            f"{name} cannot be downloaded; pass --corpus-dir DIR, the folder of your copy.{source}"
        )
    if stage == "prepare" and needs_corpus and find_corpus_dir(experiment) is None:
        raise UserError(
            f"{experiment.data_dir}: no corpus has been downloaded; leave --stage out, or pass "
            "--corpus-dir DIR"
        )
    if experiment.smoke and experiment.publish:
        raise UserError("--smoke and --publish: results of a smoke run mean nothing; leave one of them out")
    if experiment.publish and experiment.recipe.path.is_relative_to(SHIPPED):
        raise UserError(f"--publish: {name} is installed with the package; publish from a checkout")
    if experiment.only and not experiment.recipe.find_systems():
        raise UserError(f"--only {experiment.only[0]}: there is no system in {experiment.recipe.conf_dir}")
    return [stage] if stage else list(STAGES)


def build_plan(experiment: Experiment, stage: str | None) -> list[Task]:
    return [task for name in choose_stages(experiment, stage) for task in build_tasks(experiment, name)]


def build_tasks(experiment: Experiment, stage: str) -> list[Task]:
    """Build the tasks of a stage: one, or one for each run."""
    if stage == "download":
        return [_download(experiment)]
    if stage == "prepare":
        return [_prepare(experiment)]
    if not experiment.recipe.find_systems():
        return []
    from asr.recipe import training  # it imports torch, which takes two seconds

    return training.build_tasks(experiment, stage)


# --- download and prepare -----------------------------------------------------------------------


def find_corpus_dir(experiment: Experiment) -> Path | None:
    """Find the given folder, else the one that was prepared, else that of the download stage."""
    if experiment.given_corpus_dir is not None:
        return experiment.given_corpus_dir.absolute()
    return _find_given_before(experiment) or _find_downloaded_corpus(experiment)


def _find_given_before(experiment: Experiment) -> Path | None:
    """Find the folder that has been prepared, unless it is that of the download."""
    if experiment.recipe.synthetic:
        return None
    folder = read_record(experiment.data_dir / ".prepare.done").get("inputs", {}).get(_CORPUS)
    if not isinstance(folder, str) or folder == str(None):
        return None
    return None if Path(folder).is_relative_to(_download_dir(experiment)) else Path(folder)


def _download_dir(experiment: Experiment) -> Path:
    return experiment.data_dir.absolute() / "corpus"


def _find_downloaded_corpus(experiment: Experiment) -> Path | None:
    folder = read_record(experiment.data_dir / ".download.done").get("corpus_dir")
    return Path(folder) if isinstance(folder, str) else None


def is_prepared(experiment: Experiment) -> bool:
    """Return whether the recipe as it is now has been run, on whatever corpus."""
    done = read_record(experiment.data_dir / ".prepare.done").get("inputs", {})
    has_all = all((experiment.data_dir / f"{split}.jsonl").exists() for split in SPLITS)
    return has_all and done.get("recipe.py") == hash_file(experiment.recipe.path)


def _download(experiment: Experiment) -> Task:
    def needless() -> str | None:
        if experiment.recipe.synthetic:
            return "this recipe makes its corpus itself"
        if not experiment.recipe.urls and experiment.given_corpus_dir is None:
            return "this corpus cannot be downloaded"
        if experiment.given_corpus_dir is not None:
            return "--corpus-dir is given"
        if given := _find_given_before(experiment):
            return f"{given} has been prepared; another one can be given as --corpus-dir"
        return None

    def run() -> Mapping[str, Any]:
        assert experiment.recipe.download is not None  # else it is needless
        return {"corpus_dir": str(experiment.recipe.download(_download_dir(experiment)))}

    def outputs() -> list[Path]:
        folder = _find_downloaded_corpus(experiment)
        return [folder] if folder else []

    return Task(
        stage="download",
        name="download",
        does=STAGES["download"],
        record=experiment.data_dir / ".download.done",
        inputs=lambda: {"recipe.py": hash_file(experiment.recipe.path)},
        outputs=outputs,
        run=run,
        needless=needless,
    )


def _prepare(experiment: Experiment) -> Task:
    done = read_record(experiment.data_dir / ".prepare.done")  # before it is put away to do the task again
    corpus_dir = find_corpus_dir(experiment)

    def inputs() -> dict[str, str]:
        found = {
            "recipe.py": hash_file(experiment.recipe.path),
            _CORPUS: str(corpus_dir),
        }
        return found | ({"smoke mode": hash_text("smoke")} if experiment.smoke else {})

    def run() -> Mapping[str, Any]:
        from asr.recipe.splits import find_written, stamp_manifests

        experiment.data_dir.mkdir(parents=True, exist_ok=True)
        for name in done.get("manifests", []):  # what is not written again must not be taken for new
            (experiment.data_dir / Path(name).name).unlink(missing_ok=True)
        before = stamp_manifests(experiment.data_dir)
        experiment.recipe.write_manifests(corpus_dir, experiment.data_dir.absolute(), smoke=experiment.smoke)
        written = find_written(experiment.data_dir, before)
        if experiment.smoke:
            from asr.recipe.systems import cut_manifests

            cut_manifests(experiment.data_dir)
        return {"manifests": written}

    return Task(
        stage="prepare",
        name="prepare",
        does=STAGES["prepare"],
        record=experiment.data_dir / ".prepare.done",
        inputs=inputs,
        outputs=lambda: [experiment.data_dir / f"{split}.jsonl" for split in SPLITS],
        run=run,
        after=("download",),
    )
