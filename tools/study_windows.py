"""Does shuffling in windows of shards cost accuracy? Trains a conf on the same shards with several windows.

    python tools/study_windows.py conf/fsdd/ctc_lstm.yaml train.steps=600 --windows 1 4 40

The training set of the conf is packed into about so many shards; a window of all of them is the shuffle of a
whole epoch. Runs that are done already are kept, so that the same command continues.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

from asr.data import Manifest
from asr.shards import PackSettings, pack
from asr.system import RunConfig

TRAIN = """
import sys
from asr.cli import main
from asr.shards import shard_loader
shard_loader.WINDOW_SHARDS, shard_loader.WINDOW_UTTERANCES = int(sys.argv[1]), 1
sys.exit(main(sys.argv[2:]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("conf")
    parser.add_argument("overrides", nargs="*", help="for all runs, such as train.steps=600")
    parser.add_argument("--shards", type=int, default=40, help="default: 40")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4, 40], help="default: 1 4 40")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--folder", type=Path, default=Path("runs/windows"), help="default: runs/windows")
    arguments = parser.parse_args()
    manifest = Manifest.open(*RunConfig.load(arguments.conf, arguments.overrides).data.train_paths)
    hours = float(manifest.durations.sum()) / 3600 / arguments.shards
    shards = len(pack(manifest, arguments.folder / "shards", PackSettings("copy", hours=hours))[0])
    found: dict[int, list[float]] = {window: [] for window in arguments.windows}
    for seed in arguments.seeds:
        for window in arguments.windows:
            output_dir = arguments.folder / f"window-{window}-seed-{seed}"
            if not (output_dir / "model").exists():
                run = [f"data.train={arguments.folder}/shards", f"output_dir={output_dir}", f"seed={seed}"]
                command = [sys.executable, "-c", TRAIN, str(window), "train", arguments.conf, *run]
                subprocess.run([*command, *arguments.overrides], check=True)
            found[window].append(read_wer(output_dir))
            print(
                f"window {window} of {shards} shards, seed {seed}: dev WER {found[window][-1]:.2%}",
                flush=True,
            )
    for window, rates in found.items():
        spread = statistics.stdev(rates) if len(rates) > 1 else math.nan
        print(f"window {window:4d}: dev WER {statistics.mean(rates):.2%}, standard deviation {spread:.2%}")


def read_wer(output_dir: Path) -> float:
    """The best of the validations."""
    lines = map(json.loads, (output_dir / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return float(min(line["wer"] for line in lines if line["kind"] == "dev"))


if __name__ == "__main__":
    main()
