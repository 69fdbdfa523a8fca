"""`asr score REF HYP [HYP ...]`: error rates with intervals, the errors, and which system is better."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asr.cli import whole_number
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.scoring.page import Report
    from asr.scoring.result import Score
    from asr.scoring.scored_files import ScoredFile
    from asr.transcripts.readers import TranscriptFile

logger = logging.getLogger(__name__)

# As in asr.scoring.nist.sclite_formats, which --help must not import.
FORMATS = ("pra", "dtl", "sgml")
ALIGNMENTS: dict[str, dict[str, Any]] = {
    "jiwer": {"align": "jiwer"},
    "sclite": {"align": "sclite"},
    "sclite-D": {"align": "sclite", "has_optional_words": True},
    "sclite-F": {"align": "sclite", "has_fragments": True},
    "sclite-FD": {"align": "sclite", "has_fragments": True, "has_optional_words": True},
    "speakers": {"align": "jiwer", "speakers_at_once": True},
}
LENGTHS = (0, 5, 10, 20, 40)  # the last lengths of the groups of --by length; then all that are longer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Files are trn, stm, ctm, JSON Lines or {id: text}, TSV or CSV with a header, srt, vtt, Kaldi text "
        "(or its folder), or plain text with an utterance a line; which one is found by content, "
        "or named as in kaldi:hyp.txt. "
        "What is missing or odd is reported on standard error."
    )
    add = parser.add_argument
    add(
        "reference",
        metavar="REF",
        help="the reference texts; - for standard input; several files A,B,C where several texts are right",
    )
    add(
        "hypotheses",
        metavar="HYP",
        nargs="+",
        help="the texts of a system: a file, or a field of REF's records that holds them",
    )
    add(
        "--by",
        metavar="FIELD",
        action="append",
        default=[],
        help="also a table for each speaker, length, or value of any other field of REF; may be repeated",
    )
    add(
        "--normalize",
        choices=("none", "basic", "english"),
        default="none",
        help="normalise texts first: basic removes case, punctuation and [tags]; english also unifies "
        "numbers, contractions and spelling (default: none)",
    )
    add("--unit", choices=("words", "characters", "mixed"), default="words", help="default: words")
    add(
        "--align",
        choices=ALIGNMENTS,
        default="jiwer",
        help="jiwer: fewest errors (default); sclite: as NIST sclite counts, without options or with -D "
        "(words in brackets may be missing), -F (ab- is any word that begins so) or both; speakers: several "
        "at once, assigned with the fewest errors (cpWER)",
    )
    add(
        "--glm",
        metavar="FILE",
        help="a global mapping file, whose rules rewrite both sides first, as NIST hubscr.pl does",
    )
    add(
        "--show",
        type=whole_number(0),
        default=10,
        metavar="N",
        help="confusions and worst utterances to list (default: 10)",
    )
    add("--bleu", action="store_true", help="also BLEU, by sacrebleu if it is installed")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    add("--html", metavar="FILE", help="also write a report with all alignments, in one file")
    add(
        "--write",
        metavar="PATH",
        action="append",
        default=[],
        help="also write what sclite writes, into PATH.pra, PATH.dtl or PATH.sgml; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    from asr.scoring.counting import describe_choice
    from asr.scoring.page import Report
    from asr.scoring.scored_files import score_files
    from asr.scoring.significance import compare

    if wrong := [path for path in args.write if path.rpartition(".")[2] not in FORMATS]:
        raise UserError(f"--write {wrong[0]}: expected a name that ends in .{', .'.join(FORMATS)}")
    settings = {"unit": args.unit, "normalize": args.normalize, **ALIGNMENTS[args.align]}
    if args.glm is not None:
        settings["glm"] = args.glm
    first, *others = _split_paths(args.reference)
    reference, systems, notes = score_files(first, args.hypotheses, more_references=others, **settings)
    if (count := systems[0].score.num_references) > 1:
        settings["references"] = describe_choice(count)
    for note in notes:
        logger.warning("%s", note)
    if len(systems) > 1 and any("{}" not in path for path in args.write):
        raise UserError("several systems, one path to write: put {} where the name of the system belongs")
    comparisons = [
        compare(first.score, second.score, (first.name, second.name))
        for first, second in itertools.combinations(systems, 2)
    ]
    by = {field: _score_groups(field, reference, systems) for field in args.by}
    report = Report(reference, tuple(systems), tuple(comparisons), tuple(notes), settings, by)
    # Before anything is printed: a reader such as `head` may close standard output at any line.
    _write_files(report, args.write, args.html)
    if args.json:
        record = _build_record(report, args.show, args.bleu)
        print(json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False))
    else:
        _print_tables(report, args.show, args.bleu)
    return 0


def _split_paths(text: str) -> list[str]:
    """The files of A,B,C, unless that is the name of one, or one of them is not there."""
    from asr.transcripts.readers import split_format

    def is_there(path: str) -> bool:
        return path == "-" or os.path.exists(split_format(path)[1])

    parts = text.split(",")
    return parts if not is_there(text) and all(map(is_there, parts)) else [text]


def _score_groups(
    field: str, reference: TranscriptFile, systems: Sequence[ScoredFile]
) -> list[dict[str, Score]]:
    """Score each value of a field, for each system: lengths from short to long, all else by name."""
    if field == "length":
        names = [
            "0",
            *(f"{a + 1}-{b}" for a, b in itertools.pairwise(LENGTHS)),
            f"{LENGTHS[-1] + 1} and more",
        ]
        groups = [
            system.score.group([sum(length > last for last in LENGTHS) for length in system.score.lengths_P])
            for system in systems
        ]
        return [{names[place]: own[place] for place in sorted(own)} for own in groups]
    entries = [reference.entries[id] for id in systems[0].score.ids]
    values = [entry.fields.get(field) or None for entry in entries]
    if field in ("speaker", "channel", "recording"):
        values = [value or getattr(entry, field) for value, entry in zip(values, entries, strict=True)]
    if all(value is None for value in values):
        known = ["length", *(["speaker"] if any(entry.speaker for entry in entries) else [])]
        known += sorted({name for entry in entries for name in entry.fields})
        raise UserError(f"--by {field}: {reference.path} has no such field; it has {', '.join(known)}")
    keys = ["(unknown)" if value is None else value for value in values]
    return [dict(sorted(system.score.group(keys).items())) for system in systems]


def _print_tables(report: Report, show: int, with_bleu: bool) -> None:
    from asr.scoring.result import format_table

    reference, systems, first = report.reference, report.systems, report.systems[0].score
    files = ", ".join(f"{system.path} ({system.format})" for system in systems)
    print(f"{reference.path} ({reference.format}) against {files}")
    settings = [f"{name}: {value}" for name, value in report.settings.items()]
    settings += [] if first.interval is None else [f"intervals by {first.resampled_by}"]
    print(", ".join(settings) + "\n")
    print(format_table({system.name: system.score for system in systems}, "system"))
    if with_bleu:
        print("\nBLEU " + ", ".join(f"{system.name} {system.score.bleu():.2f}" for system in systems))
    if report.comparisons:
        print("", *report.comparisons, sep="\n")
    for number, system in enumerate(systems):
        head = f"{system.name}: " if len(systems) > 1 else ""
        for field, groups in report.by.items():
            scores = groups[number]
            print(f"\n{head}by {field}")
            if len(scores) == 1:
                print(f"all are {next(iter(scores))}")
            print(format_table(scores, field))
        if show:
            _print_errors(head, system.score, show)


def _print_errors(head: str, score: Score, limit: int) -> None:
    from asr.scoring.result import align_lines, most_common

    for name, counter in score.error_counts.items():
        if counter:
            print(f"\n{head}{name}, {min(limit, len(counter)):,} of {len(counter):,}")
            for what, count in most_common(counter, limit):
                print(f"{count:7,}  {what if isinstance(what, str) else ' -> '.join(what)}")
    if worst := score.worst(limit):
        print(f"\n{head}utterances with most errors, {len(worst):,} of {score.sentence_errors:,}")
    for utterance in worst:
        counts = utterance.counts
        speaker = f", {utterance.speaker}" if utterance.speaker else ""
        missing = ", no hypothesis" if utterance.is_missing else ""
        print(f"\n{utterance.id}{speaker}: {counts.errors:,} errors in {counts.reference_length:,}{missing}")
        for line in align_lines(utterance.operations):
            print(f"  {line.rstrip()}")


def _build_record(report: Report, show: int, with_bleu: bool) -> dict[str, Any]:
    """Build what --json prints. Rates are parts of 1; null stands for an infinite one."""
    systems = []
    for number, system in enumerate(report.systems):
        record: dict[str, Any] = {"name": system.name, "path": system.path, "format": system.format}
        record |= system.score.to_dict(show) | ({"bleu": system.score.bleu()} if with_bleu else {})
        record["by"] = {
            field: {value: score.to_dict() for value, score in groups[number].items()}
            for field, groups in report.by.items()
        }
        systems.append(record)
    return {
        "reference": {"path": report.reference.path, "format": report.reference.format},
        **report.settings,
        "notes": list(report.notes),
        "systems": systems,
        "comparisons": [comparison.to_dict() for comparison in report.comparisons],
    }


def _write_files(report: Report, paths: Sequence[str], html: str | None) -> None:
    from asr.files import replace_file
    from asr.scoring.alignments import load_nist
    from asr.scoring.page import write_report

    for system, path in itertools.product(report.systems, paths):
        name = path.replace("{}", system.name.replace(os.sep, "-"))
        with replace_file(name) as file:
            write = load_nist().SCORE_FORMATS[path.rpartition(".")[2]]
            file.write(write(system.score, system.name).encode())
        logger.info("wrote %s", name)
    if html:
        by_length = _score_groups("length", report.reference, report.systems)
        write_report(html, replace(report, by={**report.by, "length": by_length}))
        logger.info("wrote %s", html)
