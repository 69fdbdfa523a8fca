"""asr/scoring/nist can be taken away: everything else scores as before, and the rest says what is missing."""

from __future__ import annotations

import sys

import pytest

from asr.errors import UserError
from asr.scoring.counting import score


def test_scoring_without_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("asr.scoring.nist", raising=False)
    monkeypatch.setitem(sys.modules, "asr.scoring.nist", None)
    assert score(["a b"], ["a c"], normalize="basic").error_rate == 0.5
    with pytest.raises(UserError, match="asr/scoring/nist is not installed"):
        score(["a b"], ["a c"], align="sclite")
