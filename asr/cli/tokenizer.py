"""`asr tokenizer CONF`: trains the tokenizer of a run on the transcripts of its training data."""

from __future__ import annotations

import argparse
import logging

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONF", help="YAML file of a run")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", help="settings that replace those of the file"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="where to write it (default: tokenizer.json in output_dir)"
    )


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from asr.system.run_config import RunConfig
    from asr.train.preparation import train_tokenizer

    config = RunConfig.load(args.config, args.overrides)
    tokenizer = train_tokenizer(config)
    output = Path(args.output or Path(config.output_dir) / "tokenizer.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(output)
    logger.info(
        "%s: %d tokens (%s) from %s", output, len(tokenizer), config.tokenizer.type, config.data.train_name
    )
    print(output)
    return 0
