"""Cuts and mutates audio files and reads what is left: how much of it, and does the reader survive it?

    python tools/check_damaged_audio.py cuts --folder /tmp/damaged [--beside PYTHON]
    python tools/check_damaged_audio.py mutations --folder /tmp/damaged [--count 10000] [--seed 0]

`cuts` keeps the first 1, 5, 20, 50, 90 and 99 % of files of 12 formats and prints how many seconds of
sound we decode, which must be about as many as are left; with `--beside`, a Python that has
faster-whisper, also what that decodes. `mutations` reads seeded files with bytes changed, spans removed
or doubled, damaged headers, in processes with limits of time and memory, and counts what came of them;
a later call in the same folder continues where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

RATE = 16_000
SHARES = (0.01, 0.05, 0.2, 0.5, 0.9, 0.99)
SECONDS_A_FILE = 5
MOST_LOST, MOST_ADDED = 1.5, 0.5  # seconds of a cut file: a page of Ogg has one, and lossy formats overlap
MAX_GROWTH_KB = 600_000  # of memory, for a file of 1.5 seconds
MAX_BYTES = 3 << 30  # of address space, of which the libraries alone take one half
# Suffix -> format and subtype of libsndfile, or container and codec of FFmpeg.
FORMATS = {
    "wav": ("WAV", "PCM_16"), "aiff": ("AIFF", "PCM_16"), "au": ("AU", "PCM_16"), "w64": ("W64", "PCM_16"),
    "caf": ("CAF", "PCM_16"), "flac": ("FLAC", "PCM_16"), "ogg": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"), "m4a": ("ipod", "aac"), "webm": ("webm", "libopus"),
    "wma": ("asf", "wmav2"),
}  # fmt: skip
FASTER_WHISPER = (
    "import sys; from faster_whisper.audio import decode_audio; print(len(decode_audio(sys.argv[1])))"
)


def make_files(folder: Path, seconds: float) -> dict[str, Path]:
    """Tones with noise, loud and quiet by turns, in all formats."""
    import av
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    times = np.arange(round(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * tone * times) for tone in (110, 173, 281, 430))
    noise = np.random.default_rng(0).standard_normal(len(times))
    sound = (0.1 * tones + 0.03 * noise) * (0.6 + 0.4 * np.sin(2 * np.pi * times / 3))
    frame = av.AudioFrame.from_ndarray(np.float32(sound)[None], "fltp", "mono")
    frame.sample_rate, frame.pts = RATE, 0
    files = {}
    for suffix, (container, codec) in FORMATS.items():
        files[suffix] = folder / f"whole.{suffix}"
        if container.isupper():
            soundfile.write(files[suffix], sound, RATE, codec, format=container)
            continue
        # The index stands first, as in what is made for the web: without it nothing of the file is read.
        options = {"movflags": "faststart"} if container == "ipod" else {}
        with av.open(str(files[suffix]), "w", format=container, options=options) as file:
            stream = file.add_stream(codec, rate=RATE, layout="mono")
            stream.bit_rate = 32_000  # the default of wmav2 does not go with its rate
            context = stream.codec_context
            fit = av.AudioResampler(context.format, context.layout, RATE, context.frame_size or None)
            for part in [*fit.resample(frame), *fit.resample(None), None]:
                file.mux(stream.encode(part))
    return files


# --- cuts -----------------------------------------------------------------------------------------


def count_samples(path: Path) -> int:
    """Number of samples that transcription gets of a file."""
    from asr.audio import reading as audio

    try:
        blocks = audio.read_blocks(path, RATE, allow_silence=True, on_damage=lambda damage: None)
        return sum(len(block) for block in blocks)
    except audio.AudioError:
        return 0


def check_cuts(folder: Path, beside: str | None) -> int:
    num_less = num_wrong = 0
    print("format   share  ours [s]" + ("  faster-whisper [s]" if beside else ""))
    for suffix, path in make_files(folder, 40.0).items():
        data = path.read_bytes()
        for share in SHARES:
            cut = folder / f"cut.{suffix}"
            cut.write_bytes(data[: round(share * len(data))])
            ours, line = count_samples(cut), ""
            if not -MOST_LOST <= ours / RATE - share * 40.0 <= MOST_ADDED:
                num_wrong, line = num_wrong + 1, "  WRONG"
            if beside is not None:
                done = subprocess.run(
                    [beside, "-c", FASTER_WHISPER, str(cut)], capture_output=True, text=True
                )
                theirs = int(done.stdout) if done.returncode == 0 else 0
                is_less = ours < theirs - RATE // 1000  # libsndfile cannot give the last sample before damage
                num_less += is_less
                line += f"  {theirs / RATE:8.3f}" + ("  LESS" if is_less else "")
            print(f"{suffix:8} {share:5.0%}  {ours / RATE:8.3f}{line}", flush=True)
    if beside is not None:
        print(f"less than faster-whisper, by more than 1 ms: {num_less}")
    print(f"more than {MOST_LOST} s less or {MOST_ADDED} s more than is left: {num_wrong}")
    return int(num_less + num_wrong > 0)


# --- mutations ------------------------------------------------------------------------------------


def mutate(data: bytes, stream: np.random.Generator) -> bytes:
    """One to four changes, half of them in the header."""
    mutated = bytearray(data)
    for _ in range(stream.integers(1, 5)):
        limit = int(min(len(mutated), stream.choice([64, 1000, len(mutated), len(mutated)])))
        place = int(stream.integers(0, max(1, limit)))
        length = int(2 ** stream.uniform(0, 10))
        kind = stream.choice(
            ["flip", "noise", "number", "remove", "double", "cut"], p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1]
        )
        if kind == "flip" and mutated:
            mutated[min(place, len(mutated) - 1)] ^= 1 << int(stream.integers(8))
        elif kind == "noise":
            mutated[place : place + length] = stream.bytes(len(mutated[place : place + length]))
        elif kind == "number":
            numbers = [
                b"\xff" * 4,
                bytes(4),
                b"\x7f\xff\xff\xff",
                b"\xff\xff\xff\x7f",
                b"\5\0\0\x33",
                b"\0\0\1\0",
            ]
            mutated[place : place + 4] = numbers[stream.integers(len(numbers))]
        elif kind == "remove":
            del mutated[place : place + length]
        elif kind == "double":
            mutated[place:place] = mutated[place : place + length]
        elif kind == "cut":
            del mutated[place:]
    return bytes(mutated)


def read_part(first: int, past: int, folder: Path, seed: int) -> None:
    """Read some files in a child process; print a line before each and one after."""
    from asr.audio import reading as audio

    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    sources = [(folder / f"whole.{suffix}").read_bytes() for suffix in FORMATS]
    path = folder / f"mutated-{first}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first, past):
        data = mutate(sources[number % len(sources)], np.random.default_rng([seed, number]))
        path.write_bytes(data)
        signal.setitimer(signal.ITIMER_PROF, SECONDS_A_FILE)  # of computing; ends the process
        print(json.dumps({"begun": number}), flush=True)
        damages: list[str] = []
        blocks = audio.read_blocks(path, RATE, allow_silence=True, on_damage=damages.append)
        try:
            samples = sum(len(block) for block in blocks)
            outcome = "damaged, told" if damages else "read"
        except audio.AudioError:
            samples, outcome = 0, "refused"
        if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) > MAX_GROWTH_KB:
            outcome, before = f"took {grown // 1024} MB", before + grown
        print(json.dumps({"done": number, "outcome": outcome, "seconds": samples / RATE}), flush=True)
    path.unlink()


def check_mutations(folder: Path, count: int, seed: int, part: int = 200) -> int:
    make_files(folder, 1.5)
    code = hashlib.sha256(b"".join((folder / f"whole.{suffix}").read_bytes() for suffix in FORMATS))
    log = folder / f"mutations-{seed}-{code.hexdigest()[:8]}.jsonl"
    outcomes = {int(line["number"]): line for line in _read_lines(log)}
    number = 0
    while number < count:
        if number in outcomes:
            number += 1
            continue
        past = min(number + part, count)
        for line in _run_part(number, past, folder, seed):
            outcomes[line["number"]] = line
            with open(log, "a") as file:
                file.write(json.dumps(line) + "\n")
        print(f"{len(outcomes)} of {count}", file=sys.stderr)
    counts = Counter(line["outcome"] for line in outcomes.values())
    for outcome, number in counts.most_common():
        print(f"{number:6} {outcome}")
    bad = [line for line in outcomes.values() if line["outcome"] not in ("read", "damaged, told", "refused")]
    for line in bad:
        print(f"file {line['number']}: {line['outcome']}")
    print(f"the longest: {max(line['seconds'] for line in outcomes.values()):.1f} s of sound")
    if not counts["read"] + counts["damaged, told"]:
        raise SystemExit("no file was read, so nothing is proved")
    return int(bool(bad))


def _run_part(first: int, past: int, folder: Path, seed: int) -> Iterator[dict[str, object]]:
    """The outcomes of some files; after a crash, up to the file that caused it."""
    command = [sys.executable, __file__, "part", str(first), str(past), str(seed), "--folder", str(folder)]
    limit = 60 * SECONDS_A_FILE  # for what waits without computing
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = child.communicate(timeout=limit)
        is_slow = child.returncode == -signal.SIGPROF
        fault = "hang" if is_slow else f"crash {child.returncode}: {err.strip().splitlines()[-1:]}"
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        fault = f"hang of more than {limit} s"
    begun = None
    for text in out.splitlines():
        line = json.loads(text)
        if "begun" in line:
            begun = line["begun"]
            continue
        begun = None
        yield {"number": line["done"], "outcome": line["outcome"], "seconds": line["seconds"]}
    if begun is not None:
        yield {"number": begun, "outcome": fault, "seconds": 0.0}
    elif child.returncode:
        raise SystemExit(f"files {first} to {past} could not be read at all: {err}")


def _read_lines(path: Path) -> list[dict[str, object]]:
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in path.read_text().splitlines()]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("cuts", "mutations", "part"))
    parser.add_argument("numbers", nargs="*", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, required=True, help="for the files and the journal")
    parser.add_argument("--beside", metavar="PYTHON", help="a Python that has faster-whisper")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.what == "part":
        read_part(args.numbers[0], args.numbers[1], args.folder, args.numbers[2])
        return 0
    if args.what == "cuts":
        return check_cuts(args.folder, args.beside)
    return check_mutations(args.folder, args.count, args.seed)


if __name__ == "__main__":
    sys.exit(main())
