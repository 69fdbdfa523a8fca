"""Trains variants of one system with the same budget and several seeds, and compares them.

    python tools/study.py recipes/fsdd/guided_attention.yaml --corpus-dir DIR --seeds 0,1,2 --output-dir OUT

The study is a YAML file; class Study below says what stands in it. Each variant becomes a conf of its own
in OUT/recipes, and `asr recipe run` does the rest; called again, it goes on where it was cut off.
`--publish DIR` keeps the tables, the curves and all hypotheses.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pydantic
import torch
import yaml

from asr.checkpoint import find_model, load_system
from asr.config import Config, load_config
from asr.decoding.search import DecodingConfig, Method
from asr.errors import UserError
from asr.evaluation import choose_ways, decode_utterances, read_references
from asr.features import FrontEnd
from asr.manifest import read_manifest
from asr.models import build_model
from asr.recipe.definition import Job, load_recipe
from asr.recipe.figures import COLOURS, draw_curves, read_curve
from asr.recipe.results import Texts, hypotheses_name, read_texts, score_texts, write_texts
from asr.recipe.stages import run_recipe
from asr.run import RunConfig
from asr.scoring.counting import Score
from asr.text import normalize_for_scoring

logger = logging.getLogger(__name__)

RATES = (0.5, 0.2, 0.1)  # of dev WER: how soon are they reached?
TOLERANCE = 0.1  # of the number of parameters
NUM_TOKENS = 32  # to count parameters with: the real number comes from the training texts and changes little
MOST_WER = 150  # %, in the picture of lengths

Record = dict[str, Any]  # of a run, as results.json has it


class Study(Config):
    """What is varied."""

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
    lengths: tuple[str, ...] = ()
    """Manifests beside test.jsonl, of longer utterances than training has: WER is drawn against length."""
    lengths_method: Method | None = None
    """How they are decoded; null: as dev chose for each run."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Study:
        if self.baseline not in self.variants:
            known = ", ".join(self.variants)
            raise ValueError(f"baseline = {self.baseline} is none of the variants: {known}")
        if self.lengths_method is not None and not self.lengths:
            raise ValueError("lengths_method is about lengths, and there are none; remove it")
        return self


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


def write_recipe(study: Study, folder: Path) -> Path:
    """The recipe of the corpus with a conf for each variant; returns the folder of recipes."""
    source = load_recipe(study.corpus).path
    target = folder / "recipes" / study.corpus
    (target / "conf").mkdir(parents=True, exist_ok=True)
    recipe = source.read_text(encoding="utf-8") + f"\nBASELINE = {study.baseline!r}\n"
    (target / "recipe.py").write_text(recipe, encoding="utf-8")
    for name, config in load_variants(study).items():
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        (target / "conf" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / "recipes"


# --- the table ----------------------------------------------------------------------------------


def summarize(job: Job, study: Study) -> str:
    """A Markdown table; figures of several seeds are medians, and test WER is that of all their errors."""
    head = ["variant", "parameters", *(f"updates to {rate:.0%}" for rate in RATES)]
    head += [f"seconds to {RATES[-1]:.0%}", "dev WER %", "test WER %", "95 % interval", "each seed"]
    head += ["decoding", "minutes", "real-time factor"]
    references = read_texts(job.results_dir / "reference.jsonl")
    rows = []
    for name, runs in read_runs(job, study).items():
        reached = [find_validations(job.runs_dir / run["name"] / "log.jsonl") for run in runs]
        pooled = pool(
            runs,
            references,
            lambda run: read_texts(job.results_dir / hypotheses_name(run["name"], run["decoding"])),
        )
        row = [name, f"{runs[0]['parameters']:,}"]
        row += [_median([own.get(rate, {}).get("step") for own in reached]) for rate in RATES]
        row.append(_median([own.get(RATES[-1], {}).get("training_seconds") for own in reached]))
        dev = statistics.median(run["ways"]["dev"][run["decoding"]]["wer"] for run in runs)
        row += [f"{100 * dev:.2f}", f"{100 * pooled.error_rate:.2f}", show_interval(pooled)]
        row.append(", ".join(f"{100 * run['wer']:.2f}" for run in runs))
        row.append(", ".join(dict.fromkeys(run["decoding"] for run in runs)))
        row.append(f"{statistics.median(run['training']['seconds'] for run in runs) / 60:.1f}")
        row.append(f"{statistics.median(run['real_time_factor'] for run in runs):.4f}")
        rows.append(row)
    return write_table([head, *rows])


def read_runs(job: Job, study: Study) -> dict[str, list[Record]]:
    """Of each variant that has been trained, its runs."""
    results = json.loads((job.results_dir / "results.json").read_text(encoding="utf-8"))
    runs: dict[str, list[Record]] = defaultdict(list)
    for run in results["runs"]:
        runs[run["system"]].append(run)
    return {name: runs[name] for name in study.variants if name in runs}


def find_validations(log: Path) -> dict[float, Record]:
    """The first at which dev WER was at most each of the rates, where there is one."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    dev = [line for line in lines if line["kind"] == "dev" and "wer" in line]
    firsts = {rate: next((line for line in dev if line["wer"] <= rate), None) for rate in RATES}
    return {rate: line for rate, line in firsts.items() if line is not None}


def pool(runs: Sequence[Record], references: Texts, read: Callable[[Record], Texts]) -> Score:
    """All runs as if their utterances were one test set."""
    return score_texts(
        {f"{run['name']} {id}": fields for run in runs for id, fields in references.items()},
        {f"{run['name']} {id}": read(run)[id] for run in runs for id in references},
    )


def show_interval(score: Score) -> str:
    interval = score.interval
    return "-" if interval is None else f"[{100 * interval.low:.2f}, {100 * interval.high:.2f}]"


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.0f}" if len(known) == len(values) else "never"


def write_table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


# --- WER against length -------------------------------------------------------------------------


def measure_lengths(job: Job, study: Study) -> dict[str, dict[int, Score]]:
    """Of each variant, the score of the utterances of each number of words."""
    scores: dict[str, dict[int, Score]] = {}
    for name, runs in read_runs(job, study).items():
        read = {run["name"]: decode_lengths(job, study, run) for run in runs}
        references = next(iter(read.values()))[0]
        by_length: dict[int, Texts] = defaultdict(dict)
        for id, fields in references.items():
            by_length[len(fields["text"].split())][id] = fields
        scores[name] = {
            length: pool(runs, by_length[length], lambda run, read=read: read[run["name"]][1])  # type: ignore[misc]
            for length in sorted(by_length)
        }
    return scores


def decode_lengths(job: Job, study: Study, run: Record) -> tuple[Texts, Texts]:
    """References and hypotheses of test.jsonl and the longer manifests; what has been decoded is read."""
    folder = job.runs_dir / run["name"]
    model = find_model(folder)
    system = load_system(model)
    config = DecodingConfig.model_validate_json(json.dumps(run["decoding_config"]))
    ways = choose_ways(system, [study.lengths_method or config.method], config)
    (way,) = ways
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    references: Texts = {}
    hypotheses: Texts = {}
    for name in ("test", *study.lengths):
        utterances = read_references(job.data_dir / f"{name}.jsonl")
        rules = system.config.text
        for utterance in utterances:
            references[utterance.id] = {"text": normalize_for_scoring(utterance.text or "", rules)}
            if utterance.speaker is not None:
                references[utterance.id]["speaker"] = utterance.speaker
        path = folder / "evaluation" / hypotheses_name(name, way)
        if not path.exists() or path.stat().st_mtime < (model / "model.safetensors").stat().st_mtime:
            logger.info("%s: %d utterances of %s by %s", run["name"], len(utterances), name, way)
            split = decode_utterances(system, utterances, ways, device=device)
            for id, fault in split.faults.items():
                raise UserError(f"{name}: {id}: {fault}")
            texts = {
                id: {"text": normalize_for_scoring(text, rules)} for id, text in split.ways[way].texts.items()
            }
            write_texts(path, texts)
        hypotheses |= read_texts(path)
    return references, hypotheses


def tabulate_lengths(scores: dict[str, dict[int, Score]]) -> str:
    lengths = sorted({length for own in scores.values() for length in own})
    rows = [["variant", *(f"{length} words" for length in lengths)]]
    for name, own in scores.items():
        cells = [f"{100 * own[length].error_rate:.2f} {show_interval(own[length])}" for length in lengths]
        rows.append([name, *cells])
    return "WER % by number of words, and its 95 % interval.\n\n" + write_table(rows)


def draw_lengths(scores: dict[str, dict[int, Score]], longest_trained: int) -> str:
    """SVG: WER against the number of words."""
    import io

    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "asr", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.axvspan(0, longest_trained + 0.5, color="black", alpha=0.06, linewidth=0)
        axes.annotate(
            "lengths of the training", (longest_trained + 0.4, 0.97), xycoords=("data", "axes fraction"),
            horizontalalignment="right", verticalalignment="top", fontsize=8, color="#595959",
        )  # fmt: skip
        for number, (name, own) in enumerate(scores.items()):
            lengths = sorted(own)
            rates = [min(100 * own[length].error_rate, MOST_WER) for length in lengths]
            intervals = [own[length].interval for length in lengths]
            bounds = [
                (rate, rate) if interval is None else (100 * interval.low, 100 * interval.high)
                for rate, interval in zip(rates, intervals, strict=True)
            ]
            shifts = [  # beside each other, so that no interval hides another
                length + 0.03 * (number - len(scores) / 2) for length in lengths
            ]
            errors = [
                [max(0.0, rate - low) for rate, (low, _) in zip(rates, bounds, strict=True)],
                [max(0.0, min(high, MOST_WER) - rate) for rate, (_, high) in zip(rates, bounds, strict=True)],
            ]
            axes.errorbar(
                shifts, rates, errors, label=name, color=COLOURS[number % len(COLOURS)],
                marker="os^Dv"[number // len(COLOURS) % 5], markersize=4, linewidth=1.2, elinewidth=0.7,
            )  # fmt: skip
        axes.set_xlim(min(min(own) for own in scores.values()) - 0.5, None)
        axes.set_xticks(sorted({length for own in scores.values() for length in own}))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("words in the utterance")
        axes.set_ylabel(f"WER on test, % ({MOST_WER} and more as {MOST_WER})")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


# --- all of it ----------------------------------------------------------------------------------


def report(job: Job, study: Study, folder: Path) -> None:
    """Write the tables and pictures, and print the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"table.md": summarize(job, study)}
    runs = [run["name"] for own in read_runs(job, study).values() for run in own]
    curves = {name: read_curve(job.runs_dir / name / "log.jsonl") for name in runs}
    (folder / "curves.svg").write_text(draw_curves(curves), encoding="utf-8")
    if study.lengths:
        scores = measure_lengths(job, study)
        tables["lengths.md"] = tabulate_lengths(scores)
        trained = [len((u.text or "").split()) for u in read_manifest(job.data_dir / "train.jsonl")]
        (folder / "lengths.svg").write_text(draw_lengths(scores, max(trained)), encoding="utf-8")
    for name, table in tables.items():
        (folder / name).write_text(table, encoding="utf-8")
        print(table)


def publish(job: Job, study: Study, report_dir: Path, folder: Path) -> None:
    """Keep tables, pictures and all hypotheses."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.jsonl"):
        path.unlink()
    for path in (*job.results_dir.iterdir(), *report_dir.iterdir()):
        shutil.copyfile(path, folder / path.name)
    for runs in read_runs(job, study).values():
        for run in runs:
            for name in study.lengths:
                for path in (job.runs_dir / run["name"] / "evaluation").glob(f"{name}.*.jsonl"):
                    shutil.copyfile(path, folder / f"{run['name']}.{path.name}")


def run(args: argparse.Namespace) -> None:
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
    report_dir = args.output_dir / "report"
    report(job, study, report_dir)
    if args.publish is not None:
        publish(job, study, report_dir, args.publish)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", metavar="STUDY.yaml")
    parser.add_argument("--corpus-dir", type=Path, metavar="DIR")
    parser.add_argument("--output-dir", type=Path, required=True, metavar="OUT")
    parser.add_argument("--seeds", default="0", metavar="N,N")
    parser.add_argument("--only", action="append", default=[], metavar="VARIANT")
    parser.add_argument("--smoke", action="store_true", help="little of everything: does it work?")
    parser.add_argument("--publish", type=Path, metavar="DIR")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        run(parser.parse_args())
    except UserError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
