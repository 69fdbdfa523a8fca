"""Measure live transcription as a listener sees it: latency at the pace of speech, and WER.

    python tools/bench_live.py data/an4/test.jsonl --models tiny base.en --english
    python tools/bench_live.py talks.jsonl --models base.en --slowdown 1 4 --english

Each recording is written to the pipe of `asr transcribe --stream` as fast as it is spoken. The latency of a
word is the time from when its end was written until its text appeared, both for the first time, when it may
still change, and in a final segment. --slowdown multiplies the decoding time, to imitate a model that is
too slow for the machine; text must then come later but not be lost. --pace 0 writes everything at once, for
the WER alone.

Utterances shorter than --seconds are joined to recordings of about that length, with pauses of 0.3 to 1.5
seconds of noise between them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bench_long import NOISE, make_normalizer

from asr.audio import reading as audio
from asr.data import Utterance, read_manifest
from asr.scoring.counting import count_word_errors

RATE = 16_000
WRITE_SECONDS = 0.05  # audio per write, as from a recorder

# Makes decoding take FACTOR times as long in the process of the command.
SLOW_COMMAND = """
import sys, time
from asr import cli
from asr.transcription.transcribe import Recognizer
decode = Recognizer.recognize
def recognize(self, segments, request):
    begin = time.perf_counter()
    found = decode(self, segments, request)
    time.sleep((FACTOR - 1) * (time.perf_counter() - begin))
    return found
Recognizer.recognize = recognize
sys.exit(cli.main(sys.argv[1:]))
"""


@dataclass
class Measured:
    """One recording, or all of them."""

    shown: list[float] = field(default_factory=list)
    final: list[float] = field(default_factory=list)
    most_behind: float = 0.0
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """Reference and hypothesis."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manifest", type=Path, help="utterances with texts")
    parser.add_argument("--models", nargs="+", required=True, help="models as for `asr transcribe`")
    parser.add_argument("--recordings", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a recording")
    parser.add_argument("--pace", type=float, default=1.0, help="1: as fast as it is spoken; 0: all at once")
    parser.add_argument("--slowdown", type=float, nargs="+", default=[1.0])
    parser.add_argument("--english", action="store_true", help="normalize texts by rules, for Whisper")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as for asr transcribe"
    )
    args = parser.parse_args()
    normalize = make_normalizer(args.english)
    recordings = list(join_utterances(read_manifest(args.manifest), args.seconds, args.recordings))
    print(
        "| model | decoding | words | first shown, s (median, 95 %, most) | final, s | most behind, s ",
        end="",
    )
    print("| WER live % | WER offline % |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.wav" for number in range(len(recordings))]
        for path, (audio_S, _) in zip(paths, recordings, strict=True):
            audio.write(path, audio_S, RATE)
        for model in args.models:
            options = [
                "--model",
                model,
                "--threads",
                str(args.threads),
                *(f"--set={pair}" for pair in args.set),
            ]
            texts = transcribe_offline(paths, options)
            offline = [(text, own) for (_, text), own in zip(recordings, texts, strict=True)]
            for slowdown in args.slowdown:
                total = Measured()
                for audio_S, text in recordings:
                    add(total, measure_live(audio_S, text, options, args.pace, slowdown))
                print_row(Path(model).name, slowdown, total, offline, normalize)
    return 0


def join_utterances(
    utterances: Iterator[Utterance], seconds: float, count: int
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield samples and text of recordings of about this many seconds."""
    random = np.random.default_rng(0)
    pieces: list[np.ndarray] = []
    texts: list[str] = []
    for utterance in utterances:
        sound = audio.read(utterance.audio, RATE, start=utterance.start, duration=utterance.duration)
        pause = NOISE * random.standard_normal(int(RATE * random.uniform(0.3, 1.5)))
        pieces += [sound, pause.astype(np.float32)]
        texts.append(utterance.text or "")
        if sum(map(len, pieces)) >= seconds * RATE:
            yield np.concatenate(pieces), " ".join(texts)
            pieces, texts, count = [], [], count - 1
        if not count:
            return
    raise SystemExit(f"the manifest has too few utterances: {count} recordings of {seconds:g} s are missing")


def transcribe_offline(paths: Sequence[Path], options: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "asr", "transcribe", *map(str, paths), *options, "--format", "jsonl"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


# --- live -----------------------------------------------------------------------------------------


def measure_live(
    audio_S: np.ndarray, text: str, options: Sequence[str], pace: float, slowdown: float
) -> Measured:
    program = ["-m", "asr"] if slowdown == 1 else ["-c", SLOW_COMMAND.replace("FACTOR", str(slowdown))]
    command = [sys.executable, *program, "transcribe", "--stream", "--verbose", "--format", "jsonl", *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        wait_until_loaded(process.stderr)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        written = threading.Thread(target=feed, args=(process.stdin, audio_S, pace, begin := [0.0]))
        written.start()
        measured, hypothesis = Measured(), []
        shown_until = 0.0
        for line in process.stdout:
            now, record = time.monotonic(), json.loads(line)
            measured.most_behind = max(measured.most_behind, record["delay"])
            for word in [*record["final"], *record["stable"], *record["partial"]]:
                if (word["start"] + word["end"]) / 2 > shown_until:
                    measured.shown.append(now - begin[0] - pace * word["end"])
                    shown_until = word["end"]
            measured.final += [now - begin[0] - pace * word["end"] for word in record["final"]]
            if record["segment_ends"]:
                hypothesis.append(record["text"])
        written.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    measured.pairs = [(text, " ".join(hypothesis))]
    return measured


def wait_until_loaded(log: Any) -> None:
    """Wait until the program is ready for audio."""
    for line in log:
        if b"device: " in line:
            return


def feed(pipe: Any, audio_S: np.ndarray, pace: float, begin: list[float]) -> None:
    """Write like a recorder, which never waits, so late writes count against the program."""
    content = (np.clip(audio_S, -1, 1) * 32767).astype("<i2").tobytes()
    size = round(WRITE_SECONDS * RATE) * 2
    pipe.write(b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16))
    pipe.write(b"data\xff\xff\xff\xff")
    begin[0] = time.monotonic()
    for number, first in enumerate(range(0, len(content), size), 1):
        time.sleep(max(0.0, begin[0] + pace * number * WRITE_SECONDS - time.monotonic()))
        pipe.write(content[first : first + size])
        pipe.flush()
    pipe.close()


def add(total: Measured, one: Measured) -> None:
    total.shown += one.shown
    total.final += one.final
    total.pairs += one.pairs
    total.most_behind = max(total.most_behind, one.most_behind)


def print_row(
    model: str,
    slowdown: float,
    live: Measured,
    offline: Sequence[tuple[str, str]],
    normalize: Callable[[str], str],
) -> None:
    rates = [
        100 * count_word_errors([(normalize(one), normalize(other)) for one, other in pairs]).rate
        for pairs in (live.pairs, offline)
    ]
    decoding = "as it is" if slowdown == 1 else f"{slowdown:g} times as slow"
    cells = [model, decoding, str(len(live.final)), describe(live.shown), describe(live.final)]
    print(f"| {' | '.join(cells)} | {live.most_behind:.1f} | {rates[0]:.1f} | {rates[1]:.1f} |", flush=True)


def describe(waits: Sequence[float]) -> str:
    if not waits:
        return "-"
    return f"{statistics.median(waits):.2f}, {np.quantile(waits, 0.95):.2f}, {max(waits):.2f}"


if __name__ == "__main__":
    sys.exit(main())
