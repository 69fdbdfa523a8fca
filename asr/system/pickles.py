"""Weights that torch.save wrote, read out of pickles without running them."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.errors import UserError

MAX_INDEX_BYTES = 10_000_000  # of a pickle: that of a model of 6 GB has 0.2 MB
# All that a dict of tensors needs. PyTorch's own list is longer, and has things that fill the memory.
HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in ("Float", "Half", "BFloat16", "Long")),
}


class _StandIn:
    """Takes the place of an object of a class that is not imported, and keeps nothing of it."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def read_pickled(path: Path, stand_ins: Collection[str] = ()) -> dict[str, Any]:
    """Read the dict in a file of torch.save; tensors are mapped from the file, and nothing is executed.

    `stand_ins`: names such as `module class` that the file may have too, and that become empty objects.
    """
    try:
        _check_archive(path, {*HARMLESS, *stand_ins})
        inert: list[Any] = [(_StandIn, name.replace(" ", ".")) for name in stand_ins]
        with torch.serialization.safe_globals(inert):
            tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UserError:
        raise
    except Exception as error:  # PyTorch says in many ways, and at length, what is wrong
        raise _damaged(path, type(error).__name__) from None
    if not isinstance(tree, dict):
        raise _damaged(path, "no dict of weights")
    return tree


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: no file of weights by torch.save, or damaged ({reason}); download it again")


def _check_archive(path: Path, allowed: set[str]) -> None:
    """Check that the archive holds plain bytes, and its pickle only what makes tensors."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise _damaged(path, "a compressed archive, as torch.save never writes it")
        (pickle,) = (entry for entry in entries if entry.filename.endswith("data.pkl"))
        num_bytes = sum(entry.file_size for entry in entries)
        if pickle.file_size > MAX_INDEX_BYTES or num_bytes > path.stat().st_size:
            raise _damaged(path, f"{pickle.file_size:,} bytes of index, {num_bytes:,} in all")
        content = archive.read(pickle)
    calls = ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4")
    names = {
        str(argument) if opcode.name == "GLOBAL" else opcode.name
        for opcode, argument, _ in pickletools.genops(content)
        if opcode.name in ("GLOBAL", *calls)
    }
    if unknown := names - allowed:
        raise UserError(
            f"{path}: would run code ({min(unknown)[:60]}); nothing was run. Weights need none: do not "
            "use this file, take safetensors, or a file of a source that you trust"
        )


def check_tensors(tensors: Any, path: Path, tied: str = "") -> dict[str, Tensor]:
    """Names to tensors that are no larger than the file: else a few bytes could ask for any memory.

    `tied`: the name of a tensor that shares its memory with another one.
    """
    is_plain = isinstance(tensors, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    )
    if not is_plain:
        raise _damaged(path, "no names and tensors")
    num_bytes = sum(tensor.nbytes for name, tensor in tensors.items() if name != tied)
    if num_bytes > path.stat().st_size:
        raise _damaged(path, f"{num_bytes:,} bytes of weights in a smaller file")
    return dict(tensors)
