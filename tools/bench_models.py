"""Measure CPU time, start, memory and texts of models through their own commands, as a user sees them.

    python tools/bench_models.py clips.jsonl moonshine-base whisper-tiny --texts OUT
    python tools/bench_models.py clips.jsonl moonshine-base faster-whisper:FOLDER moonshine-runtime:FOLDER

Each system runs in its own processes on one core, all in turn, `--rounds` times: `start` with the first clip
alone, `one by one` and `in eights` with all clips. Times are CPU seconds of all threads, without the time of
`start`; memory is the peak of a process. The table shows medians, the size of the files of a model that is a
path, the number of texts that are the same as by the first system, and the error rate of English texts.

A name is a model of `asr transcribe`, or a package, a colon and a folder: faster-whisper in int8 (a folder of
`tools/convert_to_ctranslate2.py`), moonshine-runtime (moonshine-voice, with the three files of a model), or
sherpa-onnx (a folder of `asr export`).
With `--texts` the texts go to OUT/NAME.jsonl, for `asr score`.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BATCHES = {"one by one": 1, "in eights": 8}


class Run(NamedTuple):
    seconds: float
    megabytes: float
    output: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("systems", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--batch", type=int, default=8, help="batch size of packages with batches")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        for record in transcribe(args.systems[0], args.manifest, args.batch):
            print(json.dumps(record), flush=True)
        return
    runs: dict[tuple[str, str], list[Run]] = {}
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.jsonl"
        first.write_text(args.manifest.read_text().splitlines()[0] + "\n")
        for _ in range(args.rounds):
            for system in args.systems:
                runs.setdefault((system, "start"), []).append(run(system, first, 1))
                for part, batch in BATCHES.items():
                    runs.setdefault((system, part), []).append(run(system, args.manifest, batch))
    header = f"{'system':<40}{'start':>8}{'one by one':>12}{'in eights':>12}{'MB':>8}"
    print(f"{header}{'files MB':>10}{'same':>6}{'WER %':>8}")
    import asr  # not in the processes of other packages

    references = [json.loads(line)["text"] for line in args.manifest.read_text().splitlines()]
    texts = {system: read_texts(runs[system, "in eights"][-1].output) for system in args.systems}
    for system in args.systems:
        seconds = {
            part: statistics.median(one.seconds for one in runs[system, part]) for part in ("start", *BATCHES)
        }
        memory = max(one.megabytes for part in seconds for one in runs[system, part])
        parts = [seconds["start"], *(seconds[part] - seconds["start"] for part in BATCHES)]
        same = sum(map(operator.eq, texts[system], texts[args.systems[0]]))
        rate = 100 * asr.score(references, texts[system], normalize="english").wer
        row = f"{system[-39:]:<40}{parts[0]:>8.2f}{parts[1]:>12.2f}{parts[2]:>12.2f}{memory:>8.0f}"
        print(f"{row}{measure_files(system):>10.1f}{same:>6}{rate:>8.2f}")
        if args.texts is not None:
            args.texts.mkdir(exist_ok=True)
            name = f"{system.replace('/', '-').replace(':', '-')}.jsonl"
            (args.texts / name).write_text(runs[system, "in eights"][-1].output)


def read_texts(output: str) -> list[str]:
    return [" ".join(json.loads(line)["text"].split()) for line in output.splitlines()]


def measure_files(system: str) -> float:
    """Return the megabytes of a model's files; 0 if it is not a path."""
    path = Path(system.rpartition(":")[2])
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files) / 1e6


def run(system: str, manifest: Path, batch: int) -> Run:
    """Run a system on the first core."""
    if ":" in system:
        command = [sys.executable, __file__, "--worker", "--batch", str(batch), str(manifest), system]
    else:
        command = [sys.executable, "-m", "asr", "transcribe", str(manifest), "--model", system]
        command += ["--format", "jsonl", "--batch-size", str(batch), "-q"]
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, env=os.environ | limits, preexec_fn=lambda: os.sched_setaffinity(0, {0})
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{system}: failed")
        output.seek(0)
        text = output.read().decode()
    return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text)


def transcribe(system: str, manifest: Path, batch: int) -> Iterator[dict[str, Any]]:
    import soundfile

    package, _, folder = system.partition(":")
    records = [json.loads(line) for line in manifest.read_text().splitlines()]
    audio = [soundfile.read(record["audio"], dtype="float32")[0] for record in records]
    if package == "faster-whisper":
        from faster_whisper import WhisperModel

        model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=1)
        for record, clip in zip(records, audio, strict=True):
            segments, _ = model.transcribe(clip, beam_size=1, language="en", vad_filter=True)
            yield {"id": record["id"], "text": " ".join(one.text.strip() for one in segments)}
    elif package == "moonshine-runtime":
        from moonshine_voice import ModelArch, Transcriber

        arch = ModelArch.BASE if "base" in folder else ModelArch.TINY
        with Transcriber(folder, arch) as model:
            for record, clip in zip(records, audio, strict=True):
                lines = model.transcribe_without_streaming(clip.tolist(), 16_000).lines
                yield {"id": record["id"], "text": " ".join(line.text for line in lines)}
    elif package == "sherpa-onnx":
        from asr.export.sherpa import decode

        for record, text in zip(records, decode(Path(folder), audio)[0], strict=True):
            yield {"id": record["id"], "text": text}
    else:
        raise SystemExit(f"{package}: expected faster-whisper, moonshine-runtime or sherpa-onnx")


if __name__ == "__main__":
    main()
