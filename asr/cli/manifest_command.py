"""`asr manifest ...`: check, count, split, convert or pack lists of utterances."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from asr.cli import AudioProgress, refuse_to_overwrite
from asr.data.columns import SOURCES, describe_columns
from asr.errors import UserError

if TYPE_CHECKING:
    from asr.data.manifest import Utterance

logger = logging.getLogger(__name__)

MAX_LEFT_OUT_SHOWN = 10
TOP_NAMES = 10
JSON_LINES = "utterances as JSON Lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, add, run_action, help_text in (
        ("validate", _add_validate, _validate, "list what is wrong; exit status 1 if anything is"),
        ("stats", _add_stats, _stats, "count utterances, hours, speakers and words"),
        ("split", _add_split, _split, "split a manifest, by default so that no speaker is in two parts"),
        ("convert", _add_convert, _convert, "from the formats of other toolkits and data sets"),
        ("pack", _add_pack, _pack, "write the audio into tar shards, to train from anywhere"),
    ):
        description = f"{help_text[0].upper()}{help_text[1:]}."
        action = actions.add_parser(name, help=help_text, description=description)
        add(action)
        action.set_defaults(run_action=run_action)


def run(args: argparse.Namespace) -> int:
    return int(args.run_action(args))


# --- validate and stats -------------------------------------------------------------------------


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", metavar="MANIFEST", help=f"{JSON_LINES}, or a folder of shards")
    parser.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json that must cover all texts")
    parser.add_argument("--text-rules", metavar="RULE", nargs="+", help="text.training, if not the default")
    audio = parser.add_mutually_exclusive_group()
    audio.add_argument("--no-audio", action="store_true", help="do not check the audio files")
    audio.add_argument("--decode", action="store_true", help="decode all audio, not only the headers")


_EXTENT = {
    "no": "; audio was not checked",
    "header": "; of the audio, only headers were read: --decode also finds what is silent, cut or damaged",
    "decode": "",
}


def _validate(args: argparse.Namespace) -> int:
    from collections import Counter

    from asr.data.manifest_checks import CheckAudio, count_records, validate
    from asr.text.normalization import SAFE_RULES, TextConfig
    from asr.text.tokenizer import Tokenizer

    if args.text_rules is not None and args.tokenizer is None:
        raise UserError("--text-rules need a tokenizer; give --tokenizer as well")
    rules = TextConfig(training=tuple(args.text_rules or SAFE_RULES)).training
    extent: CheckAudio = "no" if args.no_audio else "decode" if args.decode else "header"
    found = validate(
        args.manifest,
        tokenizer=Tokenizer.load(args.tokenizer) if args.tokenizer else None,
        rules=rules,
        check_audio=extent,
        progress=True,
    )
    problems = sorted(found, key=lambda problem: problem.line)
    counts = dict(Counter(problem.kind for problem in problems).most_common())
    total = count_records(args.manifest)
    for kind, count in counts.items():
        print(f"{kind:20} {count:8,}")
    for problem in problems:
        name = "" if problem.id is None else f"{problem.id}: "
        print(f"{args.manifest}:{problem.line}: {name}{problem.kind}: {problem.message}")
    broken = len({problem.line for problem in problems})
    print(f"{total:,} utterances, {broken:,} with problems{_EXTENT[extent]}")
    return 1 if problems else 0


def _add_stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifests", metavar="MANIFEST", nargs="+", help=f"{JSON_LINES}, or shards")


def _stats(args: argparse.Namespace) -> int:
    from asr.data.manifest_checks import compute_statistics
    from asr.data.manifest_readers import read_data

    for path in args.manifests:
        found = compute_statistics(_with_progress(read_data(path), path))
        print(path)
        print(f"  utterances  {found.utterances:,} ({found.without_text:,} without a text)")
        print(f"  hours       {found.hours:.2f}")
        print(f"  words       {found.words:,}")
        print("  seconds     " + ", ".join(f"{name} {value:.2f}" for name, value in found.seconds.items()))
        for title, hours in (("speakers", found.hours_by_speaker), ("languages", found.hours_by_language)):
            print(f"  hours by {title}, {len(hours):,} in all")
            for name, value in list(hours.items())[:TOP_NAMES]:
                print(f"    {name:24} {value:10.3f}")
        print()
    return 0


# --- split --------------------------------------------------------------------------------------


def _add_split(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", metavar="MANIFEST", help=JSON_LINES)
    text = "a fraction of the hours (dev=0.1), a number of speakers (dev=20), or train=rest"
    parser.add_argument("--parts", metavar="NAME=SHARE", nargs="+", required=True, help=text)
    parser.add_argument("--output-dir", metavar="DIR", required=True, help="folder for NAME.jsonl")
    text = "speaker or utterance: what stays together and what a number counts (default: speaker if known)"
    parser.add_argument("--by", metavar="FIELD", choices=("speaker", "utterance"), help=text)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the split (default: 0)")


def _split(args: argparse.Namespace) -> int:
    from asr.data.subsets import choose_unit, parse_share, split_manifest

    shares: dict[str, float | int | str] = {}
    for part in args.parts:
        name, equals, share = part.partition("=")
        if not equals or name in shares:
            raise UserError(f"--parts {part}: expected NAME=SHARE, each name once")
        shares[name] = parse_share(share)
    by = args.by or choose_unit(args.manifest, shares)
    logger.info("%s: split by %s", args.manifest, by)
    for name, count in split_manifest(args.manifest, shares, args.output_dir, by=by, seed=args.seed).items():
        print(f"{args.output_dir}/{name}.jsonl: {count:,} utterances")
    return 0


# --- convert and pack ----------------------------------------------------------------------------


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Columns of tables have these names, others are kept as extras. {describe_columns()}."
    parser.add_argument("source", metavar="SOURCE", help="file or folder to read")
    parser.add_argument("target", metavar="OUTPUT", help="manifest to write, named .jsonl")
    text = "input format (default: recognized by the suffix and a record)"
    parser.add_argument("--from", dest="kind", choices=SOURCES, help=text)
    parser.add_argument("--text-column", metavar="NAME", help="column or JSON field with the texts")
    text = r"take the speaker from the audio path: its folder, or a pattern's group such as /(spk\d+)_"
    parser.add_argument("--speaker-from", metavar="folder|PATTERN", help=text)


def _convert(args: argparse.Namespace) -> int:
    from asr.data.manifest import write_manifest
    from asr.data.subsets import name_speakers
    from asr.formats.foreign_manifests import guess_source_kind, read_utterances

    if not args.target.endswith(".jsonl"):
        raise UserError(f"{args.target}: expected the name of a manifest to write, such as train.jsonl")
    kind = args.kind or guess_source_kind(args.source)
    logger.info("%s is read as %s", args.source, kind)
    refuse_to_overwrite(args.source, args.target)
    left_out: list[Exception] = []
    utterances = read_utterances(args.source, kind, text_column=args.text_column, leave_out=left_out.append)
    if args.speaker_from is not None:
        utterances = name_speakers(utterances, args.speaker_from)
    count = write_manifest(args.target, _with_progress(utterances, args.source))
    print(f"{args.target}: {count:,} utterances")
    if not count and not left_out:
        logger.warning("%s: has no utterances; is the path right?", args.source)
    return _report_left_out(args.source, left_out)


def _add_pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", metavar="MANIFEST", help=JSON_LINES)
    parser.add_argument("folder", metavar="OUTPUT", help="folder for the shards; a second run continues")
    text = "flac: 16 bits; copy: keep whole files as they are, parts as flac (default: flac)"
    parser.add_argument("--encoding", choices=("flac", "copy"), default="flac", help=text)
    text = "hours of audio per shard (default: 8)"
    parser.add_argument("--shard-hours", metavar="H", type=float, default=8.0, help=text)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random order (default: 0)")


def _pack(args: argparse.Namespace) -> int:
    from pathlib import Path

    from asr.data.manifest import Manifest
    from asr.shards.packing import PackSettings, pack

    if not 0 < args.shard_hours < 10_000:
        raise UserError(f"--shard-hours {args.shard_hours:g}: expected more than 0; try 8")
    manifest, settings = (
        Manifest.open(args.manifest),
        PackSettings(args.encoding, args.shard_hours, args.seed),
    )
    with AudioProgress(float(manifest.durations.sum())) as progress:
        shards, kept = pack(manifest, Path(args.folder), settings, progress.advance)
    count = sum(shard.utterances for shard in shards)
    hours = sum(shard.seconds for shard in shards) / 3600
    before = f", {kept} of them from before" if kept else ""
    print(f"{args.folder}: {count:,} utterances, {hours:.2f} hours in {len(shards)} shards{before}")
    failures = [failure for shard in shards for failure in shard.failed]
    return _report_left_out(args.folder, [f"{failure.id}: {failure.message}" for failure in failures])


def _report_left_out(place: str, messages: Sequence[object]) -> int:
    """Name the first utterances that are left out; return the exit status."""
    for message in messages[:MAX_LEFT_OUT_SHOWN]:
        logger.warning("left out: %s", message)
    if messages:
        logger.error("%s: %d utterances are left out", place, len(messages))
    return 1 if messages else 0


def _with_progress(utterances: Iterable[Utterance], path: str) -> Iterator[Utterance]:
    from tqdm import tqdm

    return iter(tqdm(utterances, desc=path, unit=" utterances", disable=None))  # None: on a terminal only
