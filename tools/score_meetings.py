"""Score diarization systems on the meetings of recipes/conversations, by overlap, speakers and corpus.

python tools/score_meetings.py data/conversations/test.rttm results ours=ours.rttm senko=senko.rttm

Writes results/test.json, with the hypotheses in results/test.rttm.json.gz, and prints a table. The first
system is compared with each of the others on the same recordings. Overlaps are scored.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from asr.recipe import describe_machine, round_figures
from asr.speakers.turn_scores import TurnScore, compare_turns, score_turns
from asr.speakers.turns import format_rttm, read_rttm
from asr.system.checkpoint import find_commit

COLLARS = (0.0, 0.25)


def list_rows(recordings: Iterable[str]) -> dict[str, list[str]]:
    """Group recordings into rows by name: test-10-3-an4 has 10 % overlap and three AN4 speakers."""
    rows: dict[str, list[str]] = {"all": list(recordings)}
    titles: list[tuple[int, Callable[[str], str]]] = [
        (1, lambda value: f"overlap {int(value)} %"),
        (2, lambda value: f"{value} speakers"),
        (3, lambda value: f"corpus {value}"),
    ]
    for place, title in titles:
        for name in rows["all"]:
            rows.setdefault(title(name.split("-")[place]), []).append(name)
    return rows


def count_right(score: TurnScore) -> int:
    """Count the recordings with as many speakers as the reference."""
    return int((score.sums_MK[:, 5] == score.sums_MK[:, 6]).sum())


def join_scores(scores: list[TurnScore]) -> TurnScore:
    """Combine the scores of several recordings."""
    return TurnScore(
        tuple(score.recordings[0] for score in scores), np.concatenate([score.sums_MK for score in scores])
    )


def score_rows(path: Path, collar: float) -> dict[str, Any]:
    """Score each row of a hypothesis file, and compare the first system with each of the others."""
    systems = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in json.loads(gzip.decompress(path.read_bytes())).items():
            Path(folder, "turns.rttm").write_text(text)
            systems[name] = read_rttm(Path(folder, "turns.rttm"))
    reference = systems.pop("reference")
    whole = {name: score_turns(reference, turns, collar=collar).split() for name, turns in systems.items()}
    rows = {}
    for title, names in list_rows(dict.fromkeys(turn.recording for turn in reference)).items():
        scores = {
            name: join_scores([score[recording] for recording in names]) for name, score in whole.items()
        }
        first, *others = scores
        rows[title] = {
            "recordings": len(names),
            "systems": {
                name: score.to_dict() | {"right_number": count_right(score)} for name, score in scores.items()
            },
            "comparisons": {
                name: compare_turns(scores[first], scores[name], (first, name)).to_dict() for name in others
            },
        }
    return dict(round_figures(rows))


def format_table(rows: dict[str, Any]) -> list[str]:
    """Format the table of README.md: DER of each system, and recordings with the right number of speakers."""
    names = list(rows["all"]["systems"])
    lines = [f"| | meetings | {' | '.join(f'{name} DER %, speakers right' for name in names)} |"]
    lines.append("|---" * (2 + len(names)) + "|")
    for title, row in rows.items():
        cells = [title, str(row["recordings"])]
        for name in names:
            found = row["systems"][name]
            cells.append(f"{100 * found['error_rate']:.1f}, {found['right_number']}")
            if name in row["comparisons"]:
                interval = row["comparisons"][name]["bootstrap"]["interval"]
                cells[-1] += " ({low:+.1f} to {high:+.1f})".format(
                    **{k: 100 * v for k, v in interval.items()}
                )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("systems", nargs="+", help="NAME=RTTM; the first is compared with the others")
    parser.add_argument(
        "--about", type=json.loads, default={}, help="JSON with details of the runs of the systems"
    )
    args = parser.parse_args()
    paths = {"reference": args.reference} | dict(own.split("=", 1) for own in args.systems)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    stem = args.output_dir / args.reference.stem
    hypotheses = Path(f"{stem}.rttm.json.gz")
    with gzip.GzipFile(hypotheses, "wb", mtime=0) as file:
        file.write(json.dumps({name: format_rttm(read_rttm(path)) for name, path in paths.items()}).encode())
    rows = {f"{collar:g}": score_rows(hypotheses, collar) for collar in COLLARS}
    names = [args.reference, args.output_dir.name, *args.systems]
    command = " ".join(["python tools/score_meetings.py", *map(str, names)])
    record = {"command": command, "commit": find_commit(), "machine": describe_machine(), **args.about}
    record |= {"overlap": "scored", "collars": rows}
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    for collar, own in rows.items():
        print("\n".join(["", f"collar {collar} s", *format_table(own)]))


if __name__ == "__main__":
    main()
