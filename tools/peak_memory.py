"""The most memory that this process has had. `resource.getrusage` would count what its parent had, too."""

from __future__ import annotations

import math
from pathlib import Path


def read_peak() -> float:
    """Megabytes; NaN where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), math.nan)
