"""Measure how time and memory of commands grow with the number of files and the length of a recording.

    python tools/bench_scale.py runs/digits/transformer data/digits/test.jsonl
    python tools/bench_scale.py recipes/an4/pretrained data/an4/dev.jsonl --files 1000 --hours 0.1 1

Each command runs as a process of its own on inputs of growing size: copies of the manifest's first utterance
(as links to one file), texts of the manifest again and again, and recordings joined of its utterances with
pauses between. Seconds are those of the processor, less what the smallest input takes; from size to size
they grow by a power of the size, which is 1 where the cost is linear. Memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from bench_long import write_long

from asr.data import Utterance, read_manifest


@dataclass(frozen=True)
class Cost:
    """Time and memory of a command over all its processes; the memory is that of the largest of them."""

    seconds: float
    processor_seconds: float
    megabytes: float


@dataclass(frozen=True)
class Inputs:
    """Makes inputs of any size in a folder."""

    folder: Path
    utterances: list[Utterance]

    def write_files(self, count: int) -> Path:
        """A manifest of so many files: folders of 1,000 links to a copy of the first utterance's."""
        first = self.utterances[0]
        manifest = self.folder / f"{count}.jsonl"
        if manifest.exists():
            return manifest
        with manifest.open("w") as file:
            for number in range(count):
                path = self.folder / f"{count}/{number // 1000:04}/{number % 1000:03}.wav"
                if number % 1000 == 0:  # file systems limit the links to a file
                    path.parent.mkdir(parents=True)
                    shutil.copyfile(self.folder / "first.wav", path)
                else:
                    os.link(path.with_name("000.wav"), path)
                row = {
                    "id": f"{number:06}",
                    "audio": str(path),
                    "duration": first.duration,
                    "text": first.text,
                }
                file.write(json.dumps(row) + "\n")
        return manifest

    def write_texts(self, count: int) -> Path:
        """References, and hypotheses without their first words, as trn."""
        texts = [utterance.text or "" for utterance in islice(cycle(self.utterances), count)]
        for name, first in (("reference", 0), ("hypothesis", 1)):
            lines = (f"{' '.join(text.split()[first:])} (speaker-{n:06})\n" for n, text in enumerate(texts))
            (self.folder / f"{count}.{name}.trn").write_text("".join(lines))
        return self.folder / str(count)

    def write_recording(self, hours: float) -> Path:
        path = self.folder / f"{hours:g}h.flac"
        write_long(path, self.utterances, 3600 * hours)
        return path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model that `asr transcribe` takes")
    parser.add_argument("manifest", type=Path, help="utterances with texts")
    parser.add_argument(
        "--files", type=int, nargs="+", default=[1000, 10_000], help="to transcribe and evaluate"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 100_000],
                        help="to validate and score")  # fmt: skip
    parser.add_argument("--hours", type=float, nargs="+", default=[0.1, 1, 6, 24])
    parser.add_argument("--folder", help="where the inputs go for the time (default: that of the system)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        inputs = Inputs(Path(folder), list(read_manifest(args.manifest)))
        copy_first(inputs)
        print("| command | size | seconds | processor | power of size | peak memory |")
        print("|---|---|---|---|---|---|")
        for name, unit, sizes, command in list_cases(args, inputs):
            print_rows(name, unit, sizes, command)
    return 0


def copy_first(inputs: Inputs) -> None:
    import soundfile

    samples, rate = soundfile.read(inputs.utterances[0].audio)
    soundfile.write(inputs.folder / "first.wav", samples, rate)


Case = tuple[str, str, Sequence[float], Callable[[float], list[str]]]


def list_cases(args: argparse.Namespace, inputs: Inputs) -> Iterator[Case]:
    def validate(rows: float) -> list[str]:
        return ["manifest", "validate", str(inputs.write_files(int(rows)))]

    def score(rows: float) -> list[str]:
        stem = inputs.write_texts(int(rows))
        return ["score", f"{stem}.reference.trn", f"{stem}.hypothesis.trn"]

    def evaluate(files: float) -> list[str]:
        return ["evaluate", args.model, str(inputs.write_files(int(files)))]

    def transcribe_files(files: float) -> list[str]:
        output = inputs.folder / f"{files}.output"
        return ["transcribe", str(inputs.write_files(int(files))), "--model", args.model,
                "--output-dir", str(output)]  # fmt: skip

    def transcribe_hours(hours: float) -> list[str]:
        return ["transcribe", str(inputs.write_recording(hours)), "--model", args.model, "--format", "srt"]

    yield "manifest validate", "files", [1, *sorted(args.rows)], validate
    yield "score", "utterances", [1, *sorted(args.rows)], score
    yield "evaluate", "files", [1, *sorted(args.files)], evaluate
    yield "transcribe", "files", [1, *sorted(args.files)], transcribe_files
    yield "transcribe", "hours", [0.01, *sorted(args.hours)], transcribe_hours


def print_rows(name: str, unit: str, sizes: Sequence[float], command: Callable[[float], list[str]]) -> None:
    """The first size stands for starting the program."""
    costs = []
    for size in sizes:
        costs.append(run(command(size)))
        power = ""
        if len(costs) > 2:
            last, now = sizes[len(costs) - 2 : len(costs)]
            grown = [cost.processor_seconds - costs[0].processor_seconds for cost in costs[-2:]]
            power = f"{math.log(grown[1] / grown[0]) / math.log(now / last):.2f}" if min(grown) > 0 else "?"
        cost = costs[-1]
        print(f"| {name} | {size:,g} {unit} | {cost.seconds:.1f} | {cost.processor_seconds:.1f} | {power} "
              f"| {cost.megabytes:.0f} MB |", flush=True)  # fmt: skip


def run(arguments: list[str]) -> Cost:
    """Run `asr` with its output thrown away; it may fail only as `validate` does, which counts faults."""
    begun = time.perf_counter()
    with open(os.devnull, "w") as nowhere:
        process = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "asr", *arguments],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, nowhere.fileno(), fd) for fd in (1, 2)],
        )
        _, status, usage = os.wait4(process, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"failed: asr {' '.join(arguments)}")
    seconds = time.perf_counter() - begun
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    sys.exit(main())
