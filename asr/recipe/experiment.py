"""An experiment: a recipe with some of its systems and seeds, its folders, runs and records of steps."""

from __future__ import annotations

import functools
import json
import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from asr import files
from asr.config import describe_config
from asr.data.manifest import Manifest, Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.families import find_family, find_model
from asr.files import replace_file
from asr.recipe.definition import Recipe, Study, SystemConf
from asr.system.run_config import RunConfig


@dataclass(frozen=True)
class Experiment:
    """A recipe to run: with which systems and seeds, in which folders."""

    recipe: Recipe
    output_dir: Path | None = None
    """Folder of all outputs; None: data/NAME for the data, runs/NAME for the rest."""
    given_corpus_dir: Path | None = None
    only: tuple[str, ...] = ()  # systems, or variants of the study; empty: all of them
    seeds: tuple[int, ...] = ()  # each system is trained once for each; empty: with the seed of its conf
    overrides: tuple[str, ...] = ()  # settings as key=value that replace those of the systems' confs
    smoke: bool = False
    """Few utterances and updates, small models: half a minute shows that all runs. Results mean nothing."""
    study: Study | None = None  # the study whose variants are the systems; None: no study

    def includes(self, system: str, conf: SystemConf) -> bool:
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
    def _folder(self) -> str:
        study = [self.study.name] if self.study else []
        return "-".join([self.recipe.name, *study, *["smoke"] * self.smoke])

    @property
    def command(self) -> str:
        """The command that gives the same numbers anywhere; folders do not matter and are left open."""
        name = self.recipe.name
        words = ["asr recipe", f"study {name}/{self.study.name}" if self.study else f"run {name}"]
        words += ["--corpus-dir DIR"] * (self.given_corpus_dir is not None)
        words += [f"--only {system}" for system in self.only]
        words += [f"--seeds {','.join(map(str, self.seeds))}"] * bool(self.seeds)
        words += [f"--set {shlex.quote(override)}" for override in self.overrides]
        words += ["--smoke"] * self.smoke
        return " ".join(words)


# --- records of steps --------------------------------------------------------------------------


def find_change(record: Mapping[str, Any], inputs: Mapping[str, str], outputs: Sequence[Path]) -> str | None:
    """Find why a step is out of date: not done yet, or its inputs changed; None if it is not."""
    done = record.get("inputs")
    if not isinstance(done, dict):
        return "not done yet"
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


def hash_file(path: Path) -> str:
    """SHA-256 of the content, or "missing"."""
    try:
        return files.hash_file(path)
    except OSError:
        return "missing"


logger = logging.getLogger(__name__)

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
}


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
    def tokenizer_path(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def model_path(self) -> Path:
        return self.folder / "model" / "model.safetensors"

    @property
    def record_path(self) -> Path:
        """Record of what its training, once started, reads, of its machines, and of its end."""
        return self.folder / ".train.json"

    @property
    def evaluation_dir(self) -> Path:
        return self.folder / "evaluation"

    @property
    def summary_path(self) -> Path:
        return self.evaluation_dir / "summary.json"

    @property
    def makes_text(self) -> bool:
        """Ability to recognize speech. Language models and classifiers are trained, but not compared."""
        return self.config.model.makes_text


def build_runs(experiment: Experiment) -> list[PlannedRun]:
    """Build a run for each selected system and seed; those that others start from come first."""
    return find_runs(experiment)[0]


def find_runs(experiment: Experiment) -> tuple[list[PlannedRun], list[str]]:
    """Find the runs as `build_runs` does, and the systems that are left out, each with the reason."""
    runs, left_out = [], []
    for system, conf in experiment.recipe.find_systems().items():
        if not experiment.includes(system, conf):
            continue
        own = load_conf(conf, experiment.overrides)
        _refuse_other_corpus(experiment.recipe.name, conf.path, own)
        if reason := _find_obstacle(experiment, own):
            if experiment.only:
                raise UserError(f"--only {system}: {reason}")
            left_out.append(f"{system}: left out, since {reason}")
            continue
        seeds = experiment.seeds if experiment.seeds and own.model.makes_text else (own.seed,)
        runs += [_build_run(experiment, system, conf, own, seed) for seed in seeds]
    return _sort_by_need(runs), left_out


def find_all_runs(experiment: Experiment) -> list[PlannedRun]:
    """Find the runs of all systems, also of other seeds that have been trained before."""
    runs = []
    for system, conf in experiment.recipe.find_systems().items():
        own = load_conf(conf, experiment.overrides if experiment.includes(system, conf) else ())
        folders = experiment.runs_dir.glob(f"{system}-seed-*")
        matches = (re.fullmatch(r"-seed-(\d{1,9})", folder.name.removeprefix(system)) for folder in folders)
        seeds = {own.seed, *experiment.seeds, *(int(match[1]) for match in matches if match)}
        runs += [_build_run(experiment, system, conf, own, seed) for seed in sorted(seeds)]
    return runs


def _refuse_other_corpus(name: str, conf: Path, own: RunConfig) -> None:
    """Refuse a conf copied from another corpus: it would train on that one's data under this one's name."""
    for key, path in own.data.named_paths:
        if re.match(r"data/[^/]+/", path) and not path.startswith(f"data/{name}/"):
            raise UserError(f"{conf}: data.{key} = {path} is not data of {name}; expected data/{name}/...")


def _find_obstacle(experiment: Experiment, own: RunConfig) -> str | None:
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


def _build_run(
    experiment: Experiment, system: str, conf: SystemConf, own: RunConfig, seed: int
) -> PlannedRun:
    """Build one run of `own`, the conf as it stands. Its seed has the plain name, as by `asr train CONF`."""
    folder = experiment.runs_dir / (system if seed == own.seed else f"{system}-seed-{seed}")
    moved = [*_move_paths(experiment, own), f"output_dir={json.dumps(str(folder))}", f"seed={seed}"]
    given = experiment.overrides if experiment.includes(system, conf) else ()
    config = load_conf(conf, [*given, *moved])
    if experiment.smoke:
        config = load_conf(conf, [*given, *_shrink(config), *given, *moved])
    return PlannedRun(system, conf, folder, seed, config)


def load_conf(conf: SystemConf, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a conf with its overrides, then with more."""
    return RunConfig.load(conf.path, [*conf.overrides, *overrides])


def _move_paths(experiment: Experiment, config: RunConfig) -> Iterator[str]:
    """Override the paths in data/NAME and runs/NAME, which may be elsewhere."""
    folders = {"data": experiment.data_dir, "runs": experiment.runs_dir}
    place = re.compile(rf'"(data|runs)/{re.escape(experiment.recipe.name)}/')
    for key, value, _ in describe_config(config):
        written = json.dumps(value, default=str) if isinstance(value, str | tuple) else ""
        moved = place.sub(lambda found: json.dumps(f"{folders[found[1]]}/")[:-1], written)
        if moved != written:
            yield f"{key}={moved}"


def _sort_by_need(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Put each run after the one that it starts from."""
    named = {run.name: run for run in runs}
    sources = {run.name: find_source(run, runs) for run in runs}
    needs = {name: [source.name] if source else [] for name, source in sources.items()}
    try:
        return [named[name] for name in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        raise UserError(f"{error.args[1][0]}: starts from a run that itself starts from this one") from None


def find_source(run: PlannedRun, runs: Sequence[PlannedRun]) -> PlannedRun | None:
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
    """Keep a few utterances of each manifest, evenly spaced: so most speakers are there."""
    for path in data_dir.glob("*.jsonl"):
        utterances = Manifest.open(path)
        count = min(len(utterances), 32 if path.stem == "train" else 8)
        write_manifest(path, [utterances[index * len(utterances) // count] for index in range(count)])


SPLITS = ("train", "dev", "test")


# --- what systems learn from --------------------------------------------------------------------


def check_test_split(runs: Sequence[PlannedRun], test: Path) -> None:
    """Reject training on test utterances, and a test set that cannot be scored."""
    tested = list(read_manifest(test))
    if any(one.text is None for one in tested) or not any((one.text or "").split() for one in tested):
        raise UserError(f"{test}: expected a text of each utterance, and a word; otherwise nothing is scored")
    shared_with = functools.cache(lambda path: find_shared(tested, read_manifest(path)))
    for run in runs:
        for key, path in run.config.data.named_paths:
            if not path.endswith(".jsonl") or not (shared := shared_with(path)):
                continue
            what = f"{len(shared):,} utterances of {path} are also in {test}, by id or audio: "
            what += ", ".join(shared[:3]) + ", ..." * (len(shared) > 3)
            if key == "train":
                raise UserError(f"{run.conf.path}: {what}. What is learned is no test: keep them apart")
            logger.warning("%s: %s. Dev chooses by them, so WER comes out too low", run.conf.path, what)


def find_shared(tested: Sequence[Utterance], others: Iterable[Utterance]) -> list[str]:
    """Find ids of the others that are tested too, by id or by a part of the same audio."""
    ids = {utterance.id for utterance in tested}
    parts = defaultdict(list)
    for utterance in tested:
        parts[utterance.audio].append(utterance)
    return [
        other.id
        for other in others
        if other.id in ids or any(_shares_most(mine, other) for mine in parts.get(other.audio, ()))
    ]


def _shares_most(one: Utterance, other: Utterance) -> bool:
    """Return whether the parts overlap by half of the shorter; neighbors may overlap by their edges."""
    if one.channel and other.channel and one.channel != other.channel:
        return False
    end = min(one.start + one.duration, other.start + other.duration)
    return end - max(one.start, other.start) > min(one.duration, other.duration) / 2
