"""Report on systems and variants of studies: pictures, what was learned when, WER by length, and the page."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.audio.sources import Recording
from asr.data.manifest import Utterance, read_manifest
from asr.errors import UserError
from asr.evaluation.attention_pictures import draw_text
from asr.evaluation.plots import draw_learning_curve
from asr.recipe.evaluation import (
    RESULTS,
    TABLE,
    Record,
    collect_texts,
    score_runs,
    setup_name,
    write_table,
)
from asr.recipe.experiment import (
    Experiment,
    Run,
    read_record,
    read_shortfalls,
    write_record,
)
from asr.scoring.counting import describe_choice
from asr.scoring.page import Report, write_report
from asr.scoring.result import Rows, markdown_table, percent, show_interval
from asr.scoring.scored_files import score_files
from asr.scoring.significance import compare
from asr.system.checkpoint import find_model, load_system
from asr.transcription.transcribe import Recognizer

NUM_MAPS = 3


def read_validations(log: Path) -> list[dict[str, Any]]:
    """The lines of a log about WER on dev; none without a log."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if line["kind"] == "dev" and "wer" in line]


def draw_curves(path: Path, logs: Mapping[str, Path]) -> None:
    """Draw dev WER against updates, from the logs of runs by name, as PNG."""
    curves = {name: dev for name, log in logs.items() if (dev := read_validations(log))}
    points = {  # a decoder that repeats itself has no limit
        name: [(line["step"], 100 * min(line["wer"], 2.0)) for line in dev] for name, dev in curves.items()
    }
    draw_learning_curve(path, {"WER on dev, % (200 and more as 200)": points})


def choose_utterances(manifest: Path) -> list[Utterance]:
    """Choose a short, a middling and a long utterance: the same in each report."""
    ordered = sorted(read_manifest(manifest), key=lambda utterance: (utterance.duration, utterance.id))
    places = dict.fromkeys(len(ordered) * (number + 1) // (NUM_MAPS + 1) for number in range(NUM_MAPS))
    return [ordered[place] for place in places]


def draw_attention(run_folder: Path, utterances: Sequence[Utterance], folder: Path) -> list[Path]:
    """Draw ID.png for each utterance if the decoder of the system attends; return the pictures."""
    system = load_system(find_model(run_folder))
    if system.model.decoder is None or not system.model.decoder.num_heads:
        return []
    recognizer = Recognizer(system, needs_times=False)
    paths = [folder / f"{utterance.id}.png" for utterance in utterances]
    for utterance, path in zip(utterances, paths, strict=True):
        span = utterance.start, utterance.duration, utterance.channel_index
        draw_text(recognizer, Recording(utterance.audio, utterance.id, *span), path, utterance.text or "")
    return paths


RATES = (0.5, 0.2, 0.1)  # of dev WER: how soon are they reached?


def choose_method(run: Record, methods: Sequence[str]) -> Record:
    """Describe the run by the first of the methods that it offers, if any are asked for."""
    test = run["ways"]["test"]
    method = next((name for name in methods or [run["decoding"]] if name in test), None)
    if method is None:
        offered, asked = ", ".join(test), ", ".join(methods)
        raise UserError(
            f"{run['name']} was decoded by {offered}; of the study's methods there is none: {asked}"
        )
    if not methods:
        return run
    return {
        **run,
        "decoding": method,
        "decoding_config": {**run["decoding_config"], "method": method},
        "real_time_factor": test[method]["real_time_factor"],
    }


def find_rates(folder: Path) -> dict[str, Record]:
    """Find in the log of a run for each of the rates where dev WER was first so low, if it ever was."""
    dev = read_validations(folder / "log.jsonl")
    firsts = {rate: next((line for line in dev if line["wer"] <= rate), None) for rate in RATES}
    return {
        str(rate): {"step": line["step"], "seconds": line.get("training_seconds")}
        for rate, line in firsts.items()
        if line is not None
    }


PAGE = "report.md"
SMOKE_WARNING = "SMOKE TEST: few utterances, few updates, small models. These figures mean nothing."


def make_report(experiment: Experiment, runs: Sequence[Run]) -> None:
    """Write the report of the runs into its folder, and keep it beside the recipe if asked."""
    folder, study = experiment.report_dir, experiment.study
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    summaries: list[Record] = [_read_summary(run) for run in runs]
    baseline = study.baseline if study else experiment.recipe.baseline
    if study is not None:
        summaries = [
            {**choose_method(run, study.methods), "reached": find_rates(experiment.runs_dir / run["name"])}
            for run in summaries
        ]
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
    pictures = _draw_pictures(experiment, runs)
    (folder / PAGE).write_text(format_page(results, pictures), encoding="utf-8")
    write_scores(folder, results, experiment.data_dir / "test.jsonl")
    if experiment.publish:
        publish(folder, experiment.published_dir)


def _read_summary(run: Run) -> Record:
    summary = read_record(run.summary_path)
    return {name: value for name, value in summary.items() if name != "inputs"}


def describe_experiment(experiment: Experiment) -> dict[str, Any]:
    """Describe corpus and command, and what the corpus lacks, if it is a part."""
    about = {"corpus": experiment.recipe.name, "smoke": experiment.smoke, "command": experiment.command}
    shortfalls = read_shortfalls(experiment.data_dir)
    return about | ({"partial": shortfalls} if shortfalls else {})


def _draw_pictures(experiment: Experiment, runs: Sequence[Run]) -> dict[str, str]:
    """Draw into the folder of the report; return names of files and what they show."""
    folder = experiment.report_dir
    draw_curves(folder / "curves.png", {run.name: run.folder / "log.jsonl" for run in runs})
    pictures = {"curves.png": "WER on dev while the systems were trained"}
    shown = choose_utterances(experiment.data_dir / "dev.jsonl")
    for run in {run.conf.variant or run.system: run for run in reversed(runs)}.values():
        draw_attention(run.folder, shown, folder / "attention" / run.name)
    return pictures


def write_scores(folder: Path, results: Record, test: Path) -> None:
    """Write scores.html as `asr score --html` does: every alignment, and the audio that a browser plays."""
    columns = {setup_name(run["name"], run["decoding"]): run["name"] for run in results["runs"]}
    reference, systems, notes = score_files(str(folder / TABLE), list(columns))
    for utterance in read_manifest(test):
        if utterance.id in reference.entries:
            entry = reference.entries[utterance.id]
            entry = dataclasses.replace(entry, audio=utterance.audio, start=utterance.start)
            reference.entries[utterance.id] = dataclasses.replace(entry, duration=utterance.duration)
    first, *others = systems
    comparisons = [compare(own.score, first.score, (own.name, first.name)) for own in others]
    settings = {"unit": "words", "normalize": "none"}
    page = Report(reference, tuple(systems), tuple(comparisons), tuple(notes), settings, {})
    write_report(str(folder / "scores.html"), page)


def publish(report_dir: Path, folder: Path) -> None:
    """Copy figures, hypotheses, page and pictures to the folder of the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in report_dir.iterdir():
        if path.is_file() and path.suffix != ".html" and not path.name.startswith("."):
            shutil.copyfile(path, folder / path.name)


# --- the page -----------------------------------------------------------------------------------

_LEGEND = (
    "WER and CER: word and character errors on test; of several runs, those of all together, and medians "
    "of the rest. Dev chose checkpoints, and the decoding unless a study sets it; what chose the settings is "
    "not recorded here. Minutes: time of the updates. RTF: real-time factor, seconds of computing for a "
    "second of audio, in batches."
)
_COMPARISONS = (
    "Difference: percentage points of WER, the system less the baseline, with its 95 % interval; negative is "
    "better. p: how often chance alone would part two equal systems this far (matched pairs, two-sided). "
    "Better or worse is said where p is below 0.05 and, with known speakers, the interval excludes 0."
)
_SEEDS = (
    "What several seeds say of a string counts as if it were several strings, so these chances are somewhat "
    "too small; the intervals draw speakers with all that belongs to them."
)
_FOLDS = (
    "Each system is trained without one speaker, whom neither train nor dev has, and tested on that one; the "
    "column `the others` is the same system on the test strings of the speakers that it knows."
)


def format_page(results: Record, pictures: Mapping[str, str]) -> str:
    """Format the page; `pictures` are names of files and what they show."""
    runs, study = results["runs"], results.get("study")
    parts = [f"# {study or results['corpus']}{' (smoke test)' if results['smoke'] else ''}"]
    parts += [results["question"]] if study else []
    parts += [f"**{warning}**" for warning in list_warnings(results)]
    parts += [f"`{results['command']}`: {describe_test(results)}"]
    parts += [markdown_table(tabulate_systems(results)), _LEGEND]
    if results["comparisons"]:
        parts += [f"## Against {results['baseline']}", markdown_table(tabulate_comparisons(results))]
        parts += [_COMPARISONS, *([_SEEDS] if len({run["seed"] for run in runs}) > 1 else [])]
    if any(run["left_out"] is not None for run in runs):
        parts += ["## Speakers left out", markdown_table(tabulate_folds(results)), _FOLDS]
    if not study:
        parts += ["## Decoding setups", markdown_table(tabulate_setups(results))]
    parts += ["## Pictures"] * bool(pictures)
    parts += [f"{shown}\n\n![{shown}]({name})" for name, shown in pictures.items()]
    parts += ["## How it came about", markdown_table(tabulate_origins(results))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def list_warnings(results: Record) -> list[str]:
    """Say what keeps the figures from being compared with others."""
    lacking = "; ".join(results.get("partial", ()))
    return [SMOKE_WARNING] * results["smoke"] + [f"A PART OF THE CORPUS: {lacking}."] * bool(lacking)


def describe_test(results: Record) -> str:
    test = results["test"]
    choice = f"References: {describe_choice(test['references'])}. " if "references" in test else ""
    return (
        f"{test['utterances']:,} utterances and {test['words']:,} words of test. {choice}"
        f"The intervals come from resampling by {test['resampled_by']}."
    )


def tabulate_systems(results: Record) -> Rows:
    """Tabulate the systems in their order; those of a study with how soon they were good on dev."""
    has_learning = all("reached" in run for run in results["runs"])
    shows_runs = len(results["runs"]) > len(results["systems"]) and results["runs"][0]["left_out"] is None
    head = ["system", "parameters"]
    head += [*(f"updates to {rate:.0%}" for rate in RATES), f"seconds to {RATES[-1]:.0%}"] * has_learning
    head += ["dev WER %", "test WER %", "95 % interval", *["each run"] * shows_runs, "CER %", "95 % interval"]
    head += ["decoding", "updates", "minutes", "RTF"]
    rows = [head]
    for system in results["systems"]:
        runs = _runs_of(results, system["name"])
        row = [system["name"], f"{runs[0]['parameters']:,}"]
        if has_learning:
            row += [
                _median([run["reached"].get(str(rate), {}).get("step") for run in runs]) for rate in RATES
            ]
            row += [_median([run["reached"].get(str(RATES[-1]), {}).get("seconds") for run in runs])]
        dev = [run["ways"]["dev"][run["decoding"]]["wer"] for run in runs if run["ways"]["dev"]]
        row += [percent(statistics.median(dev)) if dev else "-"]
        row += [percent(system["wer"]), show_interval(system["interval"], unknown="-")]
        row += [", ".join(percent(run["wer"]) for run in runs)] * shows_runs
        row += [percent(system["cer"]), show_interval(system["cer_interval"], unknown="-")]
        row += [", ".join(dict.fromkeys(_describe_decoding(run) for run in runs))]
        row += [_median([run["training"]["updates"] for run in runs])]
        row += [f"{statistics.median(run['training']['seconds'] for run in runs) / 60:.1f}"]
        row += [f"{statistics.median(run['real_time_factor'] for run in runs):.4f}"]
        rows.append(row)
    return rows


def _describe_decoding(run: Record) -> str:
    guide = run.get("decoding_chosen_for", run["name"])
    return run["decoding"] if guide == run["name"] else f"{run['decoding']}, as chosen for {guide}"


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
        for setup, test in run["ways"]["test"].items():
            dev = run["ways"]["dev"].get(setup)
            mark = "chosen" if setup == run["decoding"] else ""
            rates = "" if dev is None else percent(dev["wer"]), percent(test["wer"])
            rows.append((run["name"], setup, *rates, f"{test['real_time_factor']:.3f}", mark))
    return rows


def tabulate_origins(results: Record) -> Rows:
    """Tabulate command, commit, machine, versions and checks, with all runs that share them."""
    runs: dict[tuple[str, ...], list[str]] = {}
    for run in results["runs"]:
        made, tested = run["training"], run["evaluation"]
        versions = ", ".join(f"{name} {tested[name]}" for name in ("asr", "torch", "numpy", "python"))
        origin = (
            *(made.get("command", "unknown"), made["commit"], made.get("machine", "unknown")),
            f"{tested['commit']}, {tested['machine']}, {tested['device']}",
            *(versions, run.get("checks", "none yet")),
        )
        runs.setdefault(origin, []).append(f"{run['name']} ({run['seed']})")
    head = ["runs (seed)", "trained by", "commit", "machine", "tested with", "versions", "checks"]
    return [head, *([", ".join(names), *origin] for origin, names in runs.items())]


def _runs_of(results: Record, system: str) -> list[Record]:
    return [run for run in results["runs"] if run["variant"] == system]


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.0f}" if len(known) == len(values) else "never"
