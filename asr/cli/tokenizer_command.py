"""`asr tokenizer CONFIG`: train the tokenizer of a run on the transcripts of its training data."""

from __future__ import annotations

import argparse
import logging

from asr.cli import add_config, read_overrides

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--output", metavar="FILE", help="default: tokenizer.json in output_dir")


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from asr.system.run_config import RunConfig
    from asr.train.preparation import read_tokenizer_texts, train_tokenizer

    config = RunConfig.load(args.config, read_overrides(args))
    tokenizer = train_tokenizer(config, read_tokenizer_texts(config))
    output = Path(args.output or Path(config.output_dir) / "tokenizer.json")
    tokenizer.save(output)
    kind, source = config.tokenizer.type, config.data.train_name
    logger.info("%s: %d tokens (%s) from %s", output, len(tokenizer), kind, source)
    print(output)
    return 0
