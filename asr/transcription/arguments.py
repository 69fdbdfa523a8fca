"""Arguments of a command line: turns files and folders into recordings, and key=value into settings."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic

from asr.audio.reading import AUDIO_SUFFIXES, read_info
from asr.audio.segmentation import STANDARD_INPUT, Channels, Recording, SegmentationConfig
from asr.config import RENAMED, Config, Precision, build_config, describe_config
from asr.data.manifest import Utterance
from asr.data.storage import ByteRange, MissingFileError, find_file, list_files
from asr.data.utterance_audio import INDEX_NAME
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.families import Family, find_families
from asr.transcripts.subtitles import SubtitlesConfig

UNIT_SECONDS = 1800.0
MAX_UNIT_ITEMS = 5_000  # limit for units of tiny files, or files of unknown duration
BYTES_PER_SECOND = 16_000  # an estimate, typical of FLAC
MANIFEST_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")


Located = tuple[Recording, str]
"""A recording, and the folder where it was found. Only recordings from manifests and shards have an id."""


def find_recordings(arguments: Sequence[str], recursive: bool = False) -> list[Recording]:
    """Find all recordings that the arguments name, in their order and each file once.

    Each is named by its path below the given folder, without suffix. Where two names would be equal, they
    keep the suffix or more of the path.
    """
    located: dict[str, Located] = {}
    for argument in arguments:
        for recording, root in _expand(argument, recursive, is_only=len(arguments) == 1):
            key = STANDARD_INPUT if recording.path == STANDARD_INPUT else os.path.abspath(recording.path)
            if id := recording.id:
                key = f"{id} of a manifest"
                if "/" in id or id.startswith(".") or key in located:
                    raise UserError(
                        f"{argument}: utterance {id}: ids name the output files, so they must be unique, "
                        "without / and without a leading dot; rename it"
                    )
            located.setdefault(key, (recording, root))
    names = _name(list(located.values()))
    return [replace(recording, id=name) for (recording, _), name in zip(located.values(), names, strict=True)]


def _expand(argument: str, recursive: bool, is_only: bool) -> Iterator[Located]:
    """Expand folders. A file that cannot be read is reported later, so that the others are transcribed."""
    if "://" in argument:
        yield from _expand_address(argument, recursive)
    elif os.path.isfile(os.path.join(argument, INDEX_NAME)):
        yield from _list_packed(argument)
    elif os.path.isdir(argument) and recursive:
        yield from _search(argument)
    elif os.path.isdir(argument) and is_only:
        raise UserError(f"{argument}: is a folder; add --recursive to transcribe all audio files in it")
    elif argument.lower().removesuffix(".gz").endswith(MANIFEST_SUFFIXES):
        from asr.data.manifest_readers import read_any

        for utterance in read_any(argument):
            yield _of_manifest(utterance)
    else:
        yield Recording(argument), os.path.dirname(argument)


def _of_manifest(utterance: Utterance, content: ByteRange | None = None) -> Located:
    span = utterance.start, utterance.duration, utterance.channel_index
    return Recording(utterance.audio, utterance.id, *span, content, is_utterance=True), ""


def _list_packed(folder: str) -> Iterator[Located]:
    """Yield the utterances of a folder of shards."""
    from asr.data.manifest_readers import open_shards

    for shard in open_shards(folder).shards:
        for packed in shard.utterances():
            yield _of_manifest(packed, packed.byte_range)


def _expand_address(address: str, recursive: bool) -> Iterator[Located]:
    """Yield the file, the utterances of the shards, or the files of the folder at an address like s3://b/c.

    Only an address on the command line is opened; an address in a manifest is treated as a path.
    """
    if _has_audio_suffix(address):
        yield Recording(address, content=find_file(address)), os.path.dirname(address)
    elif address.endswith(MANIFEST_SUFFIXES) and not address.endswith(f"/{INDEX_NAME}"):
        raise UserError(f"{address}: a manifest has to be local; copy it and the audio that it names")
    elif recursive:
        files = [file for file in list_files(address) if _has_audio_suffix(file.address)]
        if not files:
            raise UserError(f"{address}: contains no file with the suffix of an audio format; check the path")
        yield from ((Recording(file.address, content=file), address) for file in files)
    else:
        try:
            yield from _list_packed(address)
        except MissingFileError as error:
            raise UserError(f"{error}; or add --recursive to transcribe all audio files there") from None


def _has_audio_suffix(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in AUDIO_SUFFIXES


def _search(folder: str) -> Iterator[Located]:
    """Yield files with an audio suffix at any depth, except in hidden folders and symbolic links."""
    num_files = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            if _has_audio_suffix(name):
                num_files += 1
                yield Recording(os.path.join(parent, name)), folder
    if not num_files:
        raise UserError(f"{folder}: contains no file with the suffix of an audio format, at any depth")


def measure_recording(recording: Recording) -> float:
    """Return the seconds of audio by the header, for a remote file estimated by its size; 0 if unknown."""
    if recording.path == STANDARD_INPUT:
        return 0.0
    if isinstance(recording.content, ByteRange):
        return recording.duration or recording.content.size / BYTES_PER_SECOND
    try:
        seconds = read_info(recording.path).seconds or 0.0
    except UserError:
        return 0.0  # reading the audio will report the error
    left = max(0.0, seconds - recording.start)
    return left if recording.duration is None else min(left, recording.duration)


def plan_units(seconds: Sequence[float], unit_seconds: float = UNIT_SECONDS) -> list[range]:
    """Group recordings of these durations, in order, into units; a longer one is a unit by itself."""
    units: list[range] = []
    start, total = 0, 0.0
    for index, length in enumerate(seconds):
        if index > start and (total + length > unit_seconds or index - start >= MAX_UNIT_ITEMS):
            units.append(range(start, index))
            start, total = index, 0.0
        total += length
    return [*units, range(start, len(seconds))] if seconds else units


# --- names --------------------------------------------------------------------------------------


def _name(located: Sequence[Located]) -> list[str]:
    """Return the shortest names that are all different; only names that clash get longer."""
    folders = [os.path.dirname(os.path.abspath(one.path)) for one, _ in located if one.path != STANDARD_INPUT]
    common = os.path.commonpath(folders) if folders else ""
    levels: list[Callable[[Recording, str], str]] = [
        lambda one, root: one.id or os.path.splitext(_relative(one.path, root))[0],
        lambda one, root: _relative(one.path, root),
        lambda one, root: _relative(one.path, common),
    ]
    level = [0] * len(located)
    while True:
        names = [levels[level[index]](*item) for index, item in enumerate(located)]
        # On some file systems, names that differ only in case are the same file.
        counts = Counter(name.casefold() for name in names)
        clashing = [index for index, name in enumerate(names) if counts[name.casefold()] > 1]
        clashing = [index for index in clashing if level[index] < len(levels) - 1]
        if not clashing:
            return names
        for index in clashing:
            level[index] += 1


def _relative(path: str | Path, root: str) -> str:
    if path == STANDARD_INPUT:
        return "stdin"
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(root or os.curdir))
    return re.sub(r"[\x00-\x1f\x7f]", "_", relative).replace(os.sep, "/")


if TYPE_CHECKING:
    from asr.system.decoding_resources import DecodingResources

    FamilySections = Config
else:
    # One section for each installed family of pretrained models.
    FamilySections = pydantic.create_model(
        "FamilySections",
        __base__=Config,
        **{family.section: (family.config_class, family.config_class()) for family in find_families()},
    )


class EvaluationSettings(FamilySections):
    """Settings of `asr evaluate`, with the keys and defaults of `asr transcribe`."""

    decoding: DecodingConfig = DecodingConfig()
    """Search for the text. Pretrained models have other defaults."""
    checks: ChecksConfig = ChecksConfig()
    """Conditions under which a text is rejected and decoded again. checks=off: never."""
    segmentation: SegmentationConfig = SegmentationConfig()
    """Segmentation of long recordings, and of utterances that are too long for the model."""
    precision: Precision = "auto"
    """Precision of matrix products: bf16 and fp16 for a GPU, int8 for a CPU, int8_bf16 for models that prefer
    8 bits. auto: bf16 or fp16 on a GPU; 8 bits for such models on a CPU that supports it; else float32."""


class TranscriptionSettings(EvaluationSettings):
    """Settings of `asr transcribe`."""

    subtitles: SubtitlesConfig = SubtitlesConfig()
    """Division of the text into subtitles, for srt and vtt."""
    channels: Channels = "mix"
    """Channels to transcribe: mix, their mean; separate, each as a speaker; or a number, counted from 1."""


LANGUAGE_MODEL_WEIGHT = 0.3  # default weight with --language-model


Settings = TypeVar("Settings", bound=Config)


def load_settings(
    kind: type[Settings],
    options: dict[str, object],
    pairs: Sequence[str],
    resources: DecodingResources | None = None,
) -> Settings:
    """Build settings from defaults, `options` (key to value, None if not given) and key=value `pairs`."""
    given = {key: f"{key}={value}" for key, value in options.items() if value is not None}
    given |= {pair.partition("=")[0].strip(): pair for pair in pairs}
    usual = dict[str, Any]()
    if resources is not None and resources.decoding is not None:
        usual = resources.decoding.model_dump(mode="json")
    if resources is not None and resources.files and not usual.get("language_model_weight"):
        usual["language_model_weight"] = LANGUAGE_MODEL_WEIGHT
    given = {f"decoding.{key}": f"decoding.{key}={json.dumps(value)}" for key, value in usual.items()} | given
    return build_config(kind, list(given.values()))


# Options of a call that set a setting of all models. The section of a model's family adds its own.
OPTIONS = {"beam": "decoding.beam", "decoding": "decoding.method", "hotwords": "decoding.hotwords"}
FILES = ("language_model", "words")


def read_options(
    given: Mapping[str, Any], family: Family | None, show: Callable[[str], str] = str
) -> dict[str, object]:
    """Return the settings that the options of a call set, by key. Options that the model lacks are refused.

    `show` formats the names of options. `decoding` may be a whole config, which other options override.
    """
    keys, settings = dict(OPTIONS), dict[str, object]()
    if family is not None:
        keys |= {name: f"{family.section}.{name}" for name in family.config_class.model_fields}
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(given.get("decoding"), DecodingConfig):
        values = given.pop("decoding").model_dump(mode="json", exclude_unset=True)
        settings |= {f"decoding.{name}": value for name, value in values.items()}
    for name, value in given.items():
        if name in FILES:
            continue
        if name in RENAMED:
            raise UserError(f"{show(name)}: this option is now {show(RENAMED[name])}")
        if name not in keys:
            raise UserError(
                f"{show(name)}: {'native' if family is None else family.name} models do not support "
                f"this option. They support {', '.join(map(show, (*keys, *FILES)))}"
            )
        if name == "hotwords" and isinstance(value, str):
            value = [word.strip() for word in value.split(",") if word.strip()]
        settings[keys[name]] = value
    # As JSON, because YAML would read a colon in a text as the end of a key.
    return {key: json.dumps(value, default=str) for key, value in settings.items()}


def find_options(settings: FamilySections, family: Family | None) -> Config | None:
    """Return the section of a model's family. Raises UserError if another family's settings were changed."""
    for other in find_families():
        if other is not family and getattr(settings, other.section) != other.config_class():
            raise UserError(f"settings of {other.section} need a {other.name} model; use one, or remove them")
    return None if family is None else getattr(settings, family.section)


def print_settings(settings: Config) -> None:
    """Print every key with its default and its meaning."""
    for key, value, documentation in describe_config(settings):
        print(f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}\n    {documentation}")
