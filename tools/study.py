"""Trains variants of one system with the same budget and several seeds, and compares them.

    python tools/study.py recipes/fsdd/guided_attention.yaml --corpus-dir DIR --seeds 0,1,2 --output-dir OUT

The study is a YAML file: the recipe (`corpus`), the conf that is varied, overrides for all variants (`all`),
the variant to compare with (`baseline`), and overrides for each of the `variants`. Each becomes a conf of its
own in OUT/recipes, and `asr recipe run` does the rest; called again, it goes on where it was cut off.
`--publish DIR` keeps the table, the curves and all hypotheses.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
from collections import defaultdict
from pathlib import Path

import pydantic
import yaml

from asr.config import Config, load_config
from asr.recipe.definition import Job, load_recipe
from asr.recipe.figures import Curve, draw_curves, read_curve
from asr.recipe.results import read_texts, score_texts
from asr.recipe.stages import run_recipe
from asr.run import RunConfig

RATES = (0.5, 0.2, 0.1)  # of dev WER: how soon are they reached?


class Study(Config):
    """What is varied."""

    corpus: str
    conf: str
    baseline: str
    all: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = pydantic.Field(min_length=2)


def write_recipe(study: Study, folder: Path) -> Path:
    """The recipe of the corpus with a conf for each variant; returns the folder of recipes."""
    source = load_recipe(study.corpus).path
    target = folder / "recipes" / study.corpus
    (target / "conf").mkdir(parents=True, exist_ok=True)
    recipe = source.read_text(encoding="utf-8") + f"\nBASELINE = {study.baseline!r}\n"
    (target / "recipe.py").write_text(recipe, encoding="utf-8")
    for name, overrides in study.variants.items():
        output_dir = f"output_dir=runs/{study.corpus}/{name}"
        config = RunConfig.load(study.conf, [*study.all, *overrides, output_dir])
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        (target / "conf" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / "recipes"


def find_update(curve: Curve, rate: float) -> int | None:
    """The first validation at which dev WER was at most `rate`."""
    return next((step for step, wer in zip(curve.updates, curve.wer, strict=True) if wer <= rate), None)


def summarize(job: Job, study: Study) -> str:
    """A Markdown table; figures of several seeds are medians, and test WER is that of all their errors."""
    results = json.loads((job.results_dir / "results.json").read_text(encoding="utf-8"))
    runs = defaultdict(list)
    for run in results["runs"]:
        runs[run["system"]].append(run)
    references = read_texts(job.results_dir / "reference.jsonl")
    lines = [
        "| variant | " + " | ".join(f"updates to {rate:.0%}" for rate in RATES)
        + " | dev WER % | test WER % | 95 % interval | each seed | minutes |",
        "|---" * (len(RATES) + 6) + "|",
    ]  # fmt: skip
    for name in study.variants:
        cells, own = [name], runs[name]
        curves = [read_curve(job.runs_dir / run["name"] / "log.jsonl") for run in own]
        for rate in RATES:
            reached = [find_update(curve, rate) for curve in curves]
            missed = [step for step in reached if step is None]
            cells.append("never" if missed else f"{statistics.median(step or 0 for step in reached):,.0f}")
        cells.append(
            f"{100 * statistics.median(run['ways']['dev'][run['decoding']]['wer'] for run in own):.2f}"
        )
        pooled = score_texts(
            {f"{run['name']} {id}": fields for run in own for id, fields in references.items()},
            {
                f"{run['name']} {id}": fields
                for run in own
                for id, fields in read_texts(
                    job.results_dir / f"{run['name']}.{run['decoding']}.jsonl"
                ).items()
            },
        )
        interval = pooled.interval
        cells.append(f"{100 * pooled.error_rate:.2f}")
        cells.append("-" if interval is None else f"[{100 * interval.low:.2f}, {100 * interval.high:.2f}]")
        cells.append(", ".join(f"{100 * run['wer']:.2f}" for run in own))
        cells.append(f"{statistics.median(run['training']['seconds'] for run in own) / 60:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def publish(job: Job, table: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.jsonl"):
        path.unlink()
    for path in job.results_dir.iterdir():
        shutil.copyfile(path, folder / path.name)
    (folder / "table.md").write_text(table, encoding="utf-8")
    names = [path.parent.name for path in sorted(job.runs_dir.glob("*/log.jsonl"))]
    curves = {name: read_curve(job.runs_dir / name / "log.jsonl") for name in names}
    (folder / "curves.svg").write_text(draw_curves(curves), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", metavar="STUDY.yaml")
    parser.add_argument("--corpus-dir", type=Path, metavar="DIR")
    parser.add_argument("--output-dir", type=Path, required=True, metavar="OUT")
    parser.add_argument("--seeds", default="0", metavar="N,N")
    parser.add_argument("--only", action="append", default=[], metavar="VARIANT")
    parser.add_argument("--smoke", action="store_true", help="little of everything: does it work?")
    parser.add_argument("--publish", type=Path, metavar="DIR")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    study = load_config(Study, args.study)
    recipe = load_recipe(study.corpus, write_recipe(study, args.output_dir))
    seeds = tuple(int(seed) for seed in args.seeds.split(","))
    job = Job(
        recipe,
        args.output_dir / "work",
        args.corpus_dir,
        only=tuple(args.only),
        seeds=seeds,
        smoke=args.smoke,
    )
    run_recipe(job)
    table = summarize(job, study)
    print(table)
    if args.publish is not None:
        publish(job, table, args.publish)


if __name__ == "__main__":
    main()
