"""Report on systems and variants of studies: pictures, what was learned when, WER by length, and the page."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from asr.audio.segmentation import SegmentationConfig
from asr.audio.sources import Recording
from asr.batches.builder import Batch
from asr.batches.loader import BatchLoader
from asr.data.manifest import Manifest, Utterance, read_manifest, write_manifest
from asr.errors import UserError
from asr.evaluation.attention_pictures import View, draw_text
from asr.evaluation.plots import COLOURS, draw_learning_curve
from asr.recipe.evaluation import (
    RESULTS,
    TABLE,
    Record,
    Split,
    Table,
    Texts,
    collect_texts,
    describe_score,
    load_recognizer,
    pool,
    read_decoding,
    read_texts,
    score_runs,
    setup_name,
    write_table,
    write_texts,
)
from asr.recipe.experiment import (
    Experiment,
    Run,
    find_change,
    hash_file,
    read_record,
    read_shortfalls,
    spread,
    write_record,
)
from asr.scoring.counting import describe_choice
from asr.scoring.page import Report, write_report
from asr.scoring.result import Rows, markdown_table, percent, show_interval
from asr.scoring.scored_files import score_files
from asr.scoring.significance import compare
from asr.system.checkpoint import System, find_model, load_state, load_system
from asr.system.run_config import RunConfig
from asr.train.dev_scores import compute_dev_scores
from asr.train.distributed import Process
from asr.train.loop import step_name
from asr.train.preparation import build_inputs
from asr.transcription.transcribe import Recognizer, Request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_MAPS = 3
MOST_WER = 150  # %, in the picture of lengths
MOST_CURVES = 5  # in a panel of it
MARKERS = "os^Dv"


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


def draw_lengths(
    path: Path, lengths: Mapping[str, Mapping[str, Mapping[str, Any]]], longest_trained: int
) -> None:
    """Draw WER against the number of words, a few variants to a panel, as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(lengths)
    num_curves = math.ceil(len(names) / math.ceil(len(names) / MOST_CURVES))
    panels = [names[first : first + num_curves] for first in range(0, len(names), num_curves)]
    num_columns = min(2, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    figure = Figure(figsize=(6 * num_columns, 3.6 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, shown in zip(grid, panels, strict=False):
        _draw_panel(axes, {name: lengths[name] for name in shown}, longest_trained)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("words in the utterance (grey: lengths of the training)", fontsize=9)
    figure.supylabel(f"WER on test, % ({MOST_WER} and more as {MOST_WER})", fontsize=9)
    with rc_context({"svg.hashsalt": "asr", "svg.fonttype": "none"}):  # the same each time, text as text
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_panel(
    axes: Axes, lengths: Mapping[str, Mapping[str, Mapping[str, Any]]], longest_trained: int
) -> None:
    axes.axvspan(0, longest_trained + 0.5, color="black", alpha=0.06, linewidth=0)
    for number, (name, own) in enumerate(lengths.items()):
        words = np.array([int(count) for count in own])
        bounds = [figures["interval"] or [figures["wer"]] * 2 for figures in own.values()]
        lows, highs = np.minimum(100 * np.transpose(bounds), MOST_WER)
        rates = np.minimum([100 * figures["wer"] for figures in own.values()], MOST_WER)
        errors = np.maximum(0, [rates - lows, highs - rates])
        places = words + 0.06 * (number - len(lengths) / 2)  # so that no interval hides another
        style: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 4}
        axes.errorbar(places, rates, errors, label=name, linewidth=1.2, elinewidth=0.7, **style)
    counts = sorted({int(count) for own in lengths.values() for count in own})
    axes.set_xlim(counts[0] - 0.5, None)
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=8, framealpha=0.7)


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
        draw_text(
            recognizer, Recording(utterance.audio, utterance.id, *span), path, utterance.text or "", View()
        )
    return paths


def read_batches(system: System, utterances: Sequence[Utterance]) -> Iterator[Batch]:
    """Read each utterance once, without augmentation."""
    settings = system.config.batches.model_copy(update={"num_workers": 0})
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "utterances.jsonl"
        write_manifest(manifest, utterances)
        yield from BatchLoader(Manifest.open(manifest), build_inputs(system), settings).evaluation_batches()


RATES = (0.5, 0.2, 0.1)  # of dev WER: how soon are they reached?
TRAIN_UTTERANCES = 100  # that are read again at the end: what has been learned by heart?


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


# --- what the logs and the checkpoints tell -----------------------------------------------------


def add_learning(experiment: Experiment, run: Record) -> Record:
    """Add to a run what its log says, and how its checkpoints decode utterances of training."""
    folder = experiment.runs_dir / run["name"]
    dev = {line["step"]: line for line in read_validations(folder / "log.jsonl")}
    state = load_state(find_model(folder))
    steps = {"best": state["best"][0][1], "end": state["step"]}
    weights = {step: folder / "checkpoints" / step_name(step) for step in set(steps.values())}
    inputs = {path.name: hash_file(path / "model.safetensors") for path in weights.values()}
    path = folder / ".reread.json"
    if find_change(record := read_record(path), inputs, []):
        utterances = choose_training(folder)
        train = {str(step): reread(folder, step, utterances) for step in weights}
        write_record(path, record := {"inputs": inputs, "train": train})
    train = record["train"]
    lowest = min(dev, key=lambda step: dev[step]["loss"])
    points = {
        when: {
            "step": step,
            "dev": {key: dev[step][key] for key in ("loss", "wer")},
            "train": train[str(step)] if when in steps else None,
        }
        for when, step in {**steps, "lowest dev loss": lowest}.items()
    }
    return {**run, "reached": find_rates(list(dev.values())), "points": points}


def find_rates(dev: Sequence[Record]) -> dict[str, Record]:
    """Find for each of the rates where dev WER was first so low, if it ever was."""
    firsts = {rate: next((line for line in dev if line["wer"] <= rate), None) for rate in RATES}
    return {
        str(rate): {"step": line["step"], "seconds": line.get("training_seconds")}
        for rate, line in firsts.items()
        if line is not None
    }


def choose_training(folder: Path) -> list[Utterance]:
    """Choose the same training utterances each time, spread over all."""
    data = RunConfig.load(find_model(folder) / "config.yaml").data
    return spread(list(read_manifest(*data.train_paths)), TRAIN_UTTERANCES)


def reread(folder: Path, step: int, utterances: Sequence[Utterance]) -> dict[str, float]:
    """Compute loss and WER by the weights of an update, as dev has them in the log; not augmented."""
    system = load_system(folder / "checkpoints" / step_name(step))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    system.model.to(device)
    scores = compute_dev_scores(system, read_batches(system, utterances), Process(0, 1, device))
    return {"loss": scores["loss"], "wer": scores["wer"]}


# --- longer utterances --------------------------------------------------------------------------


def beam_suffix(beam: int) -> str:
    """Suffix for the names of texts that were decoded with another beam than all else."""
    return f"_beam_{beam}"


def decode_lengths(experiment: Experiment, runs: Sequence[Record]) -> dict[str, Table]:
    """Decode test.jsonl and the longer manifests of the study with each of its beams, unless that is done."""
    study = experiment.study
    assert study is not None
    tables: dict[str, Table] = {split: ({}, {}) for split in ("test", *study.lengths)}
    for run in runs:
        folder = experiment.runs_dir / run["name"]
        model = find_model(folder) / "model.safetensors"
        whole = SegmentationConfig(method="none")  # that they are longer than in training is what is measured
        recognizer = load_recognizer(experiment, folder, segmentation=whole)
        usual = read_decoding(run)
        for name, (references, columns) in tables.items():
            manifest = experiment.data_dir / f"{name}.jsonl"
            split = Split.read(recognizer, manifest, folder / "evaluation", name)
            references |= split.references
            for beam in dict.fromkeys((usual.beam, *study.length_beams)):
                suffix = "" if beam == usual.beam else beam_suffix(beam)
                path = split.folder / f"{setup_name(name + suffix, usual.method)}.jsonl"
                if not path.exists() or path.stat().st_mtime < model.stat().st_mtime:
                    request = Request(usual.model_copy(update={"beam": beam}))
                    write_texts(path, split.describe(split.decode({"own": request})["own"]))
                columns[setup_name(run["name"] + suffix, usual.method)] = read_texts(path)
    return tables


def score_lengths(tables: Sequence[Table], runs: Sequence[Record], beam: int) -> dict[str, dict[str, Record]]:
    """Score each variant on the utterances of each number of words, from the tables of all splits."""
    references = {id: fields for own, _ in tables for id, fields in own.items()}
    hypotheses: dict[str, Texts] = defaultdict(dict)
    for run in runs:
        suffix = "" if beam == run["decoding_config"]["beam"] else beam_suffix(beam)
        for _, columns in tables:
            hypotheses[run["name"]] |= columns[setup_name(run["name"] + suffix, run["decoding"])]
    by_length: dict[int, Texts] = defaultdict(dict)
    for id, fields in references.items():
        by_length[len(fields["text"].split())][id] = fields
    variants = {run["variant"]: [own for own in runs if own["variant"] == run["variant"]] for run in runs}
    return {
        name: {str(n): describe_score(pool(own, by_length[n], hypotheses)) for n in sorted(by_length)}
        for name, own in variants.items()
    }


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
