"""Encoding for live sessions, whose next chunks go in one batch, and decoding what they have encoded."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.audio.reading import change_speed
from asr.audio.segmentation import AudioSegment
from asr.decoding.decode import (
    DecodingSetup,
    SpeechDecoder,
    compute_type,
    find_method,
    pad_audio,
    resolve_method,
)
from asr.decoding.hypothesis import DecodingConfig, EncodedAudio
from asr.streaming.chunked_encoders import Chunks, EncoderState
from asr.streaming.first_pass import FIRST_PASSES, Emission, ReadState

# B sessions or segments, T frames or steps, F features, D model dimension

MAX_BATCH = 64  # chunks that are encoded at once
WAIT_SHARE = 0.25  # of a chunk's duration, for which the first one waits for others


@dataclass(frozen=True)
class EncodedSegment(AudioSegment):
    """A segment of a live session, whose steps are encoded already."""

    encoded_TD: Tensor = field(kw_only=True)


class SessionState(NamedTuple):
    """The place of a session in its segment: of the encoder, and of the first pass, which follows it."""

    encoder: EncoderState
    read: ReadState = ReadState()


class EncodedChunk(NamedTuple):
    """Steps of a chunk, the tokens that they brought, and the state after them."""

    encoded_TD: Tensor
    emissions: list[Emission]
    state: SessionState


class _Waiting(NamedTuple):
    frames_TF: Tensor
    state: SessionState
    result: Future[EncodedChunk]


class ChunkedDecoder(SpeechDecoder):
    """Manners of models whose encoder works by chunks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.encoder: Any = self.model.encoder
        self.speaking = WeakSet[Any]()  # segments that are being spoken, in all sessions
        # Sessions go in one batch if their chunks have one size and are read by the same first pass.
        self._waiting: dict[tuple[Chunks, str], list[_Waiting]] = {}
        self._arrived, self._is_working = threading.Condition(), threading.Lock()

    def name_first_pass(self, config: DecodingConfig) -> str:
        """Name the first pass that agrees with a decoding method."""
        method = find_method(resolve_method(self.model, config.method))
        return "transducer" if "transducer" in method.decoders else "ctc"

    def encode_chunk(self, frames_TF: Tensor, state: SessionState, first_pass: str) -> EncodedChunk:
        """Encode and read the next frames of a session, together with the ones of other threads."""
        own, kind = _Waiting(frames_TF, state, Future()), (state.encoder.chunks, first_pass)
        longest = WAIT_SHARE * state.encoder.chunks.steps * self.frame_times.seconds_per_step
        with self._arrived:
            waiting = self._waiting.setdefault(kind, [])
            waiting.append(own)
            self._arrived.notify_all()
            if is_first := len(waiting) == 1:  # it encodes all that are being spoken, if they come soon
                self._arrived.wait_for(lambda: len(waiting) >= len(self.speaking), longest)
        if is_first:
            with self._is_working:
                with self._arrived:
                    del self._waiting[kind]  # who comes now is the first of the next ones
                for first in range(0, len(waiting), MAX_BATCH):
                    self._encode_chunks(waiting[first : first + MAX_BATCH], first_pass)
        return own.result.result()

    @torch.inference_mode()
    def _encode_chunks(self, batch: Sequence[_Waiting], first_pass: str) -> None:
        try:
            frames_BTF = pad_sequence([one.frames_TF for one in batch], batch_first=True)
            lengths_B = torch.tensor([len(one.frames_TF) for one in batch], device=self.device)
            joined = EncoderState.join([one.state.encoder for one in batch])
            with compute_type(self.device, self.dtype):
                encoded_BTD, lengths_B, joined = self.encoder.step(frames_BTF, lengths_B, joined)
                states = [one.state.read for one in batch]
                read = FIRST_PASSES[first_pass](self.model, encoded_BTD, lengths_B, states)
            columns = zip(batch, encoded_BTD, lengths_B.tolist(), joined.split(), read, strict=True)
            for one, row_TD, length, state, (emissions, after) in columns:
                encoded_TD = row_TD[:length].clone()  # a view would keep the whole batch
                one.result.set_result(EncodedChunk(encoded_TD, emissions, SessionState(state, after)))
        except BaseException as error:  # or those who wait would wait for ever
            if len(batch) == 1:
                batch[0].result.set_exception(error)
                return
            for one in batch:  # so that only the bad one fails
                if not one.result.done():
                    self._encode_chunks([one], first_pass)

    @torch.inference_mode()
    def encode_segments(
        self, segments: Sequence[AudioSegment], speed: float, setups: Collection[DecodingSetup]
    ) -> EncodedAudio:
        """Encode only segments that live sessions have not encoded; by chunks if the settings say so."""
        if speed == 1.0 and any(isinstance(segment, EncodedSegment) for segment in segments):
            steps = [self._find_steps(segment, setups) for segment in segments]
            lengths_B = torch.tensor([*map(len, steps)], device=self.device)
            padded_BTD = pad_sequence(steps, batch_first=True)
            return EncodedAudio(self.model, padded_BTD, lengths_B, rules=self.rules)
        (size,) = {setup.config.chunk_steps for setup in setups}
        if size is None:
            return super().encode_segments(segments, speed, setups)
        played = [change_speed(segment.audio_S, speed, self.sample_rate) for segment in segments]
        features_BTF, lengths_B = self.front_end(*pad_audio(played, self.device))
        with compute_type(self.device, self.dtype):  # a step sees what it would see live
            chunks = self.encoder.choose_chunks(size)
            encoded_BTD, lengths_B = self.encoder(features_BTF, lengths_B, chunks)
            return EncodedAudio(self.model, encoded_BTD, lengths_B, rules=self.rules)

    def _find_steps(self, segment: AudioSegment, setups: Collection[DecodingSetup]) -> Tensor:
        if isinstance(segment, EncodedSegment):
            return segment.encoded_TD
        encoded = self.encode_segments([segment], 1.0, setups)
        return encoded.encoded_BTD[0, : int(encoded.lengths_B)]
