"""Learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from asr.files import replace_file

# Colors that are distinct for people with any kind of color vision (Okabe and Ito, 2008).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DPI = 120
LABEL_SIZE = 8  # points


def draw_learning_curve(path: Path, panels: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> None:
    """Write a PNG with one panel per measure over updates, side by side, and a line for each name."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (measure, curves) in zip(all_axes, panels.items(), strict=True):
        for number, (name, points) in enumerate(curves.items()):
            style = {"color": COLORS[number % len(COLORS)], "marker": None if name == "train" else "o"}
            steps, values = [step for step, _ in points], [value for _, value in points]
            dashes = ("-", "--", ":")[number // len(COLORS) % 3]  # more lines than colors
            axes.plot(steps, values, label=name, markersize=3, linestyle=dashes, **style)
        axes.set(ylabel=measure, xlabel="updates")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        if measure in ("wer", "cer"):  # fractions in log.jsonl
            axes.set(ylabel=f"{measure.upper()} (%)", ylim=(0, axes.get_ylim()[1]))
            axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=LABEL_SIZE)
    with replace_file(path) as file:
        figure.savefig(file, format="png", dpi=DPI)
