"""asr/train/learner: memory between updates."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from asr.train import keep_freed_memory

def count_faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(count_faults(25_000_000), count_faults(24_000_000))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such switch")
def test_freed_memory_is_kept() -> None:
    """A second tensor finds the pages of the first, of which there are 24,000."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert second < first / 10
