"""Progress: lines now and then where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from asr.cli import AudioProgress


def test_lines_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with AudioProgress(100.0, every=0.0) as progress:
        progress.advance(25.0)
        progress.advance(50.0)
        progress.advance(25.0)  # at the end there is a summary
    assert [message.split(",")[0] for message in caplog.messages] == [
        "25 of 100 s of audio",
        "75 of 100 s of audio",
    ]
    assert all("s left" in message for message in caplog.messages)


def test_quiet_when_quick(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    caplog.set_level("INFO")
    with AudioProgress(100.0) as progress:
        progress.advance(25.0)
        logging.getLogger("asr").info("a message")
    assert caplog.messages == ["a message"] and capsys.readouterr().err == ""


def test_more_than_was_promised(caplog: pytest.LogCaptureFixture) -> None:
    """Headers may not say how long a file is."""
    caplog.set_level("INFO")
    with AudioProgress(0.0, every=0.0) as progress:
        progress.advance(5.0)
    assert caplog.messages == []


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
