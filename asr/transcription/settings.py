"""Settings of transcribing and evaluating as one typed tree: the defaults, changed by key=value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from asr import __version__
from asr.checkpoint import System, find_model, load_language_model
from asr.config import Config, build_config, describe_config
from asr.decoding.checks import ChecksConfig
from asr.decoding.fusion import FusionModel
from asr.decoding.search import DecodingConfig
from asr.errors import UserError
from asr.transcription.recognizer import Precision
from asr.transcription.segmentation import SegmentationConfig
from asr.transcription.streaming import StreamingConfig
from asr.transcripts.subtitles import SubtitlesConfig


class EvaluationSettings(Config):
    """What `asr evaluate` can be told. Its utterances are those of the manifest, so nothing is cut."""

    decoding: DecodingConfig = DecodingConfig()
    """How the text is found."""


class TranscriptionSettings(Config):
    """What `asr transcribe` can be told."""

    decoding: DecodingConfig = DecodingConfig()
    """How the text is found."""
    checks: ChecksConfig = ChecksConfig()
    """When the decoder is not believed, and another decoding is taken."""
    segmentation: SegmentationConfig = SegmentationConfig()
    """Where long recordings are cut."""
    subtitles: SubtitlesConfig = SubtitlesConfig()
    """How srt and vtt divide the text."""
    streaming: StreamingConfig = StreamingConfig()
    """When live text becomes final."""
    precision: Precision = "float32"
    """Of matrix products; bf16 and fp16 are faster on a GPU."""


LANGUAGE_MODEL_WEIGHT = 0.3  # with --language-model, unless told otherwise


def load_transcription_settings(
    options: dict[str, object], pairs: Sequence[str], language_model: str | None = None
) -> TranscriptionSettings:
    return build_config(TranscriptionSettings, merge_settings(options, pairs, language_model))


def load_evaluation_settings(
    options: dict[str, object], pairs: Sequence[str], language_model: str | None = None
) -> EvaluationSettings:
    return build_config(EvaluationSettings, merge_settings(options, pairs, language_model))


def merge_settings(
    options: dict[str, object], pairs: Sequence[str], language_model: str | None = None
) -> list[str]:
    """Overrides from options of their own (key to value; None: not given) and from key=value pairs."""
    given = {key: f"{key}={value}" for key, value in options.items() if value is not None}
    for pair in pairs:
        key = pair.partition("=")[0].strip()
        if key in given:
            raise UserError(f"--set {pair}: {key} is given already, as {given[key]}; leave one out")
        given[key] = pair
    if language_model is not None:
        weight = "decoding.language_model_weight"
        given.setdefault(weight, f"{weight}={LANGUAGE_MODEL_WEIGHT}")
    return list(given.values())


def load_fusion_model(path: str | None, system: System, device: torch.device) -> FusionModel | None:
    """The language model that an option names, on the device of the speech model."""
    if path is None:
        return None
    language_model = load_language_model(path, system.tokenizer)
    if isinstance(language_model, torch.nn.Module):
        language_model.to(device)
    return language_model


def describe_making(
    model: str, language_model: str | None, settings: TranscriptionSettings
) -> dict[str, object]:
    """All that a transcript depends on, but for the audio; for an OutputFolder."""
    files = {"model": find_model(model) / "model.safetensors"}
    if language_model is not None:
        path = Path(language_model)
        files["language_model"] = path if path.is_file() else find_model(path) / "model.safetensors"
    stamps = {
        name: [os.path.realpath(path), path.stat().st_size, path.stat().st_mtime_ns]
        for name, path in files.items()
    }
    return {"version": __version__, **stamps, "settings": settings.model_dump(mode="json")}


def print_settings(settings: Config) -> None:
    """Every key with its default and what it means."""
    for key, value, documentation in describe_config(settings):
        print(f"{key} = {value!r}\n    {documentation}")
