"""Options that several commands share: settings, how audio becomes text, and on which device."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from asr.errors import UserError
from asr.files import require_local

if TYPE_CHECKING:
    from asr.scale.ray_pool import PoolOptions

# For help; `DecodingConfig` checks the name, but its import would load torch.
DECODING_METHODS = "auto, ctc_greedy, parallel, ctc_beam, attention, rescoring or joint"


def whole_number(least: int, most: int = 999_999_999) -> Callable[[str], int]:
    """Make the type of an option whose value is a whole number from `least` to `most`."""
    limits = f"from {least} on" if most == 999_999_999 else f"from {least} to {most}"

    def parse(text: str) -> int:
        if not (re.fullmatch("[0-9]{1,9}", text) and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number {limits}")
        return int(text)

    return parse


def add_settings(parser: argparse._ActionsContainer, help_text: str) -> None:
    """Add --set KEY=VALUE, spelled alike in all commands."""
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=help_text)


def add_config(parser: argparse.ArgumentParser, help_text: str = "YAML file of a run") -> None:
    """Add CONF and the settings that replace those of the file; `read_overrides` joins both spellings."""
    parser.add_argument("config", metavar="CONF", help=help_text)
    parser.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="settings that replace those of the file",
    )
    add_settings(parser, "the same, as in other commands; may be repeated")


def read_overrides(args: argparse.Namespace) -> list[str]:
    return [*args.overrides, *args.set]


def add_batch_size(parser: argparse._ActionsContainer, items: str) -> None:
    """Add --batch-size. `items`: what a batch is made of, for the help."""
    parser.add_argument(
        "--batch-size",
        type=whole_number(1),
        default=8,
        metavar="N",
        help=f"{items} at once (default: 8)",
    )


def add_device(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:1 (default: auto, a GPU if there is one)"
    )


def add_decoding_options(parser: argparse._ActionsContainer, items: str) -> None:
    """Add the options of commands that decode. `items`: what a batch is made of, for the help."""
    parser.add_argument(
        *("--beam", "--beam-size"),
        type=whole_number(1),
        metavar="N",
        help="beam size (default: 10; of Whisper 1)",
    )
    parser.add_argument(
        "--language-model",
        metavar="PATH",
        help="folder of a language model's run, or an ARPA file, for shallow fusion (its weight: 0.3, or "
        "--set decoding.language_model_weight=...)",
    )
    parser.add_argument(
        "--lexicon",
        metavar="FILE",
        help="allow the words of this file only: plain text named .txt, or the texts of a manifest",
    )
    add_batch_size(parser, items)
    parser.add_argument(
        "--threads", type=whole_number(0), metavar="N", help="threads of the CPU (default: one for each core)"
    )
    add_device(parser)


def add_engine(
    parser: argparse._ActionsContainer, units: str = "in units of about 30 minutes of audio"
) -> None:
    """Add where the work is done: in this process, or in several of Ray."""
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help=f"ray: several processes, {units}, and go on after the failure of one (needs the extra `ray`; "
        "default: local, this process alone)",
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="the Ray cluster to work on, such as auto or ray://host:10001"
    )
    parser.add_argument(
        "--workers",
        type=whole_number(1),
        metavar="N",
        help="processes of Ray (default: one for each GPU; where none is used, one for each core)",
    )


def find_pool(args: argparse.Namespace) -> PoolOptions | None:
    """The processes of Ray that are asked for; None: this one alone."""
    if args.engine == "ray":
        from asr.scale.ray_pool import PoolOptions

        return PoolOptions(args.ray, args.workers, getattr(args, "threads", None))
    if args.ray is not None or args.workers is not None:
        raise UserError("--ray and --workers go with --engine ray; give it, or leave them out")
    return None


def refuse_to_overwrite(source: str, target: str) -> None:
    require_local(target)
    if os.path.realpath(source) == os.path.realpath(target):
        raise UserError(f"{target}: is the input as well; write to another path")


def limit_threads(threads: int | None) -> None:
    """Use so many threads; None, or 0 as whisper.cpp writes it: as many as there are cores."""
    import torch

    if threads:
        torch.set_num_threads(threads)
