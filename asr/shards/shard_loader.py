"""The batches of folders of shards, planned window by window: memory does not grow with the corpus."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from asr.batches.builder import Batch, Inputs
from asr.batches.loader import UtteranceLoader, report_left_out, select_training_set
from asr.batches.order import group_by_length, order_batches, order_shards, too_few_batches
from asr.data.packed import PackedUtterance
from asr.data.storage import read_ranges
from asr.errors import UserError
from asr.shards.shards import ShardFolder
from asr.system.run_config import BatchConfig

logger = logging.getLogger(__name__)


WINDOW_SHARDS = 8
"""Shards whose utterances are shuffled together: more of them mix better and take more memory."""
WINDOW_UTTERANCES = 10_000
"""Least utterances of a window; those of a few hundred cost accuracy (docs/shards.md)."""


class RowKey(NamedTuple):
    """All that a worker needs to read an utterance: its shard, and its line in the index of that."""

    source: int
    shard: int
    line: bytes


class ShardRows:
    """The utterances of folders of shards by their keys."""

    def __init__(self, folders: Sequence[ShardFolder]) -> None:
        self._folders = folders

    def __getitem__(self, key: RowKey) -> PackedUtterance:
        return self._folders[key.source].shards[key.shard].parse(key.line)


class ShardWindow(Sequence[PackedUtterance]):
    """The utterances of a few shards, kept as the lines of their indexes."""

    def __init__(self, folders: Sequence[ShardFolder], numbers: np.ndarray) -> None:
        """Read the indexes, those at addresses at the same time. `numbers`: (source, shard) of each."""
        self.numbers = numbers
        self._shards = [folders[source].shards[shard] for source, shard in numbers]
        self._lines: list[list[bytes]] = []
        for shard, content in zip(
            self._shards, read_ranges([shard.index for shard in self._shards]), strict=True
        ):
            if isinstance(content, UserError):
                raise content
            self._lines.append(shard.check_index(content).splitlines())
        self._firsts = np.cumsum([0, *map(len, self._lines)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __iter__(self) -> Iterator[PackedUtterance]:
        return self.part(0, 1)

    def part(self, rank: int, count: int) -> Iterator[PackedUtterance]:
        """Every `count`-th utterance from `rank` on, and none of the others parsed."""
        rows = ((shard, line) for shard, own in zip(self._shards, self._lines, strict=True) for line in own)
        return (shard.parse(line) for shard, line in itertools.islice(rows, rank, None, count))

    def __getitem__(self, position: int) -> PackedUtterance:  # type: ignore[override]
        number, line = self._find(position)
        return self._shards[number].parse(line)

    def keys(self, positions: np.ndarray) -> list[RowKey]:
        """The keys of the utterances at these positions."""
        keys = []
        for position in positions.tolist():
            number, line = self._find(position)
            source, shard = self.numbers[number].tolist()
            keys.append(RowKey(source, shard, line))
        return keys

    def _find(self, position: int) -> tuple[int, bytes]:
        """Find the shard of an utterance, and its line there."""
        number = int(np.searchsorted(self._firsts, position, side="right")) - 1
        return number, self._lines[number][position - int(self._firsts[number])]


class WindowStart(NamedTuple):
    """A window of an epoch, and how many batches of all processes come before it."""

    window: int = 0
    batches: int = 0


@dataclass(frozen=True)
class PlannedBatch:
    """A batch by positions in its window. Its keys are looked up by the process that takes it."""

    window: ShardWindow
    positions_B: np.ndarray
    padded_seconds: float = 0.0  # padded seconds at the original speed

    def __len__(self) -> int:
        return len(self.positions_B)

    def __getitem__(self, part: slice) -> PlannedBatch:
        return PlannedBatch(self.window, self.positions_B[part])

    def row_keys(self) -> list[RowKey]:
        return self.window.keys(self.positions_B)


class ShardLoader(UtteranceLoader):
    """Loader of the batches of one or more folders of shards."""

    def __init__(
        self, folders: Sequence[ShardFolder], inputs: Inputs, config: BatchConfig, **options: Any
    ) -> None:
        self._folders = folders
        name = " + ".join(folder.address for folder in folders)
        super().__init__(name, ShardRows(folders), len(self), inputs, config, **options)
        self._starts: list[WindowStart] = []
        self._window_shards = WINDOW_SHARDS
        if len(self):
            per_shard = len(self) / sum(len(folder.shards) for folder in folders)
            self._window_shards = max(WINDOW_SHARDS, math.ceil(WINDOW_UTTERANCES / per_shard))
        for folder in folders:
            if not len(folder):
                raise UserError(f"{folder.address}: no utterance in its shards")

    def __len__(self) -> int:
        return sum(map(len, self._folders))

    @property
    def longest_seconds(self) -> float:
        """Length of the longest training utterance, or the limit of these, at its original speed."""
        longest = max(folder.longest_seconds for folder in self._folders)
        return min(longest, self._config.max_utterance_seconds)

    def find_window(self, batches_done: int) -> WindowStart:
        """The window that the next batch of the epoch in progress is in: where a resume may begin to read."""
        return next(
            (start for start in reversed(self._starts) if start.batches <= batches_done), WindowStart()
        )

    def epoch_batches(self, epoch: int, start: int = 0, window: Sequence[int] = (0, 0)) -> Iterator[Batch]:
        """The batches of an epoch, but for the first `start` of all processes: as if these had come too.

        `window`: what `find_window` gave for `start`; without it the windows before are planned again.
        """
        first = WindowStart(*window)
        planned = self._share.take(self._plan_epoch(epoch, first), start - first.batches)
        yield from self._load((batch.row_keys() for batch in planned), epoch)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Every utterance once in all processes together, as it is; in each window the longest first."""
        sources = enumerate(self._folders)
        numbers = [(source, shard) for source, folder in sources for shard in range(len(folder.shards))]
        size = self._window_shards
        windows = (np.array(numbers[start : start + size]) for start in range(0, len(numbers), size))
        planned = (batch for window in windows for batch in self._plan_evaluation(window))
        yield from self._load((batch.row_keys() for batch in self._share.take(planned)), None)

    def largest_batch(self) -> Batch:
        """The largest one of the first window, padding included, to try out whether memory is enough."""
        for number, shards in enumerate(self._order(0)):
            if planned := self._plan_window(0, number, shards):
                largest = max(planned, key=lambda batch: batch.padded_seconds)
                return next(self._load([largest.row_keys()], 0, num_workers=0))
        raise self._nothing_to_learn()

    def _nothing_to_learn(self) -> UserError:
        return UserError(
            f"{self.name}: none of the {sum(map(len, self._folders))} utterances can be trained on"
        )

    # --- plans --------------------------------------------------------------------------------

    def _order(self, epoch: int) -> list[np.ndarray]:
        counts = [len(folder.shards) for folder in self._folders]
        return order_shards(counts, self._window_shards, self._seed, epoch)

    def _plan_epoch(self, epoch: int, first: WindowStart) -> Iterator[PlannedBatch]:
        """The batches of all processes from a window on; the next window is read while one is used."""
        self._starts = []
        order = self._order(epoch)
        numbers = range(first.window, len(order))
        count, multiple = first.batches, self._share.multiple
        waiting: list[PlannedBatch] = []  # fewer than all processes need for a step
        waiting_since = first.batches
        with ThreadPoolExecutor(1, thread_name_prefix="asr-window") as reader:
            coming = reader.submit(self._plan_window, epoch, first.window, order[first.window])
            for number in numbers:
                planned = coming.result()
                if number + 1 in numbers:
                    coming = reader.submit(self._plan_window, epoch, number + 1, order[number + 1])
                self._starts.append(WindowStart(number, count))
                count += len(planned)
                for batch in planned:
                    waiting.append(batch)
                    if (waiting_since + len(waiting)) % multiple == 0:
                        yield from waiting
                        waiting_since += len(waiting)
                        waiting = []
        if count < multiple:
            raise too_few_batches(count, multiple) if count else self._nothing_to_learn()
        logger.info("epoch %d: %d batches in %d windows", epoch, count - len(waiting), numbers.stop)

    def _plan_window(self, epoch: int, number: int, shards: np.ndarray) -> list[PlannedBatch]:
        window = ShardWindow(self._folders, shards)
        chosen = select_training_set(window, self._inputs, self._config, self._share)
        if epoch == 0 and number == 0:
            report_left_out(f"{self.name}, the first {len(shards)} shards", window, chosen)
        if not len(chosen.positions_N):
            return []
        seconds_N = chosen.seconds_N / self._augmenter.choose_speeds(chosen.id_hashes_N, epoch)
        groups = order_batches(seconds_N, self._config, self._seed, epoch, number)
        return [
            PlannedBatch(window, chosen.positions_N[group], len(group) * chosen.seconds_N[group].max())
            for group in groups
        ]

    def _plan_evaluation(self, shards: np.ndarray) -> list[PlannedBatch]:
        window = ShardWindow(self._folders, shards)
        seconds_N = np.array([item.duration for item in window])
        groups = group_by_length(seconds_N, self._config, None)
        return [PlannedBatch(window, group) for group in groups[::-1]]
