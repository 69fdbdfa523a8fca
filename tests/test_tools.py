"""Tools start: what they import and set is still there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"

pytestmark = pytest.mark.slow


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted({path.name for path in TOOLS.glob("*.py")} - {"site_pages.py"}))
def test_help(name: str) -> None:
    if name == "load_server.py":
        pytest.importorskip("websockets", reason="the extra serve is not installed")
    assert run(str(TOOLS / name), "--help").startswith("usage: ")


def test_decoding_is_timed_in_every_mode() -> None:
    found = run(
        *(str(TOOLS / "bench_decode.py"), "--sizes", "5", "--batches", "1"),
        *("--rounds", "1", "--seconds", "1"),
    )
    assert "joint beam 10" in found and "mask-CTC 10" in found


def test_the_command_that_bench_live_slows_down_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    from bench_live import SLOW_COMMAND

    assert "usage: asr transcribe" in run("-c", SLOW_COMMAND.replace("FACTOR", "2"), "transcribe", "--help")
