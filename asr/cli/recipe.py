"""`asr recipe list`, `show NAME` and `run NAME`: from a corpus to manifests."""

from __future__ import annotations

import argparse
from pathlib import Path

from asr.recipe import (
    STAGES,
    Job,
    choose_stages,
    find_reason_to_skip,
    find_recipes,
    is_done,
    load_recipe,
    run_recipe,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="list|show|run", required=True)
    for name, help_text in (
        ("list", "name every recipe"),
        ("show", "explain one recipe: what it is, its licence, its size, its stages"),
        ("run", "run the stages of one recipe; those that are done already are skipped"),
    ):
        command = commands.add_parser(
            name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
        )
        if name != "list":
            command.add_argument("name", metavar="NAME", help="one that `asr recipe list` shows")
        if name == "run":
            command.add_argument("--stage", choices=list(STAGES), help="run this one only")
            command.add_argument(
                "--corpus-dir",
                type=Path,
                metavar="DIR",
                help="a copy of the corpus, instead of downloading it",
            )
            command.add_argument(
                "--output-dir", type=Path, metavar="DIR", help="where all goes (default: data/NAME)"
            )
            command.add_argument("--dry-run", action="store_true", help="only say what would be done")
        command.add_argument(
            "--recipes-dir", type=Path, metavar="DIR", help="a folder of recipes, NAME/recipe.py each"
        )


def run(args: argparse.Namespace) -> int:
    return {"list": _list, "show": _show, "run": _run}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    recipes = [load_recipe(name, args.recipes_dir) for name in find_recipes(args.recipes_dir)]
    width = max(len(recipe.name) for recipe in recipes)
    for recipe in recipes:
        is_prepared = is_done(Job(recipe, _default_output_dir(recipe.name)), "prepare")
        print(f"{recipe.name:<{width}}  {'prepared' if is_prepared else '-':<8}  {recipe.summary}")
    return 0


def _show(args: argparse.Namespace) -> int:
    recipe = load_recipe(args.name, args.recipes_dir)
    print(f"{recipe.name}: {recipe.description}\n")
    print(f"licence   {recipe.module.LICENCE}")
    print(f"hours     {recipe.module.HOURS}")
    for url in recipe.module.URLS or ("nowhere: the recipe makes its corpus itself",):
        print(f"from      {url}")
    for name, stage in STAGES.items():
        print(f"stage     {name}: {stage.help}")
    print(f"more      {recipe.path.with_name('README.md')}")
    return 0


def _run(args: argparse.Namespace) -> int:
    recipe = load_recipe(args.name, args.recipes_dir)
    job = Job(recipe, args.output_dir or _default_output_dir(recipe.name), args.corpus_dir)
    if args.dry_run:
        for stage in choose_stages(job, args.stage):
            reason = find_reason_to_skip(job, stage)
            print(
                f"{stage}: would be skipped, {reason}" if reason else f"{stage}: would {STAGES[stage].help}"
            )
        return 0
    run_recipe(job, args.stage)
    if args.stage != "download":
        _print_manifests(job.output_dir)
    return 0


def _print_manifests(output_dir: Path) -> None:
    from asr.manifest import Manifest

    for path in sorted(output_dir.glob("*.jsonl")):
        manifest = Manifest.open(path)
        print(f"{path}  {len(manifest):,} utterances  {manifest.durations.sum() / 3600:.2f} hours")


def _default_output_dir(name: str) -> Path:
    return Path("data") / name
