"""`asr features FILE...`: compute the features of audio files; write, summarize and draw them."""

from __future__ import annotations

import argparse
import functools
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.cli import add_engine, add_settings, find_pool, limit_threads
from asr.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from asr.features.front_end import FeaturesConfig
    from asr.scale.ray_pool import PoolOptions

logger = logging.getLogger(__name__)

UNIT_FILES = 100  # that a process of Ray is given at once
MAX_PLOT_SECONDS = 600  # more is neither seen in a picture of this width nor drawn quickly


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
    add_engine(
        parser.add_argument_group("many files", "With --output-dir."), f"in units of {UNIT_FILES} files"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    import json

    pool = find_pool(args)
    config = _load_config(args.config, args.set)
    files = [Path(name) for name in args.files]
    if args.plot and len(files) > 1:
        raise UserError(f"--plot draws one file, but {len(files)} are given; call it once for each")
    if pool is not None and (args.plot or not args.output_dir):
        raise UserError("--engine ray writes to --output-dir DIR and draws nothing; give that, and no --plot")
    if args.output_dir and len({path.stem for path in files}) < len(files):
        raise UserError(
            "two files have the same name, but for folder and suffix; give each its own --output-dir"
        )
    work = functools.partial(_compute_files, config, args.output_dir)
    summaries, width = [], max(len(str(path)) for path in files)
    rows = _compute_on_ray(files, work, pool) if pool is not None else (work([path])[0] for path in files)
    for row in rows:
        if "error" in row:
            logger.error("%s", row["error"])
            continue
        summaries.append(row)
        if not args.json:
            _print_row(row, width, is_first=len(summaries) == 1)
        if args.plot:
            _plot(Path(args.plot), files[0], config)
    num_failed = len(files) - len(summaries)
    if args.json:
        print(json.dumps({"files": summaries, "num_failed": num_failed}, ensure_ascii=False, indent=2))
    return 1 if num_failed else 0


def _load_config(path: str | None, overrides: Sequence[str]) -> FeaturesConfig:
    if path is not None:
        from asr.system.run_config import RunConfig

        return RunConfig.load(path, overrides).features
    from asr.config import Config, build_config
    from asr.features.front_end import FeaturesConfig

    class FeatureSettings(Config):
        features: FeaturesConfig = FeaturesConfig()

    return build_config(FeatureSettings, overrides).features


def _compute_files(config: FeaturesConfig, folder: str | None, files: Sequence[Path]) -> list[dict[str, Any]]:
    """Compute and write the features of files; a row for each, a summary or the error."""
    import numpy as np

    from asr.audio.reading import AudioError, read
    from asr.files import replace_file

    rows: list[dict[str, Any]] = []
    for path in files:
        try:
            audio_S = read(path, config.sample_rate, allow_silence=True)
        except AudioError as error:
            rows.append({"error": str(error)})
            continue
        features_TF = _compute(config, audio_S)
        row = {"file": str(path), "num_frames": len(features_TF), "num_features": features_TF.shape[1]}
        row |= {"seconds": len(audio_S) / config.sample_rate, "mean": None, "std": None}
        if features_TF.size:
            row |= {"mean": float(features_TF.mean()), "std": float(features_TF.std())}
        if folder is not None:
            row["output"] = str(Path(folder) / f"{path.stem}.npy")
            with replace_file(row["output"], flush=False) as file:
                np.save(file, features_TF, allow_pickle=False)
        rows.append(row)
    return rows


def _compute(config: FeaturesConfig, audio_S: np.ndarray) -> np.ndarray:
    import torch

    from asr.features.front_end import FrontEnd

    features_BTF, _ = FrontEnd(config)(torch.from_numpy(audio_S)[None], torch.tensor([len(audio_S)]))
    features_TF: np.ndarray = features_BTF[0].numpy()
    return features_TF


def _compute_on_ray(files: list[Path], work: Any, options: PoolOptions) -> Iterable[dict[str, Any]]:
    from asr.scale.ray_pool import RayPool

    def make_work(threads: int) -> Any:
        limit_threads(threads)
        return work

    units = [files[first : first + UNIT_FILES] for first in range(0, len(files), UNIT_FILES)]
    with RayPool[Path](options, uses_gpus=False) as pool:
        found = dict(pool.run(units, make_work))
    return (row for number in range(len(units)) for row in found[number])


def _print_row(summary: dict[str, Any], width: int, is_first: bool) -> None:
    if is_first:
        print(f"{'file':{width}}  frames x features   seconds     mean      std")
    shape = f"{summary['num_frames']} x {summary['num_features']}"
    mean, std = ("-" if summary[name] is None else f"{summary[name]:.3f}" for name in ("mean", "std"))
    print(f"{summary['file']:{width}}  {shape:>17}{summary['seconds']:>10.2f}{mean:>9}{std:>9}")


def _plot(output: Path, path: Path, config: FeaturesConfig) -> None:
    """Draw waveform, log-mel and MFCC on one time axis, before deltas and CMVN."""
    import numpy as np
    from matplotlib.figure import Figure

    from asr.audio.reading import read
    from asr.files import replace_file

    audio_S = read(path, config.sample_rate, allow_silence=True)
    seconds = len(audio_S) / config.sample_rate
    if not 2 * config.window_ms / 1000 <= seconds <= MAX_PLOT_SECONDS:
        raise UserError(f"{path}: {seconds:.3f} s cannot be drawn; expected at most {MAX_PLOT_SECONDS} s")
    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(f"{path.name} ({seconds:.2f} s)", parse_math=False)  # a dollar begins no formula
    waveform, *others = figure.subplots(3, sharex=True)
    step = -(-len(audio_S) // 100_000)
    waveform.plot(np.arange(0, len(audio_S), step) / config.sample_rate, audio_S[::step], linewidth=0.5)
    waveform.set(ylabel="amplitude", xlim=(0, seconds))
    kept = config.model_dump(exclude={"type", "num_ceps", "deltas", "cmvn"})
    whisper = config.convention == "whisper"
    # The zeroth cepstrum is many times as large as the rest: each is drawn in its own deviation.
    cepstra = {} if whisper else {**kept, "num_ceps": min(13, config.num_mels)}  # Whisper has none: Kaldi's
    shown: dict[Any, dict[str, Any]] = {
        "log_mel": {**kept, "cmvn": "none"},
        "mfcc": {**cepstra, "cmvn": "utterance"},
    }
    for axes, (name, settings) in zip(others, shown.items(), strict=True):
        drawn = type(config)(**settings, type=name)
        features_TF = _compute(drawn, audio_S)
        shift = drawn.shift_samples / drawn.sample_rate
        # Each frame is drawn around the middle of its window.
        left = (0.0 if drawn.convention == "whisper" else drawn.window_ms / 2000) - shift / 2
        extent = (left, left + len(features_TF) * shift, -0.5, features_TF.shape[1] - 0.5)
        axes.imshow(features_TF.T, origin="lower", aspect="auto", extent=extent, cmap="magma")
        axes.set(ylabel=name, xlabel="seconds")
    with replace_file(output) as file:
        figure.savefig(file, format="png", dpi=120)
