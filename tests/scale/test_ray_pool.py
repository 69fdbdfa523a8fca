"""Every item has one row, whatever dies: by a stand-in for Ray in one process, and by Ray itself."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from ray_examples import Killed, StandIn

from asr.errors import UserError
from asr.scale import ray_pool
from asr.scale.ray_pool import PoolOptions, RayPool

Row = dict[str, Any]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(ray_pool, "_import_ray", lambda is_cluster: stand_in)
    return stand_in


def run_pool(units: Sequence[Sequence[Any]], make_work: Any, workers: int = 2) -> dict[int, list[Row]]:
    with RayPool(PoolOptions(workers=workers), uses_gpus=False) as pool:
        found = list(pool.run(units, make_work))
    assert len(dict(found)) == len(found) == len(units)
    return dict(found)


@given(data=st.data())
def test_only_items_that_kill_their_worker_are_left_out(data: st.DataObject) -> None:
    """In company a row depends on all items of the unit that live: it is made without those that kill."""
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=5))
    units = [[f"{number}.{index}" for index in range(size)] for number, size in enumerate(sizes)]
    items = [item for unit in units for item in unit]
    killers = data.draw(st.sets(st.sampled_from(items))) if items else set()
    problems = data.draw(st.sets(st.sampled_from(items))) - killers if items else set()
    unlucky = Counter(
        {item: 1 for item in items if data.draw(st.booleans())}
    )  # kill a worker at random, once

    def work(given: Sequence[str]) -> list[Row]:
        for item in given:
            if item in killers or unlucky[item]:
                unlucky[item] = 0
                raise Killed
            if item in problems:
                raise ZeroDivisionError("a problem of the program")
        return [{"item": item, "company": list(given)} for item in given]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_pool, "_import_ray", lambda is_cluster: StandIn())
        found = run_pool(units, lambda threads: work)
    for number, unit in enumerate(units):
        lives = [item for item in unit if item not in killers | problems]
        for item, row in zip(unit, found[number], strict=True):
            if item in killers:
                assert "ended its worker, 2 times" in row["error"]
            elif item in problems:
                assert "ZeroDivisionError: a problem of the program" in row["error"]
            else:
                assert row == {"item": item, "company": lives}


@pytest.mark.usefixtures("ray")
def test_items_that_fail_only_together_are_done_alone() -> None:
    def work(given: Sequence[str]) -> list[Row]:
        if len(given) > 1:
            raise Killed
        return [{"item": item} for item in given]

    assert run_pool([["a", "b"]], lambda threads: work) == {0: [{"item": "a"}, {"item": "b"}]}


def test_items_that_hang_are_left_out_and_others_continue(
    ray: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "_now", lambda: ray.clock)
    found = run_pool(
        [["a", "hang", "b"], ["c"], ["hang"]],
        lambda threads: lambda given: [{"item": item} for item in given],
    )
    names = [[row.get("item", row.get("error")) for row in found[number]] for number in range(3)]
    left_out = "took longer than 4 hours; it is left out"
    assert names == [["a", left_out, "b"], ["c"], [left_out]]
    assert ray.num_killed == 3, "the first unit, and each of the two that hang by itself"


@pytest.mark.usefixtures("ray")
def test_user_errors_end_the_job() -> None:
    def refuse(threads: int) -> Any:
        raise UserError("no such model")

    with pytest.raises(UserError, match="no such model"):
        run_pool([["a"]], refuse)

    def die(threads: int) -> Any:
        raise Killed

    with pytest.raises(UserError, match="use fewer --workers"):
        run_pool([["a"]], die)


@pytest.mark.usefixtures("ray")
def test_a_worker_that_dies_while_loading_is_restarted() -> None:
    """Any number of times, except three in a row."""
    fates = iter([False, False, True] * 9)

    def load(threads: int) -> Any:
        if not next(fates):
            raise Killed

        def work(given: Sequence[str]) -> list[Row]:
            if "killer" in given:
                raise Killed
            return [{"item": item} for item in given]

        return work

    found = run_pool([["killer"], ["a", "killer"], ["b"]], load, workers=1)
    assert [row.get("item", "left out") for n in range(3) for row in found[n]] == [
        "left out",
        "a",
        "left out",
        "b",
    ]


def test_cores_and_gpus_are_divided(ray: StandIn) -> None:
    """Two workers and Ray's own processes fit on two cores; with whole CPUs they would wait forever."""

    def share(cpus: float, gpus: float, workers: int | None) -> tuple[float, float, int, int]:
        ray.resources = {"CPU": cpus, "GPU": gpus}
        with RayPool(PoolOptions(workers=workers), uses_gpus=gpus > 0) as pool:
            list(pool.run([["a"]], lambda threads: lambda given: [{} for _ in given]))
            return ray.options["num_cpus"], ray.options["num_gpus"], pool.num_workers, pool.threads

    assert share(2, 0, 2) == (0.9, 0, 2, 1)
    assert share(2, 0, 4) == (0.45, 0, 4, 1)
    assert share(16, 0, None) == (0.9, 0, 16, 1)
    assert share(16, 0, 4) == (1.0, 0, 4, 4)
    assert share(16, 2, None) == (1.0, 1.0, 2, 8)
    assert share(16, 1, 3) == (1.0, 0.33, 3, 5)
    assert not ray.is_running


def test_a_missing_gpu_is_an_error(ray: StandIn) -> None:
    with pytest.raises(UserError, match="no GPU"):
        RayPool(PoolOptions(), uses_gpus=True)
    assert not ray.is_running


class KillingWork:
    """Ends its process for a file named killer, and once for each file named unlucky."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, items: Sequence[str]) -> list[Row]:
        for item in items:
            mark = self._folder / item
            if item.startswith("killer") or (item.startswith("unlucky") and not mark.exists()):
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return [{"item": item, "threads": os.environ["OMP_NUM_THREADS"]} for item in items]


@pytest.mark.slow
def test_processes_that_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([os.environ.get("PYTHONPATH", ""), *map(str, Path(__file__).parents[:2])]),
    )
    units = [["a", "killer", "b"], ["c", "unlucky"], ["killer"], ["d"]]
    found = run_pool(units, lambda threads: KillingWork(tmp_path))
    names = [[row.get("item", "left out") for row in found[number]] for number in range(len(units))]
    assert names == [["a", "left out", "b"], ["c", "unlucky"], ["left out"], ["d"]]


@pytest.mark.slow
def test_a_missing_cluster_is_an_error() -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(UserError, match="does not connect to --ray"):
        RayPool(PoolOptions(address="127.0.0.1:1"), uses_gpus=False)
