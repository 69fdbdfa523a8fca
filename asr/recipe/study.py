"""Train variants of one system with the same budget and seeds, and compare them: a study.

A study is a YAML file beside recipe.py; class Study says what it holds. Its variants take the place of the
recipe's systems, in a study with folds once for each speaker or fold that is left out, and the stages of the
recipe do the rest. The report has a page with pictures and all figures; published, it stands beside the
hypotheses that they follow from.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import torch

from asr.config import Config, load_config
from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.data.subsets import split_manifest
from asr.decoding.methods import Method
from asr.errors import UserError, suggest
from asr.features.front_end import FrontEnd
from asr.models import build_model
from asr.recipe.definition import Recipe, SystemConf
from asr.recipe.experiment import Experiment
from asr.recipe.figures import choose_utterances, draw_curves, draw_lengths, draw_maps
from asr.recipe.results import (
    TABLE,
    Record,
    Texts,
    choose_tested,
    describe_experiment,
    read_table,
    read_texts,
    score_study,
    setup_name,
    write_table,
)
from asr.recipe.stages import build_tasks, check_only, choose_stages, run_recipe
from asr.recipe.study_report import add_learning, beam_suffix, format_page, read_runs, score_lengths
from asr.recipe.systems import load_conf
from asr.recipe.tasks import read_record, run_task, write_record
from asr.system.run_config import RunConfig

logger = logging.getLogger(__name__)

TOLERANCE = 0.1  # of the number of parameters
NUM_TOKENS = 32  # to count parameters with: the real number comes from the training texts and changes little
FIGURES, PAGE = "study.json", "report.md"


class Study(Config):
    """The question, the system that is varied, and its variants."""

    question: str
    """What the study asks: the first lines of its report."""
    system: str
    """The system of the recipe that is varied."""
    all: tuple[str, ...] = ()
    """Overrides for all variants."""
    baseline: str
    """The variant to compare with."""
    variants: dict[str, tuple[str, ...]] = pydantic.Field(min_length=2)
    """Overrides for each."""
    parameters: int | None = None
    """That each variant has, give or take a tenth; null: they may differ in size."""
    folds: Literal["speaker"] | Annotated[int, pydantic.Field(ge=2)] | None = None
    """speaker: each variant is trained as often as there are speakers, each time without one of them, whom
    neither train nor dev has then, and tested on that one; null: trained once, tested on all. A number, for
    cross-validation: the speakers of train and dev are dealt into so many folds, and each variant is trained
    as often, each time without one fold, which is its dev and what it is tested on. test.jsonl stays unread,
    for the system that was chosen."""
    lengths: tuple[str, ...] = ()
    """Manifests beside test.jsonl, of longer utterances than training has: WER is drawn against length."""
    length_beams: tuple[pydantic.PositiveInt, ...] = ()
    """WER is drawn for each of these beams: a wide one prefers short texts."""
    methods: tuple[Method, ...] = ()
    """How all that the study reports is decoded: each run by the first of these that it offers; empty: as dev
    chooses among all. Then a CTC head beside a decoder may hide what the decoder cannot do."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Study:
        if self.baseline not in self.variants:
            known = ", ".join(self.variants)
            raise ValueError(f"baseline = {self.baseline} is none of the variants: {known}")
        if self.lengths and self.folds is not None:
            raise ValueError("folds and lengths: longer utterances of speakers left out are not measured")
        if bool(self.lengths) != bool(self.length_beams):
            raise ValueError("lengths and length_beams belong together: give both, or neither")
        return self


def load_study(recipe: Recipe, name: str) -> Study:
    """Read the study of this name beside the recipe."""
    studies = recipe.find_studies()
    if name not in studies:
        hint = suggest(f"{recipe.name}/{name}", [f"{recipe.name}/{one}" for one in studies])
        raise UserError(f"no study {name!r} of {recipe.name}; {hint}")
    return load_config(Study, studies[name])


def run_study(experiment: Experiment, study: Study) -> Path:
    """Train and compare the variants; return the folder of the report. What is done already is skipped."""
    choose_stages(replace(experiment, only=()), None)  # for its checks
    variants = load_variants(study, experiment.recipe)
    if study.folds is None:
        check_only(experiment, variants)
    for stage in ("download", "prepare"):
        for task in build_tasks(experiment, stage):
            run_task(task)
    cases = build_cases(study, variants, experiment.data_dir)
    recipe = experiment.recipe.model_copy(update={"systems": cases, "baseline": study.baseline})
    run_recipe(replace(experiment, recipe=recipe, publish=False))
    folder = experiment.runs_dir / "study"
    write_study_report(experiment, study, cases, folder)
    if experiment.publish:
        publish_study(experiment, study, folder)
    return folder


# --- variants -----------------------------------------------------------------------------------


def load_variants(study: Study, recipe: Recipe) -> dict[str, SystemConf]:
    """Load the conf of each variant; refuse sizes that cannot be compared."""
    base = recipe.find_systems().get(study.system)
    if base is None:
        raise UserError(f"system = {study.system}: no {study.system}.yaml in {recipe.conf_dir}")
    variants = {}
    for name, own in study.variants.items():
        overrides = (*base.overrides, *study.all, *own)
        variants[name] = SystemConf(path=base.path, overrides=overrides, variant=name)
        config, wanted = load_conf(variants[name]), study.parameters
        if config.start_from is not None and wanted is None:
            continue  # sizes may come with the weights, when training starts
        count = count_parameters(config)
        logger.info("%-28s %9s parameters", name, f"{count:,}")
        if wanted is not None and abs(count - wanted) > TOLERANCE * wanted:
            raise UserError(
                f"variant {name} has {count:,} parameters; expected {wanted:,} give or take {TOLERANCE:.0%}. "
                "Change its sizes, or `parameters` of the study"
            )
    return variants


def count_parameters(config: RunConfig) -> int:
    with torch.device("meta"):
        model = build_model(config.model, FrontEnd(config.features).num_features, NUM_TOKENS)
    return sum(parameter.numel() for parameter in model.parameters())


def build_cases(study: Study, variants: dict[str, SystemConf], data_dir: Path) -> dict[str, SystemConf]:
    """Build the systems to train, by name. Folds need the prepared manifests, and write parts of them."""
    if study.folds is None:
        return variants
    is_fold = study.folds != "speaker"
    if study.folds == "speaker":
        parts = {speaker: {speaker} for speaker in find_speakers(data_dir / "test.jsonl")}
    else:
        parts = deal_speakers(data_dir, study.folds)
    return {
        f"{name}_without_{part}": leave_out(conf, part, speakers, data_dir, is_fold)
        for name, conf in variants.items()
        for part, speakers in parts.items()
    }


def find_speakers(manifest: Path) -> list[str]:
    """Find all speakers, in the order of their names."""
    speakers = {utterance.speaker for utterance in read_manifest(manifest)}
    if None in speakers or len(speakers) < 2:
        raise UserError(
            f"{manifest}: folds leave out speakers; expected a speaker of each utterance, and two"
        )
    return sorted(map(str, speakers))


def deal_speakers(data_dir: Path, num_folds: int) -> dict[str, set[str]]:
    """Deal the speakers of train and dev into folds with about as much speech; write the folds."""
    shares: dict[str, float | int | str] = {
        f"fold_{number + 1}": 1 / num_folds for number in range(num_folds)
    }
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "train_and_dev.jsonl"
        write_manifest(whole, read_manifest(data_dir / "train.jsonl", data_dir / "dev.jsonl"))
        try:
            split_manifest(whole, shares, Path(folder), by="speaker")
        except UserError as error:
            raise UserError(f"folds = {num_folds} of train and dev in {data_dir}: {error}") from None
        folds = {name: list(read_manifest(Path(folder) / f"{name}.jsonl")) for name in shares}
    for name, utterances in folds.items():
        write_unless_equal(data_dir / f"{name}.jsonl", utterances)
    return {name: {str(u.speaker) for u in utterances} for name, utterances in folds.items()}


def write_unless_equal(path: Path, utterances: list[Utterance]) -> None:
    """Write a manifest; leave one alone that says the same, as another process may be training on it."""
    if not path.exists() or list(read_manifest(path)) != utterances:
        write_manifest(path, utterances)


def leave_out(conf: SystemConf, part: str, speakers: set[str], data_dir: Path, is_fold: bool) -> SystemConf:
    """Change the conf to train without the speakers, and write the manifests for it.

    A fold takes the place of dev, which is learned too then, and is what is tested. A speaker left out is in
    neither train nor dev.
    """
    data = load_conf(conf).data
    train, dev = Path(data.train_paths[0]), Path(data.dev)

    def write_others(name: str, *paths: str) -> Path:
        found = (data_dir / p.name if p.parent == train.parent else p for p in map(Path, paths))
        whole = read_manifest(*found)  # those of another recipe stay in its folder
        write_unless_equal(data_dir / name, [u for u in whole if u.speaker not in speakers])
        return train.with_name(name)

    suffix = f"_without_{part}.jsonl"
    if is_fold:
        paths = {"train": write_others(train.stem + suffix, *data.train_paths, data.dev)}
        paths["dev"] = train.with_name(f"{part}.jsonl")
    else:
        paths = {"train": write_others(train.stem + suffix, *data.train_paths)}
        paths["dev"] = write_others(dev.stem + suffix, data.dev)
    overrides = [f"data.{key}={json.dumps(path.as_posix())}" for key, path in paths.items()]
    return SystemConf(
        path=conf.path,
        overrides=(*conf.overrides, *overrides),
        variant=conf.variant,
        left_out=part,
        fold=data_dir / f"{part}.jsonl" if is_fold else None,
    )


# --- the report ---------------------------------------------------------------------------------


def write_study_report(
    experiment: Experiment, study: Study, cases: Mapping[str, SystemConf], folder: Path
) -> None:
    """Write study.json, the page and its pictures."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    runs = [add_learning(experiment, run) for run in read_runs(experiment, cases, study.methods)]
    folders = {run["name"]: experiment.runs_dir / run["name"] for run in runs}
    pictures = {"curves.svg": "WER on dev while the systems were trained"}
    curves = draw_curves({name: run / "log.jsonl" for name, run in folders.items()})
    (folder / "curves.svg").write_text(curves, encoding="utf-8")
    lengths = {}
    if study.lengths:
        trained = max(len((u.text or "").split()) for u in read_manifest(experiment.data_dir / "train.jsonl"))
        for beam in study.length_beams:
            title = f"WER on test by the number of words, beam {beam}"
            lengths[title] = score_lengths(experiment, runs, study.lengths, beam)
            picture = f"lengths_beam_{beam}.svg"
            (folder / picture).write_text(draw_lengths(lengths[title], trained), encoding="utf-8")
            pictures[picture] = title
    firsts: dict[str, Path] = {}
    for run in runs:
        firsts.setdefault(run["variant"], folders[run["name"]])
    shown = choose_utterances(experiment.data_dir / "dev.jsonl")
    if draw_maps(firsts, shown, folder / "attention.png"):
        pictures["attention.png"] = (
            "Attention of the decoder's last layer, mean of its heads, to dev utterances under the true text"
        )
    results = {
        "study": experiment.study,
        "question": study.question,
        **describe_experiment(experiment),
        "baseline": study.baseline,
        **score_study(experiment.results_dir, study.baseline, runs),
        "lengths": lengths,
    }
    write_record(folder / FIGURES, results)
    (folder / PAGE).write_text(format_page(results, pictures), encoding="utf-8")


def publish_study(experiment: Experiment, study: Study, report_dir: Path) -> None:
    """Keep the report, and all texts that its figures follow from; what was published before is replaced."""
    folder = experiment.published_dir
    if folder.exists() and any(folder.iterdir()) and not (folder / FIGURES).exists():
        raise UserError(f"{folder}: has files, but no {FIGURES} of an earlier study; give an empty folder")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(report_dir, folder)
    runs = read_record(report_dir / FIGURES)["runs"]
    references, found = read_table(experiment.results_dir / TABLE)
    chosen = {name: found[name] for run in runs if (name := setup_name(run["name"], run["decoding"]))}
    left_out = {} if study.folds is None else join_left_out(references, chosen, runs)
    tables = {"test": (references, chosen | left_out)}
    decoded = [(split, "") for split in study.lengths]
    decoded += itertools.product(("test", *study.lengths), map(beam_suffix, study.length_beams))
    for run, (split, suffix) in itertools.product(runs, decoded):
        evaluation = experiment.runs_dir / run["name"] / "evaluation"
        if split not in tables:
            tables[split] = (read_texts(evaluation / f"{split}.jsonl"), {})
        for path in evaluation.glob(f"{split}{suffix}.*.jsonl"):
            tables[split][1][run["name"] + path.stem.removeprefix(split)] = read_texts(path)
    for split, (split_references, hypotheses) in tables.items():
        write_table(folder / f"{split}.jsonl.gz", split_references, hypotheses)


def join_left_out(
    references: Texts, hypotheses: Mapping[str, Texts], runs: Sequence[Record]
) -> dict[str, Texts]:
    """Join for each variant and seed the texts of all folds, each by the run that left it out."""
    joined: dict[str, Texts] = defaultdict(dict)
    for run in runs:
        texts = hypotheses[setup_name(run["name"], run["decoding"])]
        own = {id: texts[id] for id in choose_tested(run, references, texts)}
        joined[setup_name(f"{run['variant']}-seed-{run['seed']}", "left_out")] |= own
    return joined
