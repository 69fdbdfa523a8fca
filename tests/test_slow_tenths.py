"""CI runs a tenth of the slow tests each day: ten days run all of them, and none twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

CONFTEST = str(Path(__file__).with_name("conftest.py"))


def make_item(name: str) -> Any:
    return Mock(nodeid=name, get_closest_marker=lambda kind: name.startswith(kind))


def test_tenths_are_disjoint_and_complete(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    conftest = request.config.pluginmanager.get_plugin(CONFTEST)
    assert conftest is not None
    names = [f"{kind} {number:03}" for number in range(137) for kind in ("slow", "quick")][::-1]

    def choose(tenth: str) -> list[str]:
        monkeypatch.setenv("ASR_SLOW_TENTH", tenth)
        items = [make_item(name) for name in names]
        conftest.pytest_collection_modifyitems(Mock(), items)
        return [item.nodeid for item in items]

    tenths = [choose(str(tenth)) for tenth in range(10)]
    assert sorted(name for tenth in tenths for name in tenth) == sorted(
        name for name in names if name.startswith("slow")
    )
    assert {len(tenth) for tenth in tenths} == {13, 14}
    assert tenths[3] == sorted(tenths[3], reverse=True), "the order of the collection stays"
    assert choose("063") == tenths[3], "the day of a year"
    assert choose("") == names
