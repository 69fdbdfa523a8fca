"""Report on systems and variants of studies: figures, learning curves, and the page."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from asr.errors import UserError
from asr.recipe.evaluation import RESULTS, TABLE, Record, collect_texts, score_runs, write_table
from asr.recipe.experiment import Experiment, PlannedRun, read_record, write_record
from asr.scoring.counting import describe_choice
from asr.scoring.result import Rows, markdown_table, percent, show_interval
from asr.train.monitor import read_log


def choose_method(run: dict[str, Any], methods: Sequence[str]) -> dict[str, Any]:
    """Describe the run by the first of the methods that it offers, if any are asked for."""
    test = run["methods"]["test"]
    method = next((name for name in methods or [run["decoding"]] if name in test), None)
    if method is None:
        raise UserError(f"{run['name']} was decoded by {', '.join(test)}, not by {' or '.join(methods)}")
    if not methods:
        return run
    return {
        **run,
        "decoding": method,
        "decoding_config": {**run["decoding_config"], "method": method},
        "real_time_factor": test[method]["real_time_factor"],
    }


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
    baseline = study.baseline if study else BASELINE
    if study is not None:
        summaries = [choose_method(run, study.methods) for run in summaries]
    elif not any(run["variant"] == baseline for run in summaries):
        baseline = summaries[0]["variant"]
    write_table(folder / TABLE, *collect_texts(runs, summaries))
    results = {
        **({"study": study.name, "question": study.question} if study else {}),
        **describe_experiment(experiment),
        "baseline": baseline,
        **score_runs(folder / TABLE, baseline, summaries),
    }
    write_record(folder / RESULTS, results)
    confs = {run.conf.variant or run.system: os.path.relpath(run.conf.path, folder) for run in runs}
    page = format_page(results, confs)
    (folder / PAGE).write_text(page, encoding="utf-8")


def describe_experiment(experiment: Experiment) -> dict[str, Any]:
    """Describe corpus and command, and what the corpus lacks, if it is a part."""
    about = {"corpus": experiment.recipe.name, "smoke": experiment.smoke, "command": experiment.command}
    about["date"] = time.strftime("%Y-%m-%d")
    shortfalls = read_record(experiment.data_dir / ".prepare.done").get("shortfalls")
    return about | ({"partial": shortfalls} if shortfalls else {})


# --- the page -----------------------------------------------------------------------------------

_LEGEND = (
    "Error rates are of test; of several runs, those of all together, and medians of the rest. Dev chose "
    "checkpoints, and the decoding unless a study sets it. Minutes: time of the updates. RTF: seconds of "
    "computing for a second of audio, in batches. Differences are the system less the baseline; p is how "
    "often chance alone would part two equal systems this far (matched pairs, two-sided; with several seeds "
    "somewhat too small). Better or worse: p below 0.05 and, with known speakers, an interval without 0."
)
_FOLDS = (
    "Each system is trained without one speaker, whom neither train nor dev has, and tested on that one; the "
    "column `the others` is the same system on the test strings of the speakers that it knows."
)


def format_page(results: Record, confs: Mapping[str, str]) -> str:
    """Format the page as Markdown, with links to the confs of systems."""
    runs, study = results["runs"], results.get("study")
    parts = [f"# {study or results['corpus']}{' (smoke test)' if results['smoke'] else ''}"]
    parts += [results["question"]] if study else []
    parts += [f"**{warning}**" for warning in list_warnings(results)]
    parts += [f"`{results['command']}`: {describe_test(results)}", markdown_table(tabulate_systems(results))]
    links = ", ".join(f"[{name}]({path})" for name, path in confs.items())
    parts += [f"Reported on {results['date']}. Configs: {links}."]
    if results["comparisons"]:
        parts += [f"## Comparison with {results['baseline']}", markdown_table(tabulate_comparisons(results))]
    if any(run["left_out"] is not None for run in runs):
        parts += ["## Speakers left out", markdown_table(tabulate_folds(results)), _FOLDS]
    if not study:
        parts += ["## Decoding setups", markdown_table(tabulate_setups(results))]
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
    """Tabulate the systems in their order."""
    shows_runs = len(results["runs"]) > len(results["systems"]) and results["runs"][0]["left_out"] is None
    head = ["system", "parameters"]
    head += ["dev WER %", "test WER %", "95 % interval", *["each run"] * shows_runs, "CER %", "95 % interval"]
    head += ["decoding", "updates", "minutes", "RTF"]
    rows = [head]
    for system in results["systems"]:
        runs = _runs_of(results, system["name"])
        row = [system["name"], f"{runs[0]['parameters']:,}"]
        dev = [run["methods"]["dev"][run["decoding"]]["wer"] for run in runs if run["methods"]["dev"]]
        row += [percent(statistics.median(dev)) if dev else "-"]
        row += [percent(system["wer"]), show_interval(system["interval"], unknown="-")]
        row += [", ".join(percent(run["wer"]) for run in runs)] * shows_runs
        row += [percent(system["cer"]), show_interval(system["cer_interval"], unknown="-")]
        row += [", ".join(dict.fromkeys(run["decoding"] for run in runs))]
        row += [f"{statistics.median(run['training']['updates'] for run in runs):,.0f}"]
        row += [f"{statistics.median(run['training']['seconds'] for run in runs) / 60:.1f}"]
        row += [f"{statistics.median(run['real_time_factor'] for run in runs):.4f}"]
        rows.append(row)
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


def tabulate_folds(results: Record) -> Rows:
    """Tabulate the speakers that were left out, beside the others of test; of several seeds the mean."""
    names = [system["name"] for system in results["systems"]]
    rows = [["left out", *(cell for name in names for cell in (f"{name}: WER %", "the others"))]]
    for part in dict.fromkeys(run["left_out"] for run in results["runs"]):
        row = [part]
        for name in names:
            own = [run for run in _runs_of(results, name) if run["left_out"] == part]
            for rates in ([run["wer"] for run in own], [run["known_speakers"]["wer"] for run in own]):
                row.append(percent(statistics.mean(rates)) if rates else "-")
        rows.append(row)
    total = ["all"]
    for system in results["systems"]:
        known = [run["known_speakers"] for run in _runs_of(results, system["name"])]
        total += [f"{percent(system['wer'])} {show_interval(system['interval'], '[{}, {}]', unknown='')}"]
        total += [percent(sum(own["errors"] for own in known) / sum(own["words"] for own in known))]
    return [*rows, total]


def tabulate_setups(results: Record) -> Rows:
    """Tabulate each decoding setup of each run: dev, by which one is chosen, and test."""
    rows = [("run", "decoding", "dev WER %", "test WER %", "RTF", "")]
    for run in results["runs"]:
        for setup, test in run["methods"]["test"].items():
            dev = run["methods"]["dev"].get(setup)
            mark = "chosen" if setup == run["decoding"] else ""
            rates = "" if dev is None else percent(dev["wer"]), percent(test["wer"])
            rows.append((run["name"], setup, *rates, f"{test['real_time_factor']:.3f}", mark))
    return rows


def _runs_of(results: Record, system: str) -> list[Record]:
    return [run for run in results["runs"] if run["variant"] == system]
