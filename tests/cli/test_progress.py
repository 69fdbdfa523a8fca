"""Progress: lines now and then where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from asr.cli import AudioProgress


def test_lines_now_and_then_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with AudioProgress(50.0, every=0.0) as progress:
        progress.advance(25.0)
        progress.advance(50.0)  # a header promised less
    lines = [line.strip() for line in capsys.readouterr().err.splitlines() if "s of audio" in line]
    assert any("25/50 s" in line for line in lines) and "75/75 s" in lines[-1]


def test_quiet_when_quick(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    caplog.set_level("INFO")
    with AudioProgress(100.0) as progress:
        progress.advance(25.0)
        logging.getLogger("asr").info("a message")
    assert caplog.messages == ["a message"] and capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    caplog.set_level("INFO")
    with AudioProgress(100.0, every=0.0) as progress:
        progress.advance(25.0)
        logging.getLogger("asr").info("a message")
        progress.advance(25.0)
    assert "a message\n" in terminal.getvalue() and "s of audio [" in terminal.getvalue()
    assert caplog.messages == ["a message"], "no lines of progress"
