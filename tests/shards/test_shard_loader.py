"""Batches from shards: same as from a manifest in one window, exact resumes, any number of processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shard_examples import LIMITS, load_shards, pack_noise, write_noise
from test_batches import CONFIG, assert_equal, build_inputs

from asr.batches.loader import BatchLoader
from asr.batches.order import ProcessShare, order_shards
from asr.data import Manifest, read_data, write_manifest
from asr.errors import UserError
from asr.shards.shard_loader import ShardLoader, WindowStart
from asr.shards.shards import ShardFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ShardFolder:
    path = tmp_path_factory.mktemp("corpus")
    return pack_noise(write_noise(path, 36), path / "shards", 6)


@pytest.fixture(scope="module")
def manifest(folder: ShardFolder) -> Manifest:
    """The same utterances in the same order, each in its own file."""
    path = Path(folder.address).parent / "ordered.jsonl"
    corpus = {item.id: item for item in Manifest.open(path.with_name("train.jsonl"))}
    write_manifest(path, [corpus[item.id] for item in read_data(folder.address)])
    return Manifest.open(path)


def names(batches: Any) -> list[tuple[str, ...]]:
    return [batch.ids for batch in batches]


def test_one_window_gives_the_batches_of_a_manifest(folder: ShardFolder, manifest: Manifest) -> None:
    """The same bits in the same order, with and without augmentation."""
    shards = load_shards(folder, window=len(folder.shards))
    files = BatchLoader(manifest, build_inputs(), CONFIG.model_copy(update=LIMITS), seed=1)
    for epoch in (0, 3):
        assert_equal(shards.epoch_batches(epoch), files.epoch_batches(epoch))
    assert_equal(shards.evaluation_batches(), files.evaluation_batches())
    assert shards.longest_seconds == pytest.approx(files.longest_seconds)
    assert shards.largest_batch().ids == files.largest_batch().ids


@pytest.mark.parametrize("window", [1, 2, 4])
def test_windows_contain_each_utterance_once(folder: ShardFolder, manifest: Manifest, window: int) -> None:
    loader = load_shards(folder, window=window)
    orders = [names(loader.epoch_batches(epoch)) for epoch in (0, 1)]
    for order in orders:
        assert sorted(name for ids in order for name in ids) == sorted(item.id for item in manifest)
    assert orders[0] != orders[1]
    assert orders[0] == names(loader.epoch_batches(0))
    evaluated = [name for ids in names(loader.evaluation_batches()) for name in ids]
    assert sorted(evaluated) == sorted(item.id for item in manifest)


def test_a_resume_in_mid_epoch_is_exact_and_reads_no_earlier_window(
    folder: ShardFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From every batch of an epoch, by what a checkpoint has: the batches done, and the window of the next."""
    loader = load_shards(folder)
    whole = list(loader.epoch_batches(2))
    windows = [loader.find_window(start) for start in range(len(whole) + 1)]
    assert len({start.window for start in windows}) == 3
    planned: list[int] = []
    original = ShardLoader._plan_window

    def plan(self: ShardLoader, epoch: int, number: int, shards: np.ndarray) -> Any:
        planned.append(number)
        return original(self, epoch, number, shards)

    monkeypatch.setattr(ShardLoader, "_plan_window", plan)
    for start in range(0, len(whole), 3):
        planned.clear()
        assert_equal(load_shards(folder).epoch_batches(2, start, windows[start]), whole[start:])
        assert min(planned) == windows[start].window
    last = len(whole) - 2
    assert_equal(
        load_shards(folder).epoch_batches(2, last, WindowStart()), whole[last:]
    )  # from a state without a window


@pytest.mark.parametrize(
    ("first", "now", "num_workers"),
    [(1, 2, 0), (2, 1, 0), (3, 2, 0), (2, 4, 0), pytest.param(2, 2, 2, marks=pytest.mark.slow)],
)
def test_ranks_together_see_what_one_process_sees(
    folder: ShardFolder, first: int, now: int, num_workers: int
) -> None:
    """Step s of rank r is batch s * W + r, also of a training that was started with another W, and resumed."""
    alone = names(load_shards(folder).epoch_batches(1))
    used = alone[: len(alone) - len(alone) % first]
    start = 4 * first // 2
    for skipped in (0, start):
        ranks = [
            names(
                load_shards(
                    folder, share=ProcessShare(rank, now, first), num_workers=num_workers
                ).epoch_batches(1, skipped)
            )
            for rank in range(now)
        ]
        assert len({len(rank) for rank in ranks}) == 1
        dealt = [ids for step in zip(*ranks, strict=True) for ids in step]
        assert [ids for ids in dealt if ids] == used[skipped:]


def test_too_few_batches_for_the_processes(folder: ShardFolder) -> None:
    with pytest.raises(UserError, match="fewer than the 100 processes"):
        list(load_shards(folder, share=ProcessShare(0, 100)).epoch_batches(0))


def test_unusable_utterances_are_left_out(folder: ShardFolder, caplog: pytest.LogCaptureFixture) -> None:
    short = load_shards(folder, min_seconds=0.2)
    ids = {name for batch in short.epoch_batches(0) for name in batch.ids}
    assert ids == {item.id for item in read_data(folder.address) if item.duration >= 0.2}
    assert "utterances are left out of training (shorter than batches.min_seconds = 0.2)" in caplog.text
    with pytest.raises(UserError, match="none of the 36 utterances can be used to train"):
        list(load_shards(folder, min_seconds=1.0).epoch_batches(0))


def test_order_of_shards_by_hand() -> None:
    """Each epoch takes all shards of all sources; windows are about equal and in order inside."""
    epochs = [order_shards([10, 3], 3, 7, epoch) for epoch in range(5)]
    assert [[len(window) for window in windows] for windows in epochs] == [[3, 3, 3, 2, 2]] * 5
    taken = [tuple(pair) for windows in epochs for window in windows for pair in window.tolist()]
    assert Counter(taken) == {(0, n): 5 for n in range(10)} | {(1, n): 5 for n in range(3)}
    assert all(sorted(window.tolist()) == window.tolist() for windows in epochs for window in windows)
    assert not all(np.array_equal(a, b) for a, b in zip(epochs[0], epochs[1], strict=True))
