"""Live transcription that encodes each chunk once: its best path is the text so far, a search the final one.

The cutting into segments, and what ends them, is that of all live transcription. What was read stays as it is
until the segment ends, but for the last word, which may continue.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from asr.audio.segmentation import AudioSegment
from asr.decoding.timestamps import split_words
from asr.models.encoders import FrameTimes
from asr.serve.live import MAX_PAUSE_SECONDS, LiveText, LiveTranscriber
from asr.streaming.chunked_decoder import ChunkedDecoder, EncodedChunk, EncodedSegment
from asr.streaming.live_features import LiveFeatures
from asr.text.tokenizer import BLANK_ID
from asr.transcription.transcribe import Recognizer, Request
from asr.transcripts.transcript import Segment, Word, make_segment

# S samples, T frames or steps, F features, D model dimension

SPARE_SECONDS = 5.0  # of steps that are kept beyond the longest segment and its pause


class LiveSteps:
    """Encoded steps of one session, counted from its start; the oldest are forgotten."""

    def __init__(self, decoder: ChunkedDecoder) -> None:
        self._decoder = decoder
        self._features = LiveFeatures(decoder.front_end)
        self._state = decoder.encoder.start()
        self._chunk_frames = self._state.chunks.steps * decoder.encoder.subsampling_factor
        self._frames_TF = torch.zeros(0, decoder.front_end.num_features, device=decoder.device)
        self._chunks: list[EncodedChunk] = []
        self._forgotten = 0  # chunks

    @property
    def times(self) -> FrameTimes:
        return self._decoder.frame_times

    def push(self, samples_S: np.ndarray) -> None:
        """Encode the chunks that these samples complete."""
        audio_S = torch.from_numpy(samples_S).to(self._decoder.device)
        self._frames_TF = torch.cat([self._frames_TF, self._features.push(audio_S)])
        while len(self._frames_TF) >= self._chunk_frames:
            chunk = self._decoder.encode_chunk(self._frames_TF[: self._chunk_frames], self._state)
            self._frames_TF = self._frames_TF[self._chunk_frames :]
            self._chunks.append(chunk)
            self._state = chunk.state

    def between(self, start: float, end: float, is_whole: bool) -> tuple[int, EncodedChunk]:
        """The first step from `start` on, in seconds, and all steps up to `end`, as one chunk.

        `is_whole`: nothing follows, so that the frames of an incomplete chunk are encoded, too.
        """
        size = self._state.chunks.steps
        first, past = (round(seconds / self.times.seconds_per_step) for seconds in (start, end))
        chunks, begin = list(self._chunks), self._forgotten * size
        if is_whole and past > begin + len(chunks) * size and len(self._frames_TF):
            chunks.append(self._decoder.encode_chunk(self._frames_TF, self._state))
        rows = slice(max(first - begin, 0), max(past - begin, 0))
        tokens = [token for chunk in chunks for token in chunk.tokens]
        scores = [score for chunk in chunks for score in chunk.log_probabilities]
        empty_TD = torch.zeros(0, self._decoder.encoder.output_dim, device=self._decoder.device)
        encoded_TD = torch.cat([empty_TD, *(chunk.encoded_TD for chunk in chunks)])
        found = EncodedChunk(encoded_TD[rows], tokens[rows], scores[rows], self._state)
        return begin + rows.start, found

    def forget(self, seconds: float) -> None:
        """Forget the chunks that end before this time."""
        size = self._state.chunks.steps * self.times.seconds_per_step
        count = min(max(int(seconds / size) - self._forgotten, 0), len(self._chunks))
        del self._chunks[:count]
        self._forgotten += count


class ChunkedTranscriber(LiveTranscriber):
    """Recognizer of live audio by an encoder that works by chunks."""

    def __init__(
        self,
        recognizer: Recognizer,
        request: Request | None = None,
        max_pause_seconds: float = MAX_PAUSE_SECONDS,
    ) -> None:
        super().__init__(recognizer, request, max_pause_seconds)
        assert isinstance(recognizer.decoder, ChunkedDecoder)
        self._steps = LiveSteps(recognizer.decoder)
        chunks = recognizer.decoder.encoder.choose_chunks()
        self.step_seconds = chunks.steps * self._steps.times.seconds_per_step
        rules = self._segmenter.rules
        self._kept_seconds = rules.max_seconds + rules.max_pause_seconds + SPARE_SECONDS

    def push(self, samples_S: np.ndarray, is_late: bool = False) -> list[LiveText]:
        self._steps.push(samples_S)
        texts = super().push(samples_S, is_late)
        if self._segmenter.rules.method != "none":
            self._steps.forget(self._segmenter.seconds - self._kept_seconds)
        return texts

    def _read_part(self, current: AudioSegment) -> Segment:
        """The best path of CTC. No step of it changes later, so that it agrees with the next one."""
        words = self._read_words(current)
        self._last = self._new_words(words)
        separator = self.recognizer.decoder.separator_in(None)
        return make_segment(current, separator.join(word.text for word in words), words, "ctc_greedy", ())

    def _read_words(self, segment: AudioSegment) -> list[Word]:
        first, chunk = self._steps.between(segment.start, segment.end, is_whole=False)
        pairs = enumerate(itertools.pairwise([BLANK_ID, *chunk.tokens]))
        places = [place for place, (before, token) in pairs if token not in (BLANK_ID, before)]
        tokens, words = [chunk.tokens[place] for place in places], []
        for span in split_words(self.recognizer.tokenizer, tokens):
            own = places[span.first : span.past]
            mean = sum(chunk.log_probabilities[place] for place in own) / len(own)
            start, end = (self._steps.times.time(first + place) for place in (own[0], own[-1] + 1))
            words.append(Word(span.text, start, end, math.exp(mean)))
        return words

    def _recognize(self, segment: AudioSegment, language: str | None, is_partial: bool = False) -> Segment:
        _, chunk = self._steps.between(segment.start, segment.end, is_whole=True)
        known = {field.name: getattr(segment, field.name) for field in fields(segment)}
        encoded: Tensor = chunk.encoded_TD
        return super()._recognize(EncodedSegment(**known, encoded_TD=encoded), language, is_partial)
