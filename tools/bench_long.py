"""Measure transcription against the length of a recording: peak memory and real-time factor.

    python tools/bench_long.py runs/digits/transformer --audio speech.wav --minutes 1 10 60 120

Each length runs in a process of its own, over a temporary FLAC: the speech again and again, with pauses of
half a second to two seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile

from asr import audio

RATE = 16_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--audio", type=Path, nargs="+", help="speech to repeat")
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 10, 60, 120])
    parser.add_argument("--method", default="ctc_greedy", help="of decoding")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-seconds", type=float, default=20.0, help="of a segment")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        print(json.dumps(measure(args)))
        return 0
    if not args.audio:
        parser.error("--audio is needed")
    speech = [audio.read(path, RATE) for path in args.audio]
    print("| minutes | peak memory MB | seconds | real-time factor | segments | words |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for minutes in args.minutes:
            path = Path(folder) / f"{minutes:g}.flac"
            write_long(path, speech, 60 * minutes)
            found = run_worker(path)
            print(
                f"| {minutes:g} | {found['megabytes']:.0f} | {found['seconds']:.1f} "
                f"| {found['seconds'] / (60 * minutes):.4f} | {found['segments']} | {found['words']} |",
                flush=True,
            )
            path.unlink()
    return 0


def write_long(path: Path, speech: list[np.ndarray], seconds: float) -> None:
    """Streamed: the recording is never in memory."""
    random = np.random.default_rng(0)
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
        written = 0
        while written < seconds * RATE:
            pause = 0.0005 * random.standard_normal(int(RATE * random.uniform(0.5, 2.0)))
            piece = np.concatenate([speech[random.integers(len(speech))], pause])
            file.write(piece)
            written += len(piece)


def run_worker(path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{path.name}: the worker failed\n{result.stderr}")
    found: dict[str, float] = json.loads(result.stdout)
    return found


def measure(args: argparse.Namespace) -> dict[str, float]:
    import torch

    from asr.decoding.search import DecodingConfig
    from asr.transcription.recognizer import load_model
    from asr.transcription.segmentation import SegmentationConfig

    torch.set_num_threads(args.threads)
    segmentation = SegmentationConfig().limited(args.max_seconds)
    recognizer = load_model(args.model, "cpu", segmentation=segmentation)
    start = time.perf_counter()
    decoding = DecodingConfig(method=args.method)
    transcript = recognizer.transcribe(args.worker, decoding=decoding, batch_size=args.batch_size)
    return {
        "seconds": time.perf_counter() - start,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "segments": len(transcript.segments),
        "words": len(transcript.words),
    }


if __name__ == "__main__":
    sys.exit(main())
