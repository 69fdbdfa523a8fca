"""An experiment: a recipe to run with some of its systems and seeds, and the folders of data and results."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from asr.recipe.definition import Recipe, SystemConf


@dataclass(frozen=True)
class Experiment:
    """A recipe to run: with which systems and seeds, in which folders."""

    recipe: Recipe
    output_dir: Path | None = None
    """Where all goes; None: data/NAME for the data, runs/NAME for the rest."""
    given_corpus_dir: Path | None = None
    only: tuple[str, ...] = ()
    """Systems, or variants of the study; empty: all of them."""
    seeds: tuple[int, ...] = ()
    """Each system is trained once for each; empty: with the seed of its conf."""
    overrides: tuple[str, ...] = ()
    """Settings as key=value that replace those of the systems' confs."""
    partial: bool = False
    """Prepare a part of the corpus too; manifests, results and reports say so."""
    smoke: bool = False
    """Few utterances, few updates, small models: shows in seconds that all runs; the results mean nothing."""
    jobs: int = 1
    """Trainings at once, each in a process of its own with its share of the cores."""
    publish: bool = False
    """Write the results beside the recipe, to be kept with it."""
    study: str | None = None
    """The study whose variants are the systems; None: no study."""

    def wants(self, system: str, conf: SystemConf) -> bool:
        """Return whether it trains the system."""
        return not self.only or system in self.only or conf.variant in self.only

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
    def results_path(self) -> Path:
        return self.results_dir / "results.json"

    @property
    def published_dir(self) -> Path:
        return self.recipe.path.parent / (f"studies/{self.study}" if self.study else "results")

    @property
    def _folder(self) -> str:
        return "-".join([self.recipe.name, *filter(None, [self.study]), *["smoke"] * self.smoke])

    @property
    def command(self) -> str:
        """The command that gives the same numbers anywhere; folders do not matter and are left open."""
        words = [
            "asr recipe",
            f"study {self.recipe.name}/{self.study}" if self.study else f"run {self.recipe.name}",
        ]
        words += ["--corpus-dir DIR"] * (self.given_corpus_dir is not None)
        words += ["--partial"] * self.partial
        words += [f"--only {system}" for system in self.only]
        words += [f"--seeds {','.join(map(str, self.seeds))}"] * bool(self.seeds)
        words += [f"--set {shlex.quote(override)}" for override in self.overrides]
        words += [f"--jobs {self.jobs}"] * (self.jobs > 1)
        words += ["--smoke"] * self.smoke
        return " ".join(words)
