"""Transcripts as text in the formats that people use: txt, json, jsonl, srt, vtt, lrc, tsv, ctm, stm, trn."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asr.audio.reading import Damage
from asr.errors import UserError
from asr.transcripts.subtitles import Cue, CueBuilder, SubtitlesConfig, build_cues, to_milliseconds
from asr.transcripts.transcript import Segment, Transcript, Word


@dataclass(frozen=True)
class Writer:
    """A format: how it writes a recording, or each segment or cue, and what stands before all recordings."""

    write: Callable[[Transcript], str] | None = None
    """The lines of one recording."""
    write_segment: Callable[[Transcript, Segment], str] | None = None
    """Those of one segment, which can be written before the next one is there."""
    write_cue: Callable[[int, Cue], str] | None = None
    """Of subtitles: a cue and its number, from 1."""
    header: str = ""
    """Before the first recording."""
    holds_several: bool = True
    """Whether one file may hold several recordings. Subtitles belong to one."""
    tells_silence: bool = False
    """Whether there is a line for a recording in which nobody speaks."""

    def format(self, transcript: Transcript, config: SubtitlesConfig) -> str:
        segments = _spoken(transcript)
        if self.write_cue is not None:
            cleaned = [_clean_segment(segment) for segment in segments]
            return self.number_cues(build_cues(cleaned, transcript.duration, config), 1)
        if self.write_segment is not None:
            if self.tells_silence and not segments:
                segments = [Segment(0.0, transcript.duration, "")]
            return "".join(self.write_segment(transcript, segment) for segment in segments)
        assert self.write is not None
        return self.write(transcript)

    def number_cues(self, cues: Sequence[Cue], first: int) -> str:
        assert self.write_cue is not None
        return "".join(self.write_cue(number, cue) for number, cue in enumerate(cues, first))


def format_transcript(name: str, transcript: Transcript, config: SubtitlesConfig | None = None) -> str:
    """The whole content of a file for one recording, in the format `name`."""
    writer = WRITERS[name]
    return writer.header + writer.format(transcript, config or SubtitlesConfig())


class TranscriptStream:
    """One stream for all recordings, such as standard output: pieces of text, to be written one by one.

    As txt, each line of `several` recordings begins with the path of its audio. json is one array, jsonl
    has a line for each recording. Segments may come before their transcript: what the format can write of
    them is written at once.
    """

    def __init__(self, name: str, config: SubtitlesConfig | None = None, several: bool = True) -> None:
        if several and not WRITERS[name].holds_several:
            raise UserError(f"{name} holds one recording: give --output-dir for one {name} file to each")
        self._name = name
        self._writer = WRITERS[name]
        self._config = config or SubtitlesConfig()
        self._several = several
        self._is_empty = True
        self._is_begun = False  # whether segments of the newest recording were written
        self._cues = CueBuilder(self._config)
        self._num_cues = 0

    def add_segment(self, id: str, audio: str, segment: Segment) -> str:
        """Return what to write now for the next segment of a recording that is on its way."""
        if self._writer.write_cue is not None:
            text = self._number(self._cues.add(_clean_segment(segment)) if _clean(segment.text) else [])
        elif self._writer.write_segment is not None and _clean(segment.text):
            text = self._write(Transcript(id, audio, segment.end, (segment,)))
        else:
            return ""
        self._is_begun = self._is_begun or bool(text)
        return self._begin(text) if text else ""

    def add(self, transcript: Transcript) -> str:
        """Return what to write for this recording, but for segments that were.

        After an error, the stream can go on with the next one.
        """
        if self._writer.write_cue is not None and self._is_begun:
            text = self._number(self._cues.finish(transcript.duration))
        else:
            text = "" if self._is_begun else self._write(transcript)
        self._is_begun = False
        return self._begin(text)

    def _write(self, transcript: Transcript) -> str:
        if self._name == "json":
            return _dump_json(describe(transcript), indent=2)
        text = self._writer.format(transcript, self._config)
        if self._name == "txt" and self._several:
            lines = text.splitlines() or [""]
            return "".join(f"{_clean(transcript.audio)}: {line}".rstrip() + "\n" for line in lines)
        return text

    def _number(self, cues: Sequence[Cue]) -> str:
        first, self._num_cues = self._num_cues + 1, self._num_cues + len(cues)
        return self._writer.number_cues(cues, first)

    def _begin(self, text: str) -> str:
        if self._name == "json":
            before = "[\n" if self._is_empty else ",\n"
        else:
            before = self._writer.header if self._is_empty else ""
        self._is_empty = False
        return before + text

    def end(self) -> str:
        """Return what to write after the last recording."""
        if self._name == "json":
            return "[]\n" if self._is_empty else "\n]\n"
        return self._writer.header if self._is_empty else ""


# --- plain text and JSON ------------------------------------------------------------------------


def _write_txt(transcript: Transcript, segment: Segment) -> str:
    """A line for each segment between pauses."""
    return f"{_name_speaker(segment)}{_clean(segment.text)}\n"


def _name_speaker(segment: Segment | Cue) -> str:
    """Name of the speaker before a text; nothing where nobody knows who speaks."""
    return "" if segment.speaker is None else f"{segment.speaker}: "


def describe(transcript: Transcript) -> dict[str, Any]:
    """The record that json and jsonl hold, as docs/json.md says: times in seconds to the millisecond."""
    record: dict[str, Any] = {
        "id": transcript.id,
        "audio": transcript.audio,
        "duration": _seconds(transcript.duration),
        "text": transcript.text,
    }
    if transcript.speaker is not None:
        record["speaker"] = transcript.speaker
    if transcript.language is not None:
        record["language"] = transcript.language
        record["language_probability"] = _share(transcript.language_probability)
    if transcript.model:
        record["model"] = transcript.model
    if transcript.out_of_domain:
        record["out_of_domain"] = transcript.out_of_domain
    if transcript.arithmetic:
        record["arithmetic"] = transcript.arithmetic
    if transcript.incomplete is not None:
        record["incomplete"] = _describe_damage(transcript.incomplete)
    if transcript.warnings:
        record["warnings"] = list(transcript.warnings)
    return record | {"segments": [_describe_segment(segment) for segment in transcript.segments]}


def _describe_damage(damage: Damage) -> dict[str, Any]:
    """Seconds; null: nobody knows."""

    def known(seconds: float | None) -> float | None:
        return None if seconds is None else _seconds(seconds)

    return {
        "promised": known(damage.promised),
        "found": _seconds(damage.found),
        "missing": [[known(begin), known(end)] for begin, end in damage.missing],
    }


def _describe_segment(segment: Segment) -> dict[str, Any]:
    speaker = {} if segment.channel is None else {"speaker": segment.speaker, "channel": segment.channel}
    tokens = {"tokens": list(segment.tokens)} if segment.tokens else {}
    return speaker | {
        "start": _seconds(segment.start),
        "end": _seconds(segment.end),
        "text": segment.text,
        "confidence": _share(segment.confidence),
        "average_log_probability": _share(segment.average_log_probability),
        "no_speech_probability": _share(segment.no_speech_probability),
        "temperature": _share(segment.temperature),
        "compression_ratio": _share(segment.compression_ratio),
        "decoding": segment.decoding,
        "warnings": list(segment.warnings),
        "words": [describe_word(word) for word in segment.words],
        **tokens,
    }


def describe_word(word: Word) -> dict[str, Any]:
    return {
        "text": word.text,
        "start": _seconds(word.start),
        "end": _seconds(word.end),
        "confidence": _share(word.confidence),
    }


def _write_json(transcript: Transcript) -> str:
    return _dump_json(describe(transcript), indent=2) + "\n"


def _write_jsonl(transcript: Transcript) -> str:
    """All of the recording on one line, so that the files of many can be put one after the other."""
    return _dump_json(describe(transcript)) + "\n"


def _dump_json(record: dict[str, Any], indent: int | None = None) -> str:
    dumped = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=indent)
    # Half characters, as in file names that are not UTF-8, cannot be encoded; they only stand in strings. The
    # others are line ends to some readers of lines.
    return re.sub("[\ud800-\udfff\u2028\u2029\x85]", lambda found: f"\\u{ord(found[0]):04x}", dumped)


# --- subtitles ----------------------------------------------------------------------------------


def _write_srt_cue(number: int, cue: Cue) -> str:
    """SubRip knows no escapes: only the arrow, which would look like a line of times, is rewritten."""
    times = f"{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}"
    lines = "\n".join(line.replace("-->", "→") for line in cue.lines)
    return f"{number}\n{times}\n{_name_speaker(cue)}{lines}\n\n"


def _write_vtt_cue(number: int, cue: Cue) -> str:
    times = f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}"
    lines = "\n".join(html.escape(line, quote=False) for line in cue.lines)
    voice = "" if cue.speaker is None else f"<v {cue.speaker}>"
    return f"{times}\n{voice}{lines}\n\n"


def _write_lrc_cue(number: int, cue: Cue) -> str:
    """Lyrics: a cue on a line, after its start. A bracket where a text begins, as times do, becomes round."""
    minutes, hundredths = divmod(cue.start_ms // 10, 6000)
    text = _name_speaker(cue) + " ".join(cue.lines)
    if text.startswith("["):
        text = text.replace("[", "(").replace("]", ")")
    return f"[{minutes:02}:{hundredths // 100:02}.{hundredths % 100:02}]{text}\n"


def _clean_segment(segment: Segment) -> Segment:
    return replace(segment, text=_clean(segment.text))


def _clock(milliseconds: int, mark: str) -> str:
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{mark}{milliseconds:03}"


# --- tables: a line is a segment or a word, columns are parted by a tab or a space ---------------


def _write_tsv(transcript: Transcript, segment: Segment) -> str:
    """No quotes, no escapes: a text never holds a tab or a line end, which become spaces."""
    confidence = _share(segment.confidence)
    sure = "" if confidence is None else f"{confidence:.4f}"
    times = f"{_decimal(segment.start)}\t{_decimal(segment.end)}"
    return f"{_clean(transcript.id)}\t{times}\t{sure}\t{segment.speaker or ''}\t{_clean(segment.text)}\n"


def _write_whisper_tsv(transcript: Transcript, segment: Segment) -> str:
    """Write as openai-whisper does: whole milliseconds, no id, so one recording to a file."""
    times = f"{to_milliseconds(segment.start)}\t{to_milliseconds(segment.end)}"
    return f"{times}\t{_write_txt(transcript, segment)}"


def _write_ctm(transcript: Transcript) -> str:
    """NIST's table of words: recording, channel, start, duration, word, confidence."""
    name, rows = escape_id(transcript.id), []
    for segment in _spoken(transcript):
        channel = str(segment.channel or 1)
        if not segment.words:
            raise UserError(
                f"{transcript.id}: ctm needs the times of words, and this transcript has none; "
                "write stm, trn or txt"
            )
        for word in segment.words:
            start, end = to_milliseconds(word.start), to_milliseconds(word.end)
            confidence = _share(word.confidence)
            sure = "" if confidence is None else f" {confidence:.4f}"
            text = "_".join(_clean(word.text).split())
            times = f"{_milli(start)} {_milli(max(0, end - start))}"
            rows.append(f"{name} {channel} {times} {text}{sure}\n")
    return "".join(rows)


def _write_stm(transcript: Transcript, segment: Segment) -> str:
    """NIST's table of segments: recording, channel, speaker, start, end, label, text.

    The label is always there, since a text that begins with < would be taken for one.
    """
    speaker = escape_id(segment.speaker or transcript.speaker or "unknown")
    times = f"{_decimal(segment.start)} {_decimal(segment.end)}"
    line = f"{escape_id(transcript.id)} {segment.channel or 1} {speaker} {times} <NA> {_clean(segment.text)}"
    return line.rstrip() + "\n"


def _write_trn(transcript: Transcript) -> str:
    """NIST's list of texts, each followed by its id in brackets; of channels that are speakers, one each."""
    lines = []
    channels = {segment.channel for segment in transcript.segments} or {None}
    for channel in sorted(channels, key=lambda one: one or 0):
        texts = [segment.text for segment in transcript.segments if segment.channel == channel]
        text = transcript.separator.join(text for text in texts if text)
        suffix = "" if channel is None else f"-{channel}"
        lines.append(f"{_clean(text)} ({escape_id(transcript.id + suffix)})\n".lstrip())
    return "".join(lines)


WRITERS: dict[str, Writer] = {
    "txt": Writer(write_segment=_write_txt),
    "json": Writer(_write_json),
    "jsonl": Writer(_write_jsonl),
    "srt": Writer(write_cue=_write_srt_cue, holds_several=False),
    "vtt": Writer(write_cue=_write_vtt_cue, header="WEBVTT\n\n", holds_several=False),
    "lrc": Writer(write_cue=_write_lrc_cue, holds_several=False),
    "tsv": Writer(write_segment=_write_tsv, header="id\tstart\tend\tconfidence\tspeaker\ttext\n"),
    "whisper.tsv": Writer(write_segment=_write_whisper_tsv, header="start\tend\ttext\n", holds_several=False),
    "ctm": Writer(_write_ctm),
    "stm": Writer(write_segment=_write_stm, tells_silence=True),
    "trn": Writer(_write_trn),
}


# --- parts --------------------------------------------------------------------------------------


def escape_id(name: str) -> str:
    """A name for ctm, stm and trn, as in URLs: %20 for a space. What has meaning there: white space,
    brackets, the semicolon of a comment; and the percent sign, so that different names stay different."""
    return (
        re.sub(
            r"[\s\x00-\x1f\x7f-\x9f();%\ud800-\udfff]",
            lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")),
            name,
        )
        or "%"
    )


def _spoken(transcript: Transcript) -> list[Segment]:
    return [segment for segment in transcript.segments if _clean(segment.text)]


def _clean(text: str) -> str:
    """One line: any white space is a space, and characters that are none are left out."""
    text = " ".join(text.split())
    if text.isprintable():
        return text
    return " ".join(re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "", text).split())


def _share(value: float | None) -> float | None:
    """A confidence or score; None where there is none."""
    return round(value, 4) if value is not None and math.isfinite(value) else None


def _seconds(value: float) -> float:
    return to_milliseconds(value) / 1000


def _decimal(seconds: float) -> str:
    return _milli(to_milliseconds(seconds))


def _milli(milliseconds: int) -> str:
    """Seconds with three decimals, from integers: a sum of two is exact."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"
