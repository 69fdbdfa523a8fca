"""Write the report of a study: one page in Markdown, with its pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from asr.data.manifest import read_manifest
from asr.models.model import Targets
from asr.recipe.figures import COLOURS, read_batches
from asr.recipe.report import SMOKE_WARNING, describe_test, tabulate_origins
from asr.recipe.study_scores import RATES, TRAIN_UTTERANCES, Record
from asr.scoring.counting import Score
from asr.scoring.tables import markdown_table, percent, show_interval
from asr.system.checkpoint import find_model, load_system

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_WER = 150  # %, in the picture of lengths
MOST_CURVES = 5  # in a panel of it

# Shapes: N tokens of a text and its end, T encoded steps, H heads of attention.


# --- the page -----------------------------------------------------------------------------------


def format_page(results: Record, pictures: Mapping[str, str]) -> str:
    """Format the page from study.json; `pictures` are names of files and what they show."""
    parts = [f"# {results['study']}", results["question"]]
    parts += [f"**{SMOKE_WARNING}**"] if results["smoke"] else []
    parts += [f"`{results['command']}`: {describe_test(results)}", tabulate_variants(results), _LEGEND]
    if results["comparisons"]:
        parts += [f"## Against {results['baseline']}"]
        parts += ["\n".join(f"- {comparison['in_words']}" for comparison in results["comparisons"])]
        parts += [_SEEDS] if len({run["seed"] for run in results["runs"]}) > 1 else []
    if any(run.get("is_fold") for run in results["runs"]):
        parts += ["## Folds", tabulate_folds(results), _CROSS_VALIDATION]
    elif any(run["left_out"] is not None for run in results["runs"]):
        parts += ["## Speakers left out", tabulate_folds(results), _FOLDS]
    parts += ["## Learned, or learned by heart?", tabulate_learning(results), _LEARNING]
    for title, lengths in results["lengths"].items():
        parts += [f"## {title}", "In percent, with its 95 % interval.", tabulate_lengths(lengths)]
    parts += ["## Pictures", *(f"{shown}\n\n![{shown}]({name})" for name, shown in pictures.items())]
    parts += ["## How it came about", tabulate_shared_origins(results)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


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


def tabulate_variants(results: Record) -> str:
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
    return markdown_table([head, *rows])


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
            row += [percent(statistics.mean(run["wer"] for run in own)) if own else "-"]
            if has_others:
                known = [run["known_speakers"]["wer"] for run in own]
                row += [percent(statistics.mean(known)) if own else "-"]
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
            update = statistics.median(point["step"] for point in points)
            train, dev = (
                {key: statistics.median(point[split][key] for point in points) for key in ("loss", "wer")}
                if points[0][split]
                else None
                for split in ("train", "dev")
            )
            row = [variant["name"], f"{title}, update {update:,.0f}"]
            row += [f"{train['loss']:.3f}" if train else "-", f"{dev['loss']:.3f}" if dev else "-"]
            row += [percent(train["wer"]) if train else "-", percent(dev["wer"]) if dev else "-"]
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


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.0f}" if len(known) == len(values) else "never"


# --- pictures -----------------------------------------------------------------------------------


def draw_lengths(scores: Mapping[str, Mapping[int, Score]], longest_trained: int, path: Path) -> None:
    """Draw WER against the number of words, a few variants to a panel, as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(scores)
    num_curves = math.ceil(len(names) / math.ceil(len(names) / MOST_CURVES))
    panels = [names[first : first + num_curves] for first in range(0, len(names), num_curves)]
    num_columns = min(2, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    with rc_context({"svg.hashsalt": "asr", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6 * num_columns, 3.6 * num_rows), layout="constrained")
        grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True).flat
        for axes, shown in zip_longest(grid, panels):
            if shown is None:
                axes.set_visible(False)
                continue
            _draw_panel(axes, {name: scores[name] for name in shown}, longest_trained)
        figure.supxlabel("words in the utterance (grey: lengths of the training)", fontsize=9)
        figure.supylabel(f"WER on test, % ({MOST_WER} and more as {MOST_WER})", fontsize=9)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_panel(axes: Axes, scores: Mapping[str, Mapping[int, Score]], longest_trained: int) -> None:
    axes.axvspan(0, longest_trained + 0.5, color="black", alpha=0.06, linewidth=0)
    for number, (name, own) in enumerate(scores.items()):
        lengths = sorted(own)
        rates = [min(100 * own[length].error_rate, MOST_WER) for length in lengths]
        intervals = [own[length].interval for length in lengths]
        bounds = [
            (rate, rate) if interval is None else (100 * interval.low, 100 * interval.high)
            for rate, interval in zip(rates, intervals, strict=True)
        ]
        shifts = [  # beside each other, so that no interval hides another
            length + 0.06 * (number - len(scores) / 2) for length in lengths
        ]
        errors = [
            [max(0.0, rate - low) for rate, (low, _) in zip(rates, bounds, strict=True)],
            [max(0.0, min(high, MOST_WER) - rate) for rate, (_, high) in zip(rates, bounds, strict=True)],
        ]
        axes.errorbar(
            shifts, rates, errors, label=name, color=COLOURS[number], marker="os^Dv"[number], markersize=4,
            linewidth=1.2, elinewidth=0.7,
        )  # fmt: skip
    axes.set_xlim(min(min(own) for own in scores.values()) - 0.5, None)
    axes.set_xticks(sorted({length for own in scores.values() for length in own}))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", fontsize=8, framealpha=0.7)


def draw_maps(folders: Mapping[str, Path], manifest: Path, path: Path) -> bool:
    """Draw the attention of each run to the same utterances, as PNG; False if no decoder attends.

    A row for each run by its name, a column for each utterance: the last layer, mean of its heads, under the
    true text.
    """
    from matplotlib.figure import Figure

    maps = {name: found for name, folder in folders.items() if (found := read_maps(folder, manifest))}
    if not maps:
        return False
    shown = list(read_manifest(manifest))
    figure = Figure(figsize=(3.2 * len(shown) + 1, 1.5 * len(maps) + 0.5), layout="constrained")
    grid = figure.subplots(len(maps), len(shown), squeeze=False)
    for row, (name, own) in zip(grid, maps.items(), strict=True):
        row[0].set_ylabel(name.replace("_", " "), rotation=0, ha="right", va="center", fontsize=8)
        for axes, utterance in zip(row, shown, strict=True):
            axes.imshow(own[utterance.id], aspect="auto", interpolation="nearest", cmap="magma", vmin=0)
            axes.set_xticks([])
            axes.set_yticks([])
    for axes, utterance in zip(grid[0], shown, strict=True):
        axes.set_title(utterance.text, fontsize=8)
    figure.supxlabel("time", fontsize=8)
    figure.savefig(path, format="png", dpi=90)
    return True


@torch.inference_mode()
def read_maps(folder: Path, manifest: Path) -> dict[str, np.ndarray]:
    """Compute the attention (N, T) of a run by utterance id; empty if its decoder does not attend."""
    system = load_system(find_model(folder))
    decoder = system.model.decoder
    if decoder is None or decoder.num_heads == 0:
        return {}
    maps = {}
    for batch in read_batches(system, manifest):
        encoded_BTD, lengths_B = system.model.encode(batch.features_BTF, batch.feature_lengths_B)
        targets = Targets(batch.tokens_BU, batch.token_lengths_B)
        _, weights = decoder.score_reference(targets, (encoded_BTD, lengths_B), decoder.last_heads)
        (weights_BHNT,) = weights.values()
        has_end = weights_BHNT.size(2) > batch.tokens_BU.size(1)
        for row, id in enumerate(batch.ids):
            num_rows = int(batch.token_lengths_B[row]) + has_end
            maps[id] = weights_BHNT[row, :, :num_rows, : int(lengths_B[row])].mean(0).numpy()
    return maps
