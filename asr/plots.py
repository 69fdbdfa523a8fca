"""Pictures: attention over a spectrogram. Matplotlib without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asr.files import replace_file


def plot_attention(
    path: Path,
    weights_NT: np.ndarray,
    tokens_N: Sequence[str],
    features_TF: np.ndarray,
    title: str,
    seconds: float,
) -> None:
    """Tokens on the vertical axis, time on the horizontal one, the features of the same time beneath."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 2.2 + 0.16 * len(tokens_N)
    figure = Figure(figsize=(9, height), layout="constrained")
    FigureCanvasAgg(figure)
    attention, spectrogram = figure.subplots(2, 1, sharex=True, height_ratios=[height - 1.6, 1.2])
    attention.imshow(
        weights_NT,
        aspect="auto",
        interpolation="nearest",
        cmap="magma",
        extent=(0, seconds, len(tokens_N) - 0.5, -0.5),
        vmin=0,
    )
    attention.set_yticks(range(len(tokens_N)), [token.replace(" ", "␣") for token in tokens_N], fontsize=7)
    attention.set_ylabel("token")
    attention.set_title(title, fontsize=9)
    spectrogram.imshow(
        features_TF.T,
        aspect="auto",
        origin="lower",
        cmap="viridis",
        extent=(0, seconds, 0, features_TF.shape[1]),
    )
    spectrogram.set_ylabel("feature")
    spectrogram.set_xlabel("seconds")
    with replace_file(path) as file:
        figure.savefig(file, format="png", dpi=110)
