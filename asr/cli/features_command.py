"""`asr features FILE...`: compute the features of audio files; write, summarize and draw them."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli import add_settings
from asr.errors import AudioError, UserError

if TYPE_CHECKING:
    import numpy as np

    from asr.features.front_end import FeaturesConfig

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="audio files")
    text = "YAML file of a run, for its section `features` (default: log-mel, 80)"
    add("--config", metavar="CONFIG", help=text)
    add_settings(parser, "a setting of that section, such as features.num_mels=40; may be repeated")
    add("--output-dir", metavar="DIR", help="write the features of each file to DIR/<name>.npy")
    add("--plot", metavar="PNG", help="draw waveform and features of one file")


def run(args: argparse.Namespace) -> int:
    files = [Path(name) for name in args.files]
    if args.plot and len(files) > 1:
        raise UserError(f"--plot draws one file, but {len(files)} are given; call it once for each")
    if args.output_dir and len({path.stem for path in files}) < len(files):
        raise UserError("two files have the same name; give each its own --output-dir")
    import numpy as np
    import torch

    from asr.audio.reading import read
    from asr.features.front_end import FrontEnd
    from asr.files import replace_file

    config = _load_config(args.config, args.set)
    front_end = FrontEnd(config)
    num_failed, width = 0, max(len(str(path)) for path in files)
    print(f"{'file':{width}}  frames x features   seconds     mean      std")
    for path in files:
        try:
            audio_S = read(path, config.sample_rate, allow_silence=True)
        except AudioError as error:
            logger.error("%s", error)
            num_failed += 1
            continue
        features_BTF, _ = front_end(torch.from_numpy(audio_S)[None], torch.tensor([len(audio_S)]))
        features_TF = features_BTF[0].numpy()
        shape = f"{len(features_TF)} x {features_TF.shape[1]}"
        has_any = features_TF.size > 0
        numbers = f"{features_TF.mean():9.3f}{features_TF.std():9.3f}" if has_any else f"{'-':>9}{'-':>9}"
        print(f"{path!s:{width}}  {shape:>17}{len(audio_S) / config.sample_rate:>10.2f}{numbers}")
        if args.output_dir:
            with replace_file(Path(args.output_dir, f"{path.stem}.npy"), flush=False) as file:
                np.save(file, features_TF, allow_pickle=False)
        if args.plot:
            _plot(args.plot, path, audio_S, features_TF, config.sample_rate)
    return 1 if num_failed else 0


def _load_config(path: str | None, overrides: Sequence[str]) -> FeaturesConfig:
    if path is not None:
        from asr.system.run_config import RunConfig

        return RunConfig.load(path, overrides).features
    from asr.config import build_config
    from asr.features.front_end import FeaturesConfig

    return build_config(FeaturesConfig, [pair.removeprefix("features.") for pair in overrides])


def _plot(output: str, path: Path, audio_S: np.ndarray, features_TF: np.ndarray, rate: int) -> None:
    """Draw the waveform and the features on one time axis."""
    from matplotlib.figure import Figure

    from asr.files import replace_file

    if not features_TF.size:
        raise UserError(f"{path}: shorter than a window of the features; nothing to draw")
    figure, seconds = Figure(figsize=(11, 6), layout="constrained"), len(audio_S) / rate
    waveform, axes = figure.subplots(2, sharex=True)
    step = -(-len(audio_S) // 100_000)
    shown_S = audio_S[::step]
    waveform.plot([number * step / rate for number in range(len(shown_S))], shown_S, linewidth=0.5)
    extent = (0, seconds, -0.5, features_TF.shape[1] - 0.5)
    axes.imshow(features_TF.T, origin="lower", aspect="auto", extent=extent, cmap="magma")
    axes.set(xlabel="seconds", ylabel="feature")
    with replace_file(output) as file:
        figure.savefig(file, format="png", dpi=120)
