"""The command line: a table of commands, of which only the chosen one is imported."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from asr.errors import UserError, suggest

# Each command is the module of its name, which imports torch only when it runs: help stays quick.
GROUPS = {
    "data": {
        "manifest": "check, count, split, filter, merge or convert lists of utterances",
        "features": "compute the features of audio files, and draw them",
    },
    "train": {
        "recipe": "list, show or run recipes: from a corpus to trained, compared systems",
        "train": "train a system, or resume an interrupted training",
        "tokenizer": "train the tokenizer that a config describes",
        "ngram": "estimate n-grams from the training texts",
        "pronounce": "write a dictionary for a tokenizer of phones, by espeak-ng",
    },
    "use": {
        "transcribe": "transcribe recordings, as text, subtitles or tables",
        "serve": "a server that speaks OpenAI's audio API, with a page for files and microphone",
        "align": "find the times of the words of a manifest's texts",
        "convert": "write the model of a run, or a Whisper model, as a folder to pass on",
        "info": "explain every setting of a config, or what is in a trained model",
    },
    "measure": {
        "evaluate": "decode a split by one or several methods: error rates with intervals, speed",
        "score": "error rates with intervals, where the errors are, and which system is better",
        "combine": "one text for each utterance, of several systems, by votes or scores",
    },
}
COMMANDS = {name: help_text for commands in GROUPS.values() for name, help_text in commands.items()}


class _Parser(argparse.ArgumentParser):
    """Parser of a command whose errors show its own usage and the nearest option or setting."""

    def __init__(self, **values: Any) -> None:
        super().__init__(allow_abbrev=False, **values)  # --language would be --language-model

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        namespace, unknown = super().parse_known_args(args, namespace)
        if hasattr(namespace, "overrides") and all("=" in word and word[0] != "-" for word in unknown):
            namespace.overrides = [*namespace.overrides, *unknown]  # settings that stand behind an option
        elif unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}; {self._explain(unknown[0])}")
        return namespace, []

    def _explain(self, unknown: str) -> str:
        """Say what may be meant by an argument that is none."""
        word, equals, value = unknown.partition("=")
        options = [option for option in self._option_string_actions if option not in ("-h", "--help")]
        if "--set" in options and ("." in word or (equals and word[0] != "-")):
            prefix = "" if any(action.dest == "overrides" for action in self._actions) else "--set "
            return f"a setting is given as {prefix}{word.lstrip('-')}={value or '...'}"
        longer = [option for option in options if len(word) > 2 and option.startswith(word)]
        near = longer or difflib.get_close_matches(word, options, n=1, cutoff=0.75)
        return f"did you mean {near[0]}?" if near else f"`{self.prog} --help` shows what there is"

    def _check_value(self, action, value):  # type: ignore[no-untyped-def]
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += f"; {suggest(str(value), [*map(str, action.choices)], 'choose one')}"
            raise


# Errors of a disk, a quota or a device that is full.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 if done, 1 if some of the work failed, 2 after wrong use or wrong input."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"asr: {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        if type(error).__module__.partition(".")[0] != "pydantic_core":
            raise
        from asr.config import describe_fault

        print(f"asr: {describe_fault(error)}", file=sys.stderr)  # type: ignore[arg-type]
        return 2
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("asr."):
            raise
        print(f"asr: this needs {error.name}, a part that is not installed here", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("asr: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has gone. Python would complain once more when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(
            f"asr: cannot write the output ({error.strerror}); make room, or write elsewhere", file=sys.stderr
        )
        return 1


def _run(arguments: list[str]) -> int:
    chosen = next((word for word in arguments if word in COMMANDS), None)
    past = arguments.index("--") if "--" in arguments else len(arguments)  # then names of files
    arguments = [*map(_with_dashes, arguments[:past]), *arguments[past:]]
    parser = _Parser(
        prog="asr",
        description="Speech recognition: run dataset recipes, transcribe audio files, score WER.",
        epilog=_list_commands(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", help="one of those below")
    for name, help_text in COMMANDS.items():
        subparser = subparsers.add_parser(name, description=help_text[0].upper() + help_text[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f"asr.cli.{name}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    if args.version:
        from asr import __version__

        print(f"asr {__version__}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    return int(args.run(args))


def _list_commands() -> str:
    """Group the commands, for the end of the help."""
    groups = (
        "\n".join([f"{title}:", *(f"  {name:12}{help_text}" for name, help_text in commands.items()), ""])
        for title, commands in GROUPS.items()
    )
    return "\n".join([*groups, "`asr COMMAND --help` explains a command. Results go to standard output."])


def _with_dashes(word: str) -> str:
    """Spell an option as here: --output_dir becomes --output-dir."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word
