"""Pictures of reports: learning curves, attention, WER by length."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asr.audio.sources import Recording
from asr.batches.builder import Batch
from asr.batches.loader import BatchLoader
from asr.data.manifest import Manifest, Utterance, read_manifest, write_manifest
from asr.evaluation.attention_pictures import View, draw_text
from asr.evaluation.plots import COLOURS, draw_learning_curve
from asr.system.checkpoint import System, find_model, load_system
from asr.train.preparation import build_inputs
from asr.transcription.transcribe import Recognizer

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
