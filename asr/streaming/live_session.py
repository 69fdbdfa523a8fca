"""Live transcription that encodes each chunk once: a first pass reads it at once, a second one the segment.

The first pass is greedy, by the transducer or else by CTC. What it has read stays until the segment ends,
except for the last word, which may continue. The second pass is the search of `decoding`, in the steps that
are already encoded. Each segment is encoded from its own start, as the utterances of training are.
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
from asr.streaming.first_pass import Emission
from asr.streaming.live_features import LiveFeatures
from asr.transcripts.transcript import Segment, Word

# S samples, T frames or steps, F features, D model dimension

DETECTOR_SECONDS = 0.16  # of audio at a time for the speech detector: less costs more, more delays the text


class LiveSteps:
    """Encoded steps of a segment that grows, and what the first pass has read in them."""

    def __init__(self, session: ChunkedTranscriber, start: float) -> None:
        """`start`: seconds of the session before the segment."""
        self.start, self._endpoint, self._first_pass = start, session.rules.endpoint, session.first_pass
        self.emissions: list[Emission] = []
        decoder = self._decoder = session.decoder
        self._features = LiveFeatures(decoder.front_end)
        self._state = SessionState(decoder.encoder.start(1, session.chunks))
        self._num_samples = 0
        self._frames_TF = torch.zeros(0, decoder.front_end.num_features, device=decoder.device)
        self._encoded = [torch.zeros(0, decoder.encoder.output_dim, device=decoder.device)]
        decoder.speaking.add(self)

    @property
    def seconds(self) -> float:
        """Length of what is encoded."""
        return self._state.read.num_steps * self._decoder.frame_times.seconds_per_step

    @property
    def is_over(self) -> bool:
        """True if no token came for so long that the segment ends."""
        last, limit = 0, self._endpoint.empty_seconds
        if self.emissions:
            last, limit = self.emissions[-1].step + 1, self._endpoint.silence_seconds
        return self.seconds - last * self._decoder.frame_times.seconds_per_step >= limit

    def extend(self, audio_S: np.ndarray, is_last: bool) -> None:
        """Encode and read new chunks that are complete; unless `is_last`, only until the segment is over."""
        new_S = torch.from_numpy(audio_S[self._num_samples :]).to(self._decoder.device)
        self._num_samples += len(new_S)
        self._frames_TF = torch.cat([self._frames_TF, self._features.push(new_S)])
        size = self._state.encoder.chunks.steps * self._decoder.encoder.subsampling_factor
        while len(self._frames_TF) >= size and (is_last or not self.is_over):
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
        self.decoder, config = self.recognizer.decoder, self.request.decoding
        self.chunks = self.decoder.encoder.choose_chunks(config.chunk_steps)
        self.first_pass = self.decoder.name_first_pass(config)
        features = self.decoder.front_end.config
        overlap = (features.window_samples - features.shift_samples - 0.5) / self.sample_rate
        self._ahead = self.chunks.steps * self.decoder.frame_times.seconds_per_step + overlap
        self._steps: LiveSteps | None = None  # of the segment that is being spoken
        self._rest_S = np.zeros(0, np.float32)  # samples that are not read yet

    def push(self, samples_S: np.ndarray, is_late: bool = False) -> list[LiveText]:
        """Add samples, which are read in pieces that end where chunks do, also late ones."""
        texts, self._rest_S = list[LiveText](), np.concatenate([self._rest_S, samples_S])
        while len(self._rest_S) >= (size := self._choose_size()):
            piece_S, self._rest_S = self._rest_S[:size], self._rest_S[size:]
            texts += super().push(piece_S) + self._apply_endpoint()
        return texts

    def finish(self) -> list[LiveText]:
        return super().push(self._rest_S, is_late=True) + super().finish()

    def _choose_size(self) -> int:
        most = round(DETECTOR_SECONDS * self.sample_rate)
        missing = math.ceil((self._find_due() - self._segmenter.seconds) * self.sample_rate)
        return missing if 0 < missing < most else most

    def _find_due(self) -> float:
        """The second at which its next chunk is complete."""
        return 0.0 if self._steps is None else self._steps.start + self._steps.seconds + self._ahead

    def _apply_endpoint(self) -> list[LiveText]:
        """End the segment that has no new text for so long. One without any text is dropped."""
        steps, rules = self._steps, self.rules
        if steps is None or not steps.is_over:
            return []
        # What comes next may have begun already, so it gets the last part of the silence.
        kept = min(rules.padding_seconds, rules.endpoint.silence_seconds / 2, steps.seconds / 2)
        segment = self._segmenter.end_at(steps.start + steps.seconds - kept)
        ended = [self._end(segment)] if steps.emissions else []
        self._steps = self._prepared = None
        return ended

    def _extend(self, segment: AudioSegment, is_last: bool = False) -> LiveSteps:
        if self._steps is None or self._steps.start != segment.start:
            self._steps = LiveSteps(self, segment.start)
        self._steps.extend(segment.audio_S, is_last)
        return self._steps

    def _read_part(self, current: AudioSegment) -> Segment:
        """The text of the first pass. It never changes, so all but its last word is stable."""
        steps, times, words = self._extend(current), self.decoder.frame_times, list[Word]()
        tokens = [emission.token for emission in steps.emissions]
        for span in split_words(self.recognizer.tokenizer, tokens):
            own = steps.emissions[span.first : span.past]
            mean = sum(emission.log_probability for emission in own) / len(own)
            start, end = (steps.start + times.time(step) for step in (own[0].step, own[-1].step + 1))
            words.append(Word(span.text, start, end, math.exp(mean)))
        self._last = self._new_words(words)
        return Segment(current.start, current.end, "", tuple(words))

    def _prepare(self, ending: AudioSegment) -> LiveText:
        """Show the second pass in a pause. It makes no word stable, since the first one may go on."""
        self._last = []
        return super()._prepare(ending)

    def _end(self, segment: AudioSegment) -> LiveText:
        text = super()._end(segment)
        self._steps = None
        return text

    def _recognize(self, segment: AudioSegment, language: str | None, is_partial: bool = False) -> Segment:
        known = {field.name: getattr(segment, field.name) for field in fields(segment)}
        encoded_TD = self._extend(segment, is_last=True).finish(segment.end)
        return super()._recognize(EncodedSegment(**known, encoded_TD=encoded_TD), language, is_partial)
