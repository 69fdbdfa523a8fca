"""Options of the four tools: each rule of the table leads to options that we have, and nothing is lost."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import pytest

from asr.cli import main, transcribe
from asr.cli.whisper_options import ABSENT, RULES, SAME, translate_options
from asr.config import build_config
from asr.errors import UserError
from asr.transcription.settings import TranscriptionSettings


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    transcribe.add_arguments(parser)
    return parser.parse_args(translate_options(arguments))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("a.mp3 --output-format srt -o out", "a.mp3 --format=srt --output-dir=out"),
        (
            "-m ggml-tiny.bin -f a.wav -l auto -t 4 -osrt",
            "--model=ggml-tiny.bin a.wav --threads=4 --format=srt",
        ),
        ("a.wav -f json", "a.wav --format=json"),
        ("-f - -l de", "- --language=de"),
        ("a.wav --language Japanese --task translate", "a.wav --language=Japanese --task translate"),
        ("a.wav --fp16 False --verbose False", "a.wav --set=precision=float32"),
        ("a.wav --compute-type int8_bfloat16", "a.wav --set=precision=int8_bf16"),
        ("a.wav --logprob-threshold -1.5", "a.wav --set=checks.min_log_probability=-1.5"),
        ("a.wav --no-speech-threshold None", "a.wav --set=whisper.max_no_speech=null"),
        ("a.wav --vad-filter True --word-timestamps=True", "a.wav"),
        (
            "a.wav --vad-filter False --condition-on-previous-text True",
            "a.wav --set=whisper.windows=sequential --set=whisper.condition_on_previous_text=true",
        ),
        ("a.wav --temperature 0 --best-of 3", "a.wav --set=whisper.samples=3"),
        ("a.wav --device 1 --beam-size 5", "a.wav --device=cuda:1 --beam=5"),
        ("a.wav --device cpu --no-gpu", "a.wav --device=cpu --device=cpu"),
        ("a.wav --vad", "a.wav"),
        ("--max-line-width 40 -- -m", "--set=subtitles.line_width=40 -- -m"),
        ("a.wav --decoding joint --set x.y=1", "a.wav --decoding joint --set x.y=1"),
    ],
)
def test_translated(theirs: str, ours: str) -> None:
    assert translate_options(theirs.split()) == ours.split()


def test_a_value_keeps_its_spaces_and_signs() -> None:
    assert parse("a.wav", "--initial-prompt", "VALUE -m, = 1").prompt == "VALUE -m, = 1"
    assert translate_options(["--initial-prompt=A B"]) == ["--prompt=A B"]


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ("--vad-filter maybe", "--vad-filter maybe: expected True or False"),
        ("--beam-size", "--beam-size: expected None or VALUE"),
        ("--temperature 0.5", "--set whisper.temperatures"),
        ("--offset-t 1000", "give --clip START,END in seconds"),
        ("--diarize", "speakers are not told apart"),
        ("--compute-type int8_float16", "give --set precision=int8"),
    ],
)
def test_what_is_not_the_same_names_ours(theirs: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        translate_options(theirs.split())


def test_what_is_always_so_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    translate_options(["--word-timestamps", "True"])
    assert caplog.messages == ["--word-timestamps True: it is always so here"]


# A value of ours that is not the default; 8 elsewhere.
EXAMPLES = {
    "--format=VALUE": "srt",
    "--clip=VALUE": "1,2",
    "--set=whisper.max_no_speech=VALUE": "0.5",
    "--set=checks.min_log_probability=VALUE": "-1.5",
    "--set=segmentation.max_seconds=VALUE": "25",
    "--set=segmentation.speech_threshold=VALUE": "0.6",
}
CASES = [
    (name, values, replacement)
    for name, rules in RULES.items()
    for values, replacement in rules
    if not replacement.startswith(ABSENT) and replacement != SAME
]


@pytest.mark.parametrize(("name", "values", "replacement"), CASES)
def test_every_rule_leads_to_what_we_have(name: str, values: str, replacement: str) -> None:
    """Our parser takes the option, and the settings take the key and the value."""
    value = EXAMPLES.get(replacement, "8") if values == "VALUE" else values.split("|")[0]
    args = parse(name, *([value] if value else []))
    settings = build_config(TranscriptionSettings, args.set)
    assert args != parse() and (not args.set or settings != TranscriptionSettings())


@pytest.mark.parametrize(("name", "rules"), RULES.items())
def test_no_rule_hides_another(name: str, rules: list[tuple[str, str]]) -> None:
    """A rule without values, or with any, is the last but for that of an option without a value."""
    for values, _ in rules[:-1]:
        assert values and (values != "VALUE" or rules[-1][0] == "")


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


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("--output_fomat", "--output-format"), ("--languge", "--language"), ("--beem", "--beam")],
)
def test_a_wrong_option_shows_the_usage_and_the_nearest(
    wrong: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["transcribe", "a.wav", wrong, "x"])
    shown = capsys.readouterr().err
    assert caught.value.code == 2 and shown.startswith("usage: asr transcribe AUDIO...")
    assert f"did you mean {near}?" in shown


def test_a_wrong_option_of_a_command_below_another(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["manifest", "validate", "a.jsonl", "--nonsense"])
    assert capsys.readouterr().err.startswith("usage: asr manifest validate")


def test_help_is_short_before_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["transcribe", "--help"])
    first, more = capsys.readouterr().out.split("\nmore:\n")
    options = [line for line in first.splitlines() if line.startswith("  -")]
    assert 5 < len(options) <= 10 and "--beam" in more
