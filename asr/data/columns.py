"""Field names and manifest kinds of other toolkits, and how they map to ours."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asr.errors import UserError, shorten

# Kinds of manifests that `asr manifest convert` reads.
SOURCES = ("jsonl", "nemo", "kaldi", "csv", "tsv", "audiofolder", "files")

COLUMNS = {
    "id": ("id", "utt_id", "utterance_id", "utt", "key", "segment_id", "utterance"),
    "audio": (
        *("audio", "audio_filepath", "path", "audio_path", "audio_file", "file", "file_path", "filename"),
        *("file_name", "wav", "wav_path", "wav_filename"),
    ),
    "start": ("start", "offset"),
    "end": ("end", "stop"),
    "duration": ("duration", "seconds"),
    "milliseconds": ("duration_ms", "duration[ms]"),
    "text": ("text", "sentence", "transcript", "transcription", "wrd", "normalized_text"),
    "speaker": ("speaker", "speaker_id", "spk_id", "client_id"),
    "language": ("language", "lang", "locale"),
}
MEANINGS = {name: meaning for meaning, names in COLUMNS.items() for name in names}
_TIMES = ("start", "end", "duration", "milliseconds")


def describe_columns() -> str:
    """List the known column names, for messages and help."""
    return "; ".join(f"{meaning}: {', '.join(names)}" for meaning, names in COLUMNS.items())


class NamedFields(NamedTuple):
    """A record whose known fields were renamed to our names."""

    values: dict[str, Any]
    """ID, audio, text, speaker, language, start and duration, if the record has them."""
    rest: dict[str, Any]
    """All other fields, under their original names."""
    names: dict[str, str]
    """Our name to the record's name, for each known field."""


def name_fields(record: Mapping[str, Any], columns: Mapping[str, Sequence[str]] = COLUMNS) -> NamedFields:
    """Find the known fields. If a field has several names, the first one in `columns` is used."""
    names: dict[str, str] = {}
    own_names = {name.lower(): name for name in reversed(list(record))}
    for meaning, known in columns.items():
        for name in known:
            own = own_names.get(name)
            if own is not None and (meaning == "text" or record[own] not in (None, "")):
                names.setdefault(meaning, own)
    if "duration" in names:
        names.pop("milliseconds", None)
    if {"duration", "milliseconds"} & names.keys():  # SpeechBrain also gives the end
        names.pop("end", None)
    values = {meaning: record[name] for meaning, name in names.items()}
    for meaning in _TIMES:
        if meaning in values:
            values[meaning] = read_seconds(names[meaning], values[meaning])
    if "milliseconds" in values:
        values["duration"] = values.pop("milliseconds") / 1000
    if "end" in values:
        values["duration"] = round(values.pop("end") - values.get("start", 0.0), 9)
    rest = {
        name: value
        for name, value in record.items()
        if name not in names.values() and not (value in (None, "") and name.lower() in MEANINGS)
    }
    return NamedFields(values, rest, names)


def read_seconds(name: str, value: Any) -> float:
    """Parse seconds from a number or a string; `name` is for the error message."""
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < 1e9:
        raise UserError(f"{name} = {shorten(value)}: expected a number of seconds")
    return seconds


def build_id(audio: object, start: object = None, duration: object = None) -> str:
    """Build an ID from the name of the audio file and, for a part of it, start and end in milliseconds."""
    name = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", "_", Path(str(audio)).stem)[:150] or "utterance"
    if isinstance(start, (int, float)) and isinstance(duration, (int, float)) and start > 0:
        return f"{name}-{start * 1000:07.0f}-{(start + duration) * 1000:07.0f}"
    return name
