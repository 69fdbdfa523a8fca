"""Import PyTorch in less time, for commands that only run a model."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

# Kernels, in Python, of tensors without memory: a third of the import, for PyTorch's compiler alone.
_LEFT_OUT = ("torch._meta_registrations", "torch.distributed._meta_registrations")
_COMPILER = "torch._dynamo"


def import_torch() -> None:
    """Import it without what only its compiler needs, and without looking for garbage meanwhile."""
    if "torch" in sys.modules:
        return
    gc.disable()
    sys.modules.update({name: ModuleType(name) for name in _LEFT_OUT})
    try:
        importlib.import_module("torch")
    finally:
        for name in _LEFT_OUT:
            del sys.modules[name]
        gc.freeze()
        gc.enable()
    sys.meta_path.insert(0, _ImportTheRest())


class _ImportTheRest(MetaPathFinder):
    """Import what was left out before the compiler is."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == _COMPILER:
            sys.meta_path.remove(self)
            for one in _LEFT_OUT:
                importlib.import_module(one)
