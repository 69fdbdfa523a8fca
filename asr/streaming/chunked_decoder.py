"""Encoding for live sessions, whose next chunks go in one batch, and decoding what they have encoded."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


@dataclass(frozen=True)
class EncodedSegment(AudioSegment):
    """A segment of a live session, whose steps are encoded already."""

    encoded_TD: Tensor = field(kw_only=True)


class SessionState(NamedTuple):
    """Where a session is in its segment: the encoder, and the first pass, which follows it."""

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


Kind = tuple[Chunks, str]
"""Chunks of one size, and the name of the first pass: sessions that have both in common go in one batch."""


class ChunkedDecoder(SpeechDecoder):
    """Manners of models whose encoder works by chunks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waiting: dict[Kind, list[_Waiting]] = {}
        self._is_working = threading.Lock()
        self._first_passes = {name: build(self.model) for name, build in FIRST_PASSES.items()}

    @property
    def encoder(self) -> Any:
        return self.model.encoder

    def name_first_pass(self, config: DecodingConfig) -> str:
        """Name the first pass that agrees with a decoding method."""
        method = find_method(resolve_method(self.model, config.method))
        return "transducer" if "transducer" in method.decoders else "ctc"

    def encode_chunk(self, frames_TF: Tensor, state: SessionState, first_pass: str) -> EncodedChunk:
        """Encode and read the next frames of a session, together with what other threads wait for."""
        own, kind = _Waiting(frames_TF, state, Future()), (state.encoder.chunks, first_pass)
        waiting = self._waiting.setdefault(kind, [])
        waiting.append(own)
        while not own.result.done():
            with self._is_working:  # who waited here will mostly find its chunk encoded by another thread
                batch = waiting[:MAX_BATCH]
                del waiting[: len(batch)]
                if batch:
                    self._encode_chunks(batch, first_pass)
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
                read = self._first_passes[first_pass](encoded_BTD, lengths_B, states)
            for row, (length, (emissions, after)) in enumerate(zip(lengths_B.tolist(), read, strict=True)):
                state = SessionState(joined.take([row]), after)
                encoded_TD = encoded_BTD[row, :length].clone()  # a view would keep those of all sessions
                batch[row].result.set_result(EncodedChunk(encoded_TD, emissions, state))
        except BaseException as error:  # or those who wait would wait for ever
            if len(batch) == 1:
                batch[0].result.set_exception(error)
                return
            for one in batch:  # so that only the bad one fails
                self._encode_chunks([one], first_pass)

    def encode_segments(
        self, segments: Sequence[AudioSegment], speed: float, setups: Collection[DecodingSetup]
    ) -> EncodedAudio:
        """Encode only segments that live sessions have not encoded."""
        new = [segment for segment in segments if speed != 1.0 or not isinstance(segment, EncodedSegment)]
        if len(new) < len(segments):
            encoded = iter(self._list_steps(new, setups))
            steps = [one.encoded_TD if isinstance(one, EncodedSegment) else next(encoded) for one in segments]
            lengths_B = torch.tensor([len(encoded_TD) for encoded_TD in steps], device=self.device)
            return EncodedAudio(
                self.model, pad_sequence(steps, batch_first=True), lengths_B, rules=self.rules
            )
        sizes = {setup.config.chunk_steps for setup in setups}
        if sizes == {None}:
            return super().encode_segments(segments, speed, setups)
        (size,) = sizes
        return self._encode_by_chunks(segments, speed, self.encoder.choose_chunks(size))

    def _list_steps(
        self, segments: Sequence[AudioSegment], setups: Collection[DecodingSetup]
    ) -> list[Tensor]:
        """The steps of segments that are not of live sessions."""
        if not segments:
            return []
        encoded = self.encode_segments(segments, 1.0, setups)
        return [
            row_TD[:length] for row_TD, length in zip(encoded.encoded_BTD, encoded.lengths_B, strict=True)
        ]

    @torch.inference_mode()
    def _encode_by_chunks(
        self, segments: Sequence[AudioSegment], speed: float, chunks: Chunks
    ) -> EncodedAudio:
        """Whole segments, in which a step sees what it would see live."""
        played = [change_speed(segment.audio_S, speed, self.sample_rate) for segment in segments]
        features_BTF, lengths_B = self.front_end(*pad_audio(played, self.device))
        with compute_type(self.device, self.dtype):
            encoded_BTD, lengths_B = self.encoder(features_BTF, lengths_B, chunks)
            return EncodedAudio(self.model, encoded_BTD, lengths_B, rules=self.rules)
