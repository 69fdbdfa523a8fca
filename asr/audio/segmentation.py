"""Segmentation: cut recordings of any length, read block by block, into segments of speech between pauses.

Speech is found by the model of the package silero-vad, or by its energy over the noise. Memory holds one
segment and what the search for the next cut looks ahead, however long the recording is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pydantic

from asr.audio.speech_detection import (
    AHEAD_SECONDS,
    FRAMES_PER_SECOND,
    SILENCE_DB,
    Method,
    make_detector,
    smooth,
)
from asr.config import Config

# S samples, T frames of 10 ms

SHORTEST_SECONDS = 0.05  # of a recording with a word in it
INNER_PAUSE_SECONDS = 0.5  # between two spans of speech of one segment


class SegmentationConfig(Config):
    """Segmentation of recordings by voice activity."""

    method: Method = "auto"
    """silero: the model of the package silero-vad, which knows speech from music, for models that hear 8 or
    16 kHz. energy: speech is what is louder than the noise around it. auto: silero where the rate allows it,
    else energy. none: no cut, the whole recording is one segment."""
    max_seconds: float = pydantic.Field(default=20.0, ge=1)
    """Longest segment, never longer than the longest utterance that the model was trained on. Whisper, which
    hears 30 s at once however short a segment is, has 28 here unless told otherwise."""
    min_seconds: float = pydantic.Field(default=8.0, gt=0)
    """Speech that goes on past max_seconds is not cut before so many seconds. Whisper: 15."""
    max_pause_seconds: float = pydantic.Field(default=0.5, gt=0)
    """A longer pause always ends a segment; at shorter ones cuts are made only where max_seconds asks.
    Whisper: 3."""
    min_pause_seconds: float = pydantic.Field(default=0.2, gt=0)
    """A shorter one is a part of speech, such as the stop in a t."""
    padding_seconds: float = pydantic.Field(default=0.3, ge=0)
    """Kept before and after speech: weak sounds at its edges."""
    overlap_seconds: float = pydantic.Field(default=1.0, ge=0)
    """Audio that both sides share where speech is cut without a pause; their common words are joined."""
    speech_threshold: float = pydantic.Field(default=0.5, gt=0.15, lt=1)
    """silero: speech begins where it is at least so likely, and ends where it is 0.15 less likely. Lower for
    quiet or noisy speech, higher where noise is taken for speech."""
    threshold_db: float = pydantic.Field(default=8.0, gt=0)
    """energy: speech begins so far over the noise, and ends at half of that; white noise varies by 2 dB."""
    unjudged_seconds: float = pydantic.Field(default=3.0, ge=0)
    """A shorter recording, unless silent, is one segment: what is noise in it, nobody can tell."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> SegmentationConfig:
        if not self.overlap_seconds < self.min_seconds < self.max_seconds - 2 * self.overlap_seconds:
            raise ValueError(
                f"expected overlap_seconds < min_seconds < max_seconds - 2 * overlap_seconds, found "
                f"{self.overlap_seconds}, {self.min_seconds} and {self.max_seconds}"
            )
        if self.min_pause_seconds > self.max_pause_seconds:
            raise ValueError(
                f"min_pause_seconds = {self.min_pause_seconds} must not be over "
                f"max_pause_seconds = {self.max_pause_seconds}"
            )
        return self

    def limited(self, max_seconds: float) -> SegmentationConfig:
        """The same with segments of at most so many seconds, the other lengths in proportion."""
        if max_seconds >= self.max_seconds:
            return self
        share = max_seconds / self.max_seconds
        changed = {name: getattr(self, name) * share for name in ("min_seconds", "overlap_seconds")}
        return self.model_copy(update={"max_seconds": max_seconds, **changed})


@dataclass(frozen=True)
class AudioSegment:
    """A segment of a recording."""

    start: float
    """Seconds from the start of the recording."""
    audio_S: np.ndarray
    sample_rate: int
    cut_before: float | None = None
    """Second at which speech was cut without a pause: this segment begins earlier, the other ends later."""
    cut_after: float | None = None
    """The same at the end."""
    speech: tuple[tuple[float, float], ...] = ()
    """Begin and end of each span of speech in it, in seconds of the recording, with pauses of at least
    INNER_PAUSE_SECONDS between; empty where nobody has looked."""

    @property
    def end(self) -> float:
        return self.start + len(self.audio_S) / self.sample_rate


def split_at_pauses(segment: AudioSegment) -> list[AudioSegment]:
    """Cut in the middle of each pause between its spans of speech."""
    pauses = [(end + start) / 2 - segment.start for (_, end), (start, _) in pairwise(segment.speech)]
    places = [0, *(round(pause * segment.sample_rate) for pause in pauses), len(segment.audio_S)]
    return [
        replace(
            segment,
            start=segment.start + first / segment.sample_rate,
            audio_S=segment.audio_S[first:past],
            speech=(span,),
        )
        for (first, past), span in zip(pairwise(places), segment.speech, strict=True)
    ]


class Segmenter:
    """Cutter of a stream of samples into segments, each given as soon as its end is certain."""

    def __init__(
        self,
        sample_rate: int,
        config: SegmentationConfig,
        offset: float = 0.0,
        ahead_seconds: float = AHEAD_SECONDS,
        whole_seconds: float = 0.0,
    ) -> None:
        """A recording of at most `whole_seconds`, if there is speech in it, is one segment."""
        self.sample_rate, self.config, self.offset = sample_rate, config, offset
        self.whole_seconds = whole_seconds
        self.frame_samples = sample_rate / FRAMES_PER_SECOND  # frames may begin between two samples
        self._detector = make_detector(
            config.method, config.threshold_db, sample_rate, ahead_seconds, config.speech_threshold
        )
        self._blocks = [np.zeros(0, np.float32)]  # from sample _audio_first on
        self._audio_first = 0
        self._num_samples = 0
        self._is_speech_T = np.zeros(0, bool)  # from frame _first on
        self._energies_T = np.zeros(0)
        self._first = 0
        self._next = 0  # the first frame that belongs to no segment yet
        self._cut_before: float | None = None
        self._has_given = False

    @property
    def seconds(self) -> float:
        """Seconds taken so far."""
        return self._num_samples / self.sample_rate

    def push(self, block_S: np.ndarray) -> list[AudioSegment]:
        self._blocks.append(block_S)
        self._num_samples += len(block_S)
        self._note(self._detector.push(block_S))
        return [] if self.seconds <= self.whole_seconds else self._take(is_last=False)

    def finish(self) -> list[AudioSegment]:
        """The rest; nothing can be pushed after."""
        self._note(self._detector.finish())
        if self.seconds <= self.whole_seconds and self._is_speech_T.any():
            return [self._cut_out(0, self._num_samples / self.frame_samples, None)]
        segments = self._take(is_last=True)
        is_short = SHORTEST_SECONDS <= self.seconds <= self.config.unjudged_seconds
        if not self._has_given and is_short and self._energies_T.max(initial=SILENCE_DB) > SILENCE_DB:
            return [AudioSegment(self.offset, self._audio, self.sample_rate)]
        return segments

    def current(self) -> AudioSegment | None:
        """The segment that has begun and is not over, up to the newest sample; None in a pause."""
        speech_T = np.flatnonzero(self._is_speech_T[self._next - self._first :])
        if not len(speech_T):
            return None
        start = self._begin(self._next + int(speech_T[0]))
        return self._cut_out(start, self._num_samples / self.frame_samples, None)

    def ending(self) -> AudioSegment | None:
        """The segment that the present pause will end as it is, unless someone goes on to speak."""
        is_speech_T = self._is_speech_T[self._next - self._first :]
        speech_T = np.flatnonzero(is_speech_T)
        padding = self._frames(self.config.padding_seconds)
        if self.config.method == "none" or not len(speech_T) or len(is_speech_T) - 1 - speech_T[-1] < padding:
            return None
        begin, past = self._next + int(speech_T[0]), self._next + int(speech_T[-1]) + 1
        return self._cut_out(self._begin(begin), past + padding, None)

    # --- frames ---------------------------------------------------------------------------------

    @property
    def _known(self) -> int:
        return self._first + len(self._is_speech_T)

    def _frames(self, seconds: float) -> int:
        return round(seconds * FRAMES_PER_SECOND)

    @property
    def _audio(self) -> np.ndarray:
        """The blocks as one, joined when it is asked for: with method none there may be hours of them."""
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def _note(self, judged: tuple[np.ndarray, np.ndarray]) -> None:
        self._is_speech_T = np.concatenate([self._is_speech_T, judged[0]])
        self._energies_T = np.concatenate([self._energies_T, judged[1]])

    def _take(self, is_last: bool) -> list[AudioSegment]:
        segments = []
        while (segment := self._next_segment(is_last)) is not None:
            segments.append(segment)
        self._has_given = self._has_given or bool(segments)
        self._forget()
        return segments

    def _next_segment(self, is_last: bool) -> AudioSegment | None:
        """The first one whose end is certain."""
        config, known = self.config, self._known
        if config.method == "none":
            done = not is_last or self._num_samples == 0 or self._next > 0
            self._next = self._next if done else max(known, 1)
            return None if done else AudioSegment(self.offset, self._audio, self.sample_rate)
        is_speech_T = self._is_speech_T[self._next - self._first :]
        speech_T = np.flatnonzero(is_speech_T)
        padding = self._frames(config.padding_seconds)
        if not len(speech_T):
            self._next, self._cut_before = max(self._next, known - padding), None
            return None
        origin = self._next
        start = self._begin(origin + int(speech_T[0]))
        limit = start + self._frames(config.max_seconds)
        certain = max(self._frames(config.max_pause_seconds), 2 * padding)  # then a pause ends a segment
        pauses = _find_pauses(is_speech_T, int(speech_T[0]), self._frames(config.min_pause_seconds))
        for first, past in ((origin + a, origin + b) for a, b in pauses):
            # One that goes on at the newest frame must be long enough for the padding of both sides.
            shortest = certain if past == known else self._frames(config.max_pause_seconds)
            if past - first >= shortest and first <= limit - padding:
                end = first + min(padding, (past - first) // 2)
                return self._emit(start, end, max(past - padding, end))
        horizon = limit + certain  # what is known beyond depends on the sizes of the blocks
        if known >= horizon or (is_last and known >= limit):
            return self._cut(start, limit, [(origin + a, min(origin + b, horizon)) for a, b in pauses])
        if is_last:
            end = min(origin + int(speech_T[-1]) + 1 + padding, known)
            rest = self._num_samples / self.frame_samples  # a part of a frame at the end belongs to it
            return self._emit(start, rest if end == known else end, known)
        return None

    def _begin(self, speech: int) -> int:
        """First frame of a segment whose speech begins at a frame."""
        if self._cut_before is not None:
            return self._next
        return max(self._next, speech - self._frames(self.config.padding_seconds))

    def _cut(self, start: int, limit: int, pauses: list[tuple[int, int]]) -> AudioSegment:
        """Speech goes on past the limit: cut in its longest late pause, else at its quietest place."""
        earliest = start + self._frames(self.config.min_seconds)
        inside = [(a, b) for a, b in pauses if earliest <= (a + b) // 2 <= limit and a < limit]
        if inside:
            first, past = max(inside, key=lambda pause: pause[1] - pause[0])
            middle = min((first + past) // 2, limit)
            return self._emit(start, middle, middle)
        overlap = self._frames(self.config.overlap_seconds)
        latest = limit - overlap
        quiet_T = smooth(self._energies_T[earliest - self._first : latest - self._first], 9)
        place = earliest + int(np.argmin(quiet_T))
        return self._emit(start, place + overlap, place - overlap, place)

    def _emit(self, start: int, end: float, next_frame: int, cut: int | None = None) -> AudioSegment:
        cut_after = None if cut is None else self.offset + cut / FRAMES_PER_SECOND
        segment = self._cut_out(start, end, cut_after)
        self._next, self._cut_before = next_frame, cut_after
        return segment

    def _cut_out(self, start: int, end: float, cut_after: float | None) -> AudioSegment:
        first, past = round(start * self.frame_samples), round(end * self.frame_samples)
        audio_S = self._audio[first - self._audio_first : past - self._audio_first].copy()
        time = self.offset + first / self.sample_rate
        is_speech_T = self._is_speech_T[start - self._first : math.floor(end) - self._first]
        spans = _find_spans(is_speech_T, self._frames(INNER_PAUSE_SECONDS))
        speech = tuple(
            (self.offset + (start + a) / FRAMES_PER_SECOND, self.offset + (start + b) / FRAMES_PER_SECOND)
            for a, b in spans
        )
        return AudioSegment(time, audio_S, self.sample_rate, self._cut_before, cut_after, speech)

    def _forget(self) -> None:
        """Drop audio that no later segment can hold."""
        if self.config.method == "none" or self.seconds <= self.config.unjudged_seconds:
            return
        keep = max(self._next - 1, self._first)
        self._is_speech_T = self._is_speech_T[keep - self._first :]
        self._energies_T = self._energies_T[keep - self._first :]
        self._first = keep
        first_sample = math.floor(keep * self.frame_samples)
        self._blocks = [self._audio[first_sample - self._audio_first :]]
        self._audio_first = first_sample


def _find_spans(is_speech_T: np.ndarray, min_pause_frames: int) -> list[tuple[int, int]]:
    """First and past-the-end frame of each span of speech, with longer pauses between."""
    edges_T = np.flatnonzero(np.diff(is_speech_T.astype(np.int8), prepend=0, append=0))
    firsts, pasts = edges_T[::2], edges_T[1::2]
    is_long = firsts[1:] - pasts[:-1] >= min_pause_frames
    starts = firsts[np.concatenate([[True], is_long])[: len(firsts)]]
    ends = pasts[np.concatenate([is_long, [True]])[-len(pasts) :]] if len(pasts) else pasts
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _find_pauses(is_speech_T: np.ndarray, begin: int, min_frames: int) -> list[tuple[int, int]]:
    """First and past-the-end frame of each pause after `begin`; the last one may not be over yet."""
    edges = np.flatnonzero(np.diff(is_speech_T[begin:].astype(np.int8), append=1)) + begin + 1
    pauses = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=False)
    return [(first, past) for first, past in pauses if past - first >= min_frames]
