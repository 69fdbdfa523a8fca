"""Measure the way from a manifest to padded features: speed by number of workers, padding, memory, planning.

    python tools/bench_data.py train.jsonl --augment

Reads /proc, so it runs on Linux only. The first epoch warms the file cache and does not count.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from asr.batches import BatchLoader, Inputs, plan_epoch
from asr.data import Manifest
from asr.errors import UserError
from asr.features import FeaturesConfig, FrontEnd
from asr.system import AugmentConfig, BatchConfig, NoiseConfig, SpecAugmentConfig
from asr.text import TextConfig, Tokenizer, TokenizerConfig, normalize

AUGMENT = AugmentConfig(
    speed=(0.9, 1.0, 1.1),
    noise=NoiseConfig(probability=0.3, kinds=("white", "pink")),
    spec_augment=SpecAugmentConfig(time_warp=40, num_frequency_masks=2, num_time_masks=2),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--epochs", type=int, default=10, help="for each number of workers (default: 10)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--max-seconds", type=float, default=100.0, help="of a padded batch (default: 100)")
    parser.add_argument("--augment", action="store_true", help="speed, noise, SpecAugment")
    parser.add_argument("--plan", type=int, default=1_000_000, help="utterances to plan (default: a million)")
    arguments = parser.parse_args()
    try:
        bench_loading(arguments)
        bench_planning(arguments.plan, arguments.max_seconds)
    except UserError as error:
        print(f"bench_data: {error}", file=sys.stderr)
        return 2
    return 0


def bench_loading(arguments: argparse.Namespace) -> None:
    manifest, text = Manifest.open(arguments.manifest), TextConfig()
    texts = (normalize(utterance.text or "", text.training) for utterance in manifest)
    inputs = Inputs(
        FrontEnd(FeaturesConfig()),
        Tokenizer.train(TokenizerConfig(), texts),
        text,
        AUGMENT if arguments.augment else AugmentConfig(),
    )
    print(f"{arguments.manifest}: {len(manifest)} utterances, {manifest.durations.sum() / 3600:.2f} h")
    print("workers  batches/s  audio h/min  padding  MB of all processes after each epoch")
    for num_workers in arguments.workers:
        config = BatchConfig(max_seconds=arguments.max_seconds, num_workers=num_workers)
        loader = BatchLoader(manifest, inputs, config)
        run_epoch(loader, 0)
        epochs = [run_epoch(loader, epoch) for epoch in range(1, arguments.epochs + 1)]
        seconds = sum(epoch.seconds for epoch in epochs)
        audio_hours = sum(epoch.audio_seconds for epoch in epochs) / 3600
        padding = 1 - sum(epoch.frames for epoch in epochs) / sum(epoch.padded_frames for epoch in epochs)
        print(
            f"{num_workers:7}  {sum(epoch.num_batches for epoch in epochs) / seconds:9.1f}"
            f"  {60 * audio_hours / seconds:11.1f}  {padding:7.1%}"
            f"  {' '.join(f'{epoch.megabytes:.0f}' for epoch in epochs)}"
        )


class Epoch(NamedTuple):
    """Time and memory of one epoch."""

    seconds: float
    num_batches: int
    audio_seconds: float
    frames: int
    padded_frames: int
    megabytes: float


def run_epoch(loader: BatchLoader, epoch: int) -> Epoch:
    started = time.perf_counter()
    num_batches = frames = padded_frames = 0
    audio_seconds = size = 0.0
    num_steps = len(loader.plan_epoch(epoch))
    for batch in loader.epoch_batches(epoch):
        num_batches += 1
        audio_seconds += batch.audio_seconds
        frames += int(batch.feature_lengths_B.sum())
        padded_frames += batch.features_BTF.shape[:2].numel()
        if num_batches == num_steps:
            size = sum(megabytes(child.pid) for child in multiprocessing.active_children()) + megabytes(
                "self"
            )
    return Epoch(time.perf_counter() - started, num_batches, audio_seconds, frames, padded_frames, size)


def megabytes(pid: int | str | None) -> float:
    """Memory of a process, where pages that n processes share count 1/n; 0 if it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def bench_planning(num_utterances: int, max_seconds: float) -> None:
    seconds_N = np.random.default_rng(0).gamma(4.0, 3.0, num_utterances).clip(0.5, 30.0)
    started = time.perf_counter()
    plan = plan_epoch(seconds_N, BatchConfig(max_seconds=max_seconds), seed=0, epoch=0, world_size=8)
    seconds = time.perf_counter() - started
    print(
        f"planning {num_utterances:,} utterances, {len(plan):,} batches: {seconds:.2f} s, "
        f"padding {1 - seconds_N.sum() / sum(len(group) * seconds_N[group].max() for group in plan):.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())
