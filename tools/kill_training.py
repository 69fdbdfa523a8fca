"""Kill and resume a training many times at random moments; compare the result with an uninterrupted one.

    python tools/kill_training.py CONF --kills 100
    python tools/kill_training.py CONF --kills 20 --processes 2

Each kill is SIGKILL, so nothing can be saved on exit. After each kill, the last checkpoint must load and be
at most twice `train.save_every` updates behind, because training continues while a checkpoint is written,
but not beyond the next one. At the end, the weights must be bit for bit equal to the weights of the
uninterrupted training. With `--processes`, torchrun starts each training and resumes it by itself after one
of its processes is killed, once per training.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from asr.families import find_checkpoints
from asr.system.run_config import RunConfig
from asr.system.system import load_state, load_system


def start(
    conf: str, output_dir: Path, log: Path, overrides: list[str], processes: int = 1
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += ["--max-restarts=3", "-m"]
    command += ["asr", "train", conf, f"output_dir={output_dir}", *overrides]
    with open(log, "ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


def last_step(output_dir: Path) -> int:
    """Return the update of the last checkpoint, after loading it to check that it is complete."""
    checkpoints = find_checkpoints(output_dir)
    if not checkpoints:
        return 0
    load_system(checkpoints[-1])
    return int(load_state(checkpoints[-1])["step"])


def logged_step(output_dir: Path) -> int:
    """Return the last update in the log."""
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


def kill_one(torchrun: int, stream: random.Random) -> int:
    """Kill one of the processes that torchrun has started; return its rank."""
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    ranks = {}
    for child in children:
        for variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                ranks[int(variable[5:])] = int(child)
    rank = stream.choice(sorted(ranks))
    os.kill(ranks[rank], signal.SIGKILL)
    return rank


def kill_one_of_several(args: argparse.Namespace, log: Path) -> None:
    """Run a training per kill; one process dies at a random moment between its first and last log line."""
    stream, whole = random.Random(args.seed), args.output_dir / "whole"

    def begin(folder: Path) -> tuple[subprocess.Popen[bytes], float]:
        process = start(args.config, folder, log, args.overrides, args.processes)
        while process.poll() is None and not logged_step(folder):
            time.sleep(0.05)
        return process, time.monotonic()

    process, started = begin(whole)
    if process.wait() != 0:
        sys.exit(f"the uninterrupted training failed; see {log}")
    seconds, last = time.monotonic() - started, logged_step(whole)
    print(
        f"uninterrupted: {last} updates, {seconds:.0f} s from the first log line, model {digest(whole)[:16]}"
    )
    num_equal = kills = resumed = 0
    while kills < args.kills:
        killed = args.output_dir / f"killed-{kills}"
        process, _ = begin(killed)
        update = stream.randrange(1, last)
        moment = stream.random()  # within the update
        while process.poll() is None and logged_step(killed) < update:
            time.sleep(0.01)
        time.sleep(moment * seconds / last)
        rank = kill_one(process.pid, stream)
        at = logged_step(killed)
        resumed += last_step(killed) > 0
        is_equal = process.wait() == 0 and digest(killed) == digest(whole)
        kills, num_equal = kills + 1, num_equal + is_equal
        print(
            f"kill {kills}: rank {rank} behind update {at}: {'equal' if is_equal else 'NOT EQUAL'}",
            flush=True,
        )
        shutil.rmtree(killed)
    print(f"{num_equal} of {kills} trainings equal the uninterrupted one")
    if not resumed:
        sys.exit(
            "no process was killed after the first checkpoint, so nothing is proved: lower train.save_every"
        )
    sys.exit(num_equal < kills)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONF")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/kill"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_intermixed_args()  # settings may follow options
    save_every = RunConfig.load(args.config, args.overrides).train.save_every
    random.seed(args.seed)
    shutil.rmtree(args.output_dir, ignore_errors=True)
    args.output_dir.mkdir(parents=True)
    log = args.output_dir / "output.log"
    if args.processes > 1:
        kill_one_of_several(args, log)

    whole = args.output_dir / "whole"
    started = time.monotonic()
    if start(args.config, whole, log, args.overrides).wait() != 0:
        sys.exit(f"the uninterrupted training failed; see {log}")
    seconds = time.monotonic() - started
    print(f"uninterrupted: {seconds:.0f} s, model {digest(whole)[:16]}")

    kills = resumed = finished = most_lost = 0
    is_finished = True
    while kills < args.kills or not is_finished:  # the last killed training is finished too
        killed = args.output_dir / f"killed-{finished}"
        process = start(args.config, killed, log, args.overrides)
        try:
            is_last = kills == args.kills
            code = process.wait(timeout=None if is_last else random.uniform(0.1, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            is_finished = False
            resumed += last_step(killed) > 0
            lost = logged_step(killed) - last_step(killed)
            most_lost = max(most_lost, lost)
            print(f"kill {kills}: checkpoint at {last_step(killed)}, {lost} updates lost", flush=True)
            if lost > 2 * save_every:
                sys.exit(f"lost {lost} updates, more than twice train.save_every = {save_every}")
            continue
        if code != 0:
            sys.exit(f"a resumed training failed; see {log}")
        if digest(killed) != digest(whole):
            sys.exit(f"{killed}: the end differs from that of the uninterrupted training")
        finished, is_finished = finished + 1, True
    if not resumed:
        sys.exit(
            "no training was killed after its first checkpoint, so nothing is proved: lower train.save_every"
        )
    print(f"{kills} kills, {finished} trainings finished, all equal; at most {most_lost} updates lost")


if __name__ == "__main__":
    main()
