"""Live transcription that encodes each chunk once: its best path is the text so far, a search the final one.

The cutting into segments, and what ends them, is that of all live transcription. Each segment is encoded from
its own start, as the utterances of training are. What was read stays as it is until the segment ends, but for
the last word, which may continue.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import fields

import numpy as np
import torch

from asr.audio.segmentation import AudioSegment
from asr.decoding.word_spans import split_words
from asr.serve.live import LiveTranscriber
from asr.streaming.chunked_decoder import ChunkedDecoder, EncodedChunk, EncodedSegment
from asr.streaming.live_features import LiveFeatures
from asr.text.tokenizer import BLANK_ID
from asr.transcripts.transcript import Segment, Word, make_segment

# S samples, T frames or steps, F features, D model dimension


class LiveSteps:
    """Encoded steps of a segment that grows."""

    def __init__(self, decoder: ChunkedDecoder, start: float) -> None:
        """`start`: seconds of the session before the segment."""
        self.start = start
        self._decoder = decoder
        self._seconds_per_step = decoder.frame_times.seconds_per_step
        self._features = LiveFeatures(decoder.front_end)
        self._state = decoder.encoder.start()
        self._num_samples = 0
        self._frames_TF = torch.zeros(0, decoder.front_end.num_features, device=decoder.device)
        self._chunks: list[EncodedChunk] = []

    def extend(self, audio_S: np.ndarray) -> None:
        """Encode the chunks that are complete in the segment so far, and were not before."""
        new_S = torch.from_numpy(audio_S[self._num_samples :]).to(self._decoder.device)
        self._num_samples += len(new_S)
        self._frames_TF = torch.cat([self._frames_TF, self._features.push(new_S)])
        size = self._state.chunks.steps * self._decoder.encoder.subsampling_factor
        while len(self._frames_TF) >= size:
            chunk = self._decoder.encode_chunk(self._frames_TF[:size], self._state)
            self._frames_TF = self._frames_TF[size:]
            self._chunks.append(chunk)
            self._state = chunk.state

    def read(self, end: float, is_whole: bool) -> EncodedChunk:
        """All steps up to `end`, in seconds of the session, as one chunk.

        `is_whole`: nothing follows, so that the frames of an incomplete chunk are encoded, too.
        """
        past = math.ceil((end - self.start) / self._seconds_per_step)
        chunks = list(self._chunks)
        if is_whole and past > len(chunks) * self._state.chunks.steps and len(self._frames_TF):
            chunks.append(self._decoder.encode_chunk(self._frames_TF, self._state))
        empty_TD = torch.zeros(0, self._decoder.encoder.output_dim, device=self._decoder.device)
        encoded_TD = torch.cat([empty_TD, *(chunk.encoded_TD for chunk in chunks)])
        tokens = [token for chunk in chunks for token in chunk.tokens]
        scores = [score for chunk in chunks for score in chunk.log_probabilities]
        return EncodedChunk(encoded_TD[:past], tokens[:past], scores[:past], self._state)


class ChunkedTranscriber(LiveTranscriber):
    """Recognizer of live audio by an encoder that works by chunks."""

    _steps: LiveSteps | None = None  # of the segment that is being spoken

    @property
    def step_seconds(self) -> float:  # type: ignore[override]
        """Length of a chunk, after which there is more to read."""
        decoder = self._decoder
        return float(decoder.encoder.choose_chunks().steps * decoder.frame_times.seconds_per_step)

    @property
    def _decoder(self) -> ChunkedDecoder:
        decoder = self.recognizer.decoder
        assert isinstance(decoder, ChunkedDecoder)
        return decoder

    def _read(self, segment: AudioSegment, is_whole: bool) -> EncodedChunk:
        if self._steps is None or self._steps.start != segment.start:
            self._steps = LiveSteps(self._decoder, segment.start)
        self._steps.extend(segment.audio_S)
        return self._steps.read(segment.end, is_whole)

    def _read_part(self, current: AudioSegment) -> Segment:
        """The best path of CTC. No step of it changes later, so that it agrees with the next one."""
        words = self._read_words(current)
        self._last = self._new_words(words)
        separator = self._decoder.separator_in(None)
        return make_segment(current, separator.join(word.text for word in words), words, "ctc_greedy", ())

    def _read_words(self, segment: AudioSegment) -> list[Word]:
        chunk = self._read(segment, is_whole=False)
        pairs = enumerate(itertools.pairwise([BLANK_ID, *chunk.tokens]))
        places = [place for place, (before, token) in pairs if token not in (BLANK_ID, before)]
        tokens, words = [chunk.tokens[place] for place in places], []
        for span in split_words(self.recognizer.tokenizer, tokens):
            own = places[span.first : span.past]
            mean = sum(chunk.log_probabilities[place] for place in own) / len(own)
            start, end = (
                segment.start + self._decoder.frame_times.time(step) for step in (own[0], own[-1] + 1)
            )
            words.append(Word(span.text, start, end, math.exp(mean)))
        return words

    def _recognize(self, segment: AudioSegment, language: str | None, is_partial: bool = False) -> Segment:
        known = {field.name: getattr(segment, field.name) for field in fields(segment)}
        encoded_TD = self._read(segment, is_whole=True).encoded_TD
        return super()._recognize(EncodedSegment(**known, encoded_TD=encoded_TD), language, is_partial)
