"""Settings of transcribing and evaluating as one typed tree: the defaults, changed by key=value."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pydantic

from asr import __version__
from asr.audio.segmentation import SegmentationConfig
from asr.audio.sources import Channels
from asr.config import Config, build_config, describe_choices, describe_config
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.families import Family, find_families, find_family
from asr.models.lora_int8 import Precision
from asr.system.checkpoint import DecodingResources, find_model
from asr.text.normalization import Rule, check_rules, join_letters, normalize, normalize_english
from asr.transcripts.writers import SubtitlesConfig


class SharedSettings(Config):
    """Settings of whatever turns audio into text."""

    checks: ChecksConfig = ChecksConfig()
    """When a decoded text is rejected, and another decoding is tried. checks=off: never."""
    segmentation: SegmentationConfig = SegmentationConfig()
    """Where long recordings are cut, and utterances longer than training had them or the model can read."""
    precision: Precision = "auto"
    """Of matrix products; bf16 and fp16 are faster on a GPU, int8 on a CPU, with int8_bf16 for Whisper alone.
    auto: bf16 or fp16 on a GPU; 8 bits for Whisper on a CPU with instructions for them; else float32."""


class EvaluationSettings(SharedSettings):
    """Settings of `asr evaluate`, with the keys and defaults of `asr transcribe`."""

    decoding: DecodingConfig = DecodingConfig()
    """How the text is found."""


class CombinationSettings(Config):
    """Settings of `asr combine --manifest`: nothing is cut there, and no text rejected."""

    precision: Precision = "auto"
    """As in `asr evaluate`."""
    decoding: DecodingConfig = DecodingConfig()
    """How each system finds its texts."""


class ScoringConfig(Config):
    """Normalisation of references and of texts of a ready model, which has no rules of a run."""

    english: bool | None = None
    """true: the rules for English: numbers, contractions, spelling, no case and punctuation. false: `rules`,
    which fit any language. null: those for English where the language of an utterance (of the manifest, else
    as given, else of the model) is English."""
    rules: tuple[Rule, ...] = (
        "strip_invisible",
        "nfkc",
        "lowercase",
        "plain_apostrophes",
        "strip_symbols",
        "strip_punctuation",
        "collapse_spaces",
    )
    """Those of asr/text/normalization.py that are applied in place of the English ones."""
    join_letters: bool = False
    """Then runs of single letters, and of digits, are one word: references have C Z, Whisper writes CZ."""

    @pydantic.field_validator("rules")
    @classmethod
    def _rules_fit(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        check_rules(rules)
        return rules

    def uses_english_rules(self, language: str | None) -> bool:
        if self.english is not None:
            return self.english
        return re.split("[-_]", (language or "").lower())[0] in ("en", "eng", "english")

    def normalize(self, text: str, language: str | None = None) -> str:
        text = normalize_english(text) if self.uses_english_rules(language) else normalize(text, self.rules)
        return join_letters(text) if self.join_letters else text

    def describe(self, languages: Sequence[str | None]) -> str:
        """Name the rules for utterances of these languages."""
        count, others = sum(map(self.uses_english_rules, languages)), ", ".join(self.rules)
        if count == len(languages):
            return "the rules for English"
        english = f"the rules for English in {count} of {len(languages)} utterances, else " if count else ""
        return f"{english}scoring.rules: {others}"


if TYPE_CHECKING:
    FamilySections = Config
else:
    # One for each family of ready models that is there, such as whisper.
    FamilySections = pydantic.create_model(
        "FamilySections",
        __base__=Config,
        **{family.section: (family.config_class, family.config_class()) for family in find_families()},
    )


class ReadyEvaluationSettings(SharedSettings, FamilySections):
    """Settings of `asr evaluate` for a ready model, such as Whisper."""

    scoring: ScoringConfig = ScoringConfig()
    """How texts are normalised."""


class TranscriptionSettings(EvaluationSettings, FamilySections):
    """Settings of `asr transcribe`."""

    subtitles: SubtitlesConfig = SubtitlesConfig()
    """How srt and vtt divide the text."""
    channels: Channels = "mix"
    """Of recordings with several: mix, their mean; separate, each by itself, as a speaker; or one, from 1."""
    tokens: bool = False
    """Whether json and jsonl hold the ids of the tokens of each segment."""


LANGUAGE_MODEL_WEIGHT = 0.3  # with --language-model, unless told otherwise


Settings = TypeVar("Settings", bound=Config)


def load_settings(
    kind: type[Settings],
    options: dict[str, object],
    pairs: Sequence[str],
    resources: DecodingResources | None = None,
) -> Settings:
    """The defaults, changed by options of their own (key to value; None: not given) and key=value pairs."""
    given = {key: f"{key}={value}" for key, value in options.items() if value is not None}
    for pair in pairs:
        key = pair.partition("=")[0].strip()
        if key in given:
            raise UserError(f"--set {pair}: {key} is given already, as {given[key]}; leave one out")
        given[key] = pair
    if resources is not None and resources.decoding is not None:
        own = resources.decoding.model_dump(mode="json").items()
        given = {f"decoding.{key}": f"decoding.{key}={json.dumps(value)}" for key, value in own} | given
    elif resources is not None and resources.files:
        weight = "decoding.language_model_weight"
        given.setdefault(weight, f"{weight}={LANGUAGE_MODEL_WEIGHT}")
    return build_config(kind, list(given.values()))


def find_options(settings: FamilySections, family: Family | None) -> Config | None:
    """The section of a model's family. Settings of other families are refused."""
    for other in find_families():
        if other is not family and getattr(settings, other.section) != other.config_class():
            raise UserError(
                f"the settings of {other.section} (language, task, prompt ...) are for {other.name} models, "
                "and this is none; leave them out"
            )
    return None if family is None else getattr(settings, family.section)


def describe_making(
    model: str, resources: DecodingResources, settings: TranscriptionSettings, arithmetic: str
) -> dict[str, object]:
    """Describe all that a transcript depends on, but for the audio; for an OutputFolder."""
    files = {"model": find_weights(model), **resources.files}
    stamps = {
        name: [os.path.realpath(path), path.stat().st_size, path.stat().st_mtime_ns]
        for name, path in files.items()
    }
    told = settings.model_dump(mode="json", exclude={"precision"})
    return {"version": __version__, **stamps, "settings": told, "arithmetic": arithmetic}


def find_weights(model: str) -> Path:
    """The file that is another one when the model is."""
    family = find_family(model)
    return find_model(model) / "model.safetensors" if family is None else family.find_weights(model)


def print_settings(settings: Config) -> None:
    """Every key with its default and what it means."""
    choices = describe_choices(type(settings))
    for key, value, documentation in describe_config(settings):
        print(f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}\n    {documentation}")
        if key in choices:
            print(f"    One of: {', '.join(choices[key])}")
