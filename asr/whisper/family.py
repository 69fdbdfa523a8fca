"""Whisper's models, of any form, as a family of `asr.transcription.families`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from asr.audio.segmentation import SegmentationConfig
from asr.config import Config
from asr.decoding.checks import ChecksConfig
from asr.models import Model
from asr.models.precision import Precision
from asr.system.checkpoint import System, round_weights
from asr.system.run_config import RunConfig
from asr.text.tokenizer import Tokenizer
from asr.transcription.families import Family
from asr.whisper.decoding import WhisperDecodingConfig
from asr.whisper.loading import (
    NAMES,
    build_tokenizer,
    find_files,
    find_whisper_weights,
    is_whisper,
    load_whisper,
    read_checkpoint,
    require_language,
    write_folder,
)
from asr.whisper.whisper_recognizer import WhisperRecognizer
from asr.whisper.whisper_tokenizer import LANGUAGES


class WhisperFamily(Family):
    """Models of OpenAI's architecture, in files and folders of all kinds, or by name from the hub."""

    name = "Whisper"
    section = "whisper"
    decoding = WhisperDecodingConfig
    prefers_int8 = True
    languages = LANGUAGES
    model_names = tuple(NAMES)

    def matches(self, source: str | Path) -> bool:
        return is_whisper(source)

    def load(
        self,
        source: str | Path,
        device: str,
        precision: Precision,
        segmentation: SegmentationConfig | None,
        checks: ChecksConfig | None,
    ) -> WhisperRecognizer:
        return WhisperRecognizer(load_whisper(source, dtype=None), device, precision, segmentation, checks)

    def find_weights(self, source: str | Path) -> Path:
        return find_whisper_weights(source)

    def check(self, source: str | Path, decoding: Config) -> None:
        assert isinstance(decoding, WhisperDecodingConfig)
        require_language(source, decoding.language, decoding.task)

    def describe(self, source: str) -> tuple[dict[str, Any], Config]:
        checkpoint = read_checkpoint(source)
        config, weights = checkpoint.config, checkpoint.weights
        counts = {
            part: sum(weight.numel() for name, weight in weights.items() if name.startswith(part))
            for part in ("encoder", "decoder")
        }
        described = {
            "files": str(find_files(source)),
            "form": checkpoint.kind,
            "parameters": sum(counts.values()),
            "parameters of": counts,
            "precision": ", ".join(sorted({str(w.dtype).removeprefix("torch.") for w in weights.values()})),
            "languages": "many" if config.is_multilingual else "English",
            "text tokens": "none in these files" if (known := checkpoint.vocabulary) is None else len(known),
        }
        return described, config

    def convert(self, source: str, folder: Path, dtype: torch.dtype | None, vocabulary: str | None) -> None:
        checkpoint = read_checkpoint(source, vocabulary)
        build_tokenizer(checkpoint, source)  # so that what is written also loads
        if dtype is not None:
            checkpoint = replace(checkpoint, weights=round_weights(checkpoint.weights, dtype))
        write_folder(folder, checkpoint)

    def take_over_tokenizer(self, config: RunConfig) -> Tokenizer | None:
        from asr.whisper.fine_tuning import take_over_tokenizer  # what only training needs

        assert config.start_from is not None
        return take_over_tokenizer(config, config.start_from)

    def take_over(self, config: RunConfig, tokenizer: Tokenizer) -> System[Model]:
        from asr.whisper.fine_tuning import take_over

        assert config.start_from is not None
        return take_over(config, tokenizer, load_whisper(config.start_from))


FAMILY = WhisperFamily()
