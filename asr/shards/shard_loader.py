"""Batches from folders of shards, planned window by window so that memory does not grow with the corpus."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from asr.batches.builder import Batch, Inputs
from asr.batches.loader import UtteranceLoader, report_left_out, select_training_set
from asr.batches.order import group_by_length, order_batches, order_shards, too_few_batches
from asr.data.storage import read_ranges
from asr.data.utterance_audio import PackedUtterance
from asr.errors import UserError
from asr.shards.shards import ShardFolder, TarShard
from asr.system.run_config import BatchConfig

logger = logging.getLogger(__name__)


WINDOW_SHARDS = 8
"""Minimum number of shards that are shuffled together; more mix better but take more memory."""
WINDOW_UTTERANCES = 10_000
"""Minimum number of utterances in a window; a few hundred would cost accuracy (docs/shards.md)."""


class Row(NamedTuple):
    """All that a worker needs to read an utterance: its shard, and its line in the shard's index."""

    shard: TarShard
    line: bytes


class RowParser:
    """A mapping from rows to utterances that parses each row when it is needed."""

    def __getitem__(self, row: Row) -> PackedUtterance:
        return row.shard.parse(row.line)


class ShardWindow(Sequence[PackedUtterance]):
    """The utterances of a few shards, kept as the lines of their indexes."""

    def __init__(self, shards: Sequence[TarShard]) -> None:
        """Read the indexes; remote ones are fetched in parallel."""
        self._rows: list[Row] = []
        contents = read_ranges([shard.index for shard in shards])
        for shard, content in zip(shards, contents, strict=True):
            if isinstance(content, UserError):
                raise content
            self._rows += [Row(shard, line) for line in shard.check_index(content).splitlines()]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[PackedUtterance]:
        return (shard.parse(line) for shard, line in self._rows)

    def __getitem__(self, position: int) -> PackedUtterance:  # type: ignore[override]
        shard, line = self._rows[position]
        return shard.parse(line)

    def rows(self, positions: np.ndarray) -> list[Row]:
        return [self._rows[position] for position in positions.tolist()]


class WindowStart(NamedTuple):
    """A window of an epoch, and how many batches of all processes precede it."""

    window: int = 0
    batches: int = 0


class ShardLoader(UtteranceLoader):
    """Loads batches from one or more folders of shards."""

    def __init__(
        self, folders: Sequence[ShardFolder], inputs: Inputs, config: BatchConfig, **options: Any
    ) -> None:
        for folder in folders:
            if not len(folder):
                raise UserError(f"{folder.address}: its shards contain no utterances; pack another manifest")
        self._folders = folders
        count = sum(map(len, folders))
        name = " + ".join(folder.address for folder in folders)
        super().__init__(name, RowParser(), count, inputs, config, **options)
        self._starts: list[WindowStart] = []
        per_shard = count / sum(len(folder.shards) for folder in folders)
        self._window_shards = max(WINDOW_SHARDS, math.ceil(WINDOW_UTTERANCES / per_shard))

    @property
    def longest_seconds(self) -> float:
        """Duration of the longest training utterance at its original speed, at most the configured limit."""
        longest = max(folder.longest_seconds for folder in self._folders)
        return min(longest, self._config.max_utterance_seconds)

    def find_window(self, batches_done: int) -> WindowStart:
        """Find the window of the next batch in this epoch, where a resumed training starts reading."""
        return next(
            (start for start in reversed(self._starts) if start.batches <= batches_done), WindowStart()
        )

    def epoch_batches(self, epoch: int, start: int = 0, window: Sequence[int] = (0, 0)) -> Iterator[Batch]:
        """Yield the batches of an epoch, skipping the first `start` of all processes.

        `window` is what `find_window` returned for `start`; without it, earlier windows are planned again.
        """
        first = WindowStart(*window)
        planned = self._plan_epoch(epoch, first)
        yield from self._load(self._share.take(planned, start - first.batches), epoch)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield every utterance once across all processes, without augmentation, longest first by window."""
        yield from self._load(self._share.take(self._plan_evaluation()), None)

    def largest_batch(self) -> Batch:
        """Return the largest batch of the first window, padding included, to check that memory suffices."""
        for number, shards in enumerate(self._order(0)):
            if planned := self._plan_window(0, number, shards):
                largest = max(planned, key=lambda rows: len(rows) * max(map(_read_seconds, rows)))
                return next(self._load([largest], 0, num_workers=0))
        raise self._nothing_to_learn()

    def _nothing_to_learn(self) -> UserError:
        return UserError(f"{self.name}: none of the {self._num_utterances} utterances can be used to train")

    # --- plans --------------------------------------------------------------------------------

    def _order(self, epoch: int) -> list[np.ndarray]:
        """Return the windows of an epoch, each as an array with a (folder, shard) pair for every shard."""
        counts = [len(folder.shards) for folder in self._folders]
        return order_shards(counts, self._window_shards, self._seed, epoch)

    def _plan_epoch(self, epoch: int, first: WindowStart) -> Iterator[list[Row]]:
        """Plan the batches of all processes from a window on, up to the last complete step."""
        self._starts = []
        order, multiple = self._order(epoch), self._share.multiple
        count = first.batches
        step: list[list[Row]] = []
        for number in range(first.window, len(order)):
            self._starts.append(WindowStart(number, count))
            for rows in self._plan_window(epoch, number, order[number]):
                step.append(rows)
                count += 1
                if count % multiple == 0:
                    yield from step
                    step = []
        if count < multiple:
            raise too_few_batches(count, multiple) if count else self._nothing_to_learn()
        logger.info("epoch %d: %d batches in %d windows", epoch, count - len(step), len(order))

    def _plan_window(self, epoch: int, number: int, shards: np.ndarray) -> list[list[Row]]:
        window = ShardWindow([self._folders[folder].shards[shard] for folder, shard in shards])
        chosen = select_training_set(window, self._inputs, self._config)
        if epoch == 0 and number == 0:
            report_left_out(f"{self.name}, the first {len(shards)} shards", window, chosen)
        if not len(chosen.positions_N):
            return []
        seconds_N = chosen.seconds_N / self._augmenter.choose_speeds(chosen.id_hashes_N, epoch)
        groups = order_batches(seconds_N, self._config, self._seed, epoch, number)
        return [window.rows(chosen.positions_N[group]) for group in groups]

    def _plan_evaluation(self) -> Iterator[list[Row]]:
        shards = [shard for folder in self._folders for shard in folder.shards]
        for start in range(0, len(shards), self._window_shards):
            window = ShardWindow(shards[start : start + self._window_shards])
            seconds_N = np.array([item.duration for item in window])
            groups = group_by_length(seconds_N, self._config, None)
            yield from (window.rows(group) for group in groups[::-1])


def _read_seconds(row: Row) -> float:
    return RowParser()[row].duration
