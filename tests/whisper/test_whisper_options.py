"""Options with the names of openai-whisper's command line, and errors for wrong ones."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr.cli import main, transcribe_command
from asr.config import build_config
from asr.transcription.arguments import TranscriptionSettings

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-openai-whisper.md"
ROWS = re.findall(r"^\| `(--[^`]+)` \| `(--[^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)


def parse(options: str) -> argparse.Namespace:
    with pytest.MonkeyPatch.context() as patch:
        parsed: list[argparse.Namespace] = []
        patch.setattr(transcribe_command, "run", lambda args: parsed.append(args) or 0)
        assert main(["transcribe", "a.wav", *options.split()]) == 0
    del parsed[0].run
    return parsed[0]


@pytest.mark.parametrize(("theirs", "ours"), ROWS)
def test_the_page_lists_options_that_mean_the_same(theirs: str, ours: str) -> None:
    found, expected = parse(theirs), parse(ours)
    assert vars(found) == vars(expected) and vars(found) != vars(parse(""))


def test_the_page_has_every_option_that_help_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["transcribe", "--help"])
    group = capsys.readouterr().out.split("\nopenai-whisper:\n")[1].split("\n\n")[1]
    shown = {name.replace("-", "_") for name in re.findall(r"^  (?:-f FORMAT, )?--(\S+) [A-Z]", group, re.M)}
    on_page = {theirs.split()[0].removeprefix("--") for theirs, _ in ROWS}
    assert {"best_of", "fp16", "initial_prompt", "output_format"} < shown <= on_page


def test_options_of_theirs_become_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.wav").touch()
    words = "--best-of 3 --fp16 False --no-speech-threshold None --logprob-threshold -0.5 -f srt -f vtt"
    found = parse(words)
    assert found.format == ["srt", "vtt"]
    settings: Any = build_config(TranscriptionSettings, found.set)
    assert (settings.decoding.samples, settings.precision) == (3, "float32")
    assert settings.checks.max_no_speech is None and settings.checks.min_log_probability == -0.5
    for wrong in (["--best-of", "many"], ["--fp16", "perhaps"]):
        assert main(["transcribe", "a.wav", "--model", "whisper-base", *wrong]) == 2
        assert wrong[1] in capsys.readouterr().err


# Options of openai-whisper 20250625 that are options here by the same name, or change nothing.
THEIRS = """
device=cpu output_dir=out verbose=True task=transcribe language=en threads=0 temperature=0 word_timestamps=False
condition_on_previous_text=False
"""
IDLE = ("verbose", "temperature", "word_timestamps", "condition_on_previous_text")


@pytest.mark.parametrize(("name", "value"), [pair.split("=") for pair in THEIRS.split()])
def test_options_of_the_same_name_and_idle_ones(name: str, value: str) -> None:
    found = vars(parse(f"--{name} {value}"))
    found.pop("idle", None)
    assert (found == vars(parse(""))) == (name in IDLE)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--temperature 0.5", "--set decoding.temperatures"),
        ("--condition_on_previous_text True", "use --prompt"),
        ("--patience 2", "unrecognized arguments"),
        ("--temperature_increment_on_fallback 0", "from 0.01 to 1"),
    ],
)
def test_a_value_that_would_change_something_is_refused(
    option: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["transcribe", "a.wav", *option.split()])
    assert reason in capsys.readouterr().err


def test_their_temperatures() -> None:
    """The values of numpy.arange(0, 1 + 1e-6, step) without the first."""
    for step in ("0.05", "0.1", "0.2", "0.3", "0.35", "1.0"):
        settings: Any = build_config(
            TranscriptionSettings, parse(f"--temperature_increment_on_fallback {step}").set
        )
        assert settings.decoding.temperatures == pytest.approx(np.arange(0, 1 + 1e-6, float(step))[1:])
    assert parse("--temperature_increment_on_fallback None").set == ["decoding.temperatures=[]"]


def test_underscores_are_dashes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In the option names of every command, and nowhere else."""
    for arguments in (
        ["evaluate", "no_model", "no_file", "--batch_size", "0"],
        ["transcribe", "--batch_size=0", "--", "--no_file.wav"],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "--batch-size: '0': expected" in capsys.readouterr().err
    (tmp_path / "a_b").touch()
    assert main(["transcribe", str(tmp_path / "a_b"), "--model", "no_model_here"]) == 2
    assert "no_model_here" in capsys.readouterr().err


def test_help_is_short_before_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["transcribe", "--help"])
    first, more = capsys.readouterr().out.split("\nmore:\n")
    options = [line for line in first.splitlines() if line.startswith("  -")]
    assert 5 < len(options) <= 11 and "--beam" in more
