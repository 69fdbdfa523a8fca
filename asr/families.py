"""Find models: those of runs, and those of families of pretrained models, such as Whisper.

A family is a folder of `asr` and a name in FAMILIES. The core imports it here alone, so if the folder is
deleted, the core still trains models and transcribes with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from asr.errors import UserError, suggest
from asr.files import find_shipped

if TYPE_CHECKING:
    import argparse

    import torch

    from asr.audio.segmentation import SegmentationConfig
    from asr.config import Config, Precision
    from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
    from asr.models.layers import Net
    from asr.system.run_config import RunConfig
    from asr.system.system import System
    from asr.text.tokenizer import Units
    from asr.transcription.transcribe import Recognizer


class Family(Protocol):
    """Pretrained models that are loaded in their own way: what its folder offers, `asr/NAME/__init__.py`."""

    @property
    def name(self) -> str:
        """The name that people know it by."""

    @property
    def section(self) -> str:
        """The section of its settings; also the type of its tokenizer in a run."""

    @property
    def config_class(self) -> type[Config]:
        """Settings that only its models have, such as the language."""

    @property
    def decoding(self) -> DecodingConfig:
        """The settings that its models decode with, unless a call asks for others."""

    @property
    def languages(self) -> Mapping[str, str]:
        """Code to name of the languages that can be asked for."""

    @property
    def model_names(self) -> Sequence[str]: ...

    @property
    def prefers_int8(self) -> bool:
        """Compute in 8 bits with precision auto, on a CPU with instructions for it."""

    def matches(self, source: str | Path, as_run: bool = False) -> bool:
        """Recognize a model. A run that fine-tuned one counts too, unless it is asked for `as_run`."""

    def load(
        self,
        source: str | Path,
        device: str,
        precision: Precision,
        segmentation: SegmentationConfig | None,
        checks: ChecksConfig | None,
    ) -> Recognizer: ...

    def describe(self, source: str) -> dict[str, Any]:
        """The facts that `asr info` shows."""

    def find_weights(self, source: str | Path) -> Path:
        """A file that changes when the model does."""


@runtime_checkable
class Convertible(Protocol):
    """A family whose models `asr convert` writes."""

    def convert(self, source: str, target: Path, dtype: torch.dtype | None) -> None: ...


@runtime_checkable
class Trainable(Protocol):
    """A family whose models a run may start from."""

    TokenizerUnits: type[Units]

    def load_source(self, source: str) -> System[Net]: ...
    def check_run(self, run: RunConfig) -> None:
        """Refuse, as a ValueError, the settings of a run that do not go with its parts."""


def require_trainable(family: Family) -> Trainable:
    if not isinstance(family, Trainable):
        raise UserError(
            f"a run cannot start from a {family.name} model, nor use its tokens; remove start_from"
        )
    return family


@runtime_checkable
class HasOptions(Protocol):
    """A family with options of its own for `asr transcribe`."""

    def add_options(
        self, parser: argparse.ArgumentParser, formats: Sequence[str], read_clip: Callable[[str], object]
    ) -> None: ...


@runtime_checkable
class HasDefault(Protocol):
    """A family with a model for calls that name none."""

    def find_default(self, asked: Mapping[str, object]) -> str | None:
        """Its name, if it is at hand and takes these options, of which None is not given."""


FAMILIES = ("whisper", "moonshine")  # the last is the first to be asked for a default model


def find_families() -> list[Family]:
    """Import the families whose folders are there."""
    found: list[Any] = [import_module(f"asr.{name}") for name in FAMILIES if find_spec(f"asr.{name}")]
    return found


def find_family(source: str | Path, *, as_run: bool = False) -> Family | None:
    """The family of a model, by its path or name; None for a native model.

    A run that fine-tuned a model of a family is of that family too, unless it is asked for `as_run`.
    """
    folder = find_shipped(source)
    for config in (folder / "config.yaml", folder / "model" / "config.yaml"):
        if os.path.isfile(config) and not any(
            f"type: {name}" in config.read_text("utf-8", "replace") for name in FAMILIES
        ):
            return None
    return next((family for family in find_families() if family.matches(source, as_run)), None)


def find_default_model(**asked: object) -> str:
    """The model for a call that names none: ASR_MODEL, else the first one here that takes these options."""
    if named := os.environ.get("ASR_MODEL"):
        return named
    for family in reversed(find_families()):
        if isinstance(family, HasDefault) and (found := family.find_default(asked)):
            return found
    raise UserError(f"expected --model MODEL, because no model is here by default{describe_missing()}")


def find_checkpoints(output_dir: Path) -> list[Path]:
    """Find the checkpoints of a training, the oldest first."""
    return sorted((output_dir / "checkpoints").glob("step-*"))


def find_model(path: str | Path) -> Path:
    """The folder to load for a run (its final model, else its last checkpoint) or for a checkpoint itself."""
    path = find_shipped(path)
    for folder in (path, path / "model"):
        if os.path.isfile(folder / "model.safetensors"):
            return folder
    if checkpoints := find_checkpoints(path):
        return checkpoints[-1]
    expected = "give the output_dir of a training or one of its checkpoints"
    for family in find_families():
        expected = suggest(str(path), family.model_names, f"{expected}, or the name of a {family.name} model")
    raise UserError(f"{path}: no model here; {expected}{describe_missing()}")


def describe_missing() -> str:
    """Name the folders of models that are not there, for the message about an unknown one; "" if all are."""
    missing = [
        f"asr.{name}" for name in (*FAMILIES, "research", "speakers") if find_spec(f"asr.{name}") is None
    ]
    return f"; {' and '.join(missing)}, which may have it, is not installed" if missing else ""
