"""Read trn, stm, ctm, Kaldi text, plain text and subtitles: the formats that are read line by line."""

from __future__ import annotations

import html
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from asr.data.text_lines import Lines, open_lines, read_id_texts
from asr.errors import shorten
from asr.transcripts.transcript import Word

Format = Literal["jsonl", "stm", "ctm", "trn", "tsv", "csv", "srt", "vtt", "kaldi", "plain"]
Role = Literal["reference", "hypothesis"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")  # <i>, <v Ann>, <00:01.000>, {\an8}
_NO_FIELDS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """One utterance in a file of transcripts."""

    text: str | None
    """None where nobody has written it down, or where it must not be scored."""
    speaker: str | None = None
    start: float | None = None
    """Seconds from the beginning of the recording."""
    duration: float | None = None
    """Seconds."""
    audio: str | None = None
    """Path of the audio file; a relative one starts at the folder of the file that was read."""
    recording: str | None = None
    """Name of the recording that the utterance is a part of, for files that count time in recordings."""
    channel: str | None = None
    fields: Mapping[str, str] = field(default_factory=lambda: _NO_FIELDS)
    """Whatever else is known, such as language or gender."""
    words: tuple[Word, ...] = ()
    """With their times in the recording, where the file tells them."""


Record = tuple[int, str, Entry]  # (line, id, what it says)
Reader = Callable[[Lines, Role, list[str]], Iterator[Record]]


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def read_plain(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """Line N is utterance N; a blank one is an utterance in which nothing is said."""
    for number, line in lines.numbered:
        yield number, str(number), Entry(line.strip())


def read_kaldi_text(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """`id word word`; an id alone is an empty text."""
    for number, id, text in read_id_texts(lines):
        yield number, id, Entry(text)


def add_speakers(path: str, entries: dict[str, Entry], notes: list[str]) -> dict[str, Entry]:
    """Add the speakers of `utt2spk`, if `path` is the `text` of a Kaldi folder."""
    table = os.path.join(os.path.dirname(path), "utt2spk")
    if os.path.basename(path) != "text" or not os.path.isfile(table):
        return entries
    speakers: dict[str, str] = {}
    with open_lines(table) as lines:
        for number, id, speaker in read_id_texts(lines):
            if len(speaker.split()) != 1:
                raise lines.error(number, f"{shorten(id)}: expected an utterance and its speaker")
            speakers[id] = speaker
    notes.append(f"speakers come from {table}")
    return {id: replace(entry, speaker=speakers.get(id)) for id, entry in entries.items()}


def read_trn(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """`word word (id)`; a line that begins with ;; is a comment."""
    for number, line in lines.numbered:
        if not line.strip() or line.startswith(";;"):
            continue
        match = re.fullmatch(r"(.*)\(([^()\s]+)\)\s*", line)
        if match is None:
            raise lines.error(number, f"{shorten(line)}: expected a text, and last its id in brackets")
        yield number, match[2], Entry(match[1].strip())


def read_subtitles(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """srt and vtt: one recording, named as the file, whose text is that of all cues."""
    texts: list[str] = []
    is_in_cue = False
    for _, line in lines.numbered:
        if "-->" in line:
            is_in_cue = True
        elif not line.strip():
            is_in_cue = False
        elif is_in_cue:
            texts.append(html.unescape(_MARKUP.sub("", line)).strip())
    name = re.sub(r"\s", "_", os.path.basename(lines.name))
    name = re.sub(r"\.(srt|vtt)$", "", name.removesuffix(".gz"), flags=re.IGNORECASE)
    yield 1, name, Entry(" ".join(filter(None, texts)), recording=name, start=0.0)


# --- times --------------------------------------------------------------------------------------


def read_stm(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """`recording channel speaker start end [<label>] text`. Times that are to be ignored have no text."""
    ignored = 0
    for number, line in lines.numbered:
        if not line.strip() or line.startswith(";;"):
            continue
        columns = line.split(maxsplit=5)
        if len(columns) < 5 or not (is_number(columns[3]) and is_number(columns[4])):
            raise lines.error(
                number, f"{shorten(line)}: expected recording, channel, speaker, start, end, text"
            )
        recording, channel, speaker = columns[:3]
        start, end = float(columns[3]), float(columns[4])
        if end < start:
            raise lines.error(number, f"the segment ends at {end:g} s, before its start at {start:g} s")
        text, label = (columns[5] if len(columns) > 5 else "").strip(), ""
        if match := re.match(r"<([^<>\s]*)>(\s+|$)", text):
            label, text = match[1], text[match.end() :]
        is_ignored = text.upper().startswith("IGNORE_TIME_SEGMENT_IN_SCORING")
        ignored += is_ignored
        id = f"{recording}-{channel}-{start * 1000:07.0f}-{end * 1000:07.0f}"
        yield (
            number,
            id,
            Entry(
                None if is_ignored else text,
                speaker=speaker,
                start=start,
                duration=end - start,
                recording=recording,
                channel=channel,
                fields={"label": label} if label else {},
            ),
        )
    if ignored:
        notes.append(f"{ignored:,} segments say that they are to be ignored in scoring")


def read_ctm(lines: Lines, role: Role, notes: list[str]) -> Iterator[Record]:
    """`recording channel start duration word [confidence]`: the words of each recording, in order of time."""
    words: dict[tuple[str, str], list[Word]] = defaultdict(list)
    first_line: dict[tuple[str, str], int] = {}
    for number, line in lines.numbered:
        if not line.strip() or line.startswith(";;"):
            continue
        columns = line.split()
        if "*" in columns[2:4]:
            raise lines.error(number, "alternatives (<ALT_BEGIN>) are not read; keep one of them")
        if len(columns) < 5 or not (is_number(columns[2]) and is_number(columns[3])):
            raise lines.error(number, f"{shorten(line)}: expected recording, channel, start, duration, word")
        start, duration = float(columns[2]), float(columns[3])
        sure = float(columns[5]) if len(columns) > 5 and is_number(columns[5]) else math.nan
        key = (columns[0], columns[1])
        first_line.setdefault(key, number)
        words[key].append(Word(columns[4], start, start + duration, sure))
    channels: dict[str, int] = defaultdict(int)
    for recording, _ in words:
        channels[recording] += 1
    for (recording, channel), found in words.items():
        found.sort(key=lambda word: word.start)  # stable: words of the same time stay in their order
        yield (
            first_line[recording, channel],
            recording if channels[recording] == 1 else f"{recording}-{channel}",
            Entry(
                " ".join(word.text for word in found),
                start=0.0,
                recording=recording,
                channel=channel,
                words=tuple(found),
            ),
        )
