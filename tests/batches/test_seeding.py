"""Random numbers by name: the same everywhere, independent of each other."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from asr.batches import choose, hash_names, random_stream


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


def test_other_keys_give_other_numbers() -> None:
    keys = [
        (0, 1, "speed", "a"),
        (1, 0, "speed", "a"),
        (0, 1, "noise", "a"),
        (0, 1, "speed", "b"),
        (0, 1, "speed"),
    ]
    assert len({random_stream(*key).integers(2**60) for key in keys}) == len(keys)


@pytest.mark.parametrize("num_choices", [1, 2, 3, 7])
def test_choices_are_even_and_independent(num_choices: int) -> None:
    """Of each other from key to key: they agree as often as chance has it, also with neighbouring seeds."""
    hashes = hash_names(f"utterance-{number}" for number in range(30_000))
    first, second = (choose(hashes, num_choices, 0, epoch, "speed") for epoch in (0, 1))
    assert np.allclose(np.bincount(first) / len(first), 1 / num_choices, atol=0.015)
    assert np.mean(first == second) == pytest.approx(1 / num_choices, abs=0.015)


def test_choice_of_a_name_does_not_depend_on_the_others() -> None:
    names = [str(number) for number in range(100)]
    together = choose(hash_names(names), 5, 1, 2)
    assert together.tolist() == [choose(hash_names([name]), 5, 1, 2)[0] for name in names]
