"""The command line: a table of commands, of which only the chosen one is imported."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import logging
import os
import sys
from collections.abc import Iterable, Sequence

from asr.errors import UserError

# group -> name -> (module below asr.cli, help). Modules import torch only when they run: help stays quick.
GROUPS = {
    "data": {
        "manifest": ("manifest", "check, count, split, filter, merge or convert lists of utterances"),
        "features": ("features", "compute the features of audio files, and draw them"),
    },
    "train": {
        "recipe": ("recipe", "list, show or run recipes: from a corpus to trained, compared systems"),
        "train": ("train", "train a system, or resume an interrupted training"),
        "tokenizer": ("tokenizer", "train the tokenizer that a config describes"),
        "ngram": ("ngram", "estimate n-grams from the training texts"),
    },
    "use": {
        "transcribe": ("transcribe", "transcribe recordings, as text, subtitles or tables"),
        "serve": ("serve", "a server that speaks OpenAI's audio API, with a page for files and microphone"),
        "align": ("align", "find the times of the words of a manifest's texts"),
        "convert": ("convert", "write the model of a run, or a Whisper model, as a folder to pass on"),
        "info": ("info", "explain every setting of a config, or what is in a trained model"),
    },
    "measure": {
        "evaluate": (
            "evaluate",
            "decode a split by one or several methods: error rates with intervals, speed",
        ),
        "score": ("score", "error rates with intervals, where the errors are, and which system is better"),
        "combine": ("combine", "one text for each utterance, by vote of three or more systems"),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


class _Parser(argparse.ArgumentParser):
    """Parser of a command whose errors show its own usage and the nearest option."""

    aliases: Iterable[str] = ()
    """Other names that are understood."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        namespace, unknown = super().parse_known_args(args, namespace)
        if getattr(namespace, "overrides", None) is not None and all(
            "=" in w and w[0] != "-" for w in unknown
        ):
            namespace.overrides += unknown  # settings that stand behind an option
            return namespace, []
        if unknown:
            known = [*self._option_string_actions, *self.aliases]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; `{self.prog} --help` shows what there is"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return namespace, unknown

    def _check_value(self, action, value):  # type: ignore[no-untyped-def]
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if near := difflib.get_close_matches(str(value), map(str, action.choices), n=1, cutoff=0.75):
                error.message += f"; did you mean {near[0]}?"
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
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", help="one of those below")
    for name, (module_name, help_text) in COMMANDS.items():
        subparser = subparsers.add_parser(name, description=help_text[0].upper() + help_text[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f"asr.cli.{module_name}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
            if name == "transcribe":
                subparser.aliases = module.RULES
                arguments = module.translate_options(arguments)
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
    lines = []
    for title, commands in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:12}{help_text}" for name, (_, help_text) in commands.items()), ""]
    lines.append("`asr COMMAND --help` explains a command. Results go to standard output.")
    return "\n".join(lines)


def _with_dashes(word: str) -> str:
    """Spell an option as here: --output_dir becomes --output-dir."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word
