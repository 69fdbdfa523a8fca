"""Commands in a Kaldi wav.scp that only decode a file: which file that is. Nothing is executed."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field

from asr.errors import UserError, shorten


@dataclass(frozen=True)
class Tool:
    """Options of a program with which it only decodes its input file, so that the file can take its place."""

    flags: str = ""  # regular expression
    options: dict[str, str] = field(default_factory=dict)  # name -> regular expression of its value
    output: str | None = None  # second operand, where the program needs one to write to standard output


TOOLS = {
    "cat": Tool(),
    "flac": Tool(r"-[cds]+|--(stdout|decode|silent|totally-silent)"),
    "sph2pipe": Tool("-p", {"-f": "wav|rif|sph", "-c": "[12]"}),
    "sox": Tool(
        "-q|-V[0-6]?",
        {"-t": "wav|wavpcm|flac|sph|nist|mp3|ogg|aiff|au", "-r": r"\d+k?", "-b": "16|24|32"}
        | {"-e": "signed(-integer)?", "-c": "1"},
        output="-",
    ),
    "ffmpeg": Tool(
        "-i|-nostdin|-hide_banner|-vn|-y",  # the value of -i is taken as the first operand
        {"-f": "wav", "-ar": r"\d+", "-ac": "1", "-acodec": "pcm_s16le", "-c:a": "pcm_s16le"}
        | {"-v": r"\w+", "-loglevel": r"\w+"},
        output="-|pipe:1?",
    ),
}
_SHELL_CHARACTERS = set("|;&<>$`()*?{}[]!~#\\\n")


def parse_pipe(command: str) -> tuple[str, str, dict[str, str]]:
    """The file that a command decodes, its program and options; an error if it may do anything else."""
    refused = UserError(
        f"{shorten(command.strip())} is not a plain decoding command; convert the audio to files first"
    )
    if _SHELL_CHARACTERS & set(command):
        raise refused
    try:
        program, *words = shlex.split(command)
    except ValueError:  # an open quote, or nothing at all
        raise refused from None
    program = os.path.basename(program)
    tool = TOOLS.get(program)
    if tool is None:
        raise refused
    operands: list[str] = []
    options: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        if word in tool.options:
            options[word] = next(remaining, "")
            if not re.fullmatch(tool.options[word], options[word]):
                raise refused
        elif word == "-" or not word.startswith("-"):
            operands.append(word)
        elif not re.fullmatch(tool.flags, word):
            raise refused
    outputs = operands[1:]
    expected = 0 if tool.output is None else 1
    if not operands or operands[0] == "-" or len(outputs) != expected:
        raise refused
    if tool.output is not None and not re.fullmatch(tool.output, outputs[0]):
        raise refused
    return operands[0], program, options
