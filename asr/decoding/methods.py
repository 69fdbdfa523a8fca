"""The names of the ways to decode: the command line offers them without importing how they work."""

from __future__ import annotations

from typing import Literal, get_args

# The cheapest first.
Method = Literal["auto", "ctc_greedy", "parallel", "ctc_beam", "attention", "rescoring", "joint"]
METHODS: tuple[Method, ...] = get_args(Method)
