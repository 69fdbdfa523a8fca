"""`asr score REF HYP [HYP ...]`: error rates with intervals, the errors, and which system is better."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from asr.cli import whole_number
from asr.data.columns import read_seconds
from asr.data.text_lines import open_lines
from asr.errors import UserError
from asr.scoring.options import RENAMED, Align, Metric, Normalization

if TYPE_CHECKING:
    from asr.scoring.page import Report
    from asr.scoring.result import Score
    from asr.scoring.scored_files import ScoredFile
    from asr.transcripts.readers import TranscriptFile

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Files are trn, stm, ctm, JSON Lines, TSV or CSV with a header, Kaldi text (or a folder)
    or plain text with one utterance per line. The format is recognized by the content, or set by a prefix as
    in kaldi:hyp.txt. Missing texts and other problems are reported on standard error."""
    add = parser.add_argument
    text = "reference texts; - for standard input; A,B,C for several files of correct texts"
    add("reference", metavar="REF", help=text)
    text = """texts of a system: a file, or a field of REF's records; NAME=FILE sets the name of the system"""
    add("hypotheses", metavar="HYP", nargs="+", help=text)
    text = "field of REF, such as speaker: also print a table for each of its values; may be repeated"
    add("--by", metavar="FIELD", action="append", default=[], help=text)
    text = """normalize texts first: basic removes case, punctuation and [tags]; english also unifies numbers,
    contractions and spelling (default: none)"""
    add("--normalize", choices=get_args(Normalization), default="none", help=text)
    text = """wer or cer: word or character error rate; cpwer, tcpwer (words match only near in time) or
    orcwer (any speaker may say an utterance) for meetings; der for RTTM files (default: wer; der for RTTM)"""
    add("--metric", choices=(*get_args(Metric), "der"), help=text)
    text = """what a word error rate counts; mixed: characters of scripts without spaces, words of the others
    (default: words)"""
    add("--unit", choices=("words", "mixed"), type=_refuse_renamed, default="words", help=text)
    text = """levenshtein: fewest errors (default); sclite: as NIST sclite counts, without options or with -D
    (words in brackets may be missing), -F (ab- is any word that begins so) or both"""
    add("--align", choices=get_args(Align), type=_refuse_renamed, default="levenshtein", help=text)
    text = "global mapping file whose rules rewrite both sides first, as in NIST hubscr.pl"
    add("--glm", metavar="FILE", help=text)
    text = "number of confusions and worst utterances to list (default: 10; for several systems 0)"
    add("--show", type=whole_number(0), metavar="N", help=text)
    add("--bleu", action="store_true", help="also print BLEU (needs sacrebleu)")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    add("--html", metavar="FILE", help="also write a report with all alignments as one HTML file")
    group = parser.add_argument_group("Speaker turns: REF and HYP are RTTM files")
    text = "file with the parts of recordings to score (default: REF's recordings as a whole)"
    group.add_argument("--uem", metavar="FILE", help=text)
    text = """seconds around each start and end of a reference turn that are not scored (default: 0); with
    --metric tcpwer, by which the times of words may differ (default: 5)"""
    group.add_argument("--collar", metavar="SECONDS", help=text)
    text = "do not score where several reference speakers talk"
    group.add_argument("--skip-overlap", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    from asr.scoring.counting import describe_choice
    from asr.scoring.page import Report, write_report
    from asr.scoring.scored_files import score_systems
    from asr.scoring.significance import compare_scores

    if _is_rttm(args.reference):
        return _score_turns(args)
    if args.uem or args.skip_overlap or args.metric == "der":
        raise UserError(f"{args.reference}: not RTTM, which --metric der, --uem and --skip-overlap need")
    metric = args.metric or "wer"
    if metric == "cer" and args.unit == "mixed":
        raise UserError("--metric cer counts characters; leave out --unit mixed")
    unit = "characters" if metric == "cer" else args.unit
    settings = {"metric": metric, "unit": unit, "normalize": args.normalize, "align": args.align}
    if metric == "tcpwer":
        settings["collar"] = read_seconds("--collar", 5 if args.collar is None else args.collar)
    elif args.collar is not None:
        raise UserError("--collar: expected RTTM files, or --metric tcpwer")
    if args.glm is not None:
        settings["glm"] = args.glm
    parts = args.reference.split(",")
    first, *others = [args.reference] if os.path.exists(args.reference) else parts
    reference, systems, notes = score_systems(first, args.hypotheses, more_references=others, **settings)
    if (count := systems[0].score.num_references) > 1:
        settings["references"] = describe_choice(count)
    for note in notes:
        logger.warning("%s", note)
    comparisons = [
        compare_scores(first.score, second.score, (first.name, second.name))
        for first, second in itertools.combinations(systems, 2)
    ]
    by = {field: _score_groups(field, reference, systems) for field in args.by}
    report = Report(reference, tuple(systems), tuple(comparisons), tuple(notes), settings, by)
    # Write the report before printing, because a reader such as `head` may close standard output.
    if args.html:
        write_report(args.html, report)
    show = args.show if args.show is not None else 10 if len(systems) == 1 else 0
    if args.json:
        record = _build_record(report, show, args.bleu)
        print(json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False))
    else:
        _print_tables(report, show, args.bleu)
    return 0


def _refuse_renamed(text: str) -> str:
    if text == "characters" or text in RENAMED:
        raise argparse.ArgumentTypeError(f"{text} is now --{RENAMED.get(text, 'metric cer')}")
    return text


def _is_rttm(path: str) -> bool:
    """Check the first line of a file, but not of a pipe, which cannot be read twice."""
    if not os.path.isfile(path):
        return False
    with open_lines(path) as lines:
        line = next((line for _, line in lines.numbered if line.strip() and not line.startswith(";")), "")
    return line.startswith(("SPEAKER ", "SPKR-INFO ")) and "<NA>" in line


def _score_turns(args: argparse.Namespace) -> int:
    from asr.speakers.turn_scores import report_turns

    is_of_words = args.by or args.bleu or args.html or args.glm or args.align != "levenshtein"
    if is_of_words or args.metric not in (None, "der"):
        allowed = "--metric der, --uem, --collar, --skip-overlap or --json"
        raise UserError(f"{args.reference}: RTTM has no words. Expected {allowed}.")
    collar = read_seconds("--collar", 0 if args.collar is None else args.collar)
    text, record = report_turns(args.reference, args.hypotheses, args.uem, collar, args.skip_overlap)
    for note in record["notes"]:
        logger.warning("%s", note)
    print(json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False) if args.json else text)
    return 0


def _score_groups(
    field: str, reference: TranscriptFile, systems: Sequence[ScoredFile]
) -> list[dict[str, Score]]:
    """Score each value of a field for each system."""
    entries = [reference.entries[id] for id in systems[0].score.ids]
    values = [entry.fields.get(field) or None for entry in entries]
    if field in ("speaker", "channel", "recording"):
        values = [value or getattr(entry, field) for value, entry in zip(values, entries, strict=True)]
    if field == "speaker" and reference.format == "trn":
        # NIST's IDs start with the speaker: (fcaw-an406) (fcaw_an406)
        named = (re.match(r"([^-_]+)[-_]", id) for id in systems[0].score.ids)
        values = [value or (name and name[1]) for value, name in zip(values, named, strict=True)]
    if all(value is None for value in values):
        known = ["speaker"] if any(entry.speaker for entry in entries) else []
        known += sorted({name for entry in entries for name in entry.fields})
        has = f"it has {', '.join(known)}" if known else "its utterances have no field but id and text"
        raise UserError(f"--by {field}: {reference.path} has no such field; {has}")
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
            print(f"\n{head}by {field}")
            print(format_table(groups[number], field))
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
    """Build the output of --json. Rates are fractions; null means infinite."""
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
