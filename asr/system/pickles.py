"""Read weights that torch.save wrote, without executing the pickle."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.errors import UserError

MAX_INDEX_BYTES = 10_000_000  # size of the pickle; a model of 6 GB has one of 0.2 MB
# All that a dict of tensors needs. PyTorch's own list is longer, and includes calls that can fill the memory.
HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in ("Float", "Half", "BFloat16", "Long")),
}


class _StandIn:
    """An empty substitute for objects whose class is not imported."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def read_pickled(path: Path, stand_ins: Collection[str] = ()) -> dict[str, Any]:
    """Read the dict in a file of torch.save. Tensors are memory-mapped, and nothing is executed.

    `stand_ins` are names such as `module class` that the file may also contain; they become empty objects.
    """
    try:
        _check_archive(path, {*HARMLESS, *stand_ins})
        inert: list[Any] = [(_StandIn, name.replace(" ", ".")) for name in stand_ins]
        with torch.serialization.safe_globals(inert):
            tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UserError:
        raise
    except Exception as error:  # PyTorch raises many types, with long messages
        raise _damaged(path, type(error).__name__) from None
    if not isinstance(tree, dict):
        raise _damaged(path, "no dict of weights")
    return tree


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: damaged, or not weights from torch.save ({reason}); download it again")


def _check_archive(path: Path, allowed: set[str]) -> None:
    """Check that the archive is uncompressed, and that its pickle only calls functions that make tensors."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise _damaged(path, "a compressed archive, which torch.save never writes")
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
            f"{path}: would run code ({min(unknown)[:60]}); nothing was run. Weights need no code: use "
            "safetensors, or a file from a source that you trust"
        )


def check_tensors(tensors: Any, path: Path, tied: str = "") -> dict[str, Tensor]:
    """Return a dict of names to tensors, after checking that these are not larger than the file.

    Otherwise a small file could claim any amount of memory. `tied` names a tensor that shares memory.
    """
    is_plain = isinstance(tensors, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    )
    if not is_plain:
        raise _damaged(path, "not a dict of names to tensors")
    num_bytes = sum(tensor.nbytes for name, tensor in tensors.items() if name != tied)
    if num_bytes > path.stat().st_size:
        raise _damaged(path, f"{num_bytes:,} bytes of weights, more than the file")
    return dict(tensors)
