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
from asr.decoding.decode import DecodingSetup, SpeechDecoder, compute_type, pad_audio
from asr.decoding.hypothesis import EncodedAudio
from asr.streaming.chunked_encoders import Chunks, EncoderState

# B sessions or segments, T frames or steps, F features, D model dimension

MAX_BATCH = 64  # chunks that are encoded at once


@dataclass(frozen=True)
class EncodedSegment(AudioSegment):
    """A segment of a live session, whose steps are encoded already."""

    encoded_TD: Tensor = field(kw_only=True)


class EncodedChunk(NamedTuple):
    """Steps of a chunk, the likeliest token of each with its log-probability, and the state after them."""

    encoded_TD: Tensor
    tokens: list[int]
    log_probabilities: list[float]
    state: EncoderState


class _Waiting(NamedTuple):
    frames_TF: Tensor
    state: EncoderState
    result: Future[EncodedChunk]


class ChunkedDecoder(SpeechDecoder):
    """Manners of models whose encoder works by chunks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waiting: list[_Waiting] = []
        self._is_working = threading.Lock()

    @property
    def encoder(self) -> Any:
        return self.model.encoder

    def encode_chunk(self, frames_TF: Tensor, state: EncoderState) -> EncodedChunk:
        """Encode the next frames of a session, together with what other threads wait for."""
        own = _Waiting(frames_TF, state, Future())
        self._waiting.append(own)
        while not own.result.done():
            with self._is_working:  # who waited here will mostly find its chunk encoded by another thread
                batch = self._waiting[:MAX_BATCH]
                del self._waiting[: len(batch)]
                if batch:
                    self._encode_chunks(batch)
        return own.result.result()

    @torch.inference_mode()
    def _encode_chunks(self, batch: Sequence[_Waiting]) -> None:
        try:
            frames_BTF = pad_sequence([one.frames_TF for one in batch], batch_first=True)
            lengths_B = torch.tensor([len(one.frames_TF) for one in batch], device=self.device)
            joined = EncoderState.join([one.state for one in batch])
            with compute_type(self.device, self.dtype):
                encoded_BTD, lengths_B, joined = self.encoder.step(frames_BTF, lengths_B, joined)
                best_BT, tokens_BT = self.model.ctc_log_probabilities(encoded_BTD).max(-1)
            for row, length in enumerate(lengths_B.tolist()):
                tokens, best = (part_BT[row, :length].tolist() for part_BT in (tokens_BT, best_BT))
                state = joined.take([row])
                batch[row].result.set_result(EncodedChunk(encoded_BTD[row, :length], tokens, best, state))
        except BaseException as error:  # or those who wait would wait for ever
            for one in batch:
                one.result.set_exception(error)

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
