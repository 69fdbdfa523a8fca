"""Build the runs of a recipe: each a conf with its seed and its folders, in full or in smoke size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from asr.config import describe_config
from asr.data.manifest import Manifest, Utterance, write_manifest
from asr.data.packed import is_shards
from asr.errors import UserError
from asr.families import find_family
from asr.recipe.definition import SystemConf
from asr.recipe.experiment import Experiment
from asr.system.checkpoint import find_model
from asr.system.run_config import RunConfig

SMOKE_UTTERANCES = {"train": 32}
SMOKE_UTTERANCES_ELSEWHERE = 8
# Settings of any name that ends so are lowered to this in smoke mode.
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
# Settings that name what a small model, or few texts, do not have.
_SMOKE_REPLACED: dict[str, Any] = {
    "data.max_unknown": 1.0,  # few texts do not have every character, in Chinese not even most
    "train.precision": "float32",  # no trial of what is quicker
    "train.compile": False,
}


@dataclass(frozen=True)
class Run:
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
    def tokenizer_path(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def model_path(self) -> Path:
        return self.folder / "model" / "model.safetensors"

    @property
    def record_path(self) -> Path:
        """Notes what its training, once begun, reads, on which machines it was, and whether it ended."""
        return self.folder / ".train.json"

    @property
    def evaluation_dir(self) -> Path:
        return self.folder / "evaluation"

    @property
    def summary_path(self) -> Path:
        return self.evaluation_dir / "summary.json"

    @property
    def makes_text(self) -> bool:
        """Ability to recognise speech. Language models and classifiers are trained, but not compared."""
        return self.config.model.makes_text


def build_runs(experiment: Experiment) -> list[Run]:
    """Build a run for each wanted system and seed; what others start from comes first."""
    return find_runs(experiment)[0]


def find_runs(experiment: Experiment) -> tuple[list[Run], list[str]]:
    """Find the runs as `build_runs` does, and the systems that are left out, each with the reason."""
    runs, left_out = [], []
    for system, conf in experiment.recipe.find_systems().items():
        if not experiment.wants(system, conf):
            continue
        own = load_conf(conf, experiment.overrides)
        _refuse_other_corpus(experiment, conf.path, own)
        if reason := _find_reason_to_wait(experiment, own):
            if experiment.only:
                raise UserError(f"--only {system}: {reason}")
            left_out.append(f"{system}: left out, since {reason}")
            continue
        seeds = experiment.seeds if experiment.seeds and own.model.makes_text else (own.seed,)
        runs += [_build_run(experiment, system, conf, own, seed) for seed in seeds]
    return _sort_by_need(runs), left_out


def find_all_runs(experiment: Experiment) -> list[Run]:
    """Find the runs of all systems, also of other seeds that have been trained before."""
    runs = []
    for system, conf in experiment.recipe.find_systems().items():
        own = load_conf(conf, experiment.overrides if experiment.wants(system, conf) else ())
        folders = experiment.runs_dir.glob(f"{system}-seed-*")
        found = (re.fullmatch(r"-seed-(\d{1,9})", folder.name.removeprefix(system)) for folder in folders)
        seeds = {own.seed, *experiment.seeds, *(int(match[1]) for match in found if match)}
        runs += [_build_run(experiment, system, conf, own, seed) for seed in sorted(seeds)]
    return runs


def _refuse_other_corpus(experiment: Experiment, conf: Path, own: RunConfig) -> None:
    """Refuse a conf copied from another corpus: it would train on that one's data under this one's name."""
    for key, name in own.data.named_paths:
        path = Path(name)
        if path.parts[:1] == ("data",) and len(path.parts) > 2 and path.parts[1] != experiment.recipe.name:
            raise UserError(
                f"{conf}: data.{key} = {path} is data of {path.parts[1]}, but this is a system of "
                f"{experiment.recipe.name}; set data.{key}: data/{experiment.recipe.name}/{path.name}"
            )


def _find_reason_to_wait(experiment: Experiment, own: RunConfig) -> str | None:
    """Find why a system cannot be trained now: it starts from a model of elsewhere that is not there."""
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


def _build_run(experiment: Experiment, system: str, conf: SystemConf, own: RunConfig, seed: int) -> Run:
    """Build one run of `own`, the conf as it stands. Its seed has the plain name, as by `asr train CONF`."""
    folder = experiment.runs_dir / (system if seed == own.seed else f"{system}-seed-{seed}")
    place = [*_move_paths(experiment, own), f"output_dir={json.dumps(str(folder))}", f"seed={seed}"]
    given = experiment.overrides if experiment.wants(system, conf) else ()
    config = load_conf(conf, [*given, *place])
    if experiment.smoke:
        config = load_conf(conf, [*given, *_shrink(config), *given, *place])
    return Run(system, conf, folder, seed, config)


def load_conf(conf: SystemConf, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a conf with its overrides, then with more."""
    config = RunConfig.load(conf.path, [*conf.overrides, *overrides])
    for key, path in config.data.named_paths:
        if is_shards(path):
            raise UserError(
                f"{conf.path}: data.{key} = {path} is a folder of shards. Recipes and studies compare the "
                "splits and deal them into folds: name the manifest that was packed, or use `asr train` and "
                "`asr evaluate`, which take shards"
            )
    return config


def _move_paths(experiment: Experiment, config: RunConfig) -> Iterator[str]:
    """Override the paths in data/NAME and runs/NAME, which may be elsewhere."""
    places = {
        f"data/{experiment.recipe.name}": experiment.data_dir,
        f"runs/{experiment.recipe.name}": experiment.runs_dir,
    }

    def move(text: str) -> str:
        for place, folder in places.items():
            if text.startswith(f"{place}/"):
                return str(folder / text.removeprefix(f"{place}/"))
        return text

    for key, value, _ in describe_config(config):
        moved = [move(path) for path in paths_in(value)]
        if moved != paths_in(value):
            yield f"{key}={json.dumps(moved[0] if isinstance(value, str) else moved)}"


def paths_in(value: Any) -> list[str]:
    """List the paths that a setting may hold."""
    if isinstance(value, str):
        return [value]
    is_list = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    return list(value) if is_list else []


def _sort_by_need(runs: Sequence[Run]) -> list[Run]:
    """Put each run behind the one that it starts from."""
    named = {run.name: run for run in runs}
    sources = {run.name: find_source(run, runs) for run in runs}
    try:
        needs = {name: [source.name] if source else [] for name, source in sources.items()}
        return [named[name] for name in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        conf = named[error.args[1][0]].conf.path
        raise UserError(f"{conf}: starts from a run that itself starts from this one") from None


def find_source(run: Run, runs: Sequence[Run]) -> Run | None:
    """Find the run of this recipe that it starts from, if it does so."""
    start = Path(run.config.start_from or "")
    return next((own for own in runs if own.folder in (start, *start.parents) and own != run), None)


# --- smoke mode ---------------------------------------------------------------------------------


def _shrink(config: RunConfig) -> Iterator[str]:
    """Overrides that make any run a matter of seconds."""
    for key, value, _ in describe_config(config):
        if key == "batches.num_workers" and not config.model.reads_audio:
            continue  # a model of language has none, and refuses the setting
        for name, cap in _SMOKE_CAPS.items():
            if f".{key}".endswith(f".{name}") and isinstance(value, int) and value > cap:
                yield f"{key}={cap}"
        if key in _SMOKE_REPLACED and value != _SMOKE_REPLACED[key]:
            yield f"{key}={json.dumps(_SMOKE_REPLACED[key])}"
    if config.tokenizer.type in ("bpe", "unigram"):  # few texts have no 500 pieces
        yield "tokenizer.type=characters"
        yield "tokenizer.vocab_size=null"


def cut_manifests(data_dir: Path) -> None:
    """Keep a few utterances of each manifest, from its whole length: so most speakers are there."""
    for path in sorted(data_dir.glob("*.jsonl")):
        count = SMOKE_UTTERANCES.get(path.stem, SMOKE_UTTERANCES_ELSEWHERE)
        write_manifest(path, spread(Manifest.open(path), count))


def spread(utterances: Sequence[Utterance], count: int) -> list[Utterance]:
    """Choose so many, or all if there are fewer, from the whole length."""
    count = min(len(utterances), count)
    return [utterances[index * len(utterances) // count] for index in range(count)]
