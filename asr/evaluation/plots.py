"""Pictures: attention or CTC posteriors over a spectrogram; learning curves. Needs no display."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asr.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# N rows, T steps

# Beside the fonts that Matplotlib brings, for scripts that these lack; those not installed are left out.
FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans Devanagari",
    "Noto Sans Arabic",
)
GREY = "#595959"
DPI = 120
POINTS = 72  # to an inch
LABEL_SIZE, TITLE_SIZE = 8, 11  # points
END = "(end)"  # name of the row that says the end


@dataclass(frozen=True)
class Strip:
    """Values along time."""

    values_NT: np.ndarray
    first: float
    """Seconds: the middle of the first step."""
    step: float
    """Seconds from one step to the next."""

    @property
    def edges(self) -> tuple[float, float]:
        """Begin of the first step and end of the last one."""
        begin = self.first - self.step / 2
        return begin, begin + self.step * self.values_NT.shape[1]


@dataclass(frozen=True)
class Picture:
    """Rows with names over time, a spectrogram of the same time beneath."""

    rows: Strip
    names: Sequence[str]
    """Of the rows: tokens."""
    spectrogram: Strip
    """The lowest band first."""
    title: str
    subtitle: str = ""
    """What the rows are."""
    values: str = "attention"
    most: float | None = None
    """What has the last colour; the largest value there is if None."""
    frequencies: Sequence[tuple[float, str]] = ()
    """Row and name of some bands of the spectrogram; bands are counted if there are none."""


# Colours that people with any kind of colour vision tell apart (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def draw_learning_curve(path: Path, panels: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> None:
    """Write a PNG: side by side each measure over updates, with a line for each set of data."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
    for axes, (measure, curves) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for number, (name, points) in enumerate(curves.items()):
            style = {"color": COLOURS[number % len(COLOURS)], "marker": None if name == "train" else "o"}
            steps, values = [step for step, _ in points], [value for _, value in points]
            axes.plot(steps, values, label=name, markersize=3, **style)
        axes.set(title=measure, xlabel="updates")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=LABEL_SIZE)
    with replace_file(path) as file:
        figure.savefig(file, format="png", dpi=DPI)


def draw(path: Path, picture: Picture) -> None:
    """Write a PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.font_manager import get_font_names

    begin, end = picture.rows.edges
    width = float(np.clip(5 + 0.8 * (end - begin), 8, 14))
    height = float(np.clip(0.17 * len(picture.names), 1.2, 9))
    title = textwrap.wrap(picture.title, round(11 * width), max_lines=3, placeholder=" …")
    families = ["DejaVu Sans", *sorted(set(FONTS) & set(get_font_names()))]
    with rc_context({"font.family": families, "font.size": LABEL_SIZE, "text.parse_math": False}):
        figure = Figure(figsize=(width, height + 1.9 + 0.2 * len(title)), layout="constrained")
        upper, lower = figure.subplots(
            2, 1, sharex=True, height_ratios=[height, 1.1], subplot_kw={"facecolor": "black"}
        )
        upper.set_title("\n".join(title), fontsize=TITLE_SIZE, loc="left", pad=2 * LABEL_SIZE + 2)
        place = {"xytext": (0, LABEL_SIZE / 2), "textcoords": "offset points"}
        upper.annotate(picture.subtitle, (0, 1), xycoords="axes fraction", **place, color=GREY)
        _draw_rows(upper, picture, POINTS * height)
        _draw_spectrogram(lower, picture)
        with replace_file(path) as file:
            figure.savefig(file, format="png", dpi=DPI)


def _draw_rows(axes: Axes, picture: Picture, height_points: float) -> None:
    values_NT = picture.rows.values_NT
    begin, end = picture.rows.edges
    num_rows = len(values_NT)
    image = axes.imshow(
        values_NT,
        aspect="auto",
        interpolation="nearest",
        cmap="magma",
        extent=(begin, end, num_rows - 0.5, -0.5),
        vmin=0,
        vmax=picture.most or max(float(values_NT.max(initial=0)), 1e-6),
    )
    most_labels = max(1, int(height_points / (LABEL_SIZE + 1)))
    places = choose_labels(picture.names, most_labels)
    axes.set_yticks(list(places), list(places.values()))
    axes.hlines(list(places), begin, end, color="white", alpha=0.1, linewidth=0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("token", color=GREY)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03, aspect=height_points / 8)
    bar.set_label(picture.values, color=GREY)
    bar.outline.set_visible(False)


def _draw_spectrogram(axes: Axes, picture: Picture) -> None:
    strip = picture.spectrogram
    axes.imshow(
        strip.values_NT,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="magma",
        extent=(*strip.edges, -0.5, len(strip.values_NT) - 0.5),
    )
    if picture.frequencies:
        axes.set_yticks(*zip(*picture.frequencies, strict=True))
    axes.set_ylabel("frequency" if picture.frequencies else "feature", color=GREY)
    axes.set_xlabel("seconds", color=GREY)
    begin, end = picture.rows.edges
    axes.set_xlim(min(begin, strip.edges[0]), max(end, strip.edges[1]))


def choose_labels(names: Sequence[str], most: int) -> dict[int, str]:
    """Row to label, at most so many: each token, else each word at its first token, else some of them."""
    shown = {row: name.replace(" ", "␣") for row, name in enumerate(names)}
    if len(shown) > most and len(words := join_words(names)) > 1:
        shown = words
    if len(shown) > most:
        every = -(-len(shown) // most)
        shown = dict(list(shown.items())[::every])
    return shown


def join_words(names: Sequence[str]) -> dict[int, str]:
    """The row of the first token of each word, and the word. Spaces and ▁ stand before words."""
    words: dict[int, str] = {}
    is_new = True
    for row, name in enumerate(names):
        is_new = is_new or name.startswith((" ", "▁"))
        rest = name.strip(" ▁")
        if not rest:
            continue
        if is_new or name == END:
            words[row] = rest
        else:
            words[next(reversed(words))] += rest
        is_new = name.endswith(" ")
    return words
