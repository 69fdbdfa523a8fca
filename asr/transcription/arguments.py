"""Arguments of a command line: files and folders to recordings, key=value to settings."""

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
from asr.data.manifest_readers import open_shards, read_any
from asr.data.storage import ByteRange, MissingFileError, find_file, list_files
from asr.data.utterance_audio import INDEX_NAME
from asr.decoding.hypothesis import ChecksConfig, DecodingConfig
from asr.errors import UserError
from asr.families import Family, find_families
from asr.transcripts.subtitles import SubtitlesConfig

UNIT_SECONDS = 1800.0
MAX_UNIT_ITEMS = 5_000  # thousands of tiny files, or of unknown length, are one unit no longer
BYTES_PER_SECOND = 16_000  # a guess, that of FLAC
MANIFEST_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")


Located = tuple[Recording, str]
"""A recording, and the folder in which it was found; only what is of a manifest or in shards has an id."""


def find_recordings(arguments: Sequence[str], recursive: bool = False) -> list[Recording]:
    """Find all recordings of the arguments, in their order, each file once.

    A name is the path below the folder that was given, without suffix. Where two would be equal they keep
    their suffix, or more of their path.
    """
    located: dict[str, Located] = {}
    for argument in arguments:
        for recording, root in _expand(argument, recursive, is_only=len(arguments) == 1):
            key = STANDARD_INPUT if recording.path == STANDARD_INPUT else os.path.abspath(recording.path)
            if id := recording.id:
                key = f"{id} of a manifest"
                if "/" in id or id.startswith(".") or key in located:
                    raise UserError(
                        f"{argument}: utterance {id}: outputs are named by the id, so it should be one "
                        "of its own, without / and without a dot at its beginning; rename it"
                    )
            located.setdefault(key, (recording, root))
    names = _name(list(located.values()))
    return [replace(recording, id=name) for (recording, _), name in zip(located.values(), names, strict=True)]


def _expand(argument: str, recursive: bool, is_only: bool) -> Iterator[Located]:
    """Expand folders. What cannot be read is an error later, when the others are read, too."""
    if "://" in argument:
        yield from _expand_address(argument, recursive)
    elif os.path.isfile(os.path.join(argument, INDEX_NAME)):
        yield from _list_packed(argument)
    elif os.path.isdir(argument) and recursive:
        yield from _search(argument)
    elif os.path.isdir(argument) and is_only:
        raise UserError(f"{argument}: is a folder; add --recursive for all audio files in it")
    elif argument.lower().removesuffix(".gz").endswith(MANIFEST_SUFFIXES):
        for utterance in read_any(argument):
            yield _of_manifest(utterance)
    else:
        yield Recording(argument), os.path.dirname(argument)


def _of_manifest(utterance: Utterance, content: ByteRange | None = None) -> Located:
    span = utterance.start, utterance.duration, utterance.channel_index
    return Recording(utterance.audio, utterance.id, *span, content, is_utterance=True), ""


def _list_packed(folder: str) -> Iterator[Located]:
    """The utterances of a folder of shards."""
    for shard in open_shards(folder).shards:
        for packed in shard.utterances():
            yield _of_manifest(packed, packed.byte_range)


def _expand_address(address: str, recursive: bool) -> Iterator[Located]:
    """A file, a folder of shards, or the files of a folder, at an address such as s3://bucket/talks.

    Only an address of the command line is opened; one that a manifest names is taken for a path.
    """
    if _has_audio_suffix(address):
        yield Recording(address, content=find_file(address)), os.path.dirname(address)
    elif address.endswith(MANIFEST_SUFFIXES) and not address.endswith(f"/{INDEX_NAME}"):
        raise UserError(f"{address}: a manifest is read here only; copy it, with the audio that it names")
    elif recursive:
        files = [file for file in list_files(address) if _has_audio_suffix(file.address)]
        if not files:
            raise UserError(f"{address}: no audio file there, by the suffixes of their names")
        yield from ((Recording(file.address, content=file), address) for file in files)
    else:
        try:
            yield from _list_packed(address)
        except MissingFileError as error:
            raise UserError(f"{error}; or add --recursive for all audio files there") from None


def _has_audio_suffix(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in AUDIO_SUFFIXES


def _search(folder: str) -> Iterator[Located]:
    """Audio files by their suffix, at any depth; without hidden files and folders, and links to folders."""
    num_files = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            if _has_audio_suffix(name):
                num_files += 1
                yield Recording(os.path.join(parent, name)), folder
    if not num_files:
        raise UserError(f"{folder}: no audio file in this folder or below it, by the suffixes of their names")


def measure_recording(recording: Recording) -> float:
    """Seconds to read, by the header; 0 if unknown; for a remote file, estimated from its size."""
    if recording.path == STANDARD_INPUT:
        return 0.0
    if isinstance(recording.content, ByteRange):
        return recording.duration or recording.content.size / BYTES_PER_SECOND
    try:
        seconds = read_info(recording.path).seconds or 0.0
    except UserError:
        return 0.0  # the error is reported when it is read
    left = max(0.0, seconds - recording.start)
    return left if recording.duration is None else min(left, recording.duration)


def plan_units(seconds: Sequence[float], unit_seconds: float = UNIT_SECONDS) -> list[range]:
    """Divide recordings of these lengths, in their order, into units; a longer one is a unit by itself."""
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
    """The shortest names that differ for all recordings; only those that clash get longer."""
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
        # Names that differ in case alone are one file on some disks.
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
    # One for each family of ready models that is there.
    FamilySections = pydantic.create_model(
        "FamilySections",
        __base__=Config,
        **{family.section: (family.config_class, family.config_class()) for family in find_families()},
    )


class EvaluationSettings(FamilySections):
    """Settings of `asr evaluate`, with the keys and defaults of `asr transcribe`."""

    decoding: DecodingConfig = DecodingConfig()
    """Search for the text. Pretrained models start from settings of their own."""
    checks: ChecksConfig = ChecksConfig()
    """Conditions under which a text is rejected and decoded again. checks=off: never."""
    segmentation: SegmentationConfig = SegmentationConfig()
    """Segmentation of long recordings, and of utterances that are too long for the model."""
    precision: Precision = "auto"
    """Precision of matrix products: bf16 and fp16 for a GPU, int8 for a CPU; int8_bf16 for models that prefer
    8 bits. auto: bf16 or fp16 on a GPU; 8 bits for those models on a CPU with instructions; else float32."""


class TranscriptionSettings(EvaluationSettings):
    """Settings of `asr transcribe`."""

    subtitles: SubtitlesConfig = SubtitlesConfig()
    """Division of the text into subtitles, for srt and vtt."""
    channels: Channels = "mix"
    """Channels: mix, their mean; separate, each one as a speaker; or the number of one, from 1."""


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
    given |= {pair.partition("=")[0].strip(): pair for pair in pairs}
    usual = dict[str, Any]()
    if resources is not None and resources.decoding is not None:
        usual = resources.decoding.model_dump(mode="json")
    if resources is not None and resources.files and not usual.get("language_model_weight"):
        usual["language_model_weight"] = LANGUAGE_MODEL_WEIGHT
    given = {f"decoding.{key}": f"decoding.{key}={json.dumps(value)}" for key, value in usual.items()} | given
    return build_config(kind, list(given.values()))


# Options of a call that set one of the settings that all models have; more are those of a family's section.
OPTIONS = {"beam": "decoding.beam", "decoding": "decoding.method", "hotwords": "decoding.hotwords"}
FILES = ("language_model", "words")


def read_options(
    given: Mapping[str, Any], family: Family | None, show: Callable[[str], str] = str
) -> dict[str, object]:
    """Settings, by their keys, that options of a call set; those that the model does not support are refused.

    `show` writes their names. `decoding` may be a whole config, whose values the other options replace.
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
    # As JSON: YAML reads a : in a text as the end of a key.
    return {key: json.dumps(value, default=str) for key, value in settings.items()}


def find_options(settings: FamilySections, family: Family | None) -> Config | None:
    """The section of a model's family. Settings of other families are rejected."""
    for other in find_families():
        if other is not family and getattr(settings, other.section) != other.config_class():
            raise UserError(f"settings of {other.section} need a {other.name} model; name one, or drop them")
    return None if family is None else getattr(settings, family.section)


def print_settings(settings: Config) -> None:
    """Every key with its default and what it means."""
    for key, value, documentation in describe_config(settings):
        print(f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}\n    {documentation}")
