"""`asr train CONFIG`: train a system, or resume an interrupted training."""

from __future__ import annotations

import argparse
import logging

from asr.cli import add_config, limit_threads, read_overrides, require_any_input


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)


def run(args: argparse.Namespace) -> int:
    require_any_input(args.config)
    from asr.errors import UserError
    from asr.system.run_config import RunConfig
    from asr.train.distributed import is_main_process
    from asr.train.loop import train_model
    from asr.train.monitor import LINES

    try:
        config = RunConfig.load(args.config, read_overrides(args))
    except UserError:
        if is_main_process():
            raise
        return 2  # the main process reports the error
    for handler in logging.getLogger().handlers:
        handler.setFormatter(LINES)
    limit_threads(config.train.threads)
    trained = train_model(config)
    if is_main_process():
        print(trained.model_dir)
    return 0
