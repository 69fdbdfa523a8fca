"""Picture of error rates over the delay of live text, of studies that decode by chunks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from asr.evaluation.plots import COLORS, DPI, LABEL_SIZE
from asr.files import replace_file

Curves = dict[str, dict[str, list[float]]]
"""Error rates of all seeds, by method and delay."""
WHOLE = "whole"  # the whole recording in view, as for files


def collect_curves(results: Mapping[str, Any]) -> dict[str, Curves]:
    """Collect the curves of each variant that is decoded by chunks, for methods without fusion or speeds."""
    found: dict[str, Curves] = {}
    for run in results["runs"]:
        curves = found.setdefault(run["variant"], {})
        for setup, rates in run["methods"]["test"].items():
            method, _, delay = setup.partition("+")
            if delay == "" or re.fullmatch(r"\d+ms", delay):
                curves.setdefault(method, {}).setdefault(delay or WHOLE, []).append(rates["wer"])
    return {variant: curves for variant, curves in found.items() if any(len(c) > 1 for c in curves.values())}


def draw_delays(path: Path, variants: Mapping[str, Curves]) -> None:
    """Write a PNG with one panel per variant and a line for each method, each a mean over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(variants), 3.6), layout="constrained")
    all_axes = figure.subplots(1, len(variants), squeeze=False, sharey=True)[0]
    for axes, (variant, curves) in zip(all_axes, variants.items(), strict=True):
        for color, (method, by_delay) in zip(COLORS, sorted(curves.items()), strict=False):
            delays = sorted(by_delay, key=lambda delay: (delay == WHOLE, int(re.sub(r"\D", "", delay) or 0)))
            means = [100 * fmean(by_delay[delay]) for delay in delays]
            axes.plot([d.replace("ms", " ms") for d in delays], means, "o-", label=method, color=color)
        axes.set(title=variant, xlabel="chunk", ylabel="WER (%)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=LABEL_SIZE)
        axes.set_ylim(bottom=0)
    with replace_file(path) as file:
        figure.savefig(file, format="png", dpi=DPI)
