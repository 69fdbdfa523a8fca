"""Report a study: its decoding, what was learned when, WER by length; and its page in Markdown."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asr.audio.segmentation import SegmentationConfig
from asr.data.manifest import Utterance, read_manifest
from asr.decoding.methods import Method
from asr.errors import UserError
from asr.recipe.definition import SystemConf
from asr.recipe.evaluation import Split, load_recognizer, read_decoding
from asr.recipe.experiment import Experiment
from asr.recipe.figures import read_batches, read_validations
from asr.recipe.report import join_parts, open_page, tabulate_origins
from asr.recipe.results import (
    Record,
    Texts,
    describe_score,
    pool,
    read_results,
    read_texts,
    setup_name,
    write_texts,
)
from asr.recipe.systems import spread
from asr.recipe.tasks import Task, hash_file, read_record, run_task
from asr.scoring.tables import Rows, markdown_table, percent, show_interval
from asr.system.checkpoint import find_model, load_state, load_system
from asr.system.run_config import RunConfig
from asr.train.dev_scores import compute_dev_scores
from asr.train.distributed import Process
from asr.train.loop import step_name
from asr.transcription.transcribe import Request

RATES = (0.5, 0.2, 0.1)  # of dev WER: how soon are they reached?
TRAIN_UTTERANCES = 100  # that are read again at the end: what has been learned by heart?


def read_runs(
    experiment: Experiment, cases: Mapping[str, SystemConf], methods: Sequence[Method]
) -> list[Record]:
    """Read the evaluated runs in the order of the study, with the decoding that is reported."""
    found = read_results(experiment)["runs"]
    return [
        {**choose_method(run, methods), "variant": case.variant, "left_out": case.left_out}
        for name, case in cases.items()
        for run in found
        if run["system"] == name
    ]


def choose_method(run: Record, methods: Sequence[Method]) -> Record:
    """Describe the run by the first of the methods that it offers, if any are asked for."""
    dev, test = run["ways"]["dev"], run["ways"]["test"]
    method = next((name for name in methods or [run["decoding"]] if name in test), None)
    if method is None:
        offered, asked = ", ".join(test), ", ".join(methods)
        raise UserError(
            f"{run['name']} was decoded by {offered}; of the study's methods there is none: {asked}"
        )
    reported = {"decoding": method, "ways": {"dev": dev, "test": {method: test[method]}}}
    if methods:
        reported["decoding_config"] = {**run["decoding_config"], "method": method}
        reported["real_time_factor"] = test[method]["real_time_factor"]
    return {**run, **reported}


# --- what the logs and the checkpoints tell -----------------------------------------------------


def add_learning(experiment: Experiment, run: Record) -> Record:
    """Add to a run what its log says, and how its checkpoints decode utterances of training."""
    folder = experiment.runs_dir / run["name"]
    dev = {line["step"]: line for line in read_validations(folder / "log.jsonl")}
    state = load_state(find_model(folder))
    steps = {"best": state["best"][0][1], "end": state["step"]}

    def reread_training() -> Record:
        utterances = choose_training(folder)
        return {"train": {str(step): reread(folder, step, utterances) for step in set(steps.values())}}

    task = Task(
        name=f"reread {run['name']}",
        does=f"decode utterances of training with its checkpoints of updates {sorted(set(steps.values()))}",
        record=folder / ".reread.done",
        inputs=lambda: {
            f"update {step}": hash_file(folder / "checkpoints" / step_name(step) / "model.safetensors")
            for step in steps.values()
        },
        outputs=list,
        run=reread_training,
    )
    run_task(task)
    train: dict[str, Any] = read_record(task.record)["train"]
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


def score_lengths(
    experiment: Experiment, runs: Sequence[Record], manifests: Sequence[str], beam: int
) -> dict[str, dict[str, Record]]:
    """Score each variant on the utterances of each number of words."""
    scores: dict[str, dict[str, Record]] = {}
    for name in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == name]
        hypotheses: dict[str, Texts] = {}
        for run in own:
            references, hypotheses[run["name"]] = decode_lengths(experiment, run, manifests, beam)
        by_length: dict[int, Texts] = defaultdict(dict)
        for id, fields in references.items():
            by_length[len(fields["text"].split())][id] = fields
        scores[name] = {
            str(length): describe_score(pool(own, by_length[length], hypotheses))
            for length in sorted(by_length)
        }
    return scores


def decode_lengths(
    experiment: Experiment, run: Record, manifests: Sequence[str], beam: int
) -> tuple[Texts, Texts]:
    """Decode test.jsonl and the longer manifests, or read what has been: references and hypotheses."""
    folder = experiment.runs_dir / run["name"]
    model = find_model(folder) / "model.safetensors"
    whole = SegmentationConfig(method="none")  # that they are longer than in training is what is measured
    recognizer = load_recognizer(experiment, folder, segmentation=whole)
    config, suffix = read_decoding(run), ""
    if beam != config.beam:
        config, suffix = config.model_copy(update={"beam": beam}), beam_suffix(beam)
    references: Texts = {}
    hypotheses: Texts = {}
    for name in ("test", *manifests):
        manifest = experiment.data_dir / f"{name}.jsonl"
        split = Split.read(recognizer, manifest, folder / "evaluation", name)
        references |= split.references
        path = split.folder / f"{setup_name(name + suffix, config.method)}.jsonl"
        if not path.exists() or path.stat().st_mtime < model.stat().st_mtime:
            decoded = split.decode({config.method: Request(config)})
            write_texts(path, split.describe(decoded[config.method]))
        hypotheses |= read_texts(path)
    return references, hypotheses


# --- the page -----------------------------------------------------------------------------------


def format_page(results: Record, pictures: Mapping[str, str]) -> str:
    """Format the page; `pictures` are names of files and what they show."""
    parts = [f"# {results['study']}", results["question"]]
    parts += open_page(results, tabulate_variants(results), _LEGEND)
    if results["comparisons"] and len({run["seed"] for run in results["runs"]}) > 1:
        parts.append(_SEEDS)
    if any(run.get("is_fold") for run in results["runs"]):
        parts += ["## Folds", tabulate_folds(results), _CROSS_VALIDATION]
    elif any(run["left_out"] is not None for run in results["runs"]):
        parts += ["## Speakers left out", tabulate_folds(results), _FOLDS]
    parts += ["## Learned, or learned by heart?", tabulate_learning(results), _LEARNING]
    for title, lengths in results["lengths"].items():
        parts += [f"## {title}", "In percent, with its 95 % interval.", tabulate_lengths(lengths)]
    parts += ["## Pictures", *(f"{shown}\n\n![{shown}]({name})" for name, shown in pictures.items())]
    parts += ["## How it came about", tabulate_shared_origins(results)]
    return join_parts(parts)


_LEGEND = (
    "Of several runs, figures are medians, and test WER is that of all their errors. Dev chose checkpoints, "
    "and the decoding unless the study sets it; what chose the settings is not recorded here. Minutes: time "
    "of the updates. RTF: real-time factor, seconds of computing for a second of audio, in batches."
)
_SEEDS = (
    "What several seeds say of a string counts as if it were several strings, so these chances are somewhat "
    "too small; the intervals draw speakers with all that belongs to them."
)
_FOLDS = (
    "Each system is trained without one speaker, whom neither train nor dev has, and tested on that one; the "
    "column `the others` is the same system on the test strings of the speakers that it knows."
)
_CROSS_VALIDATION = (
    "Cross-validation by speaker: each system is trained on train and dev without one fold, and `test` is "
    "that fold throughout; the test set of the corpus is not read. The fold chose checkpoints and decoding "
    "too, so these figures are somewhat too low: they are for choosing among variants, of which the best is "
    "then trained on all."
)
_LEARNING = (
    "Loss and WER (greedy, of the decoder where there is one) by the weights of these updates: of dev, and "
    f"of utterances of training, {TRAIN_UTTERANCES} at most, unvaried. Losses of different systems are not "
    "of one kind: compare train with dev."
)


def tabulate_variants(results: Record) -> Rows:
    has_folds = any(run["left_out"] is not None for run in results["runs"])
    head = ["variant", "parameters", *(f"updates to {rate:.0%}" for rate in RATES)]
    head += [f"seconds to {RATES[-1]:.0%}", "dev WER %", "test WER %", "95 % interval"]
    head += [] if has_folds else ["each run"]
    head += ["decoding", "minutes", "RTF"]
    rows = []
    for variant in results["variants"]:
        runs = runs_of(results, variant["name"])
        row = [variant["name"], f"{runs[0]['parameters']:,}"]
        row += [_median([run["reached"].get(str(rate), {}).get("step") for run in runs]) for rate in RATES]
        row += [_median([run["reached"].get(str(RATES[-1]), {}).get("seconds") for run in runs])]
        dev = statistics.median(run["ways"]["dev"][run["decoding"]]["wer"] for run in runs)
        row += [percent(dev), percent(variant["wer"]), _interval(variant["interval"])]
        row += [] if has_folds else [", ".join(percent(run["wer"]) for run in runs)]
        row += [", ".join(dict.fromkeys(run["decoding"] for run in runs))]
        row += [f"{statistics.median(run['training']['seconds'] for run in runs) / 60:.1f}"]
        row += [f"{statistics.median(run['real_time_factor'] for run in runs):.4f}"]
        rows.append(row)
    return [head, *rows]


def tabulate_folds(results: Record) -> str:
    """Tabulate the speakers or folds that were left out; of several seeds the mean.

    A speaker left out stands beside the others of test, a fold alone: the others are what was learned.
    """
    names = [variant["name"] for variant in results["variants"]]
    left_out = dict.fromkeys(run["left_out"] for run in results["runs"])
    has_others = any("known_speakers" in run for run in results["runs"])
    others = ["the others"] * has_others
    rows = [["left out", *(cell for name in names for cell in (f"{name}: WER %", *others))]]
    for part in left_out:
        row = [part]
        for name in names:
            own = [run for run in runs_of(results, name) if run["left_out"] == part]
            row.append(_mean([run["wer"] for run in own]))
            if has_others:
                row.append(_mean([run["known_speakers"]["wer"] for run in own]))
        rows.append(row)
    total = ["all"]
    for variant in results["variants"]:
        total += [f"{percent(variant['wer'])} {_interval(variant['interval'])}"]
        if has_others:
            known = [run["known_speakers"] for run in runs_of(results, variant["name"])]
            rate = sum(own["errors"] for own in known) / sum(own["words"] for own in known)
            total += [percent(rate)]
    return markdown_table([*rows, total])


def tabulate_learning(results: Record) -> str:
    """Tabulate medians of train beside dev where dev WER was best, dev loss was lowest, and at the end."""
    rows = [["variant", "when", "train loss", "dev loss", "train WER %", "dev WER %"]]
    for variant in results["variants"]:
        runs = runs_of(results, variant["name"])
        for when, title in (("best", "best dev WER"), ("lowest dev loss",) * 2, ("end", "end")):
            points = [run["points"][when] for run in runs]
            row = [variant["name"], f"{title}, update {statistics.median(p['step'] for p in points):,.0f}"]
            for key, show in (("loss", "{:.3f}".format), ("wer", percent)):
                for split in ("train", "dev"):
                    known = [point[split][key] for point in points if point[split]]
                    row.append(show(statistics.median(known)) if known else "-")
            rows.append(row)
    return markdown_table(rows)


def tabulate_lengths(lengths: Mapping[str, Mapping[str, Record]]) -> str:
    """Tabulate the figures of each variant by number of words."""
    counts = sorted({int(count) for own in lengths.values() for count in own})
    rows = [["variant", *(f"{count} words" for count in counts)]]
    for name, own in lengths.items():
        cells = (own[str(count)] for count in counts)
        rows.append([name, *(f"{percent(cell['wer'])} {_interval(cell['interval'])}" for cell in cells)])
    return markdown_table(rows)


def tabulate_shared_origins(results: Record) -> str:
    """Tabulate command, commit and machine, with all runs that share them."""
    (_, _, *head), *rows = tabulate_origins(results)
    runs: dict[tuple[str, ...], list[str]] = {}
    for name, _, *origin in rows:
        runs.setdefault(tuple(origin), []).append(name)
    return markdown_table([["runs", *head], *([", ".join(names), *origin] for origin, names in runs.items())])


def runs_of(results: Record, variant: str) -> list[Record]:
    return [run for run in results["runs"] if run["variant"] == variant]


def _interval(bounds: Sequence[float] | None) -> str:
    return show_interval(bounds, "[{}, {}]", unknown="-")


def _mean(rates: Sequence[float]) -> str:
    return percent(statistics.mean(rates)) if rates else "-"


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.0f}" if len(known) == len(values) else "never"
