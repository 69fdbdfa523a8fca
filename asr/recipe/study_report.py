"""Format the report of a study from study.json: one page in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from asr.recipe.report import join_parts, open_page, tabulate_origins
from asr.recipe.results import Record
from asr.recipe.study_scores import RATES, TRAIN_UTTERANCES
from asr.scoring.tables import Rows, markdown_table, percent, show_interval


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
    "of the updates. Real time: seconds of computing for a second of audio, in batches."
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
    head += ["decoding", "minutes", "real time"]
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
