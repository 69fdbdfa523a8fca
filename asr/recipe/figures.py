"""Pictures and audio for reports: learning curves, attention, WER by length, the worst utterances."""

from __future__ import annotations

import io
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from asr.audio import reading as audio_files
from asr.batches.builder import Batch
from asr.batches.loader import BatchLoader
from asr.data.manifest import Manifest, Utterance, read_manifest, write_manifest
from asr.data.shards import read_audio
from asr.evaluation.plots import COLOURS
from asr.system.checkpoint import System, find_model, load_system
from asr.train.dev_scores import compute_attention, plot_dev_attention
from asr.train.distributed import Process
from asr.train.preparation import build_inputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_MAPS = 3
MOST_WER = 150  # %, in the picture of lengths
MOST_CURVES = 5  # in a panel of it
MARKERS = "os^Dv"


# --- learning curves ----------------------------------------------------------------------------


def read_validations(log: Path) -> list[dict[str, Any]]:
    """The lines of a log about WER on dev; none without a log."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if line["kind"] == "dev" and "wer" in line]


def draw_curves(logs: Mapping[str, Path]) -> str:
    """Draw dev WER against updates and against hours of audio, from the logs of runs by name, as SVG."""
    from matplotlib.figure import Figure

    curves = {name: dev for name, log in logs.items() if (dev := read_validations(log))}
    are_many = len(curves) > len(COLOURS)  # so that a legend among them would hide some
    figure = Figure(figsize=(12 if are_many else 10, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key, label in zip(panels, ("step", "audio_hours"), ("updates", "hours of audio"), strict=True):
        for number, (name, dev) in enumerate(curves.items()):
            style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number // len(COLOURS) % 5]}
            wer = [100 * min(line["wer"], 2.0) for line in dev]  # a decoder that repeats itself has no limit
            axes.plot([line[key] for line in dev], wer, label=name, markersize=3, **style)
        axes.set_xlabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("WER on dev, % (200 and more as 200)")
    if are_many:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    else:
        panels[0].legend(fontsize=8)
    return format_svg(figure)


def format_svg(figure: Figure) -> str:
    """Format as SVG: the same each time, with text as text."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "asr", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


# --- WER by length ------------------------------------------------------------------------------


def draw_lengths(lengths: Mapping[str, Mapping[str, Mapping[str, Any]]], longest_trained: int) -> str:
    """Draw WER against the number of words, a few variants to a panel, as SVG."""
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
    return format_svg(figure)


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
        axes.errorbar(
            places, rates, errors, label=name, color=COLOURS[number], marker=MARKERS[number], markersize=4,
            linewidth=1.2, elinewidth=0.7,
        )  # fmt: skip
    counts = sorted({int(count) for own in lengths.values() for count in own})
    axes.set_xlim(counts[0] - 0.5, None)
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", fontsize=8, framealpha=0.7)


# --- attention ----------------------------------------------------------------------------------


def choose_utterances(manifest: Path) -> list[Utterance]:
    """Choose a short, a middling and a long utterance: the same in each report."""
    ordered = sorted(read_manifest(manifest), key=lambda utterance: (utterance.duration, utterance.id))
    places = dict.fromkeys(len(ordered) * (number + 1) // (NUM_MAPS + 1) for number in range(NUM_MAPS))
    return [ordered[place] for place in places]


def draw_attention(run_folder: Path, utterances: Sequence[Utterance], folder: Path) -> list[Path]:
    """Draw ID.png for each utterance if the decoder of the system attends; return the pictures."""
    system = _load_attending(run_folder)
    if system is None:
        return []
    for batch in read_batches(system, utterances):
        plot_dev_attention(system, batch, folder, Process(0, 1, torch.device("cpu")))
    return [folder / f"{utterance.id}.png" for utterance in utterances]


def draw_maps(folders: Mapping[str, Path], shown: Sequence[Utterance], path: Path) -> bool:
    """Draw the attention of each run to the same utterances, as PNG; False if no decoder attends.

    A row for each run by its name, a column for each utterance: the last layer, mean of its heads, under the
    true text.
    """
    from matplotlib.figure import Figure

    maps: dict[str, dict[str, np.ndarray]] = {}
    for name, folder in folders.items():
        if (system := _load_attending(folder)) is not None:
            maps[name] = {}
            for batch in read_batches(system, shown):
                maps[name] |= zip(batch.ids, compute_attention(system.model, batch), strict=True)
    if not maps:
        return False
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


def _load_attending(folder: Path) -> System | None:
    """Load the model of a run; None if it has no decoder that attends."""
    system = load_system(find_model(folder))
    return system if system.model.decoder is not None and system.model.decoder.num_heads else None


def read_batches(system: System, utterances: Sequence[Utterance]) -> Iterator[Batch]:
    """Read each utterance once, without augmentation."""
    settings = system.config.batches.model_copy(update={"num_workers": 0})
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "utterances.jsonl"
        write_manifest(manifest, utterances)
        yield from BatchLoader(Manifest.open(manifest), build_inputs(system), settings).evaluation_batches()


# --- audio --------------------------------------------------------------------------------------


def copy_audio(utterance: Utterance, folder: Path) -> Path:
    """Write the utterance as WAV, which any browser plays: corpora come in formats that none does."""
    sample_rate = audio_files.read_info(utterance.audio).sample_rate
    samples = read_audio(utterance, sample_rate)
    path = folder / f"{utterance.id.replace('/', '_')}.wav"
    folder.mkdir(parents=True, exist_ok=True)
    audio_files.write(path, samples, sample_rate)
    return path
