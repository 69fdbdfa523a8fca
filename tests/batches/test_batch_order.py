"""The order of batches: limits kept, little padding, a function of (seed, epoch), the same for any world size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asr.batches.order import (
    MAX_PADDING,
    ProcessShare,
    choose,
    group_by_length,
    hash_names,
    plan_epoch,
    random_stream,
)
from asr.errors import UserError
from asr.system.run_config import BatchConfig

CONFIG = BatchConfig(max_seconds=60.0, max_utterances=16, max_utterance_seconds=20.0)


def draw_seconds(num_utterances: int) -> np.ndarray:
    """Durations similar to read speech."""
    return np.random.default_rng(0).gamma(4.0, 1.0, num_utterances).clip(0.5, 20.0)


@settings(max_examples=60)
@given(
    seconds=st.lists(st.floats(0.1, 20.0), min_size=1, max_size=200),
    max_seconds=st.floats(20.0, 100.0),
    max_utterances=st.integers(1, 30),
    seed=st.integers(0, 100) | st.none(),
)
def test_groups_keep_the_limits_and_hold_each_utterance_once(
    seconds: list[float], max_seconds: float, max_utterances: int, seed: int | None
) -> None:
    seconds_N = np.array(seconds)
    config = BatchConfig(max_seconds=max_seconds, max_utterances=max_utterances, max_utterance_seconds=20.0)
    groups = group_by_length(seconds_N, config, None if seed is None else random_stream(seed))
    assert sorted(np.concatenate(groups)) == list(range(len(seconds)))
    for group in groups:
        padded = len(group) * seconds_N[group].max()
        assert len(group) == 1 or padded <= max_seconds
        assert len(group) <= max_utterances
        assert len(group) == 1 or 1 - seconds_N[group].sum() / padded <= MAX_PADDING + 1e-9


@pytest.mark.parametrize(("shorter", "num_groups"), [(8.1, 1), (7.9, 2)])
def test_a_tenth_of_a_batch_may_be_padding(shorter: float, num_groups: int) -> None:
    """Of 2 * 10 seconds: 1.9 of padding are 9.5 %, 2.1 are 10.5 %."""
    assert len(group_by_length(np.array([10.0, shorter]), CONFIG, None)) == num_groups


def test_random_groups_are_nearly_from_short_to_long() -> None:
    """A length that changes by 5 % either way is behind one of at most 1.05 / 0.95 times itself."""
    seconds_N = draw_seconds(2000)
    in_order_N = seconds_N[np.concatenate(group_by_length(seconds_N, CONFIG, random_stream(0)))]
    farthest = float(np.max(np.maximum.accumulate(in_order_N) / in_order_N))
    assert 1.09 < farthest <= 1.05 / 0.95 + 1e-9


def test_order_depends_on_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        return [group.tolist() for group in plan_epoch(draw_seconds(500), CONFIG, seed, epoch, 1)]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2) and order(0, 1) != order(1, 1)
    # Not only the order of the batches: hardly any batch has the same members again.
    same = {frozenset(batch) for batch in order(0, 1)} & {frozenset(batch) for batch in order(0, 2)}
    assert len(same) < 0.1 * len(order(0, 1))


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_processes_share_the_same_global_batches(world_size: int) -> None:
    """Step s of all ranks together is the s-th group of world_size batches of a single process."""
    alone = plan_epoch(draw_seconds(500), CONFIG, 0, 3, 1)
    plan = plan_epoch(draw_seconds(500), CONFIG, 0, 3, world_size)
    shards = [list(ProcessShare(rank, world_size).take(plan)) for rank in range(world_size)]
    num_steps = len(alone) // world_size
    assert {len(shard) for shard in shards} == {num_steps}
    for step in range(num_steps):
        expected = alone[step * world_size : (step + 1) * world_size]
        assert [shard[step].tolist() for shard in shards] == [group.tolist() for group in expected]


def test_too_few_batches_for_the_processes() -> None:
    with pytest.raises(UserError, match=r"2 batches, fewer than the 4 processes.*batches\.max_seconds"):
        plan_epoch(np.full(20, 3.0), CONFIG, 0, 0, 4)


def test_choices_are_the_same_in_another_process() -> None:
    """As they were in one process: each Python salts its hashes, so hashes of names would not do."""
    assert random_stream(1, 2, "noise", "é").integers(10**9) == 908_466_695
    assert choose(hash_names(["u-1", "é"]), 10**9, 7, "speed").tolist() == [159_282_259, 954_259_287]


@pytest.mark.parametrize("num_choices", [1, 2, 3, 7])
def test_choices_are_even_and_independent(num_choices: int) -> None:
    """Of each other from key to key: they agree as often as chance has it, also with neighboring seeds."""
    hashes = hash_names(f"utterance-{number}" for number in range(30_000))
    first, second = (choose(hashes, num_choices, 0, epoch, "speed") for epoch in (0, 1))
    assert np.allclose(np.bincount(first) / len(first), 1 / num_choices, atol=0.015)
    assert np.mean(first == second) == pytest.approx(1 / num_choices, abs=0.015)


def test_batches_come_in_no_order_of_length() -> None:
    seconds_N = draw_seconds(2000)
    longest = [seconds_N[group].max() for group in plan_epoch(seconds_N, CONFIG, 0, 0, 1)]
    assert abs(np.corrcoef(range(len(longest)), longest)[0, 1]) < 0.2
