"""A checkpoint is a self-contained folder: weights, config, tokenizer and the progress of training.

    model.safetensors     weights to use
    training.safetensors  what only training needs: optimizer moments, and the raw weights next to an average
    config.yaml           the effective settings
    tokenizer.json
    state.json            step, scores, versions
    decoding.yaml         optional: how to decode the model, with its language model and word list

Folders are written under another name and then renamed, so any that exists is complete. None has pickles.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from asr import __version__
from asr.config import dump_config
from asr.errors import UserError
from asr.files import CHECKOUT, require_local, usual_mode
from asr.models.layers import Net
from asr.system.system import MODEL_PREFIX, System, read_tensors

PUBLISHED = ("recipes/*/results/*", "recipes/*/studies/*")  # results, whose changes do not affect new runs


def save_checkpoint(
    folder: Path, system: System[Net], state: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write a checkpoint atomically. `weights`, such as an average, replace the model's own.

    Versions in `state` are kept, because they describe the software that trained the model.
    """
    write_checkpoint(folder, system, state, copy_tensors(system, weights))


def copy_tensors(
    system: System[Net],
    weights: Mapping[str, Tensor] | None = None,
    training: Mapping[str, Tensor] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Copy the tensors of a checkpoint to memory, by file, so that training can continue meanwhile."""
    weights = system.model.state_dict() if weights is None else weights
    tensors = {f"{MODEL_PREFIX}{name}": tensor for name, tensor in weights.items()}
    files = {"model.safetensors": tensors}
    if training is not None:
        files["training.safetensors"] = dict(training)
    # Copies are needed also because safetensors refuses tensors that share memory, such as tied embeddings.
    return {
        file: {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in own.items()}
        for file, own in files.items()
    }


def write_checkpoint(
    folder: Path, system: System[Net], state: Mapping[str, Any], files: Mapping[str, dict[str, Tensor]]
) -> None:
    """Write a checkpoint atomically, with the `files` that `copy_tensors` returned."""
    require_local(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, tensors in files.items():
            with usual_mode(temporary / name):
                save_file(tensors, temporary / name)
        (temporary / "config.yaml").write_text(dump_config(system.config), encoding="utf-8")
        system.tokenizer.save(temporary / "tokenizer.json")
        (temporary / "state.json").write_text(dump_state(state), encoding="utf-8")
        for file in temporary.iterdir():
            _flush_to_disk(file)
        replaced = folder.with_name(f".{folder.name}.replaced.tmp")
        shutil.rmtree(replaced, ignore_errors=True)
        if folder.exists():
            folder.rename(replaced)
        temporary.rename(folder)
        _flush_to_disk(folder.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{folder}: cannot write this checkpoint ({reason}); earlier checkpoints are unchanged. "
            "Free some space and run the same command again: it resumes from the last one"
        ) from None


def dump_state(state: Mapping[str, Any]) -> str:
    """Return the content of state.json."""
    return json.dumps({**versions(), **state}, indent=2)


class BackgroundWriter(ThreadPoolExecutor):
    """Writes checkpoints one by one while training continues. Leaving the context waits for the last."""

    def __init__(self) -> None:
        super().__init__(1)
        self._last: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        self._last = self.submit(write)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk. Raises any error that occurred while writing it."""
        if self._last is not None:
            self._last.result()


def remove_unfinished(output_dir: Path) -> None:
    """Remove incomplete folders of a killed training. No other process may be writing to the folder."""
    for pattern in (".model.*.tmp", "checkpoints/.step-*.tmp"):
        for folder in output_dir.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)


def average_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of several checkpoints, for `save_checkpoint`."""
    sums: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in read_tensors(folder / "model.safetensors"):
            if name.startswith(MODEL_PREFIX):
                sums[name] = sums.get(name, 0) + tensor.double()
    return {name.removeprefix(MODEL_PREFIX): (total / len(folders)).float() for name, total in sums.items()}


@functools.cache
def find_commit() -> str:
    """Return the commit of this package at the first call, as the checkout may change during a run."""
    return describe_commit(CHECKOUT)


def describe_commit(root: Path) -> str:
    """Return the commit, with -dirty if more than published results has changed; "unknown" without Git."""
    if not (root / ".git").exists():
        return "unknown"

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        outside = [".", *(f":(exclude){path}" for path in PUBLISHED)]
        changed = git("status", "--porcelain", "--untracked-files=all", "--", *outside)
        return git("rev-parse", "--short=12", "HEAD") + "-dirty" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions of the software that writes a checkpoint."""
    return {
        "asr": __version__,
        "commit": find_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
