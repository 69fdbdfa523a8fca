"""Read Kaldi data folders: wav.scp, segments, text, utt2spk, utt2dur, reco2dur and utt2lang.

No command is ever executed. Audio paths are relative to the current folder, as in Kaldi.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from asr.audio.reading import AudioError, read_info
from asr.data.columns import read_seconds
from asr.data.manifest import Utterance
from asr.data.text_lines import BLANKS, open_lines, read_id_texts
from asr.errors import UserError, shorten
from asr.formats.source import Source

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class _Segment(NamedTuple):
    recording: str
    start: float = 0.0
    end: float | None = None  # None: the end of the recording
    channel: str | None = None


def read_kaldi(folder: str | Path, source: Source | None = None) -> Iterator[Utterance]:
    """Yield the utterances of a data folder, in the order of `segments`, or of `wav.scp` without segments.

    Plain commands of sph2pipe, flac, sox, ffmpeg and cat in wav.scp are replaced by the file that they
    decode, which can be read directly; any other command is an error. A speaker with the utterance's name
    means that the speaker is unknown, as in Kaldi.
    """
    folder, source = Path(folder), source or Source(folder)
    if not (folder / "wav.scp").is_file():
        raise UserError(f"{folder}: has no wav.scp, tables or audio files; give another folder")
    recordings = _read_table(folder / "wav.scp", _find_audio)
    segments = {name: _Segment(name) for name in recordings}
    if in_parts := (folder / "segments").exists():
        segments = _read_table(folder / "segments", _parse_segment)
    texts = _read_table(folder / "text", str)
    speakers, languages = (_read_table(folder / name, _parse_word) for name in ("utt2spk", "utt2lang"))
    ends = _read_table(folder / "reco2dur", partial(read_seconds, "duration"))
    if not in_parts:  # otherwise durations come from segments
        ends |= _read_table(folder / "utt2dur", partial(read_seconds, "duration"))
    for table, lines in (("text", texts), ("utt2spk", speakers)):
        if lines and (missing := [name for name in segments if name not in lines]):
            first = shorten(missing[0])
            logger.warning(
                "%s/%s: %d utterances have no line, such as %s", folder, table, len(missing), first
            )
    for name, segment in segments.items():
        if segment.recording not in recordings:
            raise UserError(f"{folder}/segments: {name} is part of {segment.recording}, which wav.scp lacks")
        path, channel = recordings[segment.recording]
        try:
            channel_number = _find_channel(path, segment.channel or channel)
        except AudioError as error:
            source.leave_out(UserError(f"{folder}: {shorten(name)}: {error}"))
            continue
        speaker = speakers.get(name)
        record = {
            "id": name,
            "audio": path,
            "start": segment.start,
            "end": segment.end or ends.get(segment.recording),
            "channel": channel_number,
            "text": texts.get(name),
            "speaker": None if speaker == name else speaker,
            "language": languages.get(name),
        }
        known = {name: value for name, value in record.items() if value is not None}
        yield from source.build(f"{folder}: {shorten(name)}", known, "")


# --- tables -------------------------------------------------------------------------------------


def _read_table(path: Path, parse: Callable[[str], Value]) -> dict[str, Value]:
    """Map the first column to the parsed rest of the line; empty if there is no such table."""
    table: dict[str, Value] = {}
    if not path.exists():
        return table
    with open_lines(path) as lines:
        for number, key, rest in read_id_texts(lines):
            if key in table:
                raise lines.error(number, f"duplicate {shorten(key)}; remove one of its lines")
            try:
                table[key] = parse(rest)
            except UserError as error:
                raise lines.error(number, str(error)) from None
    return table


def _parse_word(value: str) -> str:
    if not value or any(blank in value for blank in BLANKS):
        raise UserError(f"expected two columns, found {shorten(value)} after the first")
    return value


def _parse_segment(value: str) -> _Segment:
    recording, *columns = re.split(f"[{BLANKS}]+", value)
    try:
        start, end = map(float, columns[:2])
    except ValueError:
        start = end = math.nan
    to_end = end == -1  # as in extract-segments
    if not (0 <= start < math.inf and (to_end or start < end < math.inf)) or len(columns) > 3:
        raise UserError(f"{shorten(value)}: expected RECORDING START END with 0 <= START < END, or -1")
    return _Segment(recording, start, None if to_end else end, columns[2] if columns[2:] else None)


# --- wav.scp ------------------------------------------------------------------------------------


def _find_audio(value: str) -> tuple[str, str | None]:
    """Return the absolute path of an audio file, and the channel (from 0) that its command selects."""
    channel = None
    if value.endswith("|"):
        value, channel = parse_pipe(value[:-1])
    _require_plain_path(value)
    return os.path.join(os.getcwd(), value), channel


def _require_plain_path(value: str) -> None:
    if value in ("", "-") or value != value.strip(BLANKS + "|"):
        raise UserError(f"{shorten(value)}: expected the path of an audio file")
    if re.search(r":\d+(\[.*\])?$", value):
        raise UserError(f"{shorten(value)} points into an archive; only audio files can be read")


def _find_channel(path: str, channel: str | None) -> int | None:
    """Return the channel counted from 1 (Kaldi counts from 0); None if the file has only one channel."""
    channels = 1 if channel is None else read_info(path).num_channels
    if channel is None or channels == 1:
        return None
    if not channel.isdecimal() or int(channel) >= channels:
        raise UserError(f"{path}: no channel {channel}, counted from 0; expected 0 to {channels - 1}")
    return int(channel) + 1


DECODERS = {
    # Options, separated by newlines, with which a program only decodes its input file; and its output.
    "cat": ("(?!)", ""),
    "flac": ("-[cds]+|--(?:stdout|decode|silent|totally-silent)", ""),
    "sph2pipe": ("-p|-f\n(?:wav|rif|sph)|-c\n[12]", ""),
    "sox": (
        r"-q|-V[0-6]?|-t\n(?:wav|wavpcm|flac|sph|nist|mp3|ogg|aiff|au)|-r\n\d+k?|-b\n(?:16|24|32)|"
        "-e\nsigned(?:-integer)?|-c\n1",
        "-\n",
    ),
    "ffmpeg": (
        r"-i|-nostdin|-hide_banner|-vn|-y|-f\nwav|-ar\n\d+|-ac\n1|-(?:acodec|c:a)\npcm_s16le|"
        r"-(?:v|loglevel)\n\w+|-threads\n\d+|-map_channel\n0\.0\.\d+",  # the last two as lhotse writes them
        "(?:-|pipe:1?)\n",
    ),
}
_SHELL_CHARACTERS = set("|;&<>$`()*?{}[]!~#\\\n")


def parse_pipe(command: str) -> tuple[str, str | None]:
    """Return the file that a command decodes, and its channel; raise an error if it may do anything else.

    The sample rate to which it resamples is ignored, because audio is read at any rate.
    """
    program, words = "", ""
    if not _SHELL_CHARACTERS & set(command):
        try:
            program, *operands = shlex.split(command)
            words = "".join(f"{word}\n" for word in operands)
        except ValueError:  # an open quote, or nothing at all
            program = ""
    options, output = DECODERS.get(os.path.basename(program), ("(?!)", "(?!)"))
    some = f"(?:(?:{options})\n)*"
    found = re.fullmatch(f"{some}(?P<file>[^\n-][^\n]*)\n{some}{output}{some}", words)
    if found is None:
        raise UserError(
            f"{shorten(command.strip())}: commands are never executed, and this is not a plain call of "
            f"{', '.join(DECODERS)}, whose input could be read instead; convert the audio first"
        )
    if "sph2pipe" in program and (side := re.search("^-c\n([12])$", words, re.MULTILINE)):
        return found["file"], str(int(side[1]) - 1)
    mapped = re.search(r"^-map_channel\n0\.0\.(\d+)$", words, re.MULTILINE)
    return found["file"], mapped[1] if mapped else None
