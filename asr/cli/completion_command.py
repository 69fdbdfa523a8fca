"""`asr completion bash|zsh|fish`: print a script that completes commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

# Each asks `asr completion SHELL -- WORD...` what the last word may be, and shows files if that is nothing.
SCRIPTS = {
    "bash": """_asr() {
    local IFS=$'\\n' found; found=$(asr completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _asr asr""",
    "zsh": """_asr() {
    local found=(${(f)"$(asr completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    compadd -a found || _files
}
compdef _asr asr""",
    "fish": "complete -c asr -a '(asr completion fish -- (commandline -opc)[2..] (commandline -ct))'",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SCRIPTS, help="the shell that is to read the script")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    print("\n".join(find_candidates(args.words)) if args.words else SCRIPTS[args.shell])
    return 0


def find_candidates(words: Sequence[str]) -> list[str]:
    """Find what the last word may be; nothing: a file, or a value that has no list."""
    from asr.cli import build_parser

    *before, last = words
    parser = build_parser(before)
    for word in before:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parser = action.choices.get(word, parser)
    option = parser._option_string_actions.get(before[-1]) if before else None
    if option is not None and option.nargs != 0:
        return list(option.choices or ())
    if last.startswith("-"):
        return [name for name in parser._option_string_actions if name.startswith("--")]
    return [choice for action in parser._get_positional_actions() for choice in action.choices or ()]
