"""Live transcription that encodes each chunk once: a first pass reads it at once, a second one the segment.

The first pass is greedy, by the transducer or else by CTC. What it has read stays until the segment ends,
except for the last word, which may continue. The second pass is the search of `decoding`, in the steps that
are already encoded. Segments end at the pauses and lengths of all live transcription, and by their text: see
`EndpointConfig`. Each is encoded from its own start, as the utterances of training are.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.audio.segmentation import AudioSegment
from asr.decoding.word_spans import split_words
from asr.serve.live import LiveText, LiveTranscriber
from asr.streaming.chunked_decoder import ChunkedDecoder, EncodedSegment, SessionState
from asr.streaming.chunked_encoders import Chunks
from asr.streaming.first_pass import Emission
from asr.streaming.live_features import LiveFeatures
from asr.transcripts.transcript import Segment, Word, make_segment

# S samples, T frames or steps, F features, D model dimension


class LiveSteps:
    """Encoded steps of a segment that grows, and what the first pass has read in them."""

    def __init__(self, decoder: ChunkedDecoder, chunks: Chunks, first_pass: str, start: float) -> None:
        """`start`: seconds of the session before the segment."""
        self.start = start
        self.emissions: list[Emission] = []
        self._decoder, self._first_pass = decoder, first_pass
        self._features = LiveFeatures(decoder.front_end)
        self._state = SessionState(decoder.encoder.start(1, chunks))
        self._num_samples = 0
        self._frames_TF = torch.zeros(0, decoder.front_end.num_features, device=decoder.device)
        self._encoded = [torch.zeros(0, decoder.encoder.output_dim, device=decoder.device)]

    @property
    def seconds(self) -> float:
        """Length of what is encoded."""
        return self._state.read.num_steps * self._decoder.frame_times.seconds_per_step

    @property
    def blank_seconds(self) -> float:
        """How long no token came, at the end of what is encoded."""
        first = self.emissions[-1].step + 1 if self.emissions else 0
        return self.seconds - first * self._decoder.frame_times.seconds_per_step

    def extend(self, audio_S: np.ndarray) -> None:
        """Encode and read the chunks that are complete in the segment so far, and were not before."""
        new_S = torch.from_numpy(audio_S[self._num_samples :]).to(self._decoder.device)
        self._num_samples += len(new_S)
        self._frames_TF = torch.cat([self._frames_TF, self._features.push(new_S)])
        size = self._state.encoder.chunks.steps * self._decoder.encoder.subsampling_factor
        while len(self._frames_TF) >= size:
            chunk = self._decoder.encode_chunk(self._frames_TF[:size], self._state, self._first_pass)
            self._frames_TF = self._frames_TF[size:]
            self._encoded.append(chunk.encoded_TD)
            self.emissions += chunk.emissions
            self._state = chunk.state

    def finish(self, end: float) -> Tensor:
        """All steps up to `end`, in seconds of the session, with the frames of an incomplete chunk."""
        past = math.ceil((end - self.start) / self._decoder.frame_times.seconds_per_step)
        encoded = list(self._encoded)
        if past > self._state.read.num_steps and len(self._frames_TF):
            chunk = self._decoder.encode_chunk(self._frames_TF, self._state, self._first_pass)
            encoded.append(chunk.encoded_TD)
        return torch.cat(encoded)[:past]


class ChunkedTranscriber(LiveTranscriber):
    """Recognizer of live audio by an encoder that works by chunks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert isinstance(self.recognizer.decoder, ChunkedDecoder)
        self._decoder = self.recognizer.decoder
        config = self.request.decoding
        self._chunks = self._decoder.encoder.choose_chunks(config.chunk_steps)
        self._first_pass = self._decoder.name_first_pass(config)
        self.step_seconds = self._chunks.steps * self._decoder.frame_times.seconds_per_step
        self._steps: LiveSteps | None = None  # of the segment that is being spoken

    def push(self, samples_S: np.ndarray, is_late: bool = False) -> list[LiveText]:
        """Add samples. Chunks are encoded even with `is_late`, since the final text needs them anyway."""
        texts, size = [], round(self.step_seconds * self.sample_rate)
        for first in range(0, len(samples_S), size):  # so that segments end where they would in small pieces
            texts += super().push(samples_S[first : first + size], is_late)
            if is_late and (current := self._segmenter.current()) is not None:
                self._extend(current)
            texts += self._apply_endpoint()
        return texts

    def _apply_endpoint(self) -> list[LiveText]:
        """End the segment that has no new text for so long. One without any text is dropped."""
        steps, endpoint = self._steps, self.rules.endpoint
        if steps is None:
            return []
        limit = endpoint.silence_seconds if steps.emissions else endpoint.empty_seconds
        if steps.blank_seconds < limit:
            return []
        # What comes next may have begun already, so it gets the last part of the silence.
        kept = min(self.rules.padding_seconds, limit / 2)
        segment = self._segmenter.end_at(steps.start + steps.seconds - kept)
        if steps.emissions:
            return [self._end(segment)]
        self._steps = self._prepared = None
        return []

    def _extend(self, segment: AudioSegment) -> LiveSteps:
        if self._steps is None or self._steps.start != segment.start:
            self._steps = LiveSteps(self._decoder, self._chunks, self._first_pass, segment.start)
        self._steps.extend(segment.audio_S)
        return self._steps

    def _read_part(self, current: AudioSegment) -> Segment:
        """The text of the first pass. It never changes, so all but its last word is stable."""
        words = self._list_words(self._extend(current))
        self._last = self._new_words(words)
        text = self._decoder.separator_in(None).join(word.text for word in words)
        return make_segment(current, text, words, self._first_pass, ())

    def _list_words(self, steps: LiveSteps) -> list[Word]:
        words = []
        tokens = [emission.token for emission in steps.emissions]
        for span in split_words(self.recognizer.tokenizer, tokens):
            own = steps.emissions[span.first : span.past]
            mean = sum(emission.log_probability for emission in own) / len(own)
            start, end = (
                steps.start + self._decoder.frame_times.time(step) for step in (own[0].step, own[-1].step + 1)
            )
            words.append(Word(span.text, start, end, math.exp(mean)))
        return words

    def _prepare(self, ending: AudioSegment) -> LiveText:
        """Show the second pass in a pause. It makes no word stable, since the first one may go on."""
        self._last = []
        return super()._prepare(ending)

    def _end(self, segment: AudioSegment) -> LiveText:
        text = super()._end(segment)
        self._steps = None
        return text

    def _recognize(self, segment: AudioSegment, language: str | None, is_partial: bool = False) -> Segment:
        """The text of the second pass."""
        known = {field.name: getattr(segment, field.name) for field in fields(segment)}
        encoded_TD = self._extend(segment).finish(segment.end)
        return super()._recognize(EncodedSegment(**known, encoded_TD=encoded_TD), language, is_partial)
