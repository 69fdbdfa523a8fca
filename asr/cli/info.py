"""`asr info CONF`: every setting of a run with its value and what it means."""

from __future__ import annotations

import argparse
import json
import textwrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONF", help="YAML file of a run")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", help="settings that replace those of the file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from asr.config import describe_config
    from asr.run import RunConfig

    config = RunConfig.load(args.config, args.overrides)
    rows = list(describe_config(config))
    if args.json:
        settings = {key: {"value": value, "help": documentation} for key, value, documentation in rows}
        print(json.dumps(settings, ensure_ascii=False, indent=2, default=str))
        return 0
    for key, value, documentation in rows:
        print(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}")
        for line in textwrap.wrap(documentation, width=96):
            print(f"    {line}")
    return 0
