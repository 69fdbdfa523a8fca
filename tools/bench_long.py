"""Measure how memory, speed and errors of transcription depend on the length of a recording.

    python tools/bench_long.py base.en data/an4/train.jsonl --minutes 10 60 --english
    python tools/bench_long.py runs/digits/transformer data/digits/test.jsonl --minutes 1 10 60 120

A recording is a temporary FLAC file with the utterances of the manifest in order, repeated as needed, with
half a second to two seconds of noise between them. A recognized word belongs to the utterance nearest to
its middle, so that a recording and its single utterances are scored alike. Each runs in its own process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from asr.audio import reading as audio
from asr.data import Utterance, read_manifest
from asr.scoring.counting import count_character_errors, count_word_errors

RATE = 16_000
NOISE = 0.0005


@dataclass(frozen=True)
class Place:
    """Position of an utterance in a recording."""

    utterance: Utterance
    start: float
    end: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model as for `asr transcribe`")
    parser.add_argument("manifest", type=Path, help="utterances with texts")
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 10, 60])
    parser.add_argument(
        "--english", action="store_true", help="normalize texts by the English rules, for Whisper"
    )
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--worker", type=Path, nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        print(json.dumps(measure(args)))
        return 0
    utterances = list(read_manifest(args.manifest))
    normalize = make_normalizer(args.english)
    with tempfile.TemporaryDirectory() as folder:
        paths = {minutes: Path(folder) / f"{minutes:g}.flac" for minutes in sorted(args.minutes)}
        placed = {minutes: write_long(paths[minutes], utterances, 60 * minutes) for minutes in paths}
        lengths = {str(place.utterance.audio): place.end - place.start for place in placed[max(placed)]}
        found = run_worker(*lengths)
        alone = dict(zip(lengths, found["texts"], strict=True))
        print(
            "| | peak memory MB | seconds | real-time factor | words | WER % | CER % | alone: WER % | CER % |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        print_row(f"{len(lengths)} utterances alone", found, sum(lengths.values()), (), ())
        for minutes, path in paths.items():
            places = placed[minutes]
            found = run_worker(path)
            texts = [" ".join(words) for words in share_out(found["words"], places)]
            pairs = [
                (normalize(p.utterance.text or ""), normalize(t)) for p, t in zip(places, texts, strict=True)
            ]
            own = [
                (pair[0], normalize(alone[p.utterance.audio])) for p, pair in zip(places, pairs, strict=True)
            ]
            print_row(f"{minutes:g} minutes", found, 60 * minutes, pairs, own)
    return 0


def make_normalizer(is_english: bool) -> Callable[[str], str]:
    from asr.text.normalization import normalize_english

    return normalize_english if is_english else str


def print_row(
    name: str,
    found: dict[str, Any],
    seconds: float,
    pairs: Sequence[tuple[str, str]],
    alone: Sequence[tuple[str, str]],
) -> None:
    cells = [f"{found['megabytes']:.0f}", f"{found['seconds']:.1f}", f"{found['seconds'] / seconds:.4f}"]
    cells += [str(len(found["words"]))] if "words" in found else [""]
    for scored in (pairs, alone):
        counts = [count(scored) for count in (count_word_errors, count_character_errors)] if scored else []
        cells += [f"{100 * count.rate:.2f}" for count in counts] or ["", ""]
    print(f"| {' | '.join([name, *cells])} |", flush=True)


# --- recordings -----------------------------------------------------------------------------------


def write_long(path: Path, utterances: Sequence[Utterance], seconds: float) -> list[Place]:
    """Stream the recording to a file, so that it is never in memory."""
    random = np.random.default_rng(0)
    places: list[Place] = []
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
        written = 0
        for utterance in cycle(utterances):
            if written >= seconds * RATE:
                return places
            speech = audio.read(utterance.audio, RATE)
            places.append(Place(utterance, written / RATE, (written + len(speech)) / RATE))
            pause = NOISE * random.standard_normal(int(RATE * random.uniform(0.5, 2.0)))
            file.write(np.concatenate([speech, pause]))
            written += len(speech) + len(pause)
    raise SystemExit("the manifest has no utterances")


def share_out(words: Sequence[tuple[str, float]], places: Sequence[Place]) -> list[list[str]]:
    """Assign words to the utterance that their middle is nearest to."""
    borders = [(one.end + next_one.start) / 2 for one, next_one in pairwise(places)]
    shares: list[list[str]] = [[] for _ in places]
    for (text, _), place in zip(
        words, np.searchsorted(borders, [middle for _, middle in words]), strict=True
    ):
        shares[place].append(text)
    return shares


# --- measuring ------------------------------------------------------------------------------------


def run_worker(*paths: str | Path) -> dict[str, Any]:
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", *map(str, paths)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{Path(paths[0]).name}: the worker failed")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return one recording with word times, or the texts of many."""
    import torch

    from asr.errors import UserError
    from asr.transcription.model import load_model

    torch.set_num_threads(args.threads)
    recognizer = load_model(args.model, "cpu", args.precision)
    start = time.perf_counter()
    transcripts = [result for _, result in recognizer.transcribe_files(args.worker)]
    figures: dict[str, Any] = {
        "seconds": time.perf_counter() - start,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    for transcript in transcripts:
        if isinstance(transcript, UserError):
            raise SystemExit(str(transcript))
    good = [transcript for transcript in transcripts if not isinstance(transcript, UserError)]
    if len(good) > 1:
        return figures | {"texts": [transcript.text for transcript in good]}
    return figures | {"words": [(word.text, (word.start + word.end) / 2) for word in good[0].words]}


if __name__ == "__main__":
    sys.exit(main())
