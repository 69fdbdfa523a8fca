"""Measure shards: memory and time to the first batch by corpus size; a remote address against the disk.

    python tools/bench_shards.py index --utterances 100000 1000000 10000000 --folder /big/disk/index
    python tools/bench_shards.py store FOLDER --address s3://bucket/corpus

The corpus of `index` has audio of 200 utterances, to which the rows of all shards point. Each size is
measured in its own process. `store` reads an epoch from the local folder and from the address in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import resource
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from asr.batches.builder import Inputs
from asr.data import read_data
from asr.features.front_end import FeaturesConfig, FrontEnd
from asr.files import hash_file
from asr.models.encoders import subsampled_lengths
from asr.shards.packing import add_member, encode_flac, write_folder_index
from asr.shards.shard_loader import ShardLoader, WindowStart
from asr.shards.shards import ShardFolder, ShardInfo
from asr.system.run_config import AugmentConfig, BatchConfig
from asr.text.normalization import TextConfig
from asr.text.tokenizer import Tokenizer, TokenizerConfig

ROWS = 9_000  # per shard: 16 hours with utterances of 6.5 s
NUM_FILES = 200
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "in", "old", "stone", "walls"]
RATE = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    index = actions.add_parser("index")
    index.add_argument("--utterances", type=int, nargs="+", default=[100_000, 1_000_000])
    index.add_argument("--folder", type=Path, required=True, help="folder of the corpora, 300 bytes per row")
    index.add_argument("--whole-epoch", action="store_true", help="plan all windows too, without audio")
    one = actions.add_parser("one")
    one.add_argument("folder", type=Path)
    one.add_argument("--whole-epoch", action="store_true")
    store = actions.add_parser("store")
    store.add_argument("folder", type=Path)
    store.add_argument("--address", required=True)
    store.add_argument("--rounds", type=int, default=3)
    store.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    {"index": bench_sizes, "one": bench_one, "store": bench_store}[arguments.action](arguments)


def bench_sizes(arguments: argparse.Namespace) -> None:
    for count in arguments.utterances:
        folder = arguments.folder / f"{count}"
        if not (folder / "index.jsonl").exists():
            write_corpus(folder, count)
        more = ["--whole-epoch"] if arguments.whole_epoch else []
        subprocess.run([sys.executable, __file__, "one", str(folder), *more], check=True)


def write_corpus(folder: Path, count: int) -> None:
    """Make shards with their own rows, which are all hard links to the same tar file."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    seconds = random.gamma(4.0, 1.6, NUM_FILES).clip(1, 20).round(2)
    with tarfile.open(folder / "audio.tar", "w") as tar:
        files = []
        for number, length in enumerate(seconds.tolist()):
            content = encode_flac(random.uniform(-0.3, 0.3, round(length * RATE)).astype(np.float32), RATE)
            text = " ".join(random.choice(WORDS, max(1, int(2.5 * length))))
            offset = add_member(tar, f"{number}.flac", content)
            files.append(
                f'"audio":"{number}.flac","duration":{length},"text":"{text}","offset":{offset},'
                f'"size":{len(content)}'
            )
    infos, digest = [], hash_file(folder / "audio.tar")
    for shard in range(-(-count // ROWS)):
        name = f"shard-{shard:06d}"
        os.link(folder / "audio.tar", folder / f"{name}.tar")
        numbers = random.integers(NUM_FILES, size=min(ROWS, count - shard * ROWS))
        rows = [
            f'{{"id":"speaker{row % 997:04d}-{shard:06d}-{row:06d}",{files[number]}}}'
            for row, number in enumerate(numbers.tolist())
        ]
        lines = "".join(f"{row}\n" for row in rows).encode()
        (folder / f"{name}.jsonl").write_bytes(lines)
        infos.append(
            ShardInfo(
                name=f"{name}.tar",
                index=f"{name}.jsonl",
                utterances=len(rows),
                seconds=float(seconds[numbers].sum()),
                longest=float(seconds[numbers].max()),
                size=(folder / "audio.tar").stat().st_size,
                sha256=digest,
                index_size=len(lines),
                index_sha256=hashlib.sha256(lines).hexdigest(),
                source="",
            )
        )
    write_folder_index(folder, infos, len(infos))


def build_loader(folder: str, workers: int) -> ShardLoader:
    tokenizer = Tokenizer.train(TokenizerConfig(), [" ".join(WORDS), "ZERO ONE TWO THREE FOUR FIVE SIX"])
    inputs = Inputs(
        FrontEnd(FeaturesConfig()), tokenizer, TextConfig(), AugmentConfig(speed=(0.9, 1.0, 1.1)),
        partial(subsampled_lengths, factor=4), has_ctc=False,
    )  # fmt: skip
    return ShardLoader([ShardFolder(folder)], inputs, BatchConfig(num_workers=workers), seed=1)


def peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def bench_one(arguments: argparse.Namespace) -> None:
    """Time opening, the first batch, resuming within an epoch, and optionally planning all of it."""
    found: dict[str, float] = {"before_MB": peak_megabytes()}
    with measured(found, "open"):
        loader = build_loader(str(arguments.folder), 0)
    found["utterances"] = sum(map(len, loader._folders))
    found["opened_MB"] = peak_megabytes()
    batches = loader.epoch_batches(0)
    with measured(found, "first_batch"):
        first = next(batches)
    batches.close()
    middle = len(loader._order(0)) // 2
    batches = loader.epoch_batches(0, 1_000_000, WindowStart(middle, 999_990))
    with measured(found, "resume"):
        resumed = next(batches)
    batches.close()
    assert first.ids != resumed.ids
    found["batch_MB"] = peak_megabytes()
    if arguments.whole_epoch:
        with measured(found, "epoch"):
            count, digest = count_planned(loader)
        found |= {"planned": count, "epoch_MB": peak_megabytes()}
        assert digest == sum_hashes(item.id for item in read_data(arguments.folder)), "lost or doubled"
    print(json.dumps({name: round(value, 2) for name, value in found.items()}), flush=True)


@contextlib.contextmanager
def measured(found: dict[str, float], name: str) -> Iterator[None]:
    """Measure wall-clock seconds, and CPU seconds, which other programs affect less."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    found[f"{name}_s"] = time.perf_counter() - clock
    found[f"{name}_cpu_s"] = time.process_time() - processor


def count_planned(loader: ShardLoader) -> tuple[int, int]:
    ids = (json.loads(row.line)["id"] for rows in loader._plan_epoch(0, WindowStart()) for row in rows)
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        for name in ids:
            count += 1
            yield name

    return (sum_hashes(counted()), count)[::-1]


def sum_hashes(names: Iterator[str]) -> int:
    """Hash the names regardless of their order; the hash changes if one is lost or repeated."""
    return sum(
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "big") for name in names
    )


def bench_store(arguments: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {"here": [], "there": []}
    expected = None
    for epoch in range(arguments.rounds):
        for name, place in (("here", str(arguments.folder)), ("there", arguments.address)):
            loader = build_loader(place, arguments.workers)
            started, seconds, ids = time.perf_counter(), 0.0, []
            for batch in loader.epoch_batches(epoch):
                seconds += batch.audio_seconds
                ids += [(batch.ids, float(batch.features_BTF.double().sum()), batch.skipped)]
            rates[name].append(seconds / (time.perf_counter() - started))
            if name == "here":
                expected = ids
            assert ids == expected, "not the same batches"
    shown = {name: [round(rate) for rate in values] for name, values in rates.items()}
    ratios = [there / here for here, there in zip(rates["here"], rates["there"], strict=True)]
    print(json.dumps({"seconds of audio a second": shown, "ratio": round(float(np.median(ratios)), 3)}))


if __name__ == "__main__":
    main()
