"""Trains variants of one system with the same budget and several seeds, and compares them.

    python tools/study.py recipes/fsdd/guided_attention.yaml --corpus-dir DIR --seeds 0,1,2 --output-dir OUT

The study is a YAML file; class Study below says what stands in it. Each variant becomes a conf of its own
in OUT/recipes, or in a study with folds one conf for each speaker that is left out, and the stages of the
recipe do the rest; called again, it goes on where it was cut off. OUT/report has the page with its pictures
and all figures; `--publish DIR` keeps them with the hypotheses that they follow from.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pydantic
import torch
import yaml
from study_figures import (
    Record,
    add_learning,
    beam_suffix,
    describe_score,
    score_lengths,
    score_study,
    write_unheard,
)
from study_report import draw_learning, draw_lengths, draw_maps, format_page

from asr.config import Config, load_config
from asr.data.manifest import read_manifest, write_manifest
from asr.decoding.search import Method
from asr.errors import UserError
from asr.features.front_end import FrontEnd
from asr.models import build_model
from asr.recipe.definition import Job, SystemConf, load_recipe
from asr.recipe.figures import choose_utterances
from asr.recipe.results import REFERENCES, RESULTS, hypotheses_name
from asr.recipe.stages import build_tasks, run_recipe
from asr.recipe.tasks import PartError, read_record, run_task, write_record
from asr.system.run_config import RunConfig

logger = logging.getLogger(__name__)

TOLERANCE = 0.1  # of the number of parameters
NUM_TOKENS = 32  # to count parameters with: the real number comes from the training texts and changes little
FIGURES, PAGE = "study.json", "report.md"


class Study(Config):
    """What is varied."""

    question: str
    """What the study asks: the first lines of its report."""
    corpus: str
    """Name of the recipe."""
    conf: str
    """The system that is varied."""
    all: tuple[str, ...] = ()
    """Overrides for all variants."""
    baseline: str
    """The variant to compare with."""
    variants: dict[str, tuple[str, ...]] = pydantic.Field(min_length=2)
    """Overrides for each."""
    parameters: int | None = None
    """That each variant has, give or take a tenth; null: they may differ in size."""
    folds: Literal["speaker"] | None = None
    """speaker: each variant is trained as often as there are speakers, each time without one of them, whom
    neither train nor dev has then, and tested on that one; null: trained once, tested on all."""
    lengths: tuple[str, ...] = ()
    """Manifests beside test.jsonl, of longer utterances than training has: WER is drawn against length."""
    length_beams: tuple[pydantic.PositiveInt, ...] = ()
    """WER is drawn for each of these beams; empty: for that of all else. A wide beam prefers short texts."""
    methods: tuple[Method, ...] = ()
    """How all that the study reports is decoded: each run by the first of these that it offers; empty: as dev
    chooses among all ways. Then a CTC head beside a decoder may hide what the decoder cannot do."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Study:
        if self.baseline not in self.variants:
            known = ", ".join(self.variants)
            raise ValueError(f"baseline = {self.baseline} is none of the variants: {known}")
        if self.lengths and self.folds is not None:
            raise ValueError("folds and lengths: longer utterances of speakers left out are not measured")
        if self.length_beams and not self.lengths:
            raise ValueError("length_beams without lengths: there is nothing to decode with them")
        return self


@dataclass(frozen=True)
class StudyJob(Job):
    """A recipe whose systems are the variants of a study."""

    study: Path = Path()
    variants: tuple[str, ...] = ()
    """Those that are wanted; empty: all of them."""

    @property
    def command(self) -> str:
        words = [f"python tools/study.py {Path(os.path.relpath(self.study)).as_posix()}"]
        words += ["--corpus-dir DIR"] * (self.given_corpus_dir is not None) + ["--output-dir OUT"]
        words += [f"--only {variant}" for variant in self.variants]
        words += [f"--seeds {','.join(map(str, self.seeds))}", *[f"--jobs {self.jobs}"] * (self.jobs > 1)]
        words += ["--smoke"] * self.smoke
        return " ".join(words)


# --- variants -----------------------------------------------------------------------------------


def load_variants(study: Study) -> dict[str, RunConfig]:
    """The whole config of each; refuses sizes that cannot be compared."""
    configs = {}
    for name, overrides in study.variants.items():
        output_dir = f"output_dir=runs/{study.corpus}/{name}"
        configs[name] = RunConfig.load(study.conf, [*study.all, *overrides, output_dir])
        count = count_parameters(configs[name])
        logger.info("%-28s %9s parameters", name, f"{count:,}")
        wanted = study.parameters
        if wanted is not None and abs(count - wanted) > TOLERANCE * wanted:
            raise UserError(
                f"variant {name} has {count:,} parameters; expected {wanted:,} give or take {TOLERANCE:.0%}. "
                "Change its sizes, or `parameters` of the study"
            )
    return configs


def count_parameters(config: RunConfig) -> int:
    with torch.device("meta"):
        model = build_model(config.model, FrontEnd(config.features).num_features, NUM_TOKENS)
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Case:
    """What becomes a conf: a variant, in a study with folds without one of the speakers."""

    variant: str
    config: RunConfig
    left_out: str | None = None

    @property
    def name(self) -> str:
        return self.variant if self.left_out is None else f"{self.variant}_without_{self.left_out}"


def build_cases(study: Study, data_dir: Path) -> dict[str, Case]:
    """By name; those with folds need the prepared manifests, and write the parts of them."""
    cases = [Case(variant, config) for variant, config in load_variants(study).items()]
    if study.folds == "speaker":
        speakers = find_speakers(data_dir / "test.jsonl")
        cases = [leave_out(case, speaker, data_dir) for case in cases for speaker in speakers]
    return {case.name: case for case in cases}


def find_speakers(manifest: Path) -> list[str]:
    speakers = {utterance.speaker for utterance in read_manifest(manifest)}
    if None in speakers or len(speakers) < 2:
        raise UserError(
            f"{manifest}: folds leave out speakers; expected a speaker of each utterance, and two"
        )
    return sorted(str(speaker) for speaker in speakers)


def leave_out(case: Case, speaker: str, data_dir: Path) -> Case:
    """The case on manifests beside those it had, which have all utterances but those of the speaker."""
    paths = {}
    for key in ("train", "dev"):
        whole = Path(getattr(case.config.data, key))
        part = whole.with_name(f"{whole.stem}_without_{speaker}.jsonl")
        kept = [u for u in read_manifest(data_dir / whole.name) if u.speaker != speaker]
        write_manifest(data_dir / part.name, kept)
        paths[key] = part.as_posix()
    changes = {
        "data": case.config.data.model_copy(update=paths),
        "output_dir": f"{case.config.output_dir}_without_{speaker}",
    }
    return Case(case.variant, case.config.model_copy(update=changes), speaker)


# --- the recipe ---------------------------------------------------------------------------------


def write_confs(cases: dict[str, Case], folder: Path) -> dict[str, SystemConf]:
    """The systems of the study."""
    folder.mkdir(parents=True, exist_ok=True)
    systems = {name: SystemConf(path=folder / f"{name}.yaml") for name in cases}
    for name, case in cases.items():
        text = yaml.safe_dump(case.config.model_dump(mode="json"), sort_keys=False)
        systems[name].path.write_text(text, encoding="utf-8")
    return systems


def prepare_and_run(study: Study, job: StudyJob) -> dict[str, Case]:
    """All stages of the recipe; folds are made of what the first two have left."""
    for stage in ("download", "prepare"):
        for task in build_tasks(job, stage):
            run_task(task)
    cases = build_cases(study, job.data_dir)
    systems = write_confs(cases, job.data_dir / "conf")
    recipe = job.recipe.model_copy(update={"systems": systems, "baseline": study.baseline})
    wanted = tuple(name for name, case in cases.items() if case.variant in job.variants)
    run_recipe(dataclasses.replace(job, recipe=recipe, only=wanted))
    return cases


# --- the report ---------------------------------------------------------------------------------


def read_runs(job: Job, study: Study, cases: dict[str, Case]) -> list[Record]:
    """Those that have been evaluated, in the order of the study, with the decoding that is reported."""
    found = read_record(job.results_dir / RESULTS)["runs"]
    runs = []
    for name, case in cases.items():
        for run in (run for run in found if run["system"] == name):
            run = choose_method(run, study.methods)
            ways = {
                "dev": run["ways"]["dev"],
                "test": {run["decoding"]: run["ways"]["test"][run["decoding"]]},
            }
            runs.append({**run, "ways": ways, "variant": case.variant, "left_out": case.left_out})
    return runs


def choose_method(run: Record, methods: Sequence[Method]) -> Record:
    """The run as decoded by the first of the methods that it offers, if any are asked for."""
    if not methods:
        return run
    ways = run["ways"]["test"]
    method = next((method for method in methods if method in ways), None)
    if method is None:
        offered, asked = ", ".join(ways), ", ".join(methods)
        raise UserError(
            f"{run['name']} was decoded by {offered}; of the study's methods there is none: {asked}"
        )
    speed = ways[method]["real_time_factor"]
    config = {**run["decoding_config"], "method": method}
    return {**run, "decoding": method, "decoding_config": config, "real_time_factor": speed}


def report(job: StudyJob, study: Study, cases: dict[str, Case], folder: Path) -> None:
    """Write study.json, the page and its pictures, and print the page."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    runs = [add_learning(job, run) for run in read_runs(job, study, cases)]
    folders = {run["name"]: job.runs_dir / run["name"] for run in runs}
    pictures = {"curves.svg": "WER on dev while the systems were trained"}
    draw_learning({name: run / "log.jsonl" for name, run in folders.items()}, folder / "curves.svg")
    lengths = {}
    if study.lengths:
        trained = max(len((u.text or "").split()) for u in read_manifest(job.data_dir / "train.jsonl"))
        for beam in study.length_beams or (None,):
            scores = score_lengths(job, runs, study.lengths, beam)
            title = "WER on test by the number of words" + (f", beam {beam}" if beam else "")
            lengths[title] = {
                name: {str(length): describe_score(score) for length, score in own.items()}
                for name, own in scores.items()
            }
            picture = f"lengths{beam_suffix(beam) if beam else ''}.svg"
            draw_lengths(scores, trained, folder / picture)
            pictures[picture] = title
    shown = job.runs_dir / "shown.jsonl"
    write_manifest(shown, choose_utterances(job.data_dir / "dev.jsonl"))
    firsts: dict[str, Path] = {}
    for run in runs:
        firsts.setdefault(run["variant"], folders[run["name"]])
    if draw_maps(firsts, shown, folder / "attention.png"):
        pictures["attention.png"] = (
            "Attention of the decoder's last layer, mean of its heads, to dev utterances under the true text"
        )
    results: Record = {"study": job.study.stem, "question": study.question, "corpus": study.corpus}
    results |= {"smoke": job.smoke, "command": job.command, "baseline": study.baseline}
    results |= score_study(job.results_dir, study.baseline, runs) | {"lengths": lengths}
    write_record(folder / FIGURES, results)
    page = format_page(results, pictures)
    (folder / PAGE).write_text(page, encoding="utf-8")
    print(page)


def publish(job: Job, study: Study, report_dir: Path, folder: Path) -> None:
    """Keep the report, and all texts that its figures follow from; what was published before is replaced."""
    if folder.exists() and any(folder.iterdir()) and not (folder / FIGURES).exists():
        raise UserError(f"{folder}: has files, but no {FIGURES} of an earlier study; give an empty folder")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(report_dir, folder)
    shutil.copyfile(job.results_dir / REFERENCES, folder / REFERENCES)
    runs = read_record(report_dir / FIGURES)["runs"]
    decoded = list(study.lengths)  # besides test, which the results have
    for beam in study.length_beams:
        decoded += [name + beam_suffix(beam) for name in ("test", *study.lengths)]
    for run in runs:
        texts = hypotheses_name(run["name"], run["decoding"])
        shutil.copyfile(job.results_dir / texts, folder / texts)
        evaluation = job.runs_dir / run["name"] / "evaluation"
        for name in study.lengths:
            shutil.copyfile(evaluation / f"{name}.jsonl", folder / f"{name}.{REFERENCES}")
        for name in decoded:
            for path in evaluation.glob(f"{name}.*.jsonl"):
                shutil.copyfile(path, folder / f"{run['name']}.{path.name}")
    if study.folds is not None:
        write_unheard(folder, runs)


def parse_seeds(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(seed) for seed in text.split(",")))


def run(args: argparse.Namespace) -> None:
    study = load_config(Study, args.study)
    if unknown := [variant for variant in args.only if variant not in study.variants]:
        raise UserError(f"--only {unknown[0]}: no such variant; there are {', '.join(study.variants)}")
    if args.smoke and args.publish:
        raise UserError("--smoke and --publish: results of a smoke run mean nothing; leave one of them out")
    job = StudyJob(
        load_recipe(study.corpus).model_copy(update={"systems": {}}),
        args.output_dir / "work",
        args.corpus_dir,
        seeds=args.seeds,
        smoke=args.smoke,
        jobs=args.jobs,
        study=args.study,
        variants=tuple(args.only),
    )
    cases = prepare_and_run(study, job)
    report_dir = args.output_dir / "report"
    report(job, study, cases, report_dir)
    if args.publish is not None:
        publish(job, study, report_dir, args.publish)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", type=Path, metavar="STUDY.yaml")
    parser.add_argument("--corpus-dir", type=Path, metavar="DIR")
    parser.add_argument("--output-dir", type=Path, required=True, metavar="OUT")
    parser.add_argument("--seeds", type=parse_seeds, default=(0,), metavar="N,N")
    parser.add_argument("--only", action="append", default=[], metavar="VARIANT")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at once")
    parser.add_argument("--smoke", action="store_true", help="little of everything: does it work?")
    parser.add_argument("--publish", type=Path, metavar="DIR")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        run(parser.parse_args())
    except UserError as error:
        print(f"study: {error}", file=sys.stderr)
        return 1 if isinstance(error, PartError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
