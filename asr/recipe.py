"""Recipes: found by their folder, loaded from their file, run stage by stage."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import asr
from asr.errors import UserError

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
# name -> (type, what it is), of what each recipe defines
_EXPECTED: dict[str, tuple[type, str]] = {
    "LICENCE": (str, "a string"),
    "HOURS": (float, "a float: hours of speech in train, dev and test together"),
    "URLS": (tuple, "a tuple of addresses, the first one first; empty if the recipe makes its corpus itself"),
    "download": (FunctionType, "a function download(target_dir) that returns the folder of the corpus"),
    "prepare": (FunctionType, "a function prepare(corpus_dir, output_dir) that writes the manifests"),
}


@dataclass(frozen=True)
class Recipe:
    """One loaded `recipes/NAME/recipe.py`."""

    name: str
    path: Path
    module: ModuleType

    @property
    def description(self) -> str:
        return inspect.getdoc(self.module) or ""

    @property
    def summary(self) -> str:
        return self.description.partition("\n")[0]

    @property
    def needs_corpus(self) -> bool:
        return bool(self.module.URLS)


# --- finding and loading ------------------------------------------------------------------------


def find_recipes(recipes_dir: Path | None = None) -> dict[str, Path]:
    """Name and file of each recipe; by default those next to the package, else in ./recipes."""
    candidates = (
        [recipes_dir] if recipes_dir else [Path(asr.__file__).parents[1] / "recipes", Path("recipes")]
    )
    for folder in candidates:
        if found := sorted(folder.glob("*/recipe.py")):
            return {path.parent.name: path for path in found}
    looked_at = " and in ".join(str(folder) for folder in candidates)
    raise UserError(
        f"no recipes in {looked_at}; expected NAME/recipe.py there. Pass --recipes-dir FOLDER: a checkout of "
        "this project has one called recipes"
    )


def load_recipe(name: str, recipes_dir: Path | None = None) -> Recipe:
    """Run the recipe's file, which defines constants and functions, and check that all are there."""
    recipes = find_recipes(recipes_dir)
    if name not in recipes:
        near = difflib.get_close_matches(name, recipes, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(recipes)}"
        raise UserError(f"no recipe {name!r}; {hint}")
    path = recipes[name]
    spec = importlib.util.spec_from_file_location(f"asr_recipe_{re.sub(r'[^0-9A-Za-z_]', '_', name)}", path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: cannot be loaded ({type(error).__name__}: {error})") from error
    if not module.__doc__:
        raise UserError(f"{path}: begin it with a docstring; its first line is what `asr recipe list` shows")
    for constant, (expected_type, expected) in _EXPECTED.items():
        if not isinstance(getattr(module, constant, None), expected_type):
            raise UserError(f"{path}: {constant} is missing, or is not {expected}")
    return Recipe(name, path, module)


# --- stages -------------------------------------------------------------------------------------


class Stage(NamedTuple):
    help: str
    run: Callable[[Job], Path | None]
    """Does the work; returns the folder of the corpus that it has made or read."""
    outputs: Callable[[Job], list[Path]]
    """What is there once it has been done."""


@dataclass(frozen=True)
class Job:
    """What is wanted of a recipe."""

    recipe: Recipe
    output_dir: Path
    given_corpus_dir: Path | None = None

    @property
    def corpus_dir(self) -> Path | None:
        """The given folder, else that of the download stage; None while there is neither."""
        if self.given_corpus_dir is not None:
            return self.given_corpus_dir.absolute()
        folder = _read_done(self, "download").get("corpus_dir")
        return Path(folder) if isinstance(folder, str) else None


def _download(job: Job) -> Path:
    return job.recipe.module.download(job.output_dir.absolute() / "corpus")


def _prepare(job: Job) -> Path | None:
    job.recipe.module.prepare(job.corpus_dir, job.output_dir.absolute())
    return job.corpus_dir


STAGES: dict[str, Stage] = {
    "download": Stage(
        "fetch and unpack the corpus",
        _download,
        lambda job: [job.corpus_dir] if job.corpus_dir else [],
    ),
    "prepare": Stage(
        "check the corpus and write the manifests train.jsonl, dev.jsonl and test.jsonl",
        _prepare,
        lambda job: [job.output_dir / f"{split}.jsonl" for split in SPLITS],
    ),
}


def run_recipe(job: Job, stage: str | None = None) -> None:
    """Run one stage, or all in their order; a stage that is done already is skipped."""
    for name in choose_stages(job, stage):
        if reason := find_reason_to_skip(job, name):
            logger.info("%s: skipped, %s", name, reason)
        else:
            logger.info("%s: %s", name, STAGES[name].help)
            _run_stage(job, name)


def choose_stages(job: Job, stage: str | None) -> list[str]:
    """The names of the wanted stages, after a check that they fit to the corpus that is given, or is not."""
    name = job.recipe.name
    if job.given_corpus_dir is not None and not job.recipe.needs_corpus:
        raise UserError(f"{name} makes its corpus itself and reads none; leave --corpus-dir out")
    if job.given_corpus_dir is not None and stage == "download":
        raise UserError("--stage download and --corpus-dir: with a corpus there is nothing to download")
    if stage == "prepare" and job.recipe.needs_corpus and job.corpus_dir is None:
        raise UserError(
            f"{job.output_dir}: no corpus has been downloaded; leave --stage out, or pass --corpus-dir DIR"
        )
    return [stage] if stage else list(STAGES)


def find_reason_to_skip(job: Job, stage: str) -> str | None:
    """Why a stage has nothing to do; None if it has."""
    if stage == "download" and not job.recipe.needs_corpus:
        return "this recipe makes its corpus itself"
    if stage == "download" and job.given_corpus_dir is not None:
        return "--corpus-dir is given"
    corpus_dir = _read_done(job, stage).get("corpus_dir")
    if is_done(job, stage) and (stage == "download" or corpus_dir == _as_text(job.corpus_dir)):
        return f"it has been done; to run it again, delete {_done_path(job, stage)}"
    return None


def is_done(job: Job, stage: str) -> bool:
    """Whether the recipe as it is now was run, on whatever corpus, and what it has written is there."""
    is_complete = all(path.exists() for path in STAGES[stage].outputs(job))
    return is_complete and _read_done(job, stage).get("recipe") == _hash_recipe(job)


def _run_stage(job: Job, stage: str) -> None:
    done_path = _done_path(job, stage)
    try:
        job.output_dir.mkdir(parents=True, exist_ok=True)
        done_path.unlink(missing_ok=True)
        corpus_dir = STAGES[stage].run(job)
        done = {"recipe": _hash_recipe(job), "corpus_dir": _as_text(corpus_dir)}
        done_path.write_text(json.dumps(done) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{error.filename or job.output_dir}: {error.strerror or error}; stage {stage} ended there"
        ) from error
    missing = [str(path) for path in STAGES[stage].outputs(job) if not path.exists()]
    if missing:
        raise UserError(f"{job.recipe.path}: its stage {stage} has not written {', '.join(missing)}")


def _hash_recipe(job: Job) -> str:
    return hashlib.sha256(job.recipe.path.read_bytes()).hexdigest()


def _as_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _done_path(job: Job, stage: str) -> Path:
    return job.output_dir / f".{stage}.done"


def _read_done(job: Job, stage: str) -> dict[str, object]:
    """What the stage has left; empty if it has not been done."""
    try:
        done = json.loads(_done_path(job, stage).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return done if isinstance(done, dict) else {}
