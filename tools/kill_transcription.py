"""Kills workers and drivers of `asr transcribe --engine ray` at random moments; compares with one process.

    python tools/kill_transcription.py AUDIO... --model MODEL --kills 10

AUDIO is what the command takes, folders too, and other options are passed on to it. Each kill is SIGKILL, of
a worker or of the driver in turn; a driver is started again. At the end every unit must have one part, every
recording one row, and the outputs in all formats must equal those of one process, byte for byte. How long
each took is told, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

PARTS = ".asr-transcribe-parts"


def start(args: argparse.Namespace, output_dir: Path, *more: str) -> subprocess.Popen[bytes]:
    script = (
        "import sys\nfrom asr.cli import main\nfrom asr.jobs import work_units\n"
        f"work_units.plan_units.__defaults__ = ({60 * args.unit_minutes},)\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "transcribe", *args.audio, "-r", "--model", args.model]
    command += ["--threads", "1", "--output-dir", str(output_dir), "--format", "all", *args.options, *more]
    with open(output_dir.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(command, stderr=log, start_new_session=True)


def run(args: argparse.Namespace, output_dir: Path, *more: str) -> float:
    """Seconds of a whole call."""
    began = time.perf_counter()
    status = start(args, output_dir, *more).wait()
    assert status in (0, 1), f"exit status {status}; see {output_dir.with_suffix('.log')}"
    return time.perf_counter() - began


def find_workers(driver: int) -> list[int]:
    """Processes of Ray below the driver that hold a model, or are about to."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            names[int(entry.name)] = (entry / "cmdline").read_bytes()
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has just ended
            continue

    def is_below(process: int) -> bool:
        while process in parents and process != driver:
            process = parents[process]
        return process == driver

    return [
        process for process, name in names.items() if name.startswith(b"ray::_Worker") and is_below(process)
    ]


def kill_at_random(args: argparse.Namespace, output_dir: Path, longest: float) -> Counter[str]:
    """Run to the end through all kills. Returns how many of each there were."""
    draw, counts = random.Random(args.seed), Counter[str]()
    driver = start(args, output_dir, *args.ray)
    while counts.total() < args.kills:
        time.sleep(draw.uniform(2, longest))
        if driver.poll() is not None:
            assert driver.returncode in (0, 1), f"exit status {driver.returncode}"
            break
        if counts.total() % 2:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
            counts["driver"] += 1
            driver = start(args, output_dir, *args.ray)
        elif workers := find_workers(driver.pid):
            os.kill(draw.choice(workers), signal.SIGKILL)
            counts["worker"] += 1
    assert driver.wait() in (0, 1), f"exit status {driver.returncode}"
    return counts


def read_outputs(folder: Path) -> dict[str, bytes]:
    paths = [
        path for path in folder.rglob("*") if path.is_file() and "/." not in f"/{path.relative_to(folder)}"
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def check_parts(folder: Path) -> tuple[int, int]:
    """Every unit of the plan has one part, every recording one row. Returns how many of both there are."""
    plan = json.loads((folder / PARTS / "plan.json").read_text())
    parts = sorted((folder / PARTS).glob("*.jsonl"))
    assert Counter(part.name.split("-")[0] for part in parts) == Counter(name for name, *_ in plan["units"])
    rows = [json.loads(line)["id"] for part in parts for line in part.read_text().splitlines()[1:]]
    assert len(rows) == len(set(rows)) == sum(num_items for _, num_items, *_ in plan["units"])
    return len(parts), len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("audio", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--unit-minutes", type=float, default=30.0, help="of audio in a unit (default: 30)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output-dir", metavar="DIR", type=Path, help="keep all there (default: a temporary folder)"
    )
    args, args.options = parser.parse_known_args()
    args.ray = ["--engine", "ray", "--workers", args.workers]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.output_dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        alone = run(args, folder / "one-process")
        print(f"one process with one thread: {alone:.1f} s", flush=True)
        together = run(args, folder / "ray", *args.ray)
        print(
            f"{args.workers} workers with one thread each: {together:.1f} s, "
            f"{alone / together:.2f} times as fast"
        )
        expected = read_outputs(folder / "one-process")
        check_parts(folder / "ray")
        assert read_outputs(folder / "ray") == expected, "the outputs on Ray differ"
        print(f"{len(expected):,} outputs are equal", flush=True)
        began = time.perf_counter()
        counts = kill_at_random(args, folder / "killed", together / 2)
        units, rows = check_parts(folder / "killed")
        assert read_outputs(folder / "killed") == expected, "the outputs after kills differ"
        print(
            f"killed {counts['worker']} workers and {counts['driver']} drivers in "
            f"{time.perf_counter() - began:.1f} s: {units:,} units with one part, "
            f"{rows:,} recordings with one row, all outputs equal"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
