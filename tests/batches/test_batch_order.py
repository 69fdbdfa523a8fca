"""The order of batches: limits kept, little padding, a function of (seed, epoch), the same for any world size."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asr.batches import ProcessShare, choose, group_by_length, hash_names, plan_epoch, random_stream
from asr.batches.order import MAX_PADDING
from asr.errors import UserError
from asr.system import BatchConfig

CONFIG = BatchConfig(max_seconds=60.0, max_utterances=16, max_utterance_seconds=20.0)


def draw_seconds(num_utterances: int) -> np.ndarray:
    """Durations like those of read speech."""
    return np.random.default_rng(0).gamma(4.0, 1.0, num_utterances).clip(0.5, 20.0)


@pytest.mark.parametrize(
    "values",
    [
        {"max_seconds": 20.0, "max_utterance_seconds": 30.0},
        {"min_seconds": 30.0},
        {"max_utterances": 0},
        {"num_workers": -1},
    ],
)
def test_nonsense_is_refused(values: dict) -> None:
    with pytest.raises(UserError, match=f"{next(iter(values))}|greater than"):
        BatchConfig(**values)


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


@settings(max_examples=40)
@given(
    lengths=st.lists(st.tuples(st.floats(0.1, 20.0), st.integers(0, 50)), min_size=1, max_size=100),
    max_tokens=st.integers(50, 300),
)
def test_batches_keep_the_limit_of_tokens_beside_that_of_seconds(
    lengths: list[tuple[float, int]], max_tokens: int
) -> None:
    seconds_N, tokens_N = (np.array(values) for values in zip(*lengths, strict=True))
    config = CONFIG.model_copy(update={"max_tokens": max_tokens})
    batches = plan_epoch(seconds_N, config, 0, 1, 1, tokens_N)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * tokens_N[batch].max() <= max_tokens
        assert len(batch) == 1 or len(batch) * seconds_N[batch].max() <= config.max_seconds


def test_padding_is_about_half_of_what_is_allowed() -> None:
    seconds_N = draw_seconds(5000)
    padded = sum(len(group) * seconds_N[group].max() for group in plan_epoch(seconds_N, CONFIG, 0, 0, 1))
    assert 0.3 * MAX_PADDING < 1 - seconds_N.sum() / padded < 0.7 * MAX_PADDING


def test_order_depends_on_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        return [group.tolist() for group in plan_epoch(draw_seconds(500), CONFIG, seed, epoch, 1)]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2) and order(0, 1) != order(1, 1)
    # Not only the order of the batches: hardly any batch has the same members again.
    same = {frozenset(batch) for batch in order(0, 1)} & {frozenset(batch) for batch in order(0, 2)}
    assert len(same) < 0.1 * len(order(0, 1))


def test_batches_come_in_no_order_of_length() -> None:
    seconds_N = draw_seconds(2000)
    longest = [seconds_N[group].max() for group in plan_epoch(seconds_N, CONFIG, 0, 0, 1)]
    assert abs(np.corrcoef(range(len(longest)), longest)[0, 1]) < 0.2


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


def test_a_million_utterances_are_planned_in_seconds() -> None:
    seconds_N = draw_seconds(1_000_000)
    started = time.perf_counter()
    plan = plan_epoch(
        seconds_N, CONFIG.model_copy(update={"max_seconds": 400.0, "max_utterances": 64}), 0, 0, 8
    )
    assert time.perf_counter() - started < 10  # under 2 s on an idle core
    assert sum(map(len, plan)) > 999_000


# --- random numbers by names ---------------------------------------------------------------------


def test_choices_are_the_same_in_another_process() -> None:
    script = "import asr.batches.order as s; print(s.random_stream(1, 2, 'noise', 'é').integers(10**9), *s.choose(s.hash_names('abc'), 5, 1))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    expected = [random_stream(1, 2, "noise", "é").integers(10**9), *choose(hash_names("abc"), 5, 1)]
    assert [run.stdout.split() for run in runs] == [[str(number) for number in expected]] * 2


@pytest.mark.parametrize("num_choices", [1, 2, 3, 7])
def test_choices_are_even_and_independent(num_choices: int) -> None:
    """Of each other from key to key: they agree as often as chance has it, also with neighbouring seeds."""
    hashes = hash_names(f"utterance-{number}" for number in range(30_000))
    first, second = (choose(hashes, num_choices, 0, epoch, "speed") for epoch in (0, 1))
    assert np.allclose(np.bincount(first) / len(first), 1 / num_choices, atol=0.015)
    assert np.mean(first == second) == pytest.approx(1 / num_choices, abs=0.015)
