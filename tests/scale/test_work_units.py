"""Units hold every recording once, in their order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from asr.transcription import MAX_UNIT_ITEMS, plan_units


@given(st.lists(st.floats(0, 100, allow_nan=False)))
def test_every_item_is_in_one_unit(seconds: list[float]) -> None:
    units = plan_units(seconds, unit_seconds=60)
    assert [index for unit in units for index in unit] == list(range(len(seconds)))
    lengths = [sum(seconds[index] for index in unit) for unit in units]
    assert all(length <= 60 or len(unit) == 1 for unit, length in zip(units, lengths, strict=True))
    for length, other in pairwise(zip(lengths, units, strict=True)):  # none could take the next one
        assert length[0] + seconds[other[1].start] > 60


def test_a_unit_of_unknown_length_ends_too() -> None:
    assert [len(unit) for unit in plan_units([0.0] * (MAX_UNIT_ITEMS + 1))] == [MAX_UNIT_ITEMS, 1]
