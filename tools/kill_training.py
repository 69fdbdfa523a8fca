"""Kills a training at random moments and goes on, many times; compares the end with a training never killed.

    python tools/kill_training.py CONF --kills 100

Each kill is SIGKILL: nothing can be saved on the way out. After each, the last checkpoint must load and be
at most `train.save_every` updates behind; at the end, the weights must equal those of the uninterrupted
training, bit by bit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from asr.system.checkpoint import find_checkpoints, load_state, load_system
from asr.system.run_config import RunConfig


def start(conf: str, output_dir: Path, log: Path, overrides: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "asr", "train", conf, f"output_dir={output_dir}", *overrides]
    with open(log, "ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


def last_step(output_dir: Path) -> int:
    """Of the last checkpoint, which must be whole: it is loaded."""
    checkpoints = find_checkpoints(output_dir)
    if not checkpoints:
        return 0
    load_system(checkpoints[-1])
    return int(load_state(checkpoints[-1])["step"])


def logged_step(output_dir: Path) -> int:
    """The last update that the log knows of."""
    try:
        lines = (output_dir / "log.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    steps = [0]
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may be cut by the kill
            steps.append(json.loads(line)["step"])
    return max(steps)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONF")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/kill"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_intermixed_args()  # settings may follow options
    save_every = RunConfig.load(args.config, args.overrides).train.save_every
    random.seed(args.seed)
    shutil.rmtree(args.output_dir, ignore_errors=True)
    args.output_dir.mkdir(parents=True)
    log = args.output_dir / "output.log"

    whole = args.output_dir / "whole"
    started = time.monotonic()
    if start(args.config, whole, log, args.overrides).wait() != 0:
        sys.exit(f"the uninterrupted training failed; see {log}")
    seconds = time.monotonic() - started
    print(f"uninterrupted: {seconds:.0f} s, model {digest(whole)[:16]}")

    kills = finished = most_lost = 0
    while kills < args.kills:
        killed = args.output_dir / f"killed-{finished}"
        process = start(args.config, killed, log, args.overrides)
        try:
            code = process.wait(timeout=random.uniform(0.1, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            lost = logged_step(killed) - last_step(killed)
            most_lost = max(most_lost, lost)
            print(f"kill {kills}: checkpoint at {last_step(killed)}, {lost} updates lost", flush=True)
            if lost > save_every:
                sys.exit(f"lost {lost} updates, more than train.save_every = {save_every}")
            continue
        if code != 0:
            sys.exit(f"a resumed training failed; see {log}")
        if digest(killed) != digest(whole):
            sys.exit(f"{killed}: the end differs from that of the uninterrupted training")
        finished += 1
    print(f"{kills} kills, {finished} trainings finished, all equal; at most {most_lost} updates lost")


if __name__ == "__main__":
    main()
