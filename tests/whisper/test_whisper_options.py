"""Options on the page for users of openai-whisper, and how wrong options are met."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from asr.cli import main, transcribe_command

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-whisper.md"
ROWS = re.findall(r"^\| `(--[^`]+)` \| `(--[^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)


def parse(options: str) -> argparse.Namespace:
    with pytest.MonkeyPatch.context() as patch:
        parsed: list[argparse.Namespace] = []
        patch.setattr(transcribe_command, "run", lambda args: parsed.append(args) or 0)
        assert main(["transcribe", "a.wav", *options.split()]) == 0
    del parsed[0].run
    return parsed[0]


@pytest.mark.parametrize("ours", [row[1] for row in ROWS])
def test_the_page_lists_options_that_there_are(ours: str) -> None:
    assert vars(parse(ours)) != vars(parse(""))


def test_underscores_are_dashes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In the names of options of every command, and nowhere else."""
    for arguments in (
        ["evaluate", "no_model", "no_file", "--batch_size", "0"],
        ["transcribe", "--batch_size=0", "--", "--no_file.wav"],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "--batch-size: '0': expected" in capsys.readouterr().err
    assert main(["transcribe", str(tmp_path / "a_b"), "--model", "no_model_here"]) == 2
    assert "no_model_here" in capsys.readouterr().err


def test_help_is_short_before_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["transcribe", "--help"])
    first, more = capsys.readouterr().out.split("\nmore:\n")
    options = [line for line in first.splitlines() if line.startswith("  -")]
    assert 5 < len(options) <= 10 and "--beam" in more
