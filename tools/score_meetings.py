"""Score diarization systems on the meetings of recipes/conversations, by overlap, speakers and corpus.

python tools/score_meetings.py data/conversations/test.rttm results ours=ours.rttm senko=senko.rttm

Writes results/test.json, with the hypotheses in results/test.rttm.json.gz, and prints tables. The first
system is compared with each of the others on the same recordings, with overlaps scored. Of two more tables,
one leaves out overlaps, and one closes the pauses of the reference, as some systems do.
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
from asr.speakers.diarize import join_runs
from asr.speakers.turn_scores import TurnScore, compare_turns, score_turns
from asr.speakers.turns import Turn, format_rttm, read_rttm
from asr.system.checkpoint import find_commit

COLLARS = (0.0, 0.25)
VIEWS: dict[str, dict[str, Any]] = {  # with the last of the collars
    "overlap skipped": {"skip_overlap": True},
    "pauses to 2 s closed": {"closed_seconds": 2.0},
}


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


def close_pauses(turns: Iterable[Turn], seconds: float) -> list[Turn]:
    """Join the turns of each speaker with shorter pauses between them, as if these were speech."""
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for turn in turns:
        spans.setdefault((turn.recording, turn.speaker), []).append((turn.start, turn.end))
    return [
        Turn(recording, *span, speaker)
        for (recording, speaker), own in spans.items()
        for span in join_runs(sorted(own), seconds)
    ]


def score_rows(
    path: Path, collar: float, skip_overlap: bool = False, closed_seconds: float = 0.0
) -> dict[str, Any]:
    """Score each row of a hypothesis file, and compare the first system with each of the others."""
    systems = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in json.loads(gzip.decompress(path.read_bytes())).items():
            Path(folder, "turns.rttm").write_text(text)
            systems[name] = read_rttm(Path(folder, "turns.rttm"))
    reference = systems.pop("reference")
    reference = close_pauses(reference, closed_seconds) if closed_seconds else reference
    whole = {
        name: score_turns(reference, turns, collar=collar, skip_overlap=skip_overlap).split()
        for name, turns in systems.items()
    }
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
    views = {title: score_rows(hypotheses, COLLARS[-1], **own) for title, own in VIEWS.items()}
    record |= {"overlap": "scored", "collars": rows, "views": views}
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    for title, own in {**{f"collar {collar} s": own for collar, own in rows.items()}, **views}.items():
        print("\n".join(["", title, *format_table(own)]))


if __name__ == "__main__":
    main()
