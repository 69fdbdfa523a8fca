"""Score pretrained models on recordings that they were not trained for: as they are, at 8 kHz, and joined.

    python tools/score_pretrained.py data/an4/test.jsonl data/speechocean762/train.jsonl OUT tiny base.en

`clips` are the recordings of the first manifest, and `8 kHz` the same after a change of the sampling rate to
that of telephones. `joined` are the first recordings of the second manifest in one file of `--minutes`, with
pauses of half a second. Each model transcribes them by its own command, and `asr score` compares the models.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from asr.audio import read

RATE, TELEPHONE_RATE = 16_000, 8_000
PAUSE_SECONDS = 0.5

Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("to_join", type=Path)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--minutes", type=float, default=10.0)
    args = parser.parse_args()
    audio_dir = args.output_dir / "audio"
    audio_dir.mkdir(parents=True, exist_ok=True)
    clips = read_records(args.clips)
    sets = {
        "clips": clips,
        "8khz": [lower_rate(record, audio_dir) for record in clips],
        "joined": [join(read_records(args.to_join), 60 * args.minutes, audio_dir)],
    }
    for name, records in sets.items():
        manifest = args.output_dir / f"{name}.jsonl"
        manifest.write_text("".join(json.dumps(record) + "\n" for record in records))
        texts = []
        for model in args.models:
            texts.append(args.output_dir / f"{name}-{Path(model).name}.jsonl")
            texts[-1].write_text(run("transcribe", manifest, "--model", model, "--format", "jsonl", "-q"))
        seconds = sum(record["duration"] for record in records)
        print(f"{name}: {len(records)} recordings, {seconds:.0f} s")
        print(run("score", manifest, *texts, "--normalize", "english"), flush=True)


def read_records(manifest: Path) -> list[Record]:
    return [json.loads(line) for line in manifest.read_text().splitlines()]


def lower_rate(record: Record, folder: Path) -> Record:
    """Write a recording at 8 kHz, in 16 bits, and return the record of that file."""
    path = folder / f"{record['id']}.wav"
    soundfile.write(path, read(record["audio"], TELEPHONE_RATE), TELEPHONE_RATE, "PCM_16")
    return record | {"audio": str(path.absolute())}


def join(records: Iterable[Record], seconds: float, folder: Path) -> Record:
    """Write the first recordings, as many as fit into `seconds`, in one file."""
    parts, texts, length = [], [], 0
    for record in records:
        audio_S = read(record["audio"], RATE)
        parts += [audio_S, np.zeros(int(PAUSE_SECONDS * RATE), np.float32)]
        texts.append(record["text"])
        length += sum(map(len, parts[-2:]))
        if length >= seconds * RATE:
            break
    path = folder / "joined.wav"
    soundfile.write(path, np.concatenate(parts), RATE, "PCM_16")
    return {"id": "joined", "audio": str(path.absolute()), "duration": length / RATE, "text": " ".join(texts)}


def run(*arguments: object) -> str:
    """Return what a command of `asr` writes."""
    command = [sys.executable, "-m", "asr", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


if __name__ == "__main__":
    main()
