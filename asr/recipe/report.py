"""Report on systems and variants of studies: results.json, the hypotheses, and the page."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from asr.errors import UserError
from asr.recipe.experiment import Experiment, PlannedRun
from asr.recipe.scores import (
    Record,
    References,
    Texts,
    choose_tested,
    read_table,
    score_runs,
    setup_name,
    write_table,
)
from asr.recipe.steps import read_record, write_record
from asr.scoring.counting import describe_choice
from asr.scoring.result import Rows, markdown_table, percent, show_interval
from asr.train.monitor import read_log

RESULTS, TABLE = "results.json", "test.jsonl.gz"
LEFT_OUT = "left_out"  # names the texts of all folds of a variant
PAGE = "report.md"
BASELINE = "ctc_lstm"  # that others are compared with, if there is one of this name; else it is the first
SMOKE_WARNING = "SMOKE TEST: few utterances, few updates, small models. These figures mean nothing."


def make_report(experiment: Experiment, runs: Sequence[PlannedRun]) -> None:
    """Write the report of the runs into its folder."""
    folder, study = experiment.report_dir, experiment.study
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    summaries = [read_record(run.summary_path) for run in runs]
    for run, summary in zip(runs, summaries, strict=True):
        del summary["inputs"]
        dev = [line for line in read_log(run.folder) if line["kind"] == "dev" and "wer" in line]
        summary["dev_curve"] = {str(line["step"]): line["wer"] for line in dev}
    variants = [summary["variant"] for summary in summaries]
    baseline = study.baseline if study else BASELINE if BASELINE in variants else variants[0]
    write_table(folder / TABLE, *collect_texts(runs, summaries))
    results = {
        **({"study": study.name, "question": study.question} if study else {}),
        **describe_experiment(experiment),
        "baseline": baseline,
        **score_runs(folder / TABLE, baseline, summaries),
    }
    write_record(folder / RESULTS, results)
    confs = {run.conf.variant or run.system: os.path.relpath(run.conf.path, folder) for run in runs}
    (folder / PAGE).write_text(format_page(results, confs), encoding="utf-8")


def collect_texts(
    runs: Sequence[PlannedRun], summaries: Sequence[Record]
) -> tuple[References, dict[str, Texts]]:
    """Collect the references, and the test hypotheses of all runs by each of their setups."""
    references, _ = read_table(runs[0].test_table)
    hypotheses: dict[str, Texts] = {}
    for run, summary in zip(runs, summaries, strict=True):
        own_references, setups = read_table(run.test_table)
        if own_references != references:
            raise UserError(
                f"{runs[0].conf.path} and {run.conf.path}: their references differ after text.scoring, so "
                "their error rates cannot be compared; give both the same rules"
            )
        hypotheses |= {setup_name(run.name, setup): texts for setup, texts in setups.items()}
        if summary["left_out"] is not None:
            texts = setups[summary["decoding"]]
            joined = setup_name(f"{summary['variant']}-seed-{summary['seed']}", LEFT_OUT)
            tested = {id: texts[id] for id in choose_tested(summary, references)}
            hypotheses[joined] = hypotheses.get(joined, {}) | tested
    return references, hypotheses


def describe_experiment(experiment: Experiment) -> dict[str, Any]:
    """Describe corpus and command, and what the corpus lacks, if it is a part."""
    about = {"corpus": experiment.recipe.name, "smoke": experiment.smoke, "command": experiment.command}
    about["date"] = time.strftime("%Y-%m-%d")
    shortfalls = read_record(experiment.data_dir / ".prepare.done").get("shortfalls")
    return about | ({"partial": shortfalls} if shortfalls else {})


# --- the page -----------------------------------------------------------------------------------

_LEGEND = (
    "Error rates of systems are of test, all runs together; a run without a speaker, whom neither train "
    "nor dev has, is tested on that one. Dev chose checkpoints, and the decoding unless a study sets it. "
    "Differences are the system less the baseline; p is how often chance alone would part two equal "
    "systems this far (matched pairs, two-sided; with several seeds somewhat too small). Better or worse: "
    "p below 0.05 and, with known speakers, an interval without 0. Minutes: time of the updates. RTF: "
    "seconds of computing for a second of audio, in batches."
)


def format_page(results: Record, confs: Mapping[str, str]) -> str:
    """Format the page as Markdown, with links to the confs of systems."""
    study = results.get("study")
    parts = [f"# {study or results['corpus']}{' (smoke test)' if results['smoke'] else ''}"]
    parts += [results["question"]] if study else []
    parts += [f"**{warning}**" for warning in list_warnings(results)]
    parts += [f"`{results['command']}`: {describe_test(results)}", markdown_table(tabulate_systems(results))]
    links = ", ".join(f"[{name}]({path})" for name, path in confs.items())
    parts += [f"Reported on {results['date']}. Configs: {links}."]
    if results["comparisons"]:
        parts += [f"## Comparison with {results['baseline']}", markdown_table(tabulate_comparisons(results))]
    parts += ["## Runs", markdown_table(tabulate_runs(results))]
    parts += [
        "## Notes",
        _LEGEND,
        f"`{RESULTS}` has the origin of each run, `{TABLE}` texts for `asr score`.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def list_warnings(results: Record) -> list[str]:
    """Say what keeps the figures from being compared with others."""
    missing = "; ".join(results.get("partial", ()))
    return [SMOKE_WARNING] * results["smoke"] + [f"A PART OF THE CORPUS: {missing}."] * bool(missing)


def describe_test(results: Record) -> str:
    test = results["test"]
    choice = f"References: {describe_choice(test['references'])}. " if "references" in test else ""
    size = f"{test['utterances']:,} utterances and {test['words']:,} words of test"
    return f"{size}. {choice}The intervals come from resampling by {test['resampled_by']}."


def tabulate_systems(results: Record) -> Rows:
    """Tabulate the error rates of the systems."""
    rows = [("system", "WER %", "95 % interval", "CER %", "95 % interval")]
    for system in results["systems"]:
        intervals = [show_interval(system[key], unknown="-") for key in ("interval", "cer_interval")]
        wer, cer = percent(system["wer"]), percent(system["cer"])
        rows.append((system["name"], wer, intervals[0], cer, intervals[1]))
    return rows


def tabulate_comparisons(results: Record) -> Rows:
    """Tabulate each system less its baseline: the difference and its interval have one sign."""
    rows = [("system", "baseline", "difference", "95 % interval", "p", "verdict")]
    for found in results["comparisons"]:
        p = "< 0.0001" if found["p"] < 1e-4 else format(float(format(found["p"], ".2g")), "g")
        ends = found["interval"]
        interval = "unknown" if ends is None else f"{100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}"
        difference = f"{100 * found['difference']:+.2f}"
        rows.append((found["system"], found["baseline"], difference, interval, p, found["verdict"]))
    return rows


def tabulate_runs(results: Record) -> Rows:
    """Tabulate each decoding setup of each run: dev, by which one is chosen, and test."""
    training = ("run", "parameters", "updates", "minutes")
    rows = [(*training, "decoding", "dev WER %", "test WER %", "RTF", "")]
    for run in results["runs"]:
        updates, minutes = run["training"]["updates"], run["training"]["seconds"] / 60
        about = (run["name"], f"{run['parameters']:,}", f"{updates:,}", f"{minutes:.1f}")
        for setup, test in run["methods"]["test"].items():
            rates = percent(run["methods"]["dev"][setup]["wer"]), percent(test["wer"])
            mark = "chosen" if setup == run["decoding"] else ""
            rows.append((*about, setup, *rates, f"{test['real_time_factor']:.3f}", mark))
    return rows
