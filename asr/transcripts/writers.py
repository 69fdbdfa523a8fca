"""Write transcripts in the formats txt, json, jsonl, srt, vtt, tsv, ctm, stm, rttm and trn."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote

from asr.errors import UserError
from asr.transcripts.subtitles import Cue, SubtitlesConfig, build_cues
from asr.transcripts.transcript import Segment, Transcript, round_score, to_milliseconds


@dataclass(frozen=True)
class Writer:
    """An output format."""

    write: Callable[..., str]
    """Writes a transcript, one of its segments, or a cue with its number, counted from 1."""
    takes: Literal["transcript", "segment", "cue"] = "segment"
    header: str = ""  # text before the first recording
    holds_several: bool = True  # False for subtitles, whose files hold a single recording


def format_transcript(name: str, transcript: Transcript, config: SubtitlesConfig | None = None) -> str:
    """Return the content of a file for one recording, in the format `name`."""
    if name == "json":
        return _write_json(transcript)
    stream = TranscriptStream(name, config, several=False)
    return stream.add(transcript) + stream.end()


class TranscriptStream:
    """Formats all recordings for one stream, such as standard output, piece by piece.

    With `several` recordings, each line of txt starts with the path of the audio. json is one array, and
    jsonl has a line for each recording. Formats with one line per segment can write segments early.
    """

    def __init__(self, name: str, config: SubtitlesConfig | None = None, several: bool = True) -> None:
        self._writer = WRITERS[name]
        if several and not self._writer.holds_several:
            raise UserError(f"{name} holds a single recording; use --output-dir for one {name} file each")
        self._name, self._several, self._config = name, several, config or SubtitlesConfig()
        self._is_empty = True
        self._has_segments = False  # True if segments of the current recording were already written

    def add_segment(self, id: str, audio: str, segment: Segment) -> str:
        """Return what to write now for the next segment of a recording in progress."""
        if self._writer.takes != "segment" or not clean(segment.text):
            return ""
        self._has_segments = True
        return self._start(self._write_segments(Transcript(id, audio, segment.end, (segment,))))

    def add(self, transcript: Transcript) -> str:
        """Return what to write for this recording, without segments that were already written.

        After an error, the stream can continue with the next recording.
        """
        was_begun, self._has_segments = self._has_segments, False
        if self._writer.takes == "transcript":
            return self._start(self._writer.write(transcript))
        if self._writer.takes == "cue":
            cues = build_cues(_spoken(transcript), transcript.duration, self._config)
            return self._start("".join(self._writer.write(*numbered) for numbered in enumerate(cues, 1)))
        return self._start("" if was_begun else self._write_segments(transcript))

    def _write_segments(self, transcript: Transcript) -> str:
        segments = _spoken(transcript)
        if self._name == "stm" and not segments:  # stm needs a line even for silence
            segments = [Segment(0.0, transcript.duration, "")]
        text = "".join(self._writer.write(transcript, segment) for segment in segments)
        if self._name == "txt" and self._several:
            lines = text.splitlines() or [""]
            return "".join(f"{clean(transcript.audio)}: {line}".rstrip() + "\n" for line in lines)
        return text

    def _start(self, text: str) -> str:
        is_first, self._is_empty = self._is_empty, False
        if self._name == "json":
            return ("[\n" if is_first else ",\n") + text.removesuffix("\n")
        return (self._writer.header if is_first else "") + text

    def end(self) -> str:
        """Return what to write after the last recording."""
        if self._name == "json":
            return "[]\n" if self._is_empty else "\n]\n"
        return self._writer.header if self._is_empty else ""


# --- JSON ---------------------------------------------------------------------------------------


def _write_json(transcript: Transcript) -> str:
    return dump_json(transcript.to_dict(), indent=2) + "\n"


def dump_json(record: dict[str, Any], indent: int | None = None) -> str:
    dumped = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=indent)
    # Lone surrogates, from file names that are not UTF-8, cannot be encoded; they occur only in strings. Some
    # readers treat the other three characters as line ends.
    return re.sub("[\ud800-\udfff\u2028\u2029\x85]", lambda match: f"\\u{ord(match[0]):04x}", dumped)


# --- plain text and subtitles -------------------------------------------------------------------


def _write_txt(_: Transcript, segment: Segment) -> str:
    return ("" if segment.speaker is None else f"{segment.speaker}: ") + f"{segment.text}\n"


def _write_srt_cue(number: int, cue: Cue) -> str:
    """Replace arrows, which would look like a line of times, because SubRip has no escapes."""
    lines = "\n".join(line.replace("-->", "→") for line in cue.lines)
    return f"{number}\n{_cue_times(cue, ',')}\n{cue.label}{lines}\n\n"


def _write_vtt_cue(number: int, cue: Cue) -> str:
    lines = "\n".join(html.escape(line, quote=False) for line in cue.lines)
    voice = "" if cue.speaker is None else f"<v {html.escape(cue.speaker)}>"
    return f"{_cue_times(cue, '.')}\n{voice}{lines}\n\n"


def _cue_times(cue: Cue, mark: str) -> str:
    times = []
    for milliseconds in (cue.start_ms, cue.end_ms):
        minutes, milliseconds = divmod(milliseconds, 60_000)
        rest = f"{milliseconds // 1000:02}{mark}{milliseconds % 1000:03}"
        times.append(f"{minutes // 60:02}:{minutes % 60:02}:{rest}")
    return " --> ".join(times)


# --- tables with a line for each segment or word, and columns separated by tabs or spaces --------


def _write_tsv(transcript: Transcript, segment: Segment) -> str:
    """Write a segment without quotes or escapes, because tabs and line ends have become spaces."""
    confidence = _decimal(segment.confidence)
    times = f"{_seconds(segment.start)}\t{_seconds(segment.end)}"
    return f"{clean(transcript.id)}\t{times}\t{confidence}\t{segment.speaker or ''}\t{segment.text}\n"


def _write_ctm(transcript: Transcript) -> str:
    """Write NIST's table of words: recording, channel, start, duration, word, confidence."""
    rows = []
    for segment in _spoken(transcript):
        if not segment.words:
            raise UserError(
                f"{transcript.id}: ctm needs word times, which this transcript does not have; "
                "write stm, trn or txt"
            )
        for word in segment.words:
            start, end = to_milliseconds(word.start), to_milliseconds(word.end)
            times = f"{_milli(start)} {_milli(max(0, end - start))}"
            text, confidence = "_".join(clean(word.text).split()), _decimal(word.confidence)
            if segment.diarized is not None:  # as in NIST's rich transcriptions, after the type of the token
                confidence = f"{confidence or 'NA'} lex {escape_id(segment.diarized)}"
            row = f"{escape_id(transcript.id)} {segment.channel or 1} {times} {text} {confidence}"
            rows.append(row.rstrip(" ") + "\n")
    return "".join(rows)


def _write_stm(transcript: Transcript, segment: Segment) -> str:
    """Write NIST's table of segments: recording, channel, speaker, start, end, label, text.

    The label is always written, because a text that starts with < would otherwise be read as a label.
    """
    speaker = escape_id(segment.speaker or transcript.speaker or "unknown")
    times = f"{_seconds(segment.start)} {_seconds(segment.end)}"
    line = f"{escape_id(transcript.id)} {segment.channel or 1} {speaker} {times} <NA> {segment.text}"
    return line.rstrip() + "\n"


def format_turn(recording: str, start: float, end: float, speaker: str, channel: int | None = None) -> str:
    """Format a line of NIST's table of speaker turns (RTTM), rounded to milliseconds."""
    first, last = to_milliseconds(start), to_milliseconds(end)
    times = f"{_milli(first)} {_milli(last - first)}"
    return f"SPEAKER {escape_id(recording)} {channel or 1} {times} <NA> <NA> {escape_id(speaker)} <NA> <NA>\n"


def _write_rttm(transcript: Transcript, segment: Segment) -> str:
    """Write a segment as a speaker turn; nothing if its speaker is unknown."""
    own = (transcript.id, segment.start, segment.end)
    return "" if segment.speaker is None else format_turn(*own, segment.speaker, segment.channel)


def _write_trn(transcript: Transcript) -> str:
    """Write NIST's list of texts, each followed by its id in parentheses, one for each separate channel."""
    lines = []
    channels = {segment.channel for segment in transcript.segments} or {None}
    for channel in sorted(channels, key=lambda one: one or 0):
        texts = [segment.text for segment in transcript.segments if segment.channel == channel]
        text = transcript.separator.join(text for text in texts if text)
        suffix = "" if channel is None else f"-{channel}"
        line = f"{clean(text)} ({escape_id(transcript.id + suffix)})\n".lstrip()
        lines.append(f" {line}" if line.startswith(";;") else line)  # a leading ;; would be a comment
    return "".join(lines)


WRITERS: dict[str, Writer] = {
    "txt": Writer(_write_txt),
    "json": Writer(_write_json, "transcript"),
    "jsonl": Writer(lambda transcript: dump_json(transcript.to_dict()) + "\n", "transcript"),
    "srt": Writer(_write_srt_cue, "cue", holds_several=False),
    "vtt": Writer(_write_vtt_cue, "cue", header="WEBVTT\n\n", holds_several=False),
    "tsv": Writer(_write_tsv, header="id\tstart\tend\tconfidence\tspeaker\ttext\n"),
    "ctm": Writer(_write_ctm, "transcript"),
    "stm": Writer(_write_stm),
    "rttm": Writer(_write_rttm),
    "trn": Writer(_write_trn, "transcript"),
}


# --- parts --------------------------------------------------------------------------------------


def escape_id(name: str) -> str:
    """URL-escape a name for ctm, stm and trn, such as %20 for a space: white space, parentheses, semicolons
    (comments), and the percent sign itself, so that different names stay different."""
    special = r"[\s\x00-\x1f\x7f-\x9f();%\ud800-\udfff]"
    return re.sub(special, lambda match: quote(match[0], errors="surrogatepass"), name) or "%"


def clean(text: str) -> str:
    """Return the text as one line: white space becomes a space, and control characters are removed."""
    text = " ".join(text.split())
    if text.isprintable():
        return text
    return " ".join(re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "", text).split())


def _spoken(transcript: Transcript) -> list[Segment]:
    """Return the segments that have text, with the text as one line."""
    cleaned = (replace(segment, text=clean(segment.text)) for segment in transcript.segments)
    return [segment for segment in cleaned if segment.text]


def _decimal(confidence: float) -> str:
    rounded = round_score(confidence)
    return "" if rounded is None else f"{rounded:.4f}"


def _seconds(seconds: float) -> str:
    return _milli(to_milliseconds(seconds))


def _milli(milliseconds: int) -> str:
    """Format seconds with three decimals. Integer milliseconds keep sums and differences exact."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"
