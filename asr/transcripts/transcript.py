"""Transcripts with times, how segments are joined, and formats: txt, json, srt, vtt, tsv, ctm, stm, trn."""

from __future__ import annotations

import html
import json
import logging
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from asr.errors import UserError, plural, shorten
from asr.transcripts.subtitles import Cue, SubtitlesConfig, build_cues, to_milliseconds

if TYPE_CHECKING:
    from asr.audio.segmentation import AudioSegment

logger = logging.getLogger(__name__)

SHORTEST_WORD = 0.02  # seconds; alignment may leave a word without a step of its own
EARLY_SECONDS = 0.2  # by which alignment may be early


@dataclass(frozen=True)
class Word:
    """One word of a transcript. Times are seconds from the start of the recording."""

    text: str
    start: float
    end: float
    confidence: float  # confidence of the model, 0 to 1

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "start": round_seconds(self.start),
            "end": round_seconds(self.end),
            "confidence": round_score(self.confidence),
        }


@dataclass(frozen=True)
class Segment:
    """A segment of speech between pauses."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] = ()
    confidence: float = 0.0  # mean of the words' confidences
    decoding: str = ""  # decoding method that found the text, such as "joint" or "ctc_beam"
    warnings: tuple[str, ...] = ()  # reasons why a fallback was used, or why the text may be wrong
    channel: int | None = None
    """Counted from 1, where each channel of a recording was transcribed by itself: one speaker each."""
    average_log_probability: float | None = None
    """Mean over its tokens and the end, without a language model; None where nothing was decoded."""
    no_speech_probability: float | None = None
    """Whisper: probability that nobody speaks; None for other models."""
    temperature: float | None = None
    """Whisper: sampling temperature, 0 for greedy or beam search; None for other models."""
    tokens: tuple[int, ...] = ()  # ids in the vocabulary of the model, as decoded
    language: str | None = None  # language code passed in or detected; None: the model supports only one
    language_probability: float | None = None
    token_scores: tuple[float, int] = (0.0, 0)
    """Sum of the log-probabilities of its tokens and the end, and their number, for the mean over several."""
    diarized: str | None = None  # speaker found by diarization

    @property
    def compression_ratio(self) -> float:
        return measure_compression(self.text)

    @property
    def speaker(self) -> str | None:
        return self.diarized if self.channel is None else f"speaker{self.channel}"

    def to_dict(self) -> dict[str, Any]:
        own = {"speaker": self.speaker, "channel": self.channel}
        return {
            **{name: value for name, value in own.items() if value is not None},
            "start": round_seconds(self.start),
            "end": round_seconds(self.end),
            "text": self.text,
            "confidence": round_score(self.confidence),
            "average_log_probability": round_score(self.average_log_probability),
            "no_speech_probability": round_score(self.no_speech_probability),
            "temperature": round_score(self.temperature),
            "compression_ratio": round_score(self.compression_ratio),
            "decoding": self.decoding,
            "warnings": list(self.warnings),
            "words": [word.to_dict() for word in self.words],
        }


def measure_compression(text: str) -> float:
    """Bytes of the text over those that zlib needs for it; 0 for no text. Under 1 for short ones."""
    content = text.encode("utf-8", "surrogatepass")
    return len(content) / len(zlib.compress(content))


@dataclass(frozen=True, repr=False)
class Transcript:
    """The transcript of one recording; as a string, its text."""

    id: str  # name of the recording: the stem of its file, or the id of its utterance
    audio: str  # path of the file; "-" for standard input, "" for an array
    duration: float  # seconds
    segments: tuple[Segment, ...] = ()
    speaker: str | None = None
    separator: str = " "  # between the texts of two segments; "" in languages without spaces
    warnings: tuple[str, ...] = ()  # missing parts, such as the rest of a truncated file
    language: str | None = None  # language code passed in or detected; None: the model supports only one
    language_probability: float | None = None
    """Probability of that language, by the first speech; None if it was given, or there is no other."""
    model: str = ""  # the argument of `load_model`
    out_of_domain: str = ""
    """Warning that the model was probably not trained for such audio; "" if it was, or unknown."""
    compute_type: str = ""
    """Precision of matrix products and device, such as "int8 on cpu": with another, texts may differ."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        parts = plural(len(self.segments), "segment")
        return f"Transcript({self.id!r}, {self.duration:.1f} s, {parts}: {shorten(self.text)})"

    @property
    def text(self) -> str:
        return self.separator.join(segment.text for segment in self.segments if segment.text)

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(word for segment in self.segments for word in segment.words)

    def to_dict(self) -> dict[str, Any]:
        """Build the record of the formats json and jsonl; what is not known is left out."""
        record: dict[str, Any] = {
            "id": self.id,
            "audio": self.audio,
            "duration": round_seconds(self.duration),
            "text": self.text,
        }
        if self.speaker is not None:
            record["speaker"] = self.speaker
        if self.language is not None:
            record["language"] = self.language
            record["language_probability"] = round_score(self.language_probability)
        for name in ("model", "out_of_domain", "compute_type"):
            if value := getattr(self, name):
                record[name] = value
        if self.warnings:
            record["warnings"] = list(self.warnings)
        return record | {"segments": [segment.to_dict() for segment in self.segments]}


def round_seconds(seconds: float) -> float:
    return to_milliseconds(seconds) / 1000


def round_score(value: float | None) -> float | None:
    """Round a confidence or score to four digits; None where there is none."""
    return round(value, 4) if value is not None and math.isfinite(value) else None


# --- segments and channels ------------------------------------------------------------------------


def make_segment(
    source: AudioSegment | Segment, text: str, words: Sequence[Word], method: str, warnings: tuple[str, ...]
) -> Segment:
    source = Segment(source.start, source.end, "", decoding=method, warnings=warnings)
    return replace_words(source, text, words)


def replace_words(segment: Segment, text: str, words: Sequence[Word]) -> Segment:
    """The same segment with another text and other words, and times and confidence of these."""
    start, end = (words[0].start, words[-1].end) if words else (segment.start, segment.end)
    confidence = sum(word.confidence for word in words) / max(len(words), 1)
    return replace(segment, start=start, end=end, text=text, words=tuple(words), confidence=confidence)


def keep_words(segment: Segment, words: Sequence[Word], separator: str) -> Segment:
    """Keep only these words of it."""
    if len(words) == len(segment.words):
        return segment
    return replace_words(segment, separator.join(word.text for word in words), words)


def merge_channels(results: Sequence[Transcript | UserError]) -> Transcript | UserError:
    """Merge the channels of one recording: their segments in the order of time, each channel a speaker."""
    transcripts = [result for result in results if isinstance(result, Transcript)]
    if len(transcripts) < len(results):
        return next(result for result in results if isinstance(result, UserError))
    first = transcripts[0]
    if all(one.segments == first.segments for one in transcripts):
        if len(transcripts) > 1 and first.segments:
            logger.warning("%s: all its channels are the same, so speakers are unknown", first.audio)
        return first
    spoken = next((one for one in transcripts if one.segments), first)
    numbered = enumerate(transcripts, 1)
    segments = [replace(segment, channel=channel) for channel, one in numbered for segment in one.segments]
    return replace(
        spoken,
        duration=max(one.duration for one in transcripts),
        segments=tuple(sorted(segments, key=lambda segment: segment.start)),
        warnings=tuple(dict.fromkeys(warning for one in transcripts for warning in one.warnings)),
        out_of_domain=next((one.out_of_domain for one in transcripts if one.out_of_domain), ""),
    )


# --- words where segments overlap, and pauses -----------------------------------------------------


def join_words(before: Sequence[Word], after: Sequence[Word], cut: float) -> tuple[list[Word], list[Word]]:
    """Divide the words of two segments that overlap around `cut`, so that none is lost or doubled.

    They part after the word nearest to the cut on which both agree: it is complete in both. Without one,
    each keeps the words whose middle is on its side.
    """
    agreed = [
        (abs(word.middle - cut), left, right)
        for left, word in enumerate(before)
        for right, other in enumerate(after)
        if word.text == other.text and _is_same_time(word, other)
    ]
    if agreed:
        _, left, right = min(agreed)
        return list(before[: left + 1]), list(after[right + 1 :])
    return [word for word in before if word.middle < cut], [word for word in after if word.middle >= cut]


def _is_same_time(word: Word, other: Word) -> bool:
    """Check that they share more than half of the shorter one: a word spoken twice in a row is not one."""
    shared = min(word.end, other.end) - max(word.start, other.start)
    return shared > min(word.end - word.start, other.end - other.start) / 2


def clip_words(words: Sequence[Word], segment: AudioSegment) -> list[Word]:
    """The same words, each inside the span of speech that it is in, and none without length.

    Alignment hands out all of the time, pauses too: to the first word after a pause or the last one before.
    """
    clipped = [_clip(word, segment.speech) for word in words]
    shortest = min(SHORTEST_WORD, (segment.end - segment.start) / max(len(words), 1))
    free = segment.start
    for index, word in enumerate(clipped):
        start = max(word.start, free)
        free = max(word.end, start + shortest)
        clipped[index] = replace(word, start=start, end=free)
    limit = segment.end
    for index, word in reversed(list(enumerate(clipped))):
        end = min(word.end, limit)
        limit = max(segment.start, min(word.start, end - shortest))
        clipped[index] = replace(word, start=limit, end=end)
    return clipped


def _clip(word: Word, speech: Sequence[tuple[float, float]]) -> Word:
    """Clip to the last span it touches; in a pause, to one that begins at once. What the VAD missed stays.

    The last one: attention moves on to the next word while the one before is still being spoken.
    """
    touched = [(start, end) for start, end in speech if word.start < end and start < word.end]
    near = [(start, end) for start, end in speech if word.end <= start < word.end + EARLY_SECONDS]
    if not touched and not near:
        return word
    start, end = touched[-1] if touched else near[0]
    start = max(word.start, start)
    return replace(word, start=start, end=max(start, min(word.end, end)))


# --- formats ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """An output format."""

    write: Callable[..., str]
    """Write a transcript; or a transcript's segment; or a cue and its number, from 1."""
    takes: Literal["transcript", "segment", "cue"] = "segment"
    header: str = ""  # text before the first recording
    holds_several: bool = True  # of recordings in a file; subtitles belong to one


def format_transcript(name: str, transcript: Transcript, config: SubtitlesConfig | None = None) -> str:
    """The whole content of a file for one recording, in the format `name`."""
    if name == "json":
        return _write_json(transcript)
    stream = TranscriptStream(name, config, several=False)
    return stream.add(transcript) + stream.end()


class TranscriptStream:
    """One stream for all recordings, such as standard output: pieces of text, to be written one by one.

    As txt, each line of `several` recordings begins with the path of its audio. json is one array, jsonl
    has a line for each recording. Segments may come first: formats of segments write them at once.
    """

    def __init__(self, name: str, config: SubtitlesConfig | None = None, several: bool = True) -> None:
        self._writer = WRITERS[name]
        if several and not self._writer.holds_several:
            raise UserError(f"{name} holds one recording: give --output-dir for one {name} file to each")
        self._name, self._several, self._config = name, several, config or SubtitlesConfig()
        self._is_empty = True
        self._has_segments = False  # segments of the newest recording were added

    def add_segment(self, id: str, audio: str, segment: Segment) -> str:
        """Return what to write now for the next segment of a recording that is on its way."""
        if self._writer.takes != "segment" or not clean(segment.text):
            return ""
        self._has_segments = True
        return self._start(self._write_segments(Transcript(id, audio, segment.end, (segment,))))

    def add(self, transcript: Transcript) -> str:
        """Return what to write for this recording, without segments that were added before it.

        After an error, the stream can continue with the next one.
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
        if self._name == "stm" and not segments:  # it has a line for silence, too
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
    # Half characters, as in file names that are not UTF-8, cannot be encoded; they only stand in strings. The
    # others are line ends to some readers of lines.
    return re.sub("[\ud800-\udfff\u2028\u2029\x85]", lambda match: f"\\u{ord(match[0]):04x}", dumped)


# --- plain text and subtitles -------------------------------------------------------------------


def _write_txt(_: Transcript, segment: Segment) -> str:
    return ("" if segment.speaker is None else f"{segment.speaker}: ") + f"{segment.text}\n"


def _write_srt_cue(number: int, cue: Cue) -> str:
    """SubRip has no escapes: only the arrow, which would look like a line of times, is rewritten."""
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


# --- tables: a line is a segment or a word; a tab or a space separates columns -------------------


def _write_tsv(transcript: Transcript, segment: Segment) -> str:
    """No quotes, no escapes: a text never holds a tab or a line end, which become spaces."""
    confidence = _decimal(segment.confidence)
    times = f"{_seconds(segment.start)}\t{_seconds(segment.end)}"
    return f"{clean(transcript.id)}\t{times}\t{confidence}\t{segment.speaker or ''}\t{segment.text}\n"


def _write_ctm(transcript: Transcript) -> str:
    """NIST's table of words: recording, channel, start, duration, word, confidence."""
    rows = []
    for segment in _spoken(transcript):
        if not segment.words:
            raise UserError(
                f"{transcript.id}: ctm needs the times of words, and this transcript has none; "
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
    """NIST's table of segments: recording, channel, speaker, start, end, label, text.

    The label is always there, since a text that begins with < would be taken for one.
    """
    speaker = escape_id(segment.speaker or transcript.speaker or "unknown")
    times = f"{_seconds(segment.start)} {_seconds(segment.end)}"
    line = f"{escape_id(transcript.id)} {segment.channel or 1} {speaker} {times} <NA> {segment.text}"
    return line.rstrip() + "\n"


def format_turn(recording: str, start: float, end: float, speaker: str, channel: int | None = None) -> str:
    """A line of NIST's table of speaker turns (RTTM), in milliseconds."""
    first, last = to_milliseconds(start), to_milliseconds(end)
    times = f"{_milli(first)} {_milli(last - first)}"
    return f"SPEAKER {escape_id(recording)} {channel or 1} {times} <NA> <NA> {escape_id(speaker)} <NA> <NA>\n"


def _write_rttm(transcript: Transcript, segment: Segment) -> str:
    """Segments without a speaker are no turns."""
    own = (transcript.id, segment.start, segment.end)
    return "" if segment.speaker is None else format_turn(*own, segment.speaker, segment.channel)


def _write_trn(transcript: Transcript) -> str:
    """NIST's list of texts, each followed by its id in brackets; of channels that are speakers, one each."""
    lines = []
    channels = {segment.channel for segment in transcript.segments} or {None}
    for channel in sorted(channels, key=lambda one: one or 0):
        texts = [segment.text for segment in transcript.segments if segment.channel == channel]
        text = transcript.separator.join(text for text in texts if text)
        suffix = "" if channel is None else f"-{channel}"
        line = f"{clean(text)} ({escape_id(transcript.id + suffix)})\n".lstrip()
        lines.append(f" {line}" if line.startswith(";;") else line)  # without the space a comment
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
    """A name for ctm, stm and trn, as in URLs: %20 for a space. What has meaning there: white space,
    brackets, the semicolon of a comment; and the percent sign, so that different names stay different."""
    special = r"[\s\x00-\x1f\x7f-\x9f();%\ud800-\udfff]"
    return re.sub(special, lambda match: quote(match[0], errors="surrogatepass"), name) or "%"


def clean(text: str) -> str:
    """One line: any white space is a space, and characters that are none are left out."""
    text = " ".join(text.split())
    if text.isprintable():
        return text
    return " ".join(re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "", text).split())


def _spoken(transcript: Transcript) -> list[Segment]:
    """Segments with a text, as one line."""
    cleaned = (replace(segment, text=clean(segment.text)) for segment in transcript.segments)
    return [segment for segment in cleaned if segment.text]


def _decimal(confidence: float) -> str:
    rounded = round_score(confidence)
    return "" if rounded is None else f"{rounded:.4f}"


def _seconds(seconds: float) -> str:
    return _milli(to_milliseconds(seconds))


def _milli(milliseconds: int) -> str:
    """Seconds with three decimals, from integers: a sum of two is exact."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"
