"""Live text on its way out: lines or JSON as it comes, and how long after speech that was."""

from __future__ import annotations

import bisect
import json
import logging
import math
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

from asr.transcription.live_input import PipeReader
from asr.transcription.streaming import LiveText
from asr.transcripts.transcript import Word

logger = logging.getLogger(__name__)

BEHIND_SECONDS = 3.0  # a delay that is worth a warning; at a third of it, decoding has caught up
CLEAR_LINE = "\r\x1b[K"


@dataclass
class Latency:
    """Time from the end of a word in the pipe to its text."""

    final: list[float] = field(default_factory=list)
    """Seconds for each word until its segment was final."""
    shown: list[float] = field(default_factory=list)
    """Until it, or what was taken for it, could first be seen."""
    audio_seconds: float = 0.0
    behind_seconds: float = 0.0
    """How long the audio that is being decoded had to wait."""
    most_behind: float = 0.0
    _ends: list[float] = field(default_factory=list)  # seconds of audio that had come ...
    _clocks: list[float] = field(default_factory=list)  # ... at these times
    _shown_until: float = 0.0
    _is_behind: bool = False

    def watch(self, pieces: Iterable[np.ndarray], sample_rate: int, pipe: PipeReader) -> Iterator[np.ndarray]:
        """The same pieces; takes down when each came."""
        num_samples = 0
        for piece in pieces:
            num_samples += len(piece)
            self.audio_seconds = num_samples / sample_rate
            self._ends.append(self.audio_seconds)
            self._clocks.append(pipe.arrived)
            self._note_delay(time.monotonic() - pipe.arrived)
            yield piece

    def measure(self, texts: Iterable[LiveText]) -> Iterator[LiveText]:
        """The same texts; takes down how late their words are."""
        for text in texts:
            now = time.monotonic()
            visible = text.segment.words if text.segment is not None else (*text.agreed, *text.tentative)
            for word in visible:
                if (word.start + word.end) / 2 > self._shown_until:
                    self.shown.append(now - self._find_arrival(word.end))
                    self._shown_until = word.end
            if text.segment is not None:
                self.final += [now - self._find_arrival(word.end) for word in text.segment.words]
                self._forget(text.segment.end)
            yield text

    def _note_delay(self, seconds: float) -> None:
        self.behind_seconds, self.most_behind = seconds, max(seconds, self.most_behind)
        if not self._is_behind and seconds > BEHIND_SECONDS:
            self._is_behind = True
            logger.warning(
                "decoding is %.1f s behind the audio: whole segments only until it has caught up; nothing is "
                "lost, and a smaller model is faster",
                seconds,
            )
        elif self._is_behind and seconds < BEHIND_SECONDS / 3:
            self._is_behind = False
            logger.info("decoding has caught up with the audio")

    def _find_arrival(self, seconds: float) -> float:
        place = min(bisect.bisect_left(self._ends, seconds), len(self._ends) - 1)
        return self._clocks[place]

    def _forget(self, seconds: float) -> None:
        """No later word ends before."""
        place = bisect.bisect_left(self._ends, seconds)
        del self._ends[:place], self._clocks[:place]

    def __str__(self) -> str:
        if not self.final:
            return f"no word in {self.audio_seconds:.1f} s of audio"
        return (
            f"{len(self.final)} words in {self.audio_seconds:.1f} s of audio; first shown "
            f"{_describe_waits(self.shown)}, final {_describe_waits(self.final)} after they had come; "
            f"decoding was at most {self.most_behind:.2f} s behind"
        )


def _describe_waits(waits: list[float]) -> str:
    slowest = sorted(waits)[math.ceil(0.9 * len(waits)) - 1]
    return f"{statistics.median(waits):.2f} s (median; nine in ten within {slowest:.2f} s)"


def write_live(
    texts: Iterable[LiveText], out: TextIO, as_json: bool = False, latency: Latency | None = None
) -> Iterator[LiveText]:
    """Each text again, after it has been written: a line for each segment that is final.

    A terminal shows below it what may still change. As JSON there is a line for each text in which anything
    is new or has changed.
    """
    is_terminal = out.isatty()
    shown: list[str] = []
    for text in texts:
        newest = [_join(text.agreed, text), _join(text.tentative, text)]
        if as_json:
            if text.segment is not None or newest != shown:
                out.write(_describe(text, latency or Latency()) + "\n")
        elif text.segment is not None:
            line = text.segment.text
            out.write((CLEAR_LINE if is_terminal else "") + (line + "\n" if line else ""))
        elif is_terminal:
            width = shutil.get_terminal_size().columns - 1
            out.write(CLEAR_LINE + _join((*text.agreed, *text.tentative), text)[-width:])
        shown = newest
        out.flush()
        yield text


def _join(words: Iterable[Word], text: LiveText) -> str:
    return text.separator.join(word.text for word in words)


def _describe(text: LiveText, latency: Latency) -> str:
    final: tuple[Word, ...] = ()
    line = _join((*text.agreed, *text.tentative), text)
    if text.segment is not None:
        final, line = text.segment.words, text.segment.text
    record = {
        "seconds": round(text.seconds, 3),
        "text": line,
        "final": [_describe_word(word) for word in final],
        "agreed": [_describe_word(word) for word in text.agreed],
        "tentative": [_describe_word(word) for word in text.tentative],
        "segment_ends": text.segment is not None,
        "warnings": [] if text.segment is None else list(text.segment.warnings),
        "behind": round(latency.behind_seconds, 2),
    }
    return json.dumps(record, ensure_ascii=False)


def _describe_word(word: Word) -> dict[str, object]:
    return {
        "text": word.text,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "confidence": round(word.confidence, 4),
    }
