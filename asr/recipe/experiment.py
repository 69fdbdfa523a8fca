"""An experiment: a recipe with some of its systems and seeds, its folders, and the runs to train."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from asr.config import describe_config
from asr.errors import UserError, suggest
from asr.families import find_family, find_model
from asr.recipe.definition import Recipe, Study, SystemConf
from asr.system.run_config import RunConfig


@dataclass(frozen=True)
class Experiment:
    """A recipe to run, with its systems, seeds and folders."""

    recipe: Recipe
    output_dir: Path | None = None
    """Folder of all outputs; None: data/NAME for data, and runs/NAME for everything else."""
    given_corpus_dir: Path | None = None
    only: tuple[str, ...] = ()  # systems, or variants of the study; empty: all of them
    seeds: tuple[int, ...] = ()  # each system is trained once per seed; empty: the seed of its conf
    overrides: tuple[str, ...] = ()  # settings as key=value that override the confs of the systems
    smoke: bool = False
    """Smoke test in a few seconds of CPU time: few utterances, few updates, small models."""
    study: Study | None = None  # study whose variants are the systems

    @property
    def data_dir(self) -> Path:
        return Path("data") / self._folder if self.output_dir is None else self.output_dir

    @property
    def download_dir(self) -> Path:
        return self.data_dir.absolute() / "corpus"

    @property
    def runs_dir(self) -> Path:
        return Path("runs") / self._folder if self.output_dir is None else self.output_dir / "runs"

    @property
    def report_dir(self) -> Path:
        """Folder of results.json, the hypotheses and the report."""
        return self.runs_dir / "report"

    @property
    def _folder(self) -> str:
        study = [self.study.name] if self.study else []
        return "-".join([self.recipe.name, *study, *["smoke"] * self.smoke])

    @property
    def command(self) -> str:
        """The command that reproduces the results; folders do not affect them and are replaced by DIR."""
        name = self.recipe.name
        words = ["asr recipe", f"study {name}/{self.study.name}" if self.study else f"run {name}"]
        words += ["--corpus-dir DIR"] * (self.given_corpus_dir is not None)
        words += [f"--only {system}" for system in self.only]
        words += [f"--seeds {','.join(map(str, self.seeds))}"] * bool(self.seeds)
        words += [f"--set {shlex.quote(override)}" for override in self.overrides]
        words += ["--smoke"] * self.smoke
        return " ".join(words)


# --- runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedRun:
    """One training: a system with a seed."""

    system: str
    conf: SystemConf
    folder: Path
    seed: int
    config: RunConfig
    """The conf with the folders of this experiment, the seed, and the small sizes of smoke mode."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def model_path(self) -> Path:
        return self.folder / "model" / "model.safetensors"

    @property
    def record_path(self) -> Path:
        """Record of what its training, once started, reads, of its machines, and of its end."""
        return self.folder / ".train.json"

    @property
    def summary_path(self) -> Path:
        """Record of the evaluation."""
        return self.folder / "evaluation" / "summary.json"

    @property
    def test_table(self) -> Path:
        """Test references, and the hypotheses of each setup."""
        return self.summary_path.with_name("test.jsonl.gz")

    @property
    def makes_text(self) -> bool:
        """True if it recognizes speech. Language models and classifiers are trained but not compared."""
        return self.config.model.makes_text


def build_runs(experiment: Experiment) -> list[PlannedRun]:
    """Build a run for each selected system and seed; runs that others start from come first."""
    return find_runs(experiment)[0]


def find_runs(experiment: Experiment) -> tuple[list[PlannedRun], list[str]]:
    """Find the runs as in `build_runs`, and the systems that are left out, each with the reason."""
    systems = experiment.recipe.find_systems()
    known = {*systems, *(conf.variant for conf in systems.values() if conf.variant)}
    if unknown := [name for name in experiment.only if name not in known]:
        raise UserError(f"--only {unknown[0]}: no system of this name; {suggest(unknown[0], known)}")
    runs, left_out = [], []
    for system, conf in systems.items():
        if experiment.only and not {system, conf.variant} & {*experiment.only}:
            continue
        own = load_conf(conf, experiment.overrides)
        _refuse_other_corpus(experiment.recipe.name, conf.path, own)
        if reason := _find_obstacle(experiment, own):
            if experiment.only:
                raise UserError(f"--only {system}: {reason}")
            left_out.append(f"{system}: left out, because {reason}")
            continue
        seeds = experiment.seeds if experiment.seeds and own.model.makes_text else (own.seed,)
        runs += [_build_run(experiment, system, conf, own, seed) for seed in seeds]
    return _sort_by_need(runs), left_out


def _refuse_other_corpus(name: str, conf: Path, own: RunConfig) -> None:
    """Refuse a conf copied from another corpus, which would train on the data of that corpus."""
    for key, path in own.data.named_paths:
        if re.match(r"data/[^/]+/", path) and not path.startswith(f"data/{name}/"):
            raise UserError(f"{conf}: data.{key} = {path} is not data of {name}; expected data/{name}/...")


def _find_obstacle(experiment: Experiment, own: RunConfig) -> str | None:
    """Return why a system cannot be trained now: it starts from an external model that is missing."""
    start = own.start_from
    if start is None or start.startswith(f"runs/{experiment.recipe.name}/"):
        return None
    if experiment.smoke:
        return f"a small model cannot start from {start}"
    if find_family(start, as_run=True) is not None:
        ask = f"it starts from {start}: ask for it by --only, and it may be fetched"
        return None if experiment.only else ask
    try:
        find_model(start)
    except UserError:
        return f"it starts from {start}, which has not been trained"
    return None


def _build_run(
    experiment: Experiment, system: str, conf: SystemConf, own: RunConfig, seed: int
) -> PlannedRun:
    """Build one run of `own`, the loaded conf. A run with the seed of the conf has the name of the system."""
    folder = experiment.runs_dir / (system if seed == own.seed else f"{system}-seed-{seed}")
    moved = [*_move_paths(experiment, own), f"output_dir={json.dumps(str(folder))}", f"seed={seed}"]
    given = experiment.overrides
    config = load_conf(conf, [*given, *moved])
    if experiment.smoke:
        config = load_conf(conf, [*given, *_shrink(config), *given, *moved])
    return PlannedRun(system, conf, folder, seed, config)


def load_conf(conf: SystemConf, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a conf with its own overrides and then the given ones."""
    return RunConfig.load(conf.path, [*conf.overrides, *overrides])


def _move_paths(experiment: Experiment, config: RunConfig) -> Iterator[str]:
    """Redirect the paths in data/NAME and runs/NAME to the folders of the experiment."""
    folders = {"data": experiment.data_dir, "runs": experiment.runs_dir}
    place = re.compile(rf'"(data|runs)/{re.escape(experiment.recipe.name)}/')
    for key, value, _ in describe_config(config):
        written = json.dumps(value, default=str) if isinstance(value, str | tuple) else ""
        moved = place.sub(lambda found: json.dumps(f"{folders[found[1]]}/")[:-1], written)
        if moved != written:
            yield f"{key}={moved}"


def _sort_by_need(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Sort the runs so that each comes after the one that it starts from."""
    named = {run.name: run for run in runs}
    needs = {}
    for run in runs:
        start = Path(run.config.start_from or "")
        needs[run.name] = [own.name for own in runs if own.folder in (start, *start.parents)]
    try:
        return [named[name] for name in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        raise UserError(f"{error.args[1][0]}: starts from a run that itself starts from this one") from None


# --- smoke mode ---------------------------------------------------------------------------------

# In smoke mode, settings whose names end like this are lowered to these values.
_SMOKE_CAPS = {
    "dim": 16,
    "num_layers": 1,
    "num_heads": 2,
    "feed_forward_dim": 32,
    "channels": 4,
    "train.steps": 4,
    "keep_updates": 1,
    "end_updates": 2,
    "train.batches_per_update": 1,
    "train.validate_every": 2,
    "train.save_every": 2,
    "train.log_every": 1,
    "train.keep_best": 2,
    "optim.warmup_steps": 1,
    "batches.num_workers": 0,
    "batches.max_utterances": 8,
}
# Settings that do not suit a small model or few texts.
_SMOKE_REPLACED: dict[str, Any] = {
    "data.max_unknown": 1.0,  # few texts lack some characters, in Chinese most of them
    "train.precision": "float32",  # skips the timing that selects the faster precision
}


def _shrink(config: RunConfig) -> Iterator[str]:
    """Yield overrides that shorten any run to seconds."""
    for key, value, _ in describe_config(config):
        if key == "batches.num_workers" and not config.model.reads_audio:
            continue  # a language model has no such setting and would refuse it
        for name, cap in _SMOKE_CAPS.items():
            if f".{key}".endswith(f".{name}") and isinstance(value, int) and value > cap:
                yield f"{key}={cap}"
        if key in _SMOKE_REPLACED and value != _SMOKE_REPLACED[key]:
            yield f"{key}={json.dumps(_SMOKE_REPLACED[key])}"
    if config.tokenizer.type in ("bpe", "unigram"):  # few texts do not have 500 pieces
        yield "tokenizer.type=characters"
        yield "tokenizer.vocab_size=null"
