"""`asr recipe list`, `show`, `run` and `study`: from a corpus to trained, compared systems."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.options import add_settings, whole_number
from asr.errors import UserError
from asr.recipe.tasks import STAGES, PartError, explain_plan

if TYPE_CHECKING:
    from asr.recipe.experiment import Experiment

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="list|show|run|study", required=True)
    for name, help_text in (
        ("list", "name every recipe"),
        ("show", "explain one recipe: what it is, its licence, its size, its stages, its systems"),
        ("run", "download, prepare, train and compare; what is done already is skipped"),
        ("study", "train variants of one system with the same budget, and compare them"),
    ):
        command = commands.add_parser(
            name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
        )
        if name in ("show", "run"):
            command.add_argument("name", metavar="CORPUS", help="one that `asr recipe list` shows")
        if name == "study":
            command.add_argument(
                "name", metavar="CORPUS/STUDY", help="a study that `asr recipe show CORPUS` shows"
            )
        if name in ("run", "study"):
            _add_run_arguments(command, "system" if name == "run" else "variant")
        command.add_argument(
            "--recipes-dir",
            type=Path,
            metavar="DIR",
            help="a folder of recipes, NAME/recipe.py each; their systems are in NAME/conf, "
            "else in conf/NAME beside the folder",
        )


def _add_run_arguments(command: argparse.ArgumentParser, system: str) -> None:
    """`system` is what is trained, in words."""
    if system == "system":
        command.add_argument("--stage", choices=list(STAGES), help="run this one only")
        command.add_argument("--dry-run", action="store_true", help="only say what would be done, and why")
        add_settings(command, "a setting of the systems, such as train.steps=100; may be repeated")
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar=system.upper(),
        help=f"this {system} only; may be repeated",
    )
    command.add_argument(
        "--seeds",
        type=_parse_seeds,
        default=(),
        metavar="N,N",
        help=f"train each {system} with each of these",
    )
    command.add_argument(
        "--corpus-dir", type=Path, metavar="DIR", help="a copy of the corpus, instead of downloading it"
    )
    command.add_argument(
        "--partial",
        action="store_true",
        help="prepare a corpus of which only a part is there; manifests, results and reports say so",
    )
    command.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="where all goes, the runs below DIR/runs (default: data/NAME and runs/NAME)",
    )
    command.add_argument(
        "--jobs",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="train this many at once, each with its share of the cores (default: 1)",
    )
    command.add_argument(
        "--smoke",
        action="store_true",
        help="little of everything: shows in about half a minute whether all works",
    )
    command.add_argument(
        "--publish", action="store_true", help="keep results and hypotheses beside the recipe"
    )


def _parse_seeds(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) <= 9 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers with commas, such as 0,1,2")
    return tuple(dict.fromkeys(map(int, words)))


def run(args: argparse.Namespace) -> int:
    return {"list": _list, "show": _show, "run": _run, "study": _study}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from asr.recipe.definition import find_recipes, load_recipe
    from asr.recipe.experiment import Experiment
    from asr.recipe.splits import is_prepared

    names = list(find_recipes(args.recipes_dir))
    for name in names:
        try:
            recipe = load_recipe(name, args.recipes_dir)
            state, summary = "prepared" if is_prepared(Experiment(recipe)) else "-", recipe.summary
        except UserError as error:
            state, summary = "broken", str(error)
        print(f"{name:<{max(map(len, names))}}  {state:<8}  {summary}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from asr.recipe.definition import load_recipe

    recipe = load_recipe(args.name, args.recipes_dir)
    print(f"{recipe.name}: {recipe.description}\n")
    print(f"licence   {recipe.licence}")
    print(f"hours     {recipe.hours}")
    nowhere = (
        "nowhere: the recipe makes its corpus itself"
        if recipe.synthetic
        else f"your own copy, by --corpus-dir; {recipe.source}".rstrip("; ")
    )
    for url in recipe.urls or (nowhere,):
        print(f"from      {url}")
    for name, does in STAGES.items():
        print(f"stage     {name}: {does}")
    for name, conf in recipe.find_systems().items():
        print(f"system    {name}: {' '.join([str(conf.path), *conf.overrides])}")
    for name in recipe.find_studies():
        print(f"study     {name}: asr recipe study {recipe.name}/{name}")
    if (model := recipe.shipped_model).is_dir():
        megabytes = sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) / 1e6
        print(f"model     {model} ({megabytes:.1f} MB): asr transcribe FILE --model {model}")
    print(f"more      {recipe.path.with_name('README.md')}")
    return 0


def _run(args: argparse.Namespace) -> int:
    from asr.recipe.stages import build_plan, run_recipe

    experiment = _build_experiment(args, args.name)
    if args.dry_run:
        print("\n".join(explain_plan(build_plan(experiment, args.stage))))
        return 0
    try:
        run_recipe(experiment, args.stage)
    except PartError as error:
        logger.error("asr: %s", error)
        return 1
    _print_results(experiment, args.stage)
    return 0


def _study(args: argparse.Namespace) -> int:
    from asr.recipe.study import PAGE, load_study, run_study

    corpus, slash, name = args.name.partition("/")
    if not slash:
        raise UserError(f"{args.name!r}: expected CORPUS/STUDY, such as fsdd/systems")
    experiment = _build_experiment(args, corpus, name)
    try:
        folder = run_study(experiment, load_study(experiment.recipe, name))
    except PartError as error:
        logger.error("asr: %s", error)
        return 1
    print((folder / PAGE).read_text(encoding="utf-8"), end="")
    return 0


def _build_experiment(args: argparse.Namespace, corpus: str, study: str | None = None) -> Experiment:
    from asr.recipe.definition import load_recipe
    from asr.recipe.experiment import Experiment

    for override in () if study else args.set:
        if override.partition("=")[0].strip() == "output_dir":
            raise UserError(
                f"--set {override}: the runs of a recipe have folders of their own; give --output-dir"
            )
    return Experiment(
        load_recipe(corpus, args.recipes_dir),
        args.output_dir,
        args.corpus_dir,
        only=tuple(args.only),
        seeds=args.seeds,
        overrides=() if study else tuple(args.set),  # the variants of a study differ by its settings alone
        partial=args.partial,
        smoke=args.smoke,
        jobs=args.jobs,
        publish=args.publish,
        study=study,
    )


def _print_results(experiment: Experiment, stage: str | None) -> None:
    """Print the manifests after the first stages, the table after the last ones."""
    table = experiment.report_dir / "report.md"
    if stage in (None, "prepare"):
        from asr.data.manifest import Manifest

        for path in sorted(experiment.data_dir.glob("*.jsonl")):
            manifest = Manifest.open(path)
            print(f"{path}  {len(manifest):,} utterances  {manifest.durations.sum() / 3600:.2f} hours")
    if stage in (None, "report") and table.exists():
        print(table.read_text(encoding="utf-8"), end="")
        print(f"\nThis is {table}, with plots in report.html beside it.")
