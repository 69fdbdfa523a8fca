"""Kaldi data folders in and out: wav.scp, segments, text, utt2spk, utt2dur, utt2lang, spk2gender.

Nothing is ever executed. Relative audio paths start at the current folder, as they do for Kaldi.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from asr.audio.reading import AudioError, measure_seconds, read_info
from asr.data.manifest import Utterance, build_utterance, require_line_fits, with_absolute_audio
from asr.data.records import LeaveOut, UniqueNames, raise_error, warn_of_losses
from asr.data.text_lines import BLANKS, read_text_lines
from asr.errors import UserError, shorten
from asr.files import replace_file

logger = logging.getLogger(__name__)

# Nanoseconds: finer than any sample, coarse enough that (start + duration) - start gives the duration back.
SECONDS_DIGITS = 9
# Files that would no longer fit if they were left from another set of utterances.
DEPENDENT_FILES = (
    *("text", "utt2lang", "spk2gender", "reco2dur", "reco2file_and_channel"),
    *("feats.scp", "cmvn.scp", "vad.scp", "utt2num_frames", "utt2uniq"),
)

Value = TypeVar("Value")


class _Segment(NamedTuple):
    recording: str
    start: float = 0.0
    end: float | None = None  # None: the end of the recording
    channel: str | None = None


def read_kaldi(
    folder: str | Path, allow_pipes: bool = False, leave_out: LeaveOut = raise_error
) -> Iterator[Utterance]:
    """The utterances of a data folder, in the order of `segments`, or of `wav.scp` where that is all.

    A command in wav.scp is an error. With `allow_pipes` the plain forms of sph2pipe, flac, sox, ffmpeg and
    cat are replaced by the file that they decode, which can be read without them. A speaker with the name of
    the utterance is Kaldi's way to say unknown. `leave_out` is called for audio that cannot be read.
    """
    folder = Path(folder)
    if not (folder / "wav.scp").is_file():
        raise UserError(
            f"{folder}: not a Kaldi data folder, it has no wav.scp; folders of other kinds have Parquet "
            "tables, metadata.csv or metadata.jsonl, LibriSpeech's .trans.txt, or audio files"
        )
    recordings = _read_recordings(folder / "wav.scp", allow_pipes)
    recording_seconds = _read_optional(folder / "reco2dur", _parse_seconds)
    in_parts = (folder / "segments").exists()
    segments = (
        _read_table(folder / "segments", _parse_segment)
        if in_parts
        else {name: _Segment(name) for name in recordings}
    )
    texts = _read_optional(folder / "text", str)
    speakers = _read_speakers(folder)
    seconds = _read_optional(folder / "utt2dur", _parse_seconds)
    languages = _read_optional(folder / "utt2lang", _parse_word)
    genders = _read_optional(folder / "spk2gender", _parse_word)

    _warn_of_differences(folder / "text", texts, segments)
    _warn_of_differences(folder / "utt2spk", speakers, segments)
    _warn_of_differences(folder / "utt2dur", seconds, segments)
    _warn_of_differences(folder / "utt2lang", languages, segments)
    for name, segment in segments.items():
        if segment.recording not in recordings:
            raise UserError(
                f"{folder}/segments: {name} is part of {segment.recording}, which wav.scp does not have"
            )
        path, channel_of_pipe = recordings[segment.recording]
        duration = None if in_parts else seconds.get(name)
        try:
            channel = _find_channel(path, f"{folder}: {name}", segment.channel or channel_of_pipe)
            if duration is None:
                end = segment.end or recording_seconds.get(segment.recording) or measure_seconds(path)
                duration = round(end - segment.start, SECONDS_DIGITS)
        except AudioError as error:
            where = "relative paths start at the current folder"
            leave_out(UserError(f"{folder}: {shorten(name)}: {error} ({where})"))
            continue
        speaker = speakers.get(name)
        gender = genders.get(speaker or name)
        fields = {
            "id": name,
            "audio": path,
            "start": segment.start,
            "duration": duration,
            "channel": channel,
            "text": texts.get(name),
            "speaker": None if speaker == name else speaker,
            "language": languages.get(name),
            "extras": {} if gender is None else {"gender": gender},
        }
        yield build_utterance(str(folder), fields)


def write_kaldi(folder: str | Path, utterances: Iterable[Utterance]) -> int:
    """Write a data folder with a `segments` file, sorted as Kaldi wants it; returns the count."""
    folder = Path(folder)
    records = sorted(
        (with_absolute_audio(u, os.path.abspath(folder)) for u in utterances), key=lambda u: u.id
    )
    if not records:
        raise UserError(f"{folder}: no utterances to write, and Kaldi does not take an empty folder")
    for record, following in itertools.pairwise(records):
        if record.id == following.id:
            raise UserError(f"utterance {record.id} is there twice; ids must be unique in a Kaldi folder")
    for record in records:
        _require_storable(record)
    tables = _build_tables(records)
    for name in DEPENDENT_FILES:
        if name not in tables and (folder / name).exists():
            raise UserError(
                f"{folder}: has a {name} that would not fit the new files; remove it or choose another folder"
            )
    for name, lines in tables.items():
        with replace_file(folder / name) as file:
            file.writelines(f"{line}\n".encode() for line in lines)
    _warn_of_losses(folder, records)
    return len(records)


# --- reading ------------------------------------------------------------------------------------


def _read_table(path: Path, parse: Callable[[str], Value]) -> dict[str, Value]:
    """First column -> parsed rest of the line."""
    table: dict[str, Value] = {}
    previous, unsorted = "", 0
    for place, line in read_text_lines(path):
        try:
            key, *rest = re.split(r"[ \t]+", line, maxsplit=1)
            if key in table:
                raise UserError(f"{shorten(key)} is there twice; remove one of its lines")
            table[key] = parse(rest[0] if rest else "")
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        unsorted += key < previous
        previous = key
    if unsorted:
        logger.warning(
            "%s: %d lines are not in the order of LC_ALL=C sort; Kaldi itself would refuse them",
            path,
            unsorted,
        )
    return table


def _read_optional(path: Path, parse: Callable[[str], Value]) -> dict[str, Value]:
    return _read_table(path, parse) if path.exists() else {}


def _read_speakers(folder: Path) -> dict[str, str]:
    if (folder / "utt2spk").exists():
        return _read_table(folder / "utt2spk", _parse_word)
    utterances = _read_optional(folder / "spk2utt", str.split)
    return {name: speaker for speaker, names in utterances.items() for name in names}


def _parse_word(value: str) -> str:
    if not value or any(blank in value for blank in BLANKS):
        raise UserError(f"expected two columns, found {shorten(value)} after the first")
    return value


def _parse_seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise UserError(f"{shorten(value)}: expected seconds, more than 0")
    return seconds


def _parse_segment(value: str) -> _Segment:
    columns = re.split(r"[ \t]+", value)
    try:
        recording, start, end = columns[0], float(columns[1]), float(columns[2])
    except (IndexError, ValueError):
        raise UserError(f"{shorten(value)}: expected a recording, its start and its end in seconds") from None
    to_end = end == -1  # says extract-segments
    if not (0 <= start < math.inf and (to_end or start < end < math.inf)) or len(columns) > 4:
        raise UserError(
            f"{shorten(value)}: expected RECORDING START END with 0 <= START < END, or -1 for END"
        )
    return _Segment(recording, start, None if to_end else end, columns[3] if len(columns) == 4 else None)


def _warn_of_differences(path: Path, table: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    if not table:
        return
    missing = [name for name in wanted if name not in table]
    surplus = [name for name in table if name not in wanted]
    for names, problem in ((missing, "utterances have no line"), (surplus, "lines have no audio")):
        if names:
            logger.warning("%s: %d %s, the first is %s", path, len(names), problem, shorten(names[0]))


# --- wav.scp ------------------------------------------------------------------------------------


def _read_recordings(path: Path, allow_pipes: bool) -> dict[str, tuple[str, str | None]]:
    """Recording -> absolute path of its audio file, and the channel, counted from 0, that its pipe takes."""
    resampled: list[str] = []

    def find_audio(value: str) -> tuple[str, str | None]:
        channel = None
        if value.endswith("|"):
            if not allow_pipes:
                raise UserError(
                    f"{shorten(value)} is a shell command, and no command is executed here; --allow-pipes "
                    f"takes those of {', '.join(TOOLS)} that only decode a file, and reads that file instead"
                )
            value, program, options = parse_pipe(value[:-1])
            if program == "sph2pipe" and "-c" in options:
                channel = str(int(options["-c"]) - 1)
            if options.keys() & {"-r", "-ar"}:
                resampled.append(value)
        _require_plain_path(value)
        return os.path.join(os.getcwd(), value), channel

    recordings = _read_table(path, find_audio)
    if resampled:
        logger.warning(
            "%s: %d commands change the sample rate; their files are taken at their own rate",
            path,
            len(resampled),
        )
    return recordings


def _require_plain_path(value: str) -> None:
    if value in ("", "-") or value != value.strip(BLANKS + "|"):
        raise UserError(f"{shorten(value)}: expected the path of an audio file")
    if re.search(r":\d+(\[.*\])?$", value):
        raise UserError(f"{shorten(value)} is a place inside an archive; only audio files can be read")


def _find_channel(path: str, where: str, channel: str | None) -> int | None:
    """Find the channel, counted from 1; Kaldi counts from 0. None for the only one, whatever its name."""
    if channel is None:
        return None
    channels = read_info(path).num_channels
    if channels == 1:
        return None
    if not channel.isdecimal() or int(channel) >= channels:
        raise UserError(
            f"{where}: asks for channel {channel} of {path}, counted from 0; expected 0 to {channels - 1}"
        )
    return int(channel) + 1


# --- commands in wav.scp ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tool:
    """Options of a program with which it only decodes its input file, so that the file can take its place."""

    flags: str = ""  # regular expression
    options: dict[str, str] = field(default_factory=dict)  # name -> regular expression of its value
    output: str | None = None  # second operand, where the program needs one to write to standard output


TOOLS = {
    "cat": _Tool(),
    "flac": _Tool(r"-[cds]+|--(stdout|decode|silent|totally-silent)"),
    "sph2pipe": _Tool("-p", {"-f": "wav|rif|sph", "-c": "[12]"}),
    "sox": _Tool(
        "-q|-V[0-6]?",
        {"-t": "wav|wavpcm|flac|sph|nist|mp3|ogg|aiff|au", "-r": r"\d+k?", "-b": "16|24|32"}
        | {"-e": "signed(-integer)?", "-c": "1"},
        output="-",
    ),
    "ffmpeg": _Tool(
        "-i|-nostdin|-hide_banner|-vn|-y",  # the value of -i is taken as the first operand
        {"-f": "wav", "-ar": r"\d+", "-ac": "1", "-acodec": "pcm_s16le", "-c:a": "pcm_s16le"}
        | {"-v": r"\w+", "-loglevel": r"\w+"},
        output="-|pipe:1?",
    ),
}
_SHELL_CHARACTERS = set("|;&<>$`()*?{}[]!~#\\\n")


def parse_pipe(command: str) -> tuple[str, str, dict[str, str]]:
    """The file that a command decodes, its program and options; an error if it may do anything else."""
    refused = UserError(
        f"{shorten(command.strip())} is not a plain decoding command; convert the audio to files first"
    )
    if _SHELL_CHARACTERS & set(command):
        raise refused
    try:
        program, *words = shlex.split(command)
    except ValueError:  # an open quote, or nothing at all
        raise refused from None
    program = os.path.basename(program)
    tool = TOOLS.get(program)
    if tool is None:
        raise refused
    operands: list[str] = []
    options: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        if word in tool.options:
            options[word] = next(remaining, "")
            if not re.fullmatch(tool.options[word], options[word]):
                raise refused
        elif word == "-" or not word.startswith("-"):
            operands.append(word)
        elif not re.fullmatch(tool.flags, word):
            raise refused
    outputs = operands[1:]
    expected = 0 if tool.output is None else 1
    if not operands or operands[0] == "-" or len(outputs) != expected:
        raise refused
    if tool.output is not None and not re.fullmatch(tool.output, outputs[0]):
        raise refused
    return operands[0], program, options


# --- writing ------------------------------------------------------------------------------------


def _require_storable(record: Utterance) -> None:
    """Refuse what a Kaldi folder would give back as something else."""
    if record.channel is not None:
        raise UserError(
            f"utterance {record.id}: channel {record.channel} of {shorten(record.audio)}, but a Kaldi folder "
            "is written of whole files; write each channel to a file of its own first"
        )
    require_no_control_characters(record.id, "text", record.text or "")
    require_line_fits(record.id, f"{record.id} {record.text}".encode())
    for name, value in (("speaker", record.speaker), ("language", record.language)):
        if value is not None and " " in value:
            raise UserError(
                f"utterance {record.id}: {name} {shorten(value)} has a space, which ends a column in Kaldi"
            )
    if round(record.duration, SECONDS_DIGITS) == 0:
        raise UserError(f"utterance {record.id}: duration {record.duration} s is too short to be written")
    try:
        _require_plain_path(record.audio)
    except UserError as error:
        raise UserError(f"utterance {record.id}: {error}") from None


def require_no_control_characters(id: str, name: str, value: str) -> None:
    """Formats of one record per line, and of one column per tab, cannot hold them."""
    if found := re.search(r"[\x00-\x1f\x7f-\x9f]", value):
        raise UserError(f"utterance {id}: {name} has the control character U+{ord(found[0]):04X}; remove it")


def _build_tables(records: list[Utterance]) -> dict[str, list[str]]:
    """File name -> lines. Python sorts strings by code points, which is the order of LC_ALL=C for UTF-8."""
    names = _name_recordings(record.audio for record in records)
    tables = {
        "utt2dur": [f"{record.id} {_format_seconds(record.duration)}" for record in records],
        "wav.scp": sorted(f"{name} {path}" for path, name in names.items()),
        "segments": [
            f"{record.id} {names[record.audio]} {_format_seconds(record.start)} "
            f"{_format_seconds(record.start + record.duration)}"
            for record in records
        ],
    }
    if any(record.text is not None for record in records):
        tables["text"] = [f"{record.id} {record.text}" for record in records if record.text is not None]
    if any(record.language for record in records):
        tables["utt2lang"] = [f"{record.id} {record.language}" for record in records if record.language]
    utterances = defaultdict(list)
    genders: dict[str, object] = {}
    for record in records:
        utterances[record.speaker or record.id].append(record.id)
        if record.extras.get("gender") in ("m", "f"):
            genders[record.speaker or record.id] = record.extras["gender"]
    tables["utt2spk"] = [f"{record.id} {record.speaker or record.id}" for record in records]
    tables["spk2utt"] = [f"{speaker} {' '.join(utterances[speaker])}" for speaker in sorted(utterances)]
    if genders:
        tables["spk2gender"] = [f"{speaker} {genders[speaker]}" for speaker in sorted(genders)]
    return tables


def _name_recordings(paths: Iterable[str]) -> dict[str, str]:
    """Audio path -> unique recording id, from the name of the file."""
    names = UniqueNames()
    return {
        path: names.add(re.sub(r"\s", "_", Path(path).stem) or "recording") for path in sorted(set(paths))
    }


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.{SECONDS_DIGITS}f}".rstrip("0").rstrip(".")


def _warn_of_losses(folder: Path, records: list[Utterance]) -> None:
    """Say what the folder does not hold, and what Kaldi's own check of it would not like."""
    with_text = any(record.text is not None for record in records)
    with_language = any(record.language is not None for record in records)
    losses: Counter[str] = Counter()
    genders: dict[str, object] = {}
    for record in records:
        text, gender = record.text or "", record.extras.get("gender")
        losses.update(f"lose their extras {shorten(name)}" for name in record.extras if name != "gender")
        problems = {
            "lose their gender, which must be m or f": gender not in (None, "m", "f"),
            "have another gender than their speaker": gender
            != genders.setdefault(record.speaker or record.id, gender),
            "have a speaker named as the utterance, which means unknown": record.speaker == record.id,
            "lose the blanks around their text": text != text.strip(BLANKS),
            "have no text, while others have": record.text is None and with_text,
            "have no language, while others have": record.language is None and with_language,
        }
        losses.update(problem for problem, is_so in problems.items() if is_so)
    by_speaker = sorted(records, key=lambda record: (record.speaker or record.id, record.id))
    if by_speaker != records:
        logger.warning(
            "%s: Kaldi wants ids that begin with the name of the speaker, so that both sort alike", folder
        )
    warn_of_losses(folder, losses)
