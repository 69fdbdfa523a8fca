"""Live text on its way out: final words as they come, and how long after speech that was."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from typing import BinaryIO, TextIO, cast

from asr.transcription.streaming import LiveText
from asr.transcripts.transcript import Word


@dataclass
class Latency:
    """How long after the end of a word it was written, and what the computing took."""

    waits: list[float] = field(default_factory=list)
    """Seconds of audio from the end of a word to what had come when it became final, and the time that the
    computing took from then on."""
    computing_seconds: float = 0.0
    audio_seconds: float = 0.0
    idle_seconds: float = 0.0
    """Spent in waiting for audio."""

    def __str__(self) -> str:
        if not self.waits:
            return f"no word in {self.audio_seconds:.1f} s of audio"
        slowest = sorted(self.waits)[math.ceil(0.9 * len(self.waits)) - 1]
        return (
            f"{len(self.waits)} words in {self.audio_seconds:.1f} s of audio; written "
            f"{statistics.median(self.waits):.2f} s (median) after they were spoken, nine in ten within "
            f"{slowest:.2f} s; computing took {self.computing_seconds / max(self.audio_seconds, 1e-9):.2f} s "
            "for each second of audio"
        )


def read_pieces(source: BinaryIO, latency: Latency, max_bytes: int) -> Iterator[bytes]:
    """What comes in, as soon as it is there, at most so much at once."""
    buffered = cast(BufferedReader, source)
    while True:
        begin = time.perf_counter()
        piece = buffered.read1(max_bytes)
        latency.idle_seconds += time.perf_counter() - begin
        if not piece:
            return
        yield piece


def write_live(texts: Iterable[LiveText], out: TextIO, as_json: bool = False) -> Iterator[LiveText]:
    """Each text again, after its final words have been written: a line for each segment, word by word.

    As JSON there is a line for each text in which anything is new or has changed.
    """
    is_begun, tentative = False, ""
    for text in texts:
        if as_json:
            shown = _join_tentative(text)
            if text.words or text.segment is not None or shown != tentative:
                out.write(_describe(text) + "\n")
            tentative = shown
        else:
            for word in text.words:
                out.write((text.separator if is_begun else "") + word.text)
                is_begun = True
            if text.segment is not None and is_begun:
                out.write("\n")
                is_begun = False
        out.flush()
        yield text
    if is_begun:
        out.write("\n")


def measure_latency(texts: Iterable[LiveText], latency: Latency) -> Iterator[LiveText]:
    """Each text again, its times taken."""
    begin, idle = time.perf_counter(), latency.idle_seconds
    for text in texts:
        seconds = time.perf_counter() - begin - (latency.idle_seconds - idle)
        latency.computing_seconds += seconds
        latency.audio_seconds = max(latency.audio_seconds, text.seconds)
        latency.waits += [max(0.0, text.seconds - word.end) + seconds for word in text.words]
        yield text
        begin, idle = time.perf_counter(), latency.idle_seconds


def _join_tentative(text: LiveText) -> str:
    return text.separator.join(word.text for word in text.tentative)


def _describe(text: LiveText) -> str:
    record = {
        "seconds": round(text.seconds, 3),
        "final": [_describe_word(word) for word in text.words],
        "tentative": _join_tentative(text),
        "segment_ends": text.segment is not None,
        "warnings": [] if text.segment is None else list(text.segment.warnings),
    }
    return json.dumps(record, ensure_ascii=False)


def _describe_word(word: Word) -> dict[str, object]:
    return {
        "text": word.text,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "confidence": round(word.confidence, 4),
    }
