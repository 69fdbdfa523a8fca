"""Report on systems, or variants of a study: results.json, hypotheses and report.md."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from asr.errors import UserError
from asr.recipe.delays import collect_curves, draw_delays
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
LEFT_OUT = "left_out"  # column suffix for the texts of all folds of a variant
PAGE = "report.md"
PICTURE = "delays.png"  # of studies that decode by chunks
BASELINE = "ctc_lstm"  # system that others are compared with, if it exists; otherwise the first system
SMOKE_WARNING = "SMOKE TEST with few utterances, few updates and small models: the results are meaningless."


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
    if curves := collect_curves(results):
        draw_delays(folder / PICTURE, curves)
    confs = {run.conf.variant or run.system: os.path.relpath(run.conf.path, folder) for run in runs}
    (folder / PAGE).write_text(format_page(results, confs), encoding="utf-8")


def collect_texts(
    runs: Sequence[PlannedRun], summaries: Sequence[Record]
) -> tuple[References, dict[str, Texts]]:
    """Collect the references, and the test hypotheses of each setup of all runs."""
    references, _ = read_table(runs[0].test_table)
    hypotheses: dict[str, Texts] = {}
    for run, summary in zip(runs, summaries, strict=True):
        own_references, setups = read_table(run.test_table)
        if own_references != references:
            raise UserError(
                f"{runs[0].conf.path} and {run.conf.path}: their references differ after text.scoring, so "
                "their error rates cannot be compared; set the same rules in both"
            )
        hypotheses |= {setup_name(run.name, setup): texts for setup, texts in setups.items()}
        if summary["left_out"] is not None:
            texts = setups[summary["decoding"]]
            joined = setup_name(f"{summary['variant']}-seed-{summary['seed']}", LEFT_OUT)
            tested = {id: texts[id] for id in choose_tested(summary, references)}
            hypotheses[joined] = hypotheses.get(joined, {}) | tested
    return references, hypotheses


def describe_experiment(experiment: Experiment) -> dict[str, Any]:
    """Describe corpus and command, and the missing parts of an incomplete corpus."""
    about = {"corpus": experiment.recipe.name, "smoke": experiment.smoke, "command": experiment.command}
    about["date"] = time.strftime("%Y-%m-%d")
    shortfalls = read_record(experiment.data_dir / ".prepare.done").get("shortfalls")
    return about | ({"partial": shortfalls} if shortfalls else {})


# --- the page -----------------------------------------------------------------------------------

_LEGEND = (
    "Error rates of systems are measured on test, with all runs together; a run that was trained without a "
    "speaker is tested on that speaker. Dev chose checkpoints, and the decoding unless a study sets it. "
    "Differences are system minus baseline; p is the probability that two equal systems differ this much by "
    "chance (matched pairs, two-sided; slightly too small with several seeds). Better or worse means p below "
    "0.05 and, with known speakers, an interval without 0. Minutes are the time of the updates. RTF is "
    "seconds of computation per second of audio, in batches."
)


def format_page(results: Record, confs: Mapping[str, str]) -> str:
    """Format the report as Markdown, with links to the confs of the systems."""
    study = results.get("study")
    parts = [f"# {study or results['corpus']}{' (smoke test)' if results['smoke'] else ''}"]
    parts += [results["question"]] if study else []
    parts += [f"**{warning}**" for warning in list_warnings(results)]
    parts += [f"`{results['command']}`: {describe_test(results)}", markdown_table(tabulate_systems(results))]
    links = ", ".join(f"[{name}]({path})" for name, path in confs.items())
    parts += [f"Reported on {results['date']}. Configs: {links}."]
    if results["comparisons"]:
        parts += [f"## Comparison with {results['baseline']}", markdown_table(tabulate_comparisons(results))]
    parts += [f"![WER over the length of chunks]({PICTURE})"] * bool(collect_curves(results))
    parts += ["## Runs", markdown_table(tabulate_runs(results))]
    parts += [
        "## Notes",
        _LEGEND,
        f"`{RESULTS}` has the origin of each run, and `{TABLE}` the texts for `asr score`.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def list_warnings(results: Record) -> list[str]:
    """List the reasons why the results do not compare with others."""
    missing = "; ".join(results.get("partial", ()))
    return [SMOKE_WARNING] * results["smoke"] + [f"A PART OF THE CORPUS: {missing}."] * bool(missing)


def describe_test(results: Record) -> str:
    test = results["test"]
    choice = f"References: {describe_choice(test['references'])}. " if "references" in test else ""
    size = f"{test['utterances']:,} utterances and {test['words']:,} words in test"
    return f"{size}. {choice}Intervals resample by {test['resampled_by']}."


def tabulate_systems(results: Record) -> Rows:
    """Tabulate the error rates of the systems."""
    rows = [("system", "WER %", "95 % interval", "CER %", "95 % interval")]
    for system in results["systems"]:
        intervals = [show_interval(system[key], unknown="-") for key in ("interval", "cer_interval")]
        wer, cer = percent(system["wer"]), percent(system["cer"])
        rows.append((system["name"], wer, intervals[0], cer, intervals[1]))
    return rows


def tabulate_comparisons(results: Record) -> Rows:
    """Tabulate the difference of each system from its baseline, with its interval."""
    rows = [("system", "baseline", "difference", "95 % interval", "p", "verdict")]
    for found in results["comparisons"]:
        p = "< 0.0001" if found["p"] < 1e-4 else format(float(format(found["p"], ".2g")), "g")
        ends = found["interval"]
        interval = "unknown" if ends is None else f"{100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}"
        difference = f"{100 * found['difference']:+.2f}"
        rows.append((found["system"], found["baseline"], difference, interval, p, found["verdict"]))
    return rows


def tabulate_runs(results: Record) -> Rows:
    """Tabulate dev and test rates of each decoding setup of each run; dev chooses one."""
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
