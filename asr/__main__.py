"""`python -m asr` is the `asr` command."""

import sys

from asr.cli import main

sys.exit(main())
