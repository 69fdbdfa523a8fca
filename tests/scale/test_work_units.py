"""Units hold every item once and are named by what they hold; parts are whole; the status is that of both."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from asr.errors import UserError
from asr.files import claim_folder
from asr.jobs import MAX_ITEMS, PartFolder, plan_units, read_status

ROWS = [{"id": "a", "transcript": {"text": "one"}}, {"id": "b", "error": "b.wav: no audio"}]


@given(st.lists(st.floats(0, 100, allow_nan=False)))
def test_every_item_is_in_one_unit(seconds: list[float]) -> None:
    units = plan_units([str(index) for index in range(len(seconds))], seconds, unit_seconds=60)
    assert [index for unit in units for index in range(unit.start, unit.end)] == list(range(len(seconds)))
    for unit in units:
        assert unit.seconds == sum(seconds[unit.start : unit.end])
        assert unit.seconds <= 60 or unit.end - unit.start == 1
    for unit, other in pairwise(units):  # none could take the next item
        assert unit.seconds + seconds[other.start] > 60
    assert len({unit.name for unit in units}) == len(units)


def test_a_unit_of_unknown_length_ends_too() -> None:
    units = plan_units([""] * (MAX_ITEMS + 1), [0.0] * (MAX_ITEMS + 1))
    assert [unit.end - unit.start for unit in units] == [MAX_ITEMS, 1]


def test_a_name_is_that_of_the_content() -> None:
    def names(keys: str) -> list[str]:
        return [unit.name for unit in plan_units(list(keys), [1.0, 1.0, 1.0], unit_seconds=2)]

    (first, second), (same, other) = names("abc"), names("abd")
    assert first == same and second != other and names("axc")[0] != first


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    parts, (unit,) = PartFolder(tmp_path, "key"), plan_units(["a", "b"], [1.0, 2.0])
    assert parts.read(unit) is None
    parts.write(unit, ROWS)
    assert parts.read(unit) == ROWS
    assert PartFolder(tmp_path, "other").read(unit) is None


@pytest.mark.parametrize(
    "content", ["", "{}\n", '{"items": 2}\n{"id": "a"}\n', '{"items": 1}\n{"id": "a"}\n']
)
def test_a_part_that_was_changed_is_refused(content: str, tmp_path: Path) -> None:
    parts, (unit,) = PartFolder(tmp_path, "key"), plan_units(["a", "b"], [1.0, 2.0])
    parts.path(unit).write_text(content)
    with pytest.raises(UserError, match="remove it"):
        parts.read(unit)


def test_the_status_counts_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parts"
    with pytest.raises(UserError, match="no plan"):
        read_status(folder)
    units = plan_units(list("abcdef"), [900.0] * 6)
    parts = PartFolder(folder, "key")
    monkeypatch.setattr(time, "time", lambda: parts.path(units[1]).parent.stat().st_mtime - 10)
    folder.mkdir()
    parts.announce(units, units[1:])  # all of the first is done, by a call that made no part
    status = read_status(folder)
    assert (status.done_units, status.num_units, status.done_items, status.num_items) == (1, 3, 2, 6)
    assert (status.seconds, status.done_seconds, status.eta_seconds) == (5400, 1800, None)
    parts.write(units[1], ROWS)
    status = read_status(folder)
    assert (status.done_units, status.done_items, status.failed_items) == (2, 4, 1)
    assert status.eta_seconds == pytest.approx(10, abs=5) and not status.is_running
    parts.write(units[2], ROWS)
    assert read_status(folder).eta_seconds is None


def test_a_broken_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"key": 1}')
    with pytest.raises(UserError, match="the same call again writes it"):
        read_status(tmp_path)


@pytest.mark.slow
def test_the_status_tells_whether_somebody_is_at_work(tmp_path: Path) -> None:
    import subprocess
    import sys

    PartFolder(tmp_path, "key").announce([], [])
    script = "import sys\nfrom pathlib import Path\nfrom asr.jobs.work_units import read_status\n"
    script += "print(read_status(Path(sys.argv[1])).is_running)"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with claim_folder(tmp_path):
        assert subprocess.check_output(command, text=True) == "True\n"
    assert subprocess.check_output(command, text=True) == "False\n"
