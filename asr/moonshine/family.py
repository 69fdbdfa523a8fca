"""Names and settings of Moonshine, which every command needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pydantic

from asr.config import Config
from asr.decoding.hypothesis import DecodingConfig
from asr.files import read_limited

name = "Moonshine"
section = "moonshine"  # config section for transcription and evaluation, and type of the tokenizer
prefers_int8 = True
languages = {"en": "english"}
NAMES = {f"moonshine-{size}": f"UsefulSensors/moonshine-{size}" for size in ("tiny", "base")}
model_names = tuple(NAMES)
decoding = DecodingConfig(beam=1, temperatures=(0.2, 0.4))

MAX_SETTINGS_BYTES = 1_000_000  # largest config.json
ORT_FILES = ("encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin")


class MoonshineDecodingConfig(Config):
    """Settings for decoding with a Moonshine model."""

    language: Literal["en"] | None = None
    """en, the only language that these models support."""

    @pydantic.field_validator("language", mode="before")
    @classmethod
    def _check_language(cls, language: Any) -> Any:
        if language is None or str(language).lower() in ("en", "english"):
            return language and "en"
        raise ValueError(
            "Moonshine knows English only; for other languages use another model, such as whisper-base"
        )


config_class = MoonshineDecodingConfig

# --- models -----------------------------------------------------------------------------------------


def matches(source: str | Path, as_run: bool = False) -> bool:
    """Recognize a Moonshine model by its name or its files.

    Fine-tuned runs count too, except with `as_run`.
    """
    path = Path(source)
    if not path.is_dir():
        return not path.exists() and str(source) in (*NAMES, *NAMES.values())
    if (path / ORT_FILES[0]).is_file():
        return True
    if (path / "config.json").is_file():
        return b'"moonshine"' in read_limited(path / "config.json", MAX_SETTINGS_BYTES, "which no model has")
    return not as_run and find_run(path) is not None


def find_run(path: Path) -> Path | None:
    """Return the model folder of a run with Moonshine's encoder and decoder; None for anything else."""
    from asr.system.run_config import find_run_of

    return find_run_of(path, section)
