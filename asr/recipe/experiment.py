"""An experiment: a recipe to run with some of its systems and seeds, its folders, records of its steps."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr import files
from asr.files import replace_file
from asr.recipe.definition import Recipe, Study, SystemConf


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
    publish: bool = False
    """Write the results beside the recipe, to be kept with it."""
    study: Study | None = None
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
        """The folder of results.json, the hypotheses and the report."""
        return self.runs_dir / "report"

    @property
    def published_dir(self) -> Path:
        return self.recipe.path.parent / (f"studies/{self.study.name}" if self.study else "results")

    @property
    def _folder(self) -> str:
        study = [self.study.name] if self.study else []
        return "-".join([self.recipe.name, *study, *["smoke"] * self.smoke])

    @property
    def command(self) -> str:
        """The command that gives the same numbers anywhere; folders do not matter and are left open."""
        name = self.recipe.name
        words = ["asr recipe", f"study {name}/{self.study.name}" if self.study else f"run {name}"]
        words += ["--corpus-dir DIR"] * (self.given_corpus_dir is not None)
        words += ["--partial"] * self.partial
        words += [f"--only {system}" for system in self.only]
        words += [f"--seeds {','.join(map(str, self.seeds))}"] * bool(self.seeds)
        words += [f"--set {shlex.quote(override)}" for override in self.overrides]
        words += ["--smoke"] * self.smoke
        return " ".join(words)


# --- records of what has been done --------------------------------------------------------------


def find_change(record: Mapping[str, Any], inputs: Mapping[str, str], outputs: Sequence[Path]) -> str | None:
    """Find why a step is to be done: for the first time, or for what it reads; None if it is not."""
    done = record.get("inputs")
    if not isinstance(done, dict):
        return "it has not been done"
    if changed := [what for what in {**inputs, **done} if inputs.get(what) != done.get(what)]:
        return f"changed since it was done: {', '.join(changed)}"
    missing = [str(path) for path in outputs if not path.exists()]
    return f"missing: {', '.join(missing)}" if missing else None


def read_record(path: Path) -> dict[str, Any]:
    """Read what a step has left; empty if it has not been done."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    with replace_file(path) as file:
        file.write(json.dumps(record, ensure_ascii=False, indent=1).encode() + b"\n")


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of the content, or "missing"."""
    try:
        return files.hash_file(path)
    except OSError:
        return "missing"
