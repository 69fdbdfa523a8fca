"""Check that repeated transcription gives the same bytes while other processes start and stop.

python tools/check_reproducible.py tiny FOLDER --clips 200 --runs 10

During each run, busy processes start and stop at times given by a seed. Every second run is interrupted and
resumed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from asr.audio import reading as audio
from asr.recipe import ACCENTS, VARIANTS, synthesize
from asr.scale.output_folder import STATE

SUBJECTS = ["the old man", "my sister", "a small dog", "the teacher", "our neighbor", "the young doctor"]
VERBS = ["opened", "carried", "watched", "painted", "bought", "repaired"]
OBJECTS = ["the window", "a heavy box", "the blue car", "two apples", "an old clock", "the garden door"]
ENDS = ["in the morning", "before the rain came", "with great care", "on the way home", "last summer"]
BUSY = "import time\nwhile True: sum(range(10_000))"
GRACE_SECONDS = 30  # for an interrupted run to end by itself


def speak(folder: Path, num_clips: int, seed: int) -> None:
    """Short sentences, by changing voices."""
    choose = random.Random(seed)
    voices = [f"{accent}+{variant}" for accent in ACCENTS for variant in VARIANTS["train"]]
    for number in range(num_clips):
        path = folder / f"{number:03}.wav"
        text = " ".join(choose.choice(words) for words in (SUBJECTS, VERBS, OBJECTS, ENDS))
        samples, rate = synthesize(
            text, choose.choice(voices), choose.randint(140, 220), choose.randint(30, 70)
        )
        if not path.exists():
            audio.write(path, samples, rate)


@contextlib.contextmanager
def changing_load(most: int, seed: int) -> Iterator[None]:
    """Keep 0 to `most` processes busy, another number every few seconds."""
    choose, is_over = random.Random(seed), threading.Event()
    busy: list[subprocess.Popen[bytes]] = []

    def change() -> None:
        while not is_over.is_set():
            wanted = choose.randint(0, most)
            while len(busy) < wanted:
                busy.append(subprocess.Popen([sys.executable, "-c", BUSY]))
            while len(busy) > wanted:
                end(busy.pop())
            is_over.wait(choose.uniform(0.3, 3))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for process in busy:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def transcribe(command: list[str], interrupt_after: float | None) -> None:
    """Until it is done; interrupted once, if asked for."""
    if interrupt_after is not None:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            process.wait(interrupt_after)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            end(process)
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def hash_outputs(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and STATE not in path.parts
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="any model that `asr transcribe` takes")
    parser.add_argument("folder", type=Path, help="to work in; a new one")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-busy", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--set", action="append", default=[], help="passed on")
    args = parser.parse_args()
    clips = args.folder / "clips"
    clips.mkdir(parents=True, exist_ok=True)
    speak(clips, args.clips, args.seed)
    choose = random.Random(args.seed)
    first: dict[str, str] = {}
    differing: set[str] = set()
    seconds = 0.0
    for run in range(1, args.runs + 1):
        out = args.folder / f"run-{run}"
        command = [sys.executable, "-m", "asr", "transcribe", "-r", str(clips), "--model", args.model]
        command += [
            "--output-dir",
            str(out),
            "--format=json",
            "--format=srt",
            *(f"--set={one}" for one in args.set),
        ]
        interrupt_after = choose.uniform(0.2, 0.8) * seconds if run % 2 == 0 else None
        begin = time.monotonic()
        with changing_load(args.most_busy, args.seed + run):
            transcribe(command, interrupt_after)
        seconds = time.monotonic() - begin
        found = hash_outputs(out)
        first = first or found
        changed = {name for name in first.keys() | found.keys() if first.get(name) != found.get(name)}
        differing |= changed
        kind = "" if interrupt_after is None else f", interrupted after {interrupt_after:.0f} s"
        print(f"run {run}: {len(found)} files in {seconds:.0f} s{kind}, {len(changed)} differ", flush=True)
    print(f"{args.runs} runs of {len(first)} files: {len(differing)} differ")
    return 1 if differing or not first else 0


if __name__ == "__main__":
    sys.exit(main())
