"""Named random streams, and the batches of an epoch, which depend only on seed, epoch, window and IDs."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr.errors import UserError
from asr.system.run_config import BatchConfig

logger = logging.getLogger(__name__)


def random_stream(*keys: str | int) -> np.random.Generator:
    """Return the random numbers for these keys, which are the same in every process and on every machine."""
    return np.random.Generator(np.random.PCG64(_hash("/".join(map(str, keys)), 16)))


def hash_names(names: Iterable[str]) -> np.ndarray:
    """Return a 64-bit hash of each name, for `choose`."""
    return np.fromiter((_hash(name, 8) for name in names), dtype=np.uint64)


def choose(hashes_N: np.ndarray, num_choices: int, *keys: str | int) -> np.ndarray:
    """Draw a number below `num_choices` for each name, from its hash and the keys."""
    mixed_N = hashes_N ^ np.uint64(_hash("/".join(map(str, keys)), 8))
    # The finalizer of SplitMix64, after which each bit depends on all others.
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_N ^= mixed_N >> np.uint64(31)
    return (mixed_N % np.uint64(num_choices)).astype(np.int64)


def _hash(text: str, num_bytes: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=num_bytes).digest(), "little")


# --- grouping into batches ----------------------------------------------------------------------


MAX_PADDING = 0.1  # share of a batch; the mean is about half of it. More would mix lengths better


@dataclass(frozen=True)
class ProcessShare:
    """One process's share of the global batches: rank r takes the r-th of every W consecutive batches."""

    rank: int = 0
    world_size: int = 1
    first_world_size: int | None = None
    """Number of processes when training started, if different: updates keep that many batches."""
    batches_per_update: int | None = None
    """The setting `train.batches_per_update`; None: one batch per process when training started."""

    @property
    def multiple(self) -> int:
        """The number of batches in an epoch is a multiple of this. With batches_per_update all batches are
        used, and in the last update some processes get empty ones."""
        return 1 if self.batches_per_update else self.update_size

    @property
    def update_size(self) -> int:
        """Number of batches in an update, across all processes."""
        return self.batches_per_update or self.first_world_size or self.world_size

    @property
    def own_size(self) -> int:
        """Largest number of batches that one process gets in an update."""
        return -(-self.update_size // self.world_size)

    def take(self, batches: Iterable[Any], start: int = 0) -> Iterator[Any]:
        """Yield this process's batches after the first `start`; all get equally many, some empty."""
        left = itertools.islice(batches, start, None)
        while update := list(itertools.islice(left, self.update_size)):
            num_missing = -len(update) % self.world_size
            update += [update[0][:0]] * num_missing
            yield from update[self.rank :: self.world_size]


ONE_PROCESS = ProcessShare()  # gets all batches


def plan_epoch(
    seconds_N: np.ndarray, config: BatchConfig, seed: int, epoch: int, world_size: int
) -> list[np.ndarray]:
    """Return the batches of all processes, as positions. Only their number depends on `world_size`."""
    groups = order_batches(seconds_N, config, seed, epoch)
    num_used = len(groups) - len(groups) % world_size
    if not num_used:
        raise too_few_batches(len(groups), world_size)
    return groups[:num_used]


def too_few_batches(count: int, world_size: int) -> UserError:
    return UserError(
        f"an epoch has {count} batches, fewer than the {world_size} processes; "
        "lower batches.max_seconds or batches.max_utterances, or use fewer processes"
    )


def order_batches(
    seconds_N: np.ndarray, config: BatchConfig, seed: int, epoch: int, window: int = 0
) -> list[np.ndarray]:
    """Return the batches of an epoch, or of one of its windows, in random order."""
    stream = random_stream(seed, epoch, "order", *([window] if window else []))
    groups = group_by_length(seconds_N, config, stream)
    return [groups[index] for index in stream.permutation(len(groups))]


def order_shards(counts: Sequence[int], window_shards: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the windows of an epoch, each an array of (source, shard) for shards that are shuffled together.

    `counts`: the number of shards in each source.
    """
    shards: list[tuple[int, int]] = []
    for source, count in enumerate(counts):
        order = random_stream(seed, "shards", source, epoch).permutation(count)
        shards += [(source, int(shard)) for shard in order]
    shuffled = np.array(shards, dtype=np.int64)[
        random_stream(seed, epoch, "windows").permutation(len(shards))
    ]
    # Windows of nearly equal size. Inside a window, shards keep their order, so that a single window with all
    # shards equals a manifest.
    windows = np.array_split(shuffled, -(-len(shards) // window_shards))
    return [window[np.lexsort((window[:, 1], window[:, 0]))] for window in windows]


def group_by_length(
    seconds_N: np.ndarray, config: BatchConfig, stream: np.random.Generator | None
) -> list[np.ndarray]:
    """Group utterances of similar length within the limits, from short to long.

    With a random stream, lengths are jittered before sorting, as far as MAX_PADDING allows, so that groups
    differ each time. An utterance over the limit is a group of its own.
    """
    keys_N = seconds_N
    if stream is not None:
        keys_N = seconds_N * (1 + MAX_PADDING * stream.uniform(-0.5, 0.5, len(seconds_N)))
    order_N = np.argsort(keys_N, kind="stable")
    sorted_N = seconds_N[order_N]
    starts, start = [], 0
    while start < len(order_N):
        starts.append(start)
        start += _count_fitting(sorted_N[start : start + config.max_utterances], config.max_seconds)
    return np.split(order_N, starts[1:])


def _count_fitting(seconds: np.ndarray, max_seconds: float) -> int:
    """Count how many of the next utterances fit into a batch; at least one."""
    padded = np.maximum.accumulate(seconds) * np.arange(1, len(seconds) + 1)
    is_over = (padded > max_seconds) | (np.cumsum(seconds) < (1 - MAX_PADDING) * padded)
    is_over[0] = False
    return int(is_over.argmax()) if is_over.any() else len(seconds)
