"""Packages that add models, encoders or tokenizers: found by name, and nothing else needs them."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType

# A package may have `sections` (of a run's YAML), `tokenizer_units` and `family` (of ready models).
EXTENSIONS = ("asr.whisper",)


def find_extensions(name: str) -> list[ModuleType]:
    """Import the module `name` of each extension that is there and has one."""
    modules = [f"{package}.{name}" for package in EXTENSIONS if find_spec(package)]
    return [importlib.import_module(module) for module in modules if find_spec(module)]
