"""Score the runs of a recipe or of a study; write results.json, report.md, pictures and scores.html."""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.data.manifest import read_manifest
from asr.recipe.experiment import Experiment, read_record, write_record
from asr.recipe.figures import choose_utterances, draw_attention, draw_curves, draw_lengths
from asr.recipe.learning import (
    RATES,
    TRAIN_UTTERANCES,
    add_learning,
    choose_method,
    decode_lengths,
    score_lengths,
)
from asr.recipe.results import (
    RESULTS,
    TABLE,
    Record,
    Table,
    collect_texts,
    score_runs,
    setup_name,
    write_table,
)
from asr.recipe.splits import read_shortfalls
from asr.recipe.systems import Run
from asr.scoring.counting import describe_choice
from asr.scoring.page import Report, write_report
from asr.scoring.scored_files import score_files
from asr.scoring.significance import compare
from asr.scoring.tables import Rows, markdown_table, percent, show_interval

PAGE = "report.md"
SMOKE_WARNING = "SMOKE TEST: few utterances, few updates, small models. These figures mean nothing."
LENGTHS_TITLE = "WER on test by the number of words, beam {}"


def make_report(experiment: Experiment, runs: Sequence[Run]) -> None:
    """Write the report of the runs into its folder, and keep it beside the recipe if asked."""
    folder, study = experiment.report_dir, experiment.study
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    summaries: list[Record] = [_read_summary(run) for run in runs]
    baseline = study.baseline if study else experiment.recipe.baseline
    if study is not None:
        summaries = [add_learning(experiment, choose_method(run, study.methods)) for run in summaries]
    elif not any(run["variant"] == baseline for run in summaries):
        baseline = summaries[0]["variant"]
    tables: dict[str, Table] = {"test": collect_texts(runs, summaries)}
    if study is not None and study.lengths:
        for name, (references, columns) in decode_lengths(experiment, summaries).items():
            tables[name] = references, tables.get(name, ({}, {}))[1] | columns
    for name, table in tables.items():
        write_table(folder / f"{name}.jsonl.gz", *table)
    results = {
        **({"study": study.name, "question": study.question} if study else {}),
        **describe_experiment(experiment),
        "baseline": baseline,
        **score_runs(folder / TABLE, baseline, summaries),
    }
    if study is not None and study.lengths:
        results["lengths"] = {
            LENGTHS_TITLE.format(beam): score_lengths(list(tables.values()), summaries, beam)
            for beam in study.length_beams
        }
    write_record(folder / RESULTS, results)
    pictures = _draw_pictures(experiment, runs, results)
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


def _draw_pictures(experiment: Experiment, runs: Sequence[Run], results: Record) -> dict[str, str]:
    """Draw into the folder of the report; return names of files and what they show."""
    folder = experiment.report_dir
    draw_curves(folder / "curves.png", {run.name: run.folder / "log.jsonl" for run in runs})
    pictures = {"curves.png": "WER on dev while the systems were trained"}
    train = read_manifest(experiment.data_dir / "train.jsonl")
    longest = max(len((utterance.text or "").split()) for utterance in train)
    for title, lengths in results.get("lengths", {}).items():
        name = f"lengths_beam_{title.rpartition(' ')[2]}.svg"
        draw_lengths(folder / name, lengths, longest)
        pictures[name] = title
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
_LEARNING = (
    "Loss and WER (greedy, of the decoder where there is one) by the weights of these updates: of dev, and "
    f"of utterances of training, {TRAIN_UTTERANCES} at most, unvaried. Losses of different systems are not "
    "of one kind: compare train with dev."
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
    if all("points" in run for run in runs):
        parts += ["## Learned, or learned by heart?", markdown_table(tabulate_learning(results)), _LEARNING]
    for title, lengths in results.get("lengths", {}).items():
        parts += [
            f"## {title}",
            "In percent, with its 95 % interval.",
            markdown_table(tabulate_lengths(lengths)),
        ]
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


def tabulate_learning(results: Record) -> Rows:
    """Tabulate medians of train beside dev where dev WER was best, dev loss was lowest, and at the end."""
    rows = [["system", "when", "train loss", "dev loss", "train WER %", "dev WER %"]]
    for system in results["systems"]:
        runs = _runs_of(results, system["name"])
        for when, title in (("best", "best dev WER"), ("lowest dev loss",) * 2, ("end", "end")):
            points = [run["points"][when] for run in runs]
            row = [system["name"], f"{title}, update {statistics.median(p['step'] for p in points):,.0f}"]
            for key, show in (("loss", "{:.3f}".format), ("wer", percent)):
                for split in ("train", "dev"):
                    known = [point[split][key] for point in points if point[split]]
                    row.append(show(statistics.median(known)) if known else "-")
            rows.append(row)
    return rows


def tabulate_lengths(lengths: Mapping[str, Mapping[str, Record]]) -> Rows:
    """Tabulate the figures of each system by number of words."""
    counts = sorted({int(count) for own in lengths.values() for count in own})
    rows = [["system", *(f"{count} words" for count in counts)]]
    for name, own in lengths.items():
        cells = (own[str(count)] for count in counts)
        rows.append([name, *(percent(c["wer"]) + show_interval(c["interval"], " [{}, {}]") for c in cells)])
    return rows


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
