"""`asr manifest pack` and `asr manifest index`: audio in tar shards."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from asr.cli import AudioProgress, add_engine, find_pool, whole_number
from asr.errors import UserError, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asr.data.manifest import Utterance
    from asr.scale.ray_pool import PoolOptions, Row
    from asr.shards.packing import Engine, PackReport, Report, ShardPlan, Write
    from asr.shards.shards import ShardInfo

logger = logging.getLogger(__name__)

MAX_FAILURES_SHOWN = 20


def add_pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", metavar="MANIFEST", help="utterances as JSON Lines")
    parser.add_argument("folder", metavar="FOLDER", help="the shards go here; a second run goes on")
    parser.add_argument(
        "--encoding",
        choices=("flac", "opus", "copy"),
        default="flac",
        help="flac: 16 bits; opus: 24 kbit/s; copy: whole files as they are, parts as flac (default: flac)",
    )
    parser.add_argument("--hours", metavar="H", type=float, default=8.0, help="of a shard (default: 8)")
    parser.add_argument(
        "--jobs", metavar="N", type=whole_number(1), help="processes of this machine (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order, which is random (default: 0)")
    add_engine(parser, "a shard at a time")


def pack_manifest(args: argparse.Namespace) -> int:
    from pathlib import Path

    from asr.data.manifest import Manifest
    from asr.shards.packing import PackSettings, pack, write_here, write_in_processes

    if not 0 < args.hours < 10_000:
        raise UserError(f"--hours {args.hours:g}: expected hours of audio in a shard, more than 0; try 8")
    pool = find_pool(args)
    if pool is not None and args.jobs is not None:
        raise UserError(f"--jobs {args.jobs} is without --engine ray, whose processes --workers counts")
    engine = write_here if args.jobs is None else write_in_processes(args.jobs)
    if pool is not None:
        engine = _pack_on_ray(pool)
    manifest = Manifest.open(args.manifest)
    settings = PackSettings(args.encoding, args.hours, args.seed)
    with AudioProgress(float(manifest.durations.sum())) as progress:
        done = pack(manifest, Path(args.folder), settings, engine=engine, report=progress.advance)
    return _report_shards(args.folder, done)


def _pack_on_ray(options: PoolOptions) -> Engine:
    """Have shards written by a pool of workers; what kills its worker is left out of its shard."""

    def write_all(
        plans: Sequence[ShardPlan], write: Write, report: Report
    ) -> Iterator[tuple[int, ShardInfo]]:
        from asr.scale.ray_pool import RayPool
        from asr.shards.shards import Failure

        def work(planned: Sequence[tuple[int, Utterance]]) -> list[Row]:
            info = write(planned[0][0], [utterance for _, utterance in planned], lambda seconds: None)
            return [{"shard": info}] * len(planned)

        if not plans:
            return
        with RayPool[tuple[int, "Utterance"]](options, uses_gpus=False) as pool:
            logger.info("%s of %s", plural(len(plans), "shard"), plural(pool.num_workers, "worker"))
            for index, rows in pool.run(plans, lambda threads: work):
                plan = plans[index]
                infos = [row["shard"] for row in rows if "shard" in row]
                if any(info != infos[0] for info in infos):
                    raise UserError(
                        f"shard {plan.number} ends its worker each time, though no single file does; is "
                        "memory short? Give fewer --workers, or less --hours with another folder"
                    )
                info = infos[0] if infos else write(plan.number, [], lambda seconds: None)
                killed = [
                    Failure(id=item.id, message=row["error"])
                    for (_, item), row in zip(plan, rows, strict=True)
                    if "error" in row
                ]
                yield plan.number, info.model_copy(update={"failed": (*info.failed, *killed)})
                report(plan.seconds)

    return write_all


def add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="of .tar files, here or up to two folders below")


def index_folder(args: argparse.Namespace) -> int:
    from pathlib import Path

    from tqdm import tqdm

    from asr.shards.foreign_shards import index_folder as index

    with tqdm(desc=args.folder, unit="B", unit_scale=True, disable=None) as bar:
        return _report_shards(args.folder, index(Path(args.folder), bar.update))


def _report_shards(folder: str, done: PackReport) -> int:
    """Print what is there, and what could not be packed."""
    count = sum(shard.utterances for shard in done.shards)
    hours = sum(shard.seconds for shard in done.shards) / 3600
    kept = f", {done.kept} of them from before" if done.kept else ""
    print(f"{folder}: {count:,} utterances, {hours:.2f} hours in {len(done.shards)} shards{kept}")
    failures = done.failures
    for failure in failures[:MAX_FAILURES_SHOWN]:
        logger.error("%s: %s", failure.id, failure.message)
    if failures:
        logger.error("%d utterances are left out; index.jsonl of the folder names all", len(failures))
    return 1 if failures else 0
