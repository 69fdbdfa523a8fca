"""`python -m asr` is the `asr` command."""

import atexit
import os
import sys
from typing import NoReturn

from asr.cli import main


def run() -> NoReturn:
    """Run one command, then exit without unloading PyTorch, which would take half a second."""
    status = main()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
