"""`asr train CONF`: train a system, or resume an interrupted training."""

from __future__ import annotations

import argparse
import logging

from asr.cli.options import add_config, read_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--probe", action="store_true", help="train nothing: find the largest batches that memory holds"
    )
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="with --probe: take no more (default: 80%% of what is free)",
    )


def run(args: argparse.Namespace) -> int:
    from asr.errors import UserError
    from asr.system.run_config import RunConfig
    from asr.train.distributed import is_main_process
    from asr.train.loop import train_and_draw
    from asr.train.monitor import LINES

    try:
        config = RunConfig.load(args.config, read_overrides(args))
    except UserError:
        if is_main_process():
            raise
        return 2  # one process says it
    if args.memory is not None and not (args.probe and args.memory > 0):
        raise UserError("--memory: a number of gigabytes above 0, with --probe; correct or remove it")
    if args.probe:
        from asr.train.probe import probe

        print(probe(config, args.memory))
        return 0
    for handler in logging.getLogger().handlers:
        handler.setFormatter(LINES)
    folder = train_and_draw(config)
    if is_main_process():
        print(folder)
    return 0
