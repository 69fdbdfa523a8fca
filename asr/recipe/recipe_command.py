"""`asr recipe list`, `show`, `run` and `study`: from a corpus to trained, compared systems."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli import limit_threads
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.recipe.experiment import Experiment

HELP = {
    "list": "list every recipe with its hours, the size of its download, and whether results are published",
    "show": "describe a recipe: corpus, license, size, systems, studies",
    "run": "download, prepare, train, evaluate and report; finished stages are skipped",
    "study": "train variants of one system with the same budget and compare them",
}
NAMES = {
    "show": ("CORPUS", "one that `asr recipe list` shows"),
    "run": ("CORPUS", "one that `asr recipe list` shows"),
    "study": ("CORPUS/STUDY", "a study that `asr recipe show CORPUS` shows"),
}
STAGES = ("download", "prepare", "train", "evaluate", "report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="|".join(HELP), required=True)
    for action, help_text in HELP.items():
        description = help_text[0].upper() + help_text[1:] + "."
        command = commands.add_parser(action, help=help_text, description=description)
        add = command.add_argument
        if action in NAMES:
            metavar, text = NAMES[action]
            add("name", metavar=metavar, help=text)
        if action == "run":
            add("--stage", choices=STAGES, help="run only this stage")
            text = "repeat finished stages except the download; older runs are kept as NAME.old-1, ..."
            add("--force", action="store_true", help=text)
            text = "change a setting of all systems, such as train.steps=100; may be repeated"
            add("--set", metavar="KEY=VALUE", action="append", default=[], help=text)
        if action == "study":  # variants of a study differ only by its own settings
            command.set_defaults(stage=None, force=False, set=[])
        if action in ("run", "study"):
            system = "system" if action == "run" else "variant"
            text = f"train and report only this {system}; may be repeated"
            add("--only", action="append", default=[], metavar=system.upper(), help=text)
            text = f"train each {system} once per seed"
            add("--seeds", type=_parse_seeds, default=(), metavar="N,N", help=text)
            text = "use this copy of the corpus instead of downloading it"
            add("--corpus-dir", type=Path, metavar="DIR", help=text)
            text = "output folder; runs go to DIR/runs (default: data/NAME and runs/NAME)"
            add("--output-dir", type=Path, metavar="DIR", help=text)
            text = "smoke test on a few utterances with small models, in a few seconds of CPU time"
            add("--smoke", action="store_true", help=text)
            text = "download more than 1 GB without asking; without a terminal it never asks"
            add("--yes", action="store_true", help=text)
        text = "folder of recipes (NAME/recipe.py) with systems in NAME/conf or in ../conf/NAME"
        add("--recipes-dir", type=Path, metavar="DIR", help=text)


def _parse_seeds(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) <= 9 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers with commas, such as 0,1,2")
    return tuple(dict.fromkeys(map(int, words)))


def run(args: argparse.Namespace) -> int:
    # The core imports asr.recipe, an optional package, only here.
    from asr.recipe.definition import describe_recipe, load_recipe, load_study

    if args.action == "list":
        return _list(args.recipes_dir)
    corpus, _, study = args.name.partition("/")
    recipe = load_recipe(corpus, args.recipes_dir)
    if args.action == "show":
        print("\n".join(describe_recipe(recipe)))
        return 0
    if (args.action == "study") != bool(study):
        raise UserError(f"{args.name!r}: expected a CORPUS for run, and CORPUS/STUDY for study")
    from asr.recipe.experiment import Experiment
    from asr.recipe.stages import run_recipe

    experiment = Experiment(
        recipe,
        args.output_dir,
        args.corpus_dir,
        only=tuple(args.only),
        seeds=args.seeds,
        overrides=tuple(args.set),
        smoke=args.smoke,
        study=load_study(recipe, study) if study else None,
    )
    if not args.yes and args.stage in (None, "download"):
        _ask(experiment)
    limit_threads(None)
    run_recipe(experiment, args.stage, force=args.force)
    _print_results(experiment, "report" if study else args.stage)
    return 0


def _list(recipes_dir: Path | None) -> int:
    from asr.recipe.definition import find_recipes, load_recipe

    names = list(find_recipes(recipes_dir))
    width = max(map(len, names))
    print(f"{'recipe':<{width}}  {'hours':>6}  {'download':>8}  results  corpus")
    for name in names:
        try:
            recipe = load_recipe(name, recipes_dir)
        except UserError as error:
            print(f"{name:<{width}}  broken: {error}")
            continue
        results = "yes" if recipe.has_results else "no"
        columns = f"{recipe.hours:6.1f}  {recipe.download_size:>8}  {results:7}  {recipe.summary}"
        print(f"{name:<{width}}  {columns}")
    return 0


def _ask(experiment: Experiment) -> None:
    """Ask on a terminal before a large download."""
    from asr.recipe.stages import needs_download

    recipe = experiment.recipe
    is_large = (recipe.download_mb or 115 * recipe.hours) > 1000  # an hour at 16 kHz takes 115 MB
    is_asked = is_large and sys.stdin.isatty() and sys.stderr.isatty()
    if not is_asked or not needs_download(experiment):
        return
    sys.stderr.write(f"{recipe.name}: size of the download: {recipe.download_size}. Start it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was downloaded; pass --corpus-dir DIR to use a copy of the corpus")


def _print_results(experiment: Experiment, stage: str | None) -> None:
    """Print the manifests after the first stages, and the report after the last ones."""
    table = experiment.report_dir / "report.md"
    if stage in (None, "prepare"):
        from asr.data.manifest import Manifest

        for path in sorted(experiment.data_dir.glob("*.jsonl")):
            manifest = Manifest.open(path)
            print(f"{path}  {len(manifest):,} utterances  {manifest.durations.sum() / 3600:.2f} hours")
    if stage in (None, "report") and table.exists():
        print(table.read_text(encoding="utf-8"), end="")
        hypotheses = table.with_name("test.jsonl.gz")
        print(
            f"\nThe report is {table}. For every alignment: asr score {hypotheses} RUN.DECODING --html FILE"
        )
