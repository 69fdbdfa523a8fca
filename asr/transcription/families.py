"""Families of ready models, such as Whisper's: how one is recognised, loaded, checked and trained further."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from asr.audio.segmentation import SegmentationConfig
from asr.config import Config
from asr.decoding.checks import ChecksConfig
from asr.extensions import find_extensions
from asr.models import Model
from asr.models.precision import Precision
from asr.system.checkpoint import System
from asr.system.run_config import RunConfig
from asr.text.tokenizer import Tokenizer
from asr.transcription.transcribe import Transcriber


class Family(abc.ABC):
    """A family of models: what differs from models trained here. An extension has one in `family.FAMILY`."""

    name: ClassVar[str]
    model_names: ClassVar[tuple[str, ...]] = ()
    """Short names by which its models are fetched."""
    section: ClassVar[str]
    """Name of its section in the settings of transcribing and evaluating."""
    decoding: ClassVar[type[Config]]
    """Type of that section."""
    prefers_int8: ClassVar[bool] = False
    """Whether precision auto may quantise its models."""
    languages: ClassVar[Mapping[str, str]] = {}
    """Code to name of those that its models know."""

    @abc.abstractmethod
    def matches(self, source: str | Path) -> bool:
        """Recognise a path or name of one of its models; reads no more than first bytes."""

    @abc.abstractmethod
    def load(
        self,
        source: str | Path,
        device: str,
        precision: Precision,
        segmentation: SegmentationConfig | None,
        checks: ChecksConfig | None,
    ) -> Transcriber:
        """The model, ready to transcribe."""

    @abc.abstractmethod
    def find_weights(self, source: str | Path) -> Path:
        """A file that is another one when the model is."""

    @abc.abstractmethod
    def check(self, source: str | Path, decoding: Config) -> None:
        """Refuse settings that the model does not know, before its weights are fetched or loaded."""

    @abc.abstractmethod
    def describe(self, source: str) -> tuple[dict[str, Any], Config]:
        """Describe a model and its sizes."""

    @abc.abstractmethod
    def convert(self, source: str, folder: Path, dtype: torch.dtype | None, vocabulary: str | None) -> None:
        """Write a model of any of the family's forms as a folder of ours."""

    @abc.abstractmethod
    def take_over_tokenizer(self, config: RunConfig) -> Tokenizer | None:
        """Return the tokenizer of `config.start_from`; None where the run learns its own."""

    @abc.abstractmethod
    def take_over(self, config: RunConfig, tokenizer: Tokenizer) -> System[Model]:
        """A system with the weights of `config.start_from`, to be trained further."""


def find_families() -> list[Family]:
    return [extension.FAMILY for extension in find_extensions("family")]


def find_family(source: str | Path) -> Family | None:
    """The family that a model belongs to, by its path or name; None: it was trained here."""
    return next((family for family in find_families() if family.matches(source)), None)
