"""Recipes: found by their folder, loaded from their file; what is wanted of one, and where that goes."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import asr
from asr.errors import UserError

SPLITS = ("train", "dev", "test")
# name -> (type, what it is), of what each recipe defines
_EXPECTED: dict[str, tuple[type, str]] = {
    "LICENCE": (str, "a string"),
    "HOURS": (float, "a float: hours of speech in train, dev and test together"),
    "prepare": (FunctionType, "a function prepare(corpus_dir, output_dir) that writes the manifests"),
}
# And of what a recipe without URLS does not define: its corpus comes by --corpus-dir alone.
_EXPECTED_WITH_URLS: dict[str, tuple[type, str]] = {
    "URLS": (
        tuple,
        "a tuple of addresses, the first one first; empty if the recipe makes its corpus itself; left out if "
        "the corpus comes by --corpus-dir alone",
    ),
    "download": (FunctionType, "a function download(target_dir) that returns the folder of the corpus"),
}
_OPTIONAL = ("SMOKE", "BASELINE", "SPEEDS", "DECODED_AS", "WEIGHS_IN_TEXTS")


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
    def urls(self) -> tuple[str, ...]:
        """Where the corpus can be downloaded; empty if it cannot."""
        return tuple(getattr(self.module, "URLS", ()))

    @property
    def needs_corpus(self) -> bool:
        """Whether it is one that is downloaded or given, and not made by the recipe."""
        return bool(self.urls) or not hasattr(self.module, "URLS")

    @property
    def smoke_constants(self) -> dict[str, object]:
        """Constants of the file and their values in smoke mode: its SMOKE, if it has one."""
        return dict(getattr(self.module, "SMOKE", {}))

    @property
    def baseline(self) -> str:
        """The system that others are compared with, if it is there; else it is the first."""
        return str(getattr(self.module, "BASELINE", "ctc_lstm"))

    @property
    def speeds(self) -> tuple[float, ...]:
        """At which systems also hear each utterance, to take what is likeliest; empty: at its own alone."""
        return tuple(getattr(self.module, "SPEEDS", ()))

    @property
    def decoded_as(self) -> dict[str, str]:
        """Systems whose training includes dev, and those by whose dev results their decoding is chosen."""
        return dict(getattr(self.module, "DECODED_AS", {}))

    @property
    def weighs_in_texts(self) -> bool:
        """Whether systems are also decoded with a lexicon and language models of their training texts."""
        return bool(getattr(self.module, "WEIGHS_IN_TEXTS", False))

    def prepare(self, corpus_dir: Path | None, output_dir: Path) -> None:
        """Call the recipe's function; wrong values for a record are an error of its file."""
        import pydantic  # heavy: --help does without

        from asr.config import describe_fault

        try:
            self.module.prepare(corpus_dir, output_dir)
        except pydantic.ValidationError as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == self.module.__file__]
            raise UserError(f"{self.path}:{lines[-1]}: {describe_fault(error)}") from None

    @property
    def shipped_model(self) -> Path:
        """Where the folder of a trained model is, with its card README.md, if the recipe has one."""
        return self.path.parent / "pretrained"

    @property
    def conf_dir(self) -> Path:
        """Where the systems of this corpus are: `conf` beside the recipe, else conf/NAME beside `recipes`."""
        own = self.path.parent / "conf"
        return own if own.is_dir() else self.path.absolute().parents[2] / "conf" / self.name

    def find_confs(self) -> dict[str, Path]:
        """Name and file of each system."""
        return {path.stem: path for path in sorted(self.conf_dir.glob("*.yaml"))}


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
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}: cannot be loaded ({type(error).__name__}: {error})") from error
    if not module.__doc__:
        raise UserError(f"{path}: begin it with a docstring; its first line is what `asr recipe list` shows")
    _refuse_near_misses(module, path)
    expected_of = _EXPECTED | (_EXPECTED_WITH_URLS if hasattr(module, "URLS") else {})
    for constant, (expected_type, expected) in expected_of.items():
        if not isinstance(getattr(module, constant, None), expected_type):
            raise UserError(f"{path}: {constant} is missing, or is not {expected}")
    smoke = getattr(module, "SMOKE", {})
    if not isinstance(smoke, dict) or not all(hasattr(module, str(constant)) for constant in smoke):
        raise UserError(
            f"{path}: SMOKE is not a dict of constants of this file and their values in smoke mode"
        )
    return Recipe(name, path, module)


def _refuse_near_misses(module: ModuleType, path: Path) -> None:
    """LICENSE, or SPEED: a name that is nearly one of ours, which would be missing, or be left unread."""
    names = (*_EXPECTED, *_EXPECTED_WITH_URLS, *_OPTIONAL)
    own = [
        name
        for name, value in vars(module).items()
        if name not in names and not name.startswith("_")
        if not isinstance(value, type | ModuleType)
        if getattr(value, "__module__", module.__name__) == module.__name__  # not imported
    ]
    for wanted in names:
        near = difflib.get_close_matches(
            wanted.casefold(), [name.casefold() for name in own], n=1, cutoff=0.85
        )
        if near and not hasattr(module, wanted):
            given = next(name for name in own if name.casefold() == near[0])
            raise UserError(f"{path}: {given} is no name that a recipe has; did you mean {wanted}? Rename it")


# --- what is wanted -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What is wanted of a recipe, and where it goes."""

    recipe: Recipe
    output_dir: Path | None = None
    """Where all goes; None: data/NAME for the data, runs/NAME for the rest."""
    given_corpus_dir: Path | None = None
    only: tuple[str, ...] = ()
    """Systems; empty: all of them."""
    seeds: tuple[int, ...] = ()
    """Each system is trained once for each; empty: with the seed of its conf."""
    smoke: bool = False
    """Few utterances, few updates, small models: shows in seconds that all runs; the results mean nothing."""
    jobs: int = 1
    """Trainings at once, each in a process of its own with its share of the cores."""
    publish: bool = False
    """Write the results beside the recipe, to be kept with it."""

    @property
    def data_dir(self) -> Path:
        return Path("data") / self._folder if self.output_dir is None else self.output_dir

    @property
    def runs_dir(self) -> Path:
        return Path("runs") / self._folder if self.output_dir is None else self.output_dir / "runs"

    @property
    def report_dir(self) -> Path:
        return self.runs_dir / "report"

    @property
    def results_dir(self) -> Path:
        return self.runs_dir / "results"

    @property
    def published_dir(self) -> Path:
        return self.recipe.path.parent / "results"

    @property
    def _folder(self) -> str:
        return f"{self.recipe.name}-smoke" if self.smoke else self.recipe.name

    @property
    def command(self) -> str:
        """What gives the same numbers anywhere; folders are left open, since they do not matter."""
        words = ["asr recipe run", self.recipe.name]
        words += ["--corpus-dir DIR"] * (self.given_corpus_dir is not None)
        words += [f"--only {system}" for system in self.only]
        words += [f"--seeds {','.join(map(str, self.seeds))}"] * bool(self.seeds)
        words += [f"--jobs {self.jobs}"] * (self.jobs > 1)
        words += ["--smoke"] * self.smoke
        return " ".join(words)
