"""Measure the time to score a million words with 10 % errors, compared with others, and of the bootstrap.

Texts are random and in memory; sclite reads them from files, whose writing is not timed. The contenders
take turns run by run, so that a busy moment of the machine affects all of them. Missing contenders are left
out and named: install jiwer, meeteval and kaldialign with pip, and sclite with apt-get install sctk.
"""

from __future__ import annotations

import argparse
import importlib
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from asr.scoring.counting import score

NUM_SPEAKERS = 40


class Counted(NamedTuple):
    substitutions: int
    deletions: int
    insertions: int


Contender = Callable[[list[str], list[str]], Counted]


def make_texts(num_words: int, error_rate: float, seed: int = 0) -> tuple[list[str], list[str]]:
    """Make utterances of 5 to 25 words out of 20,000 with Zipf frequencies; 60 % of errors substitute."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(20_000)]
    weights = [1 / (rank + 5) for rank in range(len(vocabulary))]
    references, hypotheses = [], []
    while num_words > 0:
        reference = rng.choices(vocabulary, weights, k=rng.randint(5, 25))
        hypothesis: list[str] = []
        for word in reference:
            dice = rng.random() / error_rate
            if dice < 0.6:
                hypothesis.append(rng.choice(vocabulary))
            elif dice < 0.8:
                hypothesis += [word, rng.choice(vocabulary)]
            elif dice >= 1:
                hypothesis.append(word)
        references.append(" ".join(reference))
        hypotheses.append(" ".join(hypothesis))
        num_words -= len(reference)
    return references, hypotheses


def count_here(references: list[str], hypotheses: list[str], align: str = "levenshtein") -> Counted:
    counts = score(references, hypotheses, align=align, resamples=0).counts
    return Counted(counts.substitutions, counts.deletions, counts.insertions)


def count_by_jiwer(references: list[str], hypotheses: list[str]) -> Counted:
    import jiwer

    found = jiwer.process_words(references, hypotheses)
    return Counted(found.substitutions, found.deletions, found.insertions)


def count_by_meeteval(references: list[str], hypotheses: list[str]) -> Counted:
    from meeteval.wer import combine_error_rates, siso_word_error_rate

    found = combine_error_rates(*map(siso_word_error_rate, references, hypotheses))
    return Counted(found.substitutions, found.deletions, found.insertions)


def count_by_kaldialign(references: list[str], hypotheses: list[str]) -> Counted:
    import kaldialign

    found = [
        kaldialign.edit_distance(reference.split(), hypothesis.split())
        for reference, hypothesis in zip(references, hypotheses, strict=True)
    ]
    return Counted(*(sum(pair[kind] for pair in found) for kind in ("sub", "del", "ins")))


def count_by_sclite(folder: Path) -> Counted:
    """Return the counts for ref.trn and hyp.trn from the sum row of the raw summary."""
    arguments = "-s -r ref.trn trn -h hyp.trn trn -i rm -o rsum stdout -f 0"
    command = ["sctk", "sclite", *arguments.split()]
    output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    sums = next(line for line in output.splitlines() if line.lstrip("| ").startswith("Sum"))
    _, _, _, _, substitutions, deletions, insertions, *_ = sums.replace("|", " ").split()
    return Counted(int(substitutions), int(deletions), int(insertions))


def write_trn(path: Path, texts: list[str]) -> None:
    lines = (f"{text} (s{number % NUM_SPEAKERS}-{number})\n" for number, text in enumerate(texts))
    path.write_text("".join(lines))


def build_contenders(folder: Path) -> tuple[dict[str, Contender], list[str]]:
    """Return the installed contenders and the names of the missing ones."""
    contenders: dict[str, Contender] = {
        "asr": count_here,
        "asr --align sclite": lambda references, hypotheses: count_here(references, hypotheses, "sclite"),
    }
    missing = []
    for name, function in (
        ("jiwer", count_by_jiwer),
        ("meeteval", count_by_meeteval),
        ("kaldialign", count_by_kaldialign),
    ):
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
        else:
            contenders[name] = function
    if shutil.which("sctk"):
        contenders["sclite"] = lambda references, hypotheses: count_by_sclite(folder)
    else:
        missing.append("sclite")
    return contenders, missing


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--words", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--error-rate", type=float, default=0.1, metavar="X")
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds, of which the median is shown"
    )
    parser.add_argument("--resamples", type=int, default=1000, metavar="N")
    args = parser.parse_args()
    references, hypotheses = make_texts(args.words, args.error_rate)
    seconds: dict[str, list[float]] = {}
    counted: dict[str, Counted] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_trn(Path(folder, "ref.trn"), references)
        write_trn(Path(folder, "hyp.trn"), hypotheses)
        contenders, missing = build_contenders(Path(folder))
        for _ in range(args.rounds):
            for name, contender in contenders.items():
                start = time.perf_counter()
                counted[name] = contender(references, hypotheses)
                seconds.setdefault(name, []).append(time.perf_counter() - start)
    for speakers in (None, [str(number % NUM_SPEAKERS) for number in range(len(references))]):
        for _ in range(args.rounds):
            scored = score(references, hypotheses, speakers=speakers, resamples=args.resamples)
            start = time.perf_counter()
            scored.interval  # noqa: B018  computed on access
            row = f"interval by {scored.resampled_by}"
            seconds.setdefault(row, []).append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    fastest = min(medians[name] for name in contenders if not name.startswith("asr"))
    print(f"{len(references):,} utterances, {args.words:,} words, {args.resamples:,} resamples")
    print(f"{'':24}{'seconds':>9}{'of fastest other':>18}{'sub':>9}{'del':>9}{'ins':>9}")
    for name, median in medians.items():
        ratio = f"{median / fastest:.2f}" if name in contenders else ""
        counts = "".join(f"{count:9,}" for count in counted.get(name, ()))
        print(f"{name:24}{median:9.3f}{ratio:>18}{counts}")
    if missing:
        print(f"not installed: {', '.join(missing)}")


if __name__ == "__main__":
    main()
