"""Learning curves, attention maps and audio of the worst utterances for a report."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from asr.audio import reading as audio_files
from asr.batches.builder import Batch, Inputs
from asr.batches.loader import BatchLoader
from asr.data.manifest import Manifest, Utterance, read_manifest, write_manifest
from asr.evaluation.plots import COLOURS
from asr.models.encoder import subsampled_lengths
from asr.system.checkpoint import System, find_model, load_system
from asr.train.dev_scores import plot_dev_attention
from asr.train.distributed import Process

NUM_MAPS = 3


@dataclass(frozen=True)
class Curve:
    """WER on dev while a system was trained."""

    updates: tuple[int, ...]
    hours: tuple[float, ...]
    """Of training audio so far; empty where the log does not say."""
    wer: tuple[float, ...]


def read_curve(log: Path) -> Curve:
    """Read what validations have left in log.jsonl."""
    dev = read_validations(log)
    hours = tuple(line["audio_hours"] for line in dev if "audio_hours" in line)
    return Curve(
        tuple(line["step"] for line in dev),
        hours if len(hours) == len(dev) else (),
        tuple(line["wer"] for line in dev),
    )


def read_validations(log: Path) -> list[dict[str, Any]]:
    """The lines of a log about WER on dev; none without a log."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if line["kind"] == "dev" and "wer" in line]


def draw_curves(curves: Mapping[str, Curve]) -> str:
    """Draw dev WER against updates, and against hours of audio where all logs tell them, as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = {name: curve for name, curve in curves.items() if curve.updates}
    has_hours = all(curve.hours for curve in drawn.values())
    with rc_context(
        {"svg.hashsalt": "asr", "svg.fonttype": "none"}
    ):  # the same file each time, with real text
        width = (10 if has_hours else 5.5) + 2 * (len(drawn) > len(COLOURS))
        figure = Figure(figsize=(width, 3.6), layout="constrained")
        axes = figure.subplots(1, 2 if has_hours else 1, sharey=True, squeeze=False)[0]
        for number, (name, curve) in enumerate(drawn.items()):
            style = {"color": COLOURS[number % len(COLOURS)], "marker": "os^Dv"[number // len(COLOURS) % 5]}
            wer = [100 * min(value, 2.0) for value in curve.wer]  # a decoder that repeats itself has no limit
            axes[0].plot(curve.updates, wer, label=name, markersize=3, **style)
            if has_hours:
                axes[1].plot(curve.hours, wer, label=name, markersize=3, **style)
        for axis, label in zip(axes, ("updates", "hours of audio"), strict=False):
            axis.set_xlabel(label)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("WER on dev, % (200 and more as 200)")
        if len(drawn) > len(COLOURS):  # would hide the curves
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
        else:
            axes[0].legend(fontsize=8)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def choose_utterances(manifest: Path) -> list[Utterance]:
    """Choose a short, a middling and a long utterance: the same in each report."""
    ordered = sorted(read_manifest(manifest), key=lambda utterance: (utterance.duration, utterance.id))
    places = dict.fromkeys(len(ordered) * (number + 1) // (NUM_MAPS + 1) for number in range(NUM_MAPS))
    return [ordered[place] for place in places]


def draw_attention(run_folder: Path, utterances: Sequence[Utterance], folder: Path) -> list[Path]:
    """Draw ID.png for each utterance if the decoder of the system attends; return the pictures."""
    system = load_system(find_model(run_folder))
    if system.model.decoder is None or system.model.decoder.num_heads == 0:
        return []
    manifest = folder / "utterances.jsonl"
    write_manifest(manifest, utterances)
    for batch in read_batches(system, manifest):
        plot_dev_attention(system, batch, folder, Process(0, 1, torch.device("cpu")))
    return [folder / f"{utterance.id}.png" for utterance in utterances]


def read_batches(system: System, manifest: Path) -> Iterator[Batch]:
    """Read each utterance once, without augmentation."""
    config = system.config
    factor = system.model.encoder.subsampling_factor
    inputs = Inputs(
        system.front_end,
        system.tokenizer,
        config.text,
        config.augment,
        partial(subsampled_lengths, factor=factor),
    )
    settings = config.batches.model_copy(update={"num_workers": 0})
    return BatchLoader(Manifest.open(manifest), inputs, settings, seed=config.seed).evaluation_batches()


def copy_audio(utterance: Utterance, folder: Path) -> Path:
    """Write the utterance as WAV, which any browser plays: corpora come in formats that none does."""
    sample_rate = audio_files.read_info(utterance.audio).sample_rate
    samples = audio_files.read(
        utterance.audio,
        sample_rate,
        start=utterance.start,
        duration=utterance.duration,
        channel=utterance.channel_index,
        allow_silence=True,
    )
    path = folder / f"{utterance.id.replace('/', '_')}.wav"
    folder.mkdir(parents=True, exist_ok=True)
    audio_files.write(path, samples, sample_rate)
    return path
