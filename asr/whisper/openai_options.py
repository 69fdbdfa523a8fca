"""Options of openai-whisper's command line that `asr transcribe` also accepts."""

from __future__ import annotations

import argparse
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

# Options of openai-whisper, and the equivalent settings.
WHISPER_OPTIONS = {
    "--best-of": "decoding.samples",
    "--compression-ratio-threshold": "checks.max_compression",
    "--logprob-threshold": "checks.min_log_probability",
    "--no-speech-threshold": "checks.max_no_speech",
    "--max-line-width": "subtitles.line_width",
    "--max-line-count": "subtitles.max_lines",
    "--fp16": "precision",
}
# Options whose usual values have no effect, and why no other value is accepted.
IDLE_OPTIONS = {
    "--word-timestamps": ("True False", "json always has word times"),
    "--temperature": (
        "0 0.0",
        "only rejected texts are sampled, at the temperatures of --set decoding.temperatures=[...]",
    ),
    "--condition-on-previous-text": (
        "False",
        "segments are decoded in parallel, so none has another's text as context; use --prompt",
    ),
}


def _name_setting(setting: str, value: str) -> str:
    """Convert the value of an openai-whisper option to a setting."""
    values = {"True": "fp16", "False": "float32"} if setting == "precision" else {"None": "null"}
    return f"{setting}={values.get(value, value)}"


def _name_temperatures(value: str) -> str:
    """Convert the step between temperatures to a setting with all of them up to 1; None: no others."""
    if not re.fullmatch(r"None|0\.(?:[1-9]\d?|0[1-9])|1(?:\.0)?", value):
        raise argparse.ArgumentTypeError(f"{value!r}: expected None, or a number from 0.01 to 1 such as 0.2")
    step = math.inf if value == "None" else float(value)
    temperatures = [f"{count * step:.6g}" for count in range(1, int(1 / step + 1e-6) + 1)]
    return f"decoding.temperatures=[{','.join(temperatures)}]"


def _require_idle(idle: Sequence[str], reason: str, value: str) -> None:
    """Refuse a value of an openai-whisper option that would have an effect there."""
    if value not in idle:
        raise argparse.ArgumentTypeError(f"{value!r} is not supported: {reason}. Leave the option out")


def add_options(
    parser: argparse.ArgumentParser, formats: Sequence[str], read_clip: Callable[[str], object]
) -> None:
    """Add these options; `formats` and `read_clip` are the command's output formats and `--clip` parser."""
    title = """Other names for these options and settings, as in OpenAI's command line. Also accepted, without
    effect: --temperature 0, --word-timestamps and --condition-on-previous-text False."""
    add = parser.add_argument_group("openai-whisper", title).add_argument
    shown: dict[str, Any] = {"metavar": "FORMAT", "choices": formats, "action": "append"}
    add("-f", "--output-format", dest="format", help="--format FORMAT", **shown)
    add("--initial-prompt", dest="prompt", metavar="TEXT", help="--prompt TEXT")
    add("--clip-timestamps", dest="clip", metavar="START,END", type=read_clip, help="--clip START,END")
    for option, setting in WHISPER_OPTIONS.items():
        text = f"--set {setting}=VALUE"
        if option == "--fp16":
            text = f"True: --set {setting}=fp16; False: --set {setting}=float32"
        kind = functools.partial(_name_setting, setting)
        add(option, dest="set", metavar="VALUE", type=kind, action="append", help=text)
    text = "--set decoding.temperatures=[VALUE,2*VALUE,...], up to 1; None: []"
    increment, shown = "--temperature-increment-on-fallback", {"metavar": "VALUE", "action": "append"}
    add(increment, dest="set", type=_name_temperatures, help=text, **shown)
    for option, (idle, reason) in IDLE_OPTIONS.items():
        check = functools.partial(_require_idle, idle.split(), reason)
        add(option, dest="idle", type=check, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
