"""Compare scores of speaker turns and meetings with pyannote.metrics, NIST's md-eval and meeteval.

    pip install pyannote.metrics==4.2.0 meeteval==0.4.3; apt-get install sctk
    python tools/compare_speaker_scores.py

Random recordings: turns that overlap, 0 to 6 speakers, ties, sides that are empty. All must be equal.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from asr.scoring import score_systems
from asr.speakers import Turn, format_rttm, format_seglst, score_turns

MD_EVAL = Path("/usr/lib/sctk/bin/md-eval.pl")
OPTIONS = [(0.0, False), (0.25, False), (0.0, True), (0.5, True)]


def make_turns(rng: random.Random, recording: str, unit: float, apart: bool) -> list[Turn]:
    """Turns of 0 to 6 speakers that overlap each other, but never themselves; some touch, unless `apart`."""
    turns = []
    for speaker in range(rng.randint(0, 6)):
        time = 0
        for _ in range(rng.randint(1, 6)):
            start = time + rng.choice([8 * apart, rng.randint(8 * apart, 400)])
            time = start + rng.randint(1, 300)
            if apart:  # no time twice: each speaker has one of the eighths
                start, time = start // 8 * 8 + speaker, time // 8 * 8 + 8 + speaker
            turns.append(Turn(recording, start * unit, time * unit, f"s{speaker}"))
    return turns


def make_recordings(
    seed: int, number: int, unit: float, apart: bool = False
) -> tuple[list[Turn], list[Turn]]:
    """Hypotheses are late copies of the reference with turns missing, or have nothing to do with it."""
    rng = random.Random(seed)
    sides: tuple[list[Turn], list[Turn]] = [], []
    for name in (f"r{place}" for place in range(number)):
        said, found = (make_turns(rng, name, unit, apart) for _ in range(2))
        if rng.random() < 0.5:
            late = rng.randint(0, 60) * unit
            kept = [turn for turn in said if rng.random() < 0.7]
            found = [Turn(name, turn.start + late, turn.end + late, turn.speaker) for turn in kept]
        sides[0].extend(said)
        sides[1].extend(found)
    return sides


def compare_with_pyannote(number: int, unit: float, collar: float, skip_overlap: bool) -> str:
    """It maps speakers by the time that is scored, NIST by all time: confusion may differ with a collar."""
    from pyannote.core import Annotation, Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate

    sides = make_recordings(1, number, unit)
    uem = {f"r{place}": [(0.0, 20.0), (25.0, 5000 * unit)] for place in range(number)}
    score = score_turns(*sides, collar=collar, skip_overlap=skip_overlap, uem=uem)
    expected = []
    for name, spans in uem.items():
        annotations = []
        for side in sides:
            annotations.append(Annotation(uri=name))
            for track, turn in enumerate(turn for turn in side if turn.recording == name):
                annotations[-1][Segment(turn.start, turn.end), track] = turn.speaker
        timeline = Timeline([Segment(*span) for span in spans])
        metric = DiarizationErrorRate(collar=2 * collar, skip_overlap=skip_overlap)
        found = metric.compute_components(*annotations, uem=timeline)
        jaccard = JaccardErrorRate().compute_components(*annotations, uem=timeline)
        row = [found[key] for key in ("total", "missed detection", "false alarm", "confusion")]
        expected.append([*row, jaccard["speaker error"], jaccard["speaker count"]])
    differences_MK = score.sums_MK[:, :6] - np.array(expected)
    is_wrong_MK = np.abs(differences_MK) > 1e-6
    others = f", confusion higher in {is_wrong_MK[:, 3].sum()}" if collar or skip_overlap else ""
    is_wrong_MK[:, 3] = differences_MK[:, 3] < -1e-6 if others else is_wrong_MK[:, 3]
    return f"{is_wrong_MK.any(axis=1).sum()} of {number} differ{others}"


def compare_with_md_eval(number: int, collar: float, skip_overlap: bool, folder: Path) -> str:
    """Times are a thousand times as long as in speech, since it prints two digits; and it fails without any.

    Where an overlap begins when another one ends, it scores the second instead of skipping it.
    """
    sides = make_recordings(2, number, 17.0, apart=skip_overlap)
    names = [f"r{place}" for place in range(number)]
    sides[0].extend(Turn(name, 90_000.0, 95_000.0, "last") for name in names)
    uem = {name: [(0.0, 20_001.0), (25_001.0, 100_000.0)] for name in names}
    for file, side in zip("rs", sides, strict=True):
        (folder / file).write_text(format_rttm(side))
    lines = [f"{name} 1 {start} {end}\n" for name, spans in uem.items() for start, end in spans]
    (folder / "u").write_text("".join(lines))
    command = [
        "perl",
        str(MD_EVAL),
        *f"-r r -s s -u u -c {1000 * collar} -a cf".split(),
        *["-1"] * skip_overlap,
    ]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    parts = "SCORED SPEAKER", "MISSED SPEAKER", "FALARM SPEAKER", "SPEAKER ERROR"
    found_KM = [re.findall(rf"{part} TIME = *(\S+) secs", done.stdout) for part in parts]
    order = re.findall(r"c=1 f=(\w+)\)", done.stdout)
    expected = dict(zip(order, np.array(found_KM, float).T, strict=False))  # the last is the total
    score = score_turns(*sides, collar=1000 * collar, skip_overlap=skip_overlap, uem=uem)
    differences_MK = score.sums_MK[:, :4] - [expected[name] for name in names]
    return f"{(np.abs(differences_MK) > 0.0051).any(axis=1).sum()} of {number} differ"


def make_meetings(number: int, speakers: int, utterances: int, length: int) -> tuple[list[Turn], list[Turn]]:
    """Few words, so that many alignments are as good; some sides say nothing, or elsewhere."""
    rng = random.Random(3)
    sides: tuple[list[Turn], list[Turn]] = [], []

    def make_side(name: str, words: list[str]) -> list[Turn]:
        turns = []
        for speaker in range(rng.randint(1, speakers)):
            time = rng.random() * 10
            for _ in range(rng.randint(1, utterances)):
                start = time + rng.choice([0.01, rng.random() * 20])
                time = start + rng.random() * 8
                text = " ".join(rng.choices(words, k=rng.choice([0, rng.randint(1, length)])))
                turns.append(Turn(name, round(start, 3), round(time, 3), f"s{speaker}", text))
        return turns

    for name in (f"r{place}" for place in range(number)):
        words = [letter * rng.randint(1, 9) for letter in "abcdefgh"[: rng.choice([2, 4, 8])]]
        said, found = make_side(name, words), make_side(name, words)
        if rng.random() < 0.7:
            late, found = round(rng.random() * 9, 3), []
            for turn in said:
                kept = [word for word in turn.text.split() if rng.random() < 0.9]
                text = " ".join(rng.choice([word, rng.choice(words)]) for word in kept)
                speaker = turn.speaker if rng.random() < 0.8 else f"s{rng.randrange(speakers)}"
                found.append(Turn(name, turn.start + late, turn.end + late, speaker, text))
        sides[0].extend(said)
        sides[1].extend(found if rng.random() < 0.9 else [])
    return sides


def compare_with_meeteval(number: int, meeting: str, folder: Path) -> str:
    import meeteval.wer
    from meeteval.io import SegLST

    compute = {
        "cpwer": meeteval.wer.cp_word_error_rate,
        "tcpwer": partial(meeteval.wer.time_constrained_minimum_permutation_word_error_rate, collar=5),
        "orcwer": meeteval.wer.orc_word_error_rate,
    }[meeting]
    sides = make_meetings(number, *((3, 4, 4) if meeting == "orcwer" else (6, 5, 12)))
    files = [folder / "reference.json", folder / "hypothesis.json"]
    for file, side in zip(files, sides, strict=True):
        file.write_text(format_seglst(side))
    said, heard = (SegLST(json.loads(file.read_text())).groupby("session_id") for file in files)
    _, (system,), _ = score_systems(str(files[0]), [str(files[1])], meeting=meeting)
    found = {name: one.counts for name, one in system.score.group(system.score.recordings).items()}
    wrong = 0
    for name, own in said.items():
        other = heard.get(name, SegLST([]))
        if meeting == "orcwer" and not any(segment["words"] for segment in other):
            expected, length = found[name].deletions, found[name].reference_length  # meeteval fails then
        else:
            rate = compute(own, other)
            expected, length = rate.errors, rate.length
        wrong += (found[name].errors, found[name].reference_length) != (expected, length)
    return f"{wrong} of {number} differ"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--number", type=int, default=300, help="random recordings of each kind (default: 300)"
    )
    number = parser.parse_args().number
    warnings.simplefilter("ignore")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for collar, skip_overlap in OPTIONS:
            options = f"collar {collar}" + ", no overlap" * skip_overlap
            for unit in (0.125, 0.0137):
                found[f"pyannote.metrics, {options}, times by {unit} s"] = compare_with_pyannote(
                    number, unit, collar, skip_overlap
                )
            found[f"md-eval, {options}"] = compare_with_md_eval(number, collar, skip_overlap, Path(folder))
        for meeting in ("cpwer", "tcpwer", "orcwer"):
            found[f"meeteval, {meeting}"] = compare_with_meeteval(number, meeting, Path(folder))
    for name, result in found.items():
        print(f"{name}: {result}")
    return int(any(not result.startswith("0 of") for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
