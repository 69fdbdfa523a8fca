"""Find models: those trained here, and pretrained model families such as Whisper.

A family is a folder of `asr` and a name in FAMILIES. This is the only place where the core imports it, so the
core still trains and transcribes if the folder is deleted.
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
    """A family of pretrained models with a loader of its own: the interface of `asr/NAME/__init__.py`."""

    @property
    def name(self) -> str:
        """Display name."""

    @property
    def section(self) -> str:
        """Name of its config section, and type of its tokenizer in a run."""

    @property
    def config_class(self) -> type[Config]:
        """Settings specific to its models, such as the language."""

    @property
    def decoding(self) -> DecodingConfig:
        """Default decoding settings of its models."""

    @property
    def languages(self) -> Mapping[str, str]:
        """Supported languages: code to name."""

    @property
    def model_names(self) -> Sequence[str]: ...

    @property
    def prefers_int8(self) -> bool:
        """True if precision auto means int8 on a CPU with instructions for it."""

    def matches(self, source: str | Path, as_run: bool = False) -> bool:
        """Return True if a model belongs to this family. Fine-tuned runs count too, except with `as_run`."""

    def load(
        self,
        source: str | Path,
        device: str,
        precision: Precision,
        segmentation: SegmentationConfig | None,
        checks: ChecksConfig | None,
    ) -> Recognizer: ...

    def describe(self, source: str) -> dict[str, Any]:
        """Return the properties that `asr info` shows."""

    def find_weights(self, source: str | Path) -> Path:
        """Return a file that changes whenever the model does."""


@runtime_checkable
class Convertible(Protocol):
    """A family whose models `asr convert` can write."""

    def convert(self, source: str, target: Path, dtype: torch.dtype | None) -> None: ...


@runtime_checkable
class Trainable(Protocol):
    """A family whose models can be fine-tuned: a run may start from them."""

    TokenizerUnits: type[Units]

    def load_source(self, source: str) -> System[Net]: ...
    def check_run(self, run: RunConfig) -> None:
        """Raise a ValueError for settings of a run that do not fit this family's models."""


def require_trainable(family: Family) -> Trainable:
    if not isinstance(family, Trainable):
        raise UserError(f"a run cannot start from a {family.name} model or use its tokens; remove start_from")
    return family


@runtime_checkable
class HasOptions(Protocol):
    """A family that adds options to `asr transcribe`."""

    def add_options(
        self, parser: argparse.ArgumentParser, formats: Sequence[str], read_clip: Callable[[str], object]
    ) -> None: ...


@runtime_checkable
class HasDefault(Protocol):
    """A family that has a default model."""

    def find_default(self, asked: Mapping[str, object]) -> str | None:
        """Return the default model's name if it is available and supports the options that are not None."""


FAMILIES = ("whisper", "moonshine")  # the last one is asked first for a default model


def find_families() -> list[Family]:
    """Import the families that are installed."""
    found: list[Any] = [import_module(f"asr.{name}") for name in FAMILIES if find_spec(f"asr.{name}")]
    return found


def find_family(source: str | Path, *, as_run: bool = False) -> Family | None:
    """Return the family of a model, given its path or name; None for a native model, exported or not.

    A run that fine-tuned a model of a family belongs to that family too, except with `as_run`.
    """
    folder = find_shipped(source)
    if not (os.path.exists(folder) or any(family.matches(source) for family in find_families())):
        from asr.hub import find_folder

        folder = source = find_folder(source)
    if is_export(folder):
        return None
    for config in (folder / "config.yaml", folder / "model" / "config.yaml"):
        if os.path.isfile(config) and not any(
            f"type: {name}" in config.read_text("utf-8", "replace") for name in FAMILIES
        ):
            return None
    return next((family for family in find_families() if family.matches(source, as_run)), None)


def find_default_model(**asked: object) -> str:
    """Return the default model: ASR_MODEL, else the first available one that supports these options."""
    if named := os.environ.get("ASR_MODEL"):
        return named
    for family in reversed(find_families()):
        if isinstance(family, HasDefault) and (found := family.find_default(asked)):
            return found
    raise UserError(f"expected --model MODEL, because no default model is installed{describe_missing()}")


def find_checkpoints(output_dir: Path) -> list[Path]:
    """List the checkpoints of a training, oldest first."""
    return sorted((output_dir / "checkpoints").glob("step-*"))


def is_export(path: str | Path) -> bool:
    """Check for a folder of `asr export`, whose graphs are computed without PyTorch."""
    return os.path.isfile(os.path.join(path, "export.json"))


def find_model(path: str | Path) -> Path:
    """Return the folder to load: a checkpoint itself, or a run's final model, else its last checkpoint."""
    path = find_shipped(path)
    if not os.path.exists(path):
        from asr.hub import find_folder

        path = find_folder(path)
    if is_export(path):
        return path
    for folder in (path, path / "model"):
        if os.path.isfile(folder / "model.safetensors"):
            return folder
    if checkpoints := find_checkpoints(path):
        return checkpoints[-1]
    expected = "give the output_dir of a training or one of its checkpoints"
    for family in find_families():
        expected = suggest(str(path), family.model_names, f"{expected}, or the name of a {family.name} model")
    raise UserError(f"{path}: no model found; {expected}{describe_missing()}")


def describe_missing() -> str:
    """Name the optional packages that are not installed, for messages about an unknown model; "" if none."""
    folders = [f"asr.{name}" for name in (*FAMILIES, "research", "speakers", "transducer")]
    missing = [folder for folder in folders if find_spec(folder) is None]
    return f"; {' and '.join(missing)}, which may have it, is not installed" if missing else ""
