"""Kills workers and drivers of `asr transcribe --engine ray` at random moments; compares with one process.

    python tools/kill_transcription.py AUDIO... --model MODEL --kills 10

AUDIO is what the command takes, folders too, and other options are passed on to it. Each kill is SIGKILL, of
a worker or of the driver in turn; a driver is started again. At the end every recording must be finished
once, and the outputs in all formats must equal those of one process, byte for byte. Kills that hit no unit on
its way prove nothing: without one of a worker and one of a driver that did, the exit status is 1.
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

JOURNAL = ".asr-transcribe/journal.jsonl"
MID_UNIT = "it is done again"  # what the driver logs where a worker dies over a unit


def start(args: argparse.Namespace, output_dir: Path, *more: str) -> subprocess.Popen[bytes]:
    script = (
        "import sys\nfrom asr.cli import main\nfrom asr.transcription import arguments\n"
        f"arguments.plan_units.__defaults__ = ({60 * args.unit_minutes},)\nsys.exit(main(sys.argv[1:]))"
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
    """Run to the end through all kills. Returns how many of each there were, and how many hit a unit.

    Each kill comes up to `longest` seconds after the driver has finished one more recording.
    """
    draw, counts = random.Random(args.seed), Counter[str]()
    driver = start(args, output_dir, *args.ray)
    while counts["worker"] + counts["driver"] < args.kills:
        finished = len(count_ends(output_dir))
        while driver.poll() is None and len(count_ends(output_dir)) == finished:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, longest))
        if driver.poll() is not None:
            break
        workers = find_workers(driver.pid)
        if (counts["worker"] + counts["driver"]) % 2:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
            counts["driver"] += 1
            counts["driver in mid-unit"] += bool(workers)
            driver = start(args, output_dir, *args.ray)
        elif workers:
            os.kill(draw.choice(workers), signal.SIGKILL)
            counts["worker"] += 1
    assert driver.wait() in (0, 1), f"exit status {driver.returncode}"
    counts["worker in mid-unit"] = output_dir.with_suffix(".log").read_text(errors="replace").count(MID_UNIT)
    return counts


def read_outputs(folder: Path) -> dict[str, bytes]:
    paths = [
        path for path in folder.rglob("*") if path.is_file() and "/." not in f"/{path.relative_to(folder)}"
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def count_ends(folder: Path) -> Counter[str]:
    """Count by the journal how often each recording was finished, or failed for good."""
    journal = folder / JOURNAL
    lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    return Counter(line["name"] for line in lines if "name" in line and {"seconds", "fault"} & line.keys())


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
        assert set(count_ends(folder / "ray").values()) == {1}
        assert read_outputs(folder / "ray") == expected, "the outputs on Ray differ"
        print(f"{len(expected):,} outputs are equal", flush=True)
        began = time.perf_counter()
        counts = kill_at_random(args, folder / "killed", together / 20)
        finished = count_ends(folder / "killed")
        assert finished == count_ends(folder / "ray"), "a recording was finished twice, or not at all"
        assert read_outputs(folder / "killed") == expected, "the outputs after kills differ"
        print(
            f"killed {counts['worker']} workers ({counts['worker in mid-unit']} over a unit) and "
            f"{counts['driver']} drivers ({counts['driver in mid-unit']} over units) in "
            f"{time.perf_counter() - began:.1f} s: {len(finished):,} recordings finished once, outputs equal"
        )
        if not (counts["worker in mid-unit"] and counts["driver in mid-unit"]):
            print("nothing is proven: no kill hit a unit of a worker, and one of a driver; give more audio")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
