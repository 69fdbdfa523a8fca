"""`asr features FILE...`: compute the features of audio files; write, summarise and draw them."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.cli.options import add_engine, add_settings, find_pool
from asr.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

    from asr.features.front_end import FeaturesConfig
    from asr.scale.ray_pool import PoolOptions

logger = logging.getLogger(__name__)

MAX_PLOT_SECONDS = 600  # more is neither seen in a picture of this width nor drawn quickly
MAX_WAVEFORM_POINTS = 4000
FREQUENCIES_HZ = (0, 250, 500, 1000, 2000, 4000, 8000, 16_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="audio files")
    parser.add_argument(
        "--config",
        metavar="CONF",
        help="YAML file of a run, for its section `features` (default: log-mel, 80)",
    )
    add_settings(parser, "a setting of that section, such as features.num_mels=40; may be repeated")
    parser.add_argument(
        "--output-dir", metavar="DIR", help="write the features of each file to DIR/<name>.npy"
    )
    parser.add_argument("--plot", metavar="PNG", help="draw waveform, log-mel and MFCC of one file")
    add_engine(parser.add_argument_group("many files", "With --output-dir."))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    import json

    pool = find_pool(args)
    config = _load_config(args.config, args.set)
    files = [Path(name) for name in args.files]
    for path in files:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; give the files in it, such as {path}/*.wav")
    if args.plot and len(files) > 1:
        raise UserError(f"--plot draws one file, but {len(files)} are given; call it once for each")
    if pool is not None and (args.plot or not args.output_dir):
        raise UserError("--engine ray writes to --output-dir DIR and draws nothing; give that, and no --plot")
    outputs = _plan_outputs(files, Path(args.output_dir)) if args.output_dir else {}
    work = _FeatureWork(config, outputs)
    rows = (work([path])[0] for path in files) if pool is None else _compute_on_ray(files, work, pool)
    summaries, num_failed = [], 0
    width = max(len(str(path)) for path in files)
    for path, row in zip(files, rows, strict=True):
        if "error" in row:
            message = row["error"]
            logger.error("%s", message if str(path) in message else f"{path}: {message}")
            num_failed += 1
            continue
        summaries.append(row)
        if args.plot:
            from asr.audio.reading import read

            audio = read(path, config.sample_rate, allow_silence=True)
            _plot(Path(args.plot), path.name, audio, config)
        if not args.json:
            _print_row(row, width, is_first=len(summaries) == 1)
    if args.json:
        print(json.dumps({"files": summaries, "num_failed": num_failed}, ensure_ascii=False, indent=2))
    return 1 if num_failed else 0


class _FeatureWork:
    """Computes and writes the features of files; a row for each, a summary or the error."""

    def __init__(self, config: FeaturesConfig, outputs: dict[Path, Path]) -> None:
        self._config = config
        self._outputs = outputs

    def __call__(self, files: Sequence[Path]) -> list[dict[str, Any]]:
        return [self._compute(path) for path in files]

    def _compute(self, path: Path) -> dict[str, Any]:
        import numpy as np

        from asr.audio.reading import AudioError, read
        from asr.files import replace_file

        try:
            audio = read(path, self._config.sample_rate, allow_silence=True)
        except AudioError as error:
            return {"error": str(error)}
        features = _compute(self._config, audio)
        row = _summarize(path, audio, features, self._config.sample_rate)
        if (output := self._outputs.get(path)) is not None:
            with replace_file(output, flush=False) as file:
                np.save(file, features, allow_pickle=False)
            row["output"] = str(output)
        return row


def _compute_on_ray(files: list[Path], work: _FeatureWork, options: PoolOptions) -> Iterator[dict[str, Any]]:
    from asr.audio.reading import read_info
    from asr.cli.options import limit_threads
    from asr.progress import AudioProgress
    from asr.scale.ray_pool import RayPool
    from asr.transcription.recordings import plan_units

    def measure(path: Path) -> float:
        try:
            return read_info(path).seconds or 0.0
        except UserError:
            return 0.0  # what is wrong is said when it is read

    def make_work(threads: int) -> _FeatureWork:
        limit_threads(threads)
        return work

    seconds = [measure(path) for path in files]
    units = plan_units(seconds)
    found: dict[int, list[dict[str, Any]]] = {}
    with (
        RayPool[Path](options, uses_gpus=False) as pool,
        AudioProgress(sum(seconds)) as progress,
    ):
        for number, rows in pool.run([[files[index] for index in unit] for unit in units], make_work):
            found[number] = rows
            progress.advance(sum(seconds[index] for index in units[number]))
    return (row for number in range(len(units)) for row in found[number])


def _load_config(path: str | None, overrides: Sequence[str]) -> FeaturesConfig:
    if path is not None:
        from asr.system.run_config import RunConfig

        return RunConfig.load(path, overrides).features
    from asr.config import Config, build_config
    from asr.features.front_end import FeaturesConfig

    class FeatureSettings(Config):
        features: FeaturesConfig = FeaturesConfig()

    return build_config(FeatureSettings, overrides).features


def _compute(config: FeaturesConfig, audio: np.ndarray) -> np.ndarray:
    import torch

    from asr.features.front_end import FrontEnd

    features_BTF, _ = FrontEnd(config)(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))
    features: np.ndarray = features_BTF[0].numpy()
    return features


def _plan_outputs(files: list[Path], folder: Path) -> dict[Path, Path]:
    """Map each file to the output of its features; refuse two with the same output."""
    sources: dict[Path, Path] = {}
    for path in files:
        output = folder / f"{path.stem}.npy"
        if output in sources:
            raise UserError(
                f"{sources[output]} and {path} would both be written to {output}; "
                "compute them in two calls, with two folders"
            )
        sources[output] = path
    return {path: output for output, path in sources.items()}


# --- table ----------------------------------------------------------------------------------------


def _summarize(path: Path, audio: np.ndarray, features: np.ndarray, sample_rate: int) -> dict[str, Any]:
    return {
        "file": str(path),
        "num_frames": features.shape[0],
        "num_features": features.shape[1],
        "seconds": len(audio) / sample_rate,
        "mean": float(features.mean()) if features.size else None,
        "std": float(features.std()) if features.size else None,
    }


def _print_row(summary: dict[str, Any], width: int, is_first: bool) -> None:
    if is_first:
        print(f"{'file':{width}}  frames x features   seconds     mean      std")
    shape = f"{summary['num_frames']} x {summary['num_features']}"
    mean, std = (
        "-" if summary[name] is None else f"{summary[name]:.3f}" for name in ("mean", "std")
    )  # audio shorter than one window has no frames
    print(f"{summary['file']:{width}}  {shape:>17}{summary['seconds']:>10.2f}{mean:>9}{std:>9}")


# --- picture --------------------------------------------------------------------------------------


def _plot(output: Path, name: str, audio: np.ndarray, config: FeaturesConfig) -> None:
    """Draw waveform, log-mel and MFCC on one time axis, before deltas, reduction and CMVN."""
    from matplotlib.figure import Figure

    from asr.files import replace_file

    seconds = len(audio) / config.sample_rate
    if not 2 * config.window_ms / 1000 <= seconds <= MAX_PLOT_SECONDS:
        raise UserError(
            f"{name}: {seconds:.3f} s cannot be drawn; expected two windows to {MAX_PLOT_SECONDS} s"
        )
    figure = Figure(figsize=(11, 8), layout="constrained")
    title = f"{name}  ({seconds:.2f} s at {config.sample_rate / 1000:g} kHz)"
    figure.suptitle(title, fontsize=13, parse_math=False)  # a dollar in a name begins no formula
    grid = figure.subplots(3, 2, width_ratios=[70, 1], height_ratios=[2, 3, 3])
    _draw_waveform(grid[0, 0], audio, config.sample_rate)
    grid[0, 1].axis("off")
    _draw_log_mel(grid[1, 0], grid[1, 1], audio, config)
    _draw_mfcc(grid[2, 0], grid[2, 1], audio, config)
    for axes in grid[:, 0]:
        axes.set_xlim(0, seconds)
        axes.label_outer()
    grid[2, 0].set_xlabel("seconds")
    with replace_file(output) as file:
        figure.savefig(file, format="png", dpi=120)


def _draw_waveform(axes: Axes, audio: np.ndarray, sample_rate: int) -> None:
    import numpy as np

    step = -(-len(audio) // MAX_WAVEFORM_POINTS)
    blocks = np.pad(audio, (0, -len(audio) % step), mode="edge").reshape(-1, step)
    seconds = np.arange(len(blocks)) * step / sample_rate
    axes.fill_between(seconds, blocks.min(axis=1), blocks.max(axis=1), color="#31688e", linewidth=0.6)
    axes.set_ylabel("amplitude")


def _draw_log_mel(axes: Axes, scale: Axes, audio: np.ndarray, config: FeaturesConfig) -> None:
    from asr.features.mel import hz_to_htk_mel, hz_to_slaney_mel

    is_whisper = config.convention == "whisper"
    label = "Whisper's scale" if is_whisper else "log energy"
    _draw_frames(axes, scale, _plain_config(config), audio, label, cmap="magma")
    to_mel = hz_to_slaney_mel if is_whisper else hz_to_htk_mel
    low, high = to_mel(config.low_hz), to_mel(config.upper_hz)
    frequencies = [hz for hz in FREQUENCIES_HZ if config.low_hz <= hz <= config.upper_hz]
    # Bands lie evenly on the mel scale: the first begins at `low`, and the last ends at `high`.
    rows = [float((to_mel(hz) - low) / (high - low) * (config.num_mels + 1) - 1) for hz in frequencies]
    axes.set_yticks(rows, [str(hz) for hz in frequencies])
    axes.set(ylabel=f"log-mel, {config.num_mels} bands (Hz)", ylim=(-0.5, config.num_mels - 0.5))


def _draw_mfcc(axes: Axes, scale: Axes, audio: np.ndarray, config: FeaturesConfig) -> None:
    # The zeroth cepstrum is many times as large as the rest; each in its own deviation, all can be seen.
    changes: dict[str, Any] = {"type": "mfcc", "cmvn": "utterance"}
    if config.convention == "kaldi":
        changes["num_ceps"] = min(config.num_ceps, config.num_mels)
        mfcc_config = _plain_config(config, **changes)
    else:
        mfcc_config = type(config)(**changes)  # Whisper has no cepstra: Kaldi's
    label = "standard deviations from the mean"
    _draw_frames(axes, scale, mfcc_config, audio, label, cmap="RdBu_r", vmin=-3, vmax=3)
    axes.set_yticks(range(0, mfcc_config.num_ceps, 2))
    axes.set_ylabel(f"MFCC 0 to {mfcc_config.num_ceps - 1}")


def _draw_frames(
    axes: Axes, scale: Axes, config: FeaturesConfig, audio: np.ndarray, label: str, **style: Any
) -> None:
    """Draw features, each frame around the middle of its window, and the scale of their colors."""
    features_TF = _compute(config, audio)
    num_frames, num_features = features_TF.shape
    shift = config.shift_samples / config.sample_rate
    middle = 0.0 if config.convention == "whisper" else config.window_ms / 2000
    left = middle - shift / 2
    extent = (left, left + num_frames * shift, -0.5, num_features - 0.5)
    image = axes.imshow(features_TF.T, origin="lower", aspect="auto", extent=extent, **style)
    axes.figure.colorbar(image, cax=scale, label=label, extend="both" if "vmax" in style else "neither")


def _plain_config(config: FeaturesConfig, **changes: Any) -> FeaturesConfig:
    kept = config.model_dump(exclude={"type", "num_ceps", "deltas", "dither", "reduction"})
    return type(config)(**{**kept, "cmvn": "none", **changes})
