"""`asr manifest pack`: the audio of a manifest in tar shards."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from asr.cli import AudioProgress, find_pool
from asr.data.manifest import Manifest, Utterance
from asr.errors import UserError, plural
from asr.scale.ray_pool import PoolOptions, RayPool, Row
from asr.shards.packing import Engine, PackSettings, Report, ShardPlan, Write, pack, write_here
from asr.shards.shards import Failure, ShardInfo

logger = logging.getLogger(__name__)

MAX_FAILURES_SHOWN = 20


def run(args: argparse.Namespace) -> int:
    if not 0 < args.hours < 10_000:
        raise UserError(f"--hours {args.hours:g}: expected hours of audio in a shard, more than 0; try 8")
    pool = find_pool(args)
    engine = write_here if pool is None else _pack_on_ray(pool)
    manifest = Manifest.open(args.manifest)
    settings = PackSettings(args.encoding, args.hours, args.seed)
    with AudioProgress(float(manifest.durations.sum())) as progress:
        shards, kept = pack(manifest, Path(args.folder), settings, engine=engine, report=progress.advance)
    count = sum(shard.utterances for shard in shards)
    hours = sum(shard.seconds for shard in shards) / 3600
    before = f", {kept} of them from before" if kept else ""
    print(f"{args.folder}: {count:,} utterances, {hours:.2f} hours in {len(shards)} shards{before}")
    failures = [failure for shard in shards for failure in shard.failed]
    for failure in failures[:MAX_FAILURES_SHOWN]:
        logger.error("%s: %s", failure.id, failure.message)
    if failures:
        logger.error("%d utterances are left out; index.jsonl of the folder names all", len(failures))
    return 1 if failures else 0


def _pack_on_ray(options: PoolOptions) -> Engine:
    """Have shards written by a pool of workers; what kills its worker is left out of its shard."""

    def write_all(
        plans: Sequence[ShardPlan], write: Write, report: Report
    ) -> Iterator[tuple[int, ShardInfo]]:
        def work(planned: Sequence[tuple[int, Utterance]]) -> list[Row]:
            info = write(planned[0][0], [utterance for _, utterance in planned], lambda seconds: None)
            return [{"shard": info}] * len(planned)

        if not plans:
            return
        with RayPool[tuple[int, Utterance]](options, uses_gpus=False) as pool:
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
