"""CI runs a tenth of the slow tests each day: ten days run all of them, and none twice."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from conftest import pytest_collection_modifyitems


def make_item(name: str) -> Any:
    return Mock(nodeid=name, get_closest_marker=lambda kind: name.startswith(kind))


def choose(names: list[str], monkeypatch: pytest.MonkeyPatch, tenth: str) -> list[str]:
    """Names of the tests that are left of these, in their order."""
    monkeypatch.setenv("ASR_SLOW_TENTH", tenth)
    items = [make_item(name) for name in names]
    pytest_collection_modifyitems(Mock(), items)
    return [item.nodeid for item in items]


def test_tenths_are_disjoint_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{kind} {number:03}" for number in range(137) for kind in ("slow", "quick")][::-1]
    tenths = [choose(names, monkeypatch, str(tenth)) for tenth in range(10)]
    assert sorted(sum(tenths, [])) == sorted(name for name in names if name.startswith("slow"))
    assert {len(tenth) for tenth in tenths} == {13, 14}
    assert tenths[3] == sorted(tenths[3], reverse=True), "the order of the collection stays"
    assert choose(names, monkeypatch, "063") == tenths[3], "the day of a year"
    assert choose(names, monkeypatch, "") == names
