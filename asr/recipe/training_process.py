"""Train one run of a recipe in a process of its own: `python -m asr.recipe.training_process CONF`."""

from __future__ import annotations

import logging
import sys

from asr.errors import UserError
from asr.recipe.processes import end_with_standard_input
from asr.system.run_config import RunConfig
from asr.train.loop import train


def main(conf: str) -> int:
    """Train; return the exit status, as that of `asr`."""
    end_with_standard_input()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    try:
        train(RunConfig.load(conf))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
