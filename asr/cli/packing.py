"""`asr manifest pack` and `asr manifest index`: audio in tar shards."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr.data.packing import PackReport

logger = logging.getLogger(__name__)

MAX_FAILURES_SHOWN = 20


def add_pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", metavar="MANIFEST", help="utterances as JSON Lines")
    parser.add_argument("folder", metavar="FOLDER", help="the shards go here; a second run goes on")
    parser.add_argument(
        "--encoding",
        choices=("flac", "opus", "copy"),
        default="flac",
        help="flac: 16 bits; opus: 24 kbit/s; copy: whole files as they are, parts of files as flac "
        "(default: flac)",
    )
    parser.add_argument(
        "--layout",
        choices=("webdataset", "shar"),
        default="webdataset",
        help="who else is to read them: webdataset, or lhotse as Shar (default: webdataset)",
    )
    parser.add_argument(
        "--hours", metavar="H", type=float, default=8.0, help="of audio in a shard (default: 8)"
    )
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the order, which is random (default: 0)")


def pack_manifest(args: argparse.Namespace) -> int:
    from pathlib import Path

    from asr.data.manifest import Manifest
    from asr.data.packing import PackSettings, pack
    from asr.errors import UserError
    from asr.progress import AudioProgress

    if not 0 < args.hours < 10_000:
        raise UserError(f"--hours {args.hours:g}: expected hours of audio in a shard, more than 0; try 8")
    if args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}: expected 1 process or more")
    manifest = Manifest.open(args.manifest)
    settings = PackSettings(args.encoding, args.layout, args.hours, args.seed)
    with AudioProgress(float(manifest.durations.sum())) as progress:
        done = pack(manifest, Path(args.folder), settings, jobs=args.jobs, report=progress.advance)
    return _report_shards(args.folder, done)


def add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="of .tar files, here or up to two folders below")


def index_folder(args: argparse.Namespace) -> int:
    from pathlib import Path

    from tqdm import tqdm

    from asr.data.foreign_shards import index_folder as index

    with tqdm(desc=args.folder, unit="B", unit_scale=True, disable=None) as bar:
        done = index(Path(args.folder), bar.update)
    return _report_shards(args.folder, done)


def _report_shards(folder: str, done: PackReport) -> int:
    """Print what is there, and what could not be packed."""
    count, seconds = (
        sum(values) for values in zip(*((s.utterances, s.seconds) for s in done.shards), strict=True)
    )
    kept = f", {done.kept} of them from before" if done.kept else ""
    print(f"{folder}: {count:,} utterances, {seconds / 3600:.2f} hours in {len(done.shards)} shards{kept}")
    failures = done.failures
    for failure in failures[:MAX_FAILURES_SHOWN]:
        logger.error("%s: %s", failure.id, failure.message)
    if failures:
        logger.error("%d utterances are left out; index.jsonl of the folder names all", len(failures))
    return 1 if failures else 0
