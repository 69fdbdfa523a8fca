"""The model of a cluster agrees with a simulation, and names the bottleneck that was put in."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from test_tools import TOOLS, run

SCALE = runpy.run_path(str(TOOLS / "simulate_scale.py"), run_name="scale")
RATES = dict.fromkeys(SCALE["MEASURED"], 1000.0)
MEASURED = {"cores": 2, "load": 0.0, "rates": RATES, "scaling": {"read": [10.0, 15.0, 20.0]}}


@pytest.mark.parametrize("interval", [100.0, 1000.0, 10_000.0])
def test_the_formula_for_failures_is_that_of_the_simulation(interval: float) -> None:
    case = {"mtbf": 5_000.0, "checkpoint": 20.0, "restart": 300.0, "interval": interval}
    simulated = SCALE["simulate_lost_share"](**case, num_intervals=20_000)
    assert SCALE["predict_lost_share"](**case) == pytest.approx(simulated, abs=0.01)


def test_the_interval_loses_least() -> None:
    best = SCALE["find_interval"](50_000.0, 10.0)
    lost = [SCALE["predict_lost_share"](50_000.0, 10.0, 0.0, best * factor) for factor in (0.7, 1, 1.4)]
    assert min(lost) == lost[1]


def test_a_slow_resource_is_the_bottleneck() -> None:
    f = RATES | {name: figure.value for name, figure in SCALE["GIVEN"].items()}
    for change, expected in [
        ({"storage": 1e6}, "bandwidth of the storage"),
        ({"network": 1e3}, "network of the nodes"),
        ({"gpu_training": 0.01}, "GPUs"),
        ({"plan": 1e-3}, "planning, a share in each process"),
        ({"interconnect": 1e3}, "gradients between the nodes"),
        ({"read": 0.01}, "cores: read and compute features"),
        ({"prefixes": 0.001}, "requests, a file each"),
    ]:
        limits = SCALE["list_training_limits"](f | change)
        assert min(limits, key=limits.get) == expected


@pytest.mark.slow
def test_tables_of_rates_that_were_measured(tmp_path: Path) -> None:
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps(MEASURED))
    shown = run(str(TOOLS / "simulate_scale.py"), "--rates", str(rates), "--set", "gpus=64")
    assert "20 / 15 (-25 %)" in shown and "20 / 20 (+0 %)" in shown
    assert "A  gpus " in shown and "by --set" in shown and "on 64 GPUs in 8 nodes" in shown
