"""Describe how a result came about: command, commit, versions and machine, so that anyone can repeat it."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy
import torch

from asr.recipe.experiment import Experiment
from asr.recipe.processes import count_cores
from asr.system.checkpoint import versions


def describe_origin(experiment: Experiment) -> dict[str, str]:
    """Describe command, versions and machine. Names of folders do not matter, and are private."""
    return {
        "command": experiment.command,
        **versions(),
        "numpy": numpy.__version__,
        "machine": describe_machine(),
    }


def describe_machine() -> str:
    """Name the GPU, if there is one, and the processor with the cores that this process may use."""
    processor = f"{_processor()}, {count_cores()} cores"
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {processor}"
    return processor


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
