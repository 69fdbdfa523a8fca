"""`asr train CONF`: trains a system, or goes on where an earlier call was cut off."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONF", help="YAML file of a run")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", help="settings that replace those of the file"
    )


def run(args: argparse.Namespace) -> int:
    from asr.errors import UserError
    from asr.system.run_config import RunConfig
    from asr.train.distributed import is_main_process
    from asr.train.loop import train_and_draw

    try:
        config = RunConfig.load(args.config, args.overrides)
    except UserError:
        if is_main_process():
            raise
        return 2  # one process says it
    folder = train_and_draw(config)
    if is_main_process():
        print(folder)
    return 0
